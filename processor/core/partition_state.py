"""The state of one partition: its open groups, its memory of closed ones, its clock; the lines of ordered units, and the line of deadlines.

Each method writes one change into a group and into everything that counts or finds it, so that the sums hold between any two of them:
`held_bytes` is the sum over the open groups, `due` is not above the first deadline, and every group with an order key stands in one line.

Belongs here: carrying out what was decided. Does not belong here: events (`partition`), what they mean (`decide`, `command`), the bulk case
(`fast_path`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import count, islice
from operator import itemgetter
from typing import NamedTuple

from uow.processor.core.changes import (
    Announced,
    Closed,
    Corrected,
    Erased,
    Held,
    HeldPiece,
    Opened,
    Removed,
    Waits,
    Warned,
)
from uow.processor.core.closed import ClosedMemory, CommandMemory
from uow.processor.core.columns import Caps, reader_of
from uow.processor.core.command import held_marks
from uow.processor.core.deadlines import Deadlines
from uow.processor.core.decide import Place, pieces_given_up, place_of
from uow.processor.core.faulty_groups import FaultyGroups
from uow.processor.core.gathered import NEVER, Counting, Facts, Ruled
from uow.processor.core.generations import Generations, Known, has_component, is_taking
from uow.processor.core.group import Group
from uow.processor.core.happened import Counts, Happened
from uow.processor.core.plan_size import (
    CLOSE_BYTES,
    ENTRY_BYTES,
    LEDGER_SHARE,
    UNBOUNDED,
)
from uow.processor.core.strays import Strays
from uow.processor.core.virtual_message import UnitMaker
from uow.schemas.component import decode_component
from uow.schemas.error_classes import DecodeError
from uow.schemas.records import UnitOutcome
from uow.topics.catalogue import HELD_LIMIT_BYTES
from uow.topics.commands import CommandReader
from uow.topics.grouping import GroupPolicy, NoRules, RuleTable
from uow.topics.headers import MAX_ID_BYTES, Reading
from uow.topics.partitioner import partition_for
from uow.topics.policies import NEVER_MS, DestinationPolicy, ExpirationPolicy, LatePolicy
from uow.topics.rules import AtMaxOpenGroups

GROUP_BYTES = 800
COMPONENT_BYTES = 100
"""Memory of a group and of a component beside their bytes: objects, table entries, deadlines. `tests/engine/test_memory.py` measures it."""
NOTHING = -1
"""No record is in hand."""

ByArrival = list[tuple[Place, int, Group]]
"""Groups of a rule as a heap by their places. A closed one stays until it comes up, and may have the place of an open one: once its id is forgotten, generations count from 1 again. Then a serial number decides."""


class PartitionAddress(NamedTuple):
    """Which partition this is.

    Attributes:
        destination: Name of the destination.
        topic: `D.components`.
        partition: Its number.
        partitions: How many `D.components` has.
        partition_for: Which of them a key belongs to.
    """

    destination: str
    topic: str
    partition: int
    partitions: int
    partition_for: Callable[[bytes, int], int] = partition_for


class Kept(NamedTuple):
    """The components of a unit that was delivered in part, for a component that comes late (B-205), and what is remembered of its group."""

    group: Group
    closed: Closed

    @property
    def memory_bytes(self) -> int:
        return GROUP_BYTES + COMPONENT_BYTES * len(self.group.held) + self.group.bytes


def _aside_key(group: Group) -> bytes:
    """Longer than any id, and another one for each id and generation: an id may end in the very bytes that fill it up, so its length belongs to it."""
    length = len(group.id).to_bytes(2, "big")
    return group.id.ljust(MAX_ID_BYTES + 1, b"\0") + length + group.generation.to_bytes(8, "big")


def _was_complete(group: Group, outcome: UnitOutcome) -> bool:
    """True if its unit was complete when it left, if only without numbers that were waived."""
    return outcome is UnitOutcome.COMPLETE or (outcome is UnitOutcome.PARTIAL and group.complete)


def _completed(group: Group) -> tuple[int, int]:
    """When a group that waits was complete, and its last component's offset: nothing else of it survives a restart."""
    assert group.ruled is not None
    last = next(reversed(group.held.values()), None)
    return group.ruled.waits_since, -1 if last is None else decode_component(last).source.offset


