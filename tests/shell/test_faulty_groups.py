"""A whole worker in which the code fails at one group, in work that no record asks for: every other group of the partition goes on, also after a restart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.rules.low_stock import ROWS, changed
from tests.shell import test_routed_worker as routed
from tests.shell.memory_kafka import MemoryKafka, MemoryLogReader, MemorySink
from tests.shell.test_routed_worker import INPUT
from tests.shell.test_whole_worker import EXPIRING, P0, belongs_to, ids
from tests.shell.whole_worker import answers, in_a_loop, running, send_to, settings, until
from uow.ops import doctor
from uow.processor.core import decide, partition, partition_state
from uow.processor.core.changes import Undelivered
from uow.processor.core.faulty_groups import GroupFault, Treatment
from uow.processor.core.group import Group
from uow.processor.engine import task
from uow.processor.engine.group_faults import GroupFaults
from uow.processor.engine.outputs import OutputWriter
from uow.processor.engine.ports import Doubt, Plan, Refused
from uow.processor.engine.restore import restore
from uow.processor.engine.rule_figures import RuleFigures
from uow.processor.shell.app import task_contexts
from uow.processor.shell.pages import group_view, groups_view
from uow.schemas.error_classes import InternalError, StateCorruptedError
from uow.schemas.records import Range
from uow.topics.commands import Command, Verb, command_headers
from uow.topics.policies import DestinationPolicy, ExpirationPolicy
from uow.topics.rules import AtMaxOpenGroups, DeliverOrder, OnRuleChange, Release

Plant = Callable[[pytest.MonkeyPatch, bytes], list[bytes]]
SET_ASIDE = {"set_aside_per_minute": 10}


def plant_in(owner: Any, name: str, of: Callable[..., Any], error: type[Exception] = ArithmeticError) -> Plant:
    """Makes a function raise where it is about one group; the plant returns where it notes each time. `of`: the group's id, from the arguments."""

    def plant(patch: pytest.MonkeyPatch, bad: bytes) -> list[bytes]:
        real, raised = getattr(owner, name), []

        def failing(*args: Any, **more: Any) -> Any:
            if of(*args) == bad:
                raised.append(bad)
                raise error(f"a defect in {name}")
            return real(*args, **more)

        patch.setattr(owner, name, failing)
        return raised

    return plant


def of_outputs(writer: Any, outward: Any, written: Any) -> bytes | None:
    """Of effects that are not the failure itself."""
    effect, _, group = outward
    is_failure = isinstance(effect, Undelivered) and effect.fault is not None
    return None if group is None or is_failure else group.id


def of_any_output(writer: Any, outward: Any, written: Any) -> bytes | None:
    return outward[2].id if outward[2] is not None else None


WARNING = replace(EXPIRING, warn_at_percent=50)
IDLE = replace(EXPIRING, idle_expiration_ms=50)
SLOW = replace(EXPIRING, incomplete_expiration_ms=100_000, idle_expiration_ms=90_000)
BY_TIME: dict[str, tuple[Plant, DestinationPolicy]] = {
    "the decision at a deadline": (plant_in(partition, "decide_due", lambda now: now.group.id), EXPIRING),
    "the decision at an idle deadline": (plant_in(partition, "decide_due", lambda now: now.group.id), IDLE),
    "a warning": (plant_in(decide, "_warning", lambda group, *_: group.id), WARNING),
    "the reason to give it up": (plant_in(Group, "give_up_reason", lambda group, policy: group.id), EXPIRING),
    "the outputs at a deadline": (plant_in(OutputWriter, "write", of_outputs), EXPIRING),
    "the moment of its deadline": (plant_in(Group, "due_at", lambda group, policy: group.id), EXPIRING),
    "rows of the changelog": (plant_in(task, "promotion_rows", lambda group, said: group.id), EXPIRING),
}


def half_done(patch: pytest.MonkeyPatch, bad: bytes) -> list[bytes]:
    """What changes the state raises half-way, and again when it is tried once more."""
    real, raised = partition_state.PartitionState.close, []

    def failing(self: Any, group: Any, closed: Any) -> None:
        real(self, group, closed)
        if group is not None and group.id == bad and len(raised) < 2:
            raised.append(bad)
            raise ArithmeticError("a defect behind a change")

    patch.setattr(partition_state.PartitionState, "close", failing)
    return raised


BY_TIME["carrying it out"] = half_done, EXPIRING


def told(kafka: MemoryKafka, id: str) -> list[tuple[bytes | None, bytes | None]]:
    """Error class and case of what went to `D.errors` of an id."""
    said = [dict(record.headers() or []) for record in kafka.topic("D.errors") if record.key() == id.encode()]
    return [(each["uow-error-class"], each["uow-error-case"]) for each in said]


FAULT = (b"InternalError", b"ArithmeticError")


@pytest.mark.parametrize(
    ("place", "is_restarted"),
    # where the moment of a deadline fails at once, the record that opens the group is at fault; and a clean stop has written all rows
    [
        (place, again)
        for place in BY_TIME
        for again in (False, True)
        if (place, again) not in {("the moment of its deadline", False), ("rows of the changelog", True)}
    ],
)
def test_a_group_at_which_the_code_fails_by_the_clock_is_closed_and_the_others_go_on(
    place: str, is_restarted: bool
) -> None:
    """Its components go to `D.errors`, once; also where the worker starts with the defect."""
    plant, policy = BY_TIME[place]

    @in_a_loop
    async def test() -> None:
        kafka = MemoryKafka()
        bad, good = (belongs_to(kafka, 0, name) for name in ("bad", "good"))
        for each in (bad, good):
            send_to(kafka, 0, each, 1)
            send_to(kafka, 0, each, 2)
        configured = settings(policy=policy, replay_limit_ms=30, **SET_ASIDE)
        if is_restarted:
            async with running(kafka, configured) as app:
                await until(lambda: app.status.tasks[P0].counts.open == 4)
        with pytest.MonkeyPatch.context() as patch:
            raised = plant(patch, bad.encode())
            async with running(kafka, configured) as app:
                if not raised:
                    await until(lambda: raised or app.status.tasks[P0].counts.open == 4)
                for number in range(3):
                    kafka.clock.now += 40
                    unit = belongs_to(kafka, 0, f"unit{number}-")
                    send_to(kafka, 0, unit, 1, end=True)
                    await until(lambda unit=unit: unit in ids(kafka))
                kafka.clock.now += 101
                await until(lambda: len(told(kafka, good)) == 2)
                await until(lambda: len(told(kafka, bad)) == 2)
                assert raised
                assert told(kafka, bad) == [FAULT, FAULT]
                assert {name for name, _ in told(kafka, good)} == {b"UowError"}
                assert (app.status.blocked, kafka.topic("D.rejected")) == ({}, [])
                (finding,) = doctor.set_aside(MemoryLogReader(kafka), "D.errors", kafka.partitions)
                assert "2 of the last records were set aside, since the code failed" in finding.what
            async with running(kafka, configured) as app:
                again = belongs_to(kafka, 0, "again")
                send_to(kafka, 0, again, 1, end=True)
                await until(lambda: again in ids(kafka))
                assert len(told(kafka, bad)) == 2
                assert app.status.blocked == {}

    test()


