"""Requests that arrive late, twice or never, between the production sink and a real broker (ER-11, ER-12, R-75; F5, F29).

librdkafka repeats requests by itself after a broken connection; the first frame may still be under way, and then hits the next transaction
of the same producer epoch. `KafkaSink` fences on doubt; `Careless` is the same sink without that rule, and shows what it is for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import uow
from tests.broker.client_places import Topics
from tests.broker.worker_places import Destination
from tests.conftest import QUIET
from tests.processes import PATIENCE_S, Process, wait_for
from uow import errors
from uow.embedded.broker import EmbeddedBroker
from uow.processor.engine.ports import (
    Doubt,
    Meanwhile,
    Output,
    Plan,
    Tp,
)
from uow.processor.kafka import transactional_producer
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.doubt import Suspicion
from uow.processor.kafka.log_reader import KafkaLogReader
from uow.processor.kafka.sink import STEPS, KafkaSink
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.prove.frames import MEMBERSHIP, TRANSACTION, Api, FrameFault, FrameRule, Proxy
from uow.schemas.error_classes import FencedError

pytestmark = pytest.mark.broker

TIMES = int(os.environ.get("UOW_DRILL_TIMES", "1000"))
"""Of the drill with late ends of transactions: `make drill TIMES=...`."""


class Proxied(NamedTuple):
    """A broker, and the proxy before its second door."""

    broker: EmbeddedBroker
    proxy: Proxy


@pytest.fixture(scope="module")
def house() -> Iterator[Proxied]:
    with Proxy(seed=75) as proxy, EmbeddedBroker(heap="384m", advertised=proxy.port) as broker:
        proxy.upstream = broker.behind
        yield Proxied(broker, proxy)


@pytest.fixture
def proxied(house: Proxied) -> Iterator[Proxied]:
    yield house
    house.proxy.clear()
    house.proxy.release()


class Careless(KafkaSink):
    """The control: goes on with the same producer after a doubt, unless librdkafka says that it is dead."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        setattr(self._producer, "_renew_in_doubt", lambda patience: None)  # noqa: B010

    def replace(self, meanwhile: Meanwhile = lambda: None) -> None:
        try:
            self._producer.handle.abort_transaction(30)
        except ck.KafkaException:
            super().replace(meanwhile)


class FrameBench:
    """A sink that reaches its broker through the proxy, and a judge that goes around it."""

    def __init__(self, proxied: Proxied, name: str, kind: type[KafkaSink], timeout_ms: int = 10_000) -> None:
        self.proxy, self.direct = proxied.proxy, proxied.broker.bootstrap
        self.input, self.units, self.more = f"{name}.in", f"{name}.units", f"{name}.more"
        admin = AdminClient({"bootstrap.servers": self.direct}, logger=QUIET)
        for future in admin.create_topics([NewTopic(t, 1, 1) for t in (self.input, self.units, self.more)]).values():
            future.result(20)
        self.settings = WorkerSettings(name, self.proxy.address, "0", transaction_timeout_ms=timeout_ms)
        self.at: dict[str, Callable[[], object]] = {}
        self.replaced: list[str] = []
        clients = Clients(self.settings)
        self.sink = kind(clients, self.settings, self._on_step, self.replaced.append)
        self.group = clients.group_consumer()
        self.judge = KafkaLogReader(Clients(WorkerSettings(name, self.direct, "judge")))
        self.sink.open()

    def _on_step(self, step: str) -> None:
        self.at.pop(step, lambda: None)()

    def flush(self) -> None:
        """Records leave now, not when the library likes."""
        self.sink._producer.handle.flush(10)

    def write(self, *values: bytes, next_offset: int, **at: Callable[[], object]) -> None:
        """One transaction, with something done at a commit step."""
        self.at = at
        plan = Plan(Tp(self.input, 0), self.more, self.more, next_offset, self.more, 0)
        plan.outputs += [Output(self.units, 0, b"k", value, []) for value in values]
        self.sink.write([plan], self.group.consumer_group_metadata())

    def give_up(self, value: bytes, next_offset: int, step: str, first: Callable[[], object] = lambda: None) -> None:
        """A transaction that is aborted at a step, as a driver does after any doubt."""

        def doubt() -> None:
            first()
            raise Doubt("planned")

        with pytest.raises(Doubt, match="planned"):
            self.write(value, next_offset=next_offset, **{step: doubt})
        self.sink.replace()

    def arrive(self) -> None:
        """What was held reaches the broker, after the records of the transaction in hand."""
        self.flush()
        assert self.proxy.release() == 1

    def deliver(self, *values: bytes) -> None:
        """Each value in its transaction, whatever happens: a worker in ten lines. Stable committed offsets tell what is done (ER-12)."""
        done = self.committed() or 0
        while done < len(values):
            try:
                self.write(values[done], next_offset=done + 1, **self.at)
            except Doubt:
                self.sink.replace()
            done = self.committed() or 0

    def committed(self) -> int | None:
        return self.judge.committed([Tp(self.input, 0)])[Tp(self.input, 0)].offset

    def visible(self) -> list[bytes | None]:
        """What a `read_committed` reader sees up to the end offset of now; waits for open transactions."""
        tp = Tp(self.units, 0)
        return [record.value() for _, records in self.judge.read(self.judge.bounds([tp])) for record in records]

    def close(self) -> None:
        self.proxy.clear()
        self.sink.close()
        self.group.close()
        self.judge.close()


