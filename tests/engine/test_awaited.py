"""The wait of an open group, in words (aggregation, B-201)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.core.rule_script import r, row, told_by
from tests.core.script import Story, c, ms, story
from tests.core.test_by_rule_release import holding, twice
from tests.core.test_fan_in import gathering, manifest, reply
from tests.core.test_segments import piece
from uow.processor.engine.group_view import seen
from uow.topics.conditions import AllOf, ByCommand, Predicate
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
            [row(complete_when=AllOf((Predicate("p"), ByCommand())), measures=[("p", Sum())])],
            [r(at=0)],
            "predicate(p) and a command",
        ),
        ([gathering()], [reply(2, at=0)], "its manifest"),
        ([gathering()], [manifest(at=0), reply(2, at=1)], "replies to requests 1 (hotel), 3 (flight)"),
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


def test_a_unit_of_work_says_what_it_waits_for_b201() -> None:
    played = story(c(1, id="a"), c(2, id="b"), c(4, id="c", end=True), c(1, id="d", end=True, deliver_at=60))
    assert waits(played) == ["its end", "numbers 1,3-", "numbers 1-3", "its uow-deliver-at"]


def test_a_unit_of_work_says_of_which_components_it_has_pieces_b124() -> None:
    played = story(c(2, end=True), piece(1, 0, "ab"), piece(1, 4, "ef", True))
    assert waits(played) == ["numbers 1; in part there: 1"]