def passing(times: int, error: BaseException) -> Callable[[pytest.MonkeyPatch, Any, str, Any, bytes], None]:
    """Makes a function raise so many times where it is about one group."""

    def plant(patch: pytest.MonkeyPatch, owner: Any, name: str, of: Any, bad: bytes) -> None:
        real, left = getattr(owner, name), [error] * times

        def failing(*args: Any, **more: Any) -> Any:
            if left and of(*args) == bad:
                raise left.pop()
            return real(*args, **more)

        patch.setattr(owner, name, failing)

    return plant


PASSING = {
    "short of memory": passing(3, MemoryError()),
    "no file handle": passing(3, OSError(24, "too many open files")),
    "once": passing(1, ArithmeticError("a defect that passes")),
}


@pytest.mark.parametrize("what", PASSING)
@pytest.mark.parametrize("is_by_time", [False, True])
def test_what_passes_by_itself_makes_no_group_fail(what: str, is_by_time: bool) -> None:
    @in_a_loop
    async def test() -> None:
        kafka = MemoryKafka()
        bad = belongs_to(kafka, 0, "bad")
        policy = replace(EXPIRING, expiration_policy=ExpirationPolicy.DELIVER_PARTIAL)
        send_to(kafka, 0, bad, 1)
        send_to(kafka, 0, bad, 3, end=not is_by_time)
        with pytest.MonkeyPatch.context() as patch:
            if is_by_time:
                PASSING[what](patch, partition, "decide_due", of_situation, bad.encode())
            else:
                PASSING[what](patch, OutputWriter, "write", of_any_output, bad.encode())
            async with running(kafka, settings(policy=policy, **SET_ASIDE)) as app:
                if is_by_time:
                    await until(lambda: app.status.tasks[P0].counts.open == 2)
                    kafka.clock.now += 101
                else:
                    send_to(kafka, 0, bad, 2)

                def is_told() -> bool:
                    kafka.clock.now += 10
                    return ids(kafka) == [bad]

                await until(is_told)
                await until(lambda: app.status.blocked == {})
                assert (kafka.topic("D.errors"), kafka.topic("D.rejected")) == ([], [])

    test()


@in_a_loop
async def test_a_unit_that_cannot_be_made_fails_and_the_others_go_on() -> None:
    """Also one that opens and is complete within one batch."""
    kafka = MemoryKafka()
    bad, good = (belongs_to(kafka, 0, name) for name in ("bad", "good"))
    for each in (bad, good):
        send_to(kafka, 0, each, 1)
        send_to(kafka, 0, each, 2, end=True)
    with pytest.MonkeyPatch.context() as patch:
        raised = plant_in(OutputWriter, "write", of_outputs)(patch, bad.encode())
        async with running(kafka, settings(**SET_ASIDE)) as app:
            await until(lambda: ids(kafka) == [good])
            assert raised
            assert told(kafka, bad) == [FAULT, FAULT]
            assert (app.status.blocked, kafka.topic("D.rejected")) == ({}, [])


WHOLE_BY: dict[str, tuple[Sequence[tuple[int, bool]], int]] = {
    "its end": ([(2, True)], 0),
    "several components": ([(2, False), (4, True), (3, False)], 0),
    "a deadline": ([(3, False)], 101),
}
"""Components, by number, and whether each is the end; and milliseconds that pass."""


@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("whole_by", WHOLE_BY)
def test_whatever_makes_a_unit_whole_that_cannot_be_made_fails_with_it(whole_by: str, is_committed: bool) -> None:
    """Components are not refused because their group was closed before they were in."""

    @in_a_loop
    async def test() -> None:
        kafka = MemoryKafka()
        bad, good, later = (belongs_to(kafka, 0, name) for name in ("bad", "good", "later"))
        policy = replace(EXPIRING, expiration_policy=ExpirationPolicy.DELIVER_PARTIAL)
        components, passing_ms = WHOLE_BY[whole_by]

        def make_whole() -> None:
            for seq, end in components:
                send_to(kafka, 0, bad, seq, end=end)
            kafka.clock.now += passing_ms

        send_to(kafka, 0, bad, 1)
        with pytest.MonkeyPatch.context() as patch:
            plant_in(OutputWriter, "write", of_outputs)(patch, bad.encode())
            if not is_committed:
                make_whole()
            async with running(kafka, settings(policy=policy, **SET_ASIDE)) as app:
                if is_committed:
                    await until(lambda: app.status.tasks[P0].counts.open == 1)
                    make_whole()
                send_to(kafka, 0, good, 1, end=True)
                await until(lambda: told(kafka, bad))
                await until(lambda: ids(kafka) == [good])
                send_to(kafka, 0, later, 1, end=True)
                await until(lambda: ids(kafka) == [good, later])
                assert (app.status.blocked, app.status.tasks[P0].groups_alone) == ({}, {})
        assert told(kafka, bad) == [FAULT] * (1 + len(components))
        assert kafka.topic("D.rejected") == []

    test()


