"""Rules tried on recorded inputs, in memory: the router's decisions and the assembler's, and what would come out of them (B-204). Reads only.

Records of all inputs are played in the order of their append times through the production code: `uow.processor.rules.routing` makes
components, `uow.processor.core` groups. Time goes on after the last record, until every group with a limit is closed. The destination has one
partition here: groups do not depend on how many there are, but a limit by partition, such as `max_open_groups`, does.

Belongs here: playing and counting. Does not belong here: reading Kafka beyond the inputs, decisions.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from uow.processor.core.columns import UNREADABLE
from uow.processor.core.decide import DELIVERED
from uow.processor.core.group import Group
from uow.processor.core.partition import Partition
from uow.processor.core.partition_state import PartitionAddress
from uow.processor.engine.ports import LogReader, RawRecord, Tp
from uow.processor.rules.conditions import group_policy
from uow.processor.rules.routing import Fate, NoKey, RecordRouting, RouteTarget, Sent, routings_of
from uow.processor.rules.rule_set import RuleSet
from uow.schemas.error_classes import UowError
from uow.schemas.records import Reason, UnitOutcome
from uow.topics.catalogue import DestinationTopics
from uow.topics.grouping import GroupPolicy
from uow.topics.policies import DestinationPolicy
from uow.topics.record_size import INPUT_LIMIT_BYTES, RecordLimit
from uow.topics.routers import RouterSettings
from uow.topics.rules import ResolvedRow, RuleName

_APPEND_TIME: Final = 2
_LATER_MS: Final = 10**12
"""So long time goes on after the last record: longer than any limit of use."""
_TAKE_EVERY: Final = 1_000


class TooManyRecords(UowError):
    """The inputs have more records than are read at once; the message says how many are allowed."""


@dataclass(slots=True)
class RowFigures:
    """The results of one row of a rule.

    Attributes:
        units: Units delivered.
        partial: Those of them without all of their components.
        by_age: Those of them that a limit of time closed.
        not_delivered: Groups that expired or failed.
        components: In the units delivered.
        open: Components in groups that no time closes.
        waits_ms: From the first component of each unit to its close, in order of closing.
    """

    units: int = 0
    partial: int = 0
    by_age: int = 0
    not_delivered: int = 0
    components: int = 0
    open: int = 0
    waits_ms: list[int] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """The figures for people and programs: the fill is components per unit, and the file sink makes a file of each unit."""
        waits = sorted(self.waits_ms)
        return {
            "units": self.units,
            "files": self.units,
            "partial": self.partial,
            "by_age": self.by_age,
            "share_by_age": round(self.by_age / self.units, 4) if self.units else None,
            "fill": round(self.components / self.units, 2) if self.units else None,
            "wait_p50_ms": _quantile(waits, 0.5),
            "wait_p99_ms": _quantile(waits, 0.99),
            "not_delivered": self.not_delivered,
            "open": self.open,
        }


def _quantile(ordered: Sequence[int], share: float) -> int | None:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


@dataclass(slots=True)
class Figures:
    """The results of one set of rules.

    Attributes:
        rows: By rule id and name of the row, whatever its version.
        records: Records played.
        rejected: Records refused, by the router or the assembler.
        passed: Records that passed without a unit.
        keyless: Records that give no routing name, by rule and the reason.
    """

    rows: dict[str, RowFigures] = field(default_factory=dict)
    records: int = 0
    rejected: int = 0
    passed: int = 0
    keyless: Counter[tuple[str, str]] = field(default_factory=Counter)


class _Played:
    """A component as the assembler reads it."""

    __slots__ = ("_at", "_offset", "_sent")

    def __init__(self, sent: Sent, offset: int, at: int) -> None:
        self._sent, self._offset, self._at = sent, offset, at

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._sent.key

    def value(self) -> bytes | None:
        return self._sent.value

    def headers(self) -> Any:
        return self._sent.headers

    def timestamp(self) -> tuple[int, int]:
        return _APPEND_TIME, self._at


class _Assembler:
    """One destination, with one partition; also its table of rows."""

    def __init__(self, name: str, application: str, policy: DestinationPolicy) -> None:
        self._destination, self._policies = policy, dict[str, GroupPolicy]()
        topic = DestinationTopics(application, name).components
        self.partition = Partition(PartitionAddress(name, topic, 0, 1), policy, rules=self)

    def policy(self, name: str) -> GroupPolicy | None:
        """The policy of a row; every component comes after its row."""
        return self._policies.get(name)

    kept = policy

    def catch_up(self, meanwhile: Any) -> None:
        """Nothing is there to be read."""

    def take(self, sent: Sent, row: ResolvedRow | None, at: int) -> None:
        """Takes one component, once the groups that are due before it are closed."""
        if row is not None and row.name not in self._policies:
            self._policies[row.name] = group_policy(row, self._destination)
        self.partition.advance_rules(at)
        self.partition.on_records([_Played(sent, self.partition.position, at)])


def rehearsed(
    records: Iterable[RawRecord],
    rules: RuleSet,
    routers: Mapping[str, RouterSettings],
    destinations: Mapping[str, DestinationPolicy],
    application: str,
) -> Figures:
    """The results of records under a set of rules.

    Args:
        records: Of all inputs, in the order of their append times.
        rules: The rules; valid.
        routers: The routers, which say what rules an input has.
        destinations: Settings by name.
        application: `application.id`.
    """
    figures = Figures()
    targets = {
        name: RouteTarget(DestinationTopics(application, name), policy, RecordLimit(INPUT_LIMIT_BYTES))
        for name, policy in destinations.items()
    }
    routings = routings_of(rules, routers, targets)
    assemblers = {
        target.topics.components: _Assembler(name, application, target.policy) for name, target in targets.items()
    }
    at, whys = 0, dict[tuple[str, NoKey], str]()
    for record in records:
        routing = routings.get(record.topic())
        if routing is None:
            continue
        at = max(at, record.timestamp()[1])
        figures.records += 1
        routed = _routed(routing, record, at)
        figures.rejected += routed.fate in (Fate.REJECTED, Fate.SET_ASIDE)
        figures.passed += routed.fate is Fate.PASSED
        if routed.keyless is not None:
            kind = routed.rule_id, routed.keyless.cause
            # texts about values that cannot be read have places in them: the first one stands for all
            text = routed.keyless.error.text
            why = text if routed.keyless.cause is NoKey.ABSENT else whys.setdefault(kind, text)
            figures.keyless[routed.rule_id, why] += 1
        if routed.fate is Fate.ROUTED:
            assemblers[routed.sent.topic].take(routed.sent, routed.row, at)
            if figures.records % _TAKE_EVERY == 0:
                _count(figures, assemblers[routed.sent.topic].partition)
    for assembler in assemblers.values():
        assembler.partition.advance_rules(at + _LATER_MS)
        _count(figures, assembler.partition)
        figures.rejected += assembler.partition.counts.rejected + assembler.partition.counts.duplicate
        for group in assembler.partition.groups.values():
            _row(figures, group).open += len(group.held)
    return figures


def _routed(routing: RecordRouting, record: RawRecord, at: int) -> Any:
    try:
        return routing.route(record, record.headers(), at)
    except UNREADABLE:
        return routing.route(record, None, at, is_readable=False)


def _row(figures: Figures, group: Group) -> RowFigures:
    assert group.ruled is not None
    name = RuleName.parse(group.ruled.policy.rule)
    return figures.rows.setdefault(f"{name.rule_id}/{name.routing_name}", RowFigures())


def _count(figures: Figures, partition: Partition) -> None:
    """Adds what closed since the last call."""
    for group, closed in partition.take_happened().closed:
        if group is None or group.ruled is None:
            continue
        row = _row(figures, group)
        if closed.outcome not in DELIVERED:
            row.not_delivered += 1
            continue
        row.units += 1
        row.partial += closed.outcome is UnitOutcome.PARTIAL
        row.by_age += closed.reason in (Reason.AGE, Reason.IDLE)
        row.components += len(group.held)
        row.waits_ms.append(max(0, closed.at - group.opened_at))


def recorded(reader: LogReader, tps: Sequence[Tp], from_ms: int, limit: int) -> list[RawRecord]:
    """The records of inputs, in the order of their append times, and of each partition in its own.

    Args:
        reader: Reads the logs.
        tps: Their partitions.
        from_ms: Records appended before this moment are left out, epoch ms.
        limit: Most records that are kept in memory.

    Raises:
        TooManyRecords: There are more.
    """
    found: dict[Tp, list[tuple[int, RawRecord]]] = {tp: [] for tp in tps}
    count = 0
    for tp, records in reader.read(reader.bounds(tps)):
        stretch = found[tp]
        for record in records:
            at = record.timestamp()[1]
            if at >= from_ms:
                stretch.append((max(at, stretch[-1][0]) if stretch else at, record))
        count = sum(map(len, found.values()))
        if count > limit:
            raise TooManyRecords(f"more than {limit} records: begin later (--from), or allow more (--limit)")
    return [record for _, record in heapq.merge(*found.values(), key=lambda each: each[0])]