class PartitionState:
    """The state of one partition.

    Args:
        place: Which one.
        policy: Of the destination.
        plan_bytes: Most that the groups which one plan closes may weigh (`uow.processor.core.plan_size`).
        rules: The rows of the destination's rules.
        roll_over_bytes: Bytes that the components of a group may have whose numbers are assigned, so that its unit fits a record (B-59).
        faulty: Groups at which the code failed, before this was restored as well.

    Attributes:
        groups: Open groups by id.
        closed: Memory of closed ones.
        commands: Memory of commands.
        command_reader: Reads them, and knows who may send which.
        refused_early: Offsets of commands that were refused, and answered, before their turn. An owner that does not know of them answers them again.
        kept: By id, oldest first, the components of units that a late component may correct (B-205).
        kept_bytes: About the memory that they take.
        clock: Epoch ms; never goes backwards.
        latest: An append time after this is not believed: it does not move the clock (decision 17).
        disbelieved: How many there were.
        position: Next input offset.
        command_position: Next offset of `D.commands`.
        held_bytes: Sum over the open groups, without what stays in `D.components`.
        piece_count: Pieces of components that are held.
        manifest_bytes: Memory of the manifests of the open groups.
        fed_bytes: Bytes of plain components fed so far, and of values that stay where they are.
        unit_deadlines: The line of deadlines of units of work.
        rule_deadlines: The line of deadlines of groups by rule, which only the end of the partition and of the routers' inputs moves (B-218).
        aside: Open groups by rule whose key has another one at its place in `groups`, by key and generation. There each stands under a key
            that is longer than any id.
        several: The open groups of keys that have several, or had, as far as somebody asked (`generations`).
        known: How many components they know.
        waiting: Groups that are complete and not allowed to leave, by the rule's id, in the order in which they were complete.
        credits: Rules of which the next group that is complete may leave at once (B-105).
        by_rule: Open groups by rule, by the rule's id.
        by_arrival: The same as heaps by their places, of rules that were asked for their oldest group; closed ones leave when they come up (B-37).
        by_time: Those that came up there before their time, as heaps by that: until then they give way to none.
        counted: How the groups of rows count, by their names (`counted_groups`).
        awaits_rule: Name of a row that is not known as far as `A-rules` was read, so that `position` stays at its record; or None.
        arrivals: Groups of the rules that deliver in order, by the rule's id, as a heap by their places; closed ones leave when they come up (B-118).
        freed: Groups that became the first of their rule while they waited for that.
        strays: Components without a group, by the key of their row (`uow.processor.core.strays`).
        rules_read_before: Offset before which every name that is unknown does not exist.
        commands_known_before: The same for names that manifests give; an offset of `D.commands`.
        commands_read_before: What that is to be once the rules are read.
        live: Rows that open groups have taken while they were open, by rule and routing name: the latest version of each (B-13).
        left_bytes: The rest of `plan_bytes`; below 0 nothing more is closed or decided until `take_happened`.
        is_cut: True if something was left for the next plan.
        in_hand: Offset of the record whose own step is carried out; `NOTHING` while that of another group is, or none.
        command_in_hand: Offset of the command that was decided last, if nothing had happened before it since the last plan; else `NOTHING`.
        lines: Open groups by order key and id, in the order in which they opened (W-210).
    """

    def __init__(
        self,
        place: PartitionAddress,
        policy: DestinationPolicy,
        plan_bytes: int = UNBOUNDED,
        rules: RuleTable | None = None,
        roll_over_bytes: int = UNBOUNDED,
        faulty: FaultyGroups | None = None,
    ) -> None:
        self.place = place
        self.faulty = FaultyGroups() if faulty is None else faulty
        self.policy = policy
        if policy.fits_one_record:
            self.policy = replace(policy, max_bytes=min(policy.max_bytes, HELD_LIMIT_BYTES))
        self.rules: RuleTable = rules or NoRules()
        self.roll_over_bytes = roll_over_bytes
        self.reading = Reading.of(policy)
        self.command_reader = CommandReader(place.destination, policy)
        self.refused_early: set[int] = set()
        self._maker = UnitMaker(place.destination, place.topic, place.partition, self.reading)
        self.reader = reader_of(policy)(place.topic, place.partition, self.reading, Caps.of(policy))
        self.groups: dict[bytes, Group] = {}
        self.closed = ClosedMemory(policy.closed_retention_ms, policy.closed_max_groups)
        self.commands = CommandMemory(policy.closed_retention_ms, policy.closed_max_groups)
        self.kept: dict[bytes, Kept] = {}
        self.kept_bytes = 0
        self.counts = Counts()
        self.clock = 0
        self.latest = NEVER
        self.disbelieved = 0
        self.position = 0
        self.command_position = 0
        self.held_bytes = 0
        self.piece_count = 0
        self.manifest_bytes = 0
        self.fed_bytes = 0
        self.plan_bytes = self.left_bytes = plan_bytes
        self.is_cut = False
        self.in_hand = self.command_in_hand = NOTHING
        self.lines: dict[bytes, dict[bytes, Group]] = {}
        self.happened = Happened()
        self.timed = policy.incomplete_expiration_ms != NEVER_MS or policy.idle_expiration_ms != NEVER_MS
        self.unit_deadlines = Deadlines(policy, self.faulty)
        self.rule_deadlines = Deadlines(policy, self.faulty)
        self.by_rule: dict[str, dict[Group, None]] = {}
        self.by_arrival: dict[str, ByArrival] = {}
        self.by_time: dict[str, list[tuple[int, tuple[Place, int, Group]]]] = {}
        self.aside: dict[bytes, dict[int, Group]] = {}
        self.several: dict[bytes, Generations] = {}
        self.known = Known()
        self.waiting: dict[str, dict[Group, None]] = {}
        self.credits: set[str] = set()
        self.arrivals: dict[str, ByArrival] = {}
        self._serials = count()
        self.freed: dict[Group, None] = {}
        self._is_freeing = False
        self.strays = Strays()
        self.counted: dict[str, Counting] = {}
        self.awaits_rule: str | None = None
        self.rules_read_before = 0
        self.commands_known_before = self.commands_read_before = 0
        self.live: dict[str, GroupPolicy] = {}
        self._is_freed = False

    def is_full(self) -> bool:
        """True if whatever comes must wait for the next plan."""
        return self.left_bytes < 0

    def elsewhere(self, group_id: bytes) -> int | None:
        """The partition an id belongs to if it is not this one, else None (line 6).

        Asked only where no open group of the id is here: a group never opens on a wrong partition. A closed one may be of a time when there
        were fewer partitions (W-107).
        """
        home = self.place.partition_for(group_id, self.place.partitions)
        return None if home == self.place.partition else home

    def may_open(self, group_id: bytes) -> bool:
        """True if a plain component of an id that has no group in `groups` opens one: it belongs here, and no group by rule of it waits."""
        return group_id not in self.aside and self.elsewhere(group_id) is None

    # -- changes ----------------------------------------------------------------------------------------------------

    def open(self, opened: Opened) -> Group:
        """The new group."""
        if opened.policy is not None:
            self.put_aside(opened.id)
        group = self._put(Group(opened.id, opened.generation, opened.at))
        if opened.policy is not None:
            self.open_by_rule(group, opened.policy)
        if opened.order_key:
            self.line_up(group, opened.order_key)
        return group

    def open_by_rule(self, group: Group, policy: GroupPolicy, deadlines: tuple[int, ...] = ()) -> None:
        """The group is one of this row; in a restore with what it holds already, see `Group.rule`. Raises `DecodeError` if that cannot be read."""
        group.rule(policy, deadlines)
        self.by_rule.setdefault(policy.rule_id, {})[group] = None
        if (line := self.by_arrival.get(policy.rule_id)) is not None:
            heappush(line, self._entry(group))
            if self._are_mostly_closed(len(line) + len(self.by_time[policy.rule_id]), policy.rule_id):
                del self.by_arrival[policy.rule_id], self.by_time[policy.rule_id]
        if policy.delivers_in_order:
            self._arrive(group, policy)

    def too_many(self, row: GroupPolicy) -> int:
        """How many open groups of a rule must go before one more opens (B-37). Those that have their turn go by themselves."""
        many = len(self.by_rule.get(row.rule_id, ())) + 1 - row.max_open_groups
        if many > 0 and self.freed and (line := self.arrivals.get(row.rule_id)) is not None:
            self._free_all(line)
            many -= len(self._with_turn(row.rule_id))
        return max(0, many)

    def has_room(self, row: GroupPolicy) -> bool:
        """True if one more group of a rule may open, once others have given way to it."""
        many = self.too_many(row)
        if not many or row.at_max_open_groups is not AtMaxOpenGroups.CLOSE_OLDEST:
            return not many
        if self.faulty:  # one at which the code fails cannot be closed now, and concerns itself alone: it takes no room
            many -= sum(map(self.faulty.has, self.by_rule[row.rule_id]))
        if many <= 1:
            return many < 1 or self.oldest_of_rule(row.rule_id) is not None
        return sum(map(self._gives_way, self.by_rule[row.rule_id])) >= many

    def oldest_of_rule(self, rule_id: str) -> Group | None:
        """Of the open groups of a rule that give way to another one the one that arrived first: a restart knows no other order (B-37)."""
        line = self.by_arrival.get(rule_id)
        if line is None:
            line = self.by_arrival[rule_id] = [self._entry(each) for each in self.by_rule.get(rule_id, ())]
            heapify(line)
            self.by_time[rule_id] = []
        later = self.by_time[rule_id]
        while later and later[0][0] <= self.clock:
            heappush(line, heappop(later)[-1])
        while line and not self._gives_way(group := line[0][-1]):
            entry = heappop(line)
            if not self._never_gives_way(group):
                heappush(later, (group.deliver_at, entry))
        return line[0][-1] if line else None

    def _may_give_way(self, group: Group, ruled: Ruled) -> None:
        """A group has changed, and may give way though its time has not come, or its time is another one: it stands among those by arrival once more."""
        if self.by_time.get(ruled.policy.rule_id):
            heappush(self.by_arrival[ruled.policy.rule_id], self._entry(group))

    def _never_gives_way(self, group: Group) -> bool:
        """True if it is closed, cannot be closed, or is complete and waits: a complete unit is not given up for another one."""
        return not group.is_open or self.faulty.has(group) or (group.ruled is not None and group.ruled.waits_since > 0)

    def _gives_way(self, group: Group) -> bool:
        """True if it may be closed to make room: also not if what it holds would be delivered before its time (W-08)."""
        if self._never_gives_way(group):
            return False
        by = group.policy(self.policy).expiration_policy
        return group.deliver_at <= self.clock or by is not ExpirationPolicy.DELIVER_PARTIAL

    @property
    def closed_in_lines(self) -> int:
        """How many closed groups stand among those by arrival still, about."""
        lines = [(rule_id, len(line)) for rule_id, line in self.arrivals.items()]
        lines += [(rule_id, len(line) + len(self.by_time[rule_id])) for rule_id, line in self.by_arrival.items()]
        return sum(max(0, length - len(self.by_rule.get(rule_id, ()))) for rule_id, length in lines)

    def _are_mostly_closed(self, length: int, rule_id: str) -> bool:
        """True if lines of this length are to be tidied: most of their groups are closed, and they are many."""
        return length > 2 * len(self.by_rule[rule_id]) + 1024

    def _entry(self, group: Group) -> tuple[Place, int, Group]:
        return place_of(group), next(self._serials), group

    # -- groups of a rule in the order of their arrival (B-118) ---------------------------------------------------------

    def first_place(self, policy: DestinationPolicy) -> Place | None:
        """The place of the first open group of a rule that delivers in order."""
        first = self._first_arrived(policy.rule_id) if isinstance(policy, GroupPolicy) else None
        return None if first is None else place_of(first)

    def _first_arrived(self, rule_id: str) -> Group | None:
        line = self.arrivals.get(rule_id)
        while line and not self._is_waited_for(line[0][-1]):
            heappop(line)
        if not line:
            self.arrivals.pop(rule_id, None)
            return None
        return line[0][-1]

    def _is_waited_for(self, group: Group) -> bool:
        """False if it is closed, cannot leave, or has taken a version of its row by which nobody waits for it."""
        if not group.is_open or (self.faulty and self.faulty.has(group)):
            return False
        return group.ruled is not None and group.ruled.policy.delivers_in_order

    def _arrive(self, group: Group, policy: GroupPolicy) -> None:
        line = self.arrivals.setdefault(policy.rule_id, [])
        if self.freed:
            self._free_all(line)
        if self._are_mostly_closed(len(line), policy.rule_id):
            line[:] = [each for each in line if each[-1].is_open]
            heapify(line)
        before = self._first_arrived(policy.rule_id)
        heappush(self.arrivals.setdefault(policy.rule_id, line), self._entry(group))
        if before is not None and before.ruled is not None and place_of(group) < place_of(before):
            before.ruled.is_behind = before.ruled.waits_since > 0 and before not in self.freed
        if any(place_of(group) < place_of(each) for each in self._with_turn(policy.rule_id)):
            self.tell_turns(policy.rule_id)

    def _free_first(self, rule_id: str) -> None:
        """Whoever is first of a rule now waits for nobody."""
        first = self._first_arrived(rule_id)
        if first is not None and first.ruled is not None and first.ruled.is_behind:
            first.ruled.is_behind = False
            if first.deliver_at <= self.clock:
                self.freed[first] = None
            self.schedule(first)

    def has_turn(self, rule_id: str) -> bool:
        """True if a group of a rule has its turn, and did not leave yet: whatever is complete now leaves after it, even if it arrived before."""
        return bool(self.freed) and bool(self._with_turn(rule_id))

    def _with_turn(self, rule_id: str) -> list[Group]:
        """The groups of a rule that have their turn, in the order in which they leave."""
        return [
            each
            for each in self.freed
            if each.is_open and each.ruled is not None and each.ruled.policy.rule_id == rule_id
        ]

    def tell_turns(self, rule_id: str) -> None:
        """The rows of the groups of a rule say that they have their turn, where nothing else tells it to a restore: it knows the first one of a rule that waits for nothing else, and those that leave right after that."""
        for group in self._with_turn(rule_id):
            if group.ruled is not None and not group.ruled.has_turn:
                group.ruled.has_turn = True
                self.happened.amended.append(group)

    def _free_all(self, line: ByArrival) -> None:
        """Where a full plan left the first of a rule, all who leave at once when that has left have their turn as well: before a group that opens, and none too many that wait."""
        for *_, group in sorted(line):
            if group.ruled is None or not self._is_waited_for(group):
                continue
            if group.deliver_at > self.clock or not (group.ruled.is_behind or group in self.freed):
                return
            group.ruled.is_behind = False
            self.freed[group] = None
            self.schedule(group)

    def follow(self, group: Group, row: GroupPolicy) -> bool:
        """An open group takes a later version of its row (B-13); True if it does. If it is whole by it, it is due, and closes when it is looked at next.

        A restore does the same again by the rows that are `live`. It keeps its own where it is whole already and waits, where the later one numbers in another way, where it gathers replies to a manifest, and where the later one cannot read
        what it holds.
        """
        assert group.ruled is not None
        before, deadlines = group.ruled.policy, group.ruled.deadlines
        if before.row_key != row.row_key or before.version >= row.version or group.ruled.waits_since:
            return False
        if (before.numbering, before.cardinality) != (row.numbering, row.cardinality) or before.gathers_replies:
            return False
        if self.faulty.has(group):  # asked last, since most groups have this version already
            return False
        try:
            group.rule(row)
        except DecodeError:
            group.rule(before, deadlines)
        if group.ruled.policy.delivers_in_order and not before.delivers_in_order:
            self._arrive(group, group.ruled.policy)
        elif before.delivers_in_order and not group.ruled.policy.delivers_in_order:
            self._free_first(before.rule_id)
        self._may_give_way(group, group.ruled)
        if group.complete and group.deliver_at > self.clock:
            self.wait(group, Waits(group.id, group.generation, max(self.clock, 1)))
        else:
            self.schedule(group)
        return group.ruled.policy is row

    def hold_live(self, row: GroupPolicy) -> None:
        """From now on groups of this row are of this version, or of a later one."""
        self.live[row.row_key] = row
        self.happened.live[row.row_key] = row.rule

    # -- several generations of one key (B-99, B-104) -----------------------------------------------------------------

    def generations(self, group_id: bytes) -> Generations | None:
        """The open groups of a key that has several, or had until one closed; None: it has one, or none."""
        found = self.several.get(group_id)
        if found is None and group_id in self.aside:
            front = self.groups.get(group_id)
            groups = [*self.aside[group_id].values(), *(() if front is None else (front,))]
            found = Generations(groups, self.known)
            self.several[group_id] = found
        return found

    def oldest(self, group_id: bytes) -> Group | None:
        """The oldest open group of a key."""
        several = self.generations(group_id)
        return self.groups.get(group_id) if several is None else several.oldest()

    def holder(self, group_id: bytes, component_id: bytes) -> Group | None:
        """The open group by rule of a key that holds the component of this id."""
        several, front = self.generations(group_id), self.groups.get(group_id)
        if several is not None:
            return several.holder(component_id)
        return front if front is not None and has_component(front, component_id) else None

    def taker(self, group_id: bytes, facts: Facts) -> Group | None:
        """The oldest open group of a key that takes a component of these facts; None: a new one is to open (B-99, B-207)."""
        several, front = self.generations(group_id), self.groups.get(group_id)
        if several is not None:
            return several.taker(facts.source, facts.arrival)
        return front if front is not None and front.takes_until(facts.source) > facts.arrival else None

    def followers(self, group_id: bytes, row: GroupPolicy) -> Iterable[Group]:
        """The open groups of a key that were not offered this version of a row yet, oldest first."""
        several, front = self.generations(group_id), self.groups.get(group_id)
        if several is not None:
            return several.followers(row)
        return (front,) if front is not None else ()

    def of_generation(self, group_id: bytes, generation: int) -> Group | None:
        """The open group of this id and generation."""
        front = self.groups.get(group_id)
        if front is not None and front.generation == generation:
            return front
        return self.aside.get(group_id, {}).get(generation)

    def newest(self, group_id: bytes) -> int:
        """The highest generation among the open groups of a key, and among its strays, whose rows stand under theirs; 0 if there are none."""
        several, front = self.generations(group_id), self.groups.get(group_id)
        newest = several.newest() if several is not None else front
        return max(self.strays.newest(group_id), 0 if newest is None else newest.generation)

    def next_generation(self, group_id: bytes) -> int:
        """Generation of the next group of a key."""
        closed = self.closed.get(group_id)
        before = closed.generation if closed is not None else 0
        return max(self.newest(group_id), self.closed.newest_before(group_id), before) + 1

    def _put(self, group: Group) -> Group:
        """Gives a group the place of its key, which is free."""
        self.groups[group.id] = group
        if (several := self.several.get(group.id)) is not None:
            several.add(group)
        return group

    def put_aside(self, group_id: bytes) -> None:
        """Frees the place of a key in `groups`."""
        group = self.groups.pop(group_id, None)
        if group is not None:
            self.aside.setdefault(group_id, {})[group.generation] = group
            self.groups[_aside_key(group)] = group

    def bring(self, group: Group) -> None:
        """Puts an open group at the place of its key in `groups`, where changes are carried out."""
        if self.groups.get(group.id) is group:
            return
        self.put_aside(group.id)
        others = self.aside[group.id]
        del others[group.generation], self.groups[_aside_key(group)]
        if not others:
            del self.aside[group.id]
        self.groups[group.id] = group

    def settle(self, group_id: bytes) -> None:
        """Of several groups of a key the newest that takes components has the place in `groups`; if none does, nobody has it."""
        several, front = self.generations(group_id), self.groups.get(group_id)
        taking = several.newest_taking() if several is not None else front
        if taking is not None and is_taking(taking):
            self.bring(taking)
        else:
            self.put_aside(group_id)

    def wait(self, group: Group, waits: Waits) -> None:
        """The group is complete and waits; where numbers are assigned the next generation may open."""
        assert group.ruled is not None
        group.apply(waits)
        group.ruled.scheduled = NEVER
        in_order, rule_id = group.ruled.policy.delivers_in_order, group.ruled.policy.rule_id
        group.ruled.is_behind = in_order and (
            self.first_place(group.ruled.policy) != place_of(group) or self.has_turn(rule_id)
        )
        line = self.waiting.setdefault(rule_id, {})
        line[group] = None
        before = [*islice(reversed(line), 2)]
        if len(before) == 2 and _completed(before[1]) > _completed(
            group
        ):  # in the same moment: as a restore would have it
            self.waiting[rule_id] = dict.fromkeys(sorted(line, key=_completed))
        self.happened.amended.append(group)
        if group.assigns and self.groups.get(group.id) is group:
            self.put_aside(group.id)
        self.schedule(group)

    def add_restored(self, group: Group) -> None:
        """A group that a restore has found; of one key the newest that does not wait has the place in `groups`."""
        if group.id in self.groups:
            self.put_aside(group.id)
        self._put(group)

    def order_restored(self) -> None:
        """After a restore: who waits, in the order in which they were complete, and who arrived first."""
        ruled = [(group, group.ruled) for group in self.groups.values() if group.ruled is not None]
        self.by_rule, self.waiting, self.arrivals = {}, {}, {}
        meet = self.faulty.meet
        for group, of in ruled:
            self.by_rule.setdefault(of.policy.rule_id, {})[group] = None
            if of.policy.delivers_in_order:
                self._arrive(group, of.policy)
        waiting = [group for group, of in ruled if of.waits_since]
        for group in sorted(waiting, key=lambda each: _completed(meet(each))):
            assert group.ruled is not None
            self.waiting.setdefault(group.ruled.policy.rule_id, {})[group] = None
        self.faulty.at = None
        for group_id in {group.id for group, _ in ruled}:
            self.settle(group_id)
        self.freed.update(dict.fromkeys(sorted((group for group, of in ruled if of.has_turn), key=place_of)))
        before = {of.policy.rule_id for _, of in ruled if of.has_turn}
        for group, of in ruled:
            meet(group)
            waits = of.waits_since > 0 and of.policy.delivers_in_order and not of.has_turn
            of.is_behind = waits and (of.policy.rule_id in before or self.first_place(of.policy) != place_of(group))
            if waits and not of.is_behind and group.deliver_at <= of.waits_since:  # the last plan may have been full
                self.freed[group] = None
        self.faulty.at = None

    def announce(self, group: Group, announced: Announced) -> None:
        """The manifest of a group has come."""
        group.apply(announced)
        self.manifest_bytes += announced.called.memory_bytes
        self.happened.amended.append(group)

    def hold(self, group: Group, held: Held) -> None:
        """Applies a held component to its group, and accounts for it: for its pieces as well, if it came in several."""
        if group.segments is not None and (slots := group.segments.slots(held.seq)):
            self.held_bytes -= group.segments.bytes_of(held.seq)
            self.counts.held -= len(slots)
            self.counts.joined += len(slots)
            self.piece_count -= len(slots)
            self.happened.joined.append((group, slots))
        group.apply(held)
        self.counts.held += 1
        self.held_bytes += len(held.body)
        self.fed_bytes += held.external_bytes
        self.happened.held.append((group, held.seq, held.end, held.offset, held.attributes))

    def hold_piece(self, group: Group, held: HeldPiece) -> None:
        """Applies a held piece of a component to its group, and accounts for it."""
        group.apply(held)
        self.counts.held += 1
        self.piece_count += 1
        self.held_bytes += len(held.body)
        self.happened.pieces.append((group, held.slot))

    def rewrite(self, group: Group, change: Warned | Erased) -> None:
        """Applies a change after which all rows of the group are written: to the plan that is as if it closed."""
        self.left_bytes -= group.bytes + CLOSE_BYTES * (1 + len(group.held))
        before = group.bytes
        group.apply(change)
        self.held_bytes += group.bytes - before
        self.happened.amended.append(group)
        if isinstance(change, Warned):
            self.counts.warned += 1
        else:
            self.happened.erased.append(group)

    def remove(self, group: Group, removed: Removed) -> None:
        """Takes components out of a group, and out of what this poll held."""
        happened, leaving = self.happened, frozenset(removed.seqs)
        places = [(place, seq) for place, seq in enumerate(group.held) if seq in leaving]
        for gone, (place, seq) in enumerate(places):
            happened.removed.append((group, seq, place - gone))
            self.held_bytes -= len(group.held[seq])
        self.counts.cancelled += len(places)
        group.apply(removed)
        happened.amended.append(group)
        if group.ruled is not None:
            self._may_give_way(group, group.ruled)
        if group.ruled is not None and (row := self.live.get(group.ruled.policy.row_key)) is not None:
            self.follow(group, row)  # it may have been this one that the row could not read
        happened.held = [row for row in happened.held if row[0] is not group or row[1] not in leaving]
        if places[0][0] == 0 and self.policy.has_paths:
            self._line_up_anew(group)

    def close(self, group: Group | None, closed: Closed) -> None:
        """Applies a close, and accounts for the components that leave."""
        if closed.id in self.kept:  # of a time before the id was forgotten
            self.let_go(closed.id)
        self.closed.add(closed)
        self.happened.closed.append((group, closed))
        self.left_bytes -= LEDGER_SHARE * (ENTRY_BYTES + len(closed.prints)) + CLOSE_BYTES
        if group is None:
            return
        group.apply(closed)
        if (several := self.several.get(group.id)) is not None and several.closed(group):
            del self.several[group.id]
        if group.ruled is not None:
            self._leave_rule(group, group.ruled, closed.outcome)
        self.left_bytes -= group.bytes + CLOSE_BYTES * len(group.held)
        if group.order_key:
            self._leave_line(group)
        if group.segments is not None:
            self._give_up_pieces(group, closed)
        self.held_bytes -= group.bytes - group.external_bytes
        self.counts.count_closed(closed.outcome, len(group.held))
        if closed.outcome is UnitOutcome.PARTIAL and self.policy.late_policy is LatePolicy.AMEND:
            self._keep(group, closed)

    # -- units that a late component may correct (B-205) -----------------------------------------------------------------

    def _keep(self, group: Group, closed: Closed) -> None:
        """Keeps the components of a unit of work; beyond `amend_max_bytes` those that were kept first are let go."""
        if group.ruled is not None or group.external_bytes:
            return
        kept = Kept(group.again(group.generation), closed)
        self.kept[group.id] = kept
        self.kept_bytes += kept.memory_bytes
        self.happened.kept.append(kept.group)
        self.left_bytes -= group.bytes + CLOSE_BYTES * len(group.held)
        while self.kept_bytes > self.policy.amend_max_bytes:
            self.let_go(next(iter(self.kept)))

    def keeps(self, group: Group) -> bool:
        """True if this is what is kept of its id."""
        kept = self.kept.get(group.id)
        return kept is not None and kept.group is group

    def kept_of(self, group_id: bytes) -> Group | None:
        """The components of the last unit of this id, if it may still be corrected."""
        kept = self.kept.get(group_id)
        if kept is None or self.closed.get(group_id) is not kept.closed:
            return None
        return kept.group if kept.closed.at >= self.clock - self.policy.closed_retention_ms else None

    def correct(self, corrected: Corrected) -> Group:
        """The group of a unit that is made once more. Its components were counted as delivered, and are open until it closes."""
        kept = self.kept[corrected.id].group
        self.let_go(corrected.id)
        group = self._put(kept.again(corrected.generation))
        group.supersede(self._maker.unit_id(kept.id, kept.generation, self._maker.tail(kept)))
        self.counts.delivered -= len(kept.held)
        self.counts.corrected += 1
        self.held_bytes += kept.bytes
        return group

    def let_go(self, group_id: bytes) -> None:
        """The unit of this id cannot be corrected any more."""
        kept = self.kept.pop(group_id)
        self.kept_bytes -= kept.memory_bytes
        self.happened.let_go.append(kept.group)

    def let_go_due(self) -> int:
        """The earliest clock value at which components are kept for too long; `NEVER` if there are none."""
        oldest = next(iter(self.kept.values()), None)
        return NEVER if oldest is None else oldest.closed.at + self.policy.closed_retention_ms + 1

    def let_go_old(self) -> None:
        """Lets go of what is kept for too long, or of ids that are forgotten, as far as the plan has room."""
        while self.kept and not self.is_full():
            group, closed = next(iter(self.kept.values()))
            if self.let_go_due() > self.clock and self.closed.get(group.id) is closed:
                return
            self.left_bytes -= CLOSE_BYTES * len(group.held)
            self.let_go(group.id)

    def restore_kept(self, groups: Iterable[Group]) -> None:
        """Takes what was kept when this was stored, once the closed groups are known; what cannot be corrected any more is let go."""
        found = {group.id: group for group in groups}
        is_wanted = self.policy.late_policy is LatePolicy.AMEND
        for closed in self.closed.order:
            group = found.get(closed.id) if is_wanted and self.closed.get(closed.id) is closed else None
            if group is not None and (group.generation, UnitOutcome.PARTIAL) == (closed.generation, closed.outcome):
                self.kept[closed.id] = kept = Kept(found.pop(closed.id), closed)
                self.kept_bytes += kept.memory_bytes
        self.happened.let_go += found.values()

    def _give_up_pieces(self, group: Group, closed: Closed) -> None:
        """Of components that never were whole what came goes to `D.errors`, whatever becomes of the group (B-124)."""
        assert group.segments is not None
        for taken in pieces_given_up(group, closed):
            self.happened.effects.append((taken, None, group))
            self.counts.count_closed(taken.outcome, 1)
        self.piece_count -= len(group.segments.bodies)
        self.left_bytes -= group.segments.bytes + CLOSE_BYTES * len(group.segments.bodies)
        self.held_bytes -= group.segments.bytes

    def _leave_rule(self, group: Group, ruled: Ruled, outcome: UnitOutcome) -> None:
        rule_id = ruled.policy.rule_id
        if ruled.called is not None:
            self.manifest_bytes -= ruled.called.memory_bytes
            if ruled.called.has_notices:
                self.left_bytes -= CLOSE_BYTES * len(group.unanswered())
        if rule_id in self.credits and not ruled.waits_since and _was_complete(group, outcome):
            self.credits.discard(rule_id)
            self.happened.credits[rule_id] = False
        for table in (self.by_rule, self.waiting):
            siblings = table.get(rule_id, {})
            siblings.pop(group, None)
            if not siblings:
                table.pop(rule_id, None)
        if rule_id not in self.by_rule:
            self.by_arrival.pop(rule_id, None)
            self.by_time.pop(rule_id, None)
        if rule_id in self.arrivals:
            self._free_first(rule_id)

    def fail_written(self, group: Group, before: Closed, after: Closed) -> None:
        """A unit that was to be delivered failed while it was written (W-115)."""
        self.closed.replace(before, after)
        if group.id in self.kept:
            self.let_go(group.id)
        self.counts.corrected -= bool(group.supersedes)
        group.leave_delivered()
        count = len(group.held)
        self.counts.delivered -= count
        self.counts.failed += count

    # -- ordered units (W-210) --------------------------------------------------------------------------------------

    def line_up(self, group: Group, order_key: bytes) -> None:
        """The group has opened after all others of its order key that are open."""
        line = self.lines.setdefault(order_key, {})
        group.line_up(order_key, waits=bool(line))
        line[group.id] = group

    def line_up_again(self, groups: Iterable[Group]) -> None:
        """Groups that are in no line yet, in the order in which they opened."""
        faulty = self.faulty
        places = [(*self._place(faulty.meet(group)), group) for group in groups if not faulty.lacks_rule(group)]
        faulty.at = None
        for _, order_key, group in sorted(places, key=itemgetter(0)):
            if order_key:
                self.line_up(group, order_key)

    def free_again(self) -> None:
        """After a restore: who is first in line and complete was let go of when the clock stood where it does, and its plan was full."""
        for line in self.lines.values():
            next(iter(line.values())).free(self.clock)

    def _line_up_anew(self, group: Group) -> None:
        """The first component was taken out: the group stands where the next one came, maybe in another line."""
        keys = {group.order_key, self._place(group)[1]}
        groups = [each for key in keys for each in self.lines.pop(key, {}).values()]
        if not group.order_key:
            groups.append(group)
        waited = [each for each in groups if each.waits]
        for each in groups:
            each.line_up(b"", waits=False)
        self.line_up_again(groups)
        for each in waited:
            if not each.waits:
                self._free(each)

    def _place(self, group: Group) -> tuple[int, bytes]:
        """Where a group stands among others, and its order key, by the first component held: after a restore nobody knows more."""
        first = decode_component(group.bodies()[0])
        return first.source.offset, held_marks(group.id, first, self.reading).order_key

    def _leave_line(self, group: Group) -> None:
        """Whoever is first in line now waits no longer, since the clock's moment: a restore knows no other (`free_again`)."""
        line = self.lines[group.order_key]
        del line[group.id]
        if not line:
            del self.lines[group.order_key]
            return
        first = next(iter(line.values()))
        if first.waits:
            self._free(first)

    def _free(self, group: Group) -> None:
        group.free(self.clock)
        self.schedule(group)
        self._is_freed = True

    # -- deadlines --------------------------------------------------------------------------------------------------

    @property
    def due(self) -> int:
        """A clock value before which no unit of work needs to be looked at."""
        return self.unit_deadlines.due

    @property
    def deadlines(self) -> int:
        """How many there are in line, stale ones included."""
        return len(self.unit_deadlines) + len(self.rule_deadlines)

    def first_due(self, now: int) -> Group | None:
        """The unit of work with the earliest deadline, if it is due by `now`."""
        return self.unit_deadlines.first_due(now)

    def first_deadline(self) -> int | None:
        """When the first open group will be given up, or delivered by the clock, epoch ms; None: nothing is open, or it has no deadline."""
        lines = (self.unit_deadlines, self.rule_deadlines)
        found = [group.deadline(self.policy) for line in lines if (group := line.first()) is not None]
        return min((each for each in found if each is not None), default=None)

    def schedule(self, group: Group) -> None:
        """Puts a group's next moment of interest in line. Entries that became too early are put right when they come up."""
        (self.unit_deadlines if group.ruled is None else self.rule_deadlines).schedule(group)

    def take_happened(self) -> Happened:
        """Hands out `happened`, once, and begins the next plan: with all of `plan_bytes`, without old closed groups and stale deadlines."""
        self.closed.trim(self.clock)
        if self.kept:
            self.let_go_old()
        happened, self.happened = self.happened, Happened()
        self.left_bytes, self.is_cut = self.plan_bytes, False
        self.awaits_rule = None
        if self.deadlines > 2 * len(self.groups) + 1024:
            self.unit_deadlines.drop_stale()
            self.rule_deadlines.drop_stale()
        return happened

    def reschedule(self, groups: Iterable[Group]) -> None:
        """Puts all deadlines in line anew."""
        self.unit_deadlines = Deadlines(self.policy, self.faulty)
        self.rule_deadlines = Deadlines(self.policy, self.faulty)
        for group in groups:
            self.faulty.at = group
            if group.ruled is not None:
                group.ruled.scheduled = NEVER
            self.schedule(group)
        self.faulty.at = None
