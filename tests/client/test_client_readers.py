"""Readers: what is handed out, and which acknowledgement counts (W-49, W-52, W-95, W-121, R-34, R-53)."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError
from fake_handles import FakeBroker, consumed, failure

import uow
from tests.fake_record import UNREADABLE_HEADERS, FakeRecord
from uow import errors
from uow.schemas import codec, formats
from uow.schemas.records import (
    ComponentRecord,
    Range,
    Reason,
    Source,
    Unit,
    UnitOutcome,
)
from uow.schemas.registry import RegistryFramer
from uow.schemas.registry import connect as registry_at

UNITS = "megazon.units"
ERRORS = "megazon.errors"
FAR = 32_503_680_000_000


@pytest.fixture
def fake() -> FakeBroker:
    fake = FakeBroker()
    fake.topics = {UNITS: 1, ERRORS: 1}
    return fake


def a_unit(id: str = "order-1") -> Unit:
    headers: tuple[tuple[str, bytes | None], ...] = (("colour", b"blue"), ("colour", None))
    components = (
        ComponentRecord(1, False, "c-1", b"k", b'{"item":"book"}', headers, 5, Source("megazon.components", 0, 3)),
        ComponentRecord(2, True, None, None, None, (), 6, Source("megazon.components", 0, 4)),
    )
    missing = (Range(3, 3),)
    return Unit(id, "u-1", "megazon", 2, UnitOutcome.PARTIAL, Reason.AGE, 5, 9, FAR, 2, 15, missing, components)


def record_of(
    unit: Unit, offset: int = 0, value: bytes | None = None, partition: int = 0, topic: str = UNITS
) -> FakeRecord:
    headers: list[tuple[str, bytes | None]] = [("uow-id", unit.id.encode()), ("uow-kind", b"unit"), ("colour", b"blue")]
    data = codec.frame(unit) if value is None else value
    return consumed(data, key=unit.id.encode(), headers=headers, topic=topic, offset=offset, partition=partition)


def deliver(fake: FakeBroker, count: int, partition: int = 0) -> None:
    fake.records += [record_of(a_unit(f"order-{n}"), n, partition=partition) for n in range(count)]


def taken(reader: uow.Reader[uow.ReceivedUnit], count: int) -> list[uow.ReceivedUnit]:
    found = [reader.receive(0) for _ in range(count)]
    assert None not in found
    return [unit for unit in found if unit is not None]


def test_a_unit_says_everything_it_carries(fake: FakeBroker, connection: uow.Connection) -> None:
    """W-95."""
    fake.records = [record_of(a_unit())]
    unit = next(connection.units("megazon", group="g"))
    assert (unit.id, unit.unit_id, unit.destination, unit.generation) == ("order-1", "u-1", "megazon", 2)
    assert (unit.outcome, unit.reason, unit.missing) == ("partial", "age", (Range(3, 3),))
    assert (unit.topic, unit.partition, unit.offset, unit.timestamp) == (UNITS, 0, 0, 1000)
    assert (unit.expires_at, unit.delivery_count) == (FAR, 1)
    assert unit.header("colour") == "blue"
    assert unit.header("none") is None
    first, last = unit.components
    assert (first.seq, first.end, first.component_id, first.key) == (1, False, "c-1", b"k")
    assert (first.value, first.json(), first.text()) == (b'{"item":"book"}', {"item": "book"}, '{"item":"book"}')
    assert first.headers == (("colour", b"blue"), ("colour", None))
    assert (first.header("colour"), first.timestamp) == ("blue", 5)
    assert (last.seq, last.end, last.value, last.json(), last.text()) == (2, True, None, None, "")


def test_a_reader_may_read_the_topic_of_a_route_w98(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.topics = {"urgent": 1}
    fake.records = [record_of(a_unit(), topic="urgent")]
    assert next(connection.units("megazon", group="g", topic="urgent")).topic == "urgent"


@pytest.mark.parametrize("encode", [codec.frame, formats.to_json, formats.to_xml])
def test_every_value_format_is_read(fake: FakeBroker, connection: uow.Connection, encode: object) -> None:
    """W-95."""
    assert callable(encode)
    fake.records = [record_of(a_unit(), value=encode(a_unit()))]
    assert next(connection.units("megazon", group="g")).record == a_unit()


def test_confluent_framing_is_read_through_the_registry(fake: FakeBroker) -> None:
    """W-95: our readers accept both framings."""
    framer = RegistryFramer(registry_at("mock://client"))
    fake.records = [record_of(a_unit(), 0, codec.frame(a_unit(), framer, UNITS)), record_of(a_unit(), 1)]
    with fake.connect(registry_url="mock://client") as connection:
        reader = connection.units("megazon", group="g")
        assert [unit.record for unit in taken(reader, 2)] == [a_unit(), a_unit()]


BROKEN = [
    None,
    b"",
    b"\xc3\x01",
    b"nonsense",
    b"{",
    b"{}",
    b"<",
    b"<unit/>",
    b"\xc3\x01" + b"\xff" * 30,
    b"\0\0\0\0\1body",
]


@pytest.mark.parametrize("data", BROKEN)
@pytest.mark.parametrize("streamed", [False, True])
def test_a_unit_that_cannot_be_read_goes_to_errors_and_the_next_one_is_handed_out(
    fake: FakeBroker, connection: uow.Connection, data: bytes | None, streamed: bool
) -> None:
    """A restart does not meet it again: the position is behind it before anything else is handed out."""
    poison = consumed(data, key=b"k", headers=[("uow-kind", b"unit"), ("uow-id", b"k")], topic=UNITS)
    fake.records = [poison, record_of(a_unit(), 1)]
    told: list[uow.GivenUp] = []
    read = connection.stream if streamed else connection.units
    reader = read("megazon", group="g", on_given_up=told.append)
    assert next(reader).id == "order-1"
    (moved,) = fake.visible
    assert (moved.topic(), moved.key, moved.value) == (ERRORS, b"k", data)
    assert moved.headers[:2] == poison.headers()
    assert (moved.marks["uow-error-class"], moved.marks["uow-source"]) == (b"DecodeError", b"megazon.units/0/0")
    assert moved.marks["uow-failure-reason"] == b"failed"
    assert fake.committed[UNITS, 0][0] == 1
    (given_up,) = told
    assert (given_up.topic, given_up.partition, given_up.offset, given_up.moved_to) == (UNITS, 0, 0, ERRORS)
    assert (given_up.id, given_up.failure) == ("k", "failed")
    assert reader.given_up == {"failed": 1}


@pytest.mark.parametrize("options", [{"group": None, "start": "earliest"}, {"group": "g", "unreadable": "log"}])
def test_a_unit_that_cannot_be_read_is_passed_over_and_told_where_nothing_is_moved(
    fake: FakeBroker, connection: uow.Connection, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    fake.records = [record_of(a_unit(), 0, b"nonsense"), record_of(a_unit(), 1)]
    reader = connection.units("megazon", **options)
    assert next(reader).offset == 1
    assert fake.visible == []
    assert "megazon.units/0/0 is passed over: neither Avro" in caplog.text
    assert reader.given_up == {"failed": 1}


def test_what_is_passed_over_is_not_met_again_by_the_next_reader(fake: FakeBroker) -> None:
    fake.records = [record_of(a_unit(), 0, b"nonsense")]
    for expected in (1, 0):
        with fake.connect() as connection, connection.units("megazon", group="g", unreadable="log") as reader:
            assert reader.receive(0) is None
            assert reader.given_up["failed"] == expected


def test_without_an_errors_topic_what_cannot_be_read_is_passed_over_loudly(
    fake: FakeBroker, connection: uow.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    fake.topics[ERRORS] = 0
    fake.records = [record_of(a_unit(), 0, b"nonsense"), record_of(a_unit(), 1)]
    assert next(connection.units("megazon", group="g")).offset == 1
    assert "there is no topic megazon.errors" in caplog.text


def test_a_policy_for_what_cannot_be_read_that_does_not_exist_is_refused(connection: uow.Connection) -> None:
    with pytest.raises(errors.ConfigError, match="unreadable"):
        connection.units("megazon", group="g", unreadable="burn")


@pytest.mark.parametrize("topic", [None, "bin"])
def test_a_message_whose_headers_cannot_be_read_is_passed_over_or_put_aside(
    fake: FakeBroker, connection: uow.Connection, topic: str | None
) -> None:
    """W-23: it can be no message, and cannot be forwarded; the position goes along with the next one."""
    fake.topics = {"t": 1, "next": 1, "bin": 1}
    fake.records = [consumed(b"1", headers=UNREADABLE_HEADERS), consumed(b"2", offset=1)]
    reader = connection.messages("t", group="g", unreadable_to=topic)
    message = next(reader)
    assert (message.offset, reader.given_up) == (1, {"failed": 1})
    connection.forward(message, to="next")
    assert [(sent.topic(), sent.value) for sent in fake.visible] == ([("bin", b"1")] if topic else []) + [
        ("next", b"2")
    ]
    assert fake.committed["t", 0][0] == 2


def test_a_registry_that_does_not_answer_is_asked_again(
    fake: FakeBroker, connection: uow.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the record's fault: it is read again."""
    fake.records = [record_of(a_unit())]
    reader = connection.units("megazon", group="g")
    with monkeypatch.context() as patched:
        patched.setattr("uow.client.decoding.decode_as", lambda *args, **options: _raise(errors.UowError("no answer")))
        with pytest.raises(errors.UowError, match="no answer"):
            next(reader)
    assert next(reader).id == "order-1"


