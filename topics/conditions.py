"""Conditions that close a group, as values: `complete_when` and `give_up_when` of a rule (aggregation, 4.2). Pure.

A condition keeps nothing: the group has all that it looks at (numbers held, bytes, counts by source, running sums), so it survives a restart.
Their texts are read by `uow.processor.rules.conditions`; `uow.processor.core` asks them, in one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EndFlagWithoutGaps:
    """Every number up to the end is held: a unit of work (W-15). Text: `end_flag_without_gaps`. Reason `end`, or `count` by `uow-count`."""


@dataclass(frozen=True, slots=True)
class Count:
    """So many components are held. Text: `count(n)`. Reason `count`."""

    n: int


@dataclass(frozen=True, slots=True)
class Bytes:
    """The next component would pass so many bytes of values: the group closes before it (B-40). Text: `bytes(n)`, `bytes(n, strict)`. Reason `bytes`.

    Attributes:
        n: Bytes.
        strict: A component larger than `n` alone is refused, and not a unit of 1 with a warning.
    """

    n: int
    strict: bool = False


@dataclass(frozen=True, slots=True)
class PerSource:
    """Every source has its quantity, or waited long enough (B-93 to B-95). Text: `per_source`. Reason `sources`."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Every reply that the manifest lists is held, or `k` of them (B-77, B-209). Text: `manifest`, `manifest(k)`, `manifest(k of n)`. Reason `manifest`.

    A reply counts as much as its request weighs, which is 1 unless the manifest says more.

    Attributes:
        k: How many replies are enough, by weight; None: all.
        n: How many requests a manifest has, by weight; one with another sum is refused. None: any.
    """

    k: int | None = None
    n: int | None = None


@dataclass(frozen=True, slots=True)
class Timeout:
    """The timeout of the call has passed since the manifest, else `ms` as of `Age` (B-85); 0 and None: never. No text: the column `age_ms` of a row with a manifest. Reason `age`."""

    ms: int | None


@dataclass(frozen=True, slots=True)
class Predicate:
    """An expression over running sums of the group holds, e.g. `sum(quantity) >= 500` (B-41). Text: `predicate(EXPRESSION)`. Reason `predicate`."""

    text: str

    @property
    def name(self) -> str:
        """Its text, by which its measure is found."""
        return f"predicate({self.text})"


@dataclass(frozen=True, slots=True)
class Urgent:
    """A component of which an expression is true is held (B-207). Text: `urgent(EXPRESSION)`, `urgent(EXPRESSION, alone)`. Reason `predicate`.

    Attributes:
        text: The expression.
        alone: Such a component joins no group that is open: it is a unit of 1.
    """

    text: str
    alone: bool = False

    @property
    def name(self) -> str:
        """Its text without `alone`, by which its measure is found."""
        return f"urgent({self.text})"


@dataclass(frozen=True, slots=True)
class ByCommand:
    """Only a command completes it. Text: `command`. Reason `command`."""


@dataclass(frozen=True, slots=True)
class Age:
    """So long after the earliest arrival, in ms. Text: `age(ms)`. Reason `age`."""

    ms: int


@dataclass(frozen=True, slots=True)
class Idle:
    """So long after the latest arrival, in ms. Text: `idle(ms)`. Reason `idle`."""

    ms: int


@dataclass(frozen=True, slots=True)
class At:
    """The moment that a calendar named when the group opened (B-206). Text: `at(17:00, Europe/Berlin, mon-fri, 2026-12-25)`. Reason `age`.

    Attributes:
        text: What stands between the brackets.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Behind:
    """At the pace of its components so far, the group would have less than so many percent of its count at its deadline (B-208).

    Text: `behind(percent)`. Reason `idle`.
    """

    percent: int


@dataclass(frozen=True, slots=True)
class ComponentDeadline:
    """The limit that a component brought with it has passed (B-05). Text: `component_deadline`. Reason `age`."""


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One of several holds; the first that does names the reason. Text: `any(a, b, ...)`."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AllOf:
    """All of several hold; the last that came to hold names the reason. Text: `all(a, b, ...)`."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """Another one does not hold. Text: `not(a)`."""

    condition: Condition


Condition = (
    EndFlagWithoutGaps
    | Count
    | Bytes
    | PerSource
    | Manifest
    | Predicate
    | Urgent
    | ByCommand
    | Age
    | Idle
    | At
    | Behind
    | ComponentDeadline
    | Timeout
    | AnyOf
    | AllOf
    | Not
)


def alternatives(condition: Condition) -> Sequence[Condition]:
    """The conditions of which each is enough; itself, if it is no `any`."""
    return (
        [part for each in condition.conditions for part in alternatives(each)]
        if isinstance(condition, AnyOf)
        else [condition]
    )
