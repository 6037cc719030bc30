"""Decisions that keep a worker within `memory_limit_bytes`: numbers in, a decision out (ER-19).

Held components shrink only by more input, when a group completes, or by time, when one expires. So pausing everything would be a deadlock:

- A partition that holds little is never paused: its groups are not to blame.
- Of those that hold much one always goes on, until the total is over `STOP_SHARE` of the limit. Then that one is paused as well: only a
  revoked partition or a larger limit helps, and the worker says so instead of dying.
- One partition is paused in a turn, the fullest first. All are resumed together once the total is below `RESUME_SHARE`.

Belongs here: which partition, and how much. Does not belong here: pausing itself (`uow.processor.engine.owned_partitions`).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from typing import Protocol

from uow.processor.engine.ports import Tp

RESUME_SHARE = 0.9
STOP_SHARE = 1.25
LIGHT_SHARE = 0.25
"""Share of the limit that partitions may hold together, each its part, without ever being paused."""
REMEMBERED_SHARE = 0.25
"""Share of the limit for closed ids and commands of all partitions together; above it the oldest are forgotten."""
LEAST_REMEMBERED_BYTES = 4_194_304
OTHER_SHARE = 0.5
"""Most of the limit that is charged for memory which no pause reduces: closed ids, path maps, tables."""


def remembered_limit(limit_bytes: int) -> int:
    """Bytes that closed ids and commands may take in a worker with this memory limit."""
    return max(int(limit_bytes * REMEMBERED_SHARE), LEAST_REMEMBERED_BYTES)


@dataclass(frozen=True, slots=True)
class PauseDecision:
    """The decision of one turn.

    Attributes:
        pause: The partition to pause now; None: none.
        resume_all: True if all paused partitions go on.
    """

    pause: Tp | None = None
    resume_all: bool = False


def decide_pause(
    limit_bytes: int, held: Mapping[Tp, int], other_bytes: int, paused: Collection[Tp], blocked: Container[Tp]
) -> PauseDecision:
    """Decides about the next turn.

    Args:
        limit_bytes: `memory_limit_bytes`.
        held: Bytes that each partition holds and a pause would keep from growing.
        other_bytes: Bytes that no pause reduces.
        paused: Partitions that are paused for memory already.
        blocked: Partitions that are not read because they are blocked.
    """
    total = sum(held.values()) + min(other_bytes, int(limit_bytes * OTHER_SHARE))
    if total > limit_bytes:
        light = limit_bytes * LIGHT_SHARE / len(held)
        heavy = [tp for tp, size in held.items() if tp not in paused and tp not in blocked and size > light]
        if len(heavy) > 1 or (heavy and total > limit_bytes * STOP_SHARE):
            return PauseDecision(pause=max(heavy, key=held.__getitem__))
    elif paused and total < limit_bytes * RESUME_SHARE:
        return PauseDecision(resume_all=True)
    return PauseDecision()


class Remembers(Protocol):
    """A task, as far as its memory of closed ids and commands is concerned."""

    @property
    def remembered_bytes(self) -> int: ...
    def forget(self, spare_bytes: int, /) -> None: ...


def forget_excess(tasks: Collection[Remembers], limit_bytes: int) -> int:
    """Lets tasks forget their oldest closed ids until all together take `limit_bytes` at most. Returns what they take then.

    The task that remembers most forgets first, up to half of it at a time.
    """
    remembered = sum(task.remembered_bytes for task in tasks)
    while remembered > limit_bytes:
        fullest = max(tasks, key=lambda task: task.remembered_bytes)
        before = fullest.remembered_bytes
        fullest.forget(min(remembered - limit_bytes, max(before // 2, 1)))
        remembered += fullest.remembered_bytes - before
    return remembered
