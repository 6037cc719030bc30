"""The poll loop, in its own thread: read, hand over, write one transaction. Knows neither Faust nor Kafka.

Belongs here: the order of things in a poll (architecture section 2), what is restored and when, which partitions stand still and why.
Does not belong here: what a record does to a group (`processor.engine.task`), how a transaction is written (the sink), who runs the
tasks (the `Host`: Faust's event loop in a worker, a direct call in tests).

One turn of the loop:

1. `source.control`: rebalances. Inside its callbacks nothing is in flight, since a turn writes synchronously (ER-15). What was assigned is
   restored, and then read. A restore, and everything else that may take long, serves the group meanwhile, so that a worker is never thrown
   out for being slow (ER-17); partitions that go meanwhile are dropped, those that come are restored next.
2. `source.read`: at most one poll. Records of partitions that went meanwhile, stand blocked or lie before the task's position are dropped.
   A partition of `D.commands` goes with the same one of `D.components`: one batch, one plan, one fate. A command waits until what was
   appended before it is read (`waiting`).
3. `host.process`: each partition's task turns its records into a plan.
4. `sink.write`: all plans as one transaction, with the group's metadata taken with the poll (ER-01, ER-14). A plan that would close too much
   is cut: what it left is read once more, in the next turn, which does not wait.
5. Ticks: partitions with a passed deadline that are read to their end get the wall clock, in a transaction of their own that also sends positions (ER-02).

| What went wrong | What the driver does |
| --- | --- |
| a task raised | restore that partition, halve the poll until the record that raised stands alone, then block the partition at it (ER-03) |
| `Doubt` | replace the producer, restore every owned partition, seek, read again (ER-05, ER-11) |
| `StaleGeneration` | the same without a new producer, after the rebalance had its chance (ER-14) |
| `Refused` | as `Doubt`; then one transaction per partition until the plan that cannot be written is found, and as for a task that raised |
| a partition is blocked | the others go on. It is tried again by itself, later each time; meanwhile what it holds is saved (`_look_after_blocked`) |
| a restore would have to wait for others: the open transaction of a dead worker, a log without a leader | those that need not wait go on; it is looked at again (`Ports.ready`) |
| `ConfigError` in a restore | the driver ends: a worker with other settings has taken over (W-68) |
| memory over the limit | forget the oldest closed ids beyond their share; pause the fullest partition, one each turn; see `_keep_within_memory` |
| anything else | the driver ends with the error, the host crashes the worker |
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from processor.engine.batch import Batch, Task, Work
from processor.engine.blockade import Blockade
from processor.engine.ports import (
    Abandoned,
    Blocked,
    Clock,
    Doubt,
    Plan,
    RawRecord,
    Refused,
    Sink,
    Source,
    StaleGeneration,
    Stopped,
    Tp,
)
from processor.engine.waiting import WaitingCommands
from schemas.errors import ConfigError, FencedError

Wanted = Callable[[], Collection[Tp]]
"""A `Meanwhile` that also tells which partitions are still to be restored."""

Restore = Callable[[Sequence[Tp], Wanted], Mapping[Tp, Task]]
"""Builds the tasks of partitions from the logs; `task.position` is where to read on (ER-06)."""

READ_TIMEOUT_S = 0.2
"""Longest one read waits for a first record: how long a stop or a deadline may go unseen."""

LOOK_AGAIN_MS = 250
"""A partition whose restore would have to wait for others is not looked at again before this."""

ASK_AGAIN_MS = 100
"""A partition that was not at its end is not asked again before this. Counted in time gone by: a clock that is put back delays no question."""

TICKS_A_TURN = 8
"""So many partitions at most close groups by time in one turn; the others are next. A full plan of each is some seconds of work together."""

BACK_OFF_S = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
"""Wait before starting over, by the number of doubts since the last commit."""

REBALANCE_CHANCE_S = 0.3
"""How long a stale generation waits for the rebalance that explains it."""

MEMORY_RESUME = 0.9
MEMORY_STOP = 1.25
MEMORY_LIGHT = 0.25
"""Share of the limit that partitions may hold together, each its part, without ever being paused."""
MEMORY_REMEMBERED = 0.25
"""Share of the limit for closed ids and commands of all partitions together; above it the oldest are forgotten."""
LEAST_REMEMBERED = 4_194_304
MEMORY_ASIDE = 0.5
"""Most of the limit that is taken off for what no pause makes less: closed ids, path maps, tables."""


def remembered_share(limit_bytes: int) -> int:
    """What closed ids and commands may take of a worker's memory."""
    return max(int(limit_bytes * MEMORY_REMEMBERED), LEAST_REMEMBERED)


