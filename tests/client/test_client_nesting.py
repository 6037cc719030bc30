"""Units inside units, with workers in memory: fan-out on the way, three levels and back (W-96, W-205, W-206)."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError
from fake_handles import FakeBroker, FakeSent, consumed, failure

import uow
from tests.fake_record import FakeRecord as InputRecord
from uow import errors
from uow.client.received import MAX_DEPTH
from uow.processor.engine.context import TaskContext
from uow.processor.engine.ports import Tp
from uow.processor.engine.task import PartitionTask
from uow.schemas import codec
from uow.schemas.framing import single_object_header
from uow.schemas.records import ComponentRecord, UnitOutcome
from uow.topics.catalogue import DestinationTopics
from uow.topics.headers import PARENTS
from uow.topics.policies import (
    AliasFamily,
    DestinationPolicy,
    ExpirationPolicy,
    HandlingPolicy,
    Shape,
    ValueFormat,
)

Pairs = list[tuple[str, Any]]


def message(fake: FakeBroker, connection: uow.Connection, sent: FakeSent) -> uow.Message:
    """A record that was sent, as its topic's reader gets it."""
    fake.records = [consumed(sent.value, key=sent.key, headers=sent.headers, topic=sent.name)]
    fake.committed.clear()
    read = connection.messages(sent.name, group="g").receive(0)
    assert read is not None
    return read


def received(fake: FakeBroker, connection: uow.Connection, sent: FakeSent) -> uow.ReceivedUnit:
    """A unit, as its reader gets it."""
    fake.records = [consumed(sent.value, key=sent.key, headers=sent.headers, topic=sent.name)]
    fake.committed.clear()
    unit = connection.units(sent.name.partition(".")[0], group="g").receive(0)
    assert unit is not None
    return unit


def sent_to(fake: FakeBroker, topic: str) -> list[FakeSent]:
    return [sent for sent in fake.visible if sent.name == topic]


def assembled(fake: FakeBroker, destination: str, **settings: Any) -> list[FakeSent]:
    """What a worker makes of everything that was sent to a destination."""
    topics = DestinationTopics("app", destination)
    policy = DestinationPolicy(HandlingPolicy.SINGLE_MESSAGE_DELIVERY, **settings)
    header = single_object_header("Unit")
    where = Tp(topics.components, 0)
    task = PartitionTask(where, TaskContext(destination, topics, policy, 1, header, single_object_header("Outcome")))
    came = sent_to(fake, topics.components)
    plan = task.process([InputRecord(at, s.headers, s.value, s.key, 1_000 + at, where) for at, s in enumerate(came)])
    late = task.tick(10**12)
    outputs = plan.outputs + (late.outputs if late is not None else [])
    return [FakeSent(each.topic, each.key, each.value, each.headers) for each in outputs]


def split(fake: FakeBroker, connection: uow.Connection, sent: FakeSent, into: str, *values: str, **options: Any) -> str:
    """A forwarder that replaces one component by several."""
    with connection.unit(into, stands_for=message(fake, connection, sent), **options) as unit:
        for value in values:
            unit.send(value)
    return unit.id


