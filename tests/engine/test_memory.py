"""What open groups cost in memory: the estimate that `memory_limit_bytes` is compared with, and numbers that must cost nothing (ER-19)."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import pytest

from tests.core.rule_script import Table, r, row
from tests.core.script import T0, Story, c, context_of, policy_of, told
from tests.core.test_by_rule_collections import source
from tests.core.test_fan_in import gathering, manifest
from tests.core.test_generations import MANY
from tests.core.test_quorum import asked
from tests.engine.test_by_rule_restored import new_task
from tests.fake_record import INPUT, FakeRecord
from uow.processor.core.changes import Closed
from uow.processor.core.closed import ClosedMemory, CommandMemory, memory_of
from uow.processor.core.strays import Stray, Strays
from uow.processor.engine.replayable import NO_REPLAY, ReplayLimits
from uow.processor.engine.rows import take_strays
from uow.processor.engine.task import PartitionTask
from uow.processor.rules.conditions import MAX_CALENDARS
from uow.schemas.fingerprint import id_fingerprints
from uow.schemas.records import Reason, UnitOutcome, rule_changelog_key
from uow.topics.manifests import MAX_WEIGHT
from uow.topics.path_map import PathMap, claim_key, claim_value
from uow.topics.policies import ExpirationPolicy, LatePolicy
from uow.topics.rules import OnRuleChange, Release

GROUPS = 2_000


@contextmanager
def traced() -> Iterator[list[int]]:
    """(bytes left, bytes at the peak) of what is allocated inside."""
    found: list[int] = []
    gc.collect()
    tracemalloc.start()
    try:
        yield found
        gc.collect()
        found += tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("replay", [NO_REPLAY, ReplayLimits(100_000, 1 << 26, 60_000)], ids=["changelog", "replay"])
@pytest.mark.parametrize("age", [-1, 10_000_000])
@pytest.mark.parametrize("components", [1, 4, 50])
def test_estimate_is_what_groups_take(components: int, age: int, replay: ReplayLimits) -> None:
    """A million groups of one small component are ten times their bytes."""
    task = PartitionTask(INPUT, context_of(policy_of(incomplete_expiration_ms=age), replay=replay))
    groups = GROUPS // components
    with traced() as found:
        for group in range(groups):
            key = b"group-%06d" % group
            said = [
                [("uow-id", key), ("uow-seq", b"%d" % (seq + 1)), ("uow-end", b"false")] for seq in range(components)
            ]
            first = group * components
            task.process([FakeRecord(first + n, each, b"v" * 20, key, 1_000, INPUT) for n, each in enumerate(said)])
    assert len(task.groups) == groups
    assert 0.6 < found[0] / task.memory_bytes < 1.4, f"{found[0] / groups:.0f} bytes a group"


@pytest.mark.parametrize("size", [1, 200])
def test_estimate_is_what_pieces_of_components_take_b124(size: int) -> None:
    """They come in any order, so that each is a span of its own; half of them are of one component."""
    task = PartitionTask(INPUT, context_of(policy_of()))
    with traced() as found:
        for offset in range(GROUPS):
            place = GROUPS * size - (offset // 2) * 2 * size
            said = [("uow-id", b"a"), ("uow-seq", b"%d" % (1 + offset % 2 * offset)), ("uow-segment-at", b"%d" % place)]
            task.process([FakeRecord(offset, said, b"v" * size, b"a", 1_000, INPUT)])
    assert task.groups[b"a"].record_count == GROUPS
    assert 0.6 < found[0] / task.memory_bytes < 1.4, f"{found[0] / GROUPS:.0f} bytes a piece"


class Noon:
    """A calendar (B-206)."""

    def deadline(self, opened_at: int) -> int:
        return opened_at + 10_000_000


@pytest.mark.parametrize("calendars", [0, MAX_CALENDARS])
@pytest.mark.parametrize("components", [1, 4, 50])
def test_estimate_is_what_groups_by_rule_take(components: int, calendars: int) -> None:
    """Each keeps the ids of its components, and what its conditions look at (line 10, B-38)."""
    limits = row("*", complete_count=100, age_ms=10_000_000)
    table = Table(replace(limits, calendars=tuple([(str(number), Noon()) for number in range(calendars)])))
    task = PartitionTask(INPUT, context_of(policy_of(), rules=table))
    groups = GROUPS // components
    with traced() as found:
        for group in range(groups):
            key, first = b"low-stock/%06d" % group, group * components
            said = [
                [
                    ("uow-id", key),
                    ("uow-rule", b"low-stock/*@1"),
                    ("uow-input", b"stock.events/0/%d" % (first + n)),
                    ("uow-arrived-at", b"%d" % T0),
                ]
                for n in range(components)
            ]
            task.process([FakeRecord(first + n, each, b"v" * 20, key, T0, INPUT) for n, each in enumerate(said)])
    assert len(task.groups) == groups
    assert 0.6 < found[0] / task.memory_bytes < 1.4, f"{found[0] / groups:.0f} bytes a group"


@pytest.mark.parametrize("keys", [1, GROUPS])
def test_estimate_is_what_components_without_a_group_take_and_nothing_stays_of_those_that_join_one_b72(
    keys: int,
) -> None:
    lone = Story(new_task(table=Table(row("UK", complete_count=9))))
    lone.send(r("UK", at=0))
    (_, value), *_ = lone.plans[0].changelog
    assert value is not None

    def found_alone() -> list[Stray]:
        places = [(b"low-stock/%06d" % (number % keys), number // keys + 1) for number in range(GROUPS)]
        return take_strays({rule_changelog_key(*each, 1): value for each in places})

    task = PartitionTask(INPUT, context_of(policy_of()))
    before = task.memory_bytes
    with traced() as found:
        task.restore_strays(found_alone())
    estimate = task.memory_bytes - before - GROUPS * len(value)  # here all have one row
    assert 0.6 < found[0] / estimate < 1.4, f"{found[0] / GROUPS:.0f} bytes a component"
    emptied = Strays()
    with traced() as found:
        for each in found_alone():
            emptied.take(each)
        for each in [*emptied.values()]:
            emptied.let_go(each)
        del each  # the last one
    assert found[0] < 200 * GROUPS, f"{found[0] / GROUPS:.0f} bytes a component"  # the tables of a dict never shrink


@pytest.mark.parametrize("groups", [2, 500])
@pytest.mark.parametrize("components", [1, 20])
def test_estimate_is_what_several_groups_of_a_key_take(components: int, groups: int) -> None:
    """They wait for their release: of each key there is an account of who has which component."""
    limits = row("*", complete_count=components, rule={"release": Release.HOLD_ALL})
    task = PartitionTask(INPUT, context_of(policy_of(), rules=Table(limits)))
    keys = max(1, 2 * GROUPS // components // groups)
    with traced() as found:
        for first in range(keys * groups * components):
            key = b"low-stock/%06d" % (first % keys)
            said = [
                ("uow-id", key),
                ("uow-rule", b"low-stock/*@1"),
                ("uow-input", b"stock.events/0/%d" % first),
                ("uow-arrived-at", b"%d" % T0),
            ]
            task.process([FakeRecord(first, said, b"v" * 20, key, T0, INPUT)])
    assert (len(task.groups), len(task.partition.several)) == (keys * groups, keys)
    assert 0.6 < found[0] / task.memory_bytes < 1.4, f"{found[0] / keys / groups:.0f} bytes a group"


def of_source(offset: int, key: bytes, name: str) -> FakeRecord:
    """A component of a collection."""
    said = [
        ("uow-id", key),
        ("uow-rule", b"low-stock/*@1"),
        ("uow-input", b"stock.events/0/%d" % offset),
        ("uow-arrived-at", b"%d" % T0),
        ("uow-source-name", name.encode()),
    ]
    return FakeRecord(offset, said, b"v" * 20, key, T0, INPUT)


@pytest.mark.parametrize("rounds", [1, 9])
def test_estimate_is_what_keys_take_of_which_large_groups_closed(rounds: int) -> None:
    """Each key always has one small group open; of the large ones that close nothing stays but what is remembered."""
    size, keys = 100, [b"low-stock/%06d" % number for number in range(10)]
    sources = (source("A"), source("B", size))
    offsets = count()
    task = PartitionTask(INPUT, context_of(policy_of(), rules=Table(row("*", sources=sources, rule=MANY))))
    with traced() as found:
        for number in range(rounds):
            for key in keys:
                task.process([of_source(next(offsets), key, "B") for _ in range(size - (number > 0))])
                task.process([of_source(next(offsets), key, "B")])
                task.process([of_source(next(offsets), key, "A")])
    assert (len(task.groups), len(task.partition.several)) == (len(keys), len(keys))
    taken, counted = found[0] - task.partition.closed.memory_bytes, task.memory_bytes
    assert taken < 2.5 * counted, f"{taken:.0f} bytes taken, {counted} counted"


@pytest.mark.parametrize("sources", [2, 31])
def test_estimate_is_what_groups_of_a_key_take_that_wait_for_many_sources(sources: int) -> None:
    """Each source is asked about: of each there is an account until when which group takes its components."""
    named = (source("first"), *[source(f"s{number}", 2) for number in range(1, sources)])
    task = PartitionTask(INPUT, context_of(policy_of(), rules=Table(row("*", sources=named, rule=MANY))))
    names = ["first"] * 400 + [each.source_name for each in named[1:]] + ["first"] * 400
    with traced() as found:
        for offset, name in enumerate(names):
            task.process([of_source(offset, b"low-stock/x", name)])
    assert len(task.groups) == 800
    assert 0.6 < found[0] / task.memory_bytes < 1.4, f"{found[0] / 800:.0f} bytes a group"


def test_estimate_is_what_groups_take_that_were_offered_many_versions_b13() -> None:
    rule = MANY | {"on_rule_change": OnRuleChange.LIVE}
    several = [row("*", n, sources=(source("A"), source("B", 10**6)), rule=rule | {"version": n}) for n in range(1, 30)]
    task = PartitionTask(INPUT, context_of(policy_of(), rules=Table(*several)))
    with traced() as found:
        for offset in range(300):
            task.process([of_source(offset, b"low-stock/x", "A")])
        for version in range(2, 30):
            record = of_source(1_000 + version, b"low-stock/x", "B")
            said = [
                (name, b"low-stock/*@%d" % version if name == "uow-rule" else value) for name, value in record.headers()
            ]
            task.process([FakeRecord(1_000 + version, said, b"v", b"low-stock/x", T0, INPUT)])
    assert 0.6 < found[0] / task.memory_bytes < 1.4, f"{found[0] / 300:.0f} bytes a group"


@pytest.mark.parametrize("weight", [1, MAX_WEIGHT])
def test_estimate_is_what_manifests_take_b209(weight: int) -> None:
    """Each of 500 requests: their text, and their weights where they have any."""
    story = Story(PartitionTask(INPUT, context_of(policy_of(), rules=Table(gathering()))))
    with traced() as found:
        for number in range(40):
            story.task.process(
                [], [story.command(manifest(asked(*[weight] * 500, topic=None), at=0, id=f"low-stock/trip/{number}"))]
            )
    assert len(story.task.groups) == 40
    assert 0.6 < found[0] / story.task.memory_bytes < 1.4, f"{found[0] / 20_000:.0f} bytes a request"


@pytest.mark.parametrize("components", [1, 20])
def test_estimate_is_what_units_take_that_may_be_corrected_b205(components: int) -> None:
    story = Story(PartitionTask(INPUT, context_of(policy_of(late_policy=LatePolicy.AMEND))))
    with traced() as found:
        for group in range(GROUPS // components):
            story.send([c(seq + 1, id=f"group-{group:06}", value="v" * 20) for seq in range(components)])
            story.send(told("release", id=f"group-{group:06}"))
            story.plans.clear()
            story.lying.clear()
    assert story.task.correctable_units == GROUPS // components
    assert 0.6 < found[0] / story.task.remembered_bytes < 1.4, f"{found[0] / GROUPS * components:.0f} bytes a unit"


@pytest.mark.parametrize("policy", [ExpirationPolicy.REDIRECT, ExpirationPolicy.DELIVER_PARTIAL])
def test_one_component_of_the_highest_number_costs_no_more_than_any_other(policy: ExpirationPolicy) -> None:
    """W-20: held, an end above it refused, given up with its missing numbers told."""
    story = Story(PartitionTask(INPUT, context_of(policy_of(incomplete_expiration_ms=1_000, expiration_policy=policy))))
    with traced() as found:
        story.send(c(2_147_483_647, end=True, at=0), c(2_147_483_646, at=1))
        outputs = story.send(c(1, id="b", at=100))
        assert outputs
    assert not story.task.groups.keys() - {b"b"}
    assert found[1] < 200_000


def closed(number: int, long: bool, prints: int, components: int = 0) -> Closed:
    name = b"group-%06d" % number + b"x" * (240 * long)
    kept = id_fingerprints(name, [b"%d" % each for each in range(components)]) if components else bytes(prints)
    return Closed(name, 1, UnitOutcome.COMPLETE, Reason.END, 1_000 + number, 2_000 + number, T0 + number, kept)


@pytest.mark.parametrize(("prints", "components"), [(0, 0), (400, 0), (8_000, 0), (0, 1), (0, 30)])
@pytest.mark.parametrize("long", [False, True])
def test_estimate_is_what_closed_ids_take(long: bool, prints: int, components: int) -> None:
    """With fingerprints of values, or of the ids of components alone, which are found in whichever unit they are (B-38)."""
    memory = ClosedMemory(3_600_000, 1_000_000)
    with traced() as found:
        for number in range(GROUPS // max(1, components)):
            memory.add(closed(number, long, prints, components))
        memory.trim(T0)
    assert 0.6 < found[0] / memory.memory_bytes < 1.4, f"{found[0] / GROUPS:.0f} bytes an id"


def test_what_closed_ids_take_is_known_whatever_becomes_of_them() -> None:
    memory = ClosedMemory(1_000, 50)
    for number in range(100):
        memory.add(closed(number, False, 40))
    memory.replace(closed(99, False, 40), closed(99, False, 0))  # another value: not there
    memory.replace(memory.by_id[b"group-000099"], closed(99, False, 0))
    memory.trim(T0)
    assert len(memory) == 50
    assert memory.memory_bytes == sum(map(memory_of, memory.order))
    assert memory.shrink(0) is None
    youngest = memory.shrink(memory.memory_bytes // 2)
    assert youngest is not None
    assert min(each.at for each in memory) == youngest.at + 1
    assert memory.memory_bytes == sum(map(memory_of, memory.order))
    memory.shrink(10**9)
    assert (len(memory), memory.memory_bytes) == (0, 0)


def test_components_are_known_as_long_as_a_unit_is_remembered_that_has_them_b38() -> None:
    """One that fails while it is written is not delivered (W-115)."""
    memory = ClosedMemory(1_000, 50)
    for at in (1, 500):
        unit = closed(1, False, 0, 2)._replace(at=at)
        memory.add(unit)
    known = []
    for clock in (1_001, 1_002, 1_501):
        memory.trim(clock)
        known.append((memory.has(unit.id, b"0"), memory.has(unit.id, b"2"), memory.has(b"other", b"0")))
    assert known == [(True, False, False)] * 2 + [(False, False, False)]
    memory.add(unit)
    memory.replace(unit, unit._replace(outcome=UnitOutcome.FAILED, prints=b""))
    assert not memory.has(unit.id, b"0")


@pytest.mark.parametrize("length", [10, 250])
def test_estimate_is_what_commands_take(length: int) -> None:
    memory = CommandMemory(3_600_000, 1_000_000)
    with traced() as found:
        for number in range(GROUPS):
            memory.add(b"%0*d" % (length, number), T0 + number)
    assert 0.6 < found[0] / memory.memory_bytes < 1.4, f"{found[0] / GROUPS:.0f} bytes a command"
    memory.shrink(memory.memory_bytes // 2)
    assert GROUPS * 0.4 < len(memory.at_by_id) < GROUPS * 0.6


def test_commands_that_were_too_many_leave_nothing_behind() -> None:
    memory = CommandMemory(3_600_000, 100)
    for number in range(20_000):
        memory.add(b"%d" % number, T0)
    assert len(memory._by_age) < 2_000
    assert [*memory.at_by_id] == [b"%d" % number for number in range(19_900, 20_000)]


@pytest.mark.parametrize("claims", [1, 5])
@pytest.mark.parametrize("length", [10, 250])
def test_estimate_is_what_a_path_map_takes(length: int, claims: int) -> None:
    paths = PathMap(4)
    with traced() as found:
        for number in range(GROUPS):
            for nonce in range(claims):
                paths.read(claim_key(b"%0*d" % (length, number), nonce.to_bytes(16, "big")), claim_value(1), T0)
    assert 0.6 < found[0] / paths.memory_bytes < 1.4, f"{found[0] / GROUPS:.0f} bytes an id"


def test_groups_that_closed_and_wait_in_line_are_counted() -> None:
    """One that stays open keeps all behind it in the queue of replayable ones."""
    task = PartitionTask(
        INPUT, context_of(policy_of(incomplete_expiration_ms=10_000_000), replay=ReplayLimits(100_000, 1 << 26, 60_000))
    )

    def send(first: int, *names: bytes, end: bytes) -> None:
        said = [[("uow-id", name), ("uow-seq", b"1"), ("uow-end", end)] for name in names]
        task.process([FakeRecord(first + n, each, b"v", b"k", 1_000, INPUT) for n, each in enumerate(said)])

    send(0, b"open", end=b"false")
    with traced() as found:
        for number in range(50):
            send(1 + 200 * number, *(b"g%d" % (200 * number + n) for n in range(100)), end=b"false")
            task.process(
                [
                    FakeRecord(
                        101 + 200 * number + n,
                        [("uow-id", b"g%d" % (200 * number + n)), ("uow-seq", b"2"), ("uow-end", b"true")],
                        b"v",
                        b"k",
                        1_000,
                        INPUT,
                    )
                    for n in range(100)
                ]
            )
    assert len(task.groups) == 1
    counted = task.memory_bytes + task.remembered_bytes
    assert 0.5 < found[0] / counted < 1.5, f"{found[0] / GROUPS:.0f} bytes a group"
