"""The decision table a second time: the required results of one partition's input, record by record, in the simplest way.

Written from the published table (docs/decision-table.md), without any code of the worker. Where the worker judges columns in bulk and keeps
ranges, this module keeps a dictionary per group and judges each record alone.

Only one thing does not follow from the input: the moment at which a group expired. The worker's ledger names it, and this module checks that
it was right (W-82): the deadline is the append time of the first component held plus the limit, no component appended in time was
unread when the group expired, and no group lived longer.

Belongs here: the required results. Does not belong here: the actual results (`checker`), and any input or output. Standard library only.
"""

from __future__ import annotations

import heapq
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from uow.prove.ground_truth import Headers
from uow.prove.seen_records import (
    Findings,
    Identity,
    Place,
    Rec,
)

REROUTED = ("uow-rerouted", b"1")
"""The header that the worker adds at the end when it sends a misrouted component on."""

Refusal = tuple[str, str]
"""Error class and case."""


def murmur2(data: bytes) -> int:
    """Java's `Utils.murmur2`, masked to a positive number."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(data)) & mask
    for at in range(0, len(data) - len(data) % 4, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    rest = data[len(data) - len(data) % 4 :]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF


def as_sent(headers: Headers) -> Headers:
    """The headers as the producer gave them, without the mark of having been sent on."""
    return headers[:-1] if headers and headers[-1] == REROUTED else headers


@dataclass
class JudgedGroup:
    """An open group: its components by number."""

    id: bytes
    opened: int
    held: dict[int, Rec] = field(default_factory=dict)
    end: int | None = None

    def in_order(self) -> list[Rec]:
        """Its components by their numbers."""
        return [self.held[number] for number in sorted(self.held)]


class JudgedClosing(NamedTuple):
    """A closed group as in the worker's ledger; `before` is the input position at which it closed."""

    id: bytes
    generation: int
    outcome: str
    reason: str
    highest: int
    before: int
    at: int


class JudgedMarks(NamedTuple):
    """A component's number, and the end of its group if its end mark or its count gives it."""

    seq: int
    marked: int | None
    counted: int | None

    @property
    def ends(self) -> list[int]:
        """All ends that the component gives."""
        return [said for said in (self.marked, self.counted) if said is not None]


def marks(rec: Rec) -> JudgedMarks:
    """Reads a well-formed component's headers."""
    seq, count = int(rec.first("uow-seq") or b"0"), rec.first("uow-count")
    is_end = (rec.first("uow-end") or b"").lower() == b"true"
    return JudgedMarks(seq, seq if is_end else None, None if count is None else int(count))


@dataclass
class Expected:
    """The required results of one partition's input.

    Attributes:
        units: Complete groups and passed-through records, in the order in which they leave.
        expired: Expired groups, in that order.
        rejected: Error class and case of each refused record.
        rerouted: Records sent on, with the right partition.
        closings: Id, outcome and input position of each closed group, in order.
        open: Open groups.
        not_held: Offsets of records that no group holds.
    """

    units: list[JudgedGroup | Rec] = field(default_factory=list)
    expired: list[JudgedGroup] = field(default_factory=list)
    rejected: dict[Place, Refusal] = field(default_factory=dict)
    rerouted: list[tuple[int, Rec]] = field(default_factory=list)
    closings: list[tuple[bytes, str, int]] = field(default_factory=list)
    open: dict[bytes, JudgedGroup] = field(default_factory=dict)
    not_held: set[int] = field(default_factory=set)