@in_a_loop
async def test_a_group_that_cannot_be_closed_stands_alone_and_is_tried_again() -> None:
    kafka = MemoryKafka()
    bad, *goods = (belongs_to(kafka, 0, name) for name in ("bad", "good", "better", "best"))
    for each in (bad, goods[0]):
        send_to(kafka, 0, each, 1)
    configured = settings(policy=EXPIRING, **SET_ASIDE)
    with pytest.MonkeyPatch.context() as patch:
        raised = plant_in(OutputWriter, "write", of_any_output)(patch, bad.encode())
        for number in range(2):  # a worker that is started has to find it out
            async with running(kafka, configured) as app:
                kafka.clock.now += 101
                await until(lambda number=number: len(told(kafka, goods[number])) == 1)
                await until(lambda: len(app.status.tasks[P0].groups_alone) == 1)
                before, number_open = len(raised), app.status.tasks[P0].counts.open
                unit = belongs_to(kafka, 0, f"unit{number}")
                send_to(kafka, 0, unit, 1, end=True)
                await until(lambda unit=unit: unit in ids(kafka))
                send_to(kafka, 0, bad, number + 2)
                send_to(kafka, 0, goods[number + 1], 1)
                await until(lambda count=number_open + 2: app.status.tasks[P0].counts.open == count)
                assert len(raised) == before, "it is left alone"
                assert app.status.blocked == {}
    async with running(kafka, configured) as app:  # mended: nothing of it is lost
        kafka.clock.now += 101
        await until(lambda: len(told(kafka, bad)) == 3)


@in_a_loop
async def test_pages_say_since_when_and_why_a_group_stands_alone_until_it_is_closed() -> None:
    """Also after more tries, and by the wall clock, which is another one than that of the engine."""
    kafka = MemoryKafka()
    bad = belongs_to(kafka, 0, "bad")
    send_to(kafka, 0, bad, 1)
    async with running(kafka, settings(policy=EXPIRING, **SET_ASIDE)) as app:

        def alone() -> Any:
            """Nothing while its partition is restored."""
            return (group_view(app.status, "D", bad, kafka.clock.now_ms()) or {"alone": {}})["alone"]

        await until(lambda: app.status.tasks and alone() is None)
        with pytest.MonkeyPatch.context() as patch:
            plant_in(OutputWriter, "write", of_any_output)(patch, bad.encode())
            kafka.clock.now += 101
            await until(lambda: len(app.status.tasks[P0].groups_alone) == 1)
            kafka.clock.shift = 1_000_000
            began = kafka.clock.now_ms()
            first = alone()
            assert first == {
                "since": began,
                "why": "the code fails: ArithmeticError",
                "topic": None,
                "tries": 1,
                "next_try": began + 60_000,
            }
            kafka.clock.now += 60_001
            await until(lambda: (alone() or first)["tries"] == 2)
            again = kafka.clock.now_ms()
            assert alone() == first | {"tries": 2, "next_try": again + 300_000}
            page = groups_view(app.status, again)["destinations"]["D"]["0"]
            assert page["groups_alone"] == [{"id": bad, "generation": 1} | alone()]
            assert [each["alone"] for each in page["groups"]] == [alone()]
        kafka.clock.now += 300_001
        await until(lambda: len(told(kafka, bad)) == 1)
        await until(lambda: not groups_view(app.status, 0)["destinations"]["D"]["0"]["groups_alone"])


@in_a_loop
async def test_a_group_that_stood_alone_is_closed_once_that_does_not_fail_any_more() -> None:
    kafka = MemoryKafka()
    bad = belongs_to(kafka, 0, "bad")
    send_to(kafka, 0, bad, 1)
    async with running(kafka, settings(policy=EXPIRING, **SET_ASIDE)) as app:
        with pytest.MonkeyPatch.context() as patch:
            plant_in(OutputWriter, "write", of_any_output)(patch, bad.encode())
            await until(lambda: app.status.tasks[P0].counts.open == 1)
            kafka.clock.now += 101
            await until(lambda: len(app.status.tasks[P0].groups_alone) == 1)
        kafka.clock.now += 60_001
        await until(lambda: told(kafka, bad) == [FAULT])
        assert len(app.status.tasks[P0].groups_alone) == 0


@in_a_loop
async def test_beyond_so_many_a_minute_the_partition_blocks() -> None:
    """A defect that every group meets must not empty a partition."""
    kafka = MemoryKafka()
    bad = [belongs_to(kafka, 0, f"bad{number}-") for number in range(3)]
    for each in bad:
        send_to(kafka, 0, each, 1)

    def failing(now: Any) -> Any:
        raise LookupError("a defect that every group meets")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition, "decide_due", failing)
        async with running(kafka, settings(policy=EXPIRING, set_aside_per_minute=2)) as app:
            await until(lambda: app.status.tasks[P0].counts.open == 3)
            kafka.clock.now += 101
            await until(lambda: P0 in app.status.blocked)
            assert "set_aside_per_minute = 2" in app.status.blocked[P0]
            assert len(kafka.topic("D.errors")) == 2


@pytest.mark.parametrize("per_minute", [0, 1])
@pytest.mark.parametrize("is_committed", [False, True])
def test_beyond_the_limit_the_partition_blocks_at_the_very_record_which_a_command_sets_aside(
    per_minute: int, is_committed: bool
) -> None:
    """What lies before it in the same poll is done, and the cause says what an operator can do."""

    @in_a_loop
    async def test() -> None:
        kafka = MemoryKafka()
        failed = [belongs_to(kafka, 0, f"failed{number}-") for number in range(per_minute)]
        before, bad, behind = (belongs_to(kafka, 0, name) for name in ("before", "bad", "behind"))
        configured = settings(set_aside_per_minute=per_minute)
        send_to(kafka, 0, bad, 1)
        if is_committed:
            async with running(kafka, configured) as app:
                await until(lambda: app.status.tasks[P0].counts.open == 1)
        for each in (*failed, before):
            send_to(kafka, 0, each, 1, end=True)
        send_to(kafka, 0, bad, 2, end=True)
        send_to(kafka, 0, behind, 1, end=True)
        here = f"D.components/0/{per_minute + 2}"
        with pytest.MonkeyPatch.context() as patch:
            for each in (bad, *failed):
                plant_in(OutputWriter, "write", of_outputs)(patch, each.encode())
            async with running(kafka, configured) as app:
                await until(lambda: P0 in app.status.blocked)
                assert f"set_aside_per_minute = {per_minute}" in app.status.blocked[P0]
                assert f"uow set-aside D {here}" in app.status.blocked[P0]
                assert (ids(kafka), [told(kafka, each) for each in failed]) == ([before], [[FAULT]] * per_minute)
                kafka.clock.now += 10
                command = Command(b"c", Verb.SET_ASIDE, b"", "not needed", source=here)
                kafka.append("D.commands", None, None, command_headers(command), partition=0)
                await until(lambda: answers(kafka))
                await until(lambda: ids(kafka) == [before, behind])
                assert (app.status.blocked, app.status.tasks[P0].counts.open) == ({}, 1)
        (said,) = [dict(record.headers() or []) for record in kafka.topic("D.rejected")]
        assert (said["uow-source"], said["uow-error-class"]) == (here.encode(), b"InternalError")
        assert said["uow-error-case"] == b"ArithmeticError"
        assert answers(kafka)[0].done

    test()


