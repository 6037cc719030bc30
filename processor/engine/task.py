"""The task of one partition: records in, a plan out. Pure; nothing is sent while a plan is made (EN-01).

A plan has rows for what is still held after the poll and is to be promoted: a component whose group opened and closed inside it has no row in
the changelog, nor has one of a replayable group (`replayable`). With replay bounds of 0 every group is promoted at once, so the changelog alone restores the open
groups and the replay floor is the position.

Belongs here: turning what happened in the core into a plan, and back into state. Does not belong here: rules (`uow.processor.core`), bytes
of single records (`rows`, `outputs`), and sending (`uow.processor.kafka`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple

from uow.processor.core.changes import (
    Amended,
    Closed,
    Delivered,
    Undelivered,
    Waits,
    Warned,
)
from uow.processor.core.columns import looked_at
from uow.processor.core.faulty_groups import GroupFault, GroupKey
from uow.processor.core.gathered import NEVER, Called
from uow.processor.core.group import Group
from uow.processor.core.happened import Counts, Happened, HeldRow, Outward
from uow.processor.core.partition import Partition
from uow.processor.core.partition_state import COMPONENT_BYTES, GROUP_BYTES
from uow.processor.core.strays import Stray
from uow.processor.engine.context import TaskContext
from uow.processor.engine.group_storage import (
    begin_anew,
    has_group_row,
    is_replayable,
    pieces_of,
    rows_of,
    storage_of,
)
from uow.processor.engine.group_view import count_at_risk
from uow.processor.engine.outputs import WrittenOutputs, too_large
from uow.processor.engine.ports import (
    Output,
    Plan,
    RawRecord,
    Tp,
)
from uow.processor.engine.replay import Replayed
from uow.processor.engine.replayable import ReplayableGroups
from uow.processor.engine.routed_units import writer_of
from uow.processor.engine.rows import (
    attributes_in,
    begin_rows,
    component_row,
    group_row,
    kept_rows,
    ledger_value,
    piece_row,
    promotion_rows,
    take_kept_rows,
    tombstone_key,
    tombstone_keys,
)
from uow.processor.engine.rule_figures import OpenFigures, open_figures
from uow.processor.engine.shapes import UnitTooLargeForRecordError
from uow.processor.engine.target_topics import WaitingRecords
from uow.schemas.claim_check import external_bytes
from uow.schemas.error_classes import DecodeError, InternalError, InvariantViolation, UnitTooLargeError, UowError
from uow.schemas.records import (
    SETTINGS_KEY,
    Attributes,
    DecidedCommand,
    GroupRow,
)
from uow.topics.commands import Asked, AskedInVain
from uow.topics.grouping import GroupPolicy, NoRules
from uow.topics.headers import RULE
from uow.topics.path_map import MOST_ENDED, PARTITION, line_of
from uow.topics.policies import HandlingPolicy

log = logging.getLogger("uow.partition")

PIECE_BYTES = 350
"""Memory of a held piece of a component beyond that: its slot, its place, and the bytes that it gives."""
RULED_BYTES = 500
"""Memory of a group by rule beyond that: ids of its components, and what its conditions look at."""
STRAY_BYTES = 1_500
"""Memory of a component without a group beside its bytes."""
SEVERAL_BYTES = 1_900
"""Memory of the answers about the groups of a key that has several."""
KNOWN_BYTES = 110
"""Memory of knowing which of them has a component."""
PLACE_BYTES = 45
"""Memory of knowing until when one of them takes components of one source, or that it was offered one version of its row."""
STALE_BYTES = 600
"""Memory of a closed group that is still in the queue of replayable ones, among the deadlines or in a line by arrival: its components are let go."""

RISK_SAMPLE = 10_000
"""Groups looked at for those at risk: they stand in order of opening, and a scrape must not take long."""

CREDIT_KEY = b"\x03"
"""Begins the key of a row of the changelog: a rule's next complete group need not wait for a release (B-105)."""
LIVE_KEY = b"\x04"
"""The same: rule and routing name whose open groups have taken the row that the value names (B-13)."""

LEAVE_EVERY_MS = 5_000
"""How often placements are ended (W-106): a transaction that ends some holds back the path map's readers until it is over."""


def offset_metadata(floor: int, rows: int, clock: int, context: TaskContext) -> str:
    """Text beside the committed offset: replay floor, live rows of the changelog, the clock, the marks of the settings (W-68) and of the rights to commands.

    Also the partition count, where it binds groups (W-107).
    """
    text = f"1;F={floor};R={rows}"
    if context.policy.is_bound_to_count:
        text += f";P={context.partitions}"
    text += f";C={clock}"
    settings = context.recorded_settings
    return text if settings is None else f"{text};S={settings.mark}{settings.rights}"


class _Unwritten(NamedTuple):
    """The error of a unit that cannot be written, and more about it for people."""

    error: type[UowError]
    detail: str = ""