def test_component_split_on_the_way_is_an_inner_unit_of_the_outer_one_w205(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    with connection.unit("orders", "order-1") as order:
        order.send("first")
        order.send("second", to="warehouse")
        order.send("third")
    (second,) = sent_to(fake, "warehouse")
    shipment = split(fake, connection, second, "shipments", "a", "b", "c", "d")
    (whole,) = assembled(fake, "shipments")
    connection.forward(message(fake, connection, whole), destination="orders")
    came = fake.visible[-1]
    assert (came.key, came.marks["uow-id"], came.marks["uow-seq"]) == (b"order-1", b"order-1", b"2")
    assert (came.marks["uow-inner-id"], came.marks["uow-depth"]) == (shipment.encode(), b"2")
    assert came.marks["uow-hops"] == b"shipments.units"
    assert not {"uow-end", "uow-kind", "uow-size", *PARENTS} & came.marks.keys()

    (unit,) = [sent for sent in assembled(fake, "orders") if sent.name == "orders.units"]
    outer = received(fake, connection, unit)
    assert [component.seq for component in outer.components] == [1, 2, 3]
    assert [component.inner_id for component in outer.components] == [None, shipment, None]
    inner = outer.components[1].unit
    assert inner is not None
    assert (inner.id, inner.destination, inner.outcome) == (shipment, "shipments", "complete")
    assert [component.text() for component in inner.components] == ["a", "b", "c", "d"]
    assert outer.components[0].unit is None


@pytest.mark.parametrize("value_format", ValueFormat)
def test_orders_of_shipments_of_parcels_come_back_through_three_levels_w206(
    fake: FakeBroker, connection: uow.Connection, value_format: ValueFormat
) -> None:
    with connection.unit("orders", "order-1", priority=7, headers={"customer": "Jill"}) as order:
        order.send("invoice address")
        order.send("goods", to="warehouse")
    split(fake, connection, sent_to(fake, "warehouse")[0], "shipments", "papers", "box")
    box = sent_to(fake, "shipments.components").pop()
    fake.visible.remove(box)
    parcels = split(fake, connection, box, "parcels", "lava lamp", "book")
    for level, above in (("parcels", "shipments"), ("shipments", "orders")):
        (whole,) = assembled(fake, level, value_format=value_format)
        connection.forward(message(fake, connection, whole), to="on-the-way")
        connection.forward(message(fake, connection, fake.visible[-1]), destination=above)
    (unit,) = assembled(fake, "orders", value_format=value_format)

    outer = received(fake, connection, unit)
    assert (outer.id, outer.header("uow-priority"), outer.header("customer")) == ("order-1", "7", "Jill")
    assert outer.header("uow-depth") == "3"
    address, goods = outer.components
    assert (address.text(), goods.end) == ("invoice address", True)
    shipment = goods.unit
    assert shipment is not None
    papers, packed = shipment.components
    assert (papers.text(), papers.unit, packed.end, packed.inner_id) == ("papers", None, True, parcels)
    parcel = packed.unit
    assert parcel is not None
    assert [(each.seq, each.text(), each.header("customer")) for each in parcel.components] == [
        (1, "lava lamp", "Jill"),
        (2, "book", "Jill"),
    ]


def test_finished_unit_may_be_sent_as_a_component_of_another_one_w206(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    """W-96: the sender gives a new outer id and number; the inner id stays."""
    with connection.unit("parcels", "parcel-1") as unit:
        unit.send("book")
    (whole,) = assembled(fake, "parcels")
    parcel = received(fake, connection, whole)
    with connection.unit("shipments", "shipment-1") as unit:
        unit.send("papers")
        unit.send(parcel)
    again = received(fake, connection, assembled(fake, "shipments")[0])
    assert (again.components[1].inner_id, again.components[1].component_id) == ("parcel-1", parcel.unit_id)
    assert again.components[1].unit == uow.InnerUnit(parcel.record, parcel.components)


def test_each_level_of_units_counts_and_a_fourth_is_refused_b109(fake: FakeBroker, connection: uow.Connection) -> None:
    names = ["parcels", "shipments", "orders", "days"]
    inner: Any = "book"
    for name in names:
        with connection.unit(name, f"{name}-1") as unit:
            unit.send(inner)
        made = assembled(fake, name)[0]
        if name != "days":
            inner = received(fake, connection, made)
    assert made.name == "days.rejected"
    assert (made.marks["uow-depth"], made.marks["uow-error-case"]) == (b"4", b"depth")
    assert inner.header("uow-depth") == "3"
    with connection.unit("repacked", "1") as unit:
        unit.send(inner.components[0].unit)
    assert received(fake, connection, assembled(fake, "repacked")[0]).header("uow-depth") == "3"


@pytest.mark.parametrize("end", [{"uow-end": "TRUE"}, {"uow-end": "false"}, {}])
@pytest.mark.parametrize("count", [{"uow-count": "5"}, {}])
def test_number_end_mark_and_count_of_the_component_are_taken_over_w205(
    fake: FakeBroker, connection: uow.Connection, end: dict[str, str], count: dict[str, str]
) -> None:
    marks = {"uow-id": "order-1", "uow-seq": "0005", **end, **count}
    outer = FakeSent("warehouse", b"k", b"v", [(name, text.encode()) for name, text in marks.items()])
    split(fake, connection, outer, "shipments", "a")
    connection.forward(message(fake, connection, assembled(fake, "shipments")[0]), destination="orders")
    came = fake.visible[-1].marks
    assert (came["uow-id"], came["uow-seq"]) == (b"order-1", b"5")
    assert ("uow-end" in came, "uow-count" in came) == (end.get("uow-end") == "TRUE", bool(count))


def test_headers_of_the_component_go_along_and_given_ones_replace_them_w205(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    headers: Pairs = [("uow-id", b"o"), ("uow-seq", b"1"), ("colour", b"blue"), ("colour", b"red"), ("size", b"xl")]
    headers += [("uow-priority", b"9"), ("uow-type", b"goods"), ("uow-expires-at", b"2000000000000")]
    headers += [
        ("uow-reply-to", b"x"),
        ("uow-hops", b"t"),
        ("uow-digest", b"sha256:" + b"0" * 64),
        ("uow-component-id", b"c-1"),
    ]
    outer = FakeSent("warehouse", b"k", b"v", headers)
    split(fake, connection, outer, "shipments", "a", priority=3, headers={"size": "s"})
    made = fake.visible[-1].headers
    assert [pair for pair in made if pair[0] == "colour"] == [("colour", b"blue"), ("colour", b"red")]
    assert (dict(made)["uow-priority"], dict(made)["size"], dict(made)["uow-type"]) == (b"3", b"s", b"goods")
    assert dict(made)["uow-expires-at"] == b"2000000000000"
    assert not {"uow-reply-to", "uow-hops"} & dict(made).keys()
    assert dict(made)["uow-digest"] != b"sha256:" + b"0" * 64


def test_what_aliases_say_is_taken_over_by_a_connection_that_accepts_them_w205(fake: FakeBroker) -> None:
    headers: Pairs = [("JMSXGroupID", b"o"), ("JMSXGroupSeq", b"2"), ("JMSPriority", b"8"), ("JMSReplyTo", b"x")]
    with fake.connect(accept_aliases=[AliasFamily.JMS]) as connection:
        split(fake, connection, FakeSent("warehouse", b"k", b"v", headers), "shipments", "a")
    made = fake.visible[-1].marks
    assert (made["uow-parent-id"], made["uow-parent-seq"], made["JMSPriority"]) == (b"o", b"2", b"8")
    assert "JMSReplyTo" not in made


def test_second_unit_for_the_same_component_has_the_same_id_w205(fake: FakeBroker, connection: uow.Connection) -> None:
    """W-61: two groups that split the same component make one inner unit, the second one's components are duplicates."""
    outer = FakeSent("warehouse", b"k", b"v", [("uow-id", b"o"), ("uow-seq", b"1"), ("uow-component-id", b"c-1")])
    stranger = FakeSent("warehouse", b"k", b"v", [("uow-id", b"o"), ("uow-seq", b"1")])
    ids = [split(fake, connection, each, "shipments", "a", "b") for each in (outer, outer, stranger)]
    assert ids[0] == ids[1] != ids[2]
    assert split(fake, connection, outer, "elsewhere", "a") != ids[0]
    assert split(fake, connection, outer, "shipments", "a", id="mine") == "mine"
    made = [sent.name.partition(".")[2] for sent in assembled(fake, "shipments")]
    assert (made.count("units"), made.count("rejected")) == (3, 2)


def test_position_is_committed_with_the_inner_unit_w205(fake: FakeBroker, connection: uow.Connection) -> None:
    outer = FakeSent("warehouse", b"k", b"v", [("uow-id", b"o"), ("uow-seq", b"1")])
    split(fake, connection, outer, "shipments", "a")
    assert fake.committed["warehouse", 0] == (1, "")
    assert fake.tokens == ["generation 2"]


def test_position_waits_for_what_its_reader_has_forwarded_before_w205(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    marks: Pairs = [("uow-id", b"o"), ("uow-seq", b"1")]
    fake.records = [consumed(headers=list(marks), offset=at, topic="warehouse") for at in range(2)]
    reader = connection.messages("warehouse", group="g", commit_interval_ms=5000)
    first, second = reader.receive(0), reader.receive(0)
    assert first is not None
    assert second is not None
    assert connection.forward(first, to="next") is uow.Forwarded.PENDING
    with connection.unit("shipments", stands_for=second) as unit:
        unit.send("a")
    assert [sent.name for sent in fake.visible] == ["next", "shipments.components"]
    assert fake.committed["warehouse", 0] == (2, "")


def test_without_a_group_no_position_is_committed_w205(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.records = [consumed(headers=[("uow-id", b"o"), ("uow-seq", b"1")], topic="warehouse")]
    alone = connection.messages("warehouse", None, start="earliest").receive(0)
    assert alone is not None
    with connection.unit("shipments", stands_for=alone) as unit:
        unit.send("a")
    assert (len(fake.visible), fake.committed) == (1, {})


def test_block_that_raises_sends_nothing_and_the_message_comes_again_w205(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    fake.records = [consumed(headers=[("uow-id", b"o"), ("uow-seq", b"1")], topic="warehouse")]
    reader = connection.messages("warehouse", group="g")

    def give_up_after(sent: int) -> None:
        outer = reader.receive(0)
        assert outer is not None, "it comes again"
        with connection.unit("shipments", stands_for=outer) as unit:
            for _ in range(sent):
                unit.send("a")
            raise RuntimeError

    for sent in (0, 1, 2):
        with pytest.raises(RuntimeError):
            give_up_after(sent)
    assert not fake.visible
    assert reader.receive(0) is not None


def test_partition_that_moved_before_or_inside_the_block_is_told_and_nothing_is_sent_w205(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    """ER-14: the consumer group's metadata is that of the message."""
    fake.records = [consumed(headers=[("uow-id", b"o"), ("uow-seq", b"1")], topic="warehouse")]
    reader = connection.messages("warehouse", group="g")
    outer = reader.receive(0)
    assert outer is not None
    fake.script["send_offsets"] = [failure(KafkaError.ILLEGAL_GENERATION)]
    with pytest.raises(errors.LostServerError, match="warehouse/0/0 comes again"):  # noqa: SIM117
        with connection.unit("shipments", stands_for=outer) as unit:
            unit.send("a")
    again = reader.receive(0)
    assert again is not None
    fake.consumers[-1].moved("lost", 0, topic="warehouse")
    assert reader.receive(0) is None
    with pytest.raises(errors.LostServerError, match="warehouse/0/0 comes again"):  # noqa: SIM117
        with connection.unit("shipments", stands_for=again) as unit:
            unit.send("a")
    assert not fake.visible


def test_what_is_no_component_cannot_be_stood_for_w205(fake: FakeBroker, connection: uow.Connection) -> None:
    for headers in ([], [("uow-id", b"o")], [("uow-id", b"o"), ("uow-kind", b"unit")]):
        plain = message(fake, connection, FakeSent("warehouse", None, b"v", headers))
        with pytest.raises(uow.UowError, match="stands_for= needs a component"):
            connection.unit("shipments", stands_for=plain)


def test_unit_that_stands_for_nothing_is_forwarded_as_the_unit_it_is_w96(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    with connection.unit("shipments", "s-1") as unit:
        unit.send("a")
    (whole,) = assembled(fake, "shipments")
    connection.forward(message(fake, connection, whole), destination="orders")
    assert [sent.name for sent in assembled(fake, "orders")] == ["orders.units"]
    assert fake.visible[-1].marks["uow-kind"] == b"unit"


def test_inner_component_is_forwarded_with_what_it_stands_for_w205(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    outer = FakeSent("warehouse", b"k", b"v", [("uow-id", b"o"), ("uow-seq", b"1")])
    with connection.unit("shipments", stands_for=message(fake, connection, outer)) as unit:
        unit.send("a", to="packing")
    connection.forward(message(fake, connection, fake.visible[-1]), destination="shipments")
    assert {name: fake.visible[-1].marks[name] for name in PARENTS} == dict(
        zip(PARENTS, (b"o", b"1", b"false", b"0"), strict=True)
    )
    assert fake.visible[-1].marks["uow-id"] == unit.id.encode()


def test_inner_unit_of_many_records_is_refused_with_the_shape_to_choose_w205(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    outer = FakeSent("warehouse", b"k", b"v", [("uow-id", b"o"), ("uow-seq", b"1")])
    split(fake, connection, outer, "shipments", "a", "b")
    run = assembled(fake, "shipments", shape=Shape.CONSECUTIVE)
    with pytest.raises(errors.ConfigError, match="one record: envelope"):
        connection.forward(message(fake, connection, run[0]), destination="orders")


def test_partial_inner_unit_takes_its_place_and_says_so_w205(fake: FakeBroker, connection: uow.Connection) -> None:
    """W-207: whoever set `deliver_partial`, or released it, wanted less than all."""
    outer = FakeSent("warehouse", b"k", b"v", [("uow-id", b"o"), ("uow-seq", b"1"), ("uow-end", b"true")])
    split(fake, connection, outer, "shipments", "a", "b")
    fake.visible.pop(0)
    partial = {"expiration_policy": ExpirationPolicy.DELIVER_PARTIAL, "incomplete_expiration_ms": 1_000}
    (whole,) = [sent for sent in assembled(fake, "shipments", **partial) if sent.name == "shipments.units"]
    connection.forward(message(fake, connection, whole), destination="orders")
    (unit,) = assembled(fake, "orders")
    inner = received(fake, connection, unit).components[0].unit
    assert inner is not None
    assert (inner.outcome, inner.missing) == (UnitOutcome.PARTIAL, (uow.Range(1, 1),))


def passed_through(fake: FakeBroker, sent: FakeSent, destination: str) -> FakeSent:
    """A unit that somebody copied to another destination as it is, as it comes out there."""
    fake.visible[:] = [FakeSent(f"{destination}.components", sent.key, sent.value, sent.headers)]
    (passed,) = assembled(fake, destination)
    fake.visible.clear()
    return passed


def test_a_unit_that_passed_through_is_no_unit_there_and_is_opened_on_request_w96(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    with connection.unit("shipments", "s-1") as unit:
        unit.send("a")
        unit.send("b")
    (whole,) = assembled(fake, "shipments")
    passed = passed_through(fake, whole, "orders")
    fake.records = [consumed(passed.value, key=passed.key, headers=passed.headers, topic="orders.units")]
    assert connection.units("orders", group="invoicing").receive(0) is None
    fake.committed.clear()
    found = connection.units("orders", group="all", include_plain=True).receive(0)
    assert isinstance(found, uow.Message)
    assert found.unit is not None
    assert (found.unit.id, found.unit.destination) == ("s-1", "shipments")
    assert [component.text() for component in found.unit.components] == ["a", "b"]
    with connection.unit("bills", "b-1") as bill:
        bill.send(found.unit)
    (outer,) = assembled(fake, "bills")
    inner = received(fake, connection, outer).components[0].unit
    assert inner is not None
    assert (inner.id, inner.unit_id) == ("s-1", found.unit.unit_id)


def test_what_is_no_whole_unit_opens_as_none(fake: FakeBroker, connection: uow.Connection) -> None:
    mark = ("uow-origin-kind", b"unit")
    for headers in ([], [("uow-origin-kind", b"x")], [mark, ("uow-seq", b"1")], [mark, ("uow-origin-pos", b"1/2")]):
        assert message(fake, connection, FakeSent("orders.units", None, b"v", headers)).unit is None
    assert message(fake, connection, FakeSent("orders.units", None, b"v", [mark])).unit is None


def test_an_inner_unit_that_passed_through_still_takes_its_place_w205(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    outer = FakeSent("warehouse", b"k", b"v", [("uow-id", b"o"), ("uow-seq", b"1"), ("uow-end", b"true")])
    split(fake, connection, outer, "shipments", "a", "b")
    (whole,) = assembled(fake, "shipments")
    passed = passed_through(fake, whole, "elsewhere")
    connection.forward(message(fake, connection, passed), destination="orders")
    (order,) = assembled(fake, "orders")
    inner = received(fake, connection, order).components[0].unit
    assert inner is not None
    assert (order.marks["uow-id"], [each.text() for each in inner.components]) == (b"o", ["a", "b"])


def test_a_passed_unit_that_stands_for_nothing_goes_on_as_it_came_w56(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    with connection.unit("shipments", "s-1") as unit:
        unit.send("a")
    (whole,) = assembled(fake, "shipments")
    passed = passed_through(fake, whole, "elsewhere")
    connection.forward(message(fake, connection, passed), to="next")
    assert fake.visible[-1].headers == passed.headers
    assert passed_through(fake, passed, "further").headers == passed.headers


def inner(value: bytes, depth: int = 0) -> ComponentRecord:
    """A component that says it is a unit."""
    return ComponentRecord(1, True, None, None, value, (("uow-inner-id", b"i"),), 1, uow.Source("t", 0, depth))


def test_value_that_should_be_a_unit_and_is_none_is_no_unit_w206(caplog: pytest.LogCaptureFixture) -> None:
    """Any sender can write the header: whoever looks must not stop at it."""
    received = uow.ReceivedComponent(inner(b"no unit"))
    assert (received.inner_id, received.unit) == ("i", None)
    assert "the headers of the record at t/0/0 say that it is a unit, but it is none" in caplog.text


def test_units_are_opened_to_a_depth_that_ends_w206() -> None:
    """Ten megabytes hold a hundred thousand levels, and each copies all that is in it."""
    value = b""
    for depth in range(MAX_DEPTH + 3):
        value = codec.frame(unit_around(inner(value, depth)))
    received, levels = uow.ReceivedComponent(inner(value)), 0
    while (unit := received.unit) is not None:
        (received,), levels = unit.components, levels + 1
    assert levels == MAX_DEPTH


def unit_around(component: ComponentRecord) -> uow.Unit:
    return uow.Unit("i", "u", "D", 1, uow.UnitOutcome.COMPLETE, uow.Reason.END, 1, 1, None, 1, 0, (), (component,))