class Ways(Protocol):
    """Path routing, where a destination has it."""

    @property
    def memory_bytes(self) -> int:
        """About what it takes."""
        ...

    def settle(self, batches: Sequence[Batch]) -> None:
        """Every id in these batches has a way on return; may put other records in the place of theirs. Raises `Doubt`."""
        ...


class Host(Protocol):
    """Who applies the batches and tells the world. Every call comes from the driver's thread and returns when the host is done."""

    def assigned(self, tasks: Mapping[Tp, Task]) -> None:
        """These tasks are new or restored. Empty: joined the group as a spare."""
        ...

    def revoked(self, tps: Sequence[Tp]) -> None: ...
    def process(self, batches: Sequence[Batch]) -> None:
        """Every batch is settled on return."""
        ...

    def committed(self, plans: Sequence[Plan]) -> None: ...
    def blocked(self, tp: Tp, cause: Blocked) -> None:
        """It cannot go on, or a try has failed. It is tried again by itself."""
        ...

    def unblocked(self, tp: Tp) -> None:
        """It goes on."""
        ...

    def paused(self, tps: Collection[Tp]) -> None:
        """The partitions that now stand still for want of memory."""
        ...

    def doubted(self, doubt: Doubt) -> None: ...
    def finished(self, error: BaseException | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Ports:
    """The driver's outside. `restore` is `processor.engine.restore.restore` with its reader, or a stand-in.

    `ready` tells which partitions can be restored without waiting for others: no transaction is open in their logs, and brokers answer. It
    must not wait itself.
    """

    source: Source
    sink: Sink
    clock: Clock
    restore: Restore
    ways: Ways | None = None
    ready: Callable[[Sequence[Tp]], Collection[Tp]] = lambda tps: tps


class Driver(threading.Thread):
    """Runs the poll loop until `request_stop`, or until something cannot be mended.

    Args:
        ports: Source, sink, clock and restore.
        host: Applies the batches.
        topics: `D.components` of each destination, and its `D.commands`.
        poll_records: Most records of one poll.
        memory_limit_bytes: Memory over which partitions are paused; its shares are above.
        stop: Set when asked to stop; ports that wait for brokers look at it.
    """

    def __init__(
        self,
        ports: Ports,
        host: Host,
        topics: Mapping[str, str],
        poll_records: int,
        memory_limit_bytes: int,
        stop: threading.Event,
    ) -> None:
        super().__init__(name="uow-driver", daemon=True)
        self._source, self._sink, self._clock, self._restore_tasks = (
            ports.source,
            ports.sink,
            ports.clock,
            ports.restore,
        )
        self._ways, self._ready = ports.ways, ports.ready
        self._host = host
        self._commands_of = dict(topics)
        self._components_of = {commands: components for components, commands in topics.items()}
        self._poll_records = poll_records
        self.memory_limit_bytes = memory_limit_bytes
        self._stopping = stop
        self._tasks: dict[Tp, Task] = {}
        self._blocked = Blockade()
        self._heads: dict[Tp, int] = {}
        self._begun: set[Tp] = set()
        self._look_at = 0
        self._full: set[Tp] = set()
        self._new: set[Tp] = set()
        self._gone: set[Tp] = set()
        self._is_announced = True
        self._portion: dict[Tp, tuple[int, int]] = {}
        self._ask_at: dict[Tp, int] = {}
        self._ticked: dict[Tp, int] = {}
        self._ticks = 0
        self._doubts = 0
        self._apart = False
        self._is_cut = False
        self._waiting = WaitingCommands(ports.source, topics)
        self._moves = 0

    def request_stop(self) -> None:
        """Finish the turn, commit it, leave the group."""
        self._stopping.set()

    def run(self) -> None:
        """The thread's body."""
        error: BaseException | None = None
        try:
            self._sink.open(self._heed_stop)
            self._source.open(list(self._commands_of), self._on_assign, self._on_revoke, self._on_lost)
            while not self._stopping.is_set():
                self._guarded(self._turn)
            self._guarded(self._drain)
        except Stopped:
            pass
        except BaseException as failure:  # noqa: BLE001 - the thread's boundary: whatever it is, the host must hear of it
            error = failure
        for port in (self._source, self._sink):
            try:
                port.close()
            except BaseException as failure:  # noqa: BLE001 - as above; the first error is the one to tell
                error = error or failure
        self._host.finished(error)

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Doubt as doubt:
            self._start_over(doubt)

    def _heed_stop(self) -> None:
        if self._stopping.is_set():
            raise Stopped("asked to stop while it waited")

    def _serve(self) -> None:
        """A `Meanwhile` (ER-17)."""
        self._heed_stop()
        self._source.control(0.0)

    # -- one turn

    def _turn(self) -> None:
        self._source.control(0.0)
        self._try_again()
        if not self._is_announced or (self._new and self._clock.gone_by_ms() >= self._look_at):
            self._take_on()
        poll = self._source.read(self._poll_records, 0.0 if self._is_cut else READ_TIMEOUT_S)
        self._is_cut = False
        if poll is not None:
            for tp, cause in poll.trouble.items():
                if self._whose(tp) in self._tasks:  # else it went with the same poll
                    self._block(self._whose(tp), cause)
                    self._blocked.stand(self._whose(tp), 0)
            self._work(self._batches(poll.records), poll.token)
        elif self._waiting:
            token = self._source.token()
            self._work(self._batches({}), token)
        self._waiting.settle({tp: self._tasks[tp].command_position for tp in self._waiting})
        self._tick()
        self._look_after_blocked()
        self._keep_within_memory()

    def _batches(self, polled: Mapping[Tp, list[RawRecord]]) -> list[Batch]:
        """Of what was polled, and of the commands that wait."""
        mine = {tp for tp in map(self._whose, polled) if tp in self._tasks and tp not in self._blocked}
        for tp in mine:
            commands = _from(self._tasks[tp].command_position, polled.get(self._commands(tp), []))
            if commands:
                self._waiting.take(tp, commands)
        batches, latest = [], self._clock.latest_ms()
        for tp in dict.fromkeys([*map(self._whose, polled), *self._waiting]):
            if tp in mine or tp in self._waiting:
                batch = self._batch(tp, polled.get(tp, []), latest)
                if batch.records or batch.commands:
                    batches.append(batch)
        return batches

    def _batch(self, tp: Tp, polled: list[RawRecord], latest: int) -> Batch:
        task = self._tasks[tp]
        records = _from(task.position, polled)
        many = self._portion[tp][1] if tp in self._portion else len(records)
        if len(records) > many:
            self._source.seek({tp: records[many].offset()})
            records = records[:many]
        if tp in self._full:
            commands = self._waiting.all(tp)
        else:
            commands = self._waiting.ready(tp, task.position, records, latest)
        if tp in self._portion:  # a command only by itself
            commands = [] if records else commands[:1]
        head = records[0].timestamp()[1] if records else 0
        self._heads[tp] = head if head <= latest else 0
        return Batch(tp, records=records, commands=commands, latest=latest)

    # -- components and commands

    def _commands(self, tp: Tp) -> Tp:
        """The partition of `D.commands` that goes with one of `D.components`."""
        return Tp(self._commands_of[tp.topic], tp.partition)

    def _whose(self, tp: Tp) -> Tp:
        """The partition of `D.components` that this one is, or goes with."""
        return Tp(self._components_of.get(tp.topic, tp.topic), tp.partition)

    def _with_commands(self, tps: Iterable[Tp]) -> list[Tp]:
        return [each for tp in tps for each in (tp, self._commands(tp))]

    def _positions(self, tasks: Mapping[Tp, Task]) -> dict[Tp, int]:
        """Where reading goes on, in both topics."""
        return {
            each: position
            for tp, task in tasks.items()
            for each, position in ((tp, task.position), (self._commands(tp), task.command_position))
        }

    def _work(self, batches: Sequence[Batch], token: object) -> None:
        """Hands over, writes what came of it, then deals with partitions whose task raised."""
        if not batches:
            return
        if self._ways is not None:
            self._ways.settle(batches)
        self._host.process(batches)
        plans = [batch.outcome for batch in batches if isinstance(batch.outcome, Plan)]
        failed = [batch for batch in batches if isinstance(batch.outcome, BaseException)]
        for batch in failed:
            if not isinstance(batch.outcome, Blocked):
                raise batch.outcome  # type: ignore[misc]  # the agent died: nothing of this poll may be written
        self._write(plans, token)
        for batch in batches:
            if isinstance(batch.outcome, Plan):
                self._on_written(batch, batch.outcome)
        for batch in failed:
            assert isinstance(batch.outcome, Blocked)
            if batch.tp in self._tasks:  # the restore of one may see others go
                self._on_failed(batch, batch.outcome)

    def _write(self, plans: Sequence[Plan], token: object) -> None:
        if not plans:
            return
        for some in [[plan] for plan in plans] if self._apart else [plans]:
            try:
                self._sink.write(some, token)
            except Refused as refused:
                if refused.tp is None and len(some) == 1:
                    refused.tp = some[0].tp
                raise
            self._host.committed(some)
        self._doubts, self._apart = 0, False

    # -- a record that cannot be processed, a plan that cannot be written (ER-03, F20)

    def _on_failed(self, batch: Batch, cause: Blocked) -> None:
        """Half-processed work has changed memory: restore. Then try less at a time, so that the position stops at the very record."""
        if batch.count + len(batch.commands) > 1:
            self._portion[batch.tp] = (batch.last_offset, max(1, batch.count // 2))
        else:
            self._block(batch.tp, cause)
            if batch.work is Work.RECORDS:
                self._blocked.stand(batch.tp, self._heads[batch.tp])
        self._restore_and_seek([batch.tp])

    def _on_written(self, batch: Batch, plan: Plan) -> None:
        """Reads again what a cut plan left. A portion went well, the whole offending stretch behind us: back to whole polls."""
        if self._blocked.goes_on(batch.tp):
            self._host.unblocked(batch.tp)
        if plan.is_cut:
            self._is_cut = True
            if batch.work is Work.RECORDS:
                self._source.seek({plan.tp: plan.next_offset})
        if batch.tp in self._portion and plan.next_offset > self._portion[batch.tp][0]:
            del self._portion[batch.tp]

    def _block(self, tp: Tp, cause: Blocked) -> None:
        self._waiting.forget([tp])
        self._portion.pop(tp, None)
        self._blocked.add(tp, cause, self._clock.gone_by_ms())
        if tp in self._tasks:
            self._source.pause([tp])
            self._source.resume([self._commands(tp)])
        self._host.blocked(tp, cause)

    def _try_again(self) -> None:
        """Blocked partitions whose time has come: those without state are restored anew, the others read the one record that keeps them."""
        for tp in self._blocked.due(self._clock.gone_by_ms()):
            task = self._tasks.get(tp)
            if task is None:
                self._new.add(tp)
            else:
                self._portion[tp] = (task.position, 1)
                self._read_on({tp: task})

    def _look_after_blocked(self) -> None:
        """What a partition owes its groups while it stands at a record: rows for all it holds, and deadlines that passed before that record came.

        Rows, since the input may be gone before somebody mends it. No component that lies unread was appended before that record, so none was
        in time; for later deadlines one may be (W-82).
        """
        if not self._blocked.owes:
            return
        token = self._source.token()
        self._work([Batch(tp, Work.DRAIN) for tp in self._blocked.take_unsaved() if tp in self._tasks], token)
        batches = []
        for tp, head in self._blocked.take_heads().items():
            task = self._tasks.get(tp)
            if task is not None and self._source.drained(self._commands(tp), task.command_position) is None:
                self._blocked.owe(tp, head)  # a command that lies unread may be older
            elif task is not None:
                batches.append(Batch(tp, Work.TICK, asked_at=head))
        self._work(batches, token)
        for batch in batches:
            if isinstance(batch.outcome, Plan) and batch.outcome.is_cut:
                self._blocked.owe(batch.tp, batch.asked_at)

    # -- time (W-82, W-83)

    def _tick(self) -> None:
        now, gone_by = self._clock.now_ms(), self._clock.gone_by_ms()
        due = [
            tp
            for tp, task in self._tasks.items()
            if tp not in self._blocked and gone_by >= self._ask_at.get(tp, gone_by) and _is_due(task, now)
        ]
        if not due:
            return
        if len(due) > TICKS_A_TURN:
            self._is_cut = True
            due = sorted(due, key=lambda tp: self._ticked.get(tp, 0))[:TICKS_A_TURN]
        self._ticks += 1
        self._ticked.update(dict.fromkeys(due, self._ticks))
        token = self._source.token()
        batches = []
        for tp in due:
            end, *later = [self._source.drained(*each) for each in self._positions({tp: self._tasks[tp]}).items()]
            if end is None or None in later:
                self._ask_at[tp] = gone_by + ASK_AGAIN_MS
            else:
                batches.append(Batch(tp, Work.TICK, asked_at=end.asked_at))  # before either was asked for
        self._work(batches, token)
        for batch in batches:
            if batch.outcome is None:
                self._ask_at[batch.tp] = gone_by + ASK_AGAIN_MS

    # -- memory (ER-19)

    def _keep_within_memory(self) -> None:
        """Over the limit one more partition is paused each turn, the fullest first; below nine tenths of it all go on.

        Who holds little is not paused: his groups are not to blame. What is held shrinks only by more input (a group completes) or by time
        (a group expires), so of those who hold much one always goes on: all paused would be a deadlock. Should that last one drive the sum
        over five quarters of the limit, it is paused as well: then only a taken-away partition or a larger limit helps, and the worker says
        so instead of dying.
        """
        aside = self._forget_too_much() + sum(task.table_bytes for task in self._tasks.values())
        aside += self._ways.memory_bytes if self._ways is not None else 0
        held = sum(task.memory_bytes for task in self._tasks.values())
        held += min(aside, int(self.memory_limit_bytes * MEMORY_ASIDE))
        if held > self.memory_limit_bytes:
            running = [tp for tp in self._tasks if tp not in self._full and tp not in self._blocked]
            light = self.memory_limit_bytes * MEMORY_LIGHT / len(self._tasks)
            heavy = [tp for tp in running if self._tasks[tp].memory_bytes > light]
            if len(heavy) > 1 or (heavy and held > self.memory_limit_bytes * MEMORY_STOP):
                fullest = max(heavy, key=lambda tp: self._tasks[tp].memory_bytes)
                self._source.pause([fullest])
                self._full.add(fullest)
                self._host.paused(frozenset(self._full))
        elif self._full and held < self.memory_limit_bytes * MEMORY_RESUME:
            self._source.resume([tp for tp in self._full if tp not in self._blocked])
            self._full.clear()
            self._host.paused(frozenset())

    def _forget_too_much(self) -> int:
        """Keeps what is remembered within its share, and answers what it takes. Of the partition that remembers most the oldest goes first."""
        remembered = sum(task.remembered_bytes for task in self._tasks.values())
        most = remembered_share(self.memory_limit_bytes)
        while remembered > most:
            fullest = max(self._tasks.values(), key=lambda task: task.remembered_bytes)
            before = fullest.remembered_bytes
            fullest.forget(min(remembered - most, max(before // 2, 1)))
            remembered += fullest.remembered_bytes - before
        return remembered

    # -- assignment: called inside control, read and close; nothing is open (ER-15)

    def _on_assign(self, tps: list[Tp]) -> None:
        """Takes note; what was assigned is restored in the next turn, outside of the callback."""
        self._moves += 1
        self._new.update(tps)
        self._is_announced = False

    def _on_revoke(self, tps: list[Tp]) -> list[Tp]:
        self._moves += 1
        self._new.difference_update(tps)
        self._gone.update(tps)
        paused = bool(self._full.intersection(tps))
        for tp in tps:
            self._tasks.pop(tp, None)
            self._blocked.forget(tp)
            self._heads.pop(tp, None)
            self._begun.discard(tp)
            self._portion.pop(tp, None)
            self._ask_at.pop(tp, None)
            self._ticked.pop(tp, None)
            self._full.discard(tp)
        self._waiting.forget(tps)
        self._host.revoked(tps)
        if paused:
            self._host.paused(frozenset(self._full))
        return self._with_commands(tps)

    def _on_lost(self, tps: list[Tp]) -> list[Tp]:
        """Lost, not revoked: someone else may own them by now. Nothing is open here either, so there is nothing to abort (ER-16)."""
        return self._on_revoke(tps)

    # -- restore

    def _take_on(self) -> None:
        """Restores what was assigned, and begins to read it. Nothing assigned: a spare, of which the host hears as well.

        What cannot be restored without waiting for others is looked at again a little later: nobody waits for it.
        """
        self._is_announced = True
        looked_at = self._clock.gone_by_ms()
        tps = sorted(self._ready(sorted(self._new)))
        now = self._clock.gone_by_ms()
        self._look_at = now + max(LOOK_AGAIN_MS, 5 * (now - looked_at))
        if self._new and not tps:
            return
        tasks = self._restored(tps)
        self._new.difference_update(set(tps) - self._gone)
        self._tasks.update(tasks)
        self._host.assigned(tasks)
        self._read_on(tasks)
        for tp in tasks:
            if self._blocked.goes_on(tp):
                self._host.unblocked(tp)

    def _read_on(self, tasks: Mapping[Tp, Task]) -> None:
        """Reads these: from the beginning, or again."""
        again = {tp: task for tp, task in tasks.items() if tp in self._begun}
        self._source.begin(self._positions({tp: task for tp, task in tasks.items() if tp not in again}))
        self._begun.update(tasks)
        self._source.seek(self._positions(again))
        self._source.resume([each for each in self._with_commands(again) if each not in self._full])

    def _restored(self, tps: Sequence[Tp]) -> dict[Tp, Task]:
        """Tasks from the logs, without partitions that went meanwhile, even if they are back: others may have committed there.

        A partition that cannot be restored is blocked and left out; the others are not kept from working. Nothing is fetched meanwhile:
        whoever serves the group gets records as well, and would have to keep them.
        """
        self._gone.clear()
        self._waiting.forget(tps)
        self._source.pause(self._running())
        tasks = {tp: task for tp, task in self._read_back(tps).items() if tp not in self._gone}
        self._source.resume(self._running())
        for tp in [tp for tp, task in tasks.items() if task.blocked is not None]:
            self._block(tp, Blocked(tasks.pop(tp).blocked))
            self._tasks.pop(tp, None)
        return tasks

    def _running(self) -> list[Tp]:
        """What is read now."""
        return [
            each
            for each in self._with_commands(self._tasks)
            if each not in self._full and each not in self._blocked and each not in self._waiting.paused
        ]

    def _read_back(self, tps: Sequence[Tp]) -> Mapping[Tp, Task]:
        def wanted() -> list[Tp]:
            self._serve()
            left = [tp for tp in tps if tp not in self._gone]
            if not left:
                raise Abandoned
            return left

        try:
            return self._restore_tasks(tps, wanted) if tps else {}
        except Abandoned:
            return {}
        except (Stopped, Doubt, FencedError, ConfigError):
            raise
        except Exception as error:  # noqa: BLE001 - the task boundary: one partition that cannot be restored must not stop the others
            if len(tps) > 1:
                return {tp: task for each in tps for tp, task in self._read_back([each]).items()}
            if tps[0] not in self._gone:
                self._on_lost_state(tps[0], error)
            return {}

    def _on_lost_state(self, tp: Tp, error: Exception) -> None:
        cause = error
        if not isinstance(cause, Blocked):
            cause = Blocked(f"cannot be restored: {type(error).__name__}: {error}")
            cause.__cause__ = error
        self._block(tp, cause)
        self._tasks.pop(tp, None)

    def _restore_and_seek(self, tps: Sequence[Tp]) -> None:
        tasks = self._restored(tps)
        self._tasks.update(tasks)
        self._host.assigned(tasks)
        self._source.seek(self._positions(tasks))

    def _start_over(self, doubt: Doubt) -> None:
        """Back to the last committed state and position of everything owned (ER-05)."""
        self._host.doubted(doubt)
        wait = BACK_OFF_S[min(self._doubts, len(BACK_OFF_S) - 1)]
        self._doubts += 1
        if isinstance(doubt, StaleGeneration):
            wait = max(wait, REBALANCE_CHANCE_S)
        else:
            self._sink.replace(self._serve)
        if isinstance(doubt, Refused):
            wait = 0.0
            self._on_refused(doubt)
        moves = self._moves
        while wait > 0 and not self._stopping.is_set() and (self._doubts > 1 or moves == self._moves):
            self._source.control(min(wait, 0.05))
            wait -= 0.05
        self._restore_and_seek(sorted(self._tasks))

    def _on_refused(self, refused: Refused) -> None:
        if refused.tp is None:
            self._apart = True
            return
        task = self._tasks.get(refused.tp)
        if task is None:
            return
        last, size = self._portion.get(refused.tp, (task.position - 1, self._poll_records))
        if size > 1:
            self._portion[refused.tp] = (last, size // 2)
        else:
            self._block(refused.tp, Blocked(f"a record made from it is refused: {refused}"))
            self._blocked.stand(refused.tp, self._heads.get(refused.tp, 0))

    # -- clean stop

    def _drain(self) -> None:
        token = self._source.token()
        batches = [Batch(tp, Work.DRAIN) for tp in self._tasks if tp not in self._blocked]
        if batches:
            self._host.process(batches)
            self._write(
                [batch.outcome for batch in batches if isinstance(batch.outcome, Plan)],
                token,
            )


def _is_due(task: Task, now_ms: int) -> bool:
    deadline = task.next_deadline()
    return deadline is not None and now_ms > deadline


def _from(position: int, records: list[RawRecord]) -> list[RawRecord]:
    """Without those below the position; most often there are none."""
    if not records or records[0].offset() >= position:
        return records
    return [record for record in records if record.offset() >= position]