@in_a_loop
async def test_in_strict_order_no_group_is_closed_by_a_defect() -> None:
    """Nothing may come out before what stands there."""
    kafka = MemoryKafka()
    bad = belongs_to(kafka, 0, "bad")
    send_to(kafka, 0, bad, 1)
    with pytest.MonkeyPatch.context() as patch:
        plant_in(partition, "decide_due", of_situation)(patch, bad.encode())
        async with running(kafka, settings(policy=replace(EXPIRING, strict_order=True), **SET_ASIDE)) as app:
            await until(lambda: app.status.tasks[P0].counts.open == 1)
            kafka.clock.now += 101
            await until(lambda: P0 in app.status.blocked)
            assert kafka.topic("D.errors") == []


# -- groups by rule


def of_group(group: Any, *_: Any) -> bytes:
    return group.id


def of_situation(now: Any, *_: Any) -> bytes:
    return now.group.id


HELD = {"release": Release.HOLD_ALL}
NINE_AND_FIVE = (("France", 9), ("UK", 5))
TEN_AND_FIVE = (("France", 10), ("UK", 5))
BY_RULE: dict[str, tuple[Plant, dict[str, Any], Sequence[tuple[str, int]]]] = {
    "the decision at an age": (plant_in(partition, "decide_due", of_situation), {}, NINE_AND_FIVE),
    "leaving because too many wait": (
        plant_in(partition, "decide_crowded_out", of_situation),
        {**HELD, "max_waiting": 1},
        TEN_AND_FIVE,
    ),
    "making room": (
        plant_in(partition, "decide_oldest", of_situation),
        {"max_open_groups": 1, "at_max_open_groups": AtMaxOpenGroups.CLOSE_OLDEST},
        NINE_AND_FIVE,
    ),
    "a turn in the order of arrival": (
        plant_in(partition, "decide_due", of_situation),
        {"deliver_order": DeliverOrder.FIRST_ARRIVAL},
        (("UK", 4), ("France", 10), ("UK", 1)),
    ),
    "figures": (plant_in(RuleFigures, "add", lambda _, group, *more: group.id), {}, NINE_AND_FIVE),
}


@pytest.mark.parametrize("place", BY_RULE)
def test_a_group_by_rule_at_which_the_code_fails_is_closed_and_the_others_go_on(place: str) -> None:
    plant, rule, sent = BY_RULE[place]
    tables = replace(routed.TO_D, rules=(replace(routed.TO_D.rules[0], **rule),))

    @in_a_loop
    async def test() -> None:
        kafka, bad = MemoryKafka(partitions=1), "low-stock/France"
        with pytest.MonkeyPatch.context() as patch:
            raised = plant(patch, bad.encode())
            for number in range(2):  # also by a worker that is started with the defect
                async with routed.running(kafka, tables, set_aside_per_minute=10) as app:
                    for name, count in sent:
                        routed.send(kafka, name, count)
                        kafka.clock.now += 1
                    await until(lambda: routed.components(kafka) == len(kafka.topic(INPUT)))
                    kafka.clock.now += 31_000
                    count = (number + 1) * (10 if ("France", 10) in sent else 9)
                    await routed.until_as_time_goes_by(kafka, lambda count=count: len(told(kafka, bad)) == count)
                    await routed.until_as_time_goes_by(kafka, lambda n=number: len(kafka.topic("orders.uk")) == n + 1)
                    assert raised
                    assert set(told(kafka, bad)) == {FAULT}
                    assert (app.status.blocked, kafka.topic("D.rejected")) == ({}, [])

    test()


BY_RELEASE = {
    "the decision": plant_in(partition, "decide_released", of_situation),
    "the outputs": plant_in(RuleFigures, "add", lambda _, group, *more: group.id),
}


@pytest.mark.parametrize("release", [Release.HOLD_ALL, Release.HOLD_FIRST])
@pytest.mark.parametrize("place", BY_RELEASE)
def test_a_release_of_a_rule_at_which_the_code_fails_is_answered_as_failed_and_lets_nothing_go(
    place: str, release: Release
) -> None:
    """Its group is not closed, and nobody else leaves in its place; a release that names another group does what it says."""
    tables = replace(routed.TO_D, rules=(replace(routed.TO_D.rules[0], release=release),))

    @in_a_loop
    async def test() -> None:
        kafka, bad = MemoryKafka(partitions=1), "low-stock/France"

        def let_go(name: bytes, group_id: bytes = b"", rule: str = "") -> None:
            command = Command(name, Verb.RELEASE, group_id, "w", rule=rule)
            kafka.append("D.commands", group_id, None, command_headers(command), partition=0)

        with pytest.MonkeyPatch.context() as patch:
            BY_RELEASE[place](patch, bad.encode())
            async with routed.running(kafka, tables, set_aside_per_minute=10) as app:
                routed.send(kafka, "France", 10)
                await until(lambda: routed.held(app) == 10)
                kafka.clock.now += 1
                routed.send(kafka, "UK", 5)
                await until(lambda: routed.held(app) == 15)
                let_go(b"rule", rule="low-stock")
                await routed.until_as_time_goes_by(kafka, lambda: len(answers(kafka)) == 1)
                assert (answers(kafka)[0].done, "a defect of uow" in answers(kafka)[0].text) == (False, True)
                assert (routed.held(app), kafka.topic("orders.uk"), told(kafka, bad)) == (15, [], [])
                let_go(b"id", b"low-stock/UK")
                await routed.until_as_time_goes_by(kafka, lambda: len(kafka.topic("orders.uk")) == 1)
                assert (app.status.blocked, kafka.topic("D.rejected")) == ({}, [])

    test()


LIVE = {
    "a later version of its row": plant_in(partition_state.PartitionState, "follow", lambda _, group, row: group.id),
    "a row of its own in a restore": plant_in(Group, "rule", of_group),
    "its conditions after a restore": plant_in(Group, "asked", of_group),
}


