"""Records at which the code itself fails: how many are set aside before their partition blocks, and what the log says of them. No I/O but the log.

A bug that one record meets concerns that record alone: it goes to `D.rejected` as `InternalError`, and its partition goes on. A bug that every
record meets must not empty an input into `D.rejected`: so a partition sets so many aside within a minute, and blocks at the next one.

Belongs here: that limit, and telling each kind of failure with its lines of code once. Does not belong here: writing the records
(`uow.processor.rules.routing`), blocking (`uow.processor.engine.owned_partitions`, `uow.processor.kafka.router`).
"""

from __future__ import annotations

import logging
from traceback import extract_tb, format_tb
from typing import Final

from uow.processor.engine.ports import Blocked, Tp
from uow.schemas.error_classes import ConfigError, StateCorruptedError

log = logging.getLogger("uow.set_aside")

PER_MINUTE: Final = 10
"""Default of `worker.set_aside_per_minute`."""
_MINUTE_MS: Final = 60_000


def fault_of(cause: Blocked) -> BaseException | None:
    """The exception that nobody foresaw, behind the cause of a partition that cannot go on; None where the cause is a state of things that somebody repairs."""
    error = cause.__cause__
    return None if isinstance(error, _FORESEEN) else error


_FORESEEN: Final = (Blocked, ConfigError, StateCorruptedError)


class SetAsideLimit:
    """Says whether one more record may be set aside. Times are monotonic milliseconds.

    Args:
        per_minute: Most records of a partition within a minute; 0: none, the partition blocks at the first.
    """

    def __init__(self, per_minute: int = PER_MINUTE) -> None:
        self.per_minute = per_minute
        self._moments: dict[Tp, dict[int, int]] = {}
        self._told: set[tuple[str, str, int]] = set()

    def take(self, tp: Tp, offset: int, error: BaseException, now_ms: int) -> str:
        """Counts a record at which the code failed, once however often it comes, and tells of it. Returns why its partition must block; empty if it is set aside."""
        moments = self._moments.setdefault(tp, {})
        while moments and moments[first := next(iter(moments))] <= now_ms - _MINUTE_MS:
            del moments[first]
        if offset in moments:  # it comes again, since what it was planned in was not written
            return ""
        is_full = len(moments) >= self.per_minute
        self._tell(tp, offset, error, "its partition blocks" if is_full else "it is set aside")
        if is_full:
            return (
                f"the code fails at offset {offset} ({type(error).__name__}), and set_aside_per_minute = "
                f"{self.per_minute} records were set aside within a minute"
            )
        moments[offset] = now_ms
        return ""

    def forget(self, tp: Tp) -> None:
        """It was taken away."""
        self._moments.pop(tp, None)

    def _tell(self, tp: Tp, offset: int, error: BaseException, so: str) -> None:
        last = extract_tb(error.__traceback__, -1)
        kind = (type(error).__name__, *((last[0].filename, last[0].lineno or 0) if last else ("", 0)))
        is_new = kind not in self._told
        self._told.add(kind)
        log.error(
            "%s/%d/%d: the code failed at this record, so %s. It is a defect of uow%s",
            *tp,
            offset,
            f"{so}: {type(error).__name__}",
            f": please report it with what follows\n{frames(error)}" if is_new else ", told before",
        )


def frames(error: BaseException | None) -> str:
    """Where an exception comes from: lines of code and classes of it and of its causes, and no message: that may have values of the record in it."""
    found: list[str] = []
    for _ in range(_CAUSES):
        if error is None:
            break
        found = [*format_tb(error.__traceback__, -_FRAMES), f"{type(error).__name__}\n", *found]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "".join(found).rstrip()


_FRAMES: Final = 30
"""Most lines of code that are told of an exception; the last ones."""
_CAUSES: Final = 5
