"""The driver's outside: who runs its tasks, and the ports that it calls.

Belongs here: Protocols, and `Ports`, which holds one of each. Does not belong here: the ports of restore and of the sink
(`uow.processor.engine.ports`), and anything that decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from uow.processor.engine.batch import Batch, Task
from uow.processor.engine.group_faults import GroupFaults
from uow.processor.engine.hidden_headers import HiddenHeaders
from uow.processor.engine.memory_limit import RestoreRoom
from uow.processor.engine.poll_loop import Closable
from uow.processor.engine.ports import Blocked, Clock, Doubt, Plan, RecordSource, Sink, Tp
from uow.processor.engine.target_topics import TargetTopics, no_targets

Wanted = Callable[[], Collection[Tp]]
"""A `Meanwhile` that also returns the partitions that are still to be restored."""

Restore = Callable[[Sequence[Tp], Wanted], Mapping[Tp, Task]]
"""Builds the tasks of partitions from the logs; `task.position` is where to read on (ER-06)."""


class IdPlacement(Protocol):
    """Path routing, where a destination has it."""

    @property
    def memory_bytes(self) -> int:
        """About what it takes."""
        ...

    def ensure_placed(self, batches: Sequence[Batch]) -> None:
        """Every id in these batches has a partition on return; may put other records in the place of theirs. Raises `Doubt`."""
        ...


class Upstream(Protocol):
    """The routers before `D.components` (aggregation, section 3): how far what arrived at their inputs is there."""

    @property
    def stalled(self) -> Mapping[Tp, int]:
        """Partitions of inputs that limits of time go on without, with the time for which they have stood, ms. Any thread may ask."""
        ...

    def settled(self, topic: str, now_ms: int) -> int:
        """A moment, epoch ms: whatever arrived before it at the inputs of the rules of this `D.components` is committed there, or refused.

        Asked before the end offset of `D.components`. Does not wait: it tells what is known, and asks on. A partition of an input that has made no
        progress for too long is left out until it moves again: the moment may go back then.

        Args:
            topic: Name of `D.components`.
            now_ms: The wall clock, the answer where no router writes there. 0 is the answer where nothing is known yet.
        """
        ...


class TaskRunner(Protocol):
    """Runs the tasks on their batches, and hears what the driver does. Every call comes from the driver's thread and returns when it is done.

    In a worker that is Faust's event loop (`uow.processor.shell.bridge`); a simulation calls the tasks itself.
    """

    def assigned(self, tasks: Mapping[Tp, Task]) -> None:
        """These tasks are new or restored. Empty: joined the group as a spare."""
        ...

    def revoked(self, tps: Sequence[Tp]) -> None: ...
    def process(self, batches: Sequence[Batch]) -> None:
        """Every batch is finished on return."""
        ...

    def committed(self, plans: Sequence[Plan]) -> None: ...
    def blocked(self, tp: Tp, cause: Blocked) -> None:
        """It cannot go on, or a try has failed. It is tried again by itself."""
        ...

    def unblocked(self, tp: Tp) -> None: ...
    def paused(self, tps: Collection[Tp]) -> None:
        """All partitions that are paused for memory now."""
        ...

    def doubted(self, doubt: Doubt) -> None: ...
    def finished(self, error: BaseException | None) -> None: ...


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a driver.

    Attributes:
        source: Reads records, as a member of the group.
        sink: Writes transactions.
        clock: Time.
        restore: `uow.processor.engine.restore.restore` with its reader, or a stand-in.
        placement: Path routing, if any destination has it.
        ready: Returns the partitions that can be restored without waiting for others: no transaction is open in their logs, and brokers
            answer. It must not wait itself.
        hidden: Finds records whose headers the client cannot show, if any destination reads fields off values.
        upstream: The routers before the components, if there are any rules.
        rules_bytes: Returns about the memory that rows of rules take.
        targets: The target topics of rules, and what is refused: that of the tasks.
        faults: Groups at which the code failed: those of the tasks.
        room: The memory that `restore` may take.
        others: Closed at the end, after source and sink.
    """

    source: RecordSource
    sink: Sink
    clock: Clock
    restore: Restore
    placement: IdPlacement | None = None
    ready: Callable[[Sequence[Tp]], Collection[Tp]] = lambda tps: tps
    hidden: HiddenHeaders | None = None
    upstream: Upstream | None = None
    rules_bytes: Callable[[], int] = lambda: 0
    targets: TargetTopics = field(default_factory=no_targets)
    faults: GroupFaults = field(default_factory=GroupFaults)
    room: RestoreRoom = field(default_factory=RestoreRoom)
    others: Sequence[Closable] = ()
