"""The poll loop, in its own thread: read, hand over, write one transaction. Knows neither Faust nor Kafka.

Belongs here: the order of the calls at the ports, and what follows a failure. Does not belong here: what a record does to a group
(`uow.processor.engine.task`), how a transaction is written (the sink), who runs the tasks (the `TaskRunner`), which partitions there are
(`owned_partitions`), and decisions, which are values of their own: `turn`, `portions`, `quarantine`, `memory_limit`, `ticks`, `recovery`.

One turn of the loop:

1. `source.control`: rebalances. Nothing is in flight inside its callbacks, since a turn writes synchronously (ER-15). What was assigned is
   restored, and then read. A restore, and everything else that may take long, serves the group meanwhile, so that a worker is never thrown
   out for being slow (ER-17); partitions that are revoked meanwhile are dropped, those that come are restored next.
2. `source.read`: at most one poll. Records of partitions that were revoked meanwhile, are blocked or lie before the task's position are
   dropped. A partition of `D.commands` goes with the same one of `D.components`: one batch, one plan, one fate. A command waits until what
   was appended before it is read (`waiting_commands`).
3. `runner.process`: each partition's task turns its records into a plan.
4. `sink.write`: all plans as one transaction, with the group's metadata taken with the poll (ER-01, ER-14). A plan that would close too much
   is cut: what it left is read once more, in the next turn, which does not wait. So is what a partition with much more work than others has beyond
   its share of a turn (`shares`).
5. Ticks: partitions with a passed deadline that are read to ends asked for after it get the wall clock, in a transaction of their own that also sends
   positions (ER-02). Nobody waits for these ends: a partition that is asked goes on, and its tick comes in the turn in which they are known and reached.

| What went wrong | What the driver does |
| --- | --- |
| a task raised | restore that partition, halve the poll until the record that raised stands alone; if its own step raised it is set aside to `D.rejected`. Else, and beyond so many a minute, the partition is blocked at it (ER-03, `set_aside`) |
| a task raised at a group that no record in hand is of | restore; if it raises again the group is closed as failed, within the same limit; if that fails it stands alone, and is tried again (`group_faults`) |
| a task raised at a command alone, or at the group that it names | the command is answered as failed, within the same limit |
| what a command asks for is refused by a broker, and nothing else is in the plan (so it is once a batch with it has failed, `portions`) | it is answered with the reason, and does nothing |
| a record blocks, and a command says that it is to be set aside | it is tried once more, and set aside if it fails again |
| `Doubt` | replace the producer, restore every owned partition, seek, read again (ER-05, ER-11) |
| `StaleGeneration` | the same without a new producer, after the rebalance had its chance (ER-14) |
| `Refused` | as `Doubt`; a record that is known to be the cause is given up alone, a unit by rule after its attempts (B-89); until it is known one transaction per partition, and less at a time, as for a task that raised |
| a partition is blocked | the others go on. It is tried again by itself, later each time; meanwhile what it holds is saved (`_maintain_blocked`) |
| a restore would have to wait for others: the open transaction of a dead worker, a log without a leader | those that need not wait go on; it is looked at again (`Ports.ready`) |
| `ConfigError` in a restore | the driver ends: a worker with other settings has taken over (W-68) |
| memory over the limit | forget the oldest closed ids beyond their share; pause the fullest partition, one each turn (`memory_limit`) |
| anything else | the driver ends with the error, the runner crashes the worker |
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple, Self

from uow.processor.core.columns import Seen, looked_at
from uow.processor.engine.batch import Batch, Task, Work
from uow.processor.engine.driver_ports import Ports, TaskRunner
from uow.processor.engine.input_topics import InputTopics
from uow.processor.engine.memory_limit import decide_pause, forget_excess, remembered_limit
from uow.processor.engine.owned_partitions import OwnedPartitions
from uow.processor.engine.poll_loop import PollLoop
from uow.processor.engine.ports import Blocked, Doubt, EndQuestion, Plan, Poll, RawRecord, Refused, StaleGeneration, Tp
from uow.processor.engine.recovery import Recovery
from uow.processor.engine.set_aside import (
    Aside,
    AskedAsides,
    SetAsideLimit,
    advice,
    by_command,
    fault_of,
    is_by_hand,
    with_reason,
)
from uow.processor.engine.shares import Shares
from uow.processor.engine.ticks import Look, TickSchedule
from uow.processor.engine.turn import TurnBatches, TurnResults, from_position
from uow.schemas.error_classes import InternalError, UowError
from uow.topics.commands import Asked, AskedInVain, RecordPlace

READ_TIMEOUT_S = 0.2
"""Longest one read waits for a first record: how long a stop or a deadline may go unseen."""
ANSWER_S = 0.01
"""The same while brokers are asked for ends: they tell them in a few milliseconds, mostly."""
SOON_MS = 500
"""A broker that has not answered by then is not expected from one moment to the next."""


class Driver(PollLoop):
    """Runs the poll loop until `request_stop`, or until something cannot be repaired.

    Args:
        ports: Source, sink, clock, restore and so on.
        runner: Runs the tasks.
        topics: `D.components` of each destination, and its `D.commands`.
        poll_records: Most records of one poll.
        memory_limit_bytes: Memory over which partitions are paused (`uow.processor.engine.memory_limit`).
        stop: Set when asked to stop; ports that wait for brokers look at it.
        set_aside: How many records at which a task raises are set aside.
    """

    def __init__(
        self,
        ports: Ports,
        runner: TaskRunner,
        topics: Mapping[str, str],
        poll_records: int,
        memory_limit_bytes: int,
        stop: threading.Event,
        set_aside: SetAsideLimit | None = None,
    ) -> None:
        super().__init__("uow-driver", ports.source, ports.sink, stop, ports.others)
        self._ports, self._runner, self._clock = ports, runner, ports.clock
        self._poll_records = poll_records
        self.memory_limit_bytes = memory_limit_bytes
        self._inputs = InputTopics(topics)
        self._set_aside = set_aside or SetAsideLimit()
        self._partitions = owned = OwnedPartitions(ports, runner, self._inputs, self._serve, self._set_aside)
        self._shares = Shares()
        self._turn_batches = TurnBatches(ports.source, self._inputs, owned.waiting, owned.portions, self._shares)
        self._ticks = TickSchedule()
        self._recovery = Recovery()
        self._asides: dict[Tp, Aside] = {}
        self._asked = AskedAsides()
        self._tried: dict[Tp, _Tried] = {}
        self._has_more = False
        self._waits_for_answers = False
        self._upkeep: dict[Tp, tuple[int, EndQuestion]] = {}

    @property
    def unrestored(self) -> int:
        """The number of partitions that were assigned, and are neither restored nor blocked yet. Any thread may ask."""
        return self._partitions.unrestored

    def _topics(self) -> Sequence[str]:
        return self._inputs.components

    def _on_assign(self, tps: list[Tp]) -> None:
        self._partitions.assign(tps)

    def _finished(self, error: BaseException | None) -> None:
        self._runner.finished(error)

    def _on_revoke(self, tps: list[Tp]) -> list[Tp]:
        """Also for partitions that are lost, which someone else may own by now: nothing is open, so there is nothing to abort (ER-16)."""
        for tp in tps:
            self._turn_batches.forget(tp)
            self._shares.forget(tp)
            self._ticks.forget(tp)
            self._asides.pop(tp, None)
            self._asked.forget(tp)
            self._tried.pop(tp, None)
            self._set_aside.forget(tp)
            self._ports.faults.forget(tp)
            self._upkeep.pop(tp, None)
            self._set_aside.forget(self._inputs.commands_tp(tp))
        return self._partitions.revoke(tps)

    # -- one turn

    def _turn(self) -> None:
        # Nothing is in flight: every transaction before is committed or aborted, and every task is as committed.
        self._source.control(0.0)
        self._ports.faults.try_again(self._clock.monotonic_ms())
        self._partitions.retry_blocked()
        self._partitions.restore_assigned()
        self._ports.targets.look()
        # Every task is as committed, and the source reads on at its positions. Only partitions that are not paused are fetched.
        is_asking = self._waits_for_answers or self._partitions.is_asking
        timeout = 0.0 if self._has_more else ANSWER_S if is_asking else READ_TIMEOUT_S
        poll = self._source.read(self._poll_records, timeout)
        self._has_more = self._waits_for_answers = False
        # A rebalance inside `read` has dropped the tasks of its partitions; records of the poll may still belong to them.
        waiting = self._partitions.waiting
        if poll is not None:
            self._hear(poll)
            self._block_unreadable(poll)
            self._process(self._batches(poll.records), poll.token)
        elif waiting:
            token = self._source.token()  # before the batches ask for end offsets
            self._process(self._batches({}), token)
        # All plans of the poll are committed. A partition whose task raised is restored, and blocked if a single record was at fault.
        waiting.end_turn({tp: self._partitions.tasks[tp].command_position for tp in waiting})
        self._waits_for_answers = waiting.is_asking
        self._answer_about_others()
        self._tick()
        self._maintain_blocked()
        self._keep_within_memory()

    def _block_unreadable(self, poll: Poll) -> None:
        owned, batches = self._partitions, []
        for each, cause in poll.trouble.items():
            tp = self._inputs.components_tp(each)
            if tp not in owned.tasks:  # it was revoked during the same poll
                continue
            owned.block_at(tp, cause, 0)
            if (asked := self._asked.of(tp, owned.tasks[tp].position)) is not None:
                text = f"{asked.command.source} cannot be read, so it cannot be set aside: {cause}"
                batches.append(Batch(tp, Work.ANSWERS, answers=[(asked, text)]))
        self._process(batches, poll.token)

    def _batches(self, polled: Mapping[Tp, list[RawRecord]]) -> list[Batch]:
        owned = self._partitions
        latest, now = self._clock.latest_ms(), self._clock.monotonic_ms()
        batches = self._turn_batches.make(polled, owned.tasks, owned.quarantine, owned.paused, latest, now)
        for batch in batches if self._asides else ():
            aside = self._asides.get(batch.tp)
            if (
                aside is not None
                and _only_offset(batch) == aside.offset
                and _is_of_command(batch) == aside.is_of_command
            ):
                batch.aside = aside
        return batches

    def _hear(self, poll: Poll) -> None:
        """Commands to set a record aside do not wait for those before them. The record is tried at once: it is set aside if it fails once more."""
        owned = self._partitions
        for each, records in poll.records.items():
            tp = self._inputs.components_tp(each)
            if each == tp or tp not in owned.tasks:
                continue
            records[:] = [Seen(record, headers) for headers, record in looked_at(records)]  # nobody may look twice
            task = owned.tasks[tp]
            commands = from_position(records, task.command_position)
            if task.position in self._asked.take(tp, commands, task.context.command_reader, task.has_answered):
                owned.quarantine.hurry(tp, self._clock.monotonic_ms())

    def _answer_about_others(self) -> None:
        """In blocked partitions: a command about a record that is not the one that blocks does nothing, nor does one without right to it."""
        if not self._asked:
            return
        owned, batches = self._partitions, []
        for tp, task in owned.tasks.items():
            self._asked.passed(tp, task.command_position)
            if tp not in owned.quarantine:
                continue
            here = RecordPlace(*tp, task.position)
            answers: list[tuple[Asked | AskedInVain, str]] = [
                (each, f"{each.command.source} does not block its partition, {here} does: nothing is done")
                for each in self._asked.others(tp, task.position)
            ]
            answers += [(each, each.command.answer) for each in self._asked.in_vain(tp)]
            if answers:
                batches.append(Batch(tp, Work.ANSWERS, answers=answers))
        if batches:
            self._process(batches, self._source.token())

    def _process(self, batches: Sequence[Batch], token: object) -> None:
        """Hands over, writes what came of it, then deals with partitions whose task raised."""
        if not batches:
            return
        self._tried.update({batch.tp: _Tried.of(batch) for batch in batches})
        if self._ports.hidden is not None:
            self._ports.hidden.replace(batches)
        if self._ports.placement is not None:
            self._ports.placement.ensure_placed(batches)
        try:
            self._runner.process(batches)
            results = TurnResults.of(batches)
            for batch, plan in results.planned:
                self._tried[batch.tp] = self._tried[batch.tp].as_planned(plan, self._partitions.tasks[batch.tp])
            self._write(results.plans, token)
        except Doubt:
            for batch in batches:
                batch.empty()  # an agent holds its last one until the next comes
            raise
        for batch, plan in results.planned:
            self._on_written(batch, plan)
        for batch, cause in results.failed:
            if batch.tp in self._partitions.tasks:  # else it was revoked while another one was restored
                self._on_failed(batch, cause)

    def _write(self, plans: Sequence[Plan], token: object) -> None:
        if not plans:
            return
        for some in self._recovery.transactions(plans):
            try:
                self._sink.write(some, token)
            except Refused as refused:
                if refused.tp is None and len(some) == 1:
                    refused.tp = some[0].tp
                raise
            self._runner.committed(some)
        self._recovery.on_committed()

    def _on_written(self, batch: Batch, plan: Plan) -> None:
        """Takes note of the time that it took, and reads again what a cut plan left."""
        tasks = self._partitions.tasks
        if batch.tp in tasks and plan.awaits_rule is not None:
            tasks[batch.tp].read_rules(batch.last_offset + 1, self._serve)
        if batch.tp not in tasks:  # it was revoked while rules were read, for it or for another one
            return
        if batch.count:
            self._shares.took(batch.tp, batch.count, batch.seconds + plan.seconds, self._clock.monotonic_ms())
        if batch.work is Work.ANSWERS:  # it is blocked still
            answered = [asked for asked, _ in batch.answers]
            self._asked.answered(batch.tp, answered)
            tasks[batch.tp].note_refused([each.offset for each in answered if isinstance(each, AskedInVain)])
            return
        self._partitions.on_progress(batch.tp)
        self._ports.faults.written(batch.tp, self._clock.monotonic_ms())
        if plan.is_cut:
            self._has_more = True
            if batch.work is Work.RECORDS:
                self._source.seek({plan.tp: plan.next_offset})
        self._partitions.portions.passed(batch.tp, plan.next_offset, plan.next_command)
        if batch.aside is not None:
            self._asides.pop(batch.tp, None)
            self._asked.answered(batch.tp, [batch.aside.asked] if batch.aside.asked is not None else [])

    # -- a record that cannot be processed, a plan that cannot be written (ER-03, F20)

    def _on_failed(self, batch: Batch, cause: Blocked) -> None:
        """Half-processed work has changed memory: restore. Then try less at a time, so that the position stops at the very record."""
        is_of_command = self._ports.faults.is_of_command(batch.tp, batch.commands)
        why = self._ports.faults.why_not_without(batch.tp, cause, self._clock.monotonic_ms(), self._set_aside)
        if why is None:
            pass  # it goes on without the group
        elif batch.count + len(batch.commands) > 1:
            last_command = batch.commands[-1].offset() if batch.commands else -1
            self._partitions.portions.halve(batch.tp, batch.last_offset, batch.count, last_command)
        elif batch.work is not Work.RECORDS:
            self._partitions.block(batch.tp, why)
        elif why := self._why_not_aside(batch, why, is_of_command=is_of_command):
            self._partitions.block_at(batch.tp, why, self._turn_batches.append_time(batch.tp))
        self._partitions.restore_again([batch.tp])

    def _why_not_aside(self, batch: Batch, cause: Blocked, *, is_of_command: bool) -> Blocked | None:
        """None if the only record, or the only command, of the batch is refused at the next try: nobody foresaw what its own step raised, or a command says so."""
        tp, offset, fault, task = batch.tp, _only_offset(batch), fault_of(cause), self._partitions.tasks[batch.tp]
        if _is_of_command(batch):
            return self._why_not_refused(batch, cause, is_of_command=is_of_command)
        was_aside = self._asides.pop(tp, None) if batch.aside is not None else None
        if was_aside is None and self._is_asked_aside(tp, offset, fault, str(cause)):
            return None
        is_its_own = was_aside is None and task.in_hand == offset
        is_strict = task.context.policy.strict_order  # nothing may come out before what stands here
        if fault is None or not is_its_own or is_strict:
            self._asides.pop(tp, None)
            return self._blocked_at(tp, offset, cause)
        if why := self._set_aside.take(tp, offset, fault, self._clock.monotonic_ms()):
            return self._blocked_at(tp, offset, with_reason(cause, f": {why}"))
        self._refuse_next(tp, Aside(offset, InternalError.of(fault)))
        return None

    def _why_not_refused(self, batch: Batch, cause: Blocked, *, is_of_command: bool) -> Blocked | None:
        """The same of a command: what it asks for is not done, and it is answered."""
        tp, offset, fault = batch.tp, _only_offset(batch), fault_of(cause)
        self._asides.pop(tp, None)
        is_of_command |= self._partitions.tasks[tp].command_in_hand == offset
        is_its_own = batch.aside is None and is_of_command
        if fault is None or not is_its_own or not is_by_hand(batch.commands[0]):
            return cause
        if why := self._set_aside.take(self._inputs.commands_tp(tp), offset, fault, self._clock.monotonic_ms()):
            return with_reason(cause, f": {why}")
        self._refuse_next(tp, Aside(offset, InternalError.of(fault), is_of_command=True))
        return None

    def _is_asked_aside(self, tp: Tp, offset: int, fault: BaseException | None, cause: str) -> bool:
        """True if a command says that the record is to be set aside, which is then done at the next try. One from before the record knew nothing of it."""
        asked = self._asked.of(tp, offset)
        if asked is None or asked.at < self._turn_batches.append_time(tp):
            return False
        self._refuse_next(tp, Aside(offset, by_command(asked, fault, cause), asked))
        return True

    def _refuse_next(self, tp: Tp, aside: Aside) -> None:
        self._asides[tp] = aside
        portions = self._partitions.portions
        (portions.single_command if aside.is_of_command else portions.single)(tp, aside.offset)

    def _blocked_at(self, tp: Tp, offset: int, cause: Blocked) -> Blocked:
        """The same cause, with what an operator can do."""
        return with_reason(
            cause, f"; {advice(self._partitions.tasks[tp].context.destination, RecordPlace(*tp, offset))}"
        )

    def _on_refused(self, refused: Refused) -> None:
        """Also where the record is known the next try is smaller: of many that are refused each costs a try, and others are to have their turns."""
        owned, tp = self._partitions, refused.tp
        task, tried = (None, _Tried()) if tp is None else (owned.tasks.get(tp), self._tried.get(tp, _Tried()))
        targets = self._ports.targets
        is_known = refused.output is not None and targets.refuse(refused.output, is_too_large=refused.is_too_large)
        if tp is None:
            self._recovery.write_one_by_one()
        elif (
            task is not None
            and not is_known
            and self._ports.faults.closes(tp, is_single=tried.is_single, refused=refused.output)
        ):
            if not self._ports.faults.leave_alone(tp, self._clock.monotonic_ms(), refused):
                owned.block(tp, Blocked(f"a group that cannot be restored cannot be closed either: {refused}"))
        elif task is not None and not is_known and tried.command >= 0:
            self._refuse_command(tp, tried, refused)
        elif task is not None and not (
            owned.portions.halve_again(tp, task.position, task.command_position, self._poll_records) or is_known
        ):
            cause, offset = Blocked(f"a record made from it is refused: {refused}"), tried.record
            self._asides.pop(tp, None)
            if offset >= 0 and tried.aside is None and self._is_asked_aside(tp, offset, None, str(cause)):
                return
            told = cause if offset < 0 else self._blocked_at(tp, offset, cause)
            owned.block_at(tp, told, self._turn_batches.append_time(tp))

    def _refuse_command(self, tp: Tp, tried: _Tried, refused: Refused) -> None:
        """A command stands alone, and a broker does not take what it asks for: it is answered at the next try. If not even the answer is taken, or beyond so many a minute, its partition blocks."""
        commands = self._inputs.commands_tp(tp)
        place = RecordPlace(*commands, tried.command)
        if tried.aside is not None:
            del self._asides[tp]
            cause = f"the answer to the command at {place} is refused: {refused}"
        elif why := self._set_aside.take_refused(commands, tried.command, self._clock.monotonic_ms()):
            cause = f"a broker refuses what the command at {place} asks for: {refused}: {why}"
        else:
            self._refuse_next(tp, Aside(tried.command, UowError(str(refused)), is_of_command=True))
            return
        self._partitions.block(tp, Blocked(cause))
        self._partitions.portions.single_command(tp, tried.command)  # it stands alone at the next try as well

    def _start_over(self, doubt: Doubt) -> None:
        """Back to the last committed state and position of everything owned (ER-05)."""
        self._runner.doubted(doubt)
        self._ports.targets.look(at_once=True)
        wait = self._recovery.on_doubt(doubt)
        if not isinstance(doubt, StaleGeneration):
            self._sink.replace(self._serve)
        if isinstance(doubt, Refused):
            self._on_refused(doubt)
        rebalances = self._partitions.rebalances
        while wait > 0 and not self._stopping.is_set():
            if self._recovery.doubts == 1 and self._partitions.rebalances != rebalances:
                break  # that explains it
            self._source.control(min(wait, 0.05))
            wait -= 0.05
        self._partitions.restore_again(sorted(self._partitions.tasks))

    # -- blocked partitions

    def _maintain_blocked(self) -> None:
        """Saves what blocked partitions hold, and applies the deadlines that passed before the record at which they stopped.

        No component that lies unread was appended before that record, so none was in time for these deadlines; for later ones it may be (W-82).
        """
        quarantine, tasks = self._partitions.quarantine, self._partitions.tasks
        if not quarantine.needs_upkeep:
            return
        token = self._source.token()
        self._process([Batch(tp, Work.DRAIN) for tp in quarantine.take_unsaved() if tp in tasks], token)
        batches = []
        for tp, append_time in quarantine.take_ticks().items():
            task = tasks.get(tp)
            if task is None:
                continue
            commands = self._inputs.commands_tp(tp)
            if self._upkeep.get(tp, (0, None))[0] != append_time:
                self._upkeep[tp] = append_time, self._source.end(commands)
            end = self._upkeep[tp][1].answer()
            if end is None or not self._source.has_read(commands, task.command_position, end):
                quarantine.tick_later(tp, append_time)  # a command that lies unread may be older
            else:
                del self._upkeep[tp]
                batches.append(Batch(tp, Work.TICK, asked_at=append_time, settled=0))
        self._process(batches, token)
        for batch in batches:
            if isinstance(batch.outcome, Plan) and batch.outcome.is_cut:
                quarantine.tick_later(batch.tp, batch.asked_at)

    # -- time (W-82, W-83)

    def _tick(self) -> None:
        now, monotonic = self._clock.now_ms(), self._clock.monotonic_ms()
        tasks = self._partitions.unblocked_tasks
        due = {tp: at for tp, task in tasks.items() if (at := task.next_deadline()) is not None and now > at}
        if not due:
            return
        token = self._source.token()  # before the partitions are looked at
        upstream = self._ports.upstream
        settled = cache(lambda topic: None if upstream is None else upstream.settled(topic, now))
        reached = [tp for tp, deadline in due.items() if self._is_read_past(tp, tasks[tp], deadline, settled, now)]
        looks = self._ticks.looks
        chosen = self._ticks.choose(reached)
        self._has_more |= len(chosen) < len(reached)
        batches = [Batch(tp, Work.TICK, asked_at=looks[tp].asked_at, settled=looks[tp].settled) for tp in chosen]
        self._process(batches, token)
        for batch in batches:
            if batch.outcome is None:
                self._ticks.put_off(batch.tp, monotonic)
            if not (isinstance(batch.outcome, Plan) and batch.outcome.is_cut):
                looks.pop(batch.tp, None)  # it may be revoked meanwhile

    def _is_read_past(
        self, tp: Tp, task: Task, deadline: int, settled_by: Callable[[str], int | None], now: int
    ) -> bool:
        """True if the partition is read to ends that were asked for after the deadline. Asks, where nobody has."""
        ticks, monotonic = self._ticks, self._clock.monotonic_ms()
        look, positions = ticks.looks.get(tp), self._inputs.positions({tp: task})
        if look is None or look.asked_at <= deadline:  # that one was for a group that has closed
            if not ticks.may_ask(tp, monotonic):
                return False
            # The routers first: a group by rule waits for what arrived before its deadline there (B-218). Then `D.components`: its time is before
            # either question, and no record is older that comes later.
            settled = settled_by(tp.topic)
            if settled is not None and settled <= deadline and not ticks.has_waited(tp, monotonic):
                self._waits_for_answers = True
                return False
            questions = {each: self._source.end(each) for each in positions}
            # Later than any of these: the clock may have come from a predecessor, whose records nobody has read here.
            latest = max(now, task.clock, *(each.asked_at for each in questions.values()))
            look = ticks.look(tp, Look(questions[tp].asked_at, settled, latest, questions, monotonic))
            if look.asked_at <= deadline:  # by the clock of this partition it is not that late yet
                ticks.put_off(tp, monotonic)
        elif (settled := settled_by(tp.topic)) is not None and look.settled is not None:
            look.settled = min(look.settled, settled)  # a new version of the rules may have added an input
        if look.is_reached(self._source, positions, task.clock):
            return True
        look.check(self._source, monotonic)
        self._waits_for_answers |= len(look.ends) < len(look.questions) and monotonic - look.checked < SOON_MS
        return False

    # -- memory (ER-19)

    def _keep_within_memory(self) -> None:
        limit, owned = self.memory_limit_bytes, self._partitions
        other = forget_excess(owned.tasks.values(), remembered_limit(limit))
        other += sum(task.table_bytes for task in owned.tasks.values())
        other += self._ports.placement.memory_bytes if self._ports.placement is not None else 0
        other += self._ports.rules_bytes()
        held = {tp: task.memory_bytes for tp, task in owned.tasks.items()}
        unchanged_ms = owned.pauses_unchanged_ms
        owned.pause_or_resume(decide_pause(limit, held, other, owned.paused, owned.quarantine, unchanged_ms))

    # -- clean stop

    def _last_turn(self) -> None:
        token = self._source.token()
        batches = [Batch(tp, Work.DRAIN) for tp in self._partitions.unblocked_tasks]
        if batches:
            self._runner.process(batches)
            self._write([batch.outcome for batch in batches if isinstance(batch.outcome, Plan)], token)


class _Tried(NamedTuple):
    """The last batch of a partition, of which its records are not kept.

    Attributes:
        record: Offset of its only record; -1: it had several, or a command.
        command: Offset of its only command, if that is one by hand and nothing else happened in its plan; else -1.
        aside: The refusal that it was.
        is_single: True if it had one record or command, or none.
    """

    record: int = -1
    command: int = -1
    aside: Aside | None = None
    is_single: bool = False

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """That of this one."""
        offset = _only_offset(batch)
        is_command = _is_of_command(batch) and is_by_hand(batch.commands[0])
        is_single = batch.count + len(batch.commands) <= 1
        return cls(offset if batch.count else -1, offset if is_command else -1, batch.aside, is_single)

    def as_planned(self, plan: Plan, task: Task) -> Self:
        """The same once its plan is made, which may be cut before the command, or begin with groups that are due."""
        is_alone = self.aside is not None or task.command_in_hand == self.command
        return self if plan.next_command > self.command and is_alone else self._replace(command=-1)


def _is_of_command(batch: Batch) -> bool:
    return not batch.count and len(batch.commands) == 1


def _only_offset(batch: Batch) -> int:
    """Offset of the only record of a batch, or of its only command; -1 if there are several, or none."""
    if batch.work is not Work.RECORDS or batch.count + len(batch.commands) != 1:
        return -1
    return batch.last_offset if batch.count else batch.commands[0].offset()
