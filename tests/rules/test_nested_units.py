"""Units that are components of other groups, by rule (B-109)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.rule_script import r, row, told_by
from tests.core.script import Story, bare, c, context_of, ms, play, policy_of, refused, story, told, unit
from tests.engine.restored_logs import Logs
from tests.engine.test_commands_restored import play as play_to
from tests.engine.test_replay import WIDE, restored
from tests.fake_record import INPUT, FakeRecord
from tests.rules.test_routing import LOW_STOCK, record, route, router, said
from uow.processor.engine.ports import Output
from uow.processor.engine.replayable import ReplayLimits
from uow.processor.engine.task import PartitionTask
from uow.processor.rules.routing import Fate, Routed
from uow.schemas import codec
from uow.schemas.error_classes import DecodeError, UnitTooLargeError
from uow.schemas.records import Unit
from uow.topics.headers import as_origin
from uow.topics.policies import Shape, ValueFormat

OUTER = row("France", complete_count=1)


def unit_record(*more: tuple[str, bytes], **settings: Any) -> FakeRecord:
    """A unit of another destination, as it lies in an input."""
    (made, *_) = story(c(1, end=True), **settings).outputs
    return FakeRecord(7, [*made.headers, *more, ("uow-destination", b"France")], made.value, made.key, tp=INPUT)


def nested(routed: Routed) -> tuple[bytes | None, bytes | None]:
    """Inner id and depth of a component."""
    return said(routed).get("uow-inner-id"), said(routed).get("uow-depth")


def assembled(routed: Routed) -> Output:
    """The unit of a component."""
    played = told_by(bare(routed.sent.headers, routed.sent.value, routed.sent.key, at=0), rules=[OUTER])
    (made,) = played.outputs
    return made


def test_a_unit_is_a_component_two_levels_up_and_refused_above_them_b109() -> None:
    given, depths = unit_record(), []
    for _ in range(2):
        routed = route(router(), given)
        made = assembled(routed)
        depths.append((nested(routed), dict(made.headers)["uow-depth"]))
        given = FakeRecord(7, [*made.headers, ("uow-destination", b"France")], made.value, made.key, tp=INPUT)
    assert depths == [((b"a", b"2"), b"2"), ((b"low-stock/France", b"3"), b"3")]
    routed = route(router(), given)
    assert (routed.fate, routed.sent.topic, routed.sent.value) == (Fate.REJECTED, "supply.rejected", given.value_)
    assert (said(routed)["uow-error-class"], said(routed)["uow-error-case"]) == (b"UnitTooLargeError", b"depth")
    innermost = codec.decode_as(Unit, codec.decode_as(Unit, given.value_ or b"").components[0].value or b"")
    assert innermost.components[0].value == unit_record().value_


def test_a_unit_that_passed_another_destination_is_still_a_unit_b109() -> None:
    given = unit_record()
    given.headers_ = as_origin(given.headers_)
    assert nested(route(router(), given)) == (b"a", b"2")


@pytest.mark.usefixtures("transforms")
def test_a_record_of_a_run_and_what_a_transform_made_are_counted_and_are_no_inner_unit_b109() -> None:
    """So that rules which feed each other end, whatever their shape."""
    assert nested(route(router(), unit_record(shape=Shape.CONSECUTIVE))) == (None, b"2")
    shouting = router(replace(LOW_STOCK, transform="upper_case"))
    assert nested(route(shouting, unit_record(value_format=ValueFormat.JSON))) == (None, b"2")


def test_other_records_say_for_themselves_what_they_are_b109() -> None:
    assert nested(route(router(), record(b"France"))) == (None, None)
    sent = record(b"France")
    sent.headers_ += [("uow-inner-id", b"parcel"), ("uow-depth", b"2")]
    assert nested(route(router(), sent)) == (b"parcel", b"2")


def test_nobody_forges_an_inner_id_b109() -> None:
    assert [
        value
        for name, value in route(router(), unit_record(("uow-inner-id", b"forged"))).sent.headers
        if name == "uow-inner-id"
    ] == [b"a"]


def test_a_unit_with_an_erased_payload_is_a_component_b109_b216() -> None:
    (made,) = [o for o in story(c(1), told("erase", seq=1, at=1), c(2, end=True)).outputs if o.topic == "D.units"]
    given = FakeRecord(7, [*made.headers, ("uow-destination", b"France")], made.value, made.key, tp=INPUT)
    routed = route(router(), given)
    assert said(routed)["uow-origin-erased"] == b"1"
    assert dict(assembled(routed).headers)["uow-depth"] == b"2"


BAD = [b"x", b"", b"0", b"-1", b"2.0", b" 2", b"9" * 4_301]
DEEP = [b"4", b"1000000000", b"9" * 19]


@pytest.mark.parametrize("depth", [*BAD, *DEEP])
def test_a_depth_that_is_none_or_too_much_is_refused_by_router_and_assembler_b109(depth: bytes) -> None:
    error, case = (UnitTooLargeError, "depth") if depth in DEEP else (DecodeError, "uow-depth")
    routed = route(router(), unit_record(("uow-depth", depth)))
    assert (routed.fate, said(routed)["uow-error-case"]) == (Fate.REJECTED, case.encode())
    bad = c(1, user=[("uow-depth", depth)])
    assert play(bad, c(1, end=True)) == [refused(bad, error, case), unit(1)]
    by_rule = r(at=0, depth=depth)
    played = told_by(by_rule, r(), rules=[row(complete_count=1)])
    assert played.seen[0] == refused(by_rule, error, case)
    assert len(played.units) == 1


def test_depths_that_differ_are_refused_and_equal_ones_count_once_b109() -> None:
    twice = c(1, user=[("uow-depth", b"2"), ("uow-depth", b"3")])
    assert play(twice) == [refused(twice, DecodeError, "uow-depth")]
    played = story(c(1, end=True, user=[("uow-depth", b"2"), ("uow-depth", b"2")]))
    assert played.unit_headers[0]["uow-depth"] == b"2"


@pytest.mark.parametrize("shape", [Shape.ENVELOPE, Shape.CONSECUTIVE])
def test_a_unit_is_as_deep_as_its_deepest_component_that_is_left_b109(shape: Shape) -> None:
    held = c(1, depth=2), c(2, depth=3), c(3)
    assert {each["uow-depth"] for each in story(*held, c(4, end=True), shape=shape).unit_headers} == {b"3"}
    removed = story(*held, told("remove", seq=2), c(2), c(4, end=True), shape=shape)
    assert {each["uow-depth"] for each in removed.unit_headers} == {b"2"}
    assert "uow-depth" not in story(c(1, depth=1, end=True), shape=shape).unit_headers[0]


@pytest.mark.parametrize("limits", [ReplayLimits(), WIDE], ids=["promoted at once", "replayable"])
@pytest.mark.parametrize("compacts", [False, True])
def test_a_restart_knows_how_deep_a_group_is_b109(limits: ReplayLimits, compacts: bool) -> None:
    policy, logs = policy_of(), Logs(INPUT)
    task = PartitionTask(INPUT, context_of(policy, replay=limits))
    play_to(logs, task, [c(1, depth=3), c(2)])
    if compacts:
        logs.compact()
    after = Story(restored(logs, policy, limits))
    after.offset = after.task.position
    assert after.send(c(3, end=True, at=ms(0))) == [unit(1, 2, 3)]
    assert after.unit_headers[0]["uow-depth"] == b"3"