Open = Callable[..., FrameBench]


@pytest.fixture
def opened(proxied: Proxied, unique: str) -> Iterator[Open]:
    benches: list[FrameBench] = []

    def start(kind: type[KafkaSink], **more: Any) -> FrameBench:
        benches.append(FrameBench(proxied, f"{unique}-{len(benches)}", kind, **more))
        return benches[-1]

    yield start
    for bench in benches:
        bench.close()


def test_late_commit_makes_the_next_open_transaction_visible_unless_the_producer_was_replaced(opened: Open) -> None:
    """ER-11, R-75: the first EndTxn(commit) is held, the library repeats it, and it arrives while the next transaction is open."""

    def seen(kind: type[KafkaSink]) -> list[bytes | None]:
        bench = opened(kind)
        held = bench.proxy.add(FrameRule(FrameFault.HOLD, {Api.END_TXN}, times=1))
        bench.write(b"first", next_offset=1)
        held.wait()
        bench.give_up(b"never", 2, "offsets", bench.arrive)
        bench.write(b"second", next_offset=2)
        assert bench.committed() == 2
        return bench.visible()

    assert seen(Careless) == [b"first", b"never", b"second"]
    assert seen(KafkaSink) == [b"first", b"second"]


class TrustingSuspicion(Suspicion):
    """Hears what is said, and takes it for all there is."""

    def on_line(self, line: str) -> None:
        super().on_line(line)
        self.is_deaf = False


class Deaf(KafkaSink):
    """The control: takes a handle whose connections broke while it began, on which librdkafka keeps the next such line back."""

    def open(self, meanwhile: Meanwhile = lambda: None) -> None:
        with patch.object(transactional_producer, "Suspicion", TrustingSuspicion):
            super().open(meanwhile)


def test_a_break_that_the_library_does_not_log_any_more_is_no_gap_in_the_fence(opened: Open) -> None:
    """ER-11: connections break twice while the producer begins, then with the end of its transaction: the third line is held back."""

    def seen(kind: type[KafkaSink]) -> list[bytes | None]:
        bench = opened(kind)
        bench.write(b"first", next_offset=1)
        cuts = bench.proxy.add(FrameRule(FrameFault.CUT, {Api.INIT_PRODUCER_ID}, times=2))
        bench.sink.replace()
        assert cuts.hits == 2
        held = bench.proxy.add(FrameRule(FrameFault.HOLD, {Api.END_TXN}, times=1))
        bench.write(b"second", next_offset=2)
        held.wait()
        bench.give_up(b"never", 3, "offsets", bench.arrive)
        bench.write(b"third", next_offset=3)
        return bench.visible()

    assert seen(Deaf) == [b"first", b"second", b"never", b"third"]
    assert seen(KafkaSink) == [b"first", b"second", b"third"]


