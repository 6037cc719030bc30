"""Polls cut down until the record that cannot be processed stands alone (ER-03). No I/O.

A task that raised, or a transaction that was refused, tells that something in the batch is at fault, not which record. So the batch is tried
again in halves. At size 1 the position stops at the very record, and the partition is blocked there. Once everything of the batch that
failed is behind, whole polls are read again.

Belongs here: how much of a poll a partition takes. Does not belong here: blocking it (`uow.processor.engine.quarantine`).
"""

from __future__ import annotations

from typing import NamedTuple

from uow.processor.engine.ports import Tp


class Portion(NamedTuple):
    """A limit on the batches of one partition.

    Attributes:
        last: Offset of the last record of the batch that failed; the limit holds until the position is beyond it.
        size: Most records of one batch.
    """

    last: int
    size: int


class Portions:
    """The partitions under such a limit."""

    def __init__(self) -> None:
        self._portions: dict[Tp, Portion] = {}

    def __contains__(self, tp: object) -> bool:
        return tp in self._portions

    def size(self, tp: Tp, count: int) -> int:
        """Most records to take of a poll that has `count` of them."""
        portion = self._portions.get(tp)
        return count if portion is None else portion.size

    def halve(self, tp: Tp, last: int, count: int) -> None:
        """A batch of so many records, up to offset `last`, failed: half as many next time, one at least."""
        self._portions[tp] = Portion(last, max(1, count // 2))

    def halve_again(self, tp: Tp, position: int, poll_records: int) -> bool:
        """A transaction with this partition's plan was refused; the batch is not at hand any more. Returns False if it was a single record.

        Args:
            tp: The partition.
            position: The next offset after what was refused.
            poll_records: Most records it may have had, where there was no limit.
        """
        last, size = self._portions.get(tp, Portion(position - 1, poll_records))
        if size > 1:
            self._portions[tp] = Portion(last, size // 2)
        return size > 1

    def single(self, tp: Tp, offset: int) -> None:
        """Only the record at this offset, by itself."""
        self._portions[tp] = Portion(offset, 1)

    def passed(self, tp: Tp, next_offset: int) -> None:
        """A batch was written. Beyond the one that had failed the limit ends."""
        if tp in self._portions and next_offset > self._portions[tp].last:
            del self._portions[tp]

    def forget(self, tp: Tp) -> None:
        """It is blocked, or was taken away."""
        self._portions.pop(tp, None)
