"""The line of deadlines of open groups, by moment, then group id, then generation. Pure.

Belongs here: finding the group that is due first without a scan. Does not belong here: when a group is due (`Group.due_at`).
"""

from __future__ import annotations

from heapq import heappop, heappush

from uow.processor.core.faulty_groups import FaultyGroups
from uow.processor.core.gathered import NEVER
from uow.processor.core.group import Group
from uow.topics.policies import DestinationPolicy


class Deadlines:
    """Deadlines of open groups. An entry whose group has closed, or whose deadline has moved later, is put right when it comes up.

    Args:
        policy: Of the destination.
        faulty: Groups that time passes over.

    Attributes:
        due: A clock value before which no group needs to be looked at: not above the first deadline, below it where that has moved later.
    """

    def __init__(self, policy: DestinationPolicy, faulty: FaultyGroups) -> None:
        self._policy, self._faulty = policy, faulty
        self._line: list[tuple[int, bytes, int, int, Group]] = []
        self._serial = 0
        self.due = NEVER

    def __len__(self) -> int:
        return len(self._line)

    def first_due(self, now: int) -> Group | None:
        """The group with the earliest deadline, if it is due by `now`."""
        while self.due <= now:
            due, *_, group = self._line[0]
            self._faulty.at = group
            if group.is_open and not self._faulty.has(group) and group.due_at(self._policy) == due:
                return group
            heappop(self._line)
            if group.is_open:
                if group.ruled is not None:
                    group.ruled.scheduled = NEVER
                self.schedule(group)
            self.due = self._line[0][0] if self._line else NEVER
        self._faulty.at = None
        return None

    def first(self) -> Group | None:
        """The group with the earliest deadline, for whoever only looks, also from another thread: nothing is put right by it."""
        line = [*self._line]
        while line:
            due, group_id, generation, serial, group = heappop(line)
            if not group.is_open or self._faulty.has(group):
                continue
            at = group.due_at(self._policy)
            if at <= due:
                return group
            if at < NEVER:
                heappush(line, (at, group_id, generation, serial, group))
        return None

    def drop_first(self) -> None:
        """Takes the entry of the group that `first_due` returned out of the line."""
        *_, group = heappop(self._line)
        if group.ruled is not None:
            group.ruled.scheduled = NEVER
        self.due = self._line[0][0] if self._line else NEVER

    def drop_stale(self) -> None:
        """Keeps of each open group its earliest entry."""
        earliest: dict[Group, tuple[int, bytes, int, int, Group]] = {}
        for entry in sorted(self._line):
            if entry[-1].is_open:
                earliest.setdefault(entry[-1], entry)
        self._line = list(earliest.values())
        self.due = self._line[0][0] if self._line else NEVER

    def schedule(self, group: Group) -> int:
        """Puts a group's next moment of interest in line, unless one that is not later stands there for it already. Returns `due`."""
        if self._faulty and self._faulty.has(group):
            return self.due
        return self.put(group, group.due_at(self._policy))

    def put(self, group: Group, due: int) -> int:
        """The same where the moment is known."""
        if due >= NEVER:
            return self.due
        if group.ruled is not None:
            if group.ruled.scheduled <= due:
                return self.due
            group.ruled.scheduled = due
        self._serial += 1
        heappush(self._line, (due, group.id, group.generation, self._serial, group))
        if due < self.due:
            self.due = due
        return self.due
