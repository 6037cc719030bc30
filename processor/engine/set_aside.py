"""Records at which the code itself fails: how many are set aside before their partition blocks, and what the log says of them. No I/O but the log.

A bug that one record meets concerns that record alone: it goes to `D.rejected` as `InternalError`, and its partition goes on. A bug that every
record meets must not empty an input into `D.rejected`: so a partition sets so many aside within a minute, and blocks at the next one.

Belongs here: that limit, and telling each kind of failure with its traceback once. Does not belong here: writing the records
(`uow.processor.rules.routing`), blocking (`uow.processor.engine.owned_partitions`, `uow.processor.kafka.router`).
"""

from __future__ import annotations

import logging
from collections import deque
from traceback import extract_tb
from typing import Final

from uow.processor.engine.ports import Blocked, Tp
from uow.schemas.error_classes import ConfigError, StateCorruptedError

log = logging.getLogger("uow.set_aside")

PER_MINUTE: Final = 10
"""Default of `worker.set_aside_per_minute`."""
_MINUTE_MS: Final = 60_000


def fault_of(cause: Blocked) -> Exception | None:
    """The exception that nobody foresaw, behind the cause of a partition that cannot go on; None where the cause is a state of things that somebody repairs."""
    error = cause.__cause__
    return error if isinstance(error, Exception) and not isinstance(error, _FORESEEN) else None


_FORESEEN: Final = (Blocked, ConfigError, StateCorruptedError)


class SetAsideLimit:
    """Says whether one more record may be set aside. Times are monotonic milliseconds.

    Args:
        per_minute: Most records of a partition within a minute; 0: none, the partition blocks at the first.
    """

    def __init__(self, per_minute: int = PER_MINUTE) -> None:
        self.per_minute = per_minute
        self._moments: dict[Tp, deque[int]] = {}
        self._told: set[tuple[str, str, int]] = set()

    def take(self, tp: Tp, offset: int, error: Exception, now_ms: int) -> str:
        """Counts a record at which the code failed, and tells of it. Returns why its partition must block; empty if it is set aside."""
        moments = self._moments.setdefault(tp, deque())
        while moments and moments[0] <= now_ms - _MINUTE_MS:
            moments.popleft()
        is_full = len(moments) >= self.per_minute
        self._tell(tp, offset, error, "its partition blocks" if is_full else "it is set aside")
        if is_full:
            return (
                f"the code fails at offset {offset} ({type(error).__name__}), and set_aside_per_minute = "
                f"{self.per_minute} records were set aside within a minute"
            )
        moments.append(now_ms)
        return ""

    def forget(self, tp: Tp) -> None:
        """It was taken away."""
        self._moments.pop(tp, None)

    def _tell(self, tp: Tp, offset: int, error: Exception, so: str) -> None:
        frames = extract_tb(error.__traceback__)
        kind = (type(error).__name__, *((frames[-1].filename, frames[-1].lineno or 0) if frames else ("", 0)))
        is_new = kind not in self._told
        self._told.add(kind)
        log.error(
            "%s/%d/%d: the code failed at this record, so %s. It is a defect of uow%s",
            *tp,
            offset,
            f"{so}: {type(error).__name__}",
            ": please report it with what follows" if is_new else ", told before",
            exc_info=error if is_new else None,
        )