@pytest.mark.parametrize("place", LIVE)
def test_a_group_by_rule_at_which_a_restore_or_a_new_version_fails_is_closed_and_the_others_go_on(place: str) -> None:
    @in_a_loop
    async def test() -> None:
        kafka, bad = MemoryKafka(partitions=1), "low-stock/France"
        live = replace(routed.TO_D, rules=(replace(routed.TO_D.rules[0], on_rule_change=OnRuleChange.LIVE),))
        routed.send(kafka, "France", 4)
        routed.send(kafka, "UK", 4)
        async with routed.running(kafka, live) as app:
            await until(lambda: routed.held(app) == 8)
        fewer = changed(2, rows=tuple(replace(each, version=2, complete_count=3) for each in ROWS[:2]))
        with pytest.MonkeyPatch.context() as patch:
            raised = LIVE[place](patch, bad.encode())
            for number in range(2):
                async with routed.running(kafka, live.with_rows_of(fewer), set_aside_per_minute=10) as app:
                    await routed.until_as_time_goes_by(kafka, lambda: len(told(kafka, bad)) == 4)
                    await routed.until_as_time_goes_by(
                        kafka, lambda number=number: len(kafka.topic("orders.uk")) == 1 + number
                    )
                    routed.send(kafka, "UK", 3)
                    await routed.until_as_time_goes_by(
                        kafka, lambda number=number: len(kafka.topic("orders.uk")) == 2 + number
                    )
                    assert (app.status.blocked, kafka.topic("D.rejected")) == ({}, [])
            assert raised
            assert told(kafka, bad) == [FAULT] * 4

    test()


BY_RESTORE = {
    "its rule": plant_in(Group, "rule", of_group, KeyError),
    "its figures after a restore": plant_in(Group, "asked", of_group, IndexError),
}


@pytest.mark.parametrize("place", BY_RESTORE)
def test_a_look_that_finds_nothing_in_a_restore_is_a_defect_that_one_group_meets(place: str) -> None:
    """It is no state that cannot be read."""

    @in_a_loop
    async def test() -> None:
        kafka, bad = MemoryKafka(partitions=1), "low-stock/France"
        routed.send(kafka, "France", 4)
        routed.send(kafka, "UK", 4)
        async with routed.running(kafka) as app:
            await until(lambda: routed.held(app) == 8)
        with pytest.MonkeyPatch.context() as patch:
            raised = BY_RESTORE[place](patch, bad.encode())
            async with routed.running(kafka, set_aside_per_minute=10) as app:
                await routed.until_as_time_goes_by(kafka, lambda: len(told(kafka, bad)) == 4)
                routed.send(kafka, "UK", 1)
                await routed.until_as_time_goes_by(kafka, lambda: len(kafka.topic("orders.uk")) == 1)
                assert raised
                assert (app.status.blocked, kafka.topic("D.rejected")) == ({}, [])

    test()


@in_a_loop
async def test_a_moment_that_cannot_be_found_in_a_restore_is_a_defect_that_one_group_meets() -> None:
    kafka = MemoryKafka()
    bad, good = (belongs_to(kafka, 0, name) for name in ("bad", "good"))
    for each in (bad, good):
        send_to(kafka, 0, each, 1)
    configured = settings(
        policy=replace(EXPIRING, incomplete_expiration_ms=100_000, idle_expiration_ms=90_000), **SET_ASIDE
    )
    async with running(kafka, configured) as app:
        await until(lambda: app.status.tasks[P0].counts.open == 2)
    with pytest.MonkeyPatch.context() as patch:
        plant_in(Group, "read_last_at", of_group, KeyError)(patch, bad.encode())
        async with running(kafka, configured) as app:
            await until(lambda: told(kafka, bad) == [(b"InternalError", b"KeyError")])
            send_to(kafka, 0, good, 2, end=True)
            await until(lambda: ids(kafka) == [good])
            assert app.status.blocked == {}


@in_a_loop
async def test_whoever_only_looks_is_told_of_a_state_that_cannot_be_read_also_where_one_group_is_at_fault() -> None:
    """Nobody closes a group there."""
    kafka = MemoryKafka()
    bad = belongs_to(kafka, 0, "bad")
    send_to(kafka, 0, bad, 1)
    configured = settings(policy=SLOW)
    async with running(kafka, configured) as app:
        await until(lambda: app.status.tasks[P0].counts.open == 1)
    with pytest.MonkeyPatch.context() as patch:
        plant_in(Group, "read_last_at", of_group, KeyError)(patch, bad.encode())
        contexts = task_contexts(configured, {"D.components": kafka.partitions})
        with pytest.raises(StateCorruptedError, match="changelog"):
            restore(MemoryLogReader(kafka), contexts, [P0])


def rules_of(app: Any) -> list[tuple[bytes, str | None, int]]:
    """Id, rule and number of components of the open groups."""
    groups = [group for task in app.status.tasks.values() for group in task.groups.values()]
    return [(each.id, each.ruled and each.ruled.policy.rule_id, each.record_count) for each in groups]


@in_a_loop
async def test_a_group_by_rule_that_stands_alone_keeps_its_rule_and_takes_its_components() -> None:
    kafka, bad = MemoryKafka(partitions=1), "low-stock/France"
    routed.send(kafka, "France", 4)
    async with routed.running(kafka) as app:
        await until(lambda: routed.held(app) == 4)
    with pytest.MonkeyPatch.context() as patch:
        plant_in(OutputWriter, "write", of_any_output)(patch, bad.encode())
        plant_in(partition, "decide_due", of_situation)(patch, bad.encode())
        for number in range(2):
            async with routed.running(kafka, set_aside_per_minute=10) as app:
                kafka.clock.now += 31_000
                await routed.until_as_time_goes_by(
                    kafka, lambda app=app: any(each.groups_alone for each in app.status.tasks.values())
                )
                routed.send(kafka, "France", 1)
                await until(lambda app=app, count=5 + number: rules_of(app) == [(bad.encode(), "low-stock", count)])
                assert (app.status.blocked, kafka.topic("D.rejected")) == ({}, [])
    async with routed.running(kafka) as app:  # mended
        await routed.until_as_time_goes_by(kafka, lambda: routed.units(kafka, "orders.france"))
        assert [each[0] for each in routed.units(kafka, "orders.france")] == [6]
        assert told(kafka, bad) == []


