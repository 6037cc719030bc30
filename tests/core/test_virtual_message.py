"""The unit as one message: each property is made by the system, taken from the end component, made one, or left out (W-89 to W-97)."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from uuid import UUID, uuid5

import pytest

from tests.core.script import TOPICS, Sent, Story, bare, c, clock, ms, play, redelivered, story, unit
from uow.processor.core.changes import Tail
from uow.processor.core.layout import tail_of
from uow.processor.core.virtual_message import NAMESPACE, UnitMaker
from uow.schemas import codec
from uow.schemas.records import ComponentRecord, Range, Unit
from uow.topics.headers import Reading
from uow.topics.partitioner import partition_for
from uow.topics.policies import (
    ExpirationPolicy,
    LatePolicy,
    OutcomesPolicy,
    ValueFormat,
)

THREE = c(1, priority=1, user=[("color", "red")]), c(2, priority=9), c(3, end=True, priority=4, user=[("size", "xl")])


def headers_of(*steps: object, **settings: object) -> dict[str, bytes | None]:
    return story(*steps, **settings).unit_headers[-1]  # type: ignore[arg-type]


def test_time_and_delivery_count_are_not_inherited_w89() -> None:
    headers = headers_of(c(1, at=0), c(2, end=True, at=5, user=[("uow-delivery-count", "7")]))
    assert "uow-delivery-count" not in headers
    assert "uow-origin-ts" not in headers
    made = story(c(1, at=0), c(2, end=True, at=5)).units[0]
    assert (made.opened_at, made.closed_at) == (ms(0), ms(5))


def test_priorities_inside_a_unit_do_not_change_its_order_w102() -> None:
    played = story(*(c(number, number == 4, priority=9 - number) for number in (4, 2, 1, 3)))
    assert [each.seq for each in played.units[0].components] == [1, 2, 3, 4]


def test_priority_and_user_headers_come_from_the_end_component_w90() -> None:
    headers = headers_of(*THREE)
    assert headers["uow-priority"] == b"4"
    assert headers["size"] == b"xl"
    assert "color" not in headers


def test_correlation_id_user_id_and_type_come_from_the_end_component_w90_w97() -> None:
    headers = headers_of(c(1, type="x"), c(2, end=True, correlation_id="corr", user_id="jill", type="order"))
    assert [headers[f"uow-{name}"] for name in ("correlation-id", "user-id", "type")] == [b"corr", b"jill", b"order"]


def test_user_headers_keep_order_repeats_and_null_w90() -> None:
    user = [("x", "1"), ("y", None), ("x", "2"), ("x", b"\xff")]
    (output,) = story(c(1, end=True, user=user)).outputs
    assert output.headers[-4:] == [("x", b"1"), ("y", None), ("x", b"2"), ("x", b"\xff")]


def test_same_input_gives_the_same_unit_id_whatever_the_polls_and_clocks_w90() -> None:
    later = tuple(replace(sent, at=77.0) for sent in THREE)
    ids = {
        headers_of(*THREE)["uow-unit-id"],
        headers_of(*THREE, poll=1)["uow-unit-id"],
        headers_of(*THREE[:2], clock(5), THREE[2], incomplete_expiration_ms=10**9)["uow-unit-id"],
        headers_of(*THREE[:2], redelivered(*THREE[:2]), THREE[2])["uow-unit-id"],
        headers_of(*later)["uow-unit-id"],
    }
    assert len(ids) == 1


def test_unit_id_is_a_uuid5_of_its_identity_alone_w90() -> None:
    m3 = Tail(b"m", 3)

    def unit_id(group: bytes = b"a", generation: int = 1, tail: Tail = m3, destination: str = "D") -> UUID:
        return UUID(UnitMaker(destination, "D.components", 0, Reading()).unit_id(group, generation, tail).decode())

    made = {
        unit_id(),
        unit_id(group=b"b"),
        unit_id(generation=2),
        unit_id(tail=Tail(b"n", 3)),
        unit_id(tail=Tail(None, 3)),
        unit_id(tail=Tail(None, 4)),
        unit_id(destination="E"),
    }
    assert len(made) == 7
    assert {(one.version, one.variant) for one in made} == {(5, "specified in RFC 4122")}
    assert unit_id() == unit_id(tail=Tail(b"m", 999)), "where there is a component id the place plays no part"


def test_unit_ids_are_part_of_the_wire_contract_w90() -> None:
    maker = UnitMaker("D", "D.components", 0, Reading())
    assert maker.unit_id(b"a", 1, Tail(b"m", 3)).decode() == str(uuid5(NAMESPACE, "D\0a\x001\0m"))
    assert maker.unit_id(b"a", 2, Tail(None, 3)).decode() == str(uuid5(NAMESPACE, "D\0a\x002\0D.components/0/3"))


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_end_component_is_the_one_marked_not_the_last_to_arrive_w91(order: tuple[int, ...]) -> None:
    headers = headers_of(*(THREE[index] for index in order))
    assert (headers["uow-priority"], headers.get("size"), headers.get("color")) == (b"4", b"xl", None)


def test_without_a_mark_the_highest_number_held_is_the_end_component_w91() -> None:
    by_count = headers_of(c(3, count=3, type="third"), c(1, type="first"), c(2, type="second"))
    assert (by_count["uow-type"], by_count["uow-reason"]) == (b"third", b"count")
    partial = story(
        c(4, type="fourth", at=0),
        c(1, type="first"),
        clock(11),
        incomplete_expiration_ms=10_000,
        expiration_policy=ExpirationPolicy.DELIVER_PARTIAL,
    )
    assert partial.unit_headers[0]["uow-type"] == b"fourth"


@pytest.mark.parametrize(
    ("times", "expected"),
    [((0, 500, 300), b"%d" % ms(300)), ((0, 0, 0), None), ((500, 0, 0), b"%d" % ms(500))],
)
def test_expiry_is_the_smallest_that_is_not_zero_w92(times: tuple[int, ...], expected: bytes | None) -> None:
    sent = [
        c(number, end=number == 3, expires_at="0" if time == 0 else time) for number, time in enumerate(times, start=1)
    ]
    played = story(*sent)
    assert played.unit_headers[0].get("uow-expires-at") == expected
    assert played.units[0].expires_at == (None if expected is None else int(expected))


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        (("non_persistent", "persistent"), b"persistent"),
        (("persistent", None), b"persistent"),
        (("non_persistent", "non_persistent"), b"non_persistent"),
        ((None, None), None),
    ],
)
def test_delivery_mode_is_the_strongest_w93(modes: tuple[str | None, ...], expected: bytes | None) -> None:
    sent = [
        c(number, end=number == 2, **({} if mode is None else {"delivery_mode": mode}))
        for number, mode in enumerate(modes, start=1)
    ]
    assert headers_of(*sent).get("uow-delivery-mode") == expected


def test_reply_to_stays_on_the_component_only_w94() -> None:
    played = story(c(1), c(2, end=True, reply_to="queue"))
    assert "uow-reply-to" not in played.unit_headers[0]
    assert ("uow-reply-to", b"queue") in played.units[0].components[1].headers


def test_unit_is_never_mistaken_for_a_component_w96() -> None:
    played = story(*THREE)
    (output,) = played.outputs
    assert (output.topic, output.key) == ("D.units", b"a")
    headers = dict(output.headers)
    assert headers["uow-id"] == b"a"
    assert headers["uow-kind"] == b"unit"
    assert not {"uow-seq", "uow-end", "uow-reply-to", "uow-deliver-at"} & headers.keys()
    again = bare(output.headers, output.value, output.key)
    through = Story(played.task, offset=9)
    through.send(again)
    formed = {"uow-kind", "uow-unit-id", "uow-generation", "uow-outcome", "uow-reason", "uow-size"}
    as_origin = [(name.replace("uow-", "uow-origin-") if name in formed else name, raw) for name, raw in output.headers]
    assert [(o.key, o.value, o.headers) for o in through.outputs] == [(output.key, output.value, as_origin)]
    assert not through.task.groups


def test_deliver_at_is_left_out_w97() -> None:
    assert "uow-deliver-at" not in headers_of(c(1, deliver_at=0), c(2, end=True))


@pytest.mark.parametrize("size", [100, 1023, 1024])
def test_unit_of_many_has_its_size_w66(size: int) -> None:
    """Headers of sizes up to 1,023 are made beforehand."""
    played = story(*(c(number, end=number == size) for number in range(1, size + 1)))
    assert played.unit_headers[0]["uow-size"] == b"%d" % size
    assert played.units[0].count == len(played.units[0].components) == size


def test_body_holds_every_component_as_it_was_w95() -> None:
    one = bare([("uow-id", b"a"), ("uow-seq", b"1"), ("x", None), ("x", b"\xff"), ("", b"")], None, b"\x00")
    two = c(2, end=True, component_id="m", value=b"\x00\xff", at=3)
    made = story(one, two).units[0]
    assert (made.id, made.destination, made.generation, made.count) == ("a", "D", 1, 2)
    assert made.components[0] == ComponentRecord(
        1, False, None, b"\x00", None, tuple(one.headers), ms(0), made.components[0].source
    )
    second = made.components[1]
    assert (second.end, second.component_id, second.value, second.timestamp) == (True, "m", b"\x00\xff", ms(3))
    assert [(item.source.topic, item.source.partition, item.source.offset) for item in made.components] == [
        ("D.components", 0, 0),
        ("D.components", 0, 1),
    ]


@pytest.mark.parametrize("value_format", ValueFormat)
def test_every_value_format_says_the_same_w95(value_format: ValueFormat) -> None:
    script = c(1, value=b"\x00\xff", user=[("x", None)]), c(2, end=True, value="text")
    assert story(*script, value_format=value_format).units == story(*script).units


def test_reopened_group_says_its_generation_w85() -> None:
    script = c(1, at=0), clock(11), c(1, end=True, at=12)
    headers = headers_of(*script, incomplete_expiration_ms=10_000, late_policy=LatePolicy.REOPEN)
    assert headers["uow-generation"] == b"2"


def test_partial_unit_says_what_is_missing_w207() -> None:
    script = c(1, at=0), c(2), c(4), clock(11)
    settings = {"incomplete_expiration_ms": 10_000, "expiration_policy": ExpirationPolicy.DELIVER_PARTIAL}
    assert play(*script, **settings) == [unit(1, 2, 4, outcome="partial", missing="3,5-")]
    made: Unit = story(*script, **settings).units[0]
    assert made.missing == (Range(3, 3), Range(5, 2_147_483_647))
    assert headers_of(*script, **settings)["uow-reason"] == b"age"


def test_unit_goes_to_the_partition_its_components_came_from_w103() -> None:
    home = partition_for(b"a", 8)
    (output,) = story(c(1, end=True), partition=home, partitions=8).outputs
    assert output.partition == home


def test_outcome_names_the_same_unit_id_as_the_unit_w214() -> None:
    played = story(*THREE, outcomes=OutcomesPolicy.ALL)
    (outcome,) = played.outcomes
    assert outcome.unit_id.encode() == played.unit_headers[0]["uow-unit-id"]
    assert codec.name_of(outcome) == "Outcome"
    assert TOPICS.outcomes == "D.outcomes"


BEFORE: list[tuple[str, bytes | None]] = [("user", bytes(40))]
MODE: dict[str, object] = {"delivery_mode": "persistent"}
PRIORITY_1, PRIORITY_7 = ("uow-priority", b"1"), ("uow-priority", b"7")


@pytest.mark.parametrize(
    ("components", "is_mixed"),
    [
        ([c(1, priority=7), c(2, end=True, priority=7)], False),
        ([c(1, priority=7), c(2, end=True, priority=1)], True),
        ([c(1), c(2, end=True, priority=7)], True),
        ([c(1, expires_at=10_000), c(2, end=True, expires_at=10_000)], False),
        ([c(1, expires_at=10_000), c(2, end=True, expires_at=20_000)], True),
        ([c(1, delivery_mode="persistent"), c(2, end=True, delivery_mode="non_persistent")], True),
        ([c(1, value="uow-priority 7", priority=7), c(2, True, value="uow-priority 1", priority=7)], False),
        ([c(1, value="uow-priority 7"), c(2, True, value="uow-priority 1", type="t")], False),
        ([c(1, value="uow-priority 7", **MODE), c(2, True, value="uow-priority 1", **MODE)], False),
        ([c(1, priority=7, expires_at=10_000, **MODE), c(2, True, priority=1, expires_at=20_000)], True),
        ([bare([*c(1).headers, *BEFORE, PRIORITY_7]), bare([*c(2, True).headers, *BEFORE, PRIORITY_1])], True),
        ([bare([*c(1).headers, *BEFORE, PRIORITY_7]), bare([*c(2, True).headers, *BEFORE, PRIORITY_7])], False),
    ],
)
def test_units_whose_components_are_not_uniform_are_counted_w133(components: list[Sent], is_mixed: bool) -> None:
    """Delivered all the same; a name that stands in a value only is nobody's property."""
    played = story(*components)
    assert len(played.units) == 1
    assert played.task.counts.mixed == is_mixed


def test_small_ends_are_kept_for_their_unit_and_large_ones_read_from_their_bytes() -> None:
    def is_kept(component_id: bytes | None, *values: bytes) -> bool:
        return tail_of(component_id, 0, [("user", value) for value in values], Reading()) is not None

    assert is_kept(None, *[b""] * 16)
    assert not is_kept(None, *[b""] * 17)
    assert is_kept(bytes(24), bytes(1000))
    assert not is_kept(bytes(25), bytes(1000))
