"""A forwarding hop: what travels on, and what becomes of the position (W-55 to W-60, W-63, W-96, ER-14 to ER-16)."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError
from fake_handles import FakeBroker, consumed, failure

import uow
from tests.core.script import SeenUnit, bare, c, story
from uow import Forwarded, errors
from uow.schemas.records import Range
from uow.topics.commands import Command, Verb, read_command
from uow.topics.headers import (
    END,
    HOPS,
    ID,
    ORIGIN_TS,
    SEQ,
)

COMPONENT: list[tuple[str, bytes | None]] = [("uow-id", b"order-1"), ("uow-seq", b"2"), ("uow-end", b"false")]


def records(fake: FakeBroker, count: int, partition: int = 0) -> None:
    """`count` components in topic t."""
    fake.records += [consumed(b"v%d" % n, headers=list(COMPONENT), partition=partition, offset=n) for n in range(count)]


def one(fake: FakeBroker, connection: uow.Connection, headers: Any, **options: Any) -> uow.Message:
    """The message of a topic that holds only this."""
    fake.records = [consumed(headers=headers, **options)]
    fake.committed.clear()
    message = connection.messages("t", group="g").receive(0)
    assert message is not None
    return message


def taken(reader: uow.Reader[uow.Message], count: int) -> list[uow.Message]:
    found = [reader.receive(0) for _ in range(count)]
    assert None not in found
    return [message for message in found if message is not None]


def onward(fake: FakeBroker) -> list[tuple[str, bytes | None]]:
    return list(fake.visible[-1].headers)


def test_key_marks_and_every_header_travel_on(fake: FakeBroker, connection: uow.Connection) -> None:
    """W-55, W-56: byte for byte, in order, repeats and nulls included."""
    headers: list[tuple[str, bytes | None]] = [
        ("colour", b"blue"),
        *COMPONENT,
        ("colour", b"green"),
        ("nothing", None),
        ("uow-component-id", b"c-1"),
        ("uow-expires-at", b"32503680000000"),
        ("uow-priority", b"9"),
        ("raw", b"\xff"),
    ]
    message = one(fake, connection, headers, key=b"any")
    connection.forward(message, to="widget-world")
    assert onward(fake) == [*headers, (HOPS, b"t"), (ORIGIN_TS, b"1000")]
    assert (fake.visible[0].name, fake.visible[0].key, fake.visible[0].value) == ("widget-world", b"any", b"{}")


@pytest.mark.parametrize("end", [[], [("uow-end", b"false")], [("uow-end", b"TRUE")]])
def test_the_end_mark_is_copied_as_it_is(fake: FakeBroker, connection: uow.Connection, end: Any) -> None:
    """W-57."""
    connection.forward(one(fake, connection, [(ID, b"a"), (SEQ, b"1"), *end]), to="next")
    assert [pair for pair in onward(fake) if pair[0] == END] == end


def test_hops_are_listed_and_the_first_timestamp_is_kept(fake: FakeBroker, connection: uow.Connection) -> None:
    """W-56, W-60."""
    headers = [*COMPONENT, (HOPS, b"gadget-planet"), (ORIGIN_TS, b"7")]
    connection.forward(one(fake, connection, headers), to="next")
    assert onward(fake) == [*COMPONENT, (HOPS, b"gadget-planet,t"), (ORIGIN_TS, b"7")]


def test_what_refused_records_and_units_carry_is_not_copied(fake: FakeBroker, connection: uow.Connection) -> None:
    """W-56."""
    dropped = [
        "uow-error-class", "uow-error-case", "uow-error-text", "uow-error-anything", "uow-failure-reason", "uow-rerouted",
        "uow-source", "uow-kind", "uow-unit-id", "uow-generation", "uow-outcome", "uow-reason", "uow-size", "uow-missing", "uow-pos",
    ]  # fmt: skip
    connection.forward(one(fake, connection, [*COMPONENT, *((name, b"x") for name in dropped)]), to="next")
    assert [name for name, _ in onward(fake)] == [*(name for name, _ in COMPONENT), HOPS, ORIGIN_TS]


def test_a_plain_record_goes_on_without_unit_headers(fake: FakeBroker, connection: uow.Connection) -> None:
    """W-58: also where it goes to a destination, under its own key."""
    message = one(fake, connection, [("colour", b"blue")], key=b"k")
    connection.forward(message, destination="megazon")
    assert (onward(fake), fake.visible[0].key) == ([("colour", b"blue")], b"k")
    connection.forward(one(fake, connection, None, key=None), to="next")
    assert (onward(fake), fake.visible[1].key) == ([], None)


def test_a_finished_unit_goes_on_as_a_unit(fake: FakeBroker, connection: uow.Connection) -> None:
    """W-96: sent unchanged it passes through the next destination."""
    headers: list[tuple[str, bytes | None]] = [("uow-kind", b"unit"), (ID, b"a"), ("uow-outcome", b"complete")]
    connection.forward(one(fake, connection, headers), destination="next")
    assert onward(fake) == headers


def test_the_last_hop_goes_by_the_id(fake: FakeBroker, connection: uow.Connection) -> None:
    """W-59: also if the message came under a foreign key."""
    connection.forward(one(fake, connection, COMPONENT, key=b"foreign"), destination="megazon", value={"n": 1})
    sent = fake.visible[0]
    assert (sent.name, sent.key, sent.value) == ("megazon.components", b"order-1", b'{"n":1}')


def test_the_last_hop_knows_ids_of_accepted_families(fake: FakeBroker) -> None:
    """W-17."""
    headers: list[tuple[str, bytes | None]] = [("JMSXGroupID", b"order-1"), ("JMSXGroupSeq", b"1")]
    with fake.connect(accept_aliases=["jms"]) as connection:
        connection.forward(one(fake, connection, headers, key=b"foreign"), destination="megazon")
    assert fake.visible[0].key == b"order-1"
    assert fake.visible[0].headers[:2] == headers


def test_a_malformed_component_is_not_judged_on_the_way(fake: FakeBroker, connection: uow.Connection) -> None:
    """W-36: the destination refuses it, visibly; under the id as key, as far as there is one."""
    connection.forward(one(fake, connection, [(ID, b"a"), (SEQ, b"x")], key=b"foreign"), destination="megazon")
    assert (fake.visible[0].key, onward(fake)[:2]) == (b"a", [(ID, b"a"), (SEQ, b"x")])


def test_a_value_may_be_replaced_by_null(fake: FakeBroker, connection: uow.Connection) -> None:
    connection.forward(one(fake, connection, COMPONENT), to="next", value=None)
    assert fake.visible[0].value is None


def test_headers_are_changed_in_place_or_added(fake: FakeBroker, connection: uow.Connection) -> None:
    headers: list[tuple[str, bytes | None]] = [("a", b"1"), *COMPONENT, ("a", b"2"), ("b", b"3")]
    connection.forward(one(fake, connection, headers), to="next", headers={"a": "new", "c": "added"})
    assert onward(fake)[:6] == [("a", b"new"), *COMPONENT, ("b", b"3"), ("c", b"added")]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"uow-id": "other"}, errors.BadUnitIdError),
        ({"uow-seq": "3"}, errors.BadSequenceNumberError),
        ({"uow-end": "true"}, errors.BadSequenceNumberError),
    ],
)
def test_the_marks_are_not_changed_by_accident(
    fake: FakeBroker, connection: uow.Connection, changes: dict[str, str], error: type[errors.UowError]
) -> None:
    """W-63."""
    message = one(fake, connection, COMPONENT)
    with pytest.raises(error, match="reassign"):
        connection.forward(message, to="next", headers=changes)
    assert fake.visible == []
    connection.forward(message, to="next", headers=changes, reassign=True)
    (name,) = changes
    assert dict(onward(fake))[name] == changes[name].encode()


WEBLOGIC: list[tuple[str, bytes | None]] = [
    ("JMS_BEA_UnitOfWork", b"order-1"),
    ("JMS_BEA_UnitOfWorkSequenceNumber", b"2"),
    ("JMS_BEA_IsUnitOfWorkEnd", b"false"),
]


@pytest.mark.parametrize("families", [[], ["weblogic"]], ids=["not read here", "read here"])
@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"JMS_BEA_UnitOfWork": "other"}, errors.BadUnitIdError),
        ({"JMS_BEA_UnitOfWorkSequenceNumber": "3"}, errors.BadSequenceNumberError),
        ({"JMS_BEA_IsUnitOfWorkEnd": "true"}, errors.BadSequenceNumberError),
        ({"uow-seq": "3"}, errors.BadSequenceNumberError),
        ({"JMSXGroupID": "other"}, errors.BadUnitIdError),
    ],
)
def test_marks_in_the_spelling_of_another_system_are_not_changed_by_accident_w63(
    fake: FakeBroker, families: list[str], changes: dict[str, str], error: type[errors.UowError]
) -> None:
    with fake.connect(accept_aliases=families) as connection:
        message = one(fake, connection, WEBLOGIC)
        with pytest.raises(error, match="reassign"):
            connection.forward(message, to="next", headers=changes)
        assert fake.visible == []
        connection.forward(message, to="next", headers={"uow-seq": "2", "JMSXGroupID": "order-1"})
        assert onward(fake)[:3] == WEBLOGIC, "what says the same is no change"
        if not families:
            connection.forward(message, to="next", headers=changes, reassign=True)
            assert changes.items() <= {name: (value or b"").decode() for name, value in onward(fake)}.items()


@pytest.mark.parametrize("families", [[], ["spring"]])
def test_springs_names_are_marks_where_they_are_read_as_such_w63(fake: FakeBroker, families: list[str]) -> None:
    spring: list[tuple[str, bytes | None]] = [("correlationId", b"order-1"), ("sequenceNumber", b"2")]
    with fake.connect(accept_aliases=families) as connection:
        connection.forward(one(fake, connection, spring[:1]), to="next", headers={"correlationId": "x"})
        assert onward(fake) == [("correlationId", b"x")]
        message = one(fake, connection, spring)
        if families:
            with pytest.raises(errors.BadUnitIdError, match="reassign"):
                connection.forward(message, to="next", headers={"correlationId": "x"})
        else:
            connection.forward(message, to="next", headers={"correlationId": "x"})


def test_headers_are_left_out_by_an_allow_list_or_a_deny_list_w56(fake: FakeBroker, connection: uow.Connection) -> None:
    came: list[tuple[str, bytes | None]] = [*COMPONENT, ("secret", b"s"), ("colour", b"blue"), ("uow-priority", b"9")]
    added: list[tuple[str, bytes | None]] = [(HOPS, b"t"), (ORIGIN_TS, b"1000")]

    def sent(**narrowed: Any) -> list[tuple[str, bytes | None]]:
        connection.forward(one(fake, connection, [*came, *WEBLOGIC]), to="next", **narrowed)
        return onward(fake)

    kept = [pair for pair in came if pair[0] not in ("secret", "colour")]
    assert sent(leave_out=["secret", "nothing like it"]) == [*kept[:3], ("colour", b"blue"), kept[3], *WEBLOGIC, *added]
    assert sent(only=["colour"]) == [*kept[:3], ("colour", b"blue"), kept[3], *WEBLOGIC, *added]
    assert sent(only=[]) == [*kept, *WEBLOGIC, *added], "marks and what else is ours go on in every spelling"
    assert sent(only=["colour"], leave_out=["colour", "uow-priority"]) == [*COMPONENT, *WEBLOGIC, *added]
    assert sent(leave_out=["colour"], headers={"colour": "red"})[-3:] == [("colour", b"red"), *added]
    with pytest.raises(TypeError, match="several"):
        sent(leave_out="colour")


@pytest.mark.parametrize(
    "name", ["uow-id", "uow-seq", "uow-end", "JMS_BEA_UnitOfWork", "JMS_BEA_UnitOfWorkSequenceNumber"]
)
def test_marks_are_not_left_out_by_accident_w63(fake: FakeBroker, connection: uow.Connection, name: str) -> None:
    message = one(fake, connection, [*COMPONENT, *WEBLOGIC])
    with pytest.raises(errors.UowError, match="reassign"):
        connection.forward(message, to="next", leave_out=[name])
    connection.forward(message, to="next", leave_out=[name], reassign=True)
    assert name not in dict(onward(fake))


def test_equal_marks_are_no_change(fake: FakeBroker, connection: uow.Connection) -> None:
    connection.forward(one(fake, connection, COMPONENT), to="next", headers={"uow-id": "order-1"})
    assert onward(fake)[:3] == COMPONENT


def test_unit_of_order_and_unit_of_work_conflict(fake: FakeBroker, connection: uow.Connection) -> None:
    """W-33."""
    with pytest.raises(errors.UnitConflictError):
        connection.forward(one(fake, connection, COMPONENT), to="next", headers={"uoo-name": "x"})


@pytest.mark.parametrize("families", [[], ["jms"]])
def test_the_conflict_is_one_in_the_spelling_of_weblogic_as_well_w33(fake: FakeBroker, families: list[str]) -> None:
    order, work = ("JMS_BEA_UnitOfOrder", b"x"), ("JMS_BEA_UnitOfWork", b"w")
    with fake.connect(accept_aliases=families) as connection:
        for came in ([*COMPONENT, order], [work, order], [work, ("uoo-name", b"x")]):
            with pytest.raises(errors.UnitConflictError):
                connection.forward(one(fake, connection, came), to="next")
        fine: list[tuple[str, bytes | None]] = [*COMPONENT, ("JMS_BEA_UnitOfOrder", None)]
        connection.forward(one(fake, connection, fine), to="next")
        connection.forward(one(fake, connection, [order]), to="next")
    assert len(fake.visible) == 2


@pytest.mark.parametrize("families", [[], ["jms"]])
def test_what_units_carry_is_not_copied_from_a_component_in_another_spelling_w56(
    fake: FakeBroker, families: list[str]
) -> None:
    marks: list[tuple[str, bytes | None]] = [("JMSXGroupID", b"a"), ("JMSXGroupSeq", b"1")]
    carried = [("uow-kind", b"unit"), ("uow-unit-id", b"x"), ("uow-generation", b"1"), ("uow-outcome", b"complete")]
    carried += [("uow-reason", b"end"), ("uow-size", b"1"), ("uow-missing", b"2"), ("uow-pos", b"1/1")]
    with fake.connect(accept_aliases=families) as connection:
        connection.forward(one(fake, connection, [*marks, *carried]), to="next")
    assert [name for name, _ in onward(fake)][:2] == ["JMSXGroupID", "JMSXGroupSeq"]
    assert {name for name, _ in onward(fake)}.isdisjoint(name for name, _ in carried)


def test_exactly_one_target_is_needed(fake: FakeBroker, connection: uow.Connection) -> None:
    message = one(fake, connection, COMPONENT)
    with pytest.raises(TypeError):
        connection.forward(message)
    with pytest.raises(TypeError):
        connection.forward(message, to="a", destination="b")


def test_output_and_position_are_committed_together(fake: FakeBroker, connection: uow.Connection) -> None:
    records(fake, 2)
    reader = connection.messages("t", group="g")
    for number in (1, 2):
        message = next(reader)
        assert connection.forward(message, to="next") is Forwarded.COMMITTED
        assert fake.committed["t", 0][0] == number
    assert fake.calls.count("send_offsets") == fake.calls.count("commit_transaction") == 2


def test_without_a_group_nothing_is_committed(fake: FakeBroker, connection: uow.Connection) -> None:
    records(fake, 1)
    reader = connection.messages("t", group=None, start="earliest")
    assert connection.forward(next(reader), to="next") is Forwarded.COMMITTED
    assert "send_offsets" not in fake.calls
    assert len(fake.visible) == 1


def test_the_group_metadata_is_that_of_the_message(fake: FakeBroker, connection: uow.Connection) -> None:
    """ER-14: never refreshed for an older message."""
    records(fake, 2)
    reader = connection.messages("t", group="g")
    first, _ = taken(reader, 2)
    token = f"generation {fake.consumers[0].generation}"
    fake.consumers[0].generation += 1
    connection.forward(first, to="next")
    assert fake.tokens == [token]


def test_a_stale_generation_sends_nothing_and_the_message_comes_again(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    """ER-14: normal around joins, so no error; a later message in hand waits for its turn."""
    records(fake, 2)
    reader = connection.messages("t", group="g")
    first, second = taken(reader, 2)
    fake.script["send_offsets"] = [failure(KafkaError.ILLEGAL_GENERATION, abort=True)]
    assert connection.forward(first, to="next") is Forwarded.AGAIN
    assert connection.forward(second, to="next") is Forwarded.AGAIN
    assert fake.visible == []
    again, last = taken(reader, 2)
    assert (again.offset, last.offset) == (0, 1)
    assert connection.forward(again, to="next") is Forwarded.COMMITTED
    assert connection.forward(last, to="next") is Forwarded.COMMITTED
    assert [sent.value for sent in fake.visible] == [b"v0", b"v1"]


def test_a_rolled_back_message_may_be_forwarded_again_at_once(fake: FakeBroker, connection: uow.Connection) -> None:
    """R-33; it does not come a second time then."""
    records(fake, 2)
    reader = connection.messages("t", group="g")
    first = next(reader)
    fake.script["commit_transaction"] = [failure(KafkaError._TIMED_OUT, abort=True)]
    with pytest.raises(errors.TransactionRolledBackError):
        connection.forward(first, to="next")
    assert connection.forward(first, to="next") is Forwarded.COMMITTED
    assert next(reader).offset == 1


def test_a_rolled_back_message_comes_again(fake: FakeBroker, connection: uow.Connection) -> None:
    records(fake, 2)
    reader = connection.messages("t", group="g")
    fake.script["commit_transaction"] = [failure(KafkaError._TIMED_OUT, abort=True)]
    with pytest.raises(errors.TransactionRolledBackError):
        connection.forward(next(reader), to="next")
    assert next(reader).offset == 0


def test_a_message_of_a_partition_that_moved_is_not_forwarded(fake: FakeBroker, connection: uow.Connection) -> None:
    """Its new owner does it."""
    records(fake, 1)
    reader = connection.messages("t", group="g")
    message = next(reader)
    fake.consumers[0].moved("revoke", 0)
    fake.consumers[0].moved("assign", 0)
    again = next(reader)
    assert connection.forward(message, to="next") is Forwarded.AGAIN
    assert connection.forward(again, to="next") is Forwarded.COMMITTED
    assert len(fake.visible) == 1


def test_an_interval_keeps_the_transaction_open_while_messages_wait(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    records(fake, 3)
    reader = connection.messages("t", group="g", commit_interval_ms=5000)
    for message in taken(reader, 3):
        assert connection.forward(message, to="next") is Forwarded.PENDING
    assert fake.visible == []
    assert reader.receive(0) is None
    assert len(fake.visible) == 3
    assert fake.committed["t", 0][0] == 3
    assert fake.calls.count("commit_transaction") == 1


def test_an_open_transaction_is_committed_before_partitions_leave(fake: FakeBroker, connection: uow.Connection) -> None:
    """ER-15."""
    records(fake, 3)
    reader = connection.messages("t", group="g", commit_interval_ms=5000)
    connection.forward(next(reader), to="next")
    fake.consumers[0].moved("revoke", 0)
    assert reader.receive(0) is None
    assert fake.committed["t", 0][0] == 1
    assert len(fake.visible) == 1


def test_an_open_transaction_is_aborted_when_partitions_are_lost(fake: FakeBroker, connection: uow.Connection) -> None:
    """ER-16: somebody else may have them already."""
    records(fake, 1)
    reader = connection.messages("t", group="g", commit_interval_ms=5000)
    connection.forward(next(reader), to="next")
    fake.consumers[0].moved("lost", 0)
    assert reader.receive(0) is None
    assert fake.visible == []
    assert ("t", 0) not in fake.committed


def test_closing_commits_an_open_transaction(fake: FakeBroker) -> None:
    records(fake, 1)
    with fake.connect() as connection:
        reader = connection.messages("t", group="g", commit_interval_ms=5000)
        connection.forward(next(reader), to="next")
        assert fake.visible == []
    assert len(fake.visible) == 1


def test_a_failed_interval_comes_again_as_a_whole(fake: FakeBroker, connection: uow.Connection) -> None:
    records(fake, 3)
    reader = connection.messages("t", group="g", commit_interval_ms=5000)
    for message in taken(reader, 3):
        connection.forward(message, to="next")
    fake.script["commit_transaction"] = [failure(KafkaError._TIMED_OUT, abort=True)]
    with pytest.raises(errors.TransactionRolledBackError):
        reader.receive(0)
    assert fake.visible == []
    assert [message.offset for message in taken(reader, 3)] == [0, 1, 2]


@pytest.mark.parametrize("interval", [-1, 5001])
def test_the_interval_is_bounded(connection: uow.Connection, interval: int) -> None:
    with pytest.raises(errors.ConfigError, match="commit_interval_ms"):
        connection.messages("t", group="g", commit_interval_ms=interval)


def test_acknowledging_commits_what_is_open_first(fake: FakeBroker, connection: uow.Connection) -> None:
    """A position never overtakes the outputs before it."""
    records(fake, 2)
    reader = connection.messages("t", group="g", commit_interval_ms=5000)
    first, second = taken(reader, 2)
    connection.forward(first, to="next")
    second.acknowledge()
    assert len(fake.visible) == 1
    assert fake.committed["t", 0][0] == 2


def test_acknowledging_what_would_overtake_a_rolled_back_message_is_refused(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    records(fake, 2)
    reader = connection.messages("t", group="g")
    first, second = taken(reader, 2)
    fake.script["send_offsets"] = [failure(KafkaError.ILLEGAL_GENERATION, abort=True)]
    connection.forward(first, to="next")
    with pytest.raises(errors.LostServerError):
        second.acknowledge()
    first.acknowledge()
    assert fake.committed["t", 0][0] == 1


def test_a_closed_reader_forwards_nothing(fake: FakeBroker, connection: uow.Connection) -> None:
    records(fake, 1)
    with connection.messages("t", group="g") as reader:
        message = next(reader)
    with pytest.raises(errors.ClientClosedError):
        connection.forward(message, to="next")


def test_cancel_sends_one_command_with_the_position_and_the_same_one_when_the_message_comes_again_w62(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    message = one(fake, connection, COMPONENT, key=b"any", offset=7)
    assert connection.cancel(message, destination="D", why="out of stock", by="Jill").forwarded == Forwarded.COMMITTED
    sent = fake.visible[-1]
    command = read_command(sent.headers)
    assert isinstance(command, Command)
    assert (command.verb, command.group_id, command.why, command.by) == (
        Verb.CANCEL,
        b"order-1",
        "out of stock",
        "Jill",
    )
    assert command.id == b"cancel:D:t/0/7", "decided once, however often the message is read"
    assert fake.committed


def test_cancel_needs_a_component_and_a_reason_w62(fake: FakeBroker, connection: uow.Connection) -> None:
    with pytest.raises(errors.BadUnitIdError):
        connection.cancel(one(fake, connection, [("plain", b"x")]), destination="D", why="no id")
    with pytest.raises(errors.ConfigError):
        connection.cancel(one(fake, connection, COMPONENT), destination="D", why="")
    assert fake.visible == []


def test_what_a_component_carries_is_there_after_two_hops_and_lost_where_marks_alone_are_copied_w55_w56(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    """Priority, correlation, expiry and the user's own; the contrast is a forwarder that produces the three headers by itself."""
    carried: list[tuple[str, bytes | None]] = [
        ("uow-priority", b"7"),
        ("uow-correlation-id", b"order 7"),
        ("uow-expires-at", b"99999999999999"),
        ("colour", b"blue"),
        ("colour", b"red"),
        ("size", None),
    ]
    connection.forward(one(fake, connection, [*COMPONENT, *carried]), to="widget-world")
    first = onward(fake)
    connection.forward(one(fake, connection, first), destination="megazon")
    after = onward(fake)
    assert [pair for pair in after if pair in carried] == carried
    assert after[: len(COMPONENT)] == COMPONENT
    by_hand = [pair for pair in first if pair[0] in (ID, SEQ, END)]
    assert by_hand == COMPONENT
    assert not [pair for pair in by_hand if pair in carried]


def test_a_record_produced_without_headers_is_a_plain_record_and_leaves_its_unit_incomplete_w55() -> None:
    played = story(c(1), bare([], b"value 2", b"a"), c(3, end=True))
    assert [seen for seen in played.seen if isinstance(seen, SeenUnit)] == []
    assert [group.held_ranges() for group in played.task.groups.values()] == [(Range(1, 1), Range(3, 3))]