def test_late_abort_takes_the_outputs_of_a_transaction_that_then_commits_its_offsets(opened: Open) -> None:
    """ER-11, R-75: offsets are sent after the late frame, so the broker opens the transaction anew and commits the rest of it."""

    def seen(kind: type[KafkaSink]) -> tuple[list[bytes | None], int | None]:
        bench = opened(kind)
        bench.write(b"first", next_offset=1)
        held = bench.proxy.add(FrameRule(FrameFault.HOLD, {Api.END_TXN}, times=1))
        bench.give_up(b"never", 2, "offsets")
        held.wait()
        bench.write(b"second", next_offset=2, produced=bench.arrive)
        return bench.visible(), bench.committed()

    assert seen(Careless) == ([b"first"], 2), "the second is lost: its offset is committed, its output is not"
    assert seen(KafkaSink) == ([b"first", b"second"], 2)


def test_late_send_of_an_application_that_was_restarted_never_comes_behind_its_successors(
    proxied: Proxied, unique: str
) -> None:
    """S-35: the last request of the old one is held; a new one with the same transactional id has fenced it before its first send."""
    topics = Topics(proxied.broker.bootstrap)
    topics.make(f"{unique}.components", partitions=1)
    fenced = (errors.FencedError, errors.TransactionRolledBackError)
    with uow.connect(proxied.proxy.address, transactional_id=unique) as old:
        unit = old.unit(unique, "old")
        unit.__enter__()
        held = proxied.proxy.add(FrameRule(FrameFault.HOLE, {Api.PRODUCE}, times=1))
        unit.send("1")
        unit.send("2")  # the last one is kept back, so that it may get the end mark
        held.wait()
        with uow.connect(proxied.broker.bootstrap, transactional_id=unique) as new:
            for name in ("new", "newer"):
                with new.unit(unique, name) as successor:
                    successor.send("3")
            assert proxied.proxy.release() == 1
            with new.unit(unique, "newest") as successor:
                successor.send("4")
        with pytest.raises(fenced):
            unit.__exit__(None, None, None)
    assert [record.key() for record in topics.read(f"{unique}.components")] == [b"new", b"newer", b"newest"]


@pytest.mark.parametrize("fault", [FrameFault.LOSE_ANSWER, FrameFault.CUT, FrameFault.HOLD], ids=lambda each: each.name)
def test_a_send_whose_answer_is_lost_is_written_once_r37(proxied: Proxied, unique: str, fault: FrameFault) -> None:
    """F5: the request, its answer or the connection is lost; the library sends again, by the same producer to the same partition."""
    topics = Topics(proxied.broker.bootstrap)
    topics.make(f"{unique}.components", partitions=1)
    with uow.connect(proxied.proxy.address) as connection:
        connection.send(unique, "before", id="a", seq=1)
        rule = proxied.proxy.add(FrameRule(fault, {Api.PRODUCE}, times=1))
        assert connection.send(unique, "once", id="a", seq=2).offset == 1
        assert rule.hits == 1
        proxied.proxy.release()  # also the first request comes now, if it was held
        assert connection.send(unique, "after", id="a", seq=3).offset == 2
    assert [record.value() for record in topics.read(f"{unique}.components")] == [b"before", b"once", b"after"]


class LateEnds(NamedTuple):
    """What came of pairs of transactions where the end of the first arrives within the second."""

    visible: list[bytes | None]
    committed: int | None

    @classmethod
    def of(cls, bench: FrameBench, pairs: int) -> LateEnds:
        """A commit and an abort by turns: held, repeated by the library, released while the next transaction is open."""
        for pair in range(pairs):
            held, done = bench.proxy.add(FrameRule(FrameFault.HOLD, {Api.END_TXN}, times=1)), 2 * pair
            if pair % 2:
                bench.give_up(b"never", done + 1, "offsets")
                late = {"produced": bench.arrive}
                bench.write(b"%d" % (done + 1), next_offset=done + 1, **late)
                bench.write(b"%d" % (done + 2), next_offset=done + 2)
            else:
                bench.write(b"%d" % (done + 1), next_offset=done + 1)
                bench.give_up(b"never", done + 2, "offsets", bench.arrive)
                bench.write(b"%d" % (done + 2), next_offset=done + 2)
            held.wait()
        return cls(bench.visible(), bench.committed())


