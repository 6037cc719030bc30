"""The open groups of one key, where there are several (B-99, B-104): which one takes a component, and which one has it, without a look at each. Pure.

A key may have as many open groups as its rule, and senders decide how many it has. So the cost of one component must not grow with their number.

Belongs here: the answers about the groups of one key, kept up as the groups change. Does not belong here: what a group says of itself (`gathered`,
`group`), and which of them has the place of its key in `groups` (`partition_state`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final

from uow.processor.core.gathered import NEVER
from uow.processor.core.group import Group
from uow.topics.grouping import GroupPolicy

_NO_ARRIVAL: Final = -NEVER
"""Earlier than every arrival."""
_FEW: Final = 8
_AGE: Final = attrgetter("generation")


def is_taking(group: Group) -> bool:
    """False if the group is closed, or complete and waits while the next of its key may open: it never takes a component again."""
    return group.is_open and not (group.ruled is not None and group.ruled.waits_since and group.assigns)


def has_component(group: Group, component_id: bytes) -> bool:
    """True if an open group by rule holds the component of this id."""
    return group.is_open and group.ruled is not None and component_id in group.ruled.component_ids


class Known:
    """A number: of how many components is known which group has them, over all keys of a partition."""

    __slots__ = ("components",)

    def __init__(self) -> None:
        self.components = 0


class Generations:
    """The open groups of one key. They say themselves when they change (`Group.watch`).

    Args:
        groups: All of them.
        known: Counts the components of which this knows the group.
    """

    __slots__ = (
        *(
            "__weakref__",
            "_groups",
            "_holders",
            "_known",
            "_newest",
            "_of_sources",
            "_oldest",
            "_open",
            "_places",
            "_takers",
        ),
        *("_to_follow", "_twice"),
    )

    def __init__(self, groups: Iterable[Group], known: Known) -> None:
        self._known = known
        self._holders: dict[bytes, Group] = {}
        self._twice: set[bytes] = set()
        self._to_follow: dict[str, dict[Group, None]] = {}
        self._number(sorted(groups, key=_AGE))
        for group in self._groups:
            group.watch(self)
            self.read_again(group)

    def _number(self, groups: list[Group]) -> None:
        self._groups, self._open, self._oldest = groups, len(groups), 0
        self._places = {group.generation: place for place, group in enumerate(groups)}
        self._newest, self._takers = [*groups], [*groups]
        self._of_sources: dict[str | None, _Takers] = {}

    def __len__(self) -> int:
        """How many groups it has in memory: the open ones, and a few that closed."""
        return len(self._groups)

    # -- what the groups tell ---------------------------------------------------------------------------------------

    def add(self, group: Group) -> None:
        """A group has opened, newer than all others that are open: one that closed and was forgotten may have had a higher generation."""
        assert self.newest().generation < group.generation, group
        self._places[group.generation] = len(self._groups)
        for line in (self._groups, self._newest, self._takers):
            line.append(group)
        self._open += 1
        group.watch(self)
        self.read_again(group)
        self.changed(group)

    def changed(self, group: Group) -> None:
        """Anything about a group is another than before, or is about to be."""
        place = self._places[group.generation]
        for takers in self._of_sources.values():
            takers.stale.add(place)
        for to_follow in self._to_follow.values():
            to_follow[group] = None

    def took(self, group: Group, component_id: bytes) -> None:
        """A group holds the component of this id."""
        before = self._holders.get(component_id)
        self._known.components += before is None
        if before is not None and before is not group and has_component(before, component_id):
            self._twice.add(component_id)
        else:
            self._holders[component_id] = group

    def read_again(self, group: Group) -> None:
        """A group has read all that it holds, which may have other ids now."""
        for component_id in group.ruled.component_ids if group.ruled is not None else ():
            self.took(group, component_id)

    def closed(self, group: Group) -> bool:
        """A group has closed. True if it was the last one."""
        for component_id in group.ruled.component_ids if group.ruled is not None else ():
            if self._holders.get(component_id) is group:
                del self._holders[component_id]
                self._known.components -= 1
        for to_follow in self._to_follow.values():
            to_follow.pop(group, None)
        self._open -= 1
        if len(self._groups) > 2 * self._open + _FEW:
            self._number(self.open_groups())
        return not self._open

    # -- answers ----------------------------------------------------------------------------------------------------

    def open_groups(self) -> list[Group]:
        """All of them, oldest first."""
        return [each for each in self._groups if each.is_open]

    def oldest(self) -> Group:
        """The oldest; there is one."""
        while not self._groups[self._oldest].is_open:
            self._oldest += 1
        return self._groups[self._oldest]

    def newest(self) -> Group:
        """The newest; there is one."""
        while not self._newest[-1].is_open:
            self._newest.pop()
        return self._newest[-1]

    def newest_taking(self) -> Group | None:
        """The newest that takes components; None: all of them wait."""
        while self._takers and not is_taking(self._takers[-1]):
            self._takers.pop()
        return self._takers[-1] if self._takers else None

    def holder(self, component_id: bytes) -> Group | None:
        """The oldest that holds the component of this id."""
        if component_id in self._twice:
            return next((each for each in self._groups if has_component(each, component_id)), None)
        group = self._holders.get(component_id)
        return group if group is not None and has_component(group, component_id) else None

    def taker(self, source: str | None, arrival: int) -> Group | None:
        """The oldest that takes a component of this source which arrived at this moment, epoch ms (B-99, B-207); None: a new one is to open."""
        takers = self._of_sources.get(source)
        if takers is None:
            takers = self._of_sources[source] = _Takers(len(self._groups))
        for place in takers.stale:
            group = self._groups[place]
            takers.put(place, group.takes_until(source) if group.is_open else _NO_ARRIVAL)
        takers.stale.clear()
        while (found := takers.first_after(arrival)) is not None:
            if self._groups[found].is_open:
                return self._groups[found]
            takers.put(found, _NO_ARRIVAL)
        return None

    def followers(self, row: GroupPolicy) -> Iterator[Group]:
        """The groups to offer a version of a row (B-13): those that have changed since they were offered it, at first all; oldest first.

        A change that comes of the offer itself is none: a group that cannot read the version would be offered it with every component.
        """
        changed = self._to_follow.get(row.rule)
        later = self._to_follow[row.rule] = dict[Group, None]()
        for group in self.open_groups() if changed is None else sorted(changed, key=_AGE):
            yield group
            later.pop(group, None)


class _Takers:
    """Until which arrival each group takes components of one source, by its place. The first one that is late enough is found by halves.

    Attributes:
        stale: Places of which the moment is to be put.
    """

    __slots__ = ("_latest", "_size", "stale")

    def __init__(self, count: int) -> None:
        self.stale = set(range(count))
        self._size = 1
        self._latest = array("q", [_NO_ARRIVAL, _NO_ARRIVAL])
        self._grow(count)

    def _grow(self, count: int) -> None:
        """Makes room for so many places. `_latest[1]` is the latest of all; of the places below `_latest[i]` half are below each of `2 i` and `2 i + 1`."""
        before = self._latest[self._size :]
        while self._size < count:
            self._size *= 2
        room = array("q", [_NO_ARRIVAL])
        self._latest = room * self._size + before + room * (self._size - len(before))
        for at in range(self._size - 1, 0, -1):
            self._latest[at] = max(self._latest[2 * at], self._latest[2 * at + 1])

    def put(self, place: int, until: int) -> None:
        """The group at this place takes what arrives before this moment, epoch ms."""
        if place >= self._size:
            self._grow(place + 1)
        latest, at = self._latest, self._size + place
        latest[at] = max(until, _NO_ARRIVAL)
        while at > 1:
            at //= 2
            latest[at] = max(latest[2 * at], latest[2 * at + 1])

    def first_after(self, arrival: int) -> int | None:
        """The first place whose moment is after this arrival."""
        latest, at = self._latest, 1
        if latest[1] <= arrival:
            return None
        while at < self._size:
            at *= 2
            if latest[at] <= arrival:
                at += 1
        return at - self._size