def _raise(error: Exception) -> None:
    raise error


def test_plain_records_are_passed_over(fake: FakeBroker, connection: uow.Connection) -> None:
    """W-121: the next unit's acknowledgement covers them."""
    fake.records = [consumed(b"news", topic=UNITS), record_of(a_unit(), 1)]
    unit = next(connection.units("megazon", group="g"))
    unit.acknowledge()
    assert fake.committed[UNITS, 0][0] == 2


def test_plain_records_are_handed_out_on_request(fake: FakeBroker, connection: uow.Connection) -> None:
    component: list[tuple[str, bytes | None]] = [("uow-id", b"a"), ("uow-component-id", b"c")]
    fake.records = [
        consumed(b'{"n":1}', topic=UNITS, headers=component),
        consumed(None, topic=UNITS, offset=1),
        record_of(a_unit(), 2),
    ]
    reader = connection.units("megazon", group="g", include_plain=True)
    first, second, third = next(reader), next(reader), next(reader)
    assert isinstance(first, uow.Message)
    assert (first.id, first.component_id, first.json(), first.text()) == ("a", "c", {"n": 1}, '{"n":1}')
    assert isinstance(second, uow.Message)
    assert (second.id, second.json(), second.text()) == (None, None, "")
    assert isinstance(third, uow.ReceivedUnit)


