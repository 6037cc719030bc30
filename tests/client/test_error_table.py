"""Every row of the table of error codes, as the worker's sink and an application's transaction take it (ER-13, ER-14, F20)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from fake_handles import FakeBroker, FakeProducer, failure

import uow
from uow import errors
from uow.client.library_errors import read_error, sent_error
from uow.client.session_state import Waits
from uow.processor.engine.ports import Doubt, Plan, Refused, StaleGeneration, Tp
from uow.processor.kafka.error_table import MEANINGS, Meaning, is_passing, meaning_of
from uow.processor.kafka.sink import KafkaSink
from uow.processor.kafka.worker_settings import WorkerSettings

ROLLED_BACK = errors.TransactionRolledBackError

IN_A_TRANSACTION: dict[Meaning, tuple[type[Exception], type[Exception]]] = {
    Meaning.FENCED: (errors.FencedError, errors.FencedError),
    Meaning.INSTANCE_FENCED: (StaleGeneration, ROLLED_BACK),
    Meaning.STALE_GENERATION: (StaleGeneration, ROLLED_BACK),
    Meaning.REFUSED: (Refused, errors.SendRejectedError),
    Meaning.NOT_AUTHORISED_FOR_TOPIC: (Refused, errors.SendRejectedError),
    Meaning.UNKNOWN_TOPIC: (Refused, errors.DestinationUnavailableError),
    Meaning.UNAVAILABLE: (Doubt, errors.DestinationUnavailableError),
    Meaning.NOT_AUTHORISED: (Doubt, ROLLED_BACK),
    Meaning.OUT_OF_RANGE: (Doubt, ROLLED_BACK),
    Meaning.END: (Doubt, ROLLED_BACK),
    Meaning.UNFETCHABLE: (Doubt, ROLLED_BACK),
    Meaning.PASSING: (Doubt, ROLLED_BACK),
    Meaning.OTHER: (Doubt, ROLLED_BACK),
}
"""The error of the sink, and of an application's transaction without positions of a group: `StaleGeneration` never leaves `uow`."""

SENT: dict[Meaning, type[Exception]] = {
    Meaning.FENCED: errors.FencedError,
    Meaning.INSTANCE_FENCED: errors.FencedError,
    Meaning.REFUSED: errors.SendRejectedError,
    Meaning.NOT_AUTHORISED_FOR_TOPIC: errors.SendRejectedError,
    Meaning.UNKNOWN_TOPIC: errors.DestinationUnavailableError,
    Meaning.UNAVAILABLE: errors.DestinationUnavailableError,
    Meaning.NOT_AUTHORISED: errors.ReconnectGivenUpError,
}
READ: dict[Meaning, type[Exception]] = {
    Meaning.FENCED: errors.FencedError,
    Meaning.INSTANCE_FENCED: errors.FencedError,
    Meaning.OUT_OF_RANGE: errors.SubscriptionExpiredError,
    Meaning.NOT_AUTHORISED_FOR_TOPIC: errors.ReconnectGivenUpError,
    Meaning.UNKNOWN_TOPIC: errors.DestinationUnavailableError,
    Meaning.UNAVAILABLE: errors.DestinationUnavailableError,
    Meaning.NOT_AUTHORISED: errors.ReconnectGivenUpError,
}

ROWS = [*MEANINGS.items(), (KafkaError.INVALID_TXN_STATE, Meaning.OTHER)]
GROUP_ROWS = [row for row in ROWS if row[1] in (Meaning.STALE_GENERATION, Meaning.INSTANCE_FENCED)]


def name(value: object) -> str:
    return KafkaError(value).name() if isinstance(value, int) else str(value)


rows = pytest.mark.parametrize(("code", "meaning"), ROWS, ids=name)


class TableClock:
    """Seconds, from anywhere."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class WorkersBench:
    """The worker's sink on a scripted handle."""

    def __init__(self, fake: FakeBroker) -> None:
        self.clock, self.fake = TableClock(), fake
        clients: Any = SimpleNamespace(producer=lambda on_line: FakeProducer({"transactional.id": "x"}, QUIET, fake))
        contents: Any = SimpleNamespace(close=lambda: None)
        settings = WorkerSettings("A", "fake:9092", "0", transaction_timeout_ms=10_000)
        self.sink = KafkaSink(clients, settings, monotonic=self.clock, contents=contents)
        self.sink.open()

    def write(self) -> None:
        self.sink.write([Plan(Tp("in", 0), "changelog", "ledger", 1, "commands", 0)], "generation 1")


QUIET = logging.Logger("quiet")  # noqa: LOG001 - outside the tree


@pytest.fixture
def worker(fake: FakeBroker) -> WorkersBench:
    return WorkersBench(fake)


@pytest.fixture
def connection(fake: FakeBroker) -> Iterator[uow.Connection]:
    with fake.connect(client_id="shop") as connection:
        yield connection


def raised(connection: uow.Connection, *values: str) -> Exception | None:
    """The error that leaves the block of a unit; None for none."""
    try:
        with connection.unit("megazon") as unit:
            for value in values:
                unit.send(value)
    except errors.UowError as error:
        return error
    return None


def test_each_meaning_has_a_row_for_both_users() -> None:
    assert {meaning for _, meaning in ROWS} == set(Meaning) == set(IN_A_TRANSACTION)


@rows
def test_failed_commit_of_a_worker(worker: WorkersBench, fake: FakeBroker, code: int, meaning: Meaning) -> None:
    fake.script["commit_transaction"] = [failure(code, abort=True)]
    with pytest.raises(IN_A_TRANSACTION[meaning][0]) as caught:
        worker.write()
    assert type(caught.value) is IN_A_TRANSACTION[meaning][0]