@in_a_loop
async def test_where_a_group_fails_in_a_restore_and_cannot_be_closed_its_partition_blocks_and_it_keeps_its_rule() -> (
    None
):
    """As one of no rule it would be open for ever, and its components refused."""
    kafka, bad = MemoryKafka(partitions=1), "low-stock/France"
    routed.send(kafka, "France", 4)
    async with routed.running(kafka) as app:
        await until(lambda: routed.held(app) == 4)
    with pytest.MonkeyPatch.context() as patch:
        plant_in(Group, "rule", of_group)(patch, bad.encode())
        plant_in(OutputWriter, "write", of_any_output)(patch, bad.encode())
        async with routed.running(kafka, set_aside_per_minute=10) as app:
            command = Command(b"c", Verb.WAIVE, bad.encode(), "w", numbers=(Range(7, 7),))
            kafka.append("D.commands", bad.encode(), None, command_headers(command), partition=0)
            routed.send(kafka, "France", 1)
            await routed.until_as_time_goes_by(kafka, lambda: routed.components(kafka) == 5 and app.status.blocked)
    async with routed.running(kafka) as app:  # mended
        await routed.until_as_time_goes_by(kafka, lambda: rules_of(app) == [(bad.encode(), "low-stock", 5)])
        await routed.until_as_time_goes_by(kafka, lambda: len(answers(kafka)) == 1)
        kafka.clock.now += 31_000
        await routed.until_as_time_goes_by(kafka, lambda: routed.units(kafka, "orders.france"))
        assert [each[0] for each in routed.units(kafka, "orders.france")] == [5]
        assert (told(kafka, bad), kafka.topic("D.rejected")) == ([], [])


@in_a_loop
async def test_in_the_order_of_arrival_nobody_waits_for_a_group_that_stands_alone() -> None:
    kafka, bad = MemoryKafka(partitions=1), "low-stock/France"
    tables = replace(routed.TO_D, rules=(replace(routed.TO_D.rules[0], deliver_order=DeliverOrder.FIRST_ARRIVAL),))
    routed.send(kafka, "France", 4)
    with pytest.MonkeyPatch.context() as patch:
        plant_in(OutputWriter, "write", of_any_output)(patch, bad.encode())
        plant_in(partition, "decide_due", of_situation)(patch, bad.encode())
        for number in range(2):  # also by a worker that is started with the defect
            async with routed.running(kafka, tables, set_aside_per_minute=10) as app:
                await until(lambda: routed.components(kafka) == len(kafka.topic(INPUT)))
                kafka.clock.now += 31_000
                await routed.until_as_time_goes_by(
                    kafka, lambda app=app: any(each.groups_alone for each in app.status.tasks.values())
                )
                for _ in range(2):
                    routed.send(kafka, "UK", 5)
                    kafka.clock.now += 1
                await routed.until_as_time_goes_by(
                    kafka, lambda number=number: len(kafka.topic("orders.uk")) == 2 * (number + 1)
                )
                assert (app.status.blocked, routed.held(app)) == ({}, 4)


# -- closes that a broker refuses


class Refusing(MemorySink):
    """A broker that takes nothing of one group for `D.errors`, as long as it is told so; counts the transactions that it refuses."""

    def __init__(self, kafka: MemoryKafka, bad: str) -> None:
        super().__init__(kafka, settings().transactional_id)
        self.bad, self.is_refusing, self.refusals = bad.encode(), True, 0

    def write(self, plans: Sequence[Plan], token: Any) -> None:
        for plan in plans:
            if self.is_refusing and any((each.topic, each.key) == ("D.errors", self.bad) for each in plan.outputs):
                self.refusals += 1
                raise Refused("TOPIC_AUTHORIZATION_FAILED", plan.tp, None)
        super().write(plans, token)


def calling(real: Callable[..., Any], raised: Sequence[object], also: Callable[[], None]) -> Callable[..., Any]:
    """The same, which calls another one with the second failure: so what that brings is beside the close."""
    left = [also]

    def both(*args: Any, **more: Any) -> Any:
        if len(raised) >= 2 and left:
            left.pop()()
        return real(*args, **more)

    return both


PARTIAL = replace(EXPIRING, expiration_policy=ExpirationPolicy.DELIVER_PARTIAL)
REFUSED: dict[str, tuple[Plant, DestinationPolicy, bool, int]] = {
    "the decision at a deadline": (plant_in(partition, "decide_due", of_situation), EXPIRING, False, 2),
    "its unit at a deadline": (plant_in(OutputWriter, "write", of_outputs), PARTIAL, False, 15),  # polls are halved
    "the moment of its last component, in a restore": (plant_in(Group, "read_last_at", of_group), SLOW, True, 5),
}
"""The plant, the policy, whether the partition blocks, and most transactions that fail."""
BESIDE = ("nothing", "many records", "a command")


@pytest.mark.parametrize("place", REFUSED)
@pytest.mark.parametrize("beside", BESIDE)
def test_where_a_broker_refuses_the_close_few_transactions_fail_and_nobody_else_waits(place: str, beside: str) -> None:
    """The group stands alone, or its partition blocks, in no endless row of tries; nothing of it is lost, and a command beside it is done."""
    plant, policy, blocks, most = REFUSED[place]

    @in_a_loop
    async def test() -> None:
        kafka = MemoryKafka()
        bad = belongs_to(kafka, 0, "bad")
        configured = settings(policy=policy, **SET_ASIDE)
        for seq in (1, 3):
            send_to(kafka, 0, bad, seq)
        async with running(kafka, configured) as app:
            await until(lambda: app.status.tasks[P0].counts.open == 2)
        sink = Refusing(kafka, bad)
        here, there, came = list[str](), list[str](), list[str]()

        def come_beside() -> None:
            if beside == "a command":
                nobody = belongs_to(kafka, 0, "nobody").encode()
                command = Command(b"c", Verb.CANCEL, nobody, "w")
                kafka.append("D.commands", nobody, None, command_headers(command), partition=0)
            elif beside == "many records":
                here.extend(belongs_to(kafka, 0, f"many{number}-") for number in range(700))
                for name in here:
                    send_to(kafka, 0, name, 1, end=True)
            came.append(beside)

        with pytest.MonkeyPatch.context() as patch:
            raised = plant(patch, bad.encode())
            patch.setattr(GroupFaults, "why_not_without", calling(GroupFaults.why_not_without, raised, come_beside))
            async with running(kafka, configured, sink=sink) as app:
                kafka.clock.now += 101
                await until(lambda: came)
                for number in range(10):
                    here.append(belongs_to(kafka, 0, f"here{number}-"))
                    there.append(belongs_to(kafka, 1, f"there{number}-"))
                    for tp, name in enumerate((here[-1], there[-1])):
                        send_to(kafka, tp, name, 1, end=True)
                    await until(lambda: there[-1] in ids(kafka))
                    kafka.clock.now += 500
                if blocks:
                    await until(lambda: P0 in app.status.blocked)
                else:
                    await until(lambda: {*here} <= {*ids(kafka)})
                    await until(lambda: len(app.status.tasks[P0].groups_alone) == 1)
                    assert app.status.blocked == {}
                    assert [each.command_id for each in answers(kafka)] == ["c"] * (beside == "a command")
                assert 0 < sink.refusals <= most
        async with running(kafka, configured) as app:  # mended
            await until(lambda: {*here, *there} <= {*ids(kafka)})
            kafka.clock.now += 100_000
            await until(lambda: bad in ids(kafka) or len(told(kafka, bad)) == 2)
        assert len({*ids(kafka)}) == len(ids(kafka))
        assert kafka.topic("D.rejected") == []

    test()


