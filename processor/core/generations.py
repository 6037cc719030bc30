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
_VERSIONS: Final = 4
"""Versions of rows of which is known who was offered them."""
_PLACES: Final = 2
"""Places that a group has in any case: it is known by which version of its row it is, and which groups are by that."""
_AGE: Final = attrgetter("generation")


def is_taking(group: Group) -> bool:
    """False if the group is closed, or complete and waits while the next of its key may open: it never takes a component again."""
    return group.is_open and not (group.ruled is not None and group.ruled.waits_since and group.assigns)


def has_component(group: Group, component_id: bytes) -> bool:
    """True if an open group by rule holds the component of this id."""
    return group.is_open and group.ruled is not None and component_id in group.ruled.component_ids


class Known:
    """Numbers over all keys of a partition, by which the memory of what is known is estimated.

    Attributes:
        components: Of how many components is known which group has them.
        places: How many places there are for answers about a group: one for each source and each version of a row that was asked about.
    """

    __slots__ = ("components", "places")

    def __init__(self) -> None:
        self.components = self.places = 0


class Generations:
    """The open groups of one key. They say themselves when they change (`Group.watch`).

    Each has a place. Lines of places are short of those that closed only after a while, but nothing here holds a closed group.

    Args:
        groups: All of them.
        known: Counts what this knows.
    """

    __slots__ = (
        *("__weakref__", "_counted", "_freed", "_groups", "_holders", "_ids", "_known", "_newest", "_of_sources"),
        *("_of_versions", "_oldest", "_open", "_others", "_places", "_takers", "_to_follow", "_versions"),
    )

    def __init__(self, groups: Iterable[Group], known: Known) -> None:
        self._known, self._counted, self._freed = known, 0, 0
        self._holders: dict[bytes, Group] = {}
        self._others: dict[bytes, dict[Group, None]] = {}
        self._ids: dict[Group, set[bytes]] = {}
        self._to_follow: dict[str, dict[Group, None]] = {}
        self._versions: dict[Group, tuple[str, int]] = {}
        self._of_versions: dict[tuple[str, int], dict[Group, None]] = {}
        several = sorted(groups, key=_AGE)
        self._number(several)
        for group in several:
            group.watch(self)
            self.read_again(group)

    def _number(self, groups: list[Group]) -> None:
        self._groups: list[Group | None] = [*groups]
        self._open, self._oldest = len(groups), 0
        self._places = {group.generation: place for place, group in enumerate(groups)}
        self._newest: list[int] = [*range(len(groups))]
        self._takers: list[int] = [*self._newest]
        self._of_sources: dict[str | None, _Takers] = {}
        self._count()

    def _count(self) -> None:
        places = len(self._groups) * (_PLACES + len(self._of_sources) + len(self._to_follow))
        self._known.places += places - self._counted
        self._counted = places

    def __len__(self) -> int:
        """How many places there are: of the open groups, and of a few that closed."""
        return len(self._groups)

    # -- what the groups tell ---------------------------------------------------------------------------------------

    def add(self, group: Group) -> None:
        """A group has opened, newer than all others that are open: one that closed and was forgotten may have had a higher generation."""
        assert self.newest().generation < group.generation, group
        place = self._places[group.generation] = len(self._groups)
        self._groups.append(group)
        self._newest.append(place)
        self._takers.append(place)
        self._open += 1
        group.watch(self)
        self.read_again(group)
        self.changed(group)
        self._count()

    def changed(self, group: Group) -> None:
        """Anything about a group is another than before, or is about to be."""
        place = self._places[group.generation]
        for takers in self._of_sources.values():
            takers.stale.add(place)
        for to_follow in self._to_follow.values():
            to_follow[group] = None

    def took(self, group: Group, component_id: bytes) -> None:
        """A group holds the component of this id."""
        first = self._holders.get(component_id)
        if first is None:
            self._holders[component_id] = group
        elif first is group or group in self._others.setdefault(component_id, {}):
            return
        else:
            self._others[component_id][group] = None
        self._known.components += 1

    def read_again(self, group: Group) -> None:
        """A group has read all that it holds, which may have other ids now: in a set of its own, so the one before tells what is gone."""
        before = self._ids.get(group, set())
        now = self._ids[group] = group.ruled.component_ids if group.ruled is not None else set()
        for component_id in before - now:
            self._let_go(group, component_id)
        for component_id in now:
            self.took(group, component_id)
        self._leave_version(group)
        if group.ruled is not None:
            version = self._versions[group] = group.ruled.policy.row_key, group.ruled.policy.version
            self._of_versions.setdefault(version, {})[group] = None

    def _leave_version(self, group: Group) -> None:
        """A group is not, or no longer, by the version of its row that is noted."""
        version = self._versions.pop(group, None)
        if version is not None:
            groups = self._of_versions[version]
            del groups[group]
            if not groups:
                del self._of_versions[version]

    def closed(self, group: Group) -> bool:
        """A group has closed. True if it was the last one."""
        ids = self._ids.pop(group)
        for component_id in ids:
            self._let_go(group, component_id)
        self._freed += len(ids)
        if self._freed > len(self._holders):  # a dictionary keeps the room of what is taken out of it
            self._holders, self._freed = {**self._holders}, 0
        for to_follow in self._to_follow.values():
            to_follow.pop(group, None)
        self._leave_version(group)
        self._groups[self._places.pop(group.generation)] = None
        self._open -= 1
        if not self._open or len(self._groups) > 2 * self._open + _FEW:
            self._number(self.open_groups())
        return not self._open

    def _let_go(self, group: Group, component_id: bytes) -> None:
        """A group holds the component of this id no longer."""
        self._known.components -= 1
        others = self._others.get(component_id, {})
        others.pop(group, None)
        if self._holders[component_id] is group:
            del self._holders[component_id]
            if others:
                self._holders[component_id] = others.popitem()[0]
        if not others:
            self._others.pop(component_id, None)

    # -- answers ----------------------------------------------------------------------------------------------------

    def open_groups(self) -> list[Group]:
        """All of them, oldest first."""
        return [each for each in self._groups if each is not None]

    def oldest(self) -> Group:
        """The oldest; there is one."""
        group = self._groups[self._oldest]
        while group is None:
            self._oldest += 1
            group = self._groups[self._oldest]
        return group

    def newest(self) -> Group:
        """The newest; there is one."""
        group = self._groups[self._newest[-1]]
        while group is None:
            self._newest.pop()
            group = self._groups[self._newest[-1]]
        return group

    def newest_taking(self) -> Group | None:
        """The newest that takes components; None: all of them wait."""
        while self._takers:
            group = self._groups[self._takers[-1]]
            if group is not None and is_taking(group):
                return group
            self._takers.pop()
        return None

    def holder(self, component_id: bytes) -> Group | None:
        """The oldest that holds the component of this id."""
        first = self._holders.get(component_id)
        others = self._others.get(component_id) if first is not None else None
        return first if first is None or not others else min((first, *others), key=_AGE)

    def taker(self, source: str | None, arrival: int) -> Group | None:
        """The oldest that takes a component of this source which arrived at this moment, epoch ms (B-99, B-207); None: a new one is to open."""
        takers = self._of_sources.get(source)
        if takers is None:
            takers = self._of_sources[source] = _Takers(len(self._groups))
            self._count()
        for place in takers.stale:
            group = self._groups[place]
            takers.put(place, _NO_ARRIVAL if group is None else group.takes_until(source))
        takers.stale.clear()
        while (found := takers.first_after(arrival)) is not None:
            group = self._groups[found]
            if group is not None:
                return group
            takers.put(found, _NO_ARRIVAL)
        return None

    def followers(self, row: GroupPolicy) -> Iterator[Group]:
        """The groups to offer a version of a row (B-13): those that have changed since they were offered it, at first all of an earlier version; oldest first.

        A change that comes of the offer itself is none: a group that cannot read the version would be offered it with every component. Only of the
        versions that were asked about last this is known: components may name many in turn, which costs no look at groups that have a later one.
        """
        changed = self._to_follow.pop(row.rule, None)
        later = self._to_follow[row.rule] = dict[Group, None]()
        if changed is None:
            if len(self._to_follow) > _VERSIONS:
                del self._to_follow[next(iter(self._to_follow))]
            self._count()
        for group in sorted(self._earlier(row) if changed is None else changed, key=_AGE):
            yield group
            later.pop(group, None)

    def _earlier(self, row: GroupPolicy) -> list[Group]:
        """The groups by an earlier version of a row."""
        return [
            group
            for (row_key, version), groups in self._of_versions.items()
            if row_key == row.row_key and version < row.version
            for group in groups
        ]


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
