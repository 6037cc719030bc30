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

import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

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


MAX_CLAIMED_BYTES = 256
"""Longest id that is claimed, or order key with its mark in front."""
PARTITION_DIGITS = 10
"""Kafka numbers partitions by 31 bits; a longer text is no number of one, whatever it begins with."""
ANY = 10**PARTITION_DIGITS
"""A partition count above every number, for who does not know it."""
MOST_ENDED = 10_000
"""So many claims are ended in one transaction at most."""
MOST_LOOKED_AT = 10 * MOST_ENDED
"""So many ways are looked at for it."""
MOST_UNREADABLE = 100_000
"""So many claims that cannot be read are kept in mind until they are ended; those above it are ended after a later start."""

HEED_MS = 10_000
"""So much later than it came a claim that is ignored is ended: who claims for a partition that was added may hear of it before us."""

_WAY_BYTES = 400
_CLAIM_BYTES = 60
"""What an id with a way, and each claim, cost beside their bytes. `tests/engine/test_memory.py` measures it."""


@dataclass(slots=True, eq=False)
class _Way:
    """What is claimed for one id.

    Attributes:
        claims: Partition by key of each claim that is not ended, in the log's order.
        first: Key of the claim that counts; None while every partition claimed is one that does not exist.
    """

    claims: dict[bytes, int] = field(default_factory=dict)
    first: bytes | None = None


