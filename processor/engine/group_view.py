"""Open groups as people see them: on the worker's pages and by `uow groups` and `uow show` alike (W-201, W-211).

Belongs here: the fields shown of a group, and their JSON. Does not belong here: finding groups (a worker's tasks, or the logs: `uow.ops.inspect`),
and printing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from uow.processor.core.gathered import source_of
from uow.processor.core.group import Group
from uow.processor.core.ranges import without
from uow.processor.engine.awaited import SourceState, awaited, deadline_by, sources
from uow.schemas.component import decode_component
from uow.schemas.records import ComponentRecord, Range, ranges_text
from uow.topics.headers import ARRIVED_AT, HOPS, INPUT, decimal
from uow.topics.policies import DestinationPolicy

AT_RISK = 0.8
"""Part of its time after which a group counts as at risk (W-211)."""


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """An open group, as people see it.

    Attributes:
        id: Group id.
        partition: Of `D.components`.
        generation: Number of groups of this id that the destination has opened, from 1.
        held: Numbers held.
        missing: Numbers lacking; the last range has an open end while the end is unknown.
        waived: Missing numbers that a command declared not needed.
        end: The highest number, or None while unknown.
        count: Components held.
        bytes: Bytes held.
        opened_at: Append time of the first component held, epoch ms.
        deadline: Time at which the group expires, or is delivered if it only waits for `uow-deliver-at`; None: never.
        rule: Row of a rule with its version, `low-stock/UK@3`; None for a unit of work.
        waits_for: What it waits for, in words (B-201).
        waits_since: Since when it is complete and not allowed to leave, epoch ms; None: it is not.
        sources: Of a collection, what each source gave.
        deadline_by: The setting, condition or header that its deadline comes from; empty if it has none.
    """

    id: str
    partition: int
    generation: int
    held: tuple[Range, ...]
    missing: tuple[Range, ...]
    waived: tuple[Range, ...]
    end: int | None
    count: int
    bytes: int
    opened_at: int
    deadline: int | None
    rule: str | None = None
    waits_for: str = ""
    waits_since: int | None = None
    sources: tuple[SourceState, ...] = ()
    deadline_by: str = ""

    def is_at_risk(self, now_ms: int) -> bool:
        """True if most of the group's time has gone by (W-211)."""
        return self.deadline is not None and now_ms >= risk_at(self.opened_at, self.deadline)

    def row(self, now_ms: int) -> dict[str, Any]:
        """As JSON; moments in epoch milliseconds, ranges as texts."""
        return {
            "id": self.id,
            "partition": self.partition,
            "generation": self.generation,
            "held": ranges_text(self.held),
            "missing": ranges_text(self.missing),
            "waived": ranges_text(self.waived),
            "end": self.end,
            "end_known": self.end is not None,
            "count": self.count,
            "bytes": self.bytes,
            "opened_at": self.opened_at,
            "age_ms": now_ms - self.opened_at,
            "deadline": self.deadline,
            "deadline_by": self.deadline_by,
            "at_risk": self.is_at_risk(now_ms),
            "rule": self.rule,
            "waits_for": self.waits_for,
            "waits_since": self.waits_since,
            "sources": [each._asdict() for each in self.sources],
        }


class InnerGroup(NamedTuple):
    """An open group on its way into another one (B-109).

    Attributes:
        destination: Where it is.
        group: The group.
        inner: What is on its way into it.
    """

    destination: str
    group: OpenGroup
    inner: Inner


class Inner(NamedTuple):
    """Open groups on their way into another one: those whose units would come to it if they closed now.

    Attributes:
        groups: These, the oldest first.
        more: How many further ones there are.
        others: Open groups whose units would come to another group of its rule, or to none.
        is_certain: False if what is still to come may change which groups these are.
    """

    groups: tuple[InnerGroup, ...] = ()
    more: int = 0
    others: int = 0
    is_certain: bool = True

    def row(self, now_ms: int) -> dict[str, Any]:
        """As JSON."""
        groups = [
            {"destination": each.destination, **each.group.row(now_ms), "inner": each.inner.row(now_ms)}
            for each in self.groups
        ]
        return {"groups": groups, "more": self.more, "others": self.others, "certain": self.is_certain}


def risk_at(opened_at: int, deadline: int) -> float:
    """The time from which a group counts as at risk, epoch ms."""
    return opened_at + AT_RISK * (deadline - opened_at)


def count_at_risk(groups: Iterable[Group], policy: DestinationPolicy, now_ms: int) -> int:
    """The number of these groups that are at risk (W-211)."""
    deadlines = ((group.opened_at, group.deadline(policy)) for group in groups)
    return sum(
        1 for opened_at, deadline in deadlines if deadline is not None and now_ms >= risk_at(opened_at, deadline)
    )


def seen(group: Group, partition: int, policy: DestinationPolicy, now_ms: int = 0) -> OpenGroup:
    """An open group, as people see it at a moment. Costs a sort of its numbers."""
    ruled = group.ruled
    return OpenGroup(
        id=group.id.decode("utf-8", "backslashreplace"),
        partition=partition,
        generation=group.generation,
        held=group.held_ranges(),
        missing=group.missing(),
        waived=without(group.waived, group.held),
        end=group.end if group.end_known else None,
        count=len(group.held),
        bytes=group.bytes,
        opened_at=group.opened_at,
        deadline=group.deadline(policy),
        rule=None if ruled is None else ruled.policy.rule,
        waits_for=awaited(group, now_ms),
        waits_since=ruled.waits_since or None if ruled is not None else None,
        sources=sources(group, now_ms),
        deadline_by=deadline_by(group, policy),
    )


def arrivals(group: Group) -> list[ComponentRecord]:
    """The timeline of a group: its components in order of arrival."""
    return sorted(map(decode_component, group.held.values()), key=lambda each: each.source.offset)


def arrival(component: ComponentRecord) -> dict[str, Any]:
    """One line of a timeline as JSON; `input` is the record that a router made it of."""
    came_by = (dict(component.headers).get(INPUT) or b"").decode("utf-8", "backslashreplace") or None
    arrived = decimal(dict(component.headers).get(ARRIVED_AT) or b"")
    return {
        "seq": component.seq,
        "input": came_by,
        "arrived_at": component.timestamp if arrived is None else min(arrived, component.timestamp),
        "source_name": source_of(component.headers) or None,
        "end": component.end,
        "component_id": component.component_id,
        "source": str(component.source),
        "timestamp": component.timestamp,
        "hops": list(hops(component)),
        "bytes": len(component.value or b"") if component.reference is None else component.reference.length,
    }


def hops(component: ComponentRecord) -> tuple[str, ...]:
    """Intermediate topics that the component passed, in order (W-60)."""
    texts = [(value or b"").decode("utf-8", "replace") for name, value in component.headers if name == HOPS]
    return tuple(hop.strip() for text in texts for hop in text.split(",") if hop.strip())
