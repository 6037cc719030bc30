"""Conditions of new rows by which no group closes: none is refused by which the assembler does close one (B-15). The assembler itself is asked, by playing groups."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import product
from typing import Any, Final

import pytest

from tests.core.rule_script import Table, r, row
from tests.core.script import Clock, Sent, Told, clock, story
from tests.core.test_fan_in import gathering, manifest, reply
from tests.rules.low_stock import ROWS, RULE, TABLES
from uow.processor.rules.conditions import read_complete_when, read_give_up_when
from uow.processor.rules.possible import complaints_about_closing, may_close
from uow.processor.rules.rule_set import RuleSet
from uow.topics.conditions import (
    Age,
    AllOf,
    AnyOf,
    ByCommand,
    Bytes,
    Condition,
    Count,
    Idle,
    Not,
    PerSource,
    Predicate,
)
from uow.topics.grouping import Tally
from uow.topics.policies import DestinationPolicy, HandlingPolicy

MOST = 4
DESTINATIONS = {
    "supply": DestinationPolicy(handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY, max_components=1_000)
}


class IsMarked:
    """A predicate: one of the values begins with an m."""

    def measure(self, headers: object, value: bytes | None) -> tuple[Decimal, ...]:
        return (Decimal((value or b"").startswith(b"m")),)

    def holds(self, tallies: Sequence[Tally]) -> bool:
        return tallies[0].most > 0


MARKED: Final = Predicate("marked")
SIMPLE: Final[tuple[Condition, ...]] = (
    Count(1), Count(2), Count(3), Count(5), Bytes(3), Bytes(7), MARKED, Age(2_000), Age(5_000), Idle(2_000), ByCommand(), PerSource(),
)  # fmt: skip
LITERALS: Final[tuple[Condition, ...]] = (*SIMPLE, *map(Not, SIMPLE))
OF_TWO: Final[tuple[Condition, ...]] = (
    *LITERALS,
    *map(AllOf, product(LITERALS, LITERALS)),
    *[Not(AnyOf(pair)) for pair in product(LITERALS, LITERALS)],
)
FEW: Final = (Count(3), Not(Count(2)), MARKED, Not(MARKED), Age(2_000), Not(Age(2_000)), Not(ByCommand()))
NESTED: Final[tuple[Condition, ...]] = (
    *[AllOf((one, AnyOf((two, three)))) for one, two, three in product(FEW, FEW, FEW)],
    *[AllOf((one, Not(AllOf((two, three))))) for one, two, three in product(FEW, FEW, FEW)],
    *[AnyOf((AllOf((one, two)), AllOf((two, three)))) for one, two, three in product(FEW, FEW, FEW)],
)
PLAYS: Final[tuple[tuple[Sent | Clock | Told, ...], ...]] = (
    tuple(r(at=n, value="xxx") for n in range(MOST)),
    (r(at=0, value="much more"), r(at=3, value="x"), r(at=9, value="y"), clock(40)),
    (r(at=0, value="x"), r(at=1, value="y"), clock(3), clock(4), r(at=20, value="z"), clock(60)),
    (r(at=0, value="m"), clock(3), clock(30)),
    (r(at=0, value="m"), *[r(at=n, value="xxxx") for n in range(1, MOST)]),
)


def closes(condition: Condition) -> bool:
    """True if a group that is played closes by the condition, be it complete or given up."""
    common: dict[str, Any] = {"measures": [(MARKED.name, IsMarked())], "destination": {"max_components": MOST}}
    rows = row(complete_when=condition, **common), row(give_up_when=condition, **common)
    return any(story(*steps, rules=Table(each)).outputs for each in rows for steps in PLAYS)


@pytest.mark.parametrize("several", [OF_TWO, NESTED])
def test_nothing_is_refused_by_which_the_assembler_closes_a_group(several: tuple[Condition, ...]) -> None:
    refused = [each for each in several if not may_close(each, MOST, [PerSource])]
    assert len(refused) > 20
    assert [each for each in refused if closes(each)] == []


def test_of_simple_contradictions_none_is_missed() -> None:
    """Of what the plays close nothing by, without time."""
    timeless = [each for each in LITERALS if not isinstance(each, Age | Idle | Not) and each != ByCommand()]
    timeless += [Not(each) for each in timeless]
    pairs = [AllOf(pair) for pair in product(timeless, timeless)]
    missed = [each for each in pairs if may_close(each, MOST, [PerSource]) and not closes(each)]
    nobody = {Not(Count(1))}  # a call that nobody has answered has no component
    assert [each for each in missed if not nobody.intersection(each.conditions)] == []


@pytest.mark.parametrize(
    "text", ["all(age(5000), not(age(5000)))", "all(age(10000), not(age(5000)))", "all(idle(5000), not(idle(2000)))"]
)
def test_a_limit_of_time_and_its_opposite_close_a_group_together(text: str) -> None:
    condition = read_give_up_when(text)
    played = story(r(at=0), clock(4), clock(6), clock(11), rules=Table(row(complete_count=5, give_up_when=condition)))
    assert (len(played.outputs) > 0, played.open) == (True, {})
    assert may_close(condition, 1_000)


def test_a_call_that_nobody_has_answered_closes_by_its_lack_of_replies() -> None:
    condition = read_give_up_when("all(not(count(1)), age(5000))")
    rules = Table(gathering(give_up_when=condition))
    assert story(manifest(at=0), clock(4), clock(6), rules=rules).open == {}
    assert story(manifest(at=0), reply(1, at=1), clock(4), clock(60), rules=rules).open != {}
    assert may_close(condition, 1_000)


def complaints(row_: dict[str, Any], **rule: Any) -> list[str]:
    """Settings that are complained about, of the fixture with its first row and its rule changed so."""
    tables = replace(TABLES, rules=(replace(RULE, **rule),), rows=(replace(ROWS[0], **row_), *ROWS[1:]))
    return [each.setting for each in complaints_about_closing(RuleSet(tables), DESTINATIONS)]


@pytest.mark.parametrize(
    "row_",
    [
        {"complete_when": "all(count(3), not(count(3)))"},
        {"complete_when": "all(count(3), not(any(count(2), predicate(sum(quantity) > 1))))"},
        {"complete_when": "all(bytes(10), not(bytes(5)))"},
        {"complete_when": "all(predicate(sum(quantity) > 1), not(predicate(sum(quantity) > 1)))"},
        {"complete_when": "all(count(3), command)"},
        {"complete_when": "count(1001)"},
        {"complete_when": "per_source"},
        {"complete_count": 1001},
        {"give_up_when": "all(idle(5), component_deadline)"},
    ],
)
def test_a_new_row_with_such_a_condition_is_refused(row_: dict[str, Any]) -> None:
    assert complaints(row_, delay_item=None) == [f"rule_row/low-stock/France.{next(iter(row_))}"]


@pytest.mark.parametrize(
    "row_",
    [
        {"complete_when": "command"},
        {"complete_when": "any(count(3), command)"},
        {"complete_when": "all(count(3), not(count(4)))"},
        {"complete_when": "any(per_source, count(1000))"},
        {"give_up_when": "any(component_deadline, idle(5))"},
        {"give_up_when": "all(age(5), not(age(5)))"},
        {"complete_count": 1000},
    ],
)
def test_a_condition_by_which_some_group_closes_is_taken(row_: dict[str, Any]) -> None:
    assert complaints(row_, delay_item=None) == []


def test_a_rule_that_knows_delays_may_ask_for_the_limit_of_a_component() -> None:
    assert complaints({"give_up_when": "all(idle(5), component_deadline)"}) == []


def test_a_condition_of_any_length_is_judged_at_once() -> None:
    parts = ", ".join(f"predicate(sum(f{number})>1)" for number in range(14))
    condition = read_complete_when(f"all(any({parts}), count(3), not(count(3)))")
    begun = time.perf_counter()
    assert not any(may_close(condition, 1_000) for _ in range(100))
    assert time.perf_counter() - begun < 1, "a hundred rows"