@in_a_loop
async def test_a_close_that_is_refused_of_a_group_that_cannot_be_restored_blocks_and_the_group_keeps_its_rule() -> None:
    kafka, bad = MemoryKafka(partitions=1), "low-stock/France"
    routed.send(kafka, "France", 4)
    async with routed.running(kafka) as app:
        await until(lambda: routed.held(app) == 4)
    refused = list[bytes]()
    real = MemorySink.write

    def write(sink: Any, plans: Sequence[Plan], token: Any) -> None:
        for plan in plans:
            if any(each.topic == "D.errors" for each in plan.outputs):
                refused.append(bad.encode())
                raise Refused("TOPIC_AUTHORIZATION_FAILED", plan.tp, None)
        real(sink, plans, token)

    with pytest.MonkeyPatch.context() as patch:
        plant_in(Group, "rule", of_group)(patch, bad.encode())
        patch.setattr(MemorySink, "write", write)
        async with routed.running(kafka, set_aside_per_minute=10) as app:
            await routed.until_as_time_goes_by(kafka, lambda: app.status.blocked)
            routed.send(kafka, "France", 1)
            await routed.until_as_time_goes_by(kafka, lambda: routed.components(kafka) == 5)
            assert len(refused) < 6
    async with routed.running(kafka) as app:  # mended
        await routed.until_as_time_goes_by(kafka, lambda: rules_of(app) == [(bad.encode(), "low-stock", 5)])
        assert (told(kafka, bad), kafka.topic("D.rejected")) == ([], [])


class Unheard(MemorySink):
    """Commits the close of one group, and does not learn of it."""

    def __init__(self, kafka: MemoryKafka, bad: str) -> None:
        super().__init__(kafka, settings().transactional_id)
        self.left = [bad.encode()]

    def write(self, plans: Sequence[Plan], token: Any) -> None:
        super().write(plans, token)
        if any(each.topic == "D.errors" and each.key in self.left for plan in plans for each in plan.outputs):
            self.left.clear()
            raise Doubt("no answer to the commit")


@in_a_loop
async def test_after_a_close_that_was_committed_unheard_the_next_group_of_the_same_id_is_delivered() -> None:
    """Once the id is forgotten it opens under the same generation."""
    kafka = MemoryKafka()
    bad, other = (belongs_to(kafka, 0, name) for name in ("bad", "other"))
    configured = settings(policy=replace(EXPIRING, closed_retention_ms=1_000), **SET_ASIDE)
    send_to(kafka, 0, bad, 1)
    sink = Unheard(kafka, bad)
    async with running(kafka, configured, sink=sink) as app:
        await until(lambda: app.status.tasks[P0].counts.open == 1)
        with pytest.MonkeyPatch.context() as patch:
            plant_in(partition, "decide_due", of_situation)(patch, bad.encode())
            kafka.clock.now += 101
            await until(lambda: not sink.left)
        kafka.clock.now += 10_000
        send_to(kafka, 0, other, 1, end=True)
        await until(lambda: ids(kafka) == [other])
        send_to(kafka, 0, bad, 1, end=True)
        await until(lambda: bad in ids(kafka) or len(told(kafka, bad)) > 1)
        assert ({*ids(kafka)}, told(kafka, bad)) == ({other, bad}, [FAULT])


@pytest.mark.parametrize("error", [MemoryError, TimeoutError])
@pytest.mark.parametrize("is_command", [False, True])
def test_a_record_or_command_that_asks_for_too_much_is_at_fault_itself(
    error: type[Exception], is_command: bool
) -> None:
    """One that takes more memory than there is blocks nobody."""
    verdict = "decide_command" if is_command else "decide_arrival"
    of = (lambda command, *_: command.group_id) if is_command else (lambda arrival, now: arrival.marks.id)

    @in_a_loop
    async def test() -> None:
        kafka = MemoryKafka()
        bad, good = (belongs_to(kafka, 0, name) for name in ("bad", "good"))
        send_to(kafka, 0, good, 1)
        if is_command:
            command = Command(b"c", Verb.CANCEL, bad.encode(), "w")
            kafka.append("D.commands", bad.encode(), None, command_headers(command), partition=0)
        else:
            send_to(kafka, 0, bad, 1)
        send_to(kafka, 0, good, 2, end=True)
        with pytest.MonkeyPatch.context() as patch:
            plant_in(partition, verdict, of, error)(patch, bad.encode())
            patch.setattr(partition, "process_rows", lambda _, columns, on_record: [*map(on_record, columns.records)])
            async with running(kafka, settings(**SET_ASIDE)) as app:
                await until(lambda: ids(kafka) == [good])
                await until(lambda: answers(kafka) if is_command else kafka.topic("D.rejected"))
                assert app.status.blocked == {}
        if is_command:
            assert not answers(kafka)[0].done

    test()


class RefusingGivenUp(MemorySink):
    """A broker that refuses each record of D.errors for what it is, also one with the reasons alone, and names it."""

    def write(self, plans: Sequence[Plan], token: Any) -> None:
        for plan in plans:
            for each in plan.outputs:
                if each.topic == "D.errors":
                    raise Refused("INVALID_RECORD", plan.tp, each)
        super().write(plans, token)


