"""Reading as a member of a consumer group: which partitions are ours, from where, and up to where they are acknowledged.

Belongs here: assignment and revocation, start positions, acknowledging, delivery counts, going back. Does not belong here: what a
record means (`uow.reader`), and transactions of a forwarding hop (`uow.forward`), which only lend a hand at revocation.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition

from schemas.errors import UowError
from uow.errors import (
    STALE_GENERATION,
    ClientClosedError,
    DestinationUnavailableError,
    LostServerError,
    ReconnectGivenUpError,
    ReconnectTimeoutError,
    SubscriptionExpiredError,
    read_error,
)
from uow.handles import BLOCKING_S, ConsumedRecord, ConsumerHandle, LogWatch, check_topic, coordinates
from uow.runs import OpenRun

log = logging.getLogger(__name__)

COUNTED: Final = 128
"""Of how many unacknowledged units per partition the deliveries are counted; bounds memory and the 4096 bytes of commit metadata."""

STABLE_S: Final = 30.0
"""Longest wait for stable committed offsets: the transaction of a forwarder that was killed ends after 10 s, found by a scan every 10 s (ER-10)."""

Tp = tuple[str, int]


class Start(StrEnum):
    """Where a group without a committed offset begins (R-53)."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"
    """Nowhere: refuse."""


@dataclass(eq=False, slots=True)
class Ownership:
    """One partition from assignment to revocation; a new assignment makes a new one, so what was read under an old one is recognised.

    Attributes:
        tp: Topic and partition.
        base: Where reading began: the committed offset, or where the first start begins (-1: not seen yet).
        acknowledged: The next offset to be read after all that is acknowledged.
        counts: Deliveries of units that were handed out and not acknowledged, by offset (W-52).
        earlier: The same, from before this assignment.
        deferred: An acknowledged offset that could not be committed in the middle of a rebalance.
        rewind: Where reading goes on before the next record is taken, because something was rolled back.
        run: The unit of shape `consecutive` whose records are coming in.
        broken: Id of the unit whose run was found broken last.
        handed_out: Offset of the unit handed out last, -1 before the first one.
    """

    tp: Tp
    base: int = -1
    acknowledged: int = -1
    counts: dict[int, int] = field(default_factory=dict)
    earlier: dict[int, int] = field(default_factory=dict)
    deferred: int = -1
    rewind: int | None = None
    run: OpenRun | None = None
    broken: str = ""
    handed_out: int = -1

    def deliveries_of(self, offset: int) -> int:
        """How often the unit at `offset` was handed out and not acknowledged."""
        return max(self.earlier.get(offset, 0), self.counts.get(offset, 0))

    def count_delivery(self, offset: int) -> int:
        """One more delivery of the unit at `offset`; returns which one it is, from 1."""
        count = self.deliveries_of(offset) + 1
        self.handed_out = offset
        if len(self.counts) < COUNTED:
            self.counts[offset] = count
        return count

    def go_back(self, offset: int) -> None:
        """Reads from `offset` again, at the latest."""
        self.rewind = offset if self.rewind is None else min(self.rewind, offset)

    def begun_again(self) -> Ownership:
        """The same partition from what is acknowledged on: what was read so far can no longer be settled."""
        return Ownership(
            self.tp,
            self.base,
            self.acknowledged,
            earlier=self.deliveries(),
            deferred=self.deferred,
            rewind=self.acknowledged,
        )

    def deliveries(self) -> dict[int, int]:
        """Deliveries of what is not acknowledged, by offset."""
        known = self.earlier | self.counts
        return {offset: known[offset] for offset in sorted(known)[:COUNTED] if offset >= self.acknowledged}

    def settle(self, next_offset: int) -> None:
        """Everything before `next_offset` is done with."""
        self.acknowledged = max(self.acknowledged, next_offset)
        if self.rewind is not None and self.rewind < next_offset:
            self.rewind = None
        for offset in [offset for offset in self.counts if offset < next_offset]:
            del self.counts[offset]


def _nothing() -> None:
    """What happens beside a poll or a close of most readers."""