@pytest.mark.drill
@pytest.mark.timeout(3600)
def test_late_ends_of_transactions_by_the_thousand_lose_and_double_nothing(opened: Open) -> None:
    """ER-11, R-75. The control shows both anomalies each time: aborted records become visible, committed ones are lost."""
    careless = LateEnds.of(opened(Careless), 10)
    numbers = [b"%d" % number for number in range(1, 21)]
    assert careless.visible.count(b"never") == 5
    assert len([number for number in numbers if number not in careless.visible]) == 5
    ours = LateEnds.of(opened(KafkaSink), TIMES)
    assert ours == LateEnds([b"%d" % number for number in range(1, 2 * TIMES + 1)], 2 * TIMES)


def test_late_offsets_put_the_position_back_in_the_next_transaction(opened: Open) -> None:
    """ER-11."""

    def committed(kind: type[KafkaSink]) -> int | None:
        bench = opened(kind)
        held = bench.proxy.add(FrameRule(FrameFault.HOLD, {Api.TXN_OFFSET_COMMIT}, times=1))
        bench.write(b"first", next_offset=1)
        held.wait()
        bench.write(b"second", next_offset=2, offsets=bench.arrive)
        return bench.committed()

    assert committed(Careless) == 1
    assert committed(KafkaSink) == 2


def test_late_produce_of_an_aborted_transaction_takes_the_place_of_the_next_record(opened: Open) -> None:
    """ER-11: the next transaction's record has the same epoch and sequence number, and is dropped as a repeat."""

    def seen(kind: type[KafkaSink]) -> list[bytes | None]:
        bench = opened(kind, timeout_ms=3000)
        bench.write(b"first", next_offset=1)
        held = bench.proxy.add(FrameRule(FrameFault.HOLD, {Api.PRODUCE}, times=1))
        bench.give_up(b"ghost", 2, "produced", held.wait)
        bench.proxy.add(FrameRule(FrameFault.RELEASE, {Api.PRODUCE}, times=1))
        bench.at = {"produced": bench.flush}
        bench.deliver(b"first", b"second")
        return bench.visible()

    assert any(seen(Careless) == [b"first", b"ghost"] for _ in range(4)), (
        "an abort that is slow costs the control its epoch"
    )
    assert seen(KafkaSink) == [b"first", b"second"]


def test_commit_that_times_out_is_settled_by_its_successor_and_its_late_frame_is_refused(opened: Open) -> None:
    """R-75, ER-12: EndTxn falls into a hole, the client's time-out runs out, the new epoch learns the outcome from the stable offsets."""
    bench = opened(KafkaSink, timeout_ms=1500)
    bench.deliver(b"first")
    hole = bench.proxy.add(FrameRule(FrameFault.HOLE, {Api.END_TXN}, times=1))
    bench.deliver(b"first", b"second")
    assert hole.hits == 1
    bench.at = {"offsets": bench.arrive}
    bench.deliver(b"first", b"second", b"third")
    assert bench.visible() == [b"first", b"second", b"third"]


@pytest.mark.parametrize("fault", [FrameFault.LOSE_ANSWER, FrameFault.CUT, FrameFault.HOLD])
def test_every_request_of_a_transaction_may_fail_once_and_nothing_is_lost_or_doubled(
    opened: Open, fault: FrameFault
) -> None:
    """F5, ER-04, ER-11: each request in turn; what was held arrives in the transaction after it, before its commit."""
    bench, delivered = opened(KafkaSink, timeout_ms=2000), []
    for api in sorted(TRANSACTION):
        rule = bench.proxy.add(FrameRule(fault, {api}, times=1))
        delivered += [api.name.encode(), b"after " + api.name.encode()]
        bench.deliver(*delivered[:-1])
        assert rule.hits == 1, api
        bench.at = {"commit": lambda: bench.proxy.release() and None}
        bench.deliver(*delivered)
    assert bench.visible() == delivered
    assert bench.committed() == len(delivered)


