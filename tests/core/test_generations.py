"""Several open groups of one key: the answers of `Generations` are those of a look at every group, and cost nothing of the kind (B-38, B-99, B-104)."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.rule_script import Table, r, row
from tests.core.script import c, clock, story, told
from tests.core.test_by_rule_collections import source
from tests.core.test_by_rule_live import changed
from tests.core.test_by_rule_release import released
from tests.core.test_linear_costs import check_linear
from uow.processor.core.gathered import Facts, satisfied_at
from uow.processor.core.group import Group
from uow.processor.core.partition_state import PartitionState
from uow.topics.grouping import GroupPolicy
from uow.topics.rules import AtWaitingLimit, Cardinality, OnRuleChange, Release, WaitFrom

MANY: dict[str, Any] = {"cardinality": Cardinality.MANY}
KEY: dict[str, Any] = {"id": "low-stock/x"}


class Scan:
    """The same answers by a look at every open group of a key, as the specification says it."""

    @staticmethod
    def groups(state: PartitionState, key: bytes) -> list[Group]:
        found = [each for each in state.groups.values() if each.id == key]
        return sorted(found, key=lambda each: each.generation)

    @staticmethod
    def holder(state: PartitionState, key: bytes, component_id: bytes) -> Group | None:
        groups = Scan.groups(state, key)
        return next((each for each in groups if each.ruled and component_id in each.ruled.component_ids), None)

    @staticmethod
    def taker(state: PartitionState, key: bytes, facts: Facts) -> Group | None:
        for group in Scan.groups(state, key):
            if group.ruled is None or group.ruled.waits_since or group.closes_at(state.policy) <= facts.arrival:
                continue
            sources = [each for each in group.ruled.policy.sources if each.source_name == facts.source]
            if facts.source is None or any(
                satisfied_at(each, group.ruled.gathered) > facts.arrival for each in sources
            ):
                return group
        return None

    @staticmethod
    def oldest(state: PartitionState, key: bytes) -> Group | None:
        return next(iter(Scan.groups(state, key)), None)

    @staticmethod
    def followers(state: PartitionState, key: bytes, _: GroupPolicy) -> list[Group]:
        return Scan.groups(state, key)

    @staticmethod
    def newest(state: PartitionState, key: bytes) -> int:
        return max([each.generation for each in Scan.groups(state, key)], default=0)

    @staticmethod
    def settle(state: PartitionState, key: bytes) -> None:
        groups = [
            each for each in Scan.groups(state, key) if not (each.ruled and each.ruled.waits_since and each.assigns)
        ]
        if groups:
            state.bring(groups[-1])
        else:
            state.put_aside(key)


VERSIONS = (1, 1, 1, 2, 2, 3, 4, 5, 6)
ANSWERS = ("holder", "taker", "oldest", "followers", "newest", "settle")
SOURCES = (
    source("A"),
    source("B", 2, 40),
    source("C", None, 20),
    source("D", 3, 60, wait_from=WaitFrom.GROUP),
)


def draw_row(rnd: Random, version: int) -> GroupPolicy:
    rule = MANY | {
        "version": version,
        "on_rule_change": rnd.choice(list(OnRuleChange)),
        "release": rnd.choice(list(Release)),
        "max_waiting": rnd.choice([None, None, 2]),
        "at_waiting_limit": rnd.choice(list(AtWaitingLimit)),
        "max_open_groups": rnd.choice([None, 7]),
    }
    limits: dict[str, Any] = {"age_ms": rnd.choice([None, 30, 500]), "idle_ms": rnd.choice([None, 25])}
    if rnd.random() < 0.3:
        return row("UK", version, rule=rule, complete_count=rnd.choice([1, 2, 3]), **limits)
    return row("UK", version, rule=rule, sources=SOURCES[: rnd.randrange(2, 5)], **limits)


def draw_steps(rnd: Random, length: int) -> list[Any]:
    now = 0.0
    steps: list[Any] = []
    for number in range(length):
        now += rnd.choice([0, 0, 0.001, 0.01, 0.05])
        key = f"low-stock/{rnd.choice('xxy')}"
        kind = rnd.random()
        if kind < 0.8:
            name = rnd.choice("AAABBCD")
            steps.append(
                r(
                    "UK",
                    id=key,
                    version=rnd.choice(VERSIONS),
                    source_name=name,
                    at=now,
                    arrived=now - rnd.choice([0, 0, 0.005, 0.03, 0.2]),
                    input=f"in/0/{number if rnd.random() < 0.9 else rnd.randrange(number + 1)}",
                    value=f"{name}{number}",
                )
            )
        elif kind < 0.86:
            steps.append(clock(now))
        elif kind < 0.9:
            steps.append(released(at=now, command_id=f"all {number}"))
        else:
            verb = rnd.choice(["release", "cancel", "expire", "extend", "remove", "erase", "fail"])
            seq = rnd.randrange(1, 4) if verb in ("remove", "erase") else None
            until = now + 0.1 if verb == "extend" else None
            steps.append(
                told(
                    verb,
                    id=key,
                    seq=seq,
                    until=until,
                    at=now,
                    generation=rnd.choice([0, 1, 2, 5]),
                    command_id=f"{verb} {number}",
                )
            )
    if rnd.random() < 0.5:
        steps.insert(rnd.randrange(length), changed())
    return steps


def lived(rows: list[GroupPolicy], steps: list[Any], poll: int) -> Any:
    played = story(*steps, rules=Table(*rows), poll=poll)
    return [(each.topic, each.key, each.value, each.headers) for each in played.outputs], played.open, played.counts


def by_scan(play: Callable[[], Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for name in ANSWERS:
            patch.setattr(PartitionState, name, getattr(Scan, name))
        return play()


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 120), st.sampled_from([1, 7, 1000]))
def test_the_answers_are_those_of_a_look_at_every_group_b99(seed: int, length: int, poll: int) -> None:
    rnd = Random(seed)
    rows, steps = [draw_row(rnd, version) for version in {*VERSIONS}], draw_steps(rnd, length)
    expected = by_scan(lambda: lived(rows, steps, poll))
    assert lived(rows, steps, poll) == expected


def played(rows: list[GroupPolicy], steps: list[Any]) -> Callable[[], object]:
    return lambda: story(*steps, rules=Table(*rows), poll=10**6)


def component(number: int, name: str = "A", at: float = 0.0, **more: Any) -> Any:
    return r("UK", id="low-stock/x", source_name=name, at=at, input=f"in/0/{number}", **more)


def satisfied_by_count(count: int) -> Callable[[], object]:
    """Each component opens a group, whose source is satisfied; components of the other source go to the oldest."""
    steps = [component(number) for number in range(count)] + [
        component(count + number, "B") for number in range(count // 2)
    ]
    return played([row(sources=(source("A"), source("B", 2)), rule=MANY)], steps)


def satisfied_by_time(count: int) -> Callable[[], object]:
    """Each component comes after the wait of all groups before it."""
    rows = [row(sources=(source("A", None, 5), source("B")), rule=MANY)]
    return played(rows, [component(number, at=number / 100) for number in range(count)])


def sent_twice(count: int) -> Callable[[], object]:
    steps = [component(number) for number in range(count)]
    return played([row(sources=(source("A"), source("B")), rule=MANY)], steps + steps)


def waiting(cardinality: Cardinality) -> Callable[[int], Callable[[], object]]:
    """Each group is complete at once, and waits."""
    rows = [row(complete_count=1, rule={"release": Release.HOLD_ALL, "cardinality": cardinality})]
    return lambda count: played(rows, [component(number) for number in range(count)])


def of_a_live_row(count: int) -> Callable[[], object]:
    """Open groups take a later version once, and are not offered it with each component again."""
    rows = [
        row(
            "UK",
            version,
            sources=(source("A"), source("B")),
            rule=MANY | {"on_rule_change": OnRuleChange.LIVE, "version": version},
        )
        for version in (1, 2)
    ]
    steps = [component(number, version=1 + (number > count // 2)) for number in range(count)]
    return played(rows, steps)


def of_many_versions_in_turn(count: int) -> Callable[[], object]:
    """More than are remembered; each group has the latest version, and takes no earlier one."""
    rule = MANY | {"on_rule_change": OnRuleChange.LIVE}
    several = range(1, 10)
    rows = [
        row("UK", version, sources=(source("A"), source("B")), rule=rule | {"version": version}) for version in several
    ]
    return played(rows, [component(number, version=several[-1 - number % len(several)]) for number in range(count)])


def of_a_live_row_that_cannot_be_read(count: int) -> Callable[[], object]:
    """The later version lacks the source of what is held: the groups keep theirs, and are offered it once."""
    rule = MANY | {"on_rule_change": OnRuleChange.LIVE}
    rows = [
        row("UK", version, sources=sources, rule=rule | {"version": version})
        for version, sources in ((1, (source("A"), source("B"))), (2, (source("B"), source("C"))))
    ]
    steps = [component(number, "AC"[number > count // 2], version=1 + (number > count // 2)) for number in range(count)]
    return played(rows, steps)


def plain_beside_waiting(count: int) -> Callable[[], object]:
    """Plain components with the id of groups that wait."""
    rows = [row(complete_count=1, rule={"release": Release.HOLD_ALL})]
    return played(rows, [component(number) for number in range(count)] + [c(1, id="low-stock/x") for _ in range(count)])


def numbered_copies(count: int) -> Callable[[], object]:
    """One group of the key waits, and each of the others opens and closes."""
    rows = [row(sources=(source("A"), source("B")), rule=MANY)]
    steps = [component(0), component(1)]
    return played(rows, steps + [component(number, "AB"[number % 2]) for number in range(2, 2 * count)])


@pytest.mark.parametrize(
    "work",
    [
        *(satisfied_by_count, satisfied_by_time, sent_twice, waiting(Cardinality.ONE), waiting(Cardinality.MANY)),
        *(of_a_live_row, of_many_versions_in_turn, of_a_live_row_that_cannot_be_read),
        *(plain_beside_waiting, numbered_copies),
    ],
)
def test_a_component_costs_no_more_where_its_key_has_many_groups_b06(
    work: Callable[[int], Callable[[], object]],
) -> None:
    check_linear(work, 60)


@pytest.mark.parametrize(
    "work", [satisfied_by_count, satisfied_by_time, sent_twice, waiting(Cardinality.ONE), of_a_live_row]
)
def test_a_look_at_every_group_is_noticed(work: Callable[[int], Callable[[], object]]) -> None:
    """The check is worth something."""
    with pytest.raises(AssertionError):
        by_scan(lambda: check_linear(work, 60))


def test_a_state_with_several_groups_of_a_key_is_gone_while_the_cyclic_collector_is_off() -> None:
    """A worker collects only when it is idle, so what goes round in a circle would stay beside its successor."""
    steps = [component(number) for number in range(20)] + [component(20 + number, "B") for number in range(10)]
    gc.collect()
    gc.disable()
    try:
        run = story(*steps, rules=Table(row(sources=(source("A"), source("B")), rule=MANY)))
        kept = [weakref.ref(each) for each in run.task.partition.several.values()]
        assert len(kept) == 1
        run.task.let_go()
        assert [each() for each in kept] == [None]
    finally:
        gc.enable()


def test_closed_groups_of_a_key_are_let_go_of_at_once() -> None:
    """Of each key one group is open always; nobody holds those that closed, nor the ids of their components."""
    rows = [row(sources=(source("A"), source("B")), rule=MANY)]
    run = story(*[component(number) for number in range(20)], rules=Table(*rows))
    run.send(*[component(20 + number, "B", at=1 + number) for number in range(19)])
    run.plans.clear()
    gc.collect()
    assert len(run.task.groups) == 1
    (several,) = run.task.partition.several.values()
    held = [
        each for one in gc.get_referents(several) for each in (one, *gc.get_referents(one)) if isinstance(each, Group)
    ]
    assert {each.is_open for each in held} == {True}


@pytest.mark.parametrize("verb", ["remove", "erase", None])
def test_what_is_known_of_a_key_is_what_is_open(verb: str | None) -> None:
    """Components are taken out by command again and again, and groups closed: nothing of them stays."""
    run = story(component(0), rules=Table(row(sources=(source("A"), source("B", 3)), rule=MANY)))
    known = run.task.partition.known
    for number in range(1, 40):
        run.send(*[component(4 * number + each, name, at=number) for each, name in enumerate("AABB")])
        generation = min(each.generation for each in run.task.groups.values())
        if verb is not None:
            run.send(told(verb, seq=1, generation=generation, at=number, command_id=f"{verb} {number}", **KEY))
            assert run.answers[-1].done
        run.send(told("cancel", generation=generation, at=number, command_id=f"cancel {number}", **KEY))
    open_groups = [*run.task.groups.values()]
    assert known.components == sum(len(each.held) for each in open_groups) > 0
    for group in open_groups:
        run.send(told("cancel", generation=group.generation, command_id=f"last {group.generation}", **KEY))
    assert (run.open, run.task.partition.several) == ({}, {})
    assert (known.components, known.places, run.task.memory_bytes) == (0, 0, 0)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 120))
def test_what_is_known_is_counted_through_any_story(seed: int, length: int) -> None:
    rnd = Random(seed)
    rows, steps = [draw_row(rnd, version) for version in {*VERSIONS}], draw_steps(rnd, length)
    state = story(*steps, rules=Table(*rows)).task.partition
    keys = Counter(each.id for each in state.groups.values())
    held = Counter[bytes]()
    for each in state.groups.values():
        held[each.id] += 0 if each.ruled is None else len(each.ruled.component_ids)
    assert set(state.several) <= set(keys), "of keys without a group nothing is known"
    assert state.known.components == sum(held[key] for key in state.several)


def test_closed_groups_of_a_key_take_no_place_for_long() -> None:
    rows = [row(sources=(source("A"), source("B")), rule=MANY)]
    steps = [component(0), *[component(number, "AB"[number % 2]) for number in range(2, 1000)]]
    run = story(*steps, rules=Table(*rows))
    (several,) = run.task.partition.several.values()
    assert len(several.open_groups()) == 1
    assert len(several) < 12
