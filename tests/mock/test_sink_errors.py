"""What the sink makes of librdkafka's errors, injected into a mock cluster."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import confluent_kafka as ck
import pytest

from tests.mock.mock_cluster import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    MockCluster,
)
from tests.processes import wait_for
from uow.processor.engine.ports import (
    Doubt,
    Output,
    Plan,
    Refused,
    StaleGeneration,
    Stopped,
    Tp,
)
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.sink import STEPS, KafkaSink
from uow.processor.kafka.transactional_producer import fatal_cause
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.schemas.error_classes import FencedError

ERROR = ck.KafkaError


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster("in", "commands", "units", "changelog", "ledger") as running:
        yield running


class SinkBench:
    """A sink on the mock cluster, opened."""

    def __init__(self, cluster: MockCluster, **changes: object) -> None:
        self.settings = WorkerSettings("A", cluster.bootstrap, "0", transaction_timeout_ms=3000, **changes)  # type: ignore[arg-type]
        self.steps: list[str] = []
        self.replaced: list[str] = []
        clients = Clients(self.settings)
        self.sink = KafkaSink(clients, self.settings, self.steps.append, self.replaced.append)
        self.group = clients.group_consumer()
        self.sink.open()

    def write(self, value: bytes = b"unit") -> None:
        plan = Plan(Tp("in", 0), "changelog", "ledger", 1, "commands", 0, "1;F=1")
        plan.changelog += [(b"k", b"row"), (b"gone", None)]
        plan.ledger = b"ledger"
        plan.outputs.append(Output("units", 0, b"u", value, [("uow-id", b"u"), ("empty", None)]))
        self.sink.write([plan], self.group.consumer_group_metadata())

    def close(self) -> None:
        self.sink.close()
        self.group.close()


@pytest.fixture
def bench(cluster: MockCluster) -> Iterator[SinkBench]:
    opened = SinkBench(cluster)
    yield opened
    opened.close()


def test_steps_are_called_by_their_names_in_order(bench: SinkBench) -> None:
    """EN-02."""
    bench.write()
    assert tuple(bench.steps) == STEPS


@pytest.mark.parametrize("code", [ERROR.ILLEGAL_GENERATION, ERROR.UNKNOWN_MEMBER_ID])
def test_group_that_moved_on_is_a_stale_generation_aborted_at_once(
    bench: SinkBench, cluster: MockCluster, code: int
) -> None:
    """ER-14. The library logs the refused offsets as an error of the transaction, so the next one gets a new epoch as well."""
    cluster.fail(TXN_OFFSET_COMMIT, code)
    with pytest.raises(StaleGeneration):
        bench.write()
    bench.write()
    assert [cause.partition(" ")[0] for cause in bench.replaced] == ["TXNERR"]


def test_stale_generation_whose_abort_fails_is_a_doubt(bench: SinkBench, cluster: MockCluster) -> None:
    """ER-14, ER-11: the transaction is still open, so it is not enough to let the rebalance finish: the producer is to be replaced."""
    cluster.fail(TXN_OFFSET_COMMIT, ERROR.ILLEGAL_GENERATION)
    cluster.fail(END_TXN, *[ERROR.COORDINATOR_LOAD_IN_PROGRESS] * 20_000)
    with pytest.raises(Doubt, match="and the abort: ") as caught:
        bench.write()
    assert not isinstance(caught.value, StaleGeneration)


@pytest.mark.parametrize("code", [ERROR.MSG_SIZE_TOO_LARGE, ERROR.TOPIC_AUTHORIZATION_FAILED, ERROR.INVALID_RECORD])
def test_record_that_the_broker_refuses_fails_the_transaction(
    bench: SinkBench, cluster: MockCluster, code: int
) -> None:
    """ER-04, F20: no callback per record is needed, the commit fails."""
    cluster.fail(PRODUCE, code)
    with pytest.raises(Refused):
        bench.write()
    assert "committed" not in bench.steps
    bench.sink.replace()
    bench.write()


def test_record_refused_while_offsets_are_under_way_is_told_as_such(bench: SinkBench, cluster: MockCluster) -> None:
    """F20: the library answers the offsets with "erroneous state" then; taken for a doubt, the same would be tried for ever."""
    cluster.fail(PRODUCE, ERROR.INVALID_RECORD)
    cluster.late(ADD_OFFSETS, 1000)
    with pytest.raises(Refused, match="INVALID_RECORD"):
        bench.write()
    assert "committed" not in bench.steps
    bench.sink.replace()
    bench.write()


def test_refused_record_that_shows_while_a_later_plan_is_written_names_no_partition(
    bench: SinkBench, cluster: MockCluster
) -> None:
    """F20: the library answers `produce` with "erroneous state" then. Named, the later partition would be blocked in place of the earlier one."""

    def rows() -> Iterator[tuple[bytes, bytes | None]]:
        handle = bench.sink._producer.handle
        wait_for(lambda: (fatal_cause(handle, or_other=True) or ERROR(0)).code() == ERROR.INVALID_RECORD)
        yield b"k", b"row"

    refused, later = (Plan(Tp("in", number), "changelog", "ledger", 1, "commands", 0) for number in range(2))
    refused.changelog += [(b"k", b"row")]
    later.changelog = rows()  # type: ignore[assignment]
    cluster.fail(PRODUCE, ERROR.INVALID_RECORD)
    with pytest.raises(Refused, match="INVALID_RECORD") as caught:
        bench.sink.write([refused, later], bench.group.consumer_group_metadata())
    assert caught.value.tp is None


def test_record_over_the_size_limit_is_refused_before_it_is_sent_and_names_its_partition(bench: SinkBench) -> None:
    with pytest.raises(Refused) as caught:
        bench.write(b"x" * 11_000_000)
    assert caught.value.tp == Tp("in", 0)
    bench.sink.replace()
    bench.write()


@pytest.mark.parametrize("code", [ERROR.INVALID_PRODUCER_EPOCH, ERROR.PRODUCER_FENCED])
@pytest.mark.parametrize("api", [ADD_PARTITIONS, END_TXN])
def test_fenced_producer_while_the_transaction_is_young_means_the_slot_was_taken_over(
    bench: SinkBench, cluster: MockCluster, api: int, code: int
) -> None:
    """ER-13: brokers have two codes for it, and mean the same (decision 26)."""
    cluster.fail(api, code)
    with pytest.raises(FencedError, match="name '0'"):
        bench.write()


def test_commit_that_is_not_answered_in_time_is_a_doubt(bench: SinkBench, cluster: MockCluster) -> None:
    """ER-11, ER-12: the outcome is learnt by the restore, after a new producer settled it."""
    cluster.fail(END_TXN, *[ERROR.COORDINATOR_LOAD_IN_PROGRESS] * 20_000)
    with pytest.raises(Doubt):
        bench.write()


def test_connection_that_broke_since_the_last_transaction_replaces_the_producer_before_the_next(
    bench: SinkBench, cluster: MockCluster
) -> None:
    """ER-11: state is not in doubt, so nothing is restored; by the handle's log lines alone."""
    bench.write()
    cluster.down()
    cluster.up()
    producer = bench.sink._producer
    wait_for(lambda: (producer.serve(), producer._suspicion.line)[1])
    bench.write()
    assert len(bench.replaced) == 1
    assert bench.replaced[0].startswith("FAIL")
    bench.write()
    assert len(bench.replaced) == 1


