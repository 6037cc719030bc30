"""Units are built again from the components: the same ones under the same settings, and what differs under others (W-209)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.shell.memory_kafka import MemoryKafka, MemoryLogReader, MemorySink
from tests.shell.whole_worker import UNITS, answers, in_a_loop, running, send, settings, until
from uow.ops.rebuild import (
    RebuildChange,
    delivered,
    differences,
    rebuilt,
)
from uow.processor.core import partition as decisions
from uow.processor.core.plan_size import PLAN_BYTES
from uow.processor.engine.context import TaskContext
from uow.processor.engine.ports import Plan, Refused, Tp
from uow.processor.shell.app import task_contexts
from uow.topics.commands import Command, Verb, command_headers
from uow.topics.policies import DestinationPolicy, ExpirationPolicy, Shape, ViolationPolicy

FAR = 1 << 60


def context_of(kafka: MemoryKafka, policy: DestinationPolicy) -> TaskContext:
    return task_contexts(settings(policy=policy), {"D.components": kafka.partitions})["D.components"]


def differing(
    kafka: MemoryKafka, policy: DestinationPolicy, first_ms: int = 0, last_ms: int = FAR, plan_bytes: int = PLAN_BYTES
) -> list[tuple[str, RebuildChange]]:
    reader = MemoryLogReader(kafka)
    again = rebuilt(reader, replace(context_of(kafka, policy), plan_bytes=plan_bytes), FAR)
    before = delivered(reader, context_of(kafka, UNITS))
    return sorted((each.unit.id.decode(), each.what) for each in differences(again, before, first_ms, last_ms))


async def worked() -> MemoryKafka:
    """Units, a duplicate number, a plain record, a unit that passes through, a gap that a command closes, and a group that stays open."""
    kafka = MemoryKafka()
    passing = [("uow-id", b"elsewhere"), ("uow-kind", b"unit"), ("uow-unit-id", b"its-own")]
    async with running(kafka):
        send(kafka, "early", (1, False), (2, True))
        kafka.append("D.components", b"p", b"plain", [])
        kafka.append("D.components", b"elsewhere", b"a unit", passing)
        await until(lambda: len(kafka.topic("D.units")) == 3)
        kafka.clock.now += 1000
        send(kafka, "twice", (1, False), (1, False), (2, True))
        send(kafka, "gap", (1, False), (3, True))
        send(kafka, "open", (1, False))
        await until(lambda: len(kafka.topic("D.rejected")) == 1)
        kafka.clock.now += 1000
        order = command_headers(Command(b"c", Verb.RELEASE, b"gap", "as it is"))
        kafka.append("D.commands", b"gap", None, order)
        await until(lambda: len(kafka.topic("D.units")) == 5)
    return kafka


@in_a_loop
async def test_under_the_settings_of_the_workers_the_same_units_come_out_byte_for_byte_w209() -> None:
    kafka = await worked()
    again = rebuilt(MemoryLogReader(kafka), context_of(kafka, UNITS), FAR)
    assert {unit.id for unit in again.values()} == {b"early", b"twice", b"gap"}
    assert differing(kafka, UNITS) == []


@in_a_loop
async def test_under_other_rules_the_units_that_would_differ_are_listed_w209() -> None:
    kafka = await worked()
    strict = replace(UNITS, violation_policy=ViolationPolicy.FAIL_GROUP)
    assert differing(kafka, strict) == [("twice", RebuildChange.ONLY_DELIVERED)]
    assert differing(kafka, replace(UNITS, max_components=1)) == [
        (name, RebuildChange.ONLY_DELIVERED) for name in ("early", "gap", "twice")
    ]


@in_a_loop
async def test_in_another_shape_every_unit_differs_and_keeps_its_id_w209() -> None:
    kafka = await worked()
    neighbours = replace(UNITS, shape=Shape.CONSECUTIVE)
    assert differing(kafka, neighbours) == [(name, RebuildChange.CHANGED) for name in ("early", "gap", "twice")]
    early = next(record for record in kafka.topic("D.units") if record.key() == b"early").timestamp()[1]
    assert differing(kafka, neighbours, last_ms=early) == []  # the end is no part of it
    assert differing(kafka, neighbours, last_ms=early + 1) == [("early", RebuildChange.CHANGED)]
    assert differing(kafka, neighbours, first_ms=early + 1) == [
        ("gap", RebuildChange.CHANGED),
        ("twice", RebuildChange.CHANGED),
    ]


@in_a_loop
async def test_units_that_somebody_took_away_are_built_again_w209() -> None:
    kafka = await worked()
    for partition in range(kafka.partitions):
        units = Tp("D.units", partition)
        kafka.cut(units, kafka.bounds(units)[1])
    assert differing(kafka, UNITS) == [(name, RebuildChange.ONLY_REBUILT) for name in ("early", "gap", "twice")]


EXPIRING = replace(UNITS, incomplete_expiration_ms=1_000, expiration_policy=ExpirationPolicy.DELIVER_PARTIAL)


@in_a_loop
async def test_units_that_close_at_one_moment_are_all_built_however_plans_are_cut_w209() -> None:
    kafka = MemoryKafka()
    async with running(kafka, settings(policy=EXPIRING)):
        for number in range(100):
            send(kafka, f"whole-{number}", (1, False), (2, True), value=b"x" * 300)
            send(kafka, f"late-{number}", (1, False), value=b"x" * 300)
        await until(lambda: len(kafka.topic("D.units")) == 100)
        kafka.clock.now += 2_000
        await until(lambda: len(kafka.topic("D.units")) == 200)
    for plan_bytes in (PLAN_BYTES, 5_000, 1):
        assert differing(kafka, EXPIRING, plan_bytes=plan_bytes) == []


@in_a_loop
async def test_commands_that_a_full_plan_leaves_are_played_w209() -> None:
    kafka = MemoryKafka()
    async with running(kafka):
        for number in range(40):
            send(kafka, f"gap-{number}", (1, False), (3, True), value=b"x" * 300)
        await until(lambda: sum(map(len, [kafka.topic("D.components")])) == 80)
        for number in range(40):
            name = f"gap-{number}"
            order = command_headers(Command(name.encode(), Verb.RELEASE, name.encode(), "as it is"))
            kafka.append("D.commands", name.encode(), None, order)
        await until(lambda: len(kafka.topic("D.units")) == 40)
    for plan_bytes in (PLAN_BYTES, 2_000, 1):
        assert differing(kafka, UNITS, plan_bytes=plan_bytes) == []


@in_a_loop
async def test_a_refused_record_hides_nothing_behind_it_whatever_rule_it_names_w209() -> None:
    kafka = MemoryKafka()
    async with running(kafka):
        for number in range(8):
            send(kafka, f"before-{number}", (1, False), (2, True))
            forged = [
                ("uow-id", b"x"),
                ("uow-seq", b"1"),
                ("uow-rule", b"nobody/has@1"),
                ("uow-input", b"in/0/%d" % number),
            ]
            kafka.append("D.components", b"%d" % number, b"x", forged)
            send(kafka, f"behind-{number}", (1, False), (2, True))
        await until(lambda: len(kafka.topic("D.units")) == 16)
        await until(lambda: len(kafka.topic("D.rejected")) == 8)
    assert differing(kafka, UNITS) == []
    assert len(rebuilt(MemoryLogReader(kafka), context_of(kafka, UNITS), FAR)) == 16


class Closed(MemorySink):
    """A broker that takes no unit of one group."""

    def write(self, plans: Sequence[Plan], token: Any) -> None:
        for plan in plans:
            if any((each.topic, each.key) == ("D.units", b"gap") for each in plan.outputs):
                raise Refused("TOPIC_AUTHORIZATION_FAILED", plan.tp)
        super().write(plans, token)


def failing(*_: Any) -> Any:
    raise ArithmeticError("a defect at the command")


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_command_that_failed_does_nothing_when_units_are_built_again_w209(is_refused: bool) -> None:
    """A broker refused what it asked for, or the code failed at it: its sender was told that nothing is changed."""

    @in_a_loop
    async def test() -> None:
        kafka, configured = MemoryKafka(), settings(set_aside_per_minute=10)
        sink = Closed(kafka, configured.transactional_id) if is_refused else None
        with pytest.MonkeyPatch.context() as patch:
            if not is_refused:
                patch.setattr(decisions, "decide_command", failing)
            async with running(kafka, configured, sink=sink):
                send(kafka, "gap", (1, False), (4, True))
                release(kafka, b"first")
                await until(lambda: [each.done for each in answers(kafka)] == [False])
                kafka.clock.now += 1000
                send(kafka, "gap", (2, False))
                for number in range(5):
                    send(kafka, f"other-{number}", (1, True))
                await until(lambda: len(kafka.topic("D.units")) == 5)
        async with running(kafka, configured):
            release(kafka, b"again")
            await until(lambda: len(kafka.topic("D.units")) == 6)
        for plan_bytes in (PLAN_BYTES, 1):
            assert differing(kafka, UNITS, plan_bytes=plan_bytes) == []

    test()


def release(kafka: MemoryKafka, command_id: bytes) -> None:
    """Commands the group to leave as it is, a second later."""
    kafka.clock.now += 1000
    kafka.append("D.commands", b"gap", None, command_headers(Command(command_id, Verb.RELEASE, b"gap", "as it is")))
