"""Polls cut down until the record that cannot be processed stands alone (ER-03). No I/O.

A task that raised, or a transaction that was refused, tells that something in the batch is at fault, not which record. So the batch is tried
again in halves. At size 1 the position stops at the very record, and the partition is blocked there. Once everything of the batch that
failed is behind, whole polls are read again.

A command of that batch stands alone as well: until it is behind, records and commands do not mix, and each goes when its append time says so.

Belongs here: how much of a poll a partition takes. Does not belong here: blocking it (`uow.processor.engine.quarantine`).
"""

from __future__ import annotations

import sys
from typing import Final, NamedTuple

from uow.processor.engine.ports import Tp

ALL: Final = sys.maxsize


class Portion(NamedTuple):
    """A limit on the batches of one partition.

    Attributes:
        last: Offset of the last record of the batch that failed; `size` holds until the position is beyond it.
        size: Most records of one batch.
        last_command: Offset of its last command; a command stands alone until the position in `D.commands` is beyond it.
    """

    last: int
    size: int
    last_command: int = -1


class Portions:
    """The partitions under such a limit."""

    def __init__(self) -> None:
        self._portions: dict[Tp, Portion] = {}

    def __contains__(self, tp: object) -> bool:
        return tp in self._portions

    def size(self, tp: Tp, count: int) -> int:
        """Most records to take of a poll that has `count` of them."""
        portion = self._portions.get(tp)
        return count if portion is None else min(count, portion.size)

    def halve(self, tp: Tp, last: int, count: int, last_command: int = -1) -> None:
        """A batch of so many records, up to offset `last`, and of commands up to `last_command`, failed: half as many records next time, one at least."""
        self._portions[tp] = Portion(last, max(1, count // 2), max(last_command, self._last_command(tp)))

    def halve_again(self, tp: Tp, position: int, command_position: int, poll_records: int) -> bool:
        """A transaction with this partition's plan was refused; the batch is not at hand any more. Returns False if it was a single record.

        Args:
            tp: The partition.
            position: The next offset after what was refused.
            command_position: The same in `D.commands`.
            poll_records: Most records it may have had, where there was no limit.
        """
        known = self._portions.get(tp)
        if known is None or known.size == ALL:
            known = Portion(position - 1, poll_records, max(command_position - 1, self._last_command(tp)))
        if known.size > 1:
            self._portions[tp] = known._replace(size=known.size // 2)
        return known.size > 1

    def single(self, tp: Tp, offset: int) -> None:
        """Only the record at this offset, by itself."""
        self._portions[tp] = Portion(offset, 1, self._last_command(tp))

    def single_command(self, tp: Tp, offset: int) -> None:
        """The command at this offset only by itself; records as many as there are."""
        known = self._portions.get(tp, Portion(-1, ALL))
        self._portions[tp] = known._replace(last_command=max(offset, known.last_command))

    def _last_command(self, tp: Tp) -> int:
        return self._portions[tp].last_command if tp in self._portions else -1

    def passed(self, tp: Tp, next_offset: int, next_command: int = 0) -> None:
        """A batch was written. Beyond the one that had failed the limit ends."""
        portion = self._portions.get(tp)
        if portion is None or next_offset <= portion.last:
            return
        if next_command > portion.last_command:
            del self._portions[tp]
        else:  # its records are behind, and not at fault
            self._portions[tp] = portion._replace(size=ALL)

    def forget(self, tp: Tp) -> None:
        """It is blocked, or was taken away."""
        self._portions.pop(tp, None)
