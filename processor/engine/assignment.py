"""The partitions that the consumer group gave this worker, from assignment to the first record. No I/O.

A partition is *pending* from its assignment until it is restored. It is *begun* once it is read. One that is revoked leaves both; if that
happens during a restore, it is also *revoked since the restore began*: the restored state is thrown away even if the partition has come back
since, as another worker may have committed there in between (ER-08).

Belongs here: these sets, and when to look at pending partitions again. Does not belong here: restoring and reading
(`uow.processor.engine.owned_partitions`), partitions that cannot go on (`uow.processor.engine.quarantine`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from uow.processor.engine.ports import Tp

LOOK_AGAIN_MS = 250
"""A partition whose restore would have to wait for others is not looked at again before this."""
SOON_MS = 1_000
"""For so long after an assignment it is looked at in each turn: brokers are asked, and nobody waits for their answers."""


class Assignment:
    """The partitions of one worker. Times are monotonic milliseconds.

    Attributes:
        pending: Assigned, and not restored yet.
        revoked: Taken away since the last `begin_restore`.
        unrestored: Assigned, and neither restored nor found to be blocked yet.
        rebalances: How many assignments and revocations there were.
    """

    def __init__(self) -> None:
        self.pending: set[Tp] = set()
        self.revoked: set[Tp] = set()
        self.unrestored: set[Tp] = set()
        self.rebalances = 0
        self._begun: set[Tp] = set()
        self._is_announced = True
        self._look_at = 0
        self._announced_at = -SOON_MS

    def assign(self, tps: Iterable[Tp]) -> None:
        """The group assigned these, perhaps none: a spare worker joined."""
        self.rebalances += 1
        self.pending.update(tps)
        self.unrestored.update(tps)
        self._is_announced = False

    def revoke(self, tps: Collection[Tp]) -> None:
        """The group took these away, or they were lost."""
        self.rebalances += 1
        self.pending.difference_update(tps)
        self.unrestored.difference_update(tps)
        self.revoked.update(tps)
        self._begun.difference_update(tps)

    def retry(self, tp: Tp) -> None:
        """A partition whose state could not be restored is to be restored anew. The group has assigned nothing."""
        self.pending.add(tp)

    def is_due(self, now_ms: int) -> bool:
        """True if an assignment was not announced yet, or pending partitions may be looked at again."""
        return not self._is_announced or bool(self.pending and now_ms >= self._look_at)

    def announce(self, now_ms: int) -> None:
        """The assignment is being dealt with: it is due no longer."""
        if not self._is_announced:
            self._is_announced, self._announced_at = True, now_ms

    def is_soon(self, now_ms: int) -> bool:
        """True if pending partitions are looked at again at once."""
        return bool(self.pending) and now_ms - self._announced_at < SOON_MS

    def looked(self, began_ms: int, ended_ms: int) -> None:
        """The pending partitions were looked at. The longer that takes, the less often it is done: a sixth of the time at most."""
        again = 0 if self.is_soon(ended_ms) else LOOK_AGAIN_MS
        self._look_at = ended_ms + max(again, 5 * (ended_ms - began_ms))

    def begin_restore(self) -> None:
        """From here on `revoked` collects what is taken away during the restore."""
        self.revoked.clear()

    def wanted(self, tps: Iterable[Tp]) -> list[Tp]:
        """Those of the partitions under restore that were not taken away since it began."""
        return [tp for tp in tps if tp not in self.revoked]

    def end_restore(self, tps: Iterable[Tp]) -> None:
        """These are pending no longer: restored, or blocked. One that was taken away and came back stays pending."""
        self.pending.difference_update(self.wanted(tps))
        self.unrestored &= self.pending

    def is_begun(self, tp: Tp) -> bool:
        """True if it was read before: the source keeps its position, and whether it is paused."""
        return tp in self._begun

    def begin(self, tps: Iterable[Tp]) -> None:
        """These are read from now on."""
        self._begun.update(tps)
