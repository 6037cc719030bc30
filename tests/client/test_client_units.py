"""Sending: marks, checks, and what a unit's block does with its transaction (W-18, W-20, W-23, W-25 to W-27, W-33, W-45, W-46, W-133)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import KafkaError
from fake_handles import FakeBroker, FakeSent, failure

import uow
from uow import errors
from uow.client.session_state import Waits
from uow.topics.headers import (
    COMPONENT_ID,
    DIGEST,
    END,
    EXPIRES_AT,
    ID,
    PRIORITY,
    SEGMENT_AT,
    SEGMENT_END,
    SEQ,
)


def in_block(connection: uow.Connection, *values: Any, then: BaseException | None = None, **options: Any) -> str:
    """Sends a unit; returns its id."""
    with connection.unit("megazon", **options) as unit:
        for value in values:
            unit.send(value)
        if then is not None:
            raise then
    return unit.id


def test_numbers_count_from_one_and_only_the_last_has_the_end_mark(
    connection: uow.Connection, fake: FakeBroker
) -> None:
    """W-45."""
    unit_id = in_block(connection, "a", "b", "c")
    sent = fake.visible
    assert [each.marks[SEQ] for each in sent] == [b"1", b"2", b"3"]
    assert [each.marks.get(END) for each in sent] == [None, None, b"true"]
    assert {each.marks[ID] for each in sent} == {unit_id.encode()}
    assert {each.key for each in sent} == {unit_id.encode()}
    assert {each.name for each in sent} == {"megazon.components"}
    assert all(UUID(each.marks[COMPONENT_ID].decode()).version == 4 for each in sent)


def test_components_are_produced_as_they_come_and_one_is_kept_back(
    connection: uow.Connection, fake: FakeBroker
) -> None:
    """W-45: the last one given may be the end; nothing else waits in memory."""
    with connection.unit("megazon") as unit:
        unit.send("a")
        assert fake.producers == []
        unit.send("b")
        assert fake.producers[0].calls.count("produce") == 1
        unit.send("c")
        assert fake.producers[0].calls.count("produce") == 2
    assert len(fake.visible) == 3


def test_a_unit_of_one_component_is_number_one_with_the_end_mark(connection: uow.Connection, fake: FakeBroker) -> None:
    """W-16."""
    in_block(connection, "only")
    (sent,) = fake.visible
    assert (sent.marks[SEQ], sent.marks[END]) == (b"1", b"true")


def test_a_component_larger_than_a_limit_goes_in_pieces_b124(connection: uow.Connection, fake: FakeBroker) -> None:
    """All with its marks, the end mark included; the digest is that of the whole value."""
    whole = in_block(connection, "a", "bcdefgh")
    (_, last) = fake.visible
    fake.visible.clear()
    in_block(connection, "a", "bcdefgh", id=whole, segment_bytes=3)
    sent = fake.visible
    assert [each.value for each in sent] == [b"a", b"bcd", b"efg", b"h"]
    assert [each.marks.get(SEGMENT_AT) for each in sent] == [None, b"0", b"3", b"6"]
    assert [each.marks.get(SEGMENT_END) for each in sent] == [None, None, None, b"true"]
    assert {(each.marks[SEQ], each.marks[END], each.marks[DIGEST]) for each in sent[1:]} == {
        (b"2", b"true", last.marks[DIGEST])
    }
    assert len({each.marks[COMPONENT_ID] for each in sent}) == 2


def test_a_component_for_a_hop_goes_whole_b124(connection: uow.Connection, fake: FakeBroker) -> None:
    """Whoever forwards it changes its value."""
    with connection.unit("megazon", segment_bytes=1) as unit:
        unit.send("abc", to="gadget-planet")
    assert [each.value for each in fake.visible] == [b"abc"]


def test_pieces_have_a_byte_at_least_b124(connection: uow.Connection) -> None:
    with pytest.raises(ValueError, match="segment_bytes"):
        connection.unit("megazon", segment_bytes=0)


def test_the_last_component_carries_the_digest_of_the_whole_unit_w212(
    connection: uow.Connection, fake: FakeBroker
) -> None:
    in_block(connection, "flash drive", None, "book")
    said = [sent.marks.get(DIGEST) for sent in fake.visible]
    assert said == [None, None, b"sha256:4513545c9385ac7f231bf2d2b8463f7e82e01e2a6823e1378702073903503019"]


def test_no_digest_where_a_hop_may_change_a_value_and_a_given_one_stays_w212(
    connection: uow.Connection, fake: FakeBroker
) -> None:
    with connection.unit("megazon") as unit:
        unit.send("flash drive", to="gadget-planet")
        unit.send("book")
    assert [sent.marks.get(DIGEST) for sent in fake.visible] == [None, None]
    given = "sha256:" + 64 * "0"
    with connection.unit("megazon") as unit:
        unit.send("book", headers={DIGEST: given})
    assert [value for name, value in fake.visible[-1].headers if name == DIGEST] == [given.encode()]


def test_leaving_by_an_exception_aborts_and_raises_that_exception(connection: uow.Connection, fake: FakeBroker) -> None:
    """W-46."""
    with pytest.raises(ZeroDivisionError):
        in_block(connection, "a", "b", "c", then=ZeroDivisionError())
    assert fake.visible == []
    assert fake.calls[-1] == "abort_transaction"


def test_leaving_by_an_exception_raises_it_also_when_the_abort_fails(
    connection: uow.Connection, fake: FakeBroker
) -> None:
    """R-77: the producer is replaced; the next unit is sent by a new one with the same transactional id."""
    fake.script["abort_transaction"] = [failure(KafkaError.INVALID_TXN_STATE, fatal=True)]
    with pytest.raises(ZeroDivisionError):
        in_block(connection, "a", "b", then=ZeroDivisionError())
    in_block(connection, "c")
    older, newer = fake.producers
    assert older.properties["transactional.id"] == newer.properties["transactional.id"]
    assert [each.value for each in fake.visible] == [b"c"]


def test_an_empty_unit_is_an_error_and_sends_nothing(connection: uow.Connection, fake: FakeBroker) -> None:
    """W-45: never a unit without an end, silently."""
    with pytest.raises(errors.EmptyUnitError, match="no component") as caught:
        in_block(connection, id="order-1")
    assert caught.value.id == b"order-1"
    assert fake.producers == []


def test_an_empty_block_left_by_an_exception_raises_only_that(connection: uow.Connection) -> None:
    with pytest.raises(ZeroDivisionError):
        in_block(connection, then=ZeroDivisionError())


def test_components_are_sent_inside_the_block_only_b122(connection: uow.Connection, fake: FakeBroker) -> None:
    unit = connection.unit("megazon")
    with pytest.raises(errors.IncompleteUnitError):
        unit.send("too early")
    with unit:
        unit.send("in time")
    with pytest.raises(errors.IncompleteUnitError):
        unit.send("too late")
    assert [each.value for each in fake.visible] == [b"in time"]
    with pytest.raises(errors.ClientClosedError):
        unit.__enter__()


@pytest.mark.parametrize(
    ("value", "bytes_"),
    [
        ({"item": "Käse"}, '{"item":"Käse"}'.encode()),
        ([1, None], b"[1,null]"),
        ("Käse", "Käse".encode()),
        (b"\xff\x00", b"\xff\x00"),
        (bytearray(b"x"), b"x"),
        (memoryview(b"x"), b"x"),
        (b"", b""),
        (None, None),
    ],
)
def test_values_become_bytes(connection: uow.Connection, fake: FakeBroker, value: Any, bytes_: bytes | None) -> None:
    """P-10."""
    in_block(connection, value)
    assert fake.visible[0].value == bytes_


def test_a_value_is_taken_when_it_is_given(connection: uow.Connection, fake: FakeBroker) -> None:
    order = {"item": "book"}
    with connection.unit("megazon") as unit:
        unit.send(order)
        order["item"] = "changed later"
    assert fake.visible[0].value == b'{"item":"book"}'


@pytest.mark.parametrize("value", [1, 1.5, object(), {1, 2}, {"x": object()}])
def test_other_values_are_refused(connection: uow.Connection, fake: FakeBroker, value: Any) -> None:
    with pytest.raises(TypeError):
        in_block(connection, value)
    assert fake.visible == []


def test_ten_thousand_units_have_different_ids(connection: uow.Connection) -> None:
    """W-18."""
    assert len({connection.unit("megazon").id for _ in range(10_000)}) == 10_000


@pytest.mark.parametrize("unit_id", ["", "x" * 256, "é" * 128])
def test_an_impossible_id_is_refused_at_once(connection: uow.Connection, unit_id: str) -> None:
    """W-23."""
    with pytest.raises(errors.BadUnitIdError):
        connection.unit("megazon", id=unit_id)


@pytest.mark.parametrize("unit_id", ["x", "x" * 255, "é" * 127])
def test_ids_of_1_to_255_bytes_are_taken(connection: uow.Connection, unit_id: str) -> None:
    assert connection.unit("megazon", id=unit_id).id == unit_id


@pytest.mark.parametrize(
    ("options", "case"),
    [
        ({"priority": 10}, PRIORITY),
        ({"priority": -1}, PRIORITY),
        ({"expires_at": -5}, EXPIRES_AT),
        ({"headers": {"uow-deliver-at": "soon"}}, "uow-deliver-at"),
        ({"headers": {"uow-digest": "md5:x"}}, "uow-digest"),
    ],
)
def test_unreadable_options_are_refused_at_once(connection: uow.Connection, options: dict[str, Any], case: str) -> None:
    """W-23: the class and case that a worker would write."""
    with pytest.raises(errors.DecodeError) as caught:
        connection.unit("megazon", **options)
    assert caught.value.case == case


def test_common_headers_are_on_every_component(connection: uow.Connection, fake: FakeBroker) -> None:
    """W-133."""
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    options: dict[str, Any] = {
        "priority": 7,
        "expires_at": moment,
        "correlation_id": "c",
        "delivery_mode": "persistent",
    }
    in_block(connection, "a", "b", headers={"colour": "blue", "n": 5}, **options)
    for sent in fake.visible:
        assert sent.marks[PRIORITY] == b"7"
        assert sent.marks[EXPIRES_AT] == b"%d" % (moment.timestamp() * 1000)
        assert sent.marks["uow-correlation-id"] == b"c"
        assert sent.marks["uow-delivery-mode"] == b"persistent"
        assert (sent.marks["colour"], sent.marks["n"]) == (b"blue", b"5")


def test_a_moment_without_a_time_zone_is_refused(connection: uow.Connection) -> None:
    with pytest.raises(ValueError, match="time zone"):
        connection.unit("megazon", expires_at=datetime(2030, 1, 1))  # noqa: DTZ001 that is the point


def test_one_component_that_differs_is_sent_with_one_warning(
    connection: uow.Connection, fake: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """W-133."""
    with caplog.at_level(logging.WARNING), connection.unit("megazon", priority=4) as unit:
        unit.send("a")
        unit.send("b", headers={PRIORITY: "9"})
        unit.send("c")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert [each.marks[PRIORITY] for each in fake.visible] == [b"4", b"9", b"4"]


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"uow-id": "other"}, errors.BadUnitIdError),
        ({"uow-seq": "5"}, errors.BadSequenceNumberError),
        ({"uow-end": "true"}, errors.BadSequenceNumberError),
        ({"uoo-name": "order"}, errors.UnitConflictError),
        ({"JMS_BEA_UnitOfOrder": "order"}, errors.UnitConflictError),
    ],
)
def test_headers_cannot_contradict_the_unit(
    connection: uow.Connection, fake: FakeBroker, headers: dict[str, str], error: type[Exception]
) -> None:
    """W-33, whatever the target topic."""
    for topic in (None, "gadget-planet"):
        with connection.unit("megazon") as unit:
            with pytest.raises(error):
                unit.send("a", headers=headers, to=topic)
            unit.send("b")
    assert [each.marks[SEQ] for each in fake.visible] == [b"1", b"1"]


def test_a_unit_conflict_is_no_sequence_error() -> None:
    """W-34."""
    assert issubclass(errors.UnitConflictError, errors.UowError)
    assert not issubclass(errors.UnitConflictError, errors.BadSequenceNumberError)


def test_a_key_is_free_on_the_way_and_the_id_at_the_destination(connection: uow.Connection, fake: FakeBroker) -> None:
    """W-54, W-59."""
    with connection.unit("megazon", id="order-1") as unit:
        unit.send("a", to="gadget-planet", key="jill")
        unit.send("b", to="gadget-planet", key=b"\xff")
        unit.send("c", to="gadget-planet")
        unit.send("d", key="ignored")
        unit.send("e", to="megazon.components", key="ignored")
    assert [each.key for each in fake.visible] == [b"jill", b"\xff", b"order-1", b"order-1", b"order-1"]


def test_a_component_keeps_its_identity(connection: uow.Connection, fake: FakeBroker) -> None:
    """R-04: sent again it is recognised as a resend."""
    component = uow.Component({"x": 1}, headers={"a": "1"})
    in_block(connection, component)
    in_block(connection, component)
    first, second = fake.visible
    assert first.marks[COMPONENT_ID] == second.marks[COMPONENT_ID] == component.component_id.encode()
    assert first.marks["a"] == b"1"


NUMBERED: list[tuple[Any, type[errors.UowError], str]] = [
    (None, errors.BadSequenceNumberError, "a"),
    (0, errors.BadSequenceNumberError, "b"),
    (-1, errors.BadSequenceNumberError, "b"),
    (-2147483648, errors.BadSequenceNumberError, "b"),
    (2147483648, errors.BadSequenceNumberError, "malformed"),
    (" 5", errors.BadSequenceNumberError, "malformed"),
    ("5.0", errors.BadSequenceNumberError, "malformed"),
    ("+5", errors.BadSequenceNumberError, "malformed"),
    ("", errors.BadSequenceNumberError, "malformed"),
    ("٣", errors.BadSequenceNumberError, "malformed"),
    (True, errors.BadSequenceNumberError, "malformed"),
]


@pytest.mark.parametrize(("seq", "error", "case"), NUMBERED)
def test_a_bad_number_is_refused_before_sending(
    connection: uow.Connection, fake: FakeBroker, seq: Any, error: type[errors.UowError], case: str
) -> None:
    """W-20, W-25 to W-27."""
    with pytest.raises(error) as caught:
        connection.send("megazon", "x", id="order-1", seq=seq)
    assert caught.value.case == case
    assert fake.producers == []


@pytest.mark.parametrize("seq", [1, 2147483647])
def test_numbers_from_1_to_the_largest_are_sent(connection: uow.Connection, fake: FakeBroker, seq: int) -> None:
    """W-20."""
    sent = connection.send("megazon", {"x": 1}, id="order-1", seq=seq, end=True, count=seq)
    assert sent == uow.Sent("megazon.components", 0, 7)
    (record,) = fake.visible
    assert record.marks[SEQ] == b"%d" % seq
    assert record.marks[END] == b"true"
    assert record.marks["uow-count"] == b"%d" % seq
    assert record.key == b"order-1"


def test_marks_without_an_id_are_refused(connection: uow.Connection) -> None:
    for marks in ({"seq": 1}, {"end": True}, {"count": 2}, {"headers": {"uow-seq": "1"}}):
        with pytest.raises(errors.BadUnitIdError):
            connection.send("megazon", "x", **marks)


def test_without_an_id_a_plain_record_is_sent(connection: uow.Connection, fake: FakeBroker) -> None:
    """W-22."""
    connection.send("megazon", "newsletter", key="k", headers=[("a", "1"), ("a", "2"), ("b", None)])
    (record,) = fake.visible
    assert (record.key, record.headers) == (b"k", [("a", b"1"), ("a", b"2"), ("b", None)])


def test_a_send_without_answer_is_waited_for_by_the_same_component(
    connection: uow.Connection, fake: FakeBroker
) -> None:
    """R-22: repeating attaches to the record under way and produces no second one; so does waiting for it."""
    connection.send("megazon", "y", id="b", seq=1)  # it knows the topics then: to ask for them takes time as well
    connection._session.life.waits = Waits(blocking_ms=1)
    component = uow.Component("x")
    fake.answers = False
    with pytest.raises(errors.ReconnectTimeoutError, match=component.component_id) as raised:
        connection.send("megazon", component, id="a", seq=1)
    with pytest.raises(errors.ReconnectTimeoutError):
        raised.value.pending.wait(0.0)
    fake.answers = True
    assert connection.send("megazon", component, id="a", seq=1).offset == 7
    assert raised.value.pending.wait().offset == 7
    assert len(fake.visible) == 2


def test_a_record_that_the_broker_had_already_is_sent_though_its_place_is_not_told(
    connection: uow.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under load a first answer comes too late; to the library's second try the broker may answer that it is there, without an offset."""
    monkeypatch.setattr(FakeSent, "offset", lambda sent: None)
    sent = connection.send("megazon", "x", id="a", seq=1)
    assert (sent.topic, sent.offset) == ("megazon.components", -1)
    with connection.unit("megazon") as unit:
        unit.send("y")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError._MSG_TIMED_OUT, errors.AmbiguousSendError),
        (KafkaError._PURGE_QUEUE, errors.AmbiguousSendError),
        (KafkaError._PURGE_INFLIGHT, errors.AmbiguousSendError),
        (KafkaError.REQUEST_TIMED_OUT, errors.AmbiguousSendError),
        (KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, errors.AmbiguousSendError),
        (KafkaError.MSG_SIZE_TOO_LARGE, errors.SendRejectedError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, errors.SendRejectedError),
        (KafkaError.INVALID_RECORD, errors.SendRejectedError),
        (KafkaError._UNKNOWN_TOPIC, errors.DestinationUnavailableError),
        (KafkaError._UNKNOWN_PARTITION, errors.DestinationUnavailableError),
        (KafkaError.NOT_ENOUGH_REPLICAS, errors.DestinationUnavailableError),
        (KafkaError.SASL_AUTHENTICATION_FAILED, errors.ReconnectGivenUpError),
    ],
)
def test_delivery_reports_become_classes(
    connection: uow.Connection, fake: FakeBroker, code: int, error: type[errors.UowError]
) -> None:
    """R-82."""
    fake.delivery_errors = [KafkaError(code)]
    with pytest.raises(error, match=r"megazon\.components"):
        connection.send("megazon", "x", id="a", seq=1)