def test_receive_gives_up_in_time(fake: FakeBroker, connection: uow.Connection) -> None:
    assert connection.units("megazon", group="g").receive(0) is None


def test_readers_read_committed_and_commit_nothing_by_themselves(fake: FakeBroker, connection: uow.Connection) -> None:
    """W-49, W-52, R-81."""
    connection.units("megazon", group="g", kafka={"session.timeout.ms": 6000})
    properties = fake.consumers[0].properties
    assert properties["isolation.level"] == "read_committed"
    assert properties["enable.auto.commit"] is False
    assert properties["enable.auto.offset.store"] is False
    assert properties["auto.offset.reset"] == "error"
    assert properties["session.timeout.ms"] == 6000
    with pytest.raises(errors.ConfigError, match=r"isolation\.level"):
        connection.units("megazon", group="g", kafka={"isolation.level": "read_uncommitted"})


def test_without_acknowledging_the_committed_offset_does_not_move(fake: FakeBroker, connection: uow.Connection) -> None:
    """W-52."""
    deliver(fake, 3)
    reader = connection.units("megazon", group="g")
    taken(reader, 3)
    assert fake.commits == []
    reader.close()
    assert fake.committed[UNITS, 0][0] == 0  # where it began; the text beside it counts deliveries


def test_acknowledging_is_cumulative_and_never_goes_back(fake: FakeBroker, connection: uow.Connection) -> None:
    deliver(fake, 3)
    reader = connection.units("megazon", group="g")
    first, second, third = taken(reader, 3)
    second.acknowledge()
    first.acknowledge()
    second.acknowledge()
    third.acknowledge()
    assert fake.commits == [[(0, 2)], [(0, 3)]]


