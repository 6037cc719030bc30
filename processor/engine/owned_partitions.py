"""The partitions that one worker owns: their tasks, and what the source fetches of each.

A partition is assigned, restored, then read. While it is read it may be paused, because memory is short; it may be blocked, because it cannot go
on; and its commands may wait, so that no more of them are fetched. Each of these has a value of its own (`assignment`, `quarantine`,
`waiting_commands`); here they are kept in step with each other, with the source's pauses and positions, and with what the runner knows.

Belongs here: assigning, revoking, restoring, blocking and pausing. Does not belong here: the order of a turn, processing and writing
(`uow.processor.engine.driver`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from uow.processor.engine.assignment import Assignment
from uow.processor.engine.batch import Task
from uow.processor.engine.driver_ports import Ports, TaskRunner
from uow.processor.engine.input_topics import InputTopics
from uow.processor.engine.isolated_restore import restore_isolated
from uow.processor.engine.memory_limit import PauseDecision
from uow.processor.engine.portions import Portions
from uow.processor.engine.ports import Blocked, Meanwhile, Tp
from uow.processor.engine.quarantine import Quarantine
from uow.processor.engine.set_aside import SetAsideLimit
from uow.processor.engine.waiting_commands import WaitingCommands


class OwnedPartitions:
    """The partitions of one driver; all calls come from its thread.

    Args:
        ports: Source, clock, `restore` and `ready` are used.
        runner: Hears of tasks, of blocked and of paused partitions.
        inputs: Pairs of topics.
        serve: Serves the group while partitions are restored.
        set_aside: How many groups are closed at which the code fails in a restore.

    Attributes:
        tasks: Task by partition of `D.components`, of those that are restored.
        quarantine: Blocked partitions.
        portions: Partitions in which a record is at fault.
        waiting: Commands that cannot be decided yet.
        paused: Partitions that are not read because memory is short, in the order in which they were paused.
    """

    def __init__(
        self,
        ports: Ports,
        runner: TaskRunner,
        inputs: InputTopics,
        serve: Meanwhile,
        set_aside: SetAsideLimit | None = None,
    ) -> None:
        self._set_aside = set_aside or SetAsideLimit()
        self._ports, self._runner, self._inputs, self._serve = ports, runner, inputs, serve
        self._source, self._clock = ports.source, ports.clock
        self._assignment = Assignment()
        self.tasks: dict[Tp, Task] = {}
        self.quarantine = Quarantine()
        self.portions = Portions()
        self.waiting = WaitingCommands(ports.source, inputs)
        self.paused: dict[Tp, None] = {}
        self._paused_at = 0

    @property
    def rebalances(self) -> int:
        """The number of assignments and revocations so far."""
        return self._assignment.rebalances

    @property
    def unrestored(self) -> int:
        """The number of partitions that were assigned, and are neither restored nor blocked yet. Any thread may ask."""
        return len(self._assignment.unrestored)

    @property
    def is_asking(self) -> bool:
        """True if brokers have just been asked about partitions to be restored."""
        return self._assignment.is_soon(self._clock.monotonic_ms())

    @property
    def unblocked_tasks(self) -> dict[Tp, Task]:
        """The tasks of partitions that are not blocked."""
        return {tp: task for tp, task in self.tasks.items() if tp not in self.quarantine}

    # -- inside the rebalance callbacks: nothing is in flight (ER-15)

    def assign(self, tps: Sequence[Tp]) -> None:
        """Takes note; they are restored by `restore_assigned`, outside of the callback."""
        self._assignment.assign(tps)

    def revoke(self, tps: Sequence[Tp]) -> list[Tp]:
        """Drops them. Returns every partition to read no longer."""
        self._assignment.revoke(tps)
        was_paused = not self.paused.keys().isdisjoint(tps)
        for tp in tps:
            self.paused.pop(tp, None)
            self.tasks.pop(tp, None)
            self.quarantine.forget(tp)
            self.portions.forget(tp)
        self.waiting.forget(tps)
        self._runner.revoked(tps)
        if was_paused:
            self._runner.paused(frozenset(self.paused))
        return self._inputs.both(tps)

    # -- restore

    def restore_assigned(self) -> None:
        """Restores what was assigned, and begins to read it. Nothing assigned: a spare, of which the runner hears as well.

        What cannot be restored without waiting for others is looked at again a little later: nobody waits for it.
        """
        if not self._assignment.is_due(self._clock.monotonic_ms()):
            return
        self._assignment.announce(self._clock.monotonic_ms())
        began = self._clock.monotonic_ms()
        tps = sorted(self._ports.ready(sorted(self._assignment.pending)))
        self._assignment.looked(began, self._clock.monotonic_ms())
        if self._assignment.pending and not tps:
            return
        tasks = self._restored(tps)
        self._assignment.end_restore(tps)
        self.tasks.update(tasks)
        self._runner.assigned(tasks)
        self._read_from_positions(tasks)
        for tp in tasks:
            self.on_progress(tp)

    def restore_again(self, tps: Sequence[Tp]) -> None:
        """Back to the last committed state and position of these, which are read already.

        Their tasks are useless, and let go of what they hold first: there is memory for one of each, not for two.
        """
        for tp in tps:
            self.tasks[tp].let_go()
        tasks = self._restored(tps)
        self.tasks.update(tasks)
        self._runner.assigned(tasks)
        self._source.seek(self._inputs.positions(tasks))

    def _restored(self, tps: Sequence[Tp]) -> dict[Tp, Task]:
        """Tasks from the logs, without partitions that were revoked meanwhile, even if they are back: others may have committed there.

        A partition that cannot be restored is blocked and left out; the others are not kept from working. Nothing is fetched meanwhile:
        whoever serves the group gets records as well, and would have to keep them.
        """
        self._assignment.begin_restore()
        self.waiting.forget(tps)
        self._source.pause(self._running())
        tasks: dict[Tp, Task] = {}
        room = self._ports.room
        taken = room.taken = {tp: task.memory_bytes for tp, task in self.tasks.items()}
        room.refused = {tp: size for tp, size in room.refused.items() if tp in self.quarantine}
        left = [*tps]
        while left:  # without the groups at which the code fails
            again = []
            for tp, restored in restore_isolated(self._ports.restore, left, self._still_wanted):
                if not isinstance(restored, Blocked):
                    tasks[tp] = restored
                    taken[tp] = restored.memory_bytes
                elif tp not in self._assignment.revoked:
                    now = self._clock.monotonic_ms()
                    if why := self._ports.faults.why_not_without(tp, restored, now, self._set_aside, is_restore=True):
                        self._block_without_state(tp, why)
                    else:
                        again.append(tp)
            left = again
        tasks = {tp: tasks[tp] for tp in self._assignment.wanted(tasks)}
        self._source.resume(self._running())
        for tp in [tp for tp, task in tasks.items() if task.blocked is not None]:
            self._block_without_state(tp, Blocked(tasks.pop(tp).blocked))
        return tasks

    def _still_wanted(self, tps: Sequence[Tp]) -> Collection[Tp]:
        self._serve()
        return self._assignment.wanted(tps)

    def _running(self) -> list[Tp]:
        """The partitions that are fetched now: neither blocked nor paused, for memory or since commands wait."""
        return [
            each
            for each in self._inputs.both(self.tasks)
            if each not in self.paused and each not in self.quarantine and each not in self.waiting.paused
        ]

    def _read_from_positions(self, tasks: Mapping[Tp, Task]) -> None:
        """Reads these from their tasks' positions: for the first time, or again."""
        again = {tp: task for tp, task in tasks.items() if self._assignment.is_begun(tp)}
        self._source.begin(self._inputs.positions({tp: task for tp, task in tasks.items() if tp not in again}))
        self._assignment.begin(tasks)
        self._source.seek(self._inputs.positions(again))
        self._source.resume([each for each in self._inputs.both(again) if each not in self.paused])

    # -- blocked partitions (EN-08)

    def block(self, tp: Tp, cause: Blocked) -> None:
        """Its components are not fetched any more. Its commands are fetched and dropped, until a retry seeks back to where it stopped."""
        self.waiting.forget([tp])
        self.portions.forget(tp)
        self.quarantine.block(tp, cause, self._clock.monotonic_ms())
        if tp in self.tasks:
            self._source.pause([tp])
            self._source.resume([self._inputs.commands_tp(tp)])
        self._runner.blocked(tp, cause)

    def block_at(self, tp: Tp, cause: Blocked, append_time: int) -> None:
        """Blocks a partition at a record, with its state whole. `append_time`: of that record; 0: unknown."""
        self.block(tp, cause)
        self.quarantine.stopped_at(tp, append_time)

    def _block_without_state(self, tp: Tp, cause: Blocked) -> None:
        self.block(tp, cause)
        self.tasks.pop(tp, None)

    def retry_blocked(self) -> None:
        """Blocked partitions whose time has come: those without state are restored anew, the others read the one record that blocked them."""
        for tp in self.quarantine.take_due(self._clock.monotonic_ms()):
            task = self.tasks.get(tp)
            if task is None:
                self._assignment.retry(tp)
            else:
                self.portions.single(tp, task.position)
                self._read_from_positions({tp: task})

    def on_progress(self, tp: Tp) -> None:
        """A batch of the partition was written, or it was restored: it is no longer treated as one that failed."""
        if self.quarantine.recovered(tp):
            self._runner.unblocked(tp)

    # -- memory (ER-19)

    @property
    def pauses_unchanged_ms(self) -> int:
        """For how long the same partitions have been paused for memory."""
        return self._clock.monotonic_ms() - self._paused_at

    def pause_or_resume(self, decision: PauseDecision) -> None:
        """Carries out a decision about memory."""
        if decision.pause is not None:
            self._source.pause([decision.pause])
            self.paused[decision.pause] = None
        if decision.resume:
            self._source.resume([tp for tp in decision.resume if tp not in self.quarantine])
            for tp in decision.resume:
                del self.paused[tp]
        if decision.pause is None and not decision.resume:
            return
        self._paused_at = self._clock.monotonic_ms()
        self._runner.paused(frozenset(self.paused))
