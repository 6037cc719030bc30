"""The wait of an open group, in words (aggregation, B-201)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.core.rule_script import r, row, told_by
from tests.core.script import Story, c, ms, policy_of, story, told
from tests.core.test_by_rule_release import holding, twice
from tests.core.test_fan_in import gathering, manifest, reply
from tests.core.test_quorum import asked
from tests.core.test_segments import piece
from uow.processor.engine.awaited import deadline_by
from uow.processor.engine.group_view import seen
from uow.topics.conditions import Age, AllOf, Behind, ByCommand, Predicate
from uow.topics.grouping import Tally
from uow.topics.rules import Numbering, Release, Source


def waits(played: Story, at: float = 5) -> list[str]:
    return [seen(group, 0, played.task.context.policy, ms(at)).waits_for for group in played.task.groups.values()]


class Sum:
    """A measure that never holds."""

    def measure(self, headers: Any, value: bytes | None) -> tuple[float, ...] | str:
        return (1.0,)

    def holds(self, tallies: Sequence[Tally]) -> bool:
        return False


SOURCES = (Source("low-stock", "invoice", 1, quantity=2), Source("low-stock", "order", 1, wait_ms=9_000))


@pytest.mark.parametrize(
    ("rows", "steps", "said"),
    [
        ([row(complete_count=3)], [r(at=0)], "2 more components"),
        (
            [row(complete_count=3, complete_bytes=100)],
            [r(at=0), r(at=0)],
            "1 more component or 100 bytes of values, 14 are held",
        ),
        ([row(age_ms=9_000)], [r(at=0)], "its limit of time"),
        (
            [row(sources=SOURCES)],
            [r(at=0, source_name="order")],
            "2 components of source invoice, the time of source order",
        ),
        ([row(sources=SOURCES)], [r(at=-6, source_name="order")], "2 components of source invoice"),
        (
            [row(complete_when=AllOf((Predicate("p"), ByCommand())), measures=[("predicate(p)", Sum())])],
            [r(at=0)],
            "predicate(p) and a command",
        ),
        ([gathering()], [reply(2, at=0)], "its manifest"),
        ([gathering()], [manifest(at=0), reply(2, at=1)], "replies to requests 1 (hotel), 3 (flight)"),
        (
            [gathering(4)],
            [manifest(asked(1, 3, 2, topic=None), at=0), reply(1, at=1)],
            "replies to requests 2 (b, weight 3), 3 (c, weight 2); a weight of 3 is enough",
        ),
        ([gathering()], [manifest(["f"] * 23, at=0)], f"{', '.join(f'{n} (f)' for n in range(1, 21))} and 3 more"),
        ([row(rule={"sequence": Numbering.GIVEN})], [r(at=0, seq=3)], "numbers 1-2,4-"),
        ([row(rule={"sequence": Numbering.GIVEN})], [r(at=0, seq=1)], "its end"),
        ([row(rule={"sequence": Numbering.GIVEN})], [r(at=0, seq=4, end=True)], "numbers 1-3"),
        ([holding(Release.HOLD_ALL)], twice(0), "a release of rule low-stock"),
        ([holding(Release.HOLD_FIRST, waiting_age_ms=60_000)], twice(0), "a release of rule low-stock, or its time"),
        ([row(complete_count=1)], [r(at=0, deliver_at=ms(60))], "its uow-deliver-at"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_group_by_rule_says_what_it_waits_for_b201(rows: Any, steps: Any, said: str) -> None:
    (waits_for,) = waits(told_by(*steps, rules=rows))
    assert waits_for.endswith(said)


@pytest.mark.parametrize(
    ("rows", "steps", "said"),
    [
        ([row(complete_count=3)], [r(at=0)], ""),
        ([row(age_ms=9_000, idle_ms=5_000)], [r(at=0)], "idle(5000)"),
        ([row(age_ms=9_000, idle_ms=5_000)], [r(at=0), r(at=4.5)], "age(9000)"),
        ([row(age_ms=9_000)], [r(at=0, delay=3)], "uow-delay-ms"),
        ([row(age_ms=9_000)], [r(at=0, expires_at=ms(3))], "uow-expires-at"),
        ([row(age_ms=9_000)], [r(at=0), told("extend", id="low-stock/UK", until=60, at=1)], "a command"),
        ([row(complete_count=9, age_ms=9_000, give_up_when=Behind(100))], [r(at=0)], "behind(100)"),
        ([row(give_up_when=AllOf((Age(9_000), Age(8_000))))], [r(at=0)], "give_up_when"),
        ([row(complete_count=1)], [r(at=0, deliver_at=ms(60))], "uow-deliver-at"),
        ([holding(Release.HOLD_FIRST, waiting_age_ms=60_000)], twice(0), "release_every_ms or waiting_age_ms"),
        ([gathering()], [reply(2, at=0)], "reply_hold_ms"),
        ([gathering(age_ms=9_000)], [manifest(at=0), reply(2, at=1)], "the timeout of its call"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_group_by_rule_says_where_its_deadline_comes_from_b206(rows: Any, steps: Any, said: str) -> None:
    played = told_by(*steps, rules=rows)
    assert [deadline_by(group, policy_of()) for group in played.task.groups.values()] == [said]


def test_a_unit_of_work_says_where_its_deadline_comes_from() -> None:
    limits = {"incomplete_expiration_ms": 9_000, "idle_expiration_ms": 5_000, "warn_at_percent": 99}
    played = story(
        c(1, id="a", at=0), c(1, id="b", at=0), c(2, id="b", at=4.5), c(1, id="c", at=0, expires_at=4.9), **limits
    )
    found = [deadline_by(group, played.task.context.policy) for group in played.task.groups.values()]
    assert found == ["idle_expiration_ms", "incomplete_expiration_ms", "uow-expires-at"]


def test_a_unit_of_work_says_what_it_waits_for_b201() -> None:
    played = story(c(1, id="a"), c(2, id="b"), c(4, id="c", end=True), c(1, id="d", end=True, deliver_at=60))
    assert waits(played) == ["its end", "numbers 1,3-", "numbers 1-3", "its uow-deliver-at"]


def test_a_unit_of_work_says_of_which_components_it_has_pieces_b124() -> None:
    played = story(c(2, end=True), piece(1, 0, "ab"), piece(1, 4, "ef", True))
    assert waits(played) == ["numbers 1; in part there: 1"]