def test_the_next_reader_gets_it_again_with_a_higher_count(fake: FakeBroker, connection: uow.Connection) -> None:
    """W-52: one higher with each delivery."""
    deliver(fake, 2)
    counts = []
    for _ in range(3):
        with connection.units("megazon", group="g") as reader:
            counts.append([unit.delivery_count for unit in taken(reader, 2)])
    assert counts == [[1, 1], [2, 2], [3, 3]]


def test_rolling_back_brings_units_again(fake: FakeBroker, connection: uow.Connection) -> None:
    """W-52."""
    deliver(fake, 3)
    reader = connection.units("megazon", group="g")
    first, second, _ = taken(reader, 3)
    first.acknowledge()
    reader.roll_back()
    with pytest.raises(errors.LostServerError):
        second.acknowledge()
    assert [(unit.id, unit.delivery_count) for unit in taken(reader, 2)] == [("order-1", 2), ("order-2", 2)]


def test_a_unit_of_a_lost_partition_cannot_be_acknowledged(fake: FakeBroker, connection: uow.Connection) -> None:
    """R-34: raises, and what comes again can be acknowledged."""
    deliver(fake, 1)
    reader = connection.units("megazon", group="g")
    (unit,) = taken(reader, 1)
    fake.consumers[0].moved("lost", 0, topic=UNITS)
    fake.consumers[0].moved("assign", 0, topic=UNITS)
    (again,) = taken(reader, 1)
    with pytest.raises(errors.LostServerError, match=f"{UNITS}/0/0"):
        unit.acknowledge()
    again.acknowledge()
    assert fake.committed[UNITS, 0][0] == 1


def test_a_revoked_partition_takes_its_delivery_counts_along(fake: FakeBroker, connection: uow.Connection) -> None:
    deliver(fake, 1)
    reader = connection.units("megazon", group="g")
    taken(reader, 1)
    fake.consumers[0].moved("revoke", 0, topic=UNITS)
    fake.consumers[0].moved("assign", 0, topic=UNITS)
    assert [unit.delivery_count for unit in taken(reader, 1)] == [2]


def test_nothing_is_committed_for_a_lost_partition(fake: FakeBroker, connection: uow.Connection) -> None:
    """ER-16."""
    deliver(fake, 1)
    reader = connection.units("megazon", group="g")
    taken(reader, 1)
    fake.consumers[0].moved("lost", 0, topic=UNITS)
    assert reader.receive(0) is None
    reader.close()
    assert fake.commits == []


