"""One hand-over to a partition's task: the records of one partition of one poll, a tick, or the drain of a clean stop.

Belongs here: `Batch`, the one event that crosses into Faust per partition and poll, and what it needs of a task. Does not belong
here: the work of a task, and the loop that makes batches (`uow.processor.engine.driver`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, Protocol, Self

from uow.processor.core.faulty_groups import GroupFault, GroupKey
from uow.processor.core.gathered import NEVER
from uow.processor.engine.ports import Blocked, Plan, RawRecord, Tp
from uow.processor.engine.rule_figures import OpenFigures
from uow.processor.engine.set_aside import Aside
from uow.processor.engine.tracebacks import free_frames
from uow.schemas.error_classes import UowError, shown
from uow.schemas.faults import ENDS
from uow.topics.commands import Asked, AskedInVain


class Work(Enum):
    """The kinds of work that a batch asks of its task."""

    RECORDS = "records"
    TICK = "tick"
    DRAIN = "drain"
    ANSWERS = "answers"
    """To commands about a record at which the partition is not blocked."""


SLICE = 128
"""Records that a task is fed at a time: all objects made for so few fit into a processor's cache."""


class Task(Protocol):
    """The part of `uow.processor.engine.task.PartitionTask` that the driver and the shell use."""

    @property
    def position(self) -> int: ...
    @property
    def command_position(self) -> int: ...
    @property
    def in_hand(self) -> int: ...
    @property
    def command_in_hand(self) -> int: ...
    @property
    def held_bytes(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def remembered_bytes(self) -> int: ...
    @property
    def table_bytes(self) -> int: ...
    @property
    def forgotten(self) -> int: ...
    def forget(self, spare_bytes: int, /) -> None: ...
    @property
    def closed_groups(self) -> int: ...
    @property
    def forgotten_until(self) -> int: ...
    @property
    def orphans(self) -> int: ...
    @property
    def correctable_units(self) -> int: ...
    @property
    def clock(self) -> int: ...
    @property
    def disbelieved(self) -> int: ...
    @property
    def blocked(self) -> str | None: ...
    @property
    def counts(self) -> Any: ...
    @property
    def groups_alone(self) -> Mapping[GroupKey, GroupFault]: ...
    @property
    def groups(self) -> Mapping[bytes, Any]: ...
    @property
    def context(self) -> Any: ...
    def believe(self, latest_ms: int, /) -> None: ...
    def on_records(self, records: Sequence[RawRecord], /) -> object: ...
    def process(self, records: Sequence[RawRecord], commands: Sequence[RawRecord] = (), /) -> Plan: ...
    def tick(self, now_ms: int, settled_ms: int | None = None, /) -> Plan | None: ...
    def set_aside(self, record: RawRecord, why: UowError, asked: Asked | None = None, /) -> Plan: ...
    def refuse_command(self, record: RawRecord, why: UowError, /) -> Plan: ...
    def has_answered(self, asked: Asked | AskedInVain, /) -> bool: ...
    def note_refused(self, offsets: Sequence[int], /) -> None: ...
    def answer_early(self, answers: Sequence[tuple[Asked | AskedInVain, str]], /) -> Plan: ...
    def read_rules(self, before: int, meanwhile: Callable[[], object], /) -> None: ...
    def count_at_risk(self, now_ms: int, /) -> int: ...
    def open_by_rule(self, now_ms: int, /) -> Mapping[str, OpenFigures]: ...
    def next_deadline(self) -> int | None: ...
    @property
    def first_deadline(self) -> int | None: ...
    def drain(self) -> Plan | None: ...
    def let_go(self) -> None: ...
    @property
    def has_let_go(self) -> bool: ...


@dataclass(eq=False, slots=True)
class Batch:
    """Work for one partition's task, and its result.

    A context manager: leaving it finishes the batch. An exception inside blocks the partition and is never an acknowledgement (ER-03);
    it does not reach the agent, so a record cannot kill a worker. Other exceptions (the agent is cancelled) are passed on.

    Attributes:
        tp: The partition of `D.components`.
        work: The kind of work.
        records: In offset order; empty unless `work` is RECORDS. Once applied, the last slice of them.
        commands: Records of the same partition of `D.commands`, in offset order.
        count: The number of records at first.
        latest: Append times after it are not believed, epoch ms.
        asked_at: For a tick: wall clock just before the end offset was asked for (W-82).
        settled: For a tick: a moment before which all that arrived at the routers was there by then (B-218); None: `asked_at`.
        aside: The only record, or the only command, is to be refused for this.
        answers: What to answer, where `work` is ANSWERS.
        outcome: The plan; None if there is nothing to write; `Blocked` when the task raised; any other exception when the agent died.
        is_finished: True once `outcome` is final.
        on_finish: Called once, at that moment.
        seconds: CPU seconds that it took, as whoever runs it has measured; 0: unknown.
    """

    tp: Tp
    work: Work = Work.RECORDS
    records: list[RawRecord] = field(default_factory=list)
    commands: Sequence[RawRecord] = ()
    latest: int = NEVER
    asked_at: int = 0
    settled: int | None = None
    aside: Aside | None = None
    answers: Sequence[tuple[Asked | AskedInVain, str]] = ()
    outcome: Plan | BaseException | None = None
    is_finished: bool = False
    on_finish: Callable[[], None] | None = field(default=None, repr=False)
    seconds: float = 0.0
    count: int = field(init=False)
    _applied: bool = False

    def __post_init__(self) -> None:
        self.count = len(self.records)

    def apply(self, task: Task, at_a_time: int = SLICE) -> None:
        """Lets the partition's task do the work, so many records at a time. Call it inside `with batch:`, once."""
        for _ in self.steps(task, at_a_time):
            pass

    def steps(self, task: Task, at_a_time: int = SLICE) -> Iterator[None]:
        """The same in steps, so that others may run between two of them."""
        match self.work:
            case Work.RECORDS if self.aside is not None and self.records:
                self.outcome = task.set_aside(self.records[0], self.aside.why, self.aside.asked)
            case Work.RECORDS if self.aside is not None:
                self.outcome = task.refuse_command(self.commands[0], self.aside.why)
            case Work.RECORDS:
                task.believe(self.latest)
                if not self.commands:
                    yield from self._feed_ahead(task, at_a_time)
                self.outcome = task.process(self.records, self.commands)
            case Work.TICK:
                self.outcome = task.tick(self.asked_at, self.settled)
            case Work.DRAIN:
                self.outcome = task.drain()
            case Work.ANSWERS:
                self.outcome = task.answer_early(self.answers)
        self._applied = True

    def _feed_ahead(self, task: Task, at_a_time: int) -> Iterator[None]:
        """Feeds all but the last slice, and drops each: its memory is free for the next one."""
        records = self.records
        while len(records) > at_a_time:
            task.on_records(records[:at_a_time])
            del records[:at_a_time]
            yield

    def empty(self) -> None:
        """Nobody asks any more what it was about, or what came of it."""
        self.records, self.commands, self.outcome = [], (), None

    def finish(self, outcome: Plan | BaseException | None) -> None:
        """Makes `outcome` final; only the first call counts."""
        if self.is_finished:
            return
        self.outcome, self.is_finished = outcome, True
        if self.on_finish is not None:
            self.on_finish()

    @property
    def last_offset(self) -> int:
        """Offset of the last record, -1 without records."""
        return self.records[-1].offset() if self.records else -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is None:
            self.finish(self.outcome if self._applied else Blocked("the agent left the batch without applying it"))
            return False
        if not isinstance(error, ENDS):
            free_frames(error)  # they hold this batch, which holds the error
            self.finish(_as_blocked(error))
            return True
        self.finish(error)
        return False


def _as_blocked(error: BaseException) -> Blocked:
    if isinstance(error, Blocked):
        return error
    blocked = Blocked(shown(error))
    blocked.__cause__ = error
    return blocked