def test_group_coordinator_that_cannot_be_found_is_a_doubt_in_time(opened: Open) -> None:
    """ER-11, ER-17: the library asks three times, then waits without end, whatever time-out it was given."""
    bench = opened(KafkaSink, timeout_ms=1000)
    bench.proxy.add(FrameRule(FrameFault.CUT, {Api.FIND_COORDINATOR}))
    with pytest.raises(Doubt):
        bench.write(b"first", next_offset=1)
    bench.proxy.clear()
    bench.sink.replace()
    bench.deliver(b"first")
    assert bench.visible() == [b"first"]


def test_late_initialisation_ends_the_worker_as_a_second_one_in_its_slot_would(opened: Open) -> None:
    """ER-13: to the broker it is one. Safe: nothing of the open transaction is visible, and the worker that is started next goes on."""
    bench = opened(KafkaSink)
    bench.proxy.add(FrameRule(FrameFault.REPEAT, {Api.INIT_PRODUCER_ID}, times=1))
    bench.sink.replace()
    with pytest.raises(FencedError, match="name '0'"):
        bench.write(b"first", next_offset=1, produced=bench.proxy.release)
    bench.sink.open()
    bench.deliver(b"first")
    assert bench.visible() == [b"first"]


def test_connections_that_are_cut_at_a_commit_step_cost_nothing(opened: Open) -> None:
    """ER-01, ER-11: every connection of the worker, at each named step."""
    bench, delivered = opened(KafkaSink, timeout_ms=2000), []
    for step in STEPS:
        delivered += [step.encode(), b"after " + step.encode()]
        bench.at = {step: bench.proxy.cut}
        bench.deliver(*delivered)
        assert bench.visible() == delivered
    assert bench.committed() == len(delivered)
    assert bench.replaced, "a cut between two transactions is a doubt"


def test_reader_that_loses_its_coordinator_alone_hands_out_nothing_before_its_partition_is_given_away(
    proxied: Proxied, unique: str
) -> None:
    """S-29, F17: its records come as ever, for the leader answers."""
    Topics(proxied.broker.bootstrap).make(unique, partitions=1)
    member: dict[str, Any] = {"group": unique, "kafka": {"session.timeout.ms": 4000}}
    with uow.connect(proxied.proxy.address) as near, uow.connect(proxied.broker.bootstrap) as far:
        cut_off = near.messages(unique, **member)
        far.send("none", b"0", to=unique)
        next(cut_off).acknowledge()
        proxied.proxy.add(FrameRule(FrameFault.HOLE, MEMBERSHIP))
        wait_for(lambda: cut_off.receive(0.05) is None and cut_off._consumption.is_cut_off)
        far.send("none", b"1", to=unique)
        with pytest.raises(errors.StaleConnectionError, match=r"gave .* away"):
            wait_for(lambda: cut_off.receive(0.1))
        heir = far.messages(unique, **member).receive(PATIENCE_S)
        assert heir is not None
        assert heir.value == b"1"


def test_worker_that_loses_its_coordinator_alone_stands_still_before_its_partitions_are_given_away(
    proxied: Proxied, unique: str, tmp_path: Path, spawn: Callable[..., Process]
) -> None:
    """ER-18, F17: heartbeats fall into a hole; leaders, and the coordinator of transactions, answer as ever."""
    place = Destination(proxied.broker.bootstrap, unique, tmp_path, spawn)
    place.create({"session_timeout_ms": 4000})
    heir = place.worker("heir", wait=False)
    heir.child.wait_output("pages on", 90)
    place.config.write_text(place.config.read_text().replace(place.bootstrap, proxied.proxy.address))
    cut_off = place.worker("cut-off")
    for worker in (heir, cut_off):
        worker.wait_owns(2)
    place.send_units(200)
    place.wait_delivered(200)
    proxied.proxy.add(FrameRule(FrameFault.HOLE, MEMBERSHIP))
    cut_off.child.wait_output("standing still")
    assert len(heir.partitions()) == 2, "nothing was given away yet"
    place.send_units(200, seed=1)
    heir.wait_owns(4)
    place.wait_delivered(400)
    proxied.proxy.clear()
    cut_off.wait_owns(2)
    place.verify()
    place.check_account()
