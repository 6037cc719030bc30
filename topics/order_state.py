"""The state of a strict partition, for one reader or worker: a pure function of what can be seen of it (S-32).

Belongs here: the states and the function. Does not belong here: looking (`uow.ops.doctor`, `uow.client.consumption`, the worker's pages).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

TOLERATED_MS: Final = 1_000
"""An open transaction holds back readers for a moment, always; from here on that is a state."""
HANGING_MS: Final = 20_000
"""A transaction that is older than its time-out and this hangs: the coordinator looks every 10 s, and ends what is too old (S-09)."""


class OrderState(StrEnum):
    """The states of a partition."""

    OK = "ok"
    BLOCKED_HANDLER = "blocked-handler"
    BLOCKED_TRANSACTION = "blocked-transaction"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Seen:
    """A partition, as it looks to one reader.

    Attributes:
        position: The next offset to be read.
        stable: The last stable offset.
        end: The end offset.
        now: Epoch ms.
        stable_since: Since when the last stable offset has not moved while the end was above it, epoch ms; 0: it moves.
        failed_since: Since when the record at the position fails, epoch ms; 0: it does not.
        is_stopped: True if the partition was stopped: by a failure that counts as such, by the reader itself, or for the operator.
        cause: The last failure, or the reason for the stop.
    """

    position: int
    stable: int
    end: int
    now: int
    stable_since: int = 0
    failed_since: int = 0
    is_stopped: bool = False
    cause: str = ""


@dataclass(frozen=True, slots=True)
class PartitionOrder:
    """A state, and the reason for it.

    Attributes:
        state: The state.
        position: Where it stands.
        since: Since when, epoch ms; 0 where that is not known, and for `ok`.
        cause: For people; empty for `ok`.
    """

    state: OrderState
    position: int
    since: int = 0
    cause: str = ""


def order_of(seen: Seen) -> PartitionOrder:
    """The state. A stop counts more than a failure, and a failure more than a transaction, which the reader has not reached yet."""
    if seen.is_stopped:
        return PartitionOrder(OrderState.STOPPED, seen.position, seen.failed_since, seen.cause)
    if seen.failed_since:
        return PartitionOrder(OrderState.BLOCKED_HANDLER, seen.position, seen.failed_since, seen.cause)
    waits = seen.position >= seen.stable and seen.stable < seen.end and seen.stable_since
    if waits and seen.now - seen.stable_since > TOLERATED_MS:
        cause = f"a transaction that began at offset {seen.stable} is open, {seen.end - seen.stable} offsets wait behind its start"
        return PartitionOrder(OrderState.BLOCKED_TRANSACTION, seen.position, seen.stable_since, cause)
    return PartitionOrder(OrderState.OK, seen.position)


def hangs(since: int, now: int, timeout_ms: int) -> bool:
    """True if a transaction that holds back readers since then is older than it can be: it has to be ended by hand (S-09)."""
    return bool(since) and now - since > timeout_ms + HANGING_MS
