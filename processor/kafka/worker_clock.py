"""The time on the brokers, as far as a worker can know it.

A deadline is broker time: an append time plus a limit. A partition with traffic gets the time from its records. An idle one is not, and yet its
groups must expire (W-83), so the machine's wall clock has to say when; and that may be put forward or back while we run. Three things are
known:

1. The wall clock at the start of the worker, which is believed: machines that run workers keep time.
2. The monotonic clock since then, which cannot be set. The wall clock is believed no further than 1 and 2 together: one that is put forward fires
   no deadline early. One that is put back is believed, it delays.
3. The append time of each record read, plus the monotonic time since it was read: brokers were there already, whatever our clock says. So a
   clock put back delays nothing where there is traffic. Per partition, since the clocks of brokers differ as well. And a wall clock that was
   behind at the start and is put right is believed as far as any record has said.

An append time that is further ahead of us than `clock_lead_ms` is not believed: one broker whose clock leaps, once, would else expire every
group of the partition, and every later one until the rest of the world is there as well (decision 17).

Waiting is counted by the monotonic clock alone: by a wall clock that is put back, "again in 100 ms" would last as long as it went back.

Belongs here: reading clocks. Does not belong here: what a deadline is (`uow.processor.core`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from uow.processor.engine.ports import Tp
from uow.processor.kafka.worker_settings import CLOCK_LEAD_MS

log = logging.getLogger("uow.clock")

WARN_MS = 2000
"""A wall clock that is put forward by more is logged, once."""


def wall_ms() -> int:
    """The wall clock, epoch milliseconds."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Milliseconds since some fixed moment, with the time that the machine was suspended, if the system counts it."""
    kind = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(kind) // 1_000_000


class WorkerClock:
    """Port `Clock`, and the time of one partition.

    Args:
        wall: The wall clock, epoch ms.
        monotonic: Milliseconds since some fixed moment.
        lead_ms: How far ahead of us an append time may be and still be believed.
    """

    def __init__(
        self,
        wall: Callable[[], int] = wall_ms,
        monotonic: Callable[[], int] = monotonic_ms,
        lead_ms: int = CLOCK_LEAD_MS,
    ) -> None:
        self._wall, self._monotonic, self._lead_ms = wall, monotonic, lead_ms
        self._start = wall() - monotonic()
        self._seen: dict[Tp, int] = {}
        self._newest = self._start
        self._warned = self._warned_of_lead = False

    def see(self, tp: Tp, append_ms: int) -> None:
        """A record of this partition was appended at this time, and has just been read."""
        latest = self.latest_ms()
        if append_ms > latest:
            self._warn_of_lead(tp, append_ms - latest + self._lead_ms)
            return
        at = append_ms - self._monotonic()
        if at > self._seen.get(tp, at - 1):
            self._seen[tp] = at
            self._newest = max(self._newest, at)

    def now_ms(self) -> int:
        """The latest that it can be anywhere: good for asking `at`, not for closing a group."""
        monotonic = self._monotonic()
        return max([self._believed(), *(seen + monotonic for seen in self._seen.values())])

    def latest_ms(self) -> int:
        """An append time after this is not believed, epoch ms. A wall clock that is put back does not lower it."""
        return max(self._wall(), self._start + self._monotonic()) + self._lead_ms

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment."""
        return self._monotonic()

    def at(self, tp: Tp) -> int:
        """The earliest that it can be on the brokers of this partition, epoch ms."""
        believed, seen = self._believed(), self._seen.get(tp)
        return believed if seen is None else max(believed, seen + self._monotonic())

    def _warn_of_lead(self, tp: Tp, lead_ms: int) -> None:
        if not self._warned_of_lead:
            self._warned_of_lead = True
            log.warning(
                "%s/%d: an append time is %d ms ahead of this machine's clock: such ones move no deadline (clock_lead_ms); one of the clocks is wrong",
                *tp,
                lead_ms,
            )

    def _believed(self) -> int:
        wall, steady = self._wall(), self._newest + self._monotonic()
        if wall - steady > WARN_MS and not self._warned:
            self._warned = True
            log.warning("the wall clock was put forward by %d ms; deadlines go on without it", wall - steady)
        return min(wall, steady)
