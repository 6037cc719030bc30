"""Figures of groups by rule, for metrics: how full they leave, why they close, how long they waited, how late that was (B-07, B-212).

They are kept by row of a rule and not by routing name: any sender can invent routing names, only those who change the rules make rows. Names
without a row of their own count under row `*`.

Belongs here: counting groups that closed, and looking at those that are open. Does not belong here: how a figure is shown (`uow.processor.shell`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from uow.processor.core.changes import Closed
from uow.processor.core.decide import DELIVERED
from uow.processor.core.gathered import NEVER
from uow.processor.core.group import Group
from uow.schemas.records import Reason, UnitOutcome
from uow.topics.grouping import GroupPolicy
from uow.topics.policies import DestinationPolicy

WAIT_LIMITS_S: Final = (
    0.1,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    15.0,
    30.0,
    60.0,
    120.0,
    300.0,
    900.0,
    3_600.0,
    14_400.0,
    86_400.0,
)
OVERRUN_LIMITS_S: Final = (0.1, 0.5, 1.0, 1.5, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3_600.0)
"""Upper bounds of the classes of a histogram; a last one has all that is longer."""
MOST_ROWS: Final = 1_000
"""Rows of rules with figures of their own in one destination; those that come after count together, as row `OTHER_ROWS` of no rule."""
OTHER_ROWS: Final = "(others)"
OVERDUE_SAMPLE: Final = 10_000
"""Open groups of a rule that are looked at for those that are overdue, the oldest first: a scrape must not take long."""
BY_TIME: Final = frozenset({Reason.AGE, Reason.IDLE, Reason.COMPONENT_EXPIRED})
"""Reasons that a limit of time gives."""


class RowName(NamedTuple):
    """A row of a rule, whatever its version."""

    rule: str
    row: str


OTHERS: Final = RowName("", OTHER_ROWS)


def row_name(policy: GroupPolicy) -> RowName:
    """The row that a policy is made of."""
    return RowName(policy.rule_id, policy.rule[len(policy.rule_id) + 1 :].rpartition("@")[0])


@dataclass(slots=True)
class Histogram:
    """Durations by class.

    Attributes:
        limits: Upper bounds of the classes, seconds.
        counts: How many durations each class has; the last one those beyond all bounds.
        total: Sum of them, seconds.
    """

    limits: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.limits) + 1)

    def add(self, seconds: float) -> None:
        """One duration more."""
        self.counts[bisect_left(self.limits, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self.counts)

    def at_most(self, share: float) -> float | None:
        """An upper bound of this share of all durations, seconds; None where there are none, or it lies beyond the last bound."""
        wanted, so_far = share * self.count, 0
        for limit, count in zip(self.limits, self.counts, strict=False):
            so_far += count
            if count and so_far >= wanted:
                return limit
        return None


@dataclass(slots=True)
class RowFigures:
    """Figures of one row.

    Attributes:
        closed: Groups by outcome and reason.
        components: Components of the units.
        waits: From the first arrival to the close.
        overruns: Of groups that a limit of time closed: from the deadline to the close.
    """

    closed: Counter[tuple[UnitOutcome, Reason]] = field(default_factory=Counter)
    components: int = 0
    waits: Histogram = field(default_factory=lambda: Histogram(WAIT_LIMITS_S))
    overruns: Histogram = field(default_factory=lambda: Histogram(OVERRUN_LIMITS_S))

    @property
    def units(self) -> int:
        """Groups that were delivered."""
        return sum(count for (outcome, _), count in self.closed.items() if outcome in DELIVERED)

    @property
    def by_time(self) -> int:
        """Groups that a limit of time closed."""
        return sum(count for (_, reason), count in self.closed.items() if reason in BY_TIME)


class RuleFigures:
    """Figures of one destination, since the worker started; repeats after a doubt are counted again.

    Attributes:
        rows: By row.
    """

    def __init__(self) -> None:
        self.rows: dict[RowName, RowFigures] = {}

    def add(self, group: Group, closed: Closed, decided_at: int) -> None:
        """A group by rule closed: `decided_at` is the moment of the decision, epoch ms, as its `Outcome` has it."""
        assert group.ruled is not None
        policy = group.ruled.policy
        name = row_name(policy)
        if name not in self.rows and len(self.rows) >= MOST_ROWS:
            name = OTHERS
        row = self.rows.get(name)
        if row is None:
            row = self.rows[name] = RowFigures()
        row.closed[closed.outcome, closed.reason] += 1
        if closed.outcome in DELIVERED:
            row.components += len(group.held)
        row.waits.add(max(0, decided_at - group.opened_at) / 1000)
        if closed.reason in BY_TIME and (due := group.give_up_at(policy)) < NEVER:
            row.overruns.add(max(0, decided_at - (due - 1)) / 1000)


class OpenFigures(NamedTuple):
    """The open groups of a rule on one partition.

    Attributes:
        overdue: Those, of the oldest 10,000, that should have closed or left by now.
        oldest_at: Arrival of the first component of the oldest one, epoch ms.
    """

    overdue: int
    oldest_at: int


def open_figures(
    by_rule: Mapping[str, Iterable[Group]], policy: DestinationPolicy, now_ms: int
) -> dict[str, OpenFigures]:
    """Figures of the open groups by the rule's id, where they stand in the order in which they opened."""
    found = {}
    for rule_id, groups in by_rule.items():
        sample = [*islice(groups, OVERDUE_SAMPLE)]
        overdue = sum(1 for group in sample if _is_overdue(group, policy, now_ms))
        found[rule_id] = OpenFigures(overdue, min((group.opened_at for group in sample), default=now_ms))
    return found


def _is_overdue(group: Group, policy: DestinationPolicy, now_ms: int) -> bool:
    assert group.ruled is not None
    return group.ruled.scheduled < now_ms and group.closes_at(policy) < now_ms