class PartitionTask:
    """State of one partition of one destination.

    Args:
        tp: The partition of `D.components`.
        context: Of its destination.

    Attributes:
        blocked: Why the partition must not be read, or None (EN-08).
        rows: Live rows of the changelog: components of promoted groups. Committed beside the offset, so that a restore misses none.
        forgets_until: Ids may come back until then (epoch ms) that nobody remembers, though they closed within `closed_retention_ms`: a
            part of the ledger was gone when this was restored (W-19), or memory was short. 0: there are none.
        forgotten: How many closed groups were forgotten before their time, for want of memory.
        has_let_go: True once its state is gone, since another task is being restored in its place.
    """

    def __init__(self, tp: Tp, context: TaskContext) -> None:
        self.tp = tp
        self.context = context
        self.partition = self._empty_partition()
        self.writer = writer_of(context, tp.partition, self.partition.reading)
        self.replayable = ReplayableGroups(context.replay)
        self.blocked: str | None = None
        self.rows = 0
        self.forgets_until = 0
        self.forgotten = 0
        self._has_warned = self._has_let_go = False
        self._unrecorded = context.recorded_settings
        self._leave_at = 0
        self._is_of_command = False
        self._credit_rows: set[bytes] = set()
        self._live_rows: set[bytes] = set()
        self.waiting_records = WaitingRecords()
        self._planned = 0
        self.has_let_go = False

    def _empty_partition(self) -> Partition:
        context = self.context
        empty = Partition(
            context.place(self.tp.partition),
            context.policy,
            context.plan_bytes,
            context.rules,
            context.roll_over_bytes,
            None
            if context.policy.strict_order
            else context.faults.of(self.tp).begin(),  # there nothing comes out before what stands
        )
        empty.refused_early = context.refused_early[self.tp.partition]
        return empty

    def let_go(self) -> None:
        """Lets go of everything held and remembered: it is not what is committed, and another task takes its place once it is restored. This one makes no plan any more."""
        self.has_let_go = True
        useless, empty = self.partition, self._empty_partition()
        empty.position, empty.command_position, empty.clock = useless.position, useless.command_position, useless.clock
        self.partition = empty  # as a whole: pages and metrics look at any moment
        self.replayable = ReplayableGroups(self.context.replay)
        self.waiting_records = WaitingRecords()

    @property
    def position(self) -> int:
        """Next input offset."""
        return self.partition.position

    @property
    def command_position(self) -> int:
        """Next offset of the same partition of `D.commands`."""
        return self.partition.command_position

    @property
    def in_hand(self) -> int:
        """Offset of the record whose own step raised, where one did: it and no other group, nor the making of outputs; else `NOTHING`."""
        return self.partition.in_hand

    @property
    def command_in_hand(self) -> int:
        """Offset of the command that alone can be at fault where something raised; else `NOTHING`."""
        return self.partition.command_in_hand

    @property
    def groups_alone(self) -> Mapping[GroupKey, GroupFault]:
        """Groups at which the code fails and that cannot even be closed. Any thread may ask."""
        return self.partition.faulty.alone

    @property
    def counts(self) -> Counts:
        """Where records went (EN-10)."""
        return self.partition.counts

    @property
    def groups(self) -> Mapping[bytes, Group]:
        """Open groups by id."""
        return self.partition.groups

    @property
    def held_bytes(self) -> int:
        """Bytes of the components held."""
        return self.partition.held_bytes

    def count_at_risk(self, now_ms: int) -> int:
        """How many of the groups that opened first have used up most of their time (W-211)."""
        return count_at_risk(islice(self.groups.values(), RISK_SAMPLE), self.context.policy, now_ms)

    def open_by_rule(self, now_ms: int) -> dict[str, OpenFigures]:
        """Figures of the open groups of each rule."""
        return open_figures(self.partition.by_rule, self.context.policy, now_ms)

    @property
    def closed_groups(self) -> int:
        """Closed ids remembered."""
        return len(self.partition.closed)

    @property
    def correctable_units(self) -> int:
        """Units whose components are kept for a late one (B-205)."""
        return len(self.partition.kept)

    @property
    def orphans(self) -> int:
        """Components without a group that its restore found."""
        return len(self.partition.strays)

    @property
    def clock(self) -> int:
        """The partition's clock, epoch ms."""
        return self.partition.clock

    @property
    def disbelieved(self) -> int:
        """Append times that did not move it."""
        return self.partition.disbelieved

    @property
    def memory_bytes(self) -> int:
        """About the memory that open groups take: a million of one small component each are mostly not bytes of components.

        Groups that closed and stand in a line still are counted as well.
        """
        partition = self.partition
        opened = len(partition.groups)
        stale = max(0, len(self.replayable) - opened) + max(0, partition.deadlines - opened) + partition.closed_in_lines
        by_rule = sum(map(len, partition.by_rule.values()))
        strays = STRAY_BYTES * len(partition.strays) + partition.strays.size
        pieces = PIECE_BYTES * partition.piece_count
        components = (
            partition.held_bytes + partition.manifest_bytes + COMPONENT_BYTES * partition.counts.open + strays + pieces
        )
        return (
            components
            + GROUP_BYTES * opened
            + RULED_BYTES * by_rule
            + SEVERAL_BYTES * len(partition.several)
            + KNOWN_BYTES * partition.known.components
            + PLACE_BYTES * partition.known.places
            + STALE_BYTES * stale
            + self.waiting_records.memory_bytes
        )

    @property
    def table_bytes(self) -> int:
        """About the memory that look-up tables by header names take; bounded."""
        return self.partition.reader.memory_bytes

    @property
    def remembered_bytes(self) -> int:
        """About the memory that closed ids take, their fingerprints, components kept for corrections, and commands."""
        partition = self.partition
        return partition.closed.memory_bytes + partition.kept_bytes + partition.commands.memory_bytes

    def forget(self, spare_bytes: int) -> None:
        """Forgets the oldest of what is remembered, before its time, until so many bytes are spared; logs once what follows from it.

        First goes what is kept for corrections: a late component is refused then.
        """
        partition = self.partition
        until = partition.kept_bytes - spare_bytes
        if partition.kept:
            while partition.kept and partition.kept_bytes > until:
                partition.let_go(next(iter(partition.kept)))
            if not self._has_let_go:
                self._has_let_go = True
                log.warning(
                    "%s/%d: what is remembered takes more than its share of memory_limit_bytes, so components of units delivered in part are let go "
                    "before closed_retention_ms: a late component of one is refused",
                    *self.tp,
                )
            return
        before = len(partition.closed.order)
        youngest = partition.closed.shrink(spare_bytes)
        self.forgotten += before - len(partition.closed.order)
        if youngest is None:
            partition.commands.shrink(spare_bytes)
            return
        self.forgets_until = max(self.forgets_until, youngest.at + self.context.policy.closed_retention_ms)
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s/%d: closed ids take more than their share of memory_limit_bytes, so the oldest are forgotten before closed_retention_ms: "
                "a late component of one opens a new group",
                *self.tp,
            )

    def next_deadline(self) -> int | None:
        """The wall clock must be strictly after this (epoch ms) before a tick can do anything; None: no deadline."""
        partition = self.partition
        if self._unrecorded is not None or self._may_leave() or partition.happened.let_go or partition.freed:
            return 0
        if partition.faulty and partition.to_be_closed():
            return 0
        due = min(
            partition.due,
            partition.rule_deadlines.due,
            partition.let_go_due(),
            self.replayable.due_at(),
            self._leave_due(),
        )
        return None if due == NEVER else due - 1

    @property
    def first_deadline(self) -> int | None:
        """Of the open groups, epoch ms; for people."""
        return self.partition.first_deadline()

    def believe(self, latest_ms: int) -> None:
        """An append time after this cannot be, and does not move the clock."""
        self.partition.latest = latest_ms

    def on_records(self, records: Sequence[RawRecord]) -> bool:
        """Records of a poll before those that `process` gets: the plan is of all of them. False once the plan is full."""
        if self.forgets_until and records:
            self._look_back(records[0].timestamp()[1])
        return self.partition.on_records(records)

    def _look_back(self, at: int) -> None:
        """Tells once, and only if a record was appended in time to belong to what is forgotten."""
        if at >= self.forgets_until:
            self.forgets_until = 0
        elif not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s/%d: a part of the ledger is gone, and with it ids that closed recently: until %s (append time) a late component "
                "opens a new group, and a unit that is sent again is delivered again",
                *self.tp,
                datetime.fromtimestamp(self.forgets_until / 1000, UTC).isoformat(),
            )

    @property
    def forgotten_until(self) -> int:
        """As `forgets_until`, once a record was read that may belong to what is forgotten; else 0."""
        return self.forgets_until if self._has_warned else 0

    def process(self, records: Sequence[RawRecord], commands: Sequence[RawRecord] = ()) -> Plan:
        """One poll's records of this partition, and of the same partition of `D.commands`; both in offset order.

        Returns:
            A plan. It may be cut before the last record: positions say how far it goes, and the rest is to be given once more.
        """
        self.take(records, commands)
        self._is_of_command = not records and len(commands) == 1
        return self._plan()

    def take(self, records: Sequence[RawRecord], commands: Sequence[RawRecord]) -> None:
        """Between the topics append times decide; a component goes before a command of the same moment."""
        fed = 0

        def on_records_until(at: int) -> bool:
            nonlocal fed
            first = fed
            while fed < len(records) and records[fed].timestamp()[1] <= at:
                fed += 1
            return self.on_records(records[first:fed])

        self.partition.on_commands(commands, on_records_until)
        self.on_records(records[fed:])

    def set_aside(self, record: RawRecord, why: UowError, asked: Asked | None = None) -> Plan:
        """The plan of a record at which the code failed, or that blocks: it is refused, whatever it is."""
        for _, seen in looked_at([record]):
            self.partition.set_aside(seen, why, asked)
        return self._plan()

    def refuse_command(self, record: RawRecord, why: UowError) -> Plan:
        """The plan of a command at which the code failed, or whose outputs a broker refuses: it is answered, and does nothing."""
        self.partition.refuse_command(record, why)
        self._is_of_command = True
        return self._plan()

    def has_answered(self, asked: Asked | AskedInVain) -> bool:
        """True if a command was answered before it was its turn."""
        if isinstance(asked, AskedInVain):
            return asked.offset in self.partition.refused_early
        return self.partition.has_answered(asked.command, asked.at)

    def note_refused(self, offsets: Sequence[int]) -> None:
        """The answers of these commands, refused before their turn, are written."""
        known = self.partition.refused_early
        known.difference_update([each for each in known if each < self.command_position])
        known.update(offsets)

    def answer_early(self, answers: Sequence[tuple[Asked | AskedInVain, str]]) -> Plan:
        """The plan of commands to set other records aside than the one that blocks: they are answered, and do nothing."""
        for asked, text in answers:
            self.partition.answer_early(asked, done=False, text=text)
        return self._plan()

    def read_rules(self, before: int, meanwhile: Callable[[], object]) -> None:
        """A plan waits for the name of a row (`Plan.awaits_rule`): reads `A-rules` to its end.

        Args:
            before: Offset behind the last record of that poll: rows are written before, or with, the first component that names them, so
                a name in it that is not there then does not exist.
            meanwhile: As of `RuleTable.catch_up`, which also says what is raised.
        """
        self.context.rules.catch_up(meanwhile)
        partition = self.partition
        partition.rules_read_before = max(partition.rules_read_before, before)
        partition.commands_known_before = partition.commands_read_before

    def tick(self, now_ms: int, settled_ms: int | None = None) -> Plan | None:
        """The partition was read to an end offset that was asked for at `now_ms` (W-82): what is due then closes.

        Args:
            now_ms: The wall clock just before that.
            settled_ms: The same for groups by rule: whatever arrived at the routers before it was there by then (B-218). None: `now_ms`.

        Returns:
            A plan, or None if nothing was due. The first one of a partition records what its workers agree on, due or not. It may be cut:
            what is left is due at once.
        """
        partition = self.partition
        if partition.close_faulty():
            return self._plan()
        reached = max(now_ms, partition.clock)
        settled = reached if settled_ms is None else min(settled_ms, reached)
        by_rule = partition.rule_deadlines.first_due(settled) is not None
        upkeep = min(self._leave_due(), partition.let_go_due())
        due = partition.first_due(now_ms) is not None or upkeep <= now_ms or by_rule
        left = bool(partition.freed)
        if due:
            partition.is_cut = not (partition.advance(now_ms) and partition.advance_rules(settled))
        elif left:  # which does not move the clock: no plan would have, had it not been full
            partition.deliver_left()
        aged = list(self.replayable.overdue(partition.position, partition.fed_bytes, now_ms))
        has_more = self._unrecorded is not None or self._may_leave() or bool(partition.happened.let_go)
        return self._plan(aged) if due or left or aged or has_more else None

    def drain(self) -> Plan | None:
        """A clean stop promotes every replayable group, so that whoever comes next need not read the input again.

        Returns:
            A plan, or None if there is no replayable group.
        """
        groups = list(self.replayable.all())
        return self._plan(groups) if groups else None

    # -- plan -------------------------------------------------------------------------------------------------------

    def _plan(self, promoted: Iterable[Group] = ()) -> Plan:
        """The plan of all that happened since the last one.

        The order of the steps is that of what they change:

        1. Outputs first: a unit that turns out to fit no record fails, and `closed` says so before the ledger does.
        2. `removed` before the tombstones of closed groups, since these count on how many of the components held have rows.
        3. A closed group lets go of its components once nothing asks for them: its outputs and its tombstones are made.
        4. A group of which a component was erased has its rows once more, all of them: places of rows are the order of arrival, also once they are compacted.
        5. Tombstones before rows: an id that closed and opened again has rows under the same keys. `rows` counts live rows, so each
           tombstone is one less, and each row one more.
        6. A group's own row after those of its components: a restore that finds it finds them.
        7. The replay floor after promotion: it is that of the groups which are still replayable.
        8. The ledger record last, from the position of the plan before to that of this one: together they have no gap.

        Args:
            promoted: Groups that are to have rows from now on, whatever happened to them.
        """
        partition, context = self.partition, self.context
        partition.faulty.at = None
        is_cut, awaits_rule = partition.is_cut or bool(partition.freed), partition.awaits_rule
        happened = self._take_happened()
        topics = context.topics
        plan = Plan(
            self.tp,
            topics.groups_changelog,
            topics.closed_changelog,
            partition.position,
            topics.commands,
            partition.command_position,
            rejected_topic=topics.rejected,
            is_cut=is_cut,
            awaits_rule=awaits_rule,
        )
        written = WrittenOutputs(plan.outputs, plan.log_lines, external=plan.external, bare=plan.bare)
        closed = happened.closed
        if partition.faulty:
            partition.faulty.closed = [(one.id, one.generation) for _, one in closed]
        for outward in happened.effects:
            unwritten = self._written(outward, written)
            if unwritten is not None:
                closed = self._fail(outward, closed, written, unwritten)
        partition.faulty.at, partition.faulty.makes_unit, partition.faulty.written = None, False, written.of_faults
        partition.counts.mixed += written.mixed
        if written.refused_late:
            partition.counts.passed -= written.refused_late
            partition.counts.rejected += written.refused_late
        removed = self._removed_rows(happened.removed) if happened.removed else []
        removed += self._joined_rows(happened.joined)
        self._close_ruled(happened.effects, closed, written)
        for group, _ in closed:
            if group is None:
                continue
            partition.faulty.at = group
            if group.attachment is not None:
                plan.changelog += [(key, None) for key in tombstone_keys(group)]
            group.forget()
        partition.faulty.at = None
        plan.changelog += removed
        plan.changelog += [(key, None) for group in happened.let_go for key in tombstone_keys(group)]
        tombstones = len(plan.changelog)
        held = self._write_anew(happened, plan.changelog)
        in_pieces = [group for group, _ in happened.pieces]
        if happened.amended or in_pieces:
            promoted = [*promoted, *self._no_longer_replayable([*happened.amended, *in_pieces])]
        amended = dict.fromkeys(happened.amended)
        self._promote(held, promoted, plan.changelog, amended)
        plan.changelog += [
            piece_row(group, slot)
            for group, slot in dict.fromkeys(happened.pieces)
            if group.segments is not None and slot in group.segments.bodies
        ]
        self._write_kept(happened.kept, plan.changelog)
        self.rows += len(plan.changelog) - 2 * tombstones
        for group in amended:
            if group.is_open:
                partition.faulty.at = group
                self.rows += not has_group_row(group)
                plan.changelog.append(group_row(group))
        partition.faulty.at = None
        self._write_credits(happened.credits, plan.changelog)
        self._write_live(happened.live, plan.changelog)
        plan.changelog[:0] = [(stray.row_key, None) for stray in happened.recycled]  # `rows` never counted them
        # a plan of one command alone has nothing else: the command would be blamed where a broker refuses that
        keeps, self._is_of_command = self._is_of_command, False
        plan.outputs += [] if keeps else self._leave()
        self.rows += self.waiting_records.exchange(plan, context.targets, partition.counts, keeps=keeps)
        floor = self.replayable.floor(partition.position)
        plan.metadata = offset_metadata(floor, self.rows, partition.clock, context)
        if self._unrecorded is not None:
            plan.changelog.append((SETTINGS_KEY, self._unrecorded.value))
            self._unrecorded = None
        plan.ledger = self._ledger(floor, happened.not_held, [one for _, one in closed], happened.commands)
        self._planned = partition.position
        return plan

    def _take_happened(self) -> Happened:
        if self.has_let_go:
            raise InvariantViolation(self.tp, "a plan", "it has let go of its state")
        return self.partition.take_happened()

    def _close_ruled(
        self, effects: Iterable[Outward], closed: Iterable[tuple[Group | None, Closed]], written: WrittenOutputs
    ) -> None:
        """Adds the groups by rule that closed to the figures, as long as they have their components, and the cancel notices of calls. Not those that are closed for a failure of the code, which may have been here."""
        if isinstance(self.context.rules, NoRules):
            return
        decided = {
            group: effect.decided_at for effect, _, group in effects if isinstance(effect, Delivered | Undelivered)
        }
        for group, one in closed:
            key = one.id, one.generation
            if group is not None and group.ruled is not None and not self.partition.faulty.is_closed_at_once(key):
                self.partition.faulty.at = group
                self.context.figures.add(group, one, decided.get(group, 0) or one.at)
                self.writer.notify(group, one, written)
        self.partition.faulty.at = None
        self.partition.counts.notices += written.notices
        self.partition.counts.dropped_notices += written.dropped_notices

    def _written(self, outward: Outward, written: WrittenOutputs) -> _Unwritten | None:
        """Adds the records of one effect. Returns the error of a unit that fits no record, or is one by rule that cannot be encoded, or that a broker refuses (B-89).

        What an encoder makes of a group does not depend on time: it is tried again at once. Any other exception blocks the partition (ER-03).
        """
        effect, _, group = outward
        faulty = self.partition.faulty
        faulty.makes_unit = isinstance(effect, Delivered)
        if faulty and group is not None and isinstance(effect, Delivered) and faulty.failure_of(group) is not None:
            return _Unwritten(InternalError)
        faulty.at = group
        ruled = group.ruled if isinstance(effect, Delivered) and group is not None else None
        before = len(written.outputs)
        attempts = 1 if ruled is None else ruled.policy.delivery_attempts
        for attempt in range(attempts):
            try:
                self.writer.write(outward, written)
            except UnitTooLargeForRecordError as error:
                assert group is not None
                told = f"its unit, {len(group.held)} components of {group.bytes} bytes, {error}"
                return _Unwritten(UnitTooLargeError, told)
            except Exception as error:  # whatever an encoder raises concerns its own group alone
                if ruled is None or group is None:
                    raise
                del written.outputs[before:]
                log.warning("%s/%d: unit of %r, attempt %d: %r", *self.tp, group.id.decode(), attempt + 1, error)
            else:
                targets = self.context.targets
                if not (
                    targets.refusals
                    and isinstance(effect, Delivered)
                    and targets.is_given_up(written.outputs[before:], attempts)
                ):
                    return None
                detail = targets.why_too_large(written.outputs[before:])
                del written.outputs[before:]
                return _Unwritten(UnitTooLargeError if detail else UowError, detail)
        return _Unwritten(UowError)

    def _may_leave(self) -> bool:
        """True if a unit that waited for its topic can be written now (B-57)."""
        return bool(self.waiting_records) and self.waiting_records.may_leave(self.context.targets)

    def _leave_due(self) -> int:
        """The earliest clock value at which claims may end; `NEVER` without path routing."""
        paths = self.context.paths
        if paths is None:
            return NEVER
        oldest, ignored = paths.look_at(self.tp.partition), paths.ignored_due()
        kept_ms = 0 if paths.is_full else self.context.policy.closed_retention_ms
        due = NEVER if oldest is None else oldest + kept_ms + 1
        return max(self._leave_at, due if ignored is None else min(due, ignored))

    def _leave(self) -> list[Output]:
        """Tombstones for the placements of ids that are neither open nor remembered (W-106), and for claims that nobody heeds, if it is time."""
        partition, paths = self.partition, self.context.paths
        if paths is None or self._leave_due() > partition.clock:
            return []
        clock, kept_ms = partition.clock, partition.policy.closed_retention_ms
        lines = {line_of(order_key) for order_key in partition.lines}

        def is_in_use(group_id: bytes) -> bool:
            return group_id in partition.groups or partition.closed.get(group_id) is not None or group_id in lines

        before = clock if paths.is_full else clock - kept_ms
        keys = paths.leave(self.tp.partition, before, clock, is_in_use)
        self._leave_at = clock + LEAVE_EVERY_MS if len(keys) < MOST_ENDED else clock
        keys += paths.leave_ignored(clock, kept_ms)
        return [Output(self.context.topics.path_map, PARTITION, key, None, []) for key in keys]

    def _write_credits(self, changed: Mapping[str, bool], rows: list[tuple[bytes, bytes | None]]) -> None:
        """Rows of the rules whose next complete group need not wait, and tombstones of those of which it did not."""
        for rule_id, is_kept in changed.items():
            key = CREDIT_KEY + rule_id.encode()
            if is_kept != (key in self._credit_rows):
                rows.append((key, b"\1" if is_kept else None))
                (self._credit_rows.add if is_kept else self._credit_rows.discard)(key)
                self.rows += 1 if is_kept else -1

    def _write_kept(self, groups: Iterable[Group], rows: list[tuple[bytes, bytes | None]]) -> None:
        """Rows of what is kept for corrections (B-205), unless it was let go since."""
        for group in groups:
            if self.partition.keeps(group):
                rows += kept_rows(group, attributes_in(group, self.partition.reading))

    def _write_live(self, changed: Mapping[str, str], rows: list[tuple[bytes, bytes | None]]) -> None:
        """The rows that open groups have taken."""
        for row_key, name in changed.items():
            key = LIVE_KEY + row_key.encode()
            self.rows += key not in self._live_rows
            self._live_rows.add(key)
            rows.append((key, name.encode()))

    def _removed_rows(self, removed: Iterable[tuple[Group, int, int]]) -> list[tuple[bytes, bytes | None]]:
        """Tombstones of components that commands took out of groups; one that came in this very poll has no row."""
        tombstones: list[tuple[bytes, bytes | None]] = []
        for group, seq, index in removed:
            storage = storage_of(group)
            if storage is not None and index < storage.rows:
                storage.rows -= 1
                tombstones.append((tombstone_key(storage, seq), None))
        return tombstones

    def _joined_rows(self, joined: Iterable[tuple[Group, list[int]]]) -> list[tuple[bytes, bytes | None]]:
        """Tombstones of pieces whose component is held now; those that came in this very poll have no row. Of a group that is closed all go."""
        tombstones: list[tuple[bytes, bytes | None]] = []
        for group, slots in joined:
            storage = storage_of(group)
            if storage is not None and group.is_open:
                tombstones += [(tombstone_key(storage, slot), None) for slot in storage.drop_pieces(slots)]
        return tombstones

    def _write_anew(self, happened: Happened, rows: list[tuple[bytes, bytes | None]]) -> Sequence[HeldRow]:
        """Adds all rows of groups of which a component was erased, once more. Returns what other groups have held since the last plan."""
        erased = dict.fromkeys(group for group in happened.erased if group.is_open)
        for group in erased:
            self.rows -= begin_anew(group)
            group.list_plain(True)
            rows += promotion_rows(group, attributes_in(group, self.partition.reading))
        return [row for row in happened.held if row[0] not in erased] if erased else happened.held

    def _no_longer_replayable(self, amended: Iterable[Group]) -> list[Group]:
        """Groups without rows that a command changed: the input alone does not tell what it said, so they get rows now (W-203)."""
        whole = [
            group for group in dict.fromkeys(amended) if group.is_open and not (rows_of(group) or pieces_of(group))
        ]
        for group in whole:
            group.list_plain(True)
        return whole

    def _promote(
        self,
        held: Sequence[HeldRow],
        promoted: Iterable[Group],
        rows: list[tuple[bytes, bytes | None]],
        amended: Container[Group] = (),
    ) -> None:
        """Adds the rows of what is still held after the poll, unless its group is replayable and stays so (W-119).

        Every group in `held` that is open has all of its rows but for those that follow here, or none; or it is replayable, and has none. So
        one component after the other gets its row, or joins `whole`, whose groups get the rows of all their components at once, below.
        """
        replayable, allow_replay, partition = self.replayable, self.context.replay.allow_replay, self.partition
        whole: dict[Group, dict[int, Attributes]] = {group: {} for group in promoted}
        for group, seq, end, offset, attributes in held:
            if not group.is_open or (attributes is None and not group.lists_plain):
                continue
            storage = group.attachment
            if (storage is not None and (storage.rows or storage.pieces)) or not (
                (allow_replay and group.ruled is None) or group in whole or is_replayable(group)
            ):
                rows.append(component_row(group, seq, end, offset, attributes))
                if group.ruled is not None and not group.attachment.has_group_row:
                    rows.append(group_row(group))
            elif attributes is None and group.generation == 1 and group.ruled is None and group not in whole:
                replayable.add(group, offset, partition.fed_bytes)
            else:  # what a replay could not tell from the input alone
                group.list_plain(True)
                said = whole.setdefault(group, {})
                if attributes is not None:
                    said[seq] = attributes
        for group in replayable.overdue(partition.position, partition.fed_bytes, partition.clock):
            whole.setdefault(group, {})
        for group, said in whole.items():
            partition.faulty.at = group
            rows += promotion_rows(group, said)
            if group.ruled is not None and not has_group_row(group) and group not in amended:
                rows.append(group_row(group))
        partition.faulty.at = None

    def _ledger(
        self,
        floor: int,
        not_held: Iterable[int],
        closed: Sequence[Closed],
        commands: Sequence[tuple[bytes, int]],
    ) -> bytes:
        partition, start = self.partition, self._planned
        if self.context.policy.handling_policy is HandlingPolicy.PASS_THROUGH:
            not_held = range(start, partition.position)  # nothing is ever held: one range says so
        return ledger_value(
            start, partition.position, floor, partition.clock, partition.reading.code, not_held, closed, commands
        )

    def _fail(
        self,
        outward: Outward,
        closed: list[tuple[Group | None, Closed]],
        written: WrittenOutputs,
        unwritten: _Unwritten,
    ) -> list[tuple[Group | None, Closed]]:
        """A unit cannot be written: its group fails, as if it had been over a limit (W-115)."""
        effect, _, group = outward
        assert isinstance(effect, Delivered)
        assert group is not None
        failed = too_large(effect.closed)
        fault = self.partition.faulty.failure_of(group)
        self.partition.faulty.at = group
        self.partition.fail_written(group, effect.closed, failed)
        if fault is not None:
            self.partition.counts.faulty_groups += 1
            self.partition.faulty.closing.append((group.id, group.generation))
        if effect.command is not None:
            written.failed[effect.command.known_as] = unwritten.error
        undelivered = Undelivered(failed, unwritten.error, effect.command, fault=fault, detail=unwritten.detail)
        self.writer.write((undelivered, None, group), written)
        return [(of, failed if one is effect.closed else one) for of, one in closed]

    # -- restore ----------------------------------------------------------------------------------------------------

    def restore(
        self,
        position: int,
        clock: int,
        closed: Iterable[Closed],
        rows: int,
        command_position: int = 0,
        commands: Iterable[DecidedCommand] = (),
    ) -> None:
        """Takes positions, clock and both memories from the ledger; call it before `restore_group` and `restored`."""
        partition = self.partition
        self.rows = rows
        partition.position, partition.clock, partition.command_position = position, clock, command_position
        self._planned = position
        for one in closed:
            partition.closed.add(one)
        for command in commands:
            partition.commands.add(command.id, command.at)

    def restore_agreement(self, row: bytes | None) -> None:
        """Takes what is recorded of the settings.

        Raises:
            ConfigError: A worker with others has taken over (W-68).
            DecodeError: It cannot be read.
        """
        if self._unrecorded is not None and self._unrecorded.is_recorded(row):
            self._unrecorded = None

    def restore_credits(self, keys: Iterable[bytes]) -> None:
        """Takes the rules whose next complete group need not wait (B-105)."""
        self._credit_rows.update(keys)
        self.partition.credits.update(key[len(CREDIT_KEY) :].decode() for key in keys)

    def restore_strays(self, strays: Sequence[Stray]) -> None:
        """Takes components without a group (B-72)."""
        for each in strays:
            self.partition.strays.take(each)

    def restore_live(self, rows: Mapping[bytes, bytes]) -> None:
        """Takes the rows that open groups have taken (B-13), by key of the changelog.

        Raises:
            DecodeError: Nothing is known of such a row.
        """
        self._live_rows.update(rows)
        for name in map(bytes.decode, rows.values()):
            row = self.context.rules.kept(name)
            if row is None:
                raise DecodeError(RULE, f"open groups have taken the row {name}, which is not in the rules")
            self.partition.live[row.row_key] = row

    def restore_kept(self, rows: Mapping[bytes, bytes]) -> None:
        """Takes what is kept for corrections (B-205), by key of the changelog; the closed groups must be known. Raises `DecodeError`."""
        found = take_kept_rows(rows)
        for group, row in found:
            group.apply(Amended(group.id, row.declared_end or 0, row.waived, row.extended_deadline or 0))
            group.apply(Warned(group.id, row.warned_at or 0))
        self.partition.restore_kept([group for group, _ in found])

    def restore_group(self, group_id: bytes, generation: int, opened_at: int) -> Group:
        """An open group whose components follow from the changelog."""
        group = Group(group_id, generation, opened_at)
        self.partition.add_restored(group)
        return group

    def restore_group_row(self, key: bytes, group: Group | None, row: GroupRow) -> None:
        """Takes the row that opened a group, and what commands changed in it, once its components are in.

        Raises:
            DecodeError: It has none; or nothing is known of its row.
        """
        if group is None:
            if row.manifest is None:
                raise DecodeError(
                    "changelog", f"a group row of {key[1:-5].decode(errors='replace')!r}, and no component of it"
                )
            group = self.restore_group(key[1:-13], row.generation, row.opened_at)  # no reply has come yet
        self.partition.faulty.at = group
        storage = storage_of(group) or begin_rows(group, is_by_rule=row.rule is not None)
        storage.has_group_row = True
        if self.partition.faulty.lacks_rule(group):
            self.partition.faulty.at = None
            return
        group_id = group.id
        if row.rule is not None:
            policy = self.context.rules.kept(row.rule)
            if policy is None:
                raise DecodeError(RULE, f"an open group is of the row {row.rule}, which is not in the rules")
            self._open_again(group, policy, row)
            if row.manifest is not None:
                part = row.manifest
                group.announce(Called.read(part.command_id.encode(), part.taken_at, part.text))
            if row.waits_since is not None:
                group.apply(Waits(group.id, group.generation, row.waits_since))
            assert group.ruled is not None
            group.ruled.has_turn = row.has_turn
        group.apply(Amended(group_id, row.declared_end or 0, row.waived, row.extended_deadline or 0))
        group.apply(Warned(group_id, row.warned_at or 0))
        self.partition.faulty.at = None

    def _open_again(self, group: Group, policy: GroupPolicy, row: GroupRow) -> None:
        """The group opens by the row that it was opened by. It may hold what only a later version can read, which it took by a command: no row was written then."""
        try:
            self.partition.open_by_rule(group, policy, row.deadlines)
        except DecodeError:
            live = self.partition.live.get(policy.row_key)
            if live is None or live.version <= policy.version or row.waits_since is not None:
                raise
            self.partition.open_by_rule(group, live)

    def read_last_at(self) -> None:
        """Takes the append times of the components, where a destination asks for them."""
        for group in self.groups.values():
            self.partition.faulty.at = group
            if not self.partition.faulty.lacks_rule(group):
                group.read_last_at()
        self.partition.faulty.at = None

    def replay(self, components: Iterable[Replayed]) -> None:
        """Takes held components of replayable groups from the input; offsets rise."""
        partition, groups = self.partition, self.partition.groups
        has_external_values = self.context.policy.has_external_values
        for group_id, seq, end, at, offset, body, tail in components:
            group = groups.get(group_id)
            if group is None:
                group = groups[group_id] = Group(group_id, 1, at)
                self.replayable.add(group, offset, partition.fed_bytes)
            partition.fed_bytes += len(body)
            group.hold(seq, body, at)
            if end:
                group.mark_end(seq, tail)
            if has_external_values and (left := external_bytes(body)):
                partition.fed_bytes += left
                group.leave(left)

    def restored(self) -> None:
        """All components are in: counts them, forgets what the ledger remembers too long, and puts deadlines in line."""
        partition = self.partition
        groups = partition.groups.values()
        partition.held_bytes = sum([group.bytes - group.external_bytes + group.bytes_in_pieces() for group in groups])
        partition.piece_count = sum([group.record_count - len(group.held) for group in groups])
        partition.manifest_bytes = sum(
            [
                each.ruled.called.memory_bytes
                for each in groups
                if each.ruled is not None and each.ruled.called is not None
            ]
        )
        partition.counts.held = partition.counts.received = sum([group.record_count for group in groups])
        partition.closed.trim(partition.clock)
        for group in [*groups]:  # one that is whole by its row leaves its place
            if group.ruled is not None and (row := partition.live.get(group.ruled.policy.row_key)) is not None:
                partition.faulty.at = group
                partition.follow(group, row)
        partition.faulty.at = None
        partition.order_restored()
        if self.context.policy.has_paths:
            partition.line_up_again([group for group in groups if group.special])
            partition.free_again()
        partition.reschedule(groups)
        if partition.faulty:
            self._forget_closed_faults()

    def _forget_closed_faults(self) -> None:
        """Groups at fault whose close was committed though nobody was told: a later group of the same id and generation is another one."""
        partition, faulty = self.partition, self.partition.faulty
        for key in {key for one in partition.closed.order if (key := (one.id, one.generation)) in faulty}:
            if partition.of_generation(*key) is None:
                del faulty[key]
