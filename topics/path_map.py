"""The path map: which partition an id belongs to under `routing = "path"` (W-105, W-106). Pure.

Theory of operation. The map is the content of one log of one partition, `A-D-path-map`. Whoever wants to place an id appends a *claim* and reads
the log up to it: the first claim of an id in log order is its *placement*. Each claim has a key of its own, so compaction keeps
all of them and their order. The worker that owns the partition ends the placement with a tombstone for each claim of the id, in the transaction in
which it forgets the id (`closed_retention_ms` after its group closed). Only then may a later claim give the id another partition; as long as a
group is open its placement stays (W-106).

No reader needs the newest state of the map. A reader that is behind may send a component to the partition where its id belonged before; there it is
judged again. Only the owner of a partition must know which ids are its own, and it does: a claim that was first stays first until the owner itself
ends it.

Belongs here: the records of the log and the map that follows from them. Does not belong here: reading and writing it (`uow.processor.kafka.path_log`), when a worker
asks (`uow.processor.engine.placement`).
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

NONCE_BYTES = 16
PARTITION = 0
"""The log's only partition: with two, readers could disagree about which of two claims is the first."""
_VERSION = b"\x01"


def claim_key(group_id: bytes, nonce: bytes) -> bytes:
    """Key of a claim: version, id, 0, and 16 bytes that no other claim has."""
    return b"%b%b\0%b" % (_VERSION, group_id, nonce)


def line_of(order_key: bytes) -> bytes:
    """The text that is claimed for all groups of an order key (W-210), in place of an id. No id begins like it, since it is not UTF-8."""
    return b"\xff" + order_key


def claim_value(partition: int) -> bytes:
    """Value of a claim: the partition, as decimal text."""
    return b"%d" % partition


MAX_CLAIMED_BYTES = 256
"""Longest id that is claimed, or order key with its mark in front."""
PARTITION_DIGITS = 10
"""Largest number of digits of a partition number, as Kafka numbers partitions with 31 bits."""
ANY = 10**PARTITION_DIGITS
"""A partition count above every number, for readers that do not know the real one."""
MOST_ENDED = 10_000
"""Largest number of claims that are ended in one transaction."""
MOST_LOOKED_AT = 10 * MOST_ENDED
"""Largest number of placements that are checked for that."""
MOST_UNREADABLE = 100_000
"""Largest number of unreadable claims that are remembered until they are ended; the others are ended after a later start."""

HEED_MS = 10_000
"""Time after which an ignored claim is ended. A client may know of an added partition, and claim for it, before this process does."""

_ID_BYTES = 400
_CLAIM_BYTES = 60
"""Memory for an id, and for each claim, beside their own bytes. `tests/engine/test_memory.py` measures it."""


@dataclass(slots=True, eq=False)
class _Claims:
    """The claims for one id.

    Attributes:
        by_key: Partition by key of each claim that is not ended, in the log's order.
        first: Key of the claim that counts; None while every claimed partition does not exist.
    """

    by_key: dict[bytes, int] = field(default_factory=dict)
    first: bytes | None = None


