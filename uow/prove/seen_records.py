"""Records as a consumer sees them, the logs of a destination, and findings about them. Values only, standard library only.

Belongs here: the values that reader, judge and checker exchange. Does not belong here: reading (`reading`) and judging (`judge`, `checker`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from uow.prove.ground_truth import Headers

AT_MOST = 20
"""Number of findings of each kind that are kept as text; all are counted."""

Identity = tuple[bytes | None, bytes | None, Headers]
"""Key, value and headers: everything that a producer gives."""

OF_UNITS = frozenset(
    f"uow-{name}" for name in ["kind", "unit-id", "generation", "outcome", "reason", "size", "missing", "pos"]
)
"""Header names that only the destination's worker writes on `D.units`, as far as the load uses them."""

Place = tuple[int, int]
"""Partition and offset in `D.components`."""


class Rec(NamedTuple):
    """A record as a consumer sees it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int

    @property
    def place(self) -> Place:
        """Its partition and offset."""
        return self.partition, self.offset

    @property
    def identity(self) -> Identity:
        """Its key, value and headers, as the producer gave them."""
        return self.key, self.value, self.headers

    @property
    def passed(self) -> Identity:
        """The record after passing through, when no header may look like one of a unit."""
        headers = tuple((f"uow-origin-{name[4:]}" if name in OF_UNITS else name, value) for name, value in self.headers)
        return self.key, self.value, headers

    def first(self, name: str) -> bytes | None:
        """The first value of a header; None if there is none."""
        return next((value for each, value in self.headers if each == name), None)


Log = dict[int, list[Rec]]
"""A topic's records by partition, in offset order."""


@dataclass
class Logs:
    """All records of a destination's topics, `read_committed`, and the group's committed offsets by partition."""

    components: Log = field(default_factory=dict)
    units: Log = field(default_factory=dict)
    rejected: Log = field(default_factory=dict)
    errors: Log = field(default_factory=dict)
    outcomes: Log = field(default_factory=dict)
    changelog: Log = field(default_factory=dict)
    ledger: Log = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)


@dataclass
class Findings:
    """Anomalies by kind, in words, and counts. `anomalies` is empty when all is well."""

    anomalies: Counter[str] = field(default_factory=Counter)
    texts: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def say(self, kind: str, text: str) -> None:
        """Adds an anomaly."""
        self.anomalies[kind] += 1
        if self.anomalies[kind] <= AT_MOST:
            self.texts.append(f"{kind}: {text}")

    def add(self, other: Findings) -> None:
        """Adds the findings of another check."""
        self.anomalies.update(other.anomalies)
        self.counts.update(other.counts)
        self.texts += other.texts