@in_a_loop
async def test_a_group_whose_reasons_alone_are_refused_stands_alone_and_the_others_go_on() -> None:
    """That record has no id: it was taken for one of the sound record in hand, at which the partition blocked."""
    kafka = MemoryKafka()
    bad, configured = belongs_to(kafka, 0, "bad"), settings(policy=EXPIRING, **SET_ASIDE)
    for seq in (1, 3):
        send_to(kafka, 0, bad, seq)
    async with running(kafka, configured) as app:
        await until(lambda: app.status.tasks[P0].counts.open == 2)
    with pytest.MonkeyPatch.context() as patch:
        plant_in(partition, "decide_due", of_situation)(patch, bad.encode())
        sink = RefusingGivenUp(kafka, settings().transactional_id)
        async with running(kafka, configured, sink=sink) as app:
            kafka.clock.now += 101
            began = kafka.clock.now
            good = [belongs_to(kafka, 0, f"good{number}-") for number in range(5)]
            for each in good:
                send_to(kafka, 0, each, 1, end=True)
                kafka.clock.now += 500
            await until(lambda: {*ids(kafka)} >= {*good})
            await until(lambda: len(app.status.tasks[P0].groups_alone) == 1)
            assert not app.status.blocked
            (alone,) = groups_view(app.status, kafka.clock.now)["destinations"]["D"]["0"]["groups_alone"]
            assert began <= alone["since"] <= kafka.clock.now
            assert (alone["id"], alone["generation"], alone["topic"]) == (bad, 1, "D.errors")
            assert alone["why"] == "a broker refuses it: INVALID_RECORD"


class RefusingBySource(MemorySink):
    """A broker that takes no record for `D.errors` with these sources, or none at all. As of a real one it is known which record it was once records are written one by one, which they are for a while after a refusal."""

    def __init__(self, kafka: MemoryKafka) -> None:
        super().__init__(kafka, settings().transactional_id)
        self.sources: set[bytes] | None = None
        self.search_until = -1

    def write(self, plans: Sequence[Plan], token: Any) -> None:
        now = self.kafka.clock.now
        for plan in plans:
            for each in plan.outputs:
                source = dict(each.headers).get("uow-source") or b""
                if each.topic == "D.errors" and (self.sources is None or source in self.sources):
                    is_searching, self.search_until = now < self.search_until, now + 30_000
                    raise Refused("INVALID_RECORD", plan.tp if is_searching else None, each if is_searching else None)
        super().write(plans, token)


def given_up(kafka: MemoryKafka) -> list[bytes | None]:
    """Where the components come from that are in `D.errors`, also if only the reasons are."""
    return [dict(record.headers() or [])["uow-source"] for record in kafka.topic("D.errors")]


@in_a_loop
async def test_of_groups_that_are_closed_together_only_the_one_whose_record_errors_refuses_stands_alone() -> None:
    """A record of the reasons alone has neither key nor id: all groups of its plan were taken for its own, at each try."""
    kafka, configured = MemoryKafka(), settings(policy=EXPIRING, **SET_ASIDE)
    bad, worse = (belongs_to(kafka, 0, name) for name in ("bad", "worse"))
    for each in (worse, bad):
        send_to(kafka, 0, each, 1)
    async with running(kafka, configured) as app:
        await until(lambda: app.status.tasks[P0].counts.open == 2)
    number = 0

    async def go_on(app: Any, ms: int) -> None:
        nonlocal number
        for wait in (ms, 500, 500):
            kafka.clock.now += wait
            number += 1
            good = belongs_to(kafka, 0, f"good{number}-")
            send_to(kafka, 0, good, 1, end=True)
            await until(lambda good=good: good in ids(kafka))
        assert not app.status.blocked

    with pytest.MonkeyPatch.context() as patch:
        real = partition.decide_due

        def failing(now: Any, *rest: Any) -> Any:
            if now.group.id.decode() in (bad, worse):
                raise ArithmeticError("a defect at two groups")
            return real(now, *rest)

        patch.setattr(partition, "decide_due", failing)
        sink = RefusingBySource(kafka)
        async with running(kafka, configured, sink=sink) as app:
            await go_on(app, 101)
            await until(lambda: len(app.status.tasks[P0].groups_alone) == 2)
            sink.sources = {b"D.components/0/0"}
            await go_on(app, 310_000)
            await until(lambda: given_up(kafka) == [b"D.components/0/1"])
            await until(lambda: len(app.status.tasks[P0].groups_alone) == 1)
            sink.sources = set()
            await go_on(app, 310_000)
            await until(lambda: given_up(kafka) == [b"D.components/0/1", b"D.components/0/0"])
            assert len(app.status.tasks[P0].groups_alone) == 0


def test_a_topic_that_takes_no_group_costs_few_restores_however_many_groups_there_are() -> None:
    """Each group that is told apart costs two, and all partitions of the worker are restored each time."""

    class TakesNone(MemorySink):
        refused, search_until = 0, -1.0

        def write(self, plans: Sequence[Plan], token: Any) -> None:
            for plan in plans:
                for each in plan.outputs:
                    if each.topic == "D.errors":
                        is_told = self.kafka.clock.now < self.search_until
                        self.search_until = self.kafka.clock.now + 30_000
                        self.refused += 1
                        raise Refused("POLICY_VIOLATION", plan.tp if is_told else None, each if is_told else None)
            super().write(plans, token)

    @in_a_loop
    async def test() -> None:
        kafka, count = MemoryKafka(), 16
        bad = [belongs_to(kafka, 0, f"bad-{number}-") for number in range(count)]
        for each in bad:
            send_to(kafka, 0, each, 1)
        sink = TakesNone(kafka, settings().transactional_id)
        async with running(kafka, settings(policy=SLOW, **SET_ASIDE), sink=sink) as app:
            await until(lambda: app.status.tasks[P0].counts.open == count)
            faults = app.status.tasks[P0].context.faults.of(P0)
            for each in bad:
                faults[each.encode(), 1] = GroupFault(InternalError("a defect"), Treatment.CLOSED)

            def all_alone() -> bool:
                kafka.clock.now += 5
                return len(faults.alone) == count

            await until(all_alone)
            assert sink.refused < count
            assert app.status.blocked == {}

    test()
