"""Decisions that keep a worker within `memory_limit_bytes`: numbers in, a decision out (ER-19).

Held components shrink only by more input, when a group completes, or by time, when one expires. So pausing everything would be a deadlock:

- A partition that holds little is never paused: its groups are not to blame.
- Of those that hold much one always goes on, until the total is over `STOP_SHARE` of the limit. Then that one is paused as well: only a
  revoked partition or a larger limit helps, and the worker says so instead of dying.
- One partition is paused in a turn, the fullest first. All are resumed together once the total is below `RESUME_SHARE`. While it stays between that
  and the limit they take turns: every `TURN_MS` the one that was paused first is resumed. Above the limit as well, where the one that went on is
  paused in its place. Without this a partition would stand for as long as the others hold so much, and with it its limits of time.

A restore takes what a worker with this limit may have held when it ended, and no more (R-73): what several workers held, or one with a larger
limit, would take all memory there is. The partition is blocked, and says how much it needs.

Belongs here: which partition, and how much. Does not belong here: pausing itself (`uow.processor.engine.owned_partitions`).
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from uow.processor.core.partition_state import COMPONENT_BYTES, GROUP_BYTES
from uow.processor.engine.ports import Blocked, Tp

RESUME_SHARE = 0.9
STOP_SHARE = 1.25
LIGHT_SHARE = 0.25
"""Share of the limit that partitions may hold together, each its part, without ever being paused."""
REMEMBERED_SHARE = 0.25
"""Share of the limit for closed ids and commands of all partitions together; above it the oldest are forgotten."""
LEAST_REMEMBERED_BYTES = 4_194_304
POLL_BYTES = 67_108_864
"""Most that one poll may add to a worker that is within its limit."""
TURN_MS = 5_000
"""So long partitions stay paused or resumed at least, while the total is between `RESUME_SHARE` and the limit."""
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
        resume: The partitions that go on.
    """

    pause: Tp | None = None
    resume: Sequence[Tp] = ()


def decide_pause(
    limit_bytes: int,
    held: Mapping[Tp, int],
    other_bytes: int,
    paused: Collection[Tp],
    blocked: Container[Tp],
    unchanged_ms: int = 0,
) -> PauseDecision:
    """Decides about the next turn.

    Args:
        limit_bytes: `memory_limit_bytes`.
        held: Bytes that each partition holds and a pause would keep from growing.
        other_bytes: Bytes that no pause reduces.
        paused: Partitions that are paused for memory already, in the order in which they were paused.
        blocked: Partitions that are not read because they are blocked.
        unchanged_ms: For how long the same ones have been paused.
    """
    total = sum(held.values()) + min(other_bytes, int(limit_bytes * OTHER_SHARE))
    if total > limit_bytes:
        light = limit_bytes * LIGHT_SHARE / len(held)
        heavy = [tp for tp, size in held.items() if tp not in paused and tp not in blocked and size > light]
        if len(heavy) > 1 or (heavy and total > limit_bytes * STOP_SHARE):
            return PauseDecision(pause=max(heavy, key=held.__getitem__))
        if paused and unchanged_ms >= TURN_MS and total <= limit_bytes * STOP_SHARE:
            return PauseDecision(heavy[0] if heavy else None, [next(iter(paused))])
    elif paused and total < limit_bytes * RESUME_SHARE:
        return PauseDecision(resume=[*paused])
    elif paused and unchanged_ms >= TURN_MS:
        return PauseDecision(resume=[next(iter(paused))])
    return PauseDecision()


@dataclass(slots=True)
class RestoreRoom:
    """The memory that the restores of one worker may take (R-73).

    Attributes:
        limit_bytes: `memory_limit_bytes`.
        taken: Bytes that the open groups of each partition take which is restored already.
        refused: Bytes that those of each partition need which is not, for want of room.
    """

    limit_bytes: int = sys.maxsize
    taken: dict[Tp, int] = field(default_factory=dict)
    refused: dict[Tp, int] = field(default_factory=dict)

    def bytes_for(self, tps: Collection[Tp]) -> int:
        """Bytes that the open groups of these partitions may take together."""
        others = sum(size for tp, size in self.taken.items() if tp not in tps)
        return int(self.limit_bytes * (STOP_SHARE + LIGHT_SHARE)) + POLL_BYTES - others

    def too_small(self, tps: Collection[Tp], needed_bytes: int, rows: int) -> Blocked:
        """Why these are not restored.

        Args:
            tps: The partitions.
            needed_bytes: What their open groups need together, about.
            rows: How many rows their changelogs have.
        """
        others = sum(size for tp, size in self.taken.items() if tp not in tps)
        also = sum(size for tp, size in self.refused.items() if tp not in tps and tp not in self.taken)
        if len(tps) == 1:  # several are tried one by one next
            self.refused |= dict.fromkeys(tps, needed_bytes)
        enough = int((needed_bytes + others + also) / RESUME_SHARE)
        return Blocked(
            f"not restored: its groups' changelog has {rows:,} rows, which need about {needed_bytes:,} bytes; other partitions of this worker hold "
            f"{others:,}, {f'those that do not fit either need {also:,}, ' if also else ''}and memory_limit_bytes is {self.limit_bytes:,}: start another worker, or raise it to {enough:,}"
        )


def memory_of_rows(rows: Mapping[bytes, bytes]) -> int:
    """About the memory that groups take which come from these rows of a groups' changelog; their last four bytes tell rows of a group apart."""
    groups = len({key[:-4] for key in rows})
    return sum(map(len, rows.values())) + COMPONENT_BYTES * len(rows) + GROUP_BYTES * groups


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