def test_a_loss_that_is_told_when_all_is_given_back_already_ends_no_reader(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    """Found by `uow prove --client`: "Can't subtract from empty assignment" came out of `receive`."""
    deliver(fake, 1)
    reader = connection.units("megazon", group="g")
    taken(reader, 1)
    for _ in range(2):
        fake.consumers[0].moved("lost", 0, topic=UNITS)
    fake.consumers[0].moved("assign", 0, topic=UNITS)
    assert len(taken(reader, 1)) == 1


@pytest.mark.parametrize("code", [KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION])
def test_an_acknowledgement_in_the_middle_of_a_rebalance_is_made_good(
    fake: FakeBroker, connection: uow.Connection, code: int
) -> None:
    """The broker refuses it then; the simple loop goes on."""
    deliver(fake, 1)
    reader = connection.units("megazon", group="g")
    (unit,) = taken(reader, 1)
    fake.script["commit"] = [failure(code)]
    unit.acknowledge()
    assert fake.commits == []
    assert reader.receive(0) is None
    assert fake.commits == [[(0, 1)]]


def test_a_deferred_acknowledgement_is_made_good_before_the_partition_leaves(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    deliver(fake, 1)
    reader = connection.units("megazon", group="g")
    (unit,) = taken(reader, 1)
    fake.script["commit"] = [failure(KafkaError.REBALANCE_IN_PROGRESS)]
    unit.acknowledge()
    reader.close()
    assert fake.committed[UNITS, 0][0] == 1


@pytest.mark.parametrize(
    ("code", "error"),
    [(KafkaError.UNKNOWN_MEMBER_ID, errors.LostServerError), (KafkaError._TIMED_OUT, errors.ReconnectTimeoutError)],
)
def test_a_refused_acknowledgement_is_told(
    fake: FakeBroker, connection: uow.Connection, code: int, error: type[errors.UowError]
) -> None:
    deliver(fake, 1)
    (unit,) = taken(connection.units("megazon", group="g"), 1)
    fake.script["commit"] = [failure(code)]
    with pytest.raises(error):
        unit.acknowledge()
    unit.acknowledge()
    assert fake.commits == [[(0, 1)]]


def test_a_closed_reader_acknowledges_nothing(fake: FakeBroker, connection: uow.Connection) -> None:
    deliver(fake, 1)
    with connection.units("megazon", group="g") as reader:
        (unit,) = taken(reader, 1)
    calls: list[Callable[[], object]] = [unit.acknowledge, reader.roll_back, lambda: reader.receive(0)]
    for call in calls:
        with pytest.raises(errors.ClientClosedError):
            call()
    reader.close()


def test_a_committed_offset_is_where_reading_goes_on(fake: FakeBroker, connection: uow.Connection) -> None:
    """R-53."""
    deliver(fake, 3)
    fake.committed[UNITS, 0] = (2, "somebody else's text")
    (unit,) = taken(connection.units("megazon", group="g"), 1)
    assert (unit.offset, unit.delivery_count) == (2, 1)


def test_latest_begins_at_the_end_and_remembers_it(fake: FakeBroker, connection: uow.Connection) -> None:
    """R-53: else each rebalance before the first acknowledgement would skip to the end again."""
    deliver(fake, 3)
    reader = connection.units("megazon", group="g", start="latest")
    assert reader.receive(0) is None
    assert fake.committed[UNITS, 0][0] == 3


def test_committed_refuses_to_begin_anywhere(fake: FakeBroker, connection: uow.Connection) -> None:
    """R-53."""
    deliver(fake, 1)
    reader = connection.units("megazon", group="g", start="committed")
    for _ in range(2):
        with pytest.raises(errors.SubscriptionExpiredError, match=f"{UNITS}/0"):
            reader.receive(0)
    del reader
    fake.committed[UNITS, 0] = (0, "")
    assert connection.units("megazon", group="g", start=uow.Start.COMMITTED).receive(0) is not None


def test_other_starts_are_refused(connection: uow.Connection) -> None:
    with pytest.raises(errors.ConfigError, match="earliest, latest, committed"):
        connection.units("megazon", group="g", start="beginning")


def test_a_reader_without_a_group_begins_at_the_end_and_commits_nothing(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    deliver(fake, 1)
    assert connection.units("megazon", group=None).receive(0) is None
    (unit,) = taken(connection.units("megazon", group=None, start="earliest"), 1)
    unit.acknowledge()
    assert fake.commits == []


@pytest.mark.parametrize(
    ("code", "fatal", "error"),
    [
        (KafkaError._AUTO_OFFSET_RESET, False, errors.SubscriptionExpiredError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, False, errors.DestinationUnavailableError),
        (KafkaError.FENCED_INSTANCE_ID, True, errors.FencedError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False, errors.ReconnectGivenUpError),
    ],
)
def test_errors_while_reading_become_classes(
    fake: FakeBroker, connection: uow.Connection, code: int, fatal: bool, error: type[errors.UowError]
) -> None:
    """R-82."""
    reader = connection.units("megazon", group="g")
    fake.read_errors = [KafkaError(code, "by script", fatal)]
    with pytest.raises(error):
        reader.receive(0)
    if error is errors.DestinationUnavailableError:
        assert reader.receive(0) is None
    else:
        with pytest.raises(error):
            reader.receive(0)


def test_passing_errors_are_waited_out(fake: FakeBroker, connection: uow.Connection) -> None:
    """R-01."""
    deliver(fake, 1)
    reader = connection.units("megazon", group="g")
    fake.read_errors = [KafkaError(KafkaError._ALL_BROKERS_DOWN), KafkaError(KafkaError._TRANSPORT)]
    assert next(reader).id == "order-0"


def test_a_new_reader_closes_one_whose_loop_was_left(fake: FakeBroker, connection: uow.Connection) -> None:
    """A member that nobody polls would keep its partitions; one that is still held stays open."""
    deliver(fake, 2)
    for unit in connection.units("megazon", group="g"):
        unit.acknowledge()
        break
    gc.collect()
    held = connection.units("megazon", group="g")
    assert [each.closed for each in fake.readers_of(UNITS)] == [True, False]
    connection.units("megazon", group="g")
    assert [each.closed for each in fake.readers_of(UNITS)][:2] == [True, False]
    held.close()


def test_a_reader_that_was_left_still_acknowledges(fake: FakeBroker, connection: uow.Connection) -> None:
    deliver(fake, 1)
    unit = next(iter(connection.units("megazon", group="g")))
    gc.collect()
    unit.acknowledge()
    assert fake.committed[UNITS, 0][0] == 1


def test_closing_the_connection_closes_its_readers(fake: FakeBroker) -> None:
    with fake.connect() as connection:
        connection.units("megazon", group="a")
        connection.units("megazon", group=None)
    assert all(consumer.closed for consumer in fake.consumers)


@pytest.mark.parametrize("name", ["", " ", "\0", "a\0b", "\udcff", "x" * 32_768], ids=lambda name: repr(name[:3]))
def test_a_name_that_would_end_the_process_is_told(fake: FakeBroker, connection: uow.Connection, name: str) -> None:
    """librdkafka aborts where a consumer group has no name, and to it such a text is none."""
    with pytest.raises(errors.ConfigError, match="not blank"):
        connection.units("megazon", group=name)
    for setting in ("client_id", "transactional_id"):
        if name:  # an empty one is none at all
            with pytest.raises(errors.ConfigError, match=setting):
                uow.connect("localhost:9092", kafka_port=fake, **{setting: name})  # type: ignore[arg-type]
    deliver(fake, 1)
    with connection.units("megazon", group="Zoë ✓") as reader:
        assert reader.receive(0) is not None


@pytest.mark.parametrize("topic", ["..", "a\0b", "x" * 250, "a b", "\udcff", "a/b"], ids=lambda name: repr(name[:3]))
def test_what_can_be_no_topic_is_told_as_one_that_is_not_there(connection: uow.Connection, topic: str) -> None:
    """The library's errors about it are of kinds of their own."""
    with pytest.raises(errors.DestinationUnavailableError, match="no topic may be called"):
        connection.messages(topic, group="g")
    with pytest.raises(errors.DestinationUnavailableError, match="no topic may be called"):
        connection.send("megazon", {}, to=topic)
