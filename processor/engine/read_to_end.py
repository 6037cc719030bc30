"""A driver that reads partitions to their ends and stops: what a command needs that must leave nothing unread (`uow.ops.repartition`).

It is the worker's own loop, so whatever a record, a command, a rule or a target topic does to a worker, it does here. Two things differ. Time closes
no group, except as records tell it by their append times: nobody reads on afterwards under this partition count. And it ends: once everything
is read and decided that lay in these partitions when all of them were restored, and what was sent on from one to another meanwhile, or after it has made
no progress for too long.

Belongs here: when to end. Does not belong here: the loop (`uow.processor.engine.driver`), and what is done about partitions that are left.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from uow.processor.engine.batch import Batch, Task
from uow.processor.engine.driver import Driver
from uow.processor.engine.driver_ports import Ports, Wanted
from uow.processor.engine.ports import Blocked, Doubt, EndQuestion, Plan, Tp
from uow.processor.engine.set_aside import SetAsideLimit

log = logging.getLogger("uow.reading")

NO_LIMIT: Final = 1 << 62
"""Memory. Nobody else may own some of the partitions, and one that is paused would never be read to its end."""
MOST_ROUNDS: Final = 20
"""Ends are asked for once more where a component was sent on since: who misroutes without end is not waited for."""


class _Runner:
    """Port `TaskRunner`: runs tasks in the driver's own thread.

    Attributes:
        causes: Why partitions cannot go on, of those that are blocked.
        doubt: The last doubt since something was committed; empty if there was none.
        has_sent_on: A component went from one partition to another, or may have gone.
        plans: How many plans of each partition were committed: a plan that is cut moves no position.
        error: The error with which the driver ended.
    """

    def __init__(self) -> None:
        self._tasks: dict[Tp, Task] = {}
        self.causes: dict[Tp, str] = {}
        self.doubt = ""
        self.has_sent_on = False
        self.plans: Counter[Tp] = Counter()
        self.error: BaseException | None = None

    def assigned(self, tasks: Mapping[Tp, Task]) -> None:
        self._tasks.update(tasks)

    def revoked(self, tps: Sequence[Tp]) -> None:
        for tp in tps:
            self._tasks.pop(tp, None)
            self.causes.pop(tp, None)

    def process(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            with batch:
                batch.apply(self._tasks[batch.tp])

    def committed(self, plans: Sequence[Plan]) -> None:
        self.doubt = ""
        for plan in plans:
            self.plans[plan.tp] += 1
            self.has_sent_on |= any(output.topic == plan.tp.topic for output in plan.outputs)
            for line in plan.log_lines:
                log.warning("component expired: %s", json.dumps(line))

    def blocked(self, tp: Tp, cause: Blocked) -> None:
        self.causes[tp] = str(cause)

    def unblocked(self, tp: Tp) -> None:
        self.causes.pop(tp, None)

    def paused(self, tps: Collection[Tp]) -> None: ...

    def doubted(self, doubt: Doubt) -> None:
        self.doubt, self.has_sent_on = str(doubt), True
        log.warning("%s: %s; partitions are restored and read again", type(doubt).__name__, doubt)

    def finished(self, error: BaseException | None) -> None:
        self.error = error


class ReadToEnd(Driver):
    """Reads to the ends that the partitions have once all of them are restored.

    Args:
        ports: As of a driver.
        topics: `D.components` of each destination, and its `D.commands`.
        wanted: The partitions of `D.components`; it may own others, that are not read.
        poll_records: Most records of one poll.
        patience_ms: It stops when it has made no progress for so long with what is not read yet; the time of a restore does not count.
        set_aside: How many records at which a task raises are set aside.

    Attributes:
        why_not: Once it has ended: what kept it from the ends, for people; empty if nothing did.
    """

    def __init__(
        self,
        ports: Ports,
        topics: Mapping[str, str],
        wanted: Collection[Tp],
        poll_records: int,
        patience_ms: int,
        set_aside: SetAsideLimit | None = None,
    ) -> None:
        self._run, self._restore, self._since = _Runner(), ports.restore, 0
        ports = replace(ports, restore=self._restored)
        super().__init__(ports, self._run, topics, poll_records, NO_LIMIT, threading.Event(), set_aside)
        self._wanted, self._patience_ms = sorted(wanted), patience_ms
        self._ends: dict[Tp, EndQuestion] = {}
        self._rounds = 0
        self._seen: object = None
        self.why_not = "it was stopped"

    @property
    def error(self) -> BaseException | None:
        """The error with which it ended, of which it was not asked to."""
        return self._run.error

    def _restored(self, tps: Sequence[Tp], wanted: Wanted) -> Mapping[Tp, Task]:
        began = self._clock.monotonic_ms()
        try:
            return self._restore(tps, wanted)
        finally:
            self._since += self._clock.monotonic_ms() - began

    def _tick(self) -> None:
        """In place of the wall clock: ends once the ends are reached, or nothing has moved for too long."""
        tasks = {tp: self._partitions.tasks[tp] for tp in self._wanted if tp in self._partitions.tasks}
        positions = self._inputs.positions(tasks)
        progress = self._progress(positions)
        if progress != self._seen:
            self._seen, self._since = progress, self._clock.monotonic_ms()
        if len(tasks) == len(self._wanted):
            self._look(positions)
        self._stop_if_stalled()

    def _progress(self, positions: Mapping[Tp, int]) -> object:
        """Of what is not read yet alone: elsewhere senders may go on, and would keep it from ever giving up."""
        if not self._ends:
            return sorted(positions)
        left = {tp: position for tp, position in positions.items() if not self._has_read(tp, position)}
        return left, {tp: self._run.plans[self._inputs.components_tp(tp)] for tp in left}

    def _look(self, positions: Mapping[Tp, int]) -> None:
        if not self._ends:
            self._run.has_sent_on = False
            self._ends = {tp: self._source.end(tp) for tp in positions}
        elif not all(self._has_read(tp, position) for tp, position in positions.items()):
            return
        elif not self._run.has_sent_on:
            self._stop_because("")
        elif self._rounds < MOST_ROUNDS:
            self._ends, self._rounds = {}, self._rounds + 1
        else:
            self._stop_because("components for other partitions keep coming, and are sent on: stop who sends them")

    def _has_read(self, tp: Tp, position: int) -> bool:
        end = self._ends[tp].answer()
        return end is not None and self._source.has_read(tp, position, end)

    def _start_over(self, doubt: Doubt) -> None:
        if self._seen is None:  # no turn has come to its end yet
            self._seen, self._since = {}, self._clock.monotonic_ms()
        self._stop_if_stalled()
        super()._start_over(doubt)

    def _stop_if_stalled(self) -> None:
        if self._seen is not None and self._clock.monotonic_ms() - self._since > self._patience_ms:
            reasons = [*self._obstacles(), *filter(None, [self._run.doubt])]
            self._stop_because("; ".join(reasons) or f"nothing has moved for {self._patience_ms // 1000} s")

    def _obstacles(self) -> Iterator[str]:
        """The reason for each partition that is left, as far as it is known. One that is blocked has a cause; at others an open transaction is the most frequent one."""
        for tp in self._wanted:
            where = f"{tp.topic}/{tp.partition}"
            if cause := self._run.causes.get(tp):
                yield f"{where}: {cause}"
            elif tp not in self._partitions.tasks:
                yield f"{where} is not owned, or not restored: another worker may have joined, or a transaction is open in its logs"
            elif self._ends:
                for each, position in self._inputs.positions({tp: self._partitions.tasks[tp]}).items():
                    if not self._has_read(each, position):
                        yield f"{each.topic}/{each.partition} is not read beyond offset {position}: a transaction may be open there"

    def _stop_because(self, why_not: str) -> None:
        if not self._stopping.is_set():
            self.why_not = why_not
            self.request_stop()