@rows
def test_failed_record_of_an_application(
    fake: FakeBroker, connection: uow.Connection, code: int, meaning: Meaning
) -> None:
    """By its delivery report, as librdkafka tells of it."""
    fake.delivery_errors = [KafkaError(code)]
    assert type(raised(connection, "a")) is IN_A_TRANSACTION[meaning][1]
    assert fake.visible == []


@pytest.mark.parametrize(("code", "meaning"), GROUP_ROWS, ids=name)
def test_commit_without_positions_of_a_group_is_rolled_back(
    fake: FakeBroker, connection: uow.Connection, code: int, meaning: Meaning
) -> None:
    fake.script["commit_transaction"] = [failure(code, abort=True)]
    assert type(raised(connection, "a")) is ROLLED_BACK
    assert raised(connection, "b") is None


@pytest.mark.parametrize(("code", "meaning"), [*GROUP_ROWS], ids=name)
def test_offsets_refused_for_the_group_leave_the_handle_as_good_as_before(
    worker: WorkersBench, fake: FakeBroker, code: int, meaning: Meaning
) -> None:
    fake.script["send_offsets"] = [failure(code, abort=True)]
    with pytest.raises(StaleGeneration):
        worker.write()
    worker.write()
    assert len([call for call in fake.calls if call == "init_transactions"]) == 1


@rows
def test_all_but_a_stale_generation_make_a_new_epoch(
    worker: WorkersBench, fake: FakeBroker, code: int, meaning: Meaning
) -> None:
    """ER-11: by the producer itself, whether or not somebody asks for a new one."""
    fake.script["commit_transaction"] = [failure(code, abort=True)]
    with pytest.raises((Doubt, errors.FencedError)):
        worker.write()
    worker.write()
    is_new = fake.calls.count("init_transactions") == 2
    assert is_new == (IN_A_TRANSACTION[meaning][0] is not StaleGeneration)


FENCED_ROWS = [row for row in ROWS if row[1] is Meaning.FENCED]


@pytest.mark.parametrize("is_fatal", [False, True])
@pytest.mark.parametrize(("code", "meaning"), FENCED_ROWS, ids=name)
def test_fence_of_a_young_transaction_is_no_contest(
    worker: WorkersBench, fake: FakeBroker, connection: uow.Connection, code: int, meaning: Meaning, is_fatal: bool
) -> None:
    """ER-13, decision 26: whatever flags the library gives it."""
    fake.script["commit_transaction"] = [failure(code, fatal=is_fatal, abort=not is_fatal) for _ in range(2)]
    with pytest.raises(errors.FencedError, match="the worker name '0' was taken over"):
        worker.write()
    assert type(raised(connection, "a")) is errors.FencedError
    assert "was taken over" in str(raised(connection, "b"))


@pytest.mark.parametrize(("code", "meaning"), FENCED_ROWS, ids=name)
def test_old_transaction_that_is_fenced_begins_anew_and_only_once(
    worker: WorkersBench, fake: FakeBroker, code: int, meaning: Meaning
) -> None:
    """ER-13, R-76: the coordinator ended it; a second fence within the time-out is a take-over."""

    def stall(step: str) -> None:
        worker.clock.now += 11.0 if step == "begin" else 0.0

    worker.sink._on_step = stall
    fake.script["commit_transaction"] = [failure(code, abort=True), failure(code, abort=True)]
    with pytest.raises(Doubt, match="outlived"):
        worker.write()
    worker.sink.replace()
    worker.sink._on_step = lambda step: None
    with pytest.raises(errors.FencedError):
        worker.write()


@pytest.mark.parametrize(("code", "meaning"), FENCED_ROWS, ids=name)
def test_application_begins_anew_after_its_transaction_outlived_its_time_out(
    fake: FakeBroker, connection: uow.Connection, code: int, meaning: Meaning
) -> None:
    """ER-13, R-76: the same rule."""
    connection._session.life.waits = Waits(transaction_ms=0)
    fake.script["commit_transaction"] = [failure(code, fatal=True)]
    assert type(raised(connection, "a")) is ROLLED_BACK
    assert raised(connection, "b") is None


@pytest.mark.parametrize("begin", [True, False])
def test_producer_that_cannot_be_made_ends_the_worker(worker: WorkersBench, fake: FakeBroker, begin: bool) -> None:
    """ER-13: between two transactions, or when the driver asks for a new one; a failure that does not pass is not tried for ever."""
    call = worker.write if begin else worker.sink.replace
    fake.script["init_transactions"] = [failure(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, fatal=True)]
    worker.sink._producer.suspect("by script")
    with pytest.raises(KafkaException, match="by script"):
        call()
    worker.sink.open()
    worker.sink._producer.suspect("by script")
    fake.script["init_transactions"] = [failure(KafkaError.PRODUCER_FENCED, fatal=True)]
    with pytest.raises(errors.FencedError, match="name '0' was taken over"):
        call()


@rows
def test_record_that_is_sent_alone(code: int, meaning: Meaning) -> None:
    assert type(sent_error(KafkaError(code), "t")) is SENT.get(meaning, errors.AmbiguousSendError)


@rows
def test_record_that_is_read(code: int, meaning: Meaning) -> None:
    assert type(read_error(KafkaError(code), "t")) is READ.get(meaning, type(None))


@rows
def test_question_is_asked_again_where_the_error_passes(code: int, meaning: Meaning) -> None:
    assert is_passing(KafkaError(code)) == (meaning is Meaning.PASSING)
    assert is_passing(KafkaError(code, None, False, True))
    assert not is_passing(KafkaError(code, None, True, True)), "a fatal one never does"
    assert meaning_of(KafkaError(code)) is meaning
