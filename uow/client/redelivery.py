"""The mark of a message or unit that is handed out: delivered before, surely not, or nobody can say (R-35).

Within one reader it is known: it remembers how far it has handed out each partition, over rebalances and rollbacks. Another reader, or an earlier
process, says beside each offset that it commits how far it had come by then (`uow.client.deliveries`), and at an orderly end how far it came at all.
What it did after that nobody can say: it may have handed out whatever was there when this one got the partition, and acknowledged none of it.

Belongs here: the mark. Does not belong here: how often a unit was delivered (`uow.client.deliveries`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HandedOut:
    """The past of one partition, as far as one reader knows it; outlives its assignments.

    Attributes:
        last: The highest offset that was handed out, by this reader or, as far as committed offsets say, by others; -1 for none.
        unknown_until: Others may have handed out what lies before this offset; None where that is not known yet.
        is_committed: True if this reader has committed a position there.
    """

    last: int = -1
    unknown_until: int | None = None
    is_committed: bool = False

    def mark(self, offset: int) -> bool | None:
        """True: delivered before; False: surely not; None: nobody can say. From now on it was."""
        if offset <= self.last:
            return True
        self.last = offset
        return None if self.unknown_until is None or offset < self.unknown_until else False