def test_the_group_and_a_stop_are_heard_while_no_broker_answers(cluster: MockCluster) -> None:
    """ER-17: polls go on while the producer is replaced."""
    opened, served = SinkBench(cluster), list[None]()

    def meanwhile() -> None:
        served.append(None)
        if len(served) == 2:
            raise Stopped

    cluster.down()
    with pytest.raises(Stopped):
        opened.sink.replace(meanwhile)
    opened.close()


def test_producer_that_cannot_be_replaced_between_two_transactions_gives_the_poll_up(cluster: MockCluster) -> None:
    """ER-17: nobody can be served with a poll in hand; the driver waits, without it."""
    opened = SinkBench(cluster)
    opened.sink._producer._suspicion.line = "FAIL"
    cluster.down()
    with pytest.raises(Doubt, match="no broker answers"):
        opened.write()
    cluster.up()
    opened.sink.replace()
    opened.write()
    opened.close()


def test_init_is_repeated_while_the_coordinator_loads(cluster: MockCluster) -> None:
    cluster.fail(INIT_PRODUCER_ID, ERROR.COORDINATOR_LOAD_IN_PROGRESS, ERROR.COORDINATOR_LOAD_IN_PROGRESS)
    opened = SinkBench(cluster)
    opened.write()
    opened.close()


def test_full_send_buffer_waits_and_does_not_crash(cluster: MockCluster) -> None:
    """ER-19."""
    opened = SinkBench(cluster, kafka={"queue.buffering.max.messages": "1"})
    with patch.object(opened.sink, "_insist", wraps=opened.sink._insist) as insist:
        opened.write()
    assert insist.call_count > 1, (
        "the condition: there was no room for more than the ledger record, for which it always waits"
    )
    opened.close()


def test_the_search_for_a_refused_record_waits_for_room_as_well(cluster: MockCluster) -> None:
    """ER-19, F20: found by the simulator."""
    opened = SinkBench(cluster, kafka={"queue.buffering.max.messages": "1"})
    cluster.fail(PRODUCE, ERROR.MSG_SIZE_TOO_LARGE)
    with pytest.raises(Refused):
        opened.write()
    opened.sink.replace()
    with patch.object(opened.sink, "_write_alone", wraps=opened.sink._write_alone) as alone:
        opened.write()
    assert alone.call_count == 1
    opened.close()
