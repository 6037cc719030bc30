"""Restores partitions together, and one by one if that fails: one that cannot be restored must not keep the others from working.

Belongs here: that order, and which errors concern one partition alone. Does not belong here: reading the logs (`uow.processor.engine.restore`),
and what follows for the partition (`uow.processor.engine.owned_partitions`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from uow.processor.engine.batch import Task
from uow.processor.engine.driver_ports import Restore
from uow.processor.engine.ports import Abandoned, Blocked, Doubt, Stopped, Tp
from uow.processor.engine.tracebacks import free_frames
from uow.schemas.error_classes import ConfigError, FencedError, shown

Restored = tuple[Tp, Task | Blocked]
"""A partition, and its task or the reason why there is none."""


def restore_isolated(
    restore: Restore, tps: Sequence[Tp], wanted: Callable[[Sequence[Tp]], Collection[Tp]]
) -> Iterator[Restored]:
    """Restores these partitions. Partitions that are taken away meanwhile may be missing, or have an outdated task.

    Args:
        restore: Reads them back from the logs.
        tps: The partitions.
        wanted: Called between any two requests; returns those of the partitions given that are still owned.

    Raises:
        Stopped, Doubt, FencedError, ConfigError: They concern the worker and not one partition.
    """

    def still_wanted() -> Collection[Tp]:
        left = wanted(tps)
        if not left:
            raise Abandoned
        return left

    if not tps:
        return
    try:
        tasks = restore(tps, still_wanted)
    except Abandoned:
        return
    except (Stopped, Doubt, FencedError, ConfigError):
        raise
    except Exception as error:  # noqa: BLE001 - the task boundary: one partition that cannot be restored must not stop the others
        free_frames(error)  # they hold all that the restore had read, and the reason to block is kept for long
        if len(tps) == 1:
            yield tps[0], _cause(error)
            return
    else:
        yield from tasks.items()
        return
    for tp in tps:  # the error is gone by now
        yield from restore_isolated(restore, [tp], wanted)


def _cause(error: Exception) -> Blocked:
    if isinstance(error, Blocked):
        return error
    cause = Blocked(f"cannot be restored: {shown(error)}")
    cause.__cause__ = error
    return cause