class Judge:
    """Judges one partition's records in offset order.

    Args:
        number: Number of the partition.
        count: Number of partitions of the topic.
        kinds: Kind of each sent record, with class and case for a malformed one, from the sender.
        expiries: Groups that expired by the ledger, in order.
        expiration_ms: The age limit; -1: never.
        findings: Collects wrong expirations.
    """

    def __init__(
        self,
        number: int,
        count: int,
        kinds: Mapping[Identity, tuple[str, Refusal]],
        expiries: Iterable[JudgedClosing],
        expiration_ms: int,
        findings: Findings,
    ) -> None:
        self.number, self.count, self.kinds, self.limit, self.findings = number, count, kinds, expiration_ms, findings
        self.expiries = deque(expiries)
        self.expected = Expected()
        self.groups = self.expected.open
        self.closed: dict[bytes, tuple[str, int]] = {}
        self.expired_by: dict[bytes, int] = {}
        self.due: list[tuple[int, bytes, int]] = []
        self.clock = 0

    def judge(self, records: Iterable[Rec]) -> Expected:
        """Judges the whole partition."""
        for rec in records:
            self.clock = max(self.clock, rec.timestamp)
            self._expire(rec.offset)
            self._look_for_overdue()
            self._arrive(rec)
        self._expire(sys.maxsize)
        return self.expected

    # -- time

    def _expire(self, position: int) -> None:
        """Expires the groups that the ledger says expired before this position; each must have been due, exactly at its deadline."""
        while self.expiries and self.expiries[0].before <= position:
            closing = self.expiries.popleft()
            group = self.groups.pop(closing.id, None)
            if group is None:
                self.findings.say("expiry", f"{closing.id!r} expired before {position}, but no such group is open")
                continue
            deadline = group.opened + self.limit
            if self.limit < 0 or closing.at != deadline + 1 or closing.reason != "age":
                text = f"{closing.id!r} opened at {group.opened}, closed as {closing.reason} at {closing.at}"
                self.findings.say("expiry", text)
            self.expired_by[closing.id] = deadline
            self.expected.expired.append(group)
            self._close(group, "expired", max(group.held), closing.before)

    def _look_for_overdue(self) -> None:
        """Finds groups that are open although a record after their deadline has been read."""
        while self.due and self.due[0][0] < self.clock:
            deadline, group_id, opened = heapq.heappop(self.due)
            group = self.groups.get(group_id)
            if group is not None and group.opened == opened:
                self.findings.say("overdue", f"{group_id!r} is open at {self.clock}, its deadline was {deadline}")

    def _close(self, group: JudgedGroup, outcome: str, highest: int, before: int) -> None:
        self.closed[group.id] = outcome, highest
        self.expected.closings.append((group.id, outcome, before))

    # -- records

    def _arrive(self, rec: Rec) -> None:
        known = self.kinds.get(rec.identity) or self.kinds.get((rec.key, rec.value, as_sent(rec.headers)))
        kind, refusal = known or ("", ("", ""))
        if kind == "plain":
            self.expected.units.append(rec)
        elif kind == "bad":
            self.expected.rejected[rec.place] = refusal
        elif kind == "component":
            if self._hold(rec):
                return
        else:
            return  # nobody sent it: the checker's account of the input reports that
        self.expected.not_held.add(rec.offset)

    def _hold(self, rec: Rec) -> bool:
        """Lines 6 and 8 to 15 of the decision table. True if a group holds the record."""
        group_id, said = rec.first("uow-id") or b"", marks(rec)
        group, closed = self.groups.get(group_id), self.closed.get(group_id)
        home = murmur2(group_id) % self.count
        if home != self.number and group is None and closed is None:
            if rec.first(REROUTED[0]) is None:
                self.expected.rerouted.append((home, rec))
            else:
                self.expected.rejected[rec.place] = "MisroutedComponentError", ""
            return False
        refusal = self._late(closed, said, rec) if group is None else self._out_of_place(group, said, rec)
        if refusal is None:
            refusal = self._contradicts(group, said)
        if refusal is not None:
            self.expected.rejected[rec.place] = refusal
            return False
        if group is None:
            group = self._open(group_id, rec)
        group.held[said.seq] = rec
        group.end = said.ends[0] if said.ends else group.end
        if group.end == len(group.held):
            del self.groups[group_id]
            self.expected.units.append(group)
            self._close(group, "complete", group.end, rec.offset + 1)
        return True

    def _open(self, group_id: bytes, rec: Rec) -> JudgedGroup:
        if group_id in self.expired_by:
            self.findings.say("expiry", f"{group_id!r} opened again")
        if self.limit >= 0:
            heapq.heappush(self.due, (rec.timestamp + self.limit, group_id, rec.timestamp))
        group = self.groups[group_id] = JudgedGroup(group_id, rec.timestamp)
        return group

    def _late(self, closed: tuple[str, int] | None, said: JudgedMarks, rec: Rec) -> Refusal | None:
        """Lines 8 and 9: the group of this id is closed."""
        if closed is None:
            return None
        outcome, highest = closed
        if outcome != "complete":
            if rec.timestamp <= self.expired_by[rec.first("uow-id") or b""]:
                self.findings.say("expiry", f"{rec.place} was appended in time, its group had expired before it")
            return "UnitClosedError", outcome
        if said.seq > highest:
            return "OutOfSequenceRangeError", "a"
        return "DuplicateSequenceNumberError", "duplicate"

    def _out_of_place(self, group: JudgedGroup, said: JudgedMarks, rec: Rec) -> Refusal | None:
        """Lines 10 and 11: the number is held, or above the end."""
        if said.seq in group.held:
            first, component_id = group.held[said.seq], rec.first("uow-component-id")
            if component_id is not None and first.first("uow-component-id") == component_id:
                return "DuplicateSequenceNumberError", "resend"
            return "DuplicateSequenceNumberError", "duplicate" if first.value == rec.value else "conflict"
        if group.end is not None and said.seq > group.end:
            return "OutOfSequenceRangeError", "a"
        return None

    def _contradicts(self, group: JudgedGroup | None, said: JudgedMarks) -> Refusal | None:
        """Line 12: an end below a held number, or different from the known end."""
        known = None if group is None else group.end
        highest = said.seq if group is None else max(said.seq, *group.held)
        for end in said.ends:
            if end < highest or known not in (None, end):
                return "OutOfSequenceRangeError", "b"
            known = end
        return None
