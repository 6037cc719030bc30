"""The path map: which partition an id belongs to under `routing = "path"` (W-105, W-106). Pure.

Theory of operation. The map is the content of one log of one partition, `A-D-path-map`. Whoever wants an id to have a way appends a *claim*,
and reads the log up to it: the first claim of an id in log order is its way, whoever made it. Each claim has a key of its own, so compaction keeps all
of them and their order. The worker that owns the way's partition ends it with a tombstone for each claim of the id, in the
transaction in which it forgets the id (`closed_retention_ms` after its group closed). Only then may a later claim give the id another partition;
as long as a group is open its way stays (W-106).

Nobody needs the newest state of the map. Who reads less of the log may send a component to where its id once belonged, or to no avail; there
it is judged again. The owner of a partition alone must know which ids are its own, and it does: a claim that was first stays first until the
owner itself ends it.

Belongs here: the records of the log and what they come to. Does not belong here: reading and writing it (`processor.kafka.paths`), when a worker
asks (`processor.engine.ways`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

NONCE_BYTES = 16
PARTITION = 0
"""The log's only partition: with two, which of two claims is the first would be a matter of the reader."""
_VERSION = b"\x01"


def claim_key(group_id: bytes, nonce: bytes) -> bytes:
    """Key of a claim: version, id, 0, and 16 bytes that no other claim has."""
    return b"%b%b\0%b" % (_VERSION, group_id, nonce)


def line_of(order_key: bytes) -> bytes:
    """What is claimed for all groups of an order key (W-210), in place of an id; no id begins so, since it is no UTF-8."""
    return b"\xff" + order_key


def claim_value(partition: int) -> bytes:
    """Value of a claim: the partition, as decimal text."""
    return b"%d" % partition


@dataclass(slots=True, eq=False)
class _Claim:
    """One claim that is not ended."""

    key: bytes
    partition: int
    is_leaving: bool = False
    """Ended by us, in a transaction that may still be rolled back."""


class PathMap:
    """What the log says, as far as it was read. The first claim of each id counts.

    Attributes:
        claimed: How many ids have their way to each partition.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Back to the beginning of the log."""
        self._claims: dict[bytes, list[_Claim]] = {}
        self._look: dict[int, deque[tuple[int, bytes]]] = defaultdict(deque)
        self.claimed: dict[int, int] = defaultdict(int)

    def __iter__(self) -> Iterator[bytes]:
        """Ids that have a way."""
        return iter(self._claims)

    def read(self, key: bytes | None, value: bytes | None, at: int) -> None:
        """Takes one record of the log. What is none of ours is left alone.

        Args:
            key: Its key.
            value: Its value, None for a tombstone.
            at: Its append time, epoch ms.
        """
        if key is None or not key.startswith(_VERSION) or key[-NONCE_BYTES - 1 : -NONCE_BYTES] != b"\0":
            return
        group_id = key[1 : -NONCE_BYTES - 1]
        if value is None:
            self._end(group_id, key)
        elif value.isdigit():
            self._take(group_id, _Claim(key, int(value)), at)

    def _take(self, group_id: bytes, claim: _Claim, at: int) -> None:
        claims = self._claims.setdefault(group_id, [])
        if any(each.key == claim.key for each in claims):
            return
        claims.append(claim)
        if len(claims) == 1:
            self._lead(group_id, claim, at)

    def _lead(self, group_id: bytes, claim: _Claim, at: int) -> None:
        self.claimed[claim.partition] += 1
        self._look[claim.partition].append((at, group_id))

    def _end(self, group_id: bytes, key: bytes) -> None:
        claims = self._claims.get(group_id, [])
        index = next((index for index, each in enumerate(claims) if each.key == key), None)
        if index is None:
            return
        ended = claims.pop(index)
        if not claims:
            del self._claims[group_id]
        if index == 0:
            self.claimed[ended.partition] -= 1
            if claims:
                self._lead(group_id, claims[0], 0)

    def get(self, group_id: bytes) -> int | None:
        """The partition an id belongs to; None if it has no way."""
        claims = self._claims.get(group_id)
        return None if claims is None else claims[0].partition

    def partition_for(self, here: int) -> Callable[[bytes, int], int]:
        """Stands in for the hash (`topics.partitioner`) on one partition; an id without a way belongs there."""

        def way(group_id: bytes, count: int) -> int:
            partition = self.get(group_id)
            return here if partition is None else partition

        return way

    def unknown(self, group_ids: Iterable[bytes]) -> list[bytes]:
        """Those that have no way, or one that we have ended: a claim of ours tells whether it came to that, see `settled`."""
        return [each for each in group_ids if each not in self._claims or self._claims[each][0].is_leaving]

    def settled(self, group_ids: Iterable[bytes]) -> None:
        """Claims of ours for these ids were read. What we had ended lies before them: what is there still was rolled back, and counts on.

        Claims of others tell nothing of it: they may have come between the claim and its end.
        """
        for group_id in group_ids:
            for claim in self._claims.get(group_id, ()):
                claim.is_leaving = False

    def least_claimed(self, first: int, count: int) -> int:
        """The partition that fewest ids have their way to; of equals the next one from `first` on (W-105)."""
        return min(range(count), key=lambda partition: (self.claimed[partition], (partition - first) % count))

    # -- the owner of a partition ends ways

    def look_at(self, partition: int) -> int | None:
        """When the oldest way to a partition was claimed, or looked at last, epoch ms; None if there is none."""
        queue = self._look[partition]
        while queue and not self._leads_to(queue[0][1], partition):
            queue.popleft()
        return queue[0][0] if queue else None

    def _leads_to(self, group_id: bytes, partition: int) -> bool:
        claims = self._claims.get(group_id)
        return claims is not None and claims[0].partition == partition

    def leave(self, partition: int, before: int, now: int, is_in_use: Callable[[bytes], bool]) -> list[bytes]:
        """Ends ways to a partition, of ids that nobody here knows any more. They are as they were until the tombstones are read.

        Args:
            partition: Whose owner asks.
            before: Ways claimed, or looked at, later are left alone.
            now: The partition's clock: what is looked at now is not looked at again before.
            is_in_use: Whether an id's group is open, or remembered.

        Returns:
            Keys to be ended by a tombstone in the owner's transaction.
        """
        keys = []
        while (at := self.look_at(partition)) is not None and at < before:
            _, group_id = self._look[partition].popleft()
            self._look[partition].append((now, group_id))
            if not is_in_use(group_id):
                for claim in self._claims[group_id]:
                    claim.is_leaving = True
                    keys.append(claim.key)
        return keys