class PathMap:
    """The map, as far as the log was read. Of the claims of each id the first one for a partition that exists counts.

    A client that may claim can write anything. A claim that cannot be read, or is for a partition that does not exist, is ignored, counted, and
    ended by the next owner that ends placements; later claims count as if it did not exist. If the topic gets more partitions before that
    (`grow`), the claim counts after all, so that everybody who knows the same partition count agrees.

    Attributes:
        claimed: Number of ids placed on each partition.
        ignored: Number of ignored claims, each counted once.
        partitions: Number of partitions, as far as known.
        memory_bytes: Approximate memory of the map.
        limit_bytes: Above it owners end placements early, the oldest first, of ids that are not in use: a later component of such an id is
            claimed for again.
    """

    def __init__(self, partitions: int = ANY, limit_bytes: int = sys.maxsize) -> None:
        self.partitions = partitions
        self.limit_bytes = limit_bytes
        self.ignored = 0
        self.clear()

    def clear(self) -> None:
        """Back to the beginning of the log."""
        self._claims: dict[bytes, _Claims] = {}
        self._leaving: set[bytes] = set()
        self._look: dict[int, OrderedDict[bytes, int]] = defaultdict(OrderedDict)
        self._absent: dict[bytes, bytes] = {}
        self._ignored: OrderedDict[bytes, int] = OrderedDict()
        self.claimed: dict[int, int] = defaultdict(int)
        self.memory_bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        """Ids that are placed."""
        return (group_id for group_id, claims in self._claims.items() if claims.first is not None)

    @property
    def ids(self) -> int:
        """Number of ids that have claims."""
        return len(self._claims)

    @property
    def is_full(self) -> bool:
        """True if placements are ended early."""
        return self.memory_bytes > self.limit_bytes

    @property
    def is_leaving(self) -> bool:
        """True if this process has ended placements and has not read its tombstones yet."""
        return bool(self._leaving)

    def read(self, key: bytes | None, value: bytes | None, at: int) -> None:
        """Takes one record of the log. A record of unknown form is left alone.

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
        """Ignores a claim that cannot be read. If it has the key of a readable claim it is not ended, as that would end the other too."""
        claims = self._claims.get(group_id)
        if claims is None or key not in claims.by_key:
            self._ignore(key, at, is_noted=len(self._ignored) - len(self._absent) < MOST_UNREADABLE)

    def _ignore(self, key: bytes, at: int, *, is_noted: bool) -> None:
        if key in self._ignored:
            return
        self.ignored += 1
        if is_noted:
            self._ignored[key] = at + HEED_MS
            self.memory_bytes += _CLAIM_BYTES + len(key)

    def _stop_ignoring(self, key: bytes) -> None:
        """Forgets an ignored claim that was ended or now counts."""
        self._absent.pop(key, None)
        if self._ignored.pop(key, None) is not None:
            self.memory_bytes -= _CLAIM_BYTES + len(key)

    def _take(self, group_id: bytes, key: bytes, partition: int, at: int) -> None:
        claims = self._claims.get(group_id)
        if claims is None:
            claims = self._claims[group_id] = _Claims()
            self.memory_bytes += _ID_BYTES + len(group_id)
        if key in claims.by_key:
            return
        claims.by_key[key] = partition
        self.memory_bytes += _CLAIM_BYTES + len(key)
        if partition >= self.partitions:
            self._absent[key] = group_id
            self._ignore(key, at, is_noted=True)
        elif claims.first is None:
            self._place(group_id, claims, at)

    def _place(self, group_id: bytes, claims: _Claims, at: int) -> None:
        """The first claim for a partition that exists counts."""
        self._unplace(group_id, claims)
        for key, partition in claims.by_key.items():
            if partition < self.partitions:
                claims.first = key
                self.claimed[partition] += 1
                self._look[partition][group_id] = at
                return

    def _unplace(self, group_id: bytes, claims: _Claims) -> None:
        if claims.first is not None:
            partition = claims.by_key[claims.first]
            self.claimed[partition] -= 1
            self._look[partition].pop(group_id, None)
            claims.first = None

    def _end(self, group_id: bytes, key: bytes) -> None:
        self._stop_ignoring(key)
        claims = self._claims.get(group_id)
        if claims is None or key not in claims.by_key:
            return
        was_first = claims.first == key
        if was_first:
            self._unplace(group_id, claims)
        del claims.by_key[key]
        self._leaving.discard(key)
        self.memory_bytes -= _CLAIM_BYTES + len(key)
        if not claims.by_key:
            del self._claims[group_id]
            self.memory_bytes -= _ID_BYTES + len(group_id)
        elif was_first:
            self._place(group_id, claims, 0)

    @property
    def asks_for_count(self) -> bool:
        """True if a claim names a partition that does not exist as far as known: the topic may have more partitions by now."""
        return bool(self._absent)

    def grow(self, partitions: int) -> None:
        """Sets the number of partitions; claims for added ones begin to count. The first call comes before any record is read."""
        if partitions <= self.partitions != ANY:
            return
        self.partitions = partitions
        for key, group_id in [*self._absent.items()]:
            claims = self._claims[group_id]
            if claims.by_key[key] < partitions:
                self._stop_ignoring(key)
                self._place(group_id, claims, 0)

    def get(self, group_id: bytes) -> int | None:
        """The partition an id belongs to; None if it is not placed."""
        claims = self._claims.get(group_id)
        return None if claims is None or claims.first is None else claims.by_key[claims.first]

    def partition_for(self, here: int) -> Callable[[bytes, int], int]:
        """The function that replaces the hash (`uow.topics.partitioner`) on one partition; an id without placement belongs to that partition."""

        def placement(group_id: bytes, count: int) -> int:
            partition = self.get(group_id)
            return here if partition is None else partition

        return placement

    def unknown(self, group_ids: Iterable[bytes]) -> list[bytes]:
        """Ids without placement, or whose placement this process has ended. Reading back a new claim shows which it is, see `on_claims_read`."""
        return [each for each in group_ids if not self._is_sure(each)]

    def _is_sure(self, group_id: bytes) -> bool:
        claims = self._claims.get(group_id)
        return claims is not None and claims.first is not None and claims.first not in self._leaving

    def on_claims_read(self, group_ids: Iterable[bytes]) -> None:
        """Own claims for these ids were read back. Own tombstones come before them in the log, so claims that remain were not ended after all.

        Claims of others do not show that: they may be between a claim and its tombstone.
        """
        for group_id in group_ids:
            claims = self._claims.get(group_id)
            if claims is not None:
                self._leaving.difference_update(claims.by_key)

    def least_claimed(self, first: int, count: int) -> int:
        """The partition on which fewest ids are placed; of equals the next one from `first` on (W-105)."""
        return min(range(count), key=lambda partition: (self.claimed[partition], (partition - first) % count))

    # -- the owner of a partition ends placements

    def look_at(self, partition: int) -> int | None:
        """The time, epoch ms, at which the oldest placement on a partition was claimed or last checked; None if there is none."""
        return next(iter(self._look[partition].values()), None)

    def leave(self, partition: int, before: int, now: int, is_in_use: Callable[[bytes], bool]) -> list[bytes]:
        """Ends placements on a partition, of ids that are no longer in use. They count until the tombstones are read.

        Args:
            partition: The partition, owned by the caller.
            before: Placements claimed or checked later than this are left alone.
            now: The partition's clock, recorded for each placement that is checked.
            is_in_use: Returns True if an id's group is open, or remembered.

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
                keys += self._claims[group_id].by_key
        self._leaving.update(keys)
        return keys

    def ignored_due(self) -> int | None:
        """The clock value, epoch ms, at which any worker may end ignored claims; None if there are none."""
        return next(iter(self._ignored.values()), None)

    def leave_ignored(self, now: int, again_ms: int) -> list[bytes]:
        """Ends ignored claims, at most `MOST_ENDED`. If that fails it is tried again `again_ms` later.

        Returns:
            Keys to be ended by a tombstone in any worker's transaction.
        """
        keys = [key for key, due in islice(self._ignored.items(), MOST_ENDED) if due <= now]
        for key in keys:
            self._ignored[key] = now + again_ms
            self._ignored.move_to_end(key)
        return keys
