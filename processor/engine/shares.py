"""How many records of a partition one turn takes, so that a partition with much work leaves the others their turn. No I/O, no clock.

A turn ends with a transaction, so what one partition asks of it every other one waits for; and the library hands out records in the order in which they
were fetched, so that behind a flood others wait for several turns. So of a partition that takes much more than another one only as many records are taken
as are `SHARE_S` of work. The rest is read again from the broker, and what others have sent comes before it.

Where all have much to do nothing is cut: a turn is then as long as a poll, and cutting would only fetch the same records twice.

Belongs here: how many records. Does not belong here: reading the rest again (`uow.processor.engine.turn`), and plans that would close too much
(`uow.processor.core.plan_size`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from uow.processor.engine.ports import Tp

SHARE_S: Final = 0.03
"""CPU seconds of one turn for a partition that has more to do than others. A poll of nothing but plain components takes some 0.06."""
LATELY_MS: Final = 5_000
"""A partition that had a record within this time may send the next one at any moment, and should not wait for it."""
MUCH: Final = 6
"""A partition takes much if it took so many times what another one did that had records lately. Those that have as much to do, and are read in
turn, differ by four times at most: so much of the work is forgotten within `LATELY_MS`."""
SMALL: Final = 100
"""Records of a batch from which on its time says what a record takes: a batch itself takes as long as several. A smaller one says what it takes at most."""


@dataclass(slots=True)
class _Use:
    """The work of a partition lately.

    Attributes:
        seconds: CPU seconds, of which half is forgotten every `LATELY_MS` / 2.
        at: As of then, monotonic ms.
        record_s: CPU seconds of one record.
    """

    seconds: float = 0.0
    at: int = 0
    record_s: float = 0.0

    def seconds_at(self, now_ms: int) -> float:
        """CPU seconds lately, as of now."""
        return float(self.seconds * 0.5 ** (2 * (now_ms - self.at) / LATELY_MS))


class Shares:
    """The partitions of one worker. Times are monotonic milliseconds."""

    def __init__(self) -> None:
        self._uses: dict[Tp, _Use] = {}

    def size(self, tp: Tp, count: int, now_ms: int) -> int:
        """Most records to take of a poll that has `count` of them."""
        own = self._uses.get(tp)
        if own is None or own.record_s * count <= SHARE_S or not self._takes_much(own, now_ms):
            return count
        return max(1, int(SHARE_S / own.record_s))

    def _takes_much(self, own: _Use, now_ms: int) -> bool:
        lately = [each.seconds_at(now_ms) for each in self._uses.values() if now_ms - each.at <= LATELY_MS]
        return bool(lately) and own.seconds_at(now_ms) > MUCH * min(lately)

    def took(self, tp: Tp, count: int, seconds: float, now_ms: int) -> None:
        """A batch of so many records took so many CPU seconds, with writing its plan."""
        use = self._uses.setdefault(tp, _Use())
        use.seconds, use.at = use.seconds_at(now_ms) + seconds, now_ms
        record_s = seconds / count
        if count >= SMALL or seconds > SHARE_S or record_s < use.record_s:
            use.record_s = record_s

    def forget(self, tp: Tp) -> None:
        """It was taken away."""
        self._uses.pop(tp, None)