def test_a_fatal_error_of_the_plain_producer_replaces_it(
    connection: uow.Connection, fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library throws it out of poll."""
    connection.send("megazon", "a")

    def poll(timeout: float) -> int:
        raise failure(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, fatal=True)

    monkeypatch.setattr(fake.producers[0], "poll", poll)
    with pytest.raises(errors.AmbiguousSendError):
        connection.send("megazon", "b")
    connection.send("megazon", "c")
    assert len(fake.producers) == 2


Opened = Callable[[], object]


def test_a_plain_send_under_the_id_of_an_open_unit_is_refused_b120(
    connection: uow.Connection, fake: FakeBroker
) -> None:
    with connection.unit("megazon", id="order-1") as unit:
        unit.send("a")
        with pytest.raises(errors.IncompleteUnitError, match="order-1"):
            connection.send("megazon", "past it", id="order-1", seq=9)
        connection.send("megazon", "of another one", id="order-2", seq=1)
        connection.send("other", "of another destination", id="order-1", seq=1)
    with pytest.raises(ZeroDivisionError):
        in_block(connection, "b", id="order-3", then=ZeroDivisionError())
    connection.send("megazon", "afterwards", id="order-1", seq=9)
    connection.send("megazon", "afterwards", id="order-3", seq=1)
    assert b"past it" not in [each.value for each in fake.visible]


def test_everything_refuses_after_close(fake: FakeBroker) -> None:
    connection = fake.connect()
    connection.close()
    connection.close()
    calls: list[Opened] = [
        lambda: connection.unit("megazon"),
        lambda: connection.send("megazon", "x"),
        lambda: connection.units("megazon", "g"),
        lambda: connection.messages("t", "g"),
        connection.__enter__,
    ]
    for call in calls:
        with pytest.raises(errors.ClientClosedError):
            call()


def test_closing_aborts_an_open_unit(fake: FakeBroker) -> None:
    connection = fake.connect()
    unit = connection.unit("megazon").__enter__()
    unit.send("a")
    unit.send("b")
    connection.close()
    with pytest.raises(errors.ClientClosedError):
        unit.__exit__(None, None, None)
    assert fake.visible == []


def test_a_dropped_connection_warns(fake: FakeBroker) -> None:
    """R-65."""
    connection = fake.connect()
    connection.send("megazon", "x")
    with pytest.warns(ResourceWarning, match="was not closed"):
        del connection


@pytest.mark.parametrize(
    "kafka",
    [
        {"isolation.level": "read_uncommitted"},
        {"enable.auto.commit": True},
        {"log.connection.close": False},
        {"enable.idempotence": "false"},
        {"partitioner": "consistent_random"},
        {"allow.auto.create.topics": True},
        {"auto.offset.reset": "latest"},
        {"transactional.id": "mine"},
    ],
)
def test_properties_that_break_a_promise_are_refused_by_name(fake: FakeBroker, kafka: dict[str, Any]) -> None:
    """W-49, W-109, R-81."""
    (name,) = kafka
    with pytest.raises(errors.ConfigError, match=name):
        fake.connect(kafka=kafka)


def test_every_refused_property_is_named(fake: FakeBroker) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        fake.connect(kafka={"isolation.level": "x", "partitioner": "x", "linger.ms": 5})
    assert [complaint.setting for complaint in caught.value.complaints] == [
        "kafka.isolation.level",
        "kafka.partitioner",
    ]


def test_properties_of_a_producer_are_ours_unless_free(fake: FakeBroker) -> None:
    """W-50, W-109, S-30."""
    with fake.connect(kafka={"socket.timeout.ms": 5000}, transactional_id="shop") as connection:
        in_block(connection, "a")
        connection.send("megazon", "x")
    transactional, plain = (producer.properties for producer in fake.producers)
    for properties in (transactional, plain):
        assert properties["partitioner"] == "murmur2_random"
        assert properties["enable.idempotence"] is True
        assert properties["allow.auto.create.topics"] is False
        assert properties["socket.timeout.ms"] == 5000
    assert transactional["transactional.id"] == "shop-0"
    assert transactional["transaction.timeout.ms"] == 10_000
    assert plain["message.timeout.ms"] == 0
    assert "message.timeout.ms" not in transactional


def test_alias_families_are_checked(fake: FakeBroker) -> None:
    with pytest.raises(errors.ConfigError, match="weblogic"):
        fake.connect(accept_aliases=["tibco"])


@pytest.mark.parametrize("moment", [1, 1_700_000_000, 99_999_999_999])
def test_a_time_in_seconds_is_refused_before_anything_is_sent(
    connection: uow.Connection, fake: FakeBroker, moment: int
) -> None:
    """It would have passed in 1970, and the unit with it."""
    with (
        pytest.raises(ValueError, match=f"give {moment * 1000}, or a datetime"),
        connection.unit("megazon", expires_at=moment),
    ):
        pass
    assert fake.visible == []


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_has_not_is_refused(connection: uow.Connection, fake: FakeBroker, number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"), connection.unit("megazon") as unit:
        unit.send({"price": number})
    assert fake.visible == []
