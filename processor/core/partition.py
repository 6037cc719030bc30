"""All groups of one partition of one destination: what its events come to. Pure.

Events come in by `on_records` (records), `on_commands` (commands), `advance` (the clock). What they mean is collected in `happened`, in order, until
`take_happened` hands it out: the engine makes a plan of it, the audit compares it with tables.

Belongs here: the events, and finding the group that each concerns. Does not belong here: rules (`decide`, `command`), keeping the state
(`partition_state`), bytes of changelogs and outputs (`uow.processor.engine`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import methodcaller
from typing import assert_never

from uow.processor.core.changes import (
    Amended,
    Announced,
    Answered,
    Change,
    Closed,
    Corrected,
    DeadlineWarning,
    Decision,
    Delivered,
    Dropped,
    Erased,
    Held,
    HeldPiece,
    Opened,
    Passed,
    Rejected,
    Removed,
    Rerouted,
    TakenOut,
    Undelivered,
    Waits,
    Warned,
)
from uow.processor.core.columns import (
    UNREADABLE,
    UNREADABLE_TEXT,
    Record,
    UnreadableRecord,
    look_at_headers,
    looked_at,
    read_headers,
)
from uow.processor.core.command import CommandVerdict, decide_command, decide_manifest, held_marks
from uow.processor.core.decide import (
    ASSIGNED_LINES,
    PIECE_LINES,
    Arrival,
    Situation,
    decide_announced,
    decide_arrival,
    decide_assigned,
    decide_before,
    decide_crowded_out,
    decide_due,
    decide_given,
    decide_oldest,
    decide_refusal,
    decide_released,
    decide_rolled_over,
    hold_piece,
    other_rule,
)
from uow.processor.core.fast_path import process_rows
from uow.processor.core.gathered import Facts, facts_of
from uow.processor.core.generations import is_taking
from uow.processor.core.group import Group
from uow.processor.core.layout import tail_of
from uow.processor.core.partition_state import NOTHING, PartitionState
from uow.processor.core.plan_size import (
    HEADER_BYTES,
)
from uow.processor.core.segments import Segments
from uow.processor.core.strays import RecycledRecord, Stray, is_recycled
from uow.schemas.component import decode_component, encode_component
from uow.schemas.error_classes import (
    DecodeError,
    DuplicateSequenceNumberError,
    InternalError,
    InvariantViolation,
    UowError,
)
from uow.schemas.records import Reason, UnitOutcome
from uow.topics.commands import (
    DRY_RUN_WOULD,
    Asked,
    AskedInVain,
    BadCommand,
    Command,
    RecordPlace,
    Verb,
    failed_command,
    failed_text,
    refused_as,
)
from uow.topics.grouping import GroupPolicy
from uow.topics.headers import (
    ORDER_KEY,
    RULE,
    SEGMENT_AT,
    Marks,
    Refusal,
    depth_of,
    identity_of,
    without_segment,
)
from uow.topics.policies import HandlingPolicy
from uow.topics.rules import Cardinality, LateJoin, OnRuleChange, Release

_OFFSET = methodcaller("offset")
_UNREADABLE = Refusal(DecodeError, "headers", UNREADABLE_TEXT)
_NO_COMMAND = BadCommand("", "", "", "", None, "a header name is no UTF-8")


MAX_CREDITS = 1_000
"""Rules that a partition remembers at most of which the next group need not wait: a command may name rules that nobody has."""


class Partition(PartitionState):
    """One partition: its state, and what events do to it. See `PartitionState` for arguments and attributes."""

    # -- events -----------------------------------------------------------------------------------------------------

    def on_records(self, records: Sequence[Record]) -> bool:
        """One poll's records, in offset order. A source offset below the position is a replay and ignored (line 7).

        Returns:
            True if all of them were taken. Else the plan is full, and `position` is that of the first that was not.
        """
        self.faulty.at = None
        if self.faulty:
            self.close_faulty()
        if self.is_full():
            self.is_cut |= bool(records)
            return False
        self.deliver_left()
        if records and records[0].offset() < self.position:
            fresh = [record for record in records if record.offset() >= self.position]
            self.counts.received += len(records) - len(fresh)
            self.counts.ignored += len(records) - len(fresh)
            records = fresh
        passes = self.policy.handling_policy is HandlingPolicy.PASS_THROUGH
        self.in_hand = records[0].offset() if len(records) == 1 else NOTHING  # the bulk loops touch its own group alone
        taken = self._pass_on(records) if passes else self._judge(records)
        self.in_hand = NOTHING
        self.counts.received += taken
        if self.is_cut:
            return False
        if records:
            self.position = records[-1].offset() + 1
        return True

    def _judge(self, records: Sequence[Record]) -> int:
        """How many were taken; see `on_records`."""
        taken = 0
        for columns in self.reader.read(records):
            if self.is_full():
                self.position, self.is_cut = columns.offsets[0], True
                break
            process_rows(self, columns, self.on_record)
            self.left_bytes -= HEADER_BYTES * columns.header_count
            here = bisect_left(columns.offsets, self.position) if self.is_cut else len(columns.offsets)
            self.fed_bytes += sum(map(len, columns.bodies[:here]))
            if max(columns.times, default=0) > self.latest:
                self.disbelieved += sum(at > self.latest for at in columns.times[:here])
            taken += here
            if self.is_cut:
                break
        return taken

    def _pass_on(self, records: Sequence[Record]) -> int:
        """The same where nothing is assembled."""
        for headers, portion in look_at_headers(records):
            for pairs, record in zip(headers, portion, strict=True):
                if self.is_full():
                    self.position, self.is_cut = record.offset(), True
                    return bisect_left(records, self.position, key=_OFFSET)
                self.clock = max(self.clock, self._believed(record.timestamp()[1]))
                # what cannot be shown cannot be passed on untouched
                self.left_bytes -= HEADER_BYTES * len(pairs or ())
                self._concerning(record, Rejected(_UNREADABLE) if isinstance(record, UnreadableRecord) else Passed())
        return len(records)

    def on_commands(self, records: Sequence[Record], recent: Callable[[int], bool]) -> None:
        """Records of `D.commands`, in offset order, of which nothing waits any more (`uow.processor.engine.waiting_commands`). Commands never move the clock.

        Once the plan is full, those that are left wait for the next one.

        Args:
            records: The commands. An offset below the position is a replay and ignored.
            recent: Called with each command's append time before it is decided: feeds the components that came before it, and tells
                whether all of them were taken.
        """
        for headers, record in looked_at(records):
            if record.offset() < self.command_position:
                continue
            at = record.timestamp()[1]
            is_readable = not isinstance(record, UnreadableRecord)
            self.command_in_hand = NOTHING if self.happened.effects else record.offset()
            command = self.command_reader.read(headers or [], record) if is_readable else _NO_COMMAND
            self.command_in_hand = NOTHING  # groups that are due are not its own
            # before anything closes by the clock: a plan that ends here is as if the command had not come
            if not self.is_full() and self._awaits_row(command, record.offset()):
                self.commands_read_before = records[-1].offset() + 1
                self.is_cut, self.left_bytes = True, -1
                return
            if not (recent(at) and self.advance(self.clock)):
                self.is_cut = True
                return
            self.command_position = record.offset() + 1
            self._answer(command, at, record.offset())

    def _answer(self, command: Command | BadCommand, at: int, offset: int) -> None:
        """Decides a command and answers it."""
        self.command_in_hand = NOTHING if self.happened.effects else offset  # else a failure may be another one's
        done, text = False, ""
        if not isinstance(command, Command):
            if offset in self.refused_early:
                return
            text = command.answer
        elif command.verb is Verb.SET_ASIDE and self._is_answered_otherwise(command, at):
            return
        elif self._is_repeated(command):
            text = "a repeated command does nothing more"
        elif command.verb is Verb.SET_ASIDE:
            text = f"{command.source} does not block its partition, which is at {self.position}: nothing is done"
            # a copy does nothing either once the record blocks; what is signed then is another command
            if command.is_verified:
                self._remember_as(refused_as(command.known_as, command.signed_at), at)
        else:
            done, text = self._decide_command(command, at)
        self.happened.effects.append((Answered(command, done, text, at, offset), None, None))

    def _is_repeated(self, command: Command) -> bool:
        if command.known_as in self.commands:
            return True
        if command.is_verified and refused_as(command.known_as, command.signed_at) in self.commands:
            return True
        nameless = (command.id, refused_as(command.id, command.signed_at)) if command.nameless_before else ()
        return any(at is not None and at < command.nameless_before for at in map(self.commands.get, nameless))

    def _is_answered_otherwise(self, command: Command, at: int) -> bool:
        """True if a command to set a record aside was answered while the partition was blocked, or is for a router, which answers it."""
        place = RecordPlace.parse(command.source)
        is_own = place is not None and place.topic == self.place.topic
        return not is_own or self._was_answered(command, at)

    def _was_answered(self, command: Command, at: int) -> bool:
        known = (command.known_as, refused_as(command.known_as, command.signed_at))
        return any(last is not None and last >= at for last in map(self.commands.get, known))

    def has_answered(self, command: Command, at: int) -> bool:
        """True if this very command, or one with its id that came later, was answered; of a signed one also if an earlier one was, of which it may be a copy."""
        return self._was_answered(command, at) or (command.is_verified and self._is_repeated(command))

    def answer_early(self, asked: Asked | AskedInVain, *, done: bool, text: str) -> None:
        """Answers a command to set a record aside before those that came before it: the partition is blocked, and they wait."""
        command, at, offset = asked
        if isinstance(command, Command):
            known = command.known_as
            if command.is_verified and not done:  # as at its own turn
                known = refused_as(known, command.signed_at)
            # of two with one id the later one may have been answered first
            self._remember_as(known, max(at, self.commands.get(known) or at))
        self.happened.effects.append((Answered(command, done, text, at, offset), None, None))

    def _remember(self, command: Command, at: int) -> None:
        self._remember_as(command.known_as, at)

    def _remember_as(self, known: bytes, at: int) -> None:
        self.commands.add(known, at)
        self.happened.commands.append((known, at))

    def refuse_command(self, record: Record, why: UowError) -> None:
        """Answers a command at which the code failed, or of which a broker refuses what it asks for, without a look at that: groups and clock stay as they are."""
        self.command_position = record.offset() + 1
        text = failed_text(str(why), is_defect=isinstance(why, InternalError))
        headers, at = read_headers(record) or [], record.timestamp()[1]
        command = failed_command(headers, text)
        with suppress(Exception):  # it may be that which failed
            read = self.command_reader.read(headers, record)
            command = command._replace(is_verified=read.is_verified)
            # also before the first key counts: a copy may come after that
            if isinstance(read, Command) and read.signed_at and not (read.is_anonymous or read.dry_run):
                self._remember_as(refused_as(read.known_as, read.signed_at), at)
        self.happened.effects.append((Answered(command, False, text, at, record.offset()), None, None))

    def _awaits_row(self, command: Command | BadCommand, offset: int) -> bool:
        """True if a command names a row that is not known, as far as the rules were read when it came."""
        if not isinstance(command, Command) or command.verb not in (Verb.MANIFEST, Verb.RULE_CHANGE):
            return False
        return not self._is_row_known(command.rule, offset, self.commands_known_before)

    def _decide_command(self, command: Command, at: int) -> tuple[bool, str]:
        """True if it was done, and the answer's text."""
        self.closed.trim(self.clock)
        if command.verb is Verb.RULE_CHANGE:
            return self._change_row(command, at)
        if command.rule and command.manifest is None:
            return self._release_rule(command, at)
        if command.verb is Verb.RECYCLE:
            return self._recycle(command, at)
        several = self.generations(command.group_id) if command.group_id in self.aside else None
        meant = self.of_generation(command.group_id, command.generation)
        if several is not None and meant is not None:
            self.bring(meant)
        elif several is not None and (command.verb is Verb.RELEASE or command.group_id not in self.groups):
            self.bring(several.oldest())  # what waits is the oldest
        group = self.groups.get(command.group_id)
        now = self._situation(command.group_id, group, self.position)
        if command.manifest is not None:
            obeyed, text, decision = self._manifest(command, self._believed(at), now)
        else:
            obeyed, text, decision = decide_command(command, self._believed(at), now)
        if command.dry_run:
            if several is not None:
                self.settle(command.group_id)
            return False, f"{DRY_RUN_WOULD}{text}" if obeyed else text
        self._remember(command, at)
        self._carry_out(decision, None)
        if command.manifest is not None and obeyed:
            group = self.groups[command.group_id]
            assert group.ruled is not None
            has_credit = group.ruled.policy.rule_id in self.credits
            now = now._replace(group=group, clock=max(self.clock, self._believed(at)), credits=has_credit)
            self._carry_out(decide_announced(now), None)
        self._deliver_freed()
        if group is not None and group.is_open:
            self.schedule(group)
        if several is not None:
            self.settle(command.group_id)
        return obeyed, text

    def _manifest(self, command: Command, at: int, now: Situation) -> CommandVerdict:
        group, row = now.group, self.rules.policy(command.rule)
        if group is not None and group.ruled is not None:
            row = group.ruled.policy
        if row is not None:
            now = now._replace(
                policy=row,
                open_groups=len(self.by_rule.get(row.rule_id, ())),
                has_room=group is not None or self.has_room(row),
                newest=max(self.newest(command.group_id), self.closed.newest_before(command.group_id)),
            )
        verdict = decide_manifest(command, at, now)
        if verdict.obeyed and group is None and row is not None and not command.dry_run:
            self._make_room(row)
        return verdict

    def _release_rule(self, command: Command, at: int) -> tuple[bool, str]:
        """Lets the waiting groups of a rule go: all of them, or under `hold_first` one; if none waits the next one need not (B-104 to B-106)."""
        waiting = [group for group in self.waiting.get(command.rule, ()) if not self.faulty.has(group)]
        of_rule = [
            group.ruled.policy.release for group in self.by_rule.get(command.rule, ()) if group.ruled is not None
        ]
        ready = [group for group in waiting if group.deliver_at <= self.clock and not self._is_behind(group)]
        if ready and all(
            group.ruled is not None and group.ruled.policy.release is Release.HOLD_FIRST for group in ready
        ):
            ready = ready[:1]
        keeps = command.rule not in self.waiting and (not of_rule or Release.HOLD_FIRST in of_rule)
        if keeps and len(self.credits) >= MAX_CREDITS and command.rule not in self.credits:
            return False, f"nothing waiting, and {MAX_CREDITS} other rules were released in advance already"
        text = f"lets {len(ready)} of {len(waiting)} waiting groups go" if waiting else "nothing waiting"
        if keeps:
            text += "; the next group that is complete need not wait, if its rule holds the first"
        if command.dry_run:
            return False, f"{DRY_RUN_WOULD}{text}" if ready or keeps else text
        self._remember(command, at)
        for group in ready:
            self.faulty.at = group
            self.bring(group)
            now = Situation(group, None, None, max(self.clock, self._believed(at)), self.position, self.policy)
            self._carry_out(decide_released(now, command), None)
        self.faulty.at = None
        if keeps and command.rule not in self.credits:
            self.credits.add(command.rule)
            self.happened.credits[command.rule] = True
        return bool(ready) or keeps, text

    def _recycle(self, command: Command, at: int) -> tuple[bool, str]:
        """A component without a group joins the open group of its key, or opens the next one, with its own arrival and deadline (B-72 to B-74)."""
        stray = self.strays.first(command.group_id, command.source)
        record = None if stray is None else RecycledRecord(stray.component)
        marks = None if record is None else self._marks(record)
        complaint = self._cannot_recycle(command, stray, marks)
        if command.dry_run:
            return False, complaint or f"{DRY_RUN_WOULD}gives it to the open group of its id, or opens the next one"
        self._remember(command, at)
        if complaint:
            return False, complaint
        assert stray is not None
        assert record is not None
        assert isinstance(marks, Marks)
        self.strays.let_go(stray)
        self.happened.recycled.append(stray)
        self.counts.received += 1
        group = self.groups.get(stray.id)
        held = self.counts.held
        now = max(self.clock, self._believed(at))
        self._on_ruled(record, marks, group, self._situation(stray.id, group, self.position)._replace(clock=now))
        if self.counts.held == held:
            return (
                True,
                "its group does not take it: it goes to the topic of refused components, or where its id belongs",
            )
        group, seq = self.happened.held[-1][:2]
        text = f"takes it as number {seq} of generation {group.generation}"
        if self._takes(group) and group.closes_at(self.policy) <= now:
            self.bring(group)
            self._carry_out(decide_due(self._moment(group, now)), None)
            text += f", whose time is over: it closes with {len(group.held)} components" * (not group.is_open)
        return True, text

    def _cannot_recycle(self, command: Command, stray: Stray | None, marks: Marks | Refusal | None) -> str:
        """Why not; empty if it can be done."""
        if stray is None:
            return f"no component {command.source} of this id is without a group here, as the last restore found them"
        if not isinstance(marks, Marks) or marks.routed is None or marks.id != stray.id:
            return "its headers do not say that it is a component by rule of this id"
        if stray.component.reference is not None:
            return "its value stayed in the topic of components: send that record again"
        if self.rules.policy(marks.routed.rule) is None:
            return f"the row {marks.routed.rule} is not in the rules"
        return ""

    def _change_row(self, command: Command, at: int) -> tuple[bool, str]:
        """Open groups take the row that a command names, and so do those that open, where a component names an older version (B-13)."""
        row = self._followed_row(command.rule)
        if isinstance(row, str):
            return False, row
        text = f"open groups of the row take {row.rule}"
        if command.dry_run:
            return False, f"{DRY_RUN_WOULD}{text}"
        self._remember(command, at)
        former = self.live.get(row.row_key)
        self.hold_live(row)
        groups = [*self.by_rule.get(row.rule_id, ())]
        for group in groups:
            self.faulty.at = group
            if self.follow(group, row):
                is_to_stay = bool(row.calendars)  # what they name now
            else:  # it cannot take it, and a restart knows the latest version alone
                is_to_stay = former is not None and group.policy(self.policy) is former
            if is_to_stay:
                self.happened.amended.append(group)
        self.faulty.at = None
        for group_id in {group.id for group in groups if group.ruled is not None and group.ruled.waits_since}:
            self.settle(group_id)  # a command without a generation means the same group as after a restart
        return True, text

    def _followed_row(self, name: str) -> GroupPolicy | str:
        """The row that a command names; or why open groups do not take it."""
        row = self.rules.policy(name)
        if row is None:
            return f"no row {name} in the rules of {self.place.destination}"
        if row.on_rule_change is not OnRuleChange.LIVE:
            return f"open groups keep the version that opened them: {name} is not live"
        known = self.live.get(row.row_key)
        if known is not None and known.version >= row.version:
            return f"{known.rule} holds already"
        return row

    def on_record(self, record: Record, encoded: bytes = b"") -> None:
        """One record, by the whole decision table. The clock moves first, and what is then due closes (W-84).

        A record that comes when the plan is full, or fills it by what is due before it, is left, and all that follow: `position` stays at
        the first one.

        Args:
            record: The record.
            encoded: Its Avro body, where that is made already.
        """
        if self.is_cut:
            return
        at = record.timestamp()[1]
        self.position = record.offset()
        if self.is_full():
            self.is_cut = True
            return
        marks = self._marks(record)
        if self._awaits_rule(marks, record.offset()):  # before it moves the clock
            self.is_cut, self.left_bytes = True, -1
            return
        self.in_hand = NOTHING  # groups that are due are not its own
        if not self.advance(self._believed(at)):
            self.is_cut = True
            return
        self.in_hand = record.offset()
        if marks is None:
            self._concerning(record, Passed())
            return
        group_id = marks.id
        self.closed.trim(self.clock)  # here too, so that nothing depends on where a poll was cut
        group = self._met(marks)
        now = self._situation(group_id, group, record.offset() + 1)
        if isinstance(marks, Marks) and (marks.routed is not None or (group is not None and group.ruled is not None)):
            self._on_ruled(record, marks, group, now)
            return
        if isinstance(marks, Refusal):
            decision = decide_refusal(marks, now)
        else:
            headers = (record.headers() or ()) if marks.end else ()
            tail = tail_of(marks.component_id, record.offset(), headers, self.reading)
            body, external_bytes = (encoded, 0) if encoded else self.reader.encode(record, marks)
            arrival = Arrival(marks, record.offset(), at, record.value(), body, tail, external_bytes)
            waits = group.waits if group is not None else marks.order_key in self.lines
            now = now._replace(waits=waits) if waits else now
            decision = (
                decide_arrival(arrival, now) if marks.segment is None else self._decide_piece(arrival, record, now)
            )
        self._carry_out(decision, record)
        self.in_hand = NOTHING
        self._deliver_freed()

    def _met(self, marks: Marks | Refusal) -> Group | None:
        """The open group that a record meets. Where all groups of its id wait, only a component by rule meets none, and opens the next one."""
        if marks.id is None:
            return None
        group = self.groups.get(marks.id)
        is_by_rule = isinstance(marks, Marks) and marks.routed is not None
        if group is None and not is_by_rule and (several := self.generations(marks.id)) is not None:
            return several.newest()
        return group

    def _decide_piece(self, arrival: Arrival, record: Record, now: Situation) -> Decision:
        """A piece of a component waits for the others; with the last one that was lacking the table is asked of the whole component (B-124)."""
        refused = decide_before(arrival, now, PIECE_LINES)
        if refused is not None:
            return refused
        marks, value = arrival.marks, arrival.value or b""
        assert marks.segment is not None
        segments = Segments() if now.group is None or now.group.segments is None else now.group.segments
        whole = segments.joined(marks.seq, marks.segment, value)
        if whole is None:
            return hold_piece(arrival, now)
        component = decode_component(arrival.body)
        first = component if marks.segment.at == 0 else segments.first(marks.seq)
        component = replace(
            component,
            component_id=first.component_id,
            end=first.end,
            key=first.key,
            value=whole,
            headers=tuple(without_segment(first.headers, self.reading)),
        )
        marks = held_marks(marks.id, component, self.reading)._replace(
            special=True
        )  # its pieces alone are in the input
        tail = tail_of(marks.component_id, record.offset(), component.headers if marks.end else (), self.reading)
        joined = Arrival(marks, record.offset(), arrival.at, whole, encode_component(component), tail)
        return decide_arrival(joined, now)

    def _awaits_rule(self, marks: Marks | Refusal | None, offset: int) -> bool:
        """True if a component names a row that is not known, as far as the rules were read when it came."""
        if not isinstance(marks, Marks) or marks.routed is None:
            return False
        return not self._is_row_known(marks.routed.rule, offset, self.rules_read_before)

    def _is_row_known(self, name: str, offset: int, read_before: int) -> bool:
        """False if it is not, as far as the rules were read, and they may have it by now: so the plan ends before this record."""
        if offset < read_before or self.rules.policy(name) is not None:
            return True
        self.awaits_rule = name
        return False

    def _on_ruled(self, record: Record, marks: Marks, group: Group | None, now: Situation) -> None:
        """A component of a group by rule, or one that meets such a group. The clock has moved, and units of work that were due are closed.

        Its arrival moves the clock of its own group alone: a deadline that it missed closes the group first (B-49).
        """
        refusal = other_rule(marks, group) if group is not None else None
        own = self.rules.policy(marks.routed.rule) if marks.routed is not None else None
        if refusal is None and own is None:
            assert marks.routed is not None
            refusal = Refusal(DecodeError, RULE, f"no row {marks.routed.rule} in the rules of {self.place.destination}")
        if refusal is None:
            assert own is not None
            own = self._newest(own, marks.id)
            assert marks.routed is not None
            marks = marks._replace(component_id=identity_of(marks.component_id, marks.routed.input))
            is_alone = own.leaves_alone is not None and own.leaves_alone(read_headers(record) or (), record.value())
            if own.assigns and (is_alone or own.cardinality is Cardinality.MANY):
                now = now._replace(group=self._offered(record, marks, own, is_alone=is_alone))
            refusal = self._take_ruled(record, marks, own, now)
        if refusal is not None:
            self._carry_out(decide_refusal(refusal._replace(id=marks.id), now), record)
        front = self.groups.get(marks.id)
        if marks.id in self.aside or (front is not None and not is_taking(front)):
            self.settle(marks.id)  # where the component was refused nothing else has put the groups back

    def _newest(self, own: GroupPolicy, group_id: bytes) -> GroupPolicy:
        """The row that holds for a component: its own, or a later version that was made known; the open groups of its key take it (B-13)."""
        known = self.live.get(own.row_key)
        if known is not None and known.version > own.version:
            own = known
        if own.on_rule_change is OnRuleChange.LIVE:
            for group in self.followers(group_id, own):
                self.faulty.at = group
                if self.follow(group, own) and known is not own:
                    self.happened.amended.append(group)
            self.faulty.at = None
        return own

    def _offered(self, record: Record, marks: Marks, own: GroupPolicy, *, is_alone: bool) -> Group | None:
        """Of several open groups of a key the oldest that takes the component, or that has it already; None: a new one opens (B-99, B-207)."""
        assert marks.routed is not None
        headers, value, at = read_headers(record) or (), record.value(), record.timestamp()[1]
        facts = facts_of(own, marks.routed, marks.component_id, at, headers, value)
        found = self.holder(marks.id, marks.component_id) if marks.component_id is not None else None
        if found is None and isinstance(facts, Refusal):
            found = self.oldest(marks.id)  # it is refused, wherever it would go
        elif found is None and isinstance(facts, Facts) and not is_alone:
            found = self.taker(marks.id, facts)
        if found is None:
            self.put_aside(marks.id)
        else:
            self.bring(found)
        return found

    def _take_ruled(self, record: Record, marks: Marks, own: GroupPolicy, now: Situation) -> Refusal | None:
        """A component of the row `own`, and the open group of its id, if there is one, of the same rule. Returns the refusal of an unreadable one."""
        group, routed = now.group, marks.routed
        assert routed is not None
        row = group.ruled.policy if group is not None and group.ruled is not None else own
        if row.gathers_replies:  # the manifest alone says how many replies there are
            marks = marks._replace(end=False, total=None)
        headers, value, at = read_headers(record) or (), record.value(), record.timestamp()[1]
        facts = facts_of(row, routed, marks.component_id, at, headers, value)
        if isinstance(facts, Refusal):
            return facts
        if routed.unnumbered is not None and not row.assigns:
            return routed.unnumbered
        now = now._replace(
            policy=row,
            open_groups=len(self.by_rule.get(row.rule_id, ())),
            has_room=group is not None or self.has_room(row),
            newest=max(self.newest(marks.id), self.closed.newest_before(marks.id)),
            credits=row.rule_id in self.credits,
            first=self.first_place(row),
            lets_go_first=self.has_turn(row.rule_id),
            is_known=self._is_known(marks.id, marks.component_id, row),
        )
        arrival = Arrival(marks, record.offset(), at, value, b"", None, 0, facts)
        if row.assigns and (early := decide_before(arrival, now, ASSIGNED_LINES)) is not None:
            self._carry_out(early, record)
            return None
        if group is not None and self._close_before(group, arrival, now):
            return self._take_ruled(record, marks, own, self._situation(marks.id, None, record.offset() + 1))
        if group is None and self._make_room(own):  # it may have been behind them, and they may have had the credit
            first, has_credit = self.first_place(row), row.rule_id in self.credits
            now = now._replace(first=first, lets_go_first=self.has_turn(row.rule_id), credits=has_credit)
        if row.assigns:
            marks = marks._replace(seq=group.highest + 1 if group is not None else 1, end=False, total=None)
        body = encode_component(self.reader.component(record, marks))
        tail = tail_of(marks.component_id, record.offset(), headers if marks.end else (), self.reading)
        arrival = arrival._replace(marks=marks, body=body, tail=tail)
        self._carry_out(decide_assigned(arrival, now) if row.assigns else decide_given(arrival, now), record)
        return None

    def _is_known(self, group_id: bytes, component_id: bytes | None, row: GroupPolicy) -> bool:
        """True if a unit that waits, or that was delivered and is remembered, has the component (B-38)."""
        if component_id is None:
            return False
        if row.remembers_components and self.closed.has(group_id, component_id):
            return True
        return group_id in self.aside and self.holder(group_id, component_id) is not None

    def _make_room(self, row: GroupPolicy) -> bool:
        """Closes the open groups that arrived first of a rule that has as many as it may, if enough of them give way (B-37). True if there were any."""
        if not self.too_many(row) or not self.has_room(row):
            return False
        own, self.in_hand = self.in_hand, NOTHING
        while self.too_many(row) and (oldest := self.oldest_of_rule(row.rule_id)):
            self.faulty.at = oldest
            self.bring(oldest)
            now = Situation(oldest, None, None, self.clock, self.position, oldest.policy(self.policy))
            self._carry_out(decide_oldest(now), None)
        self.faulty.at, self.in_hand = None, own
        return True

    def _close_before(self, group: Group, arrival: Arrival, now: Situation) -> bool:
        """Closes the open group where the component in hand must not join it any more. True if it takes none any more, and the next may open."""
        assert arrival.facts is not None
        assert group.ruled is not None
        ruled = group.ruled
        if ruled.waits_since:
            return group.assigns
        until = arrival.facts.arrival if ruled.policy.late_join is LateJoin.STRICT else 0  # of 0 it is whole already
        # what is held for a manifest is given up once `D.commands` is read to its end, and by no component (B-81)
        self.faulty.at = group
        while not ruled.awaits_manifest and self._takes(group) and group.closes_at(self.policy) <= until:
            self.bring(group)
            then = self._moment(group, max(self.clock, arrival.facts.arrival))
            self._carry_out(decide_due(then), None)
            self.faulty.at = group
        self.faulty.at = None
        if self._takes(group):
            self.bring(group)
            rolled = decide_rolled_over(arrival, now._replace(before=self.position), self.roll_over_bytes)
            if rolled is None:
                return False
            self._carry_out(rolled, None)
        return not group.is_open or group.assigns

    @staticmethod
    def _takes(group: Group) -> bool:
        """True if it is open and does not wait for its release."""
        return group.is_open and not (group.ruled is not None and group.ruled.waits_since)

    @staticmethod
    def _is_behind(group: Group) -> bool:
        return group.ruled is not None and group.ruled.is_behind

    def _moment(self, group: Group, clock: int) -> Situation:
        """The state that the clock meets in an open group by rule."""
        assert group.ruled is not None
        row = group.ruled.policy
        first, goes_first = self.first_place(row), self.has_turn(row.rule_id)
        return Situation(group, None, None, clock, self.position, self.policy, first=first, lets_go_first=goes_first)

    def _situation(self, group_id: bytes | None, group: Group | None, before: int) -> Situation:
        """The state that an event about this id meets; without id it concerns no group."""
        if group_id is None:
            return Situation(None, None, None, self.clock, before, self.policy)
        home = self.elsewhere(group_id) if group is None else None
        now = Situation(group, self.closed.get(group_id), home, self.clock, before, self.policy)
        return now._replace(kept=self.kept_of(group_id)) if group is None and self.kept else now

    def set_aside(self, record: Record, why: UowError, asked: Asked | None = None) -> None:
        """Refuses a record at which the code failed, or that blocks, without a look at it: groups and clock stay as they are.

        Args:
            record: The record.
            why: The refusal.
            asked: The command that asked for it, which is answered.
        """
        self.counts.received += 1
        self.counts.set_aside += 1
        self._carry_out(Decision((), (Rejected(Refusal(type(why), why.case, why.detail, why.id)),)), record)
        if asked is not None:
            self.answer_early(
                asked, done=True, text=f"sets {asked.command.source} aside, to the topic of refused components"
            )

    def _marks(self, record: Record) -> Marks | Refusal | None:
        try:
            headers = record.headers()
        except UNREADABLE:
            return _UNREADABLE
        count = len(headers or ())
        marks = self.reading.read(headers, record.value())
        if marks is not None and self.reader.caps.are_exceeded([name for name, _ in headers or ()]):
            text = f"{count} headers; most are {self.policy.max_headers}, with {self.policy.max_header_name_bytes} bytes of names"
            return Refusal(DecodeError, "headers", text, marks.id, marks.seq)
        if isinstance(marks, Marks) and marks.order_key and not self.policy.has_paths:
            return Refusal(
                DecodeError, ORDER_KEY, 'the header needs a destination with routing = "path"', marks.id, marks.seq
            )
        if isinstance(marks, Marks) and marks.segment is not None and (why := self._why_no_pieces(marks)):
            return Refusal(DecodeError, SEGMENT_AT, why, marks.id, marks.seq)
        if isinstance(marks, Marks) and marks.special and isinstance(depth := depth_of(headers or ()), Refusal):
            return depth._replace(id=marks.id, seq=marks.seq)
        return marks

    def _why_no_pieces(self, marks: Marks) -> str:
        """Why a component may not come in pieces; empty if it may (B-124)."""
        if marks.routed is not None:
            return "a component by rule is sent whole"
        if marks.order_key:
            return f"a component with {ORDER_KEY} is sent whole"
        if self.policy.may_refer:
            return "units of this destination may refer to the records of their components, which are sent whole"
        return ""

    def _believed(self, at: int) -> int:
        """How far an append time moves the clock: one that cannot be does not."""
        return at if at <= self.latest else self.clock

    def advance(self, now: int) -> bool:
        """Moves the clock to `now` unless it is past it, and closes what is then due, in the order of the deadlines.

        Returns:
            False where the plan is full before that. The clock has then come as far as the last deadline that was dealt with: what is left
            is not due yet by it, or in that same moment.
        """
        if not self.deliver_left():
            return False
        now = max(now, self.clock)
        while (group := self.first_due(now)) is not None:  # it is the one `at` which the code fails
            if self.is_full():
                return False
            self.clock = max(self.clock, self.due)
            self._carry_out(decide_due(Situation(group, None, None, self.clock, self.position, self.policy)), None)
        self.clock = now
        self._is_freed = False
        return True

    def close_faulty(self) -> bool:
        """Closes as failed the groups at which the code failed, without a look at what had failed. True if the plan in the making closes any; it may be asked for several times."""
        for group in self.to_be_closed():
            if self.is_full():
                break
            failure = self.faulty.failure_of(group)
            self.faulty.at = group
            self.faulty.closing.append((group.id, group.generation))
            closed = Closed(
                *(group.id, group.generation, UnitOutcome.FAILED, Reason.LIMIT),
                *(group.highest, self.position, self.clock),
            )
            self.bring(group)
            self._carry_out(Decision((closed,), (Undelivered(closed, InternalError, fault=failure),)), None)
            self.counts.faulty_groups += 1
        self.faulty.at = None
        if self.faulty.closing:  # a plan of its own: whatever fails next undoes nothing of it
            self.is_cut, self.left_bytes = True, -1
        return bool(self.faulty.closing)

    def to_be_closed(self) -> list[Group]:
        """The groups that are to be closed as failed, at once. One that opens and closes between two plans is not here."""
        keys = [key for key in self.faulty if self.faulty.is_closed_at_once(key)]
        return [group for key in keys if (group := self.of_generation(*key)) is not None]

    def advance_rules(self, now: int) -> bool:
        """Closes the groups by rule that are due by `now`: whatever arrived before it is here. Returns False where the plan is full before that."""
        while (group := self.rule_deadlines.first_due(now)) is not None:
            if self.is_full():
                return False
            clock = max(self.clock, now)
            self.bring(group)
            self._carry_out(decide_due(self._moment(group, clock)), None)
            if group.is_open:
                self.schedule(group)
        return True

    def follow_time(self, until: int, closed: Collection[tuple[bytes, int]]) -> None:
        """Does what `advance_rules` did, as a worker's record of it tells: for the audit. No log says what that worker had read of the routers' inputs.

        Args:
            until: What is due later was not done.
            closed: Id and generation of the groups that were closed; no other one is.
        """
        left: list[Group] = []
        while (group := self.rule_deadlines.first_due(until)) is not None:
            clock = max(self.clock, until)
            decision = decide_due(Situation(group, None, None, clock, self.position, self.policy))
            closes = any(isinstance(change, Closed) for change in decision.changes)
            if closes and (group.id, group.generation) not in closed:
                left.append(group)
                self.rule_deadlines.drop_first()
                continue
            self.bring(group)
            self._carry_out(decision, None)
            if group.is_open:
                self.schedule(group)
        for group in left:
            self.schedule(group)

    # -- carrying out -----------------------------------------------------------------------------------------------

    def _carry_out(self, decision: Decision, record: Record | None) -> None:
        if record is not None and not is_recycled(record):
            self.position = record.offset() + 1  # whatever closes from here on may hold it
        group: Group | None = None
        for change in decision.changes:
            group = self._apply(change)
        for effect in decision.effects:
            match effect:
                case Delivered() | Undelivered() | TakenOut() | DeadlineWarning() | Answered():
                    self.happened.effects.append((effect, None, group))
                case Rejected() | Passed() | Rerouted() | Dropped():
                    if record is None:
                        raise InvariantViolation(self.place, effect, "no record in hand")
                    self._concerning(record, effect)
                case _:
                    assert_never(effect)
        if group is not None and group.id in self.aside:
            self.settle(group.id)
        if group is not None and group.is_open and record is not None:
            self.schedule(group)
        if self.freed and not self._is_freeing:
            self._deliver_first()

    def deliver_left(self) -> bool:
        """Delivers what had its turn in the plan before, which was full, ahead of everything else. False if this one is full before that."""
        if self.freed:
            self._deliver_first()
        return not self.freed

    def _deliver_first(self) -> None:
        """Delivers what waited for groups that arrived before it, and is first now (B-118); what does not fit into the plan is the first thing of the next one."""
        self.in_hand, self._is_freeing = NOTHING, True
        while self.freed and not self.is_full():
            self.faulty.at = group = next(iter(self.freed))
            del self.freed[group]
            if group.is_open and not self.faulty.has(group) and group.due_at(self.policy) <= self.clock:
                self.bring(group)
                self._carry_out(decide_due(self._moment(group, self.clock)), None)
            elif group.is_open and group.ruled is not None:  # it stands alone: those that waited for it wait no longer
                self._free_first(group.ruled.policy.rule_id)
        self.faulty.at, self._is_freeing = None, False
        for group in self.freed:
            ruled = group.ruled
            if ruled is not None and ruled.waits_since < group.deliver_at and not ruled.has_turn:
                self.tell_turns(ruled.policy.rule_id)  # else a restore takes it for one that waits for its time alone

    def _apply(self, change: Change) -> Group | None:
        """Carries out one change; returns its group."""
        match change:
            case Opened():
                return self.open(change)
            case Corrected():
                return self.correct(change)
            case Closed():
                return self._close(change)
            case Held():
                self.hold(group := self.groups[change.id], change)
            case HeldPiece():
                self.hold_piece(group := self.groups[change.id], change)
            case Amended():
                group = self.groups[change.id]
                group.apply(change)
                self.happened.amended.append(group)
            case Warned() | Erased():
                self.rewrite(group := self.groups[change.id], change)
            case Removed():
                self.remove(group := self.groups[change.id], change)
            case Announced():
                self.announce(group := self.groups[change.id], change)
            case Waits():
                self.wait(group := self.groups[change.id], change)
                self._limit_waiting(group)
            case _:
                assert_never(change)
        return group

    def _close(self, closed: Closed) -> Group | None:
        """Takes the group of this close out of the open ones; None if of this generation nothing was ever held."""
        group = self.groups.get(closed.id)
        if closed.id in self.aside and (group is None or group.generation != closed.generation):
            group = self.aside[closed.id].get(closed.generation)
            if group is not None:
                self.bring(group)
        if group is not None and group.generation == closed.generation:
            del self.groups[closed.id]
        else:
            group = None
        self.close(group, closed)
        return group

    def _limit_waiting(self, group: Group) -> None:
        """The oldest of too many that wait leave: to their target, or as failed (B-107). None leaves before its own time (W-08), and one that has its turn waits for nothing but the next plan."""
        assert group.ruled is not None
        policy = group.ruled.policy
        waiting = self.waiting.get(policy.rule_id, {})
        while policy.max_waiting is not None:
            if self.freed and (line := self.arrivals.get(policy.rule_id)) is not None:
                self._free_all(line)
            has_turn = sum(each in waiting for each in self.freed)
            if len(waiting) - has_turn <= policy.max_waiting:
                return
            may_leave = (each for each in waiting if each.deliver_at <= self.clock and each not in self.freed)
            oldest = next((each for each in may_leave if not self.faulty.has(each)), None)
            if oldest is None:
                return
            before, self.faulty.at = self.faulty.at, oldest
            self.bring(oldest)
            now = Situation(oldest, None, None, self.clock, self.position, self.policy)
            self._carry_out(decide_crowded_out(now), None)
            self.faulty.at = before

    def _concerning(self, record: Record, effect: Rejected | Passed | Rerouted | Dropped) -> None:
        counts = self.counts
        match effect:
            case Rejected(refusal) if refusal.error is DuplicateSequenceNumberError:
                counts.duplicate += 1
            case Rejected():
                counts.rejected += 1
            case Passed():
                counts.passed += 1
            case Rerouted():
                counts.passed += 1
                counts.rerouted += 1
            case Dropped():
                counts.duplicate += 1
            case _:
                assert_never(effect)
        if not is_recycled(record):
            self.happened.not_held.append(record.offset())
        self.happened.effects.append((effect, record, None))

    def _deliver_freed(self) -> None:
        """A group that was complete and waited is delivered in the same moment as the last one before it."""
        if self._is_freed:
            self.advance(self.clock)