class HopSettling(Protocol):
    """What a forwarding hop does when its reader polls or loses partitions."""

    @property
    def is_open(self) -> bool: ...
    @property
    def is_due(self) -> bool: ...
    def commit(self) -> object: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Consumption:
    """One consumer of one topic, as a member of a group, or alone and committing nothing (`group` None). For one thread.

    Attributes:
        on_poll: Called before each poll.
        on_close: Called after the close.
    """

    def __init__(
        self,
        make: Callable[[logging.Logger], ConsumerHandle],
        topic: str,
        group: str | None,
        start: Start,
        commit_interval_ms: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.topic = topic
        self.group = group
        self.start = start
        self.commit_interval_ms = commit_interval_ms
        self.hop: HopSettling | None = None
        self.on_poll: Callable[[], None] = _nothing
        self.on_close: Callable[[], None] = _nothing
        self._clock = clock
        self._owned: dict[Tp, Ownership] = {}
        self._held_back: list[Ownership] = []
        self._failure: UowError | None = None
        self._closed = False
        self._handle = make(LogWatch().logger)
        try:
            partitions = check_topic(self._handle, topic)
            self._subscribe() if group is not None else self._assign_all(partitions)
        except BaseException:
            self._handle.close()
            raise

    @property
    def is_closed(self) -> bool:
        return self._closed

    def _subscribe(self) -> None:
        self._handle.subscribe(
            [self.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _assign_all(self, partitions: int) -> None:
        rows = [TopicPartition(self.topic, partition) for partition in range(partitions)]
        for row in rows:
            row.offset = self._first_offset(row)
            self._own(row)
        self._handle.assign(rows)

    # -- assignment ------------------------------------------------------------------------------------------------------

    def _on_assign(self, handle: Any, partitions: list[TopicPartition]) -> None:
        rows: list[TopicPartition] = []
        if partitions:
            try:
                rows = self._started(partitions)
            except UowError as failure:
                # raised by the poll that we are in, and by every later one: no partition is read
                self._failure = failure
            except KafkaException as failure:
                self._failure = ReconnectTimeoutError(
                    f"{self.topic}: committed offsets of group {self.group!r}: {failure.args[0].str()}"
                )
        for row in rows:
            self._own(row)
        self._handle.incremental_assign(rows)

    def _started(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        rows = self._handle.committed(partitions, STABLE_S)
        fresh = [row for row in rows if row.offset < 0]
        if fresh and self.start is Start.COMMITTED:
            names = ", ".join(f"{row.topic}/{row.partition}" for row in fresh)
            raise SubscriptionExpiredError(
                f"group {self.group!r} has no committed offset for {names}, and start is 'committed'"
            )
        for row in fresh:
            row.offset = self._first_offset(row)
            log.info("group %r begins %s/%d at its %s record", self.group, row.topic, row.partition, self.start)
        if (
            fresh and self.start is Start.LATEST
        ):  # else each rebalance before the first acknowledge would skip to the end again
            self._handle.commit(offsets=fresh, asynchronous=False)
        return rows

    def _first_offset(self, row: TopicPartition) -> int:
        if self.start is Start.EARLIEST:
            return OFFSET_BEGINNING
        try:
            return self._handle.get_watermark_offsets(TopicPartition(row.topic, row.partition), BLOCKING_S)[1]
        except KafkaException:
            if self.group is not None:
                raise
            return OFFSET_END

    def _own(self, row: TopicPartition) -> None:
        tp = (row.topic, row.partition)
        self._owned[tp] = Ownership(tp, row.offset, row.offset, earlier=read_counts(row.metadata))

    def _on_revoke(self, handle: Any, partitions: list[TopicPartition]) -> None:
        """Settles before returning: what is open is committed or aborted, then the partitions are dropped (ER-15)."""
        leaving = self._of(partitions)
        self._settle_hop()
        self._leave(leaving)
        self._drop(leaving)
        self._handle.incremental_unassign(partitions)

    def _on_lost(self, handle: Any, partitions: list[TopicPartition]) -> None:
        """Nothing is committed: someone else may have them already (ER-16)."""
        if self.hop is not None:
            self.hop.abort()
        self._drop(self._of(partitions))
        self._handle.incremental_unassign(partitions)

    def _of(self, partitions: list[TopicPartition]) -> list[Ownership]:
        return [self._owned[tp] for row in partitions if (tp := (row.topic, row.partition)) in self._owned]

    def _drop(self, ownerships: Iterable[Ownership]) -> None:
        for ownership in ownerships:
            del self._owned[ownership.tp]

    def _leave(self, ownerships: Iterable[Ownership]) -> None:
        """Commits what was deferred, and beside the committed offsets how often unacknowledged units were delivered (W-52, W-87)."""
        rows = []
        for ownership in ownerships:
            offset = max(ownership.acknowledged, ownership.deferred, ownership.base)
            deliveries = ownership.deliveries()
            if offset >= 0 and (deliveries or ownership.deferred >= 0):
                rows.append(TopicPartition(*ownership.tp, offset, write_counts(deliveries)))
        if not rows or self.group is None:
            return
        try:
            self._handle.commit(offsets=rows, asynchronous=False)
        except KafkaException as failure:
            log.info("%s: deliveries are not recorded: %s", self.topic, failure.args[0].str())

    # -- reading ---------------------------------------------------------------------------------------------------------

    def poll(self, timeout: float) -> tuple[ConsumedRecord, Ownership] | None:
        """The next record of a partition that is ours, or None.

        Raises:
            ClientClosedError: Closed.
            SubscriptionExpiredError: The committed offset is out of range, or there is none and `start` is `committed`.
            UowError: Others of `uow.errors.read_error`; and what committing an open hop met.
        """
        self._require_open()
        if self._failure is not None:
            raise self._failure
        self.on_poll()
        self._prepare()
        record = self._take(timeout)
        if self._failure is not None:
            raise self._failure
        if record is None:
            return None
        error = record.error()
        if error is not None:
            self._on_error(error)
            return None
        topic, partition, offset = coordinates(record)
        ownership = self._owned.get((topic, partition))
        if ownership is None:
            return None
        if ownership.base < 0:
            ownership.base = ownership.acknowledged = offset
        return record, ownership

    def _take(self, timeout: float) -> ConsumedRecord | None:
        hop = self.hop
        if hop is None or not hop.is_open:
            return self._handle.poll(timeout)
        if hop.is_due:
            hop.commit()
            self._go_back()
        record = self._handle.poll(0)
        if record is not None:
            return record
        if hop.is_open:  # nothing waits: do not let the open transaction wait either
            hop.commit()
        self._go_back()
        return self._handle.poll(timeout)

    def _prepare(self) -> None:
        self._go_back()
        late = [ownership for ownership in self._owned.values() if ownership.deferred >= 0]
        for ownership in late:
            self._commit(ownership, ownership.deferred)

    def _go_back(self) -> None:
        for ownership in self._owned.values():
            if ownership.rewind is None:
                continue
            try:
                self._handle.seek(TopicPartition(*ownership.tp, ownership.rewind))
            except KafkaException as failure:
                raise ReconnectGivenUpError(
                    f"cannot read {ownership.tp} from {ownership.rewind} again: {failure.args[0].str()}"
                ) from failure
            ownership.rewind = ownership.run = None

    def _on_error(self, error: KafkaError) -> None:
        raised = read_error(error, self.topic)
        if raised is not None:
            if not isinstance(raised, DestinationUnavailableError):
                self._failure = raised  # reading past it would skip records: every further call says so
            raise raised
        if error.code() != KafkaError._PARTITION_EOF:
            log.info("%s: %s", self.topic, error.str())

    def token(self) -> Any:
        """The group's metadata; taken together with a record and never refreshed for it (ER-14). None without a group."""
        return None if self.group is None else self._handle.consumer_group_metadata()

    def hold_back(self, ownership: Ownership) -> None:
        """Takes nothing more from a partition until `let_go`; the records that lie ready of it are fetched again then."""
        self._held_back.append(ownership)
        self._handle.pause([TopicPartition(*ownership.tp)])

    def let_go(self) -> None:
        """Takes again from the partitions held back that are still ours."""
        held, self._held_back = self._held_back, []
        rows = [TopicPartition(*each.tp) for each in held if self._owned.get(each.tp) is each]
        if rows:
            self._handle.resume(rows)

    # -- acknowledging ---------------------------------------------------------------------------------------------------

    def is_ours(self, ownership: Ownership, offset: int) -> bool:
        """Whether a record that was read under `ownership` may still be settled: its partition never left us, and it does not come again."""
        return self._owned.get(ownership.tp) is ownership and (ownership.rewind is None or offset <= ownership.rewind)

    def acknowledge(self, ownership: Ownership, offset: int) -> None:
        """Commits the position after `offset` and waits for the answer; all before it in that partition is acknowledged with it.

        In the middle of a rebalance the broker refuses commits; then it is done by the next `poll` or before the partition leaves.

        Raises:
            LostServerError: The partition was lost or moved, or went back before this record: it comes again (R-34).
            ReconnectTimeoutError: The broker did not answer; call again.
        """
        self._require_open()
        if self.hop is not None and self.hop.is_open:
            self.hop.commit()
        if not self.is_ours(ownership, offset):
            raise LostServerError(f"{ownership.tp[0]}/{ownership.tp[1]}/{offset} comes again")
        if offset < ownership.acknowledged:
            return
        self._commit(ownership, offset + 1)

    def _commit(self, ownership: Ownership, next_offset: int) -> None:
        ownership.deferred = -1
        if self.group is not None:
            try:
                self._handle.commit(offsets=[TopicPartition(*ownership.tp, next_offset)], asynchronous=False)
            except KafkaException as failure:
                self._on_refused(ownership, next_offset, failure)
        ownership.settle(next_offset)

    def _on_refused(self, ownership: Ownership, next_offset: int, failure: KafkaException) -> None:
        error: KafkaError = failure.args[0]
        told = f"{ownership.tp[0]}/{ownership.tp[1]} up to {next_offset}: {error.str()}"
        if error.code() == KafkaError.UNKNOWN_MEMBER_ID:
            raise LostServerError(told) from failure
        if error.code() not in STALE_GENERATION:
            raise ReconnectTimeoutError(told) from failure
        log.info("acknowledge waits for the rebalance: %s", told)
        ownership.deferred = next_offset

    def roll_back(self) -> None:
        """Goes back to what is not acknowledged: units handed out since then come again (W-52).

        Raises:
            ClientClosedError: Closed.
        """
        self._require_open()
        if self.hop is not None:
            self.hop.abort()
        for ownership in list(self._owned.values()):
            if ownership.acknowledged >= 0:
                self._owned[ownership.tp] = ownership.begun_again()

    def _require_open(self) -> None:
        if self._closed:
            raise ClientClosedError(f"the reader of {self.topic!r} is closed")

    def close(self) -> None:
        """Settles what is open and leaves the group. A second call does nothing. Raises nothing about the state of the connection."""
        if self._closed:
            return
        self._closed = True
        self._settle_hop()
        if self.hop is not None:
            self.hop.close()
        self._leave(self._owned.values())
        self._owned = {}
        self._handle.close()
        self.on_close()

    def _settle_hop(self) -> None:
        if self.hop is None or not self.hop.is_open:
            return
        try:
            self.hop.commit()
        except UowError as failure:
            log.warning("%s: the open hop was rolled back, its messages come again: %s", self.topic, failure)


_COUNTS = re.compile(r"d1(;[0-9]{1,19}:[0-9]{1,9})*", re.ASCII)


def write_counts(counts: dict[int, int]) -> str:
    """Deliveries by offset as text for the metadata of a committed offset: `d1;17:2;19:1`."""
    return "".join(["d1", *(f";{offset}:{count}" for offset, count in counts.items())]) if counts else ""


def read_counts(metadata: str | None) -> dict[int, int]:
    """What `write_counts` wrote; nothing of anybody else's text."""
    if not metadata or not _COUNTS.fullmatch(metadata):
        return {}
    pairs = (pair.split(":") for pair in metadata.split(";")[1:])
    return {int(offset): int(count) for offset, count in pairs}