class PathMap:
    """What the log says, as far as it was read. Of the claims of each id the first one for a partition that exists counts.

    Whoever may claim may write anything. A claim that cannot be read, or is for a partition that does not exist, is ignored, counted, and ended
    by the next owner who ends ways; those behind it count as if it had never been there. It takes its place should the topic have grown
    before that (`grow`), so that all who know the same partition count agree.

    Attributes:
        claimed: How many ids have their way to each partition.
        ignored: How many claims were ignored, each counted once.
        partitions: How many partitions there are to have a way to, as far as we know.
        memory_bytes: About what the map takes.
        limit_bytes: Above it owners end ways before their time, the oldest first, of ids that nobody knows: a component that comes
            after all is claimed for anew.
    """

    def __init__(self, partitions: int = ANY, limit_bytes: int = sys.maxsize) -> None:
        self.partitions = partitions
        self.limit_bytes = limit_bytes
        self.ignored = 0
        self.clear()

    def clear(self) -> None:
        """Back to the beginning of the log."""
        self._ways: dict[bytes, _Way] = {}
        self._leaving: set[bytes] = set()
        self._look: dict[int, OrderedDict[bytes, int]] = defaultdict(OrderedDict)
        self._absent: dict[bytes, bytes] = {}
        self._ignored: OrderedDict[bytes, int] = OrderedDict()
        self.claimed: dict[int, int] = defaultdict(int)
        self.memory_bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        """Ids that have a way."""
        return (group_id for group_id, way in self._ways.items() if way.first is not None)

    @property
    def ids(self) -> int:
        """How many ids somebody has claimed."""
        return len(self._ways)

    @property
    def is_full(self) -> bool:
        """Whether ways end before their time."""
        return self.memory_bytes > self.limit_bytes

    @property
    def is_leaving(self) -> bool:
        """Whether we have ended ways and not read that they are."""
        return bool(self._leaving)

    def read(self, key: bytes | None, value: bytes | None, at: int) -> None:
        """Takes one record of the log, whatever it is. What is none of ours is left alone.

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
        elif value.isdigit() and len(value) <= PARTITION_DIGITS and 0 < len(group_id) <= MAX_CLAIMED_BYTES:
            self._take(group_id, key, int(value), at)
        else:
            self._refuse(group_id, key, at)

    def _refuse(self, group_id: bytes, key: bytes, at: int) -> None:
        """A claim that cannot be read. One with the key of a claim that can is not ended: that would end the other."""
        way = self._ways.get(group_id)
        if way is None or key not in way.claims:
            self._ignore(key, at, is_noted=len(self._ignored) - len(self._absent) < MOST_UNREADABLE)

    def _ignore(self, key: bytes, at: int, *, is_noted: bool) -> None:
        if key in self._ignored:
            return
        self.ignored += 1
        if is_noted:
            self._ignored[key] = at + HEED_MS
            self.memory_bytes += _CLAIM_BYTES + len(key)

    def _heed(self, key: bytes) -> None:
        """It is ended, or ignored no longer."""
        self._absent.pop(key, None)
        if self._ignored.pop(key, None) is not None:
            self.memory_bytes -= _CLAIM_BYTES + len(key)

    def _take(self, group_id: bytes, key: bytes, partition: int, at: int) -> None:
        way = self._ways.get(group_id)
        if way is None:
            way = self._ways[group_id] = _Way()
            self.memory_bytes += _WAY_BYTES + len(group_id)
        if key in way.claims:
            return
        way.claims[key] = partition
        self.memory_bytes += _CLAIM_BYTES + len(key)
        if partition >= self.partitions:
            self._absent[key] = group_id
            self._ignore(key, at, is_noted=True)
        elif way.first is None:
            self._lead(group_id, way, at)

    def _lead(self, group_id: bytes, way: _Way, at: int) -> None:
        """The first claim for a partition that exists counts."""
        self._follow_none(group_id, way)
        for key, partition in way.claims.items():
            if partition < self.partitions:
                way.first = key
                self.claimed[partition] += 1
                self._look[partition][group_id] = at
                return

    def _follow_none(self, group_id: bytes, way: _Way) -> None:
        if way.first is not None:
            partition = way.claims[way.first]
            self.claimed[partition] -= 1
            self._look[partition].pop(group_id, None)
            way.first = None

    def _end(self, group_id: bytes, key: bytes) -> None:
        self._heed(key)
        way = self._ways.get(group_id)
        if way is None or key not in way.claims:
            return
        leads = way.first == key
        if leads:
            self._follow_none(group_id, way)
        del way.claims[key]
        self._leaving.discard(key)
        self.memory_bytes -= _CLAIM_BYTES + len(key)
        if not way.claims:
            del self._ways[group_id]
            self.memory_bytes -= _WAY_BYTES + len(group_id)
        elif leads:
            self._lead(group_id, way, 0)

    @property
    def asks_for_count(self) -> bool:
        """Whether somebody claimed a partition that does not exist, as far as we know: there may be more by now."""
        return bool(self._absent)

    def grow(self, partitions: int) -> None:
        """There are so many partitions now; claims for those that were added take their places. The first time it is said before any is read."""
        if partitions <= self.partitions != ANY:
            return
        self.partitions = partitions
        for key, group_id in [*self._absent.items()]:
            way = self._ways[group_id]
            if way.claims[key] < partitions:
                self._heed(key)
                self._lead(group_id, way, 0)

    def get(self, group_id: bytes) -> int | None:
        """The partition an id belongs to; None if it has no way."""
        way = self._ways.get(group_id)
        return None if way is None or way.first is None else way.claims[way.first]

    def partition_for(self, here: int) -> Callable[[bytes, int], int]:
        """Stands in for the hash (`topics.partitioner`) on one partition; an id without a way belongs there."""

        def way(group_id: bytes, count: int) -> int:
            partition = self.get(group_id)
            return here if partition is None else partition

        return way

    def unknown(self, group_ids: Iterable[bytes]) -> list[bytes]:
        """Those that have no way, or one that we have ended: a claim of ours tells whether it came to that, see `settled`."""
        return [each for each in group_ids if not self._is_sure(each)]

    def _is_sure(self, group_id: bytes) -> bool:
        way = self._ways.get(group_id)
        return way is not None and way.first is not None and way.first not in self._leaving

    def settled(self, group_ids: Iterable[bytes]) -> None:
        """Claims of ours for these ids were read. What we had ended lies before them: what is there still was rolled back, and counts on.

        Claims of others tell nothing of it: they may have come between the claim and its end.
        """
        for group_id in group_ids:
            way = self._ways.get(group_id)
            if way is not None:
                self._leaving.difference_update(way.claims)

    def least_claimed(self, first: int, count: int) -> int:
        """The partition that fewest ids have their way to; of equals the next one from `first` on (W-105)."""
        return min(range(count), key=lambda partition: (self.claimed[partition], (partition - first) % count))

    # -- the owner of a partition ends ways

    def look_at(self, partition: int) -> int | None:
        """When the oldest way to a partition was claimed, or looked at last, epoch ms; None if there is none."""
        return next(iter(self._look[partition].values()), None)

    def leave(self, partition: int, before: int, now: int, is_in_use: Callable[[bytes], bool]) -> list[bytes]:
        """Ends ways to a partition, of ids that nobody here knows any more. They are as they were until the tombstones are read.

        Args:
            partition: Whose owner asks.
            before: Ways claimed, or looked at, later are left alone.
            now: The partition's clock: what is looked at now is not looked at again before.
            is_in_use: Whether an id's group is open, or remembered.

        Returns:
            Keys to be ended by a tombstone in the owner's transaction; about `MOST_ENDED` at most, those left are due at once.
        """
        keys: list[bytes] = []
        look = self._look[partition]
        for _ in range(MOST_LOOKED_AT):
            at = self.look_at(partition)
            if at is None or at >= min(before, now) or len(keys) >= MOST_ENDED:
                break
            group_id = next(iter(look))
            look[group_id] = now
            look.move_to_end(group_id)
            if not is_in_use(group_id):
                keys += self._ways[group_id].claims
        self._leaving.update(keys)
        return keys

    def ignored_due(self) -> int | None:
        """The clock value, epoch ms, at which ignored claims are to be ended, whoever does it; None if there are none."""
        return next(iter(self._ignored.values()), None)

    def leave_ignored(self, now: int, again_ms: int) -> list[bytes]:
        """Ends claims that are ignored, `MOST_ENDED` at most. What is not ended by it is tried again `again_ms` later.

        Returns:
            Keys to be ended by a tombstone in anybody's transaction.
        """
        keys = [key for key, due in islice(self._ignored.items(), MOST_ENDED) if due <= now]
        for key in keys:
            self._ignored[key] = now + again_ms
            self._ignored.move_to_end(key)
        return keys
