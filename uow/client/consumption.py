"""Reading as a member of a consumer group: the partitions assigned, their start positions, and the acknowledged ones.

Belongs here: assignment and revocation, start positions, acknowledging, going back. Does not belong here: the meaning of a record
(`uow.client.reader`), the state of one partition (`uow.client.ownership`), and transactions of a forwarding hop
(`uow.client.forwarding`), which are only asked to commit at revocation.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, Protocol

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition

from uow.client.blocking import Block, OrderBlocked, blocked_again
from uow.client.deliveries import Deliveries, read_steps
from uow.client.kafka_port import (
    BLOCKING_S,
    REFRESH_TIMEOUT_S,
    STEP_S,
    TEMPORARY_S,
    ConsumedRecord,
    ConsumerHandle,
    LogWatch,
    check_topic,
    coordinates,
    log_start,
)
from uow.client.library_errors import is_fatal, read_error
from uow.client.outgoing import OutgoingRecord
from uow.client.ownership import Due, Ownership, Tp
from uow.client.redelivery import HandedOut
from uow.client.session_state import Ended, Life, LostServer, Missed, Scope
from uow.client.strict_order import StrictReading
from uow.client.unfetchable import Gap
from uow.errors import (
    ClientClosedError,
    CommitOutcomeUnknownError,
    DestinationChangedError,
    DestinationUnavailableError,
    LostServerError,
    ReconnectGivenUpError,
    ReconnectTimeoutError,
    SubscriptionExpiredError,
    TransactionRolledBackError,
)
from uow.processor.engine.ports import StaleGeneration
from uow.processor.kafka.bounded import Call, returns
from uow.processor.kafka.coordinator_liveness import CoordinatorLiveness
from uow.processor.kafka.error_table import Meaning, meaning_of
from uow.processor.kafka.leader_epochs import CUT_OFF, UNKNOWN, known, was_cut
from uow.processor.kafka.topic_ids import MADE_AGAIN, TopicIds
from uow.processor.kafka.transactional_producer import LOST_EXCEPTION
from uow.schemas.error_classes import FencedError, UowError
from uow.topics.temporary import is_temporary

log = logging.getLogger(__name__)

NEVER: Final = 2**63
"""An offset that no record has."""

TOLD_S: Final = 1.0
"""Longest wait for the listener to have heard of lost partitions."""
PASSING: Final = (
    ReconnectTimeoutError,
    TransactionRolledBackError,
    CommitOutcomeUnknownError,
    DestinationUnavailableError,
)
"""Errors of a beginning that is made again."""
CLOSE_S: Final = 6.0
"""Longest that closing a reader takes."""
REBUILD_S: Final = 10.0
"""Shortest time between two fatal errors after which a reader goes on with a new handle."""
STABLE_S: Final = 30.0
"""Longest wait for stable committed offsets: the transaction of a forwarder that was killed ends after 10 s, found by a scan every 10 s (ER-10)."""


class Start(StrEnum):
    """The start position of a group without a committed offset (R-53)."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"
    """Refuse to start without one."""


def _nothing() -> None:
    """Most readers do nothing more at a close."""


def _log_gap(ownership: Ownership, gap: Gap) -> None:
    log.error("%s/%d: %s", *ownership.tp, gap)


def _no_moves(records: Sequence[OutgoingRecord], rows: Sequence[TopicPartition], group: Any) -> None:
    raise NotImplementedError("this reader gives nothing up")


def _without_order(handle: ConsumerHandle) -> StrictReading | None:
    """Most topics have no strict order."""
    return None


def _ignore_move(tp: Tp) -> None:
    """Most readers do nothing more when a partition moves."""


def _ignore_block(blocked: OrderBlocked) -> None:
    """It is in the log, and beside the committed offset."""


class HopTransaction(Protocol):
    """The calls of a reader to its forwarding hop, when it polls or loses partitions."""

    @property
    def is_open(self) -> bool: ...
    @property
    def is_due(self) -> bool: ...
    def covers(self, ownership: Ownership, offset: int) -> bool: ...
    def commit(self) -> object: ...
    def abort(self) -> None: ...
    def end_doubt(self) -> None: ...
    def close(self) -> None: ...


class Consumption:
    """One consumer of one topic, as a member of a group, or alone and committing nothing (`group` None). For one thread.

    Attributes:
        instance: Its group instance id; empty without one.
        is_doubtful: True while nobody knows if a commit of its position took place.
        strict: The rules of strict order, if the topic has it.
        keeps_order: True if what is forwarded must keep the order of the input: declared, or because that is strict (S-17).
        stand_in: The open transaction of a unit that stands for a message of this reader.
        move: Writes units that were given up to `D.errors` and commits positions, in one transaction.
        skip: Called with a gap that no consumer can fetch.
        on_move: Called with a partition that goes, or is read from another place.
        on_block: Called when a partition begins to stand still.
        on_close: Called after the close.
    """

    def __init__(
        self,
        make: Callable[[logging.Logger], ConsumerHandle],
        topic: str,
        group: str | None,
        start: Start,
        liveness: CoordinatorLiveness,
        commit_interval_ms: int = 0,
        read_strictly: Callable[[ConsumerHandle], StrictReading | None] = _without_order,
        *,
        life: Life,
        scope: Scope = Scope.READER,
        instance: str = "",
        ids: TopicIds | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.life, self.scope, self.instance, self._liveness, self._ids = life, scope, instance, liveness, ids
        self._stands_still = False
        self.topic = topic
        self._is_temporary, self._look_at = is_temporary(topic), 0.0
        self.group = group
        self.start = start
        self.commit_interval_ms = commit_interval_ms
        self.strict: StrictReading | None = None
        self.hop: HopTransaction | None = None
        self.move: Callable[[Sequence[OutgoingRecord], Sequence[TopicPartition], Any], None] = _no_moves
        self.skip: Callable[[Ownership, Gap], None] = _log_gap
        self.on_move: Callable[[Tp], None] = _ignore_move
        self.on_block: Callable[[OrderBlocked], object] = _ignore_block
        self.on_close: Callable[[], None] = _nothing
        self._owned: dict[Tp, Ownership] = {}
        self._handed_out: dict[Tp, HandedOut] = {}
        self._held_back: list[Ownership] = []
        self._failure: UowError | None = None
        self._clock = clock
        self._ended: Ended | None = None
        self._is_let_go = self._is_rebalancing = False
        self._late: Call | None = None
        self._guard = threading.RLock()
        self._out: tuple[Ownership, int] | None = None
        self.stand_in: object | None = None
        self.keeps_order = False
        self._make, self._read_strictly = make, read_strictly
        self._is_broken = self.is_doubtful = False
        self._in_doubt: list[Callable[[], None]] = []
        self._rebuilt_at = -REBUILD_S
        self._go_on_at: dict[Tp, int] = {}
        self._handle = make(LogWatch().logger)
        try:
            self._join()
        except BaseException:
            self._handle.close()
            raise

    def _join(self) -> None:
        partitions = check_topic(self._handle, self.topic, life=self.life)
        self.strict = self._read_strictly(self._handle)
        if self.strict is not None:
            self.keeps_order = True
            self.strict.first_starts(self._committed([TopicPartition(self.topic, each) for each in range(partitions)]))
        self._subscribe() if self.group is not None else self._assign_all(partitions)

    def _rebuild(self) -> None:
        """Goes on with a new handle, and tells what that means: first the transaction, then the handle, then the subscription (R-18).

        Raises:
            UowError: No broker answered in time, or the topic is gone; the next call tries again.
        """
        leaving = list(self._owned.values())
        if self.hop is not None:
            self.hop.abort()
        if self.group is None:
            self._go_on_at |= {each.tp: each.position for each in leaving}
        else:
            self._tell_lost(leaving)
        self._drop(leaving)
        old, self._handle = self._handle, self._make(LogWatch().logger)
        if not returns(old.close, CLOSE_S):
            log.info("%s: the consumer is left to close by itself", self.topic)
        self._join()
        self._is_broken, self.is_doubtful = False, bool(self._in_doubt)
        self.life.count(rebuilds=1)

    @property
    def is_closed(self) -> bool:
        return self._ended is not None

    def _subscribe(self) -> None:
        self._handle.subscribe(
            [self.topic],
            on_assign=partial(self._rebalance, self._on_assign),
            on_revoke=partial(self._rebalance, self._on_revoke),
            on_lost=partial(self._rebalance, self._on_lost),
        )

    def _rebalance(
        self, react: Callable[[list[TopicPartition]], None], handle: Any, partitions: list[TopicPartition]
    ) -> None:
        """Inside `poll` or `close`: until this returns, the library answers no other thread about this consumer.

        A handle that was replaced has nothing to say any more.
        """
        if handle is not self._handle:
            return
        self._is_rebalancing = True
        try:
            react(partitions)
        finally:
            self._is_rebalancing = False

    def _assign_all(self, partitions: int) -> None:
        rows = [TopicPartition(self.topic, partition) for partition in range(partitions)]
        for row in rows:
            row.offset = self._first_offset(row)
            self._go_on(row)
            self._own(row)
        self._handle.assign(rows)

    def _go_on(self, row: TopicPartition) -> None:
        """Where a handle before this one stopped; one that begins at the end says what it passes over instead (R-56)."""
        before = self._go_on_at.pop((row.topic, row.partition), -1)
        if before < 0:
            return
        if self.start is Start.EARLIEST or row.offset < 0:
            row.offset = before
        elif row.offset > before:
            self.life.tell(Missed(row.topic, row.partition, before, row.offset))

    # -- assignment ------------------------------------------------------------------------------------------------------

    def _on_assign(self, partitions: list[TopicPartition]) -> None:
        self._liveness.renew()
        rows: list[TopicPartition] = []
        if partitions:
            try:
                rows = self._started(partitions)
            except UowError as failure:
                # raised by the poll that we are in, and by every later one: no partition is read
                self._failure = failure
            except StaleGeneration as stale:
                log.info("%s: the group moved on while it began: %s", self.topic, stale)
            except KafkaException as failure:
                self._failure = ReconnectTimeoutError(
                    f"{self.topic}: where group {self.group!r} begins: {failure.args[0].str()}"
                )
        for row in rows:
            self._own(row)
        self._handle.incremental_assign(rows)
        if rows:
            self._handle.resume(rows)  # held back when it went, it would be so for ever

    def _committed(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Raises ReconnectTimeoutError."""
        try:
            return self._handle.committed(partitions, STABLE_S)
        except KafkaException as failure:
            text = f"{self.topic}: committed offsets of group {self.group!r}: {failure.args[0].str()}"
            raise ReconnectTimeoutError(text) from failure

    def _started(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        rows = self._committed(partitions)
        if self.strict is not None:
            return self._subscribed(self.strict, rows)
        fresh = [row for row in rows if row.offset < 0]
        ours = [f"{row.topic}/{row.partition}" for row in fresh if self._has_committed((row.topic, row.partition))]
        if ours:
            raise SubscriptionExpiredError(
                f"committed offsets of group {self.group!r} were deleted, or the group was: {', '.join(ours)}"
            )
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
            self._commit_offsets(fresh)
        return rows

    def _subscribed(self, strict: StrictReading, rows: list[TopicPartition]) -> list[TopicPartition]:
        """The start positions under strict order. That a partition is begun, and where, is recorded in one transaction (S-13)."""
        strict.refresh(is_new=True)
        fresh = {row.partition: row for row in strict.first_starts(rows)}
        if not fresh:
            return rows
        if self.start is Start.COMMITTED:
            names = ", ".join(f"{self.topic}/{number}" for number in fresh)
            raise SubscriptionExpiredError(
                f"group {self.group!r} has no committed offset for {names}, and start is 'committed'"
            )
        if self.start is Start.LATEST:
            for row in fresh.values():
                row.offset = self._first_offset(row)
        for row in fresh.values():
            log.info("group %r begins %s/%d at %d", self.group, row.topic, row.partition, row.offset)
        self.move(strict.subscriptions([*fresh.values()]), [*fresh.values()], self.token())
        return [fresh.get(row.partition, row) for row in rows]

    def _has_committed(self, tp: Tp) -> bool:
        before = self._handed_out.get(tp)
        return before is not None and before.is_committed

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
        steps = read_steps(row.metadata, self._end_of(row)) if row.metadata else ()
        kept = (row.offset, row.metadata or "")
        before = self._handed_out.setdefault(tp, HandedOut(unknown_until=0 if self.group is None else None))
        if self.group is not None:
            before.unknown_until = None  # others may have had it meanwhile
        if steps:
            before.last = max(before.last, steps[-1][0])
        found = Ownership(tp, row.offset, Deliveries(steps), kept, next=row.offset, before=before)
        found.see_epoch(row.leader_epoch)
        self._owned[tp] = found

    def _end_of(self, row: TopicPartition) -> int:
        """The end offset; without an answer, one that none reaches."""
        bounds = None
        with suppress(KafkaException):
            bounds = self._handle.get_watermark_offsets(TopicPartition(row.topic, row.partition), BLOCKING_S)
        return NEVER if bounds is None else bounds[1]

    def _on_revoke(self, partitions: list[TopicPartition]) -> None:
        """Settles before returning: what is open is committed or aborted, then the partitions are dropped (ER-15)."""
        leaving = self._of(partitions)
        self._commit_hop()
        self._leave(leaving)
        self._tell_lost(leaving)
        self._drop(leaving)
        self._unassign(partitions)

    def _on_lost(self, partitions: list[TopicPartition]) -> None:
        """Nothing is committed: someone else may have them already (ER-16). A loss event: the reader ends unless it is refreshed (R-03)."""
        lost = self._of(partitions)
        if self.hop is not None:
            self.hop.abort()
        if lost and not self.life.is_refreshed(self.scope):
            names = ", ".join(f"{topic}/{number}" for topic, number in sorted(each.tp for each in lost))
            self._ended = self._ended or self.life.lost_reader(
                f"the group gave {names} away: this reader was silent too long"
            )
        else:
            self._tell_lost(lost)
        self._drop(lost)
        self._unassign(partitions)

    def _unassign(self, partitions: list[TopicPartition]) -> None:
        """Gives them back. While brokers come and go the library may tell of a loss when it has let go of all of them already."""
        try:
            self._handle.incremental_unassign(partitions)
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError._INVALID_ARG:
                raise

    def _tell_lost(self, leaving: Sequence[Ownership]) -> None:
        """Tells the listener, before anything comes again, of partitions that go with messages that are not acknowledged (R-47, R-50)."""
        first = {each.tp: max(each.acknowledged, 0) for each in leaving if not each.is_all_acknowledged}
        if first and self.life.has_listener:
            self.life.tell(LostServer(self.life.epoch, tuple(sorted(first)), first)).wait(TOLD_S)

    def _of(self, partitions: list[TopicPartition]) -> list[Ownership]:
        return [self._owned[tp] for row in partitions if (tp := (row.topic, row.partition)) in self._owned]

    def _drop(self, ownerships: Iterable[Ownership]) -> None:
        for ownership in ownerships:
            self.on_move(ownership.tp)
            del self._owned[ownership.tp]
            self._held_back = [each for each in self._held_back if each is not ownership]

    def _leave(self, ownerships: Iterable[Ownership]) -> None:
        """Commits what was deferred, and beside the committed offsets how often unacknowledged units were delivered (W-52, W-87)."""
        if self.group is None:
            return
        if self.is_doubtful or (self.hop is not None and self.hop.is_open):
            return  # a commit that goes on must not be written over
        for ownership in ownerships:
            ownership.stop()
            try:
                if ownership.deferred >= 0:
                    self._commit(ownership, ownership.deferred)
                if ownership.deferred < 0 and ownership.acknowledged >= 0:
                    self._record(ownership)
            except UowError as failure:
                log.info("%s: not recorded, units come again: %s", self.topic, str(failure))
            except KafkaException as failure:
                log.info("%s: deliveries are not recorded: %s", self.topic, failure.args[0].str())

    # -- reading ---------------------------------------------------------------------------------------------------------

    def poll(self, timeout: float) -> tuple[ConsumedRecord, Ownership] | None:
        """The next record of a partition that is ours, or None.

        Raises:
            ClientClosedError: Closed.
            StaleConnectionError: A loss event ended it.
            SubscriptionExpiredError: The committed offset is out of range, or there is none and `start` is `committed`.
            UowError: Others of `uow.client.library_errors.read_error`; and what committing an open hop met.
        """
        with self._guard:
            self.require_open()
            self._raise_failure()
            if self._is_broken:
                self._rebuild()
            if self.is_doubtful:
                self._learn()
            self._go_on_if_heard()
            self._look_for_topic()
            self._keep_order()
            self._prepare()
            record = self._take(timeout)
            self.require_open()
            self._raise_failure()
            return None if record is None else self._accept(record)

    def _raise_failure(self) -> None:
        """Raises what ended reading, at every call; what passes, once: then the reader begins on a new handle."""
        failure = self._failure
        if isinstance(failure, PASSING):
            self._failure, self._is_broken = None, True
        if failure is not None:
            raise failure

    def doubt(self, leave: Callable[[], Callable[[], None]] | None = None) -> None:
        """Nobody knows if a commit took place: before anything else is read, the committed offsets tell (ER-12).

        Args:
            leave: Leaves the transaction of that commit to this reader; what it returns ends it. None: it is that of the hop.
        """
        if self.group is None:
            return
        self.is_doubtful = True
        if leave is not None:
            self._in_doubt.append(leave())

    def _learn(self) -> None:
        """Raises UowError: nobody tells yet; the next call asks again."""
        if self.hop is not None:
            self.hop.end_doubt()
        while self._in_doubt:
            self._in_doubt[0]()
            del self._in_doubt[0]
        for row in self._committed([TopicPartition(*tp) for tp in self._owned]):
            before = self._owned[row.topic, row.partition]
            if before.acknowledged < 0:
                continue  # nothing of it was handed out
            after = self._owned[before.tp] = before.begun_again()
            if row.offset >= 0:
                after.committed(row)
        self.is_doubtful = False

    def _accept(self, record: ConsumedRecord) -> tuple[ConsumedRecord, Ownership] | None:
        error = record.error()
        if error is not None:
            self._on_error(error, record)
            return None
        topic, partition, offset = coordinates(record)
        ownership = self._owned.get((topic, partition))
        if ownership is None:
            return None
        if self.is_cut_off:
            self._stand_still(ownership, offset)
            return None
        ownership.is_at_end = False
        epoch = record.leader_epoch()
        if not ownership.is_same_log:
            self._compare(ownership, known(epoch))
        ownership.see_epoch(epoch)
        if ownership.before.unknown_until is None:
            ownership.before.unknown_until = self._end_of(TopicPartition(topic, partition))
        if ownership.gap is not None:
            self._try_next_offset(ownership, ownership.gap, can_be_read=True)
            return None
        if ownership.acknowledged < 0:
            ownership.acknowledged = offset
        ownership.next = offset + 1
        return record, ownership

    def _compare(self, ownership: Ownership, epoch: int) -> None:
        """At the first record of an assignment, where the leader was another one when its position was committed.

        Raises:
            SubscriptionExpiredError: The log was cut off before that position.
            ReconnectTimeoutError: No broker tells.
        """
        if 0 <= ownership.epoch < epoch:
            topic, partition = ownership.tp
            make = partial(self._make, LogWatch().logger)
            try:
                is_cut = was_cut(make, ownership.tp, ownership.acknowledged, ownership.epoch)
            except KafkaException as failure:
                ownership.go_back(ownership.acknowledged)
                raise ReconnectTimeoutError(f"{topic}/{partition}: {failure.args[0].str()}") from failure
            if is_cut:
                raise self._failed(
                    SubscriptionExpiredError(f"{topic}/{partition}: {CUT_OFF.format(ownership.acknowledged)}")
                )
        ownership.is_same_log = True

    def _failed(self, failure: UowError) -> UowError:
        """An error behind which nothing is read, for reading past it would skip records: every further call says so."""
        self._failure = failure
        self.life.tell(failure)
        return failure

    def _look_for_topic(self) -> None:
        """Asks for a temporary destination now and then: the library says nothing of one that is gone, and would wait for it (R-10).

        Raises:
            DestinationChangedError: It is gone.
        """
        if not self._is_temporary or self._clock() < self._look_at or not self.life.is_connected:
            return
        self._look_at = self._clock() + TEMPORARY_S
        with suppress(ReconnectTimeoutError):
            try:
                check_topic(self._handle, self.topic, REFRESH_TIMEOUT_S)
            except DestinationUnavailableError as gone:
                text = f"{self.topic} went with the connection that made it, or was deleted"
                self._failure = DestinationChangedError(text)
                raise self._failure from gone

    # -- a coordinator that is silent ----------------------------------------------------------------------------------------

    @property
    def is_cut_off(self) -> bool:
        """True while the group's coordinator is silent for so long that another member may soon have our partitions."""
        return self._liveness.is_lost

    def _stand_still(self, ownership: Ownership, offset: int) -> None:
        """Hands out nothing more, for the partitions may be given away soon; this record is read again if they are not (S-29).

        Asked once a record is there, since the statistics that came while the application worked are heard before it.
        """
        if not self._stands_still:
            log.warning("%s: %s: nothing is handed out until it answers", self.topic, self._liveness.complaint)
        self._stands_still = True
        self._handle.pause([TopicPartition(*tp) for tp in self._owned])
        self._seek(ownership, offset)

    def _go_on_if_heard(self) -> None:
        if not self._stands_still or self.is_cut_off:
            return
        log.warning("%s: the group's coordinator answers again", self.topic)
        self._stands_still = False
        held = {each.tp for each in self._held_back}
        self._handle.resume([TopicPartition(*tp) for tp in self._owned if tp not in held])

    # -- strict order, and what stands still -------------------------------------------------------------------------------

    def _keep_order(self) -> None:
        """Looks after strict order, else if it is still the same topic, and lets partitions go on whose record is to be tried again."""
        if self.strict is None:
            self._require_same_topic()
        else:
            if not self._owned:
                self.strict.require_place()
            try:
                self.strict.refresh()
            except DestinationChangedError as failure:
                self._failure = failure
                raise
        now = self._clock()
        for ownership in self._owned.values():
            if ownership.block is not None and ownership.block.retry_at <= now:
                # once: the partition may be held back for another reason before the record is acknowledged
                ownership.block = replace(ownership.block, retry_at=math.inf)
                self.let_go(ownership.tp)

    def _require_same_topic(self) -> None:
        if self._ids is None or self._is_temporary:
            return
        self._ids.look([self.topic])
        if self._ids.changed:
            raise self._failed(DestinationChangedError(f"{self.topic}: {MADE_AGAIN}"))

    def before_commit(self) -> None:
        """Under strict order no position is committed to a topic that was made again; and none while an earlier commit may still take it back.

        Raises:
            DestinationChangedError: The topic was made again.
            ReconnectTimeoutError: A commit that was not answered in time is still under way.
        """
        if self.strict is not None:
            self.strict.before_commit()
        limit = 0.0 if self._is_rebalancing else self.life.waits.answer_s
        if self._late is not None and not self._late.is_over(limit):
            raise ReconnectTimeoutError(f"{self.topic}: an earlier commit of group {self.group!r} is still under way")

    def hand_out(self, ownership: Ownership, first: int) -> None:
        """Under strict order the next one is not handed out before this one is done with."""
        if self.strict is not None:
            self._out = ownership, first

    def take_back(self) -> None:
        """Under strict order, what was handed out and is not done with comes again: nothing passes it (S-06)."""
        if self._out is None:
            return
        (ownership, first), self._out = self._out, None
        if ownership.acknowledged > first or not self.is_ours(ownership, first) or ownership.rewind is not None:
            return
        if self.hop is not None and self.hop.covers(ownership, first):
            return
        log.warning("%s/%d/%d was not acknowledged: it comes again, for nothing may pass it", *ownership.tp, first)
        ownership.go_back(first)

    def block(self, ownership: Ownership, position: int, cause: str) -> None:
        """The partition stands at a record until it is tried again; the others are read on. Says so beside the committed offset."""
        ownership.go_back(position)
        is_stopped = self.strict is not None and self.strict.rules.auto_stop_on_failure
        block = blocked_again(ownership.block, position, cause, is_stopped, time.time_ns() // 1_000_000, self._clock())
        ownership.block = block
        self.hold_back(ownership)
        if block.failures == 1:
            blocked = OrderBlocked(*ownership.tp, position, block.cause, is_stopped)
            log.error("%s", blocked)
            self.on_block(blocked)
        if self.group is not None and ownership.acknowledged >= 0 and ownership.deferred < 0:
            with suppress(KafkaException):  # in the middle of a rebalance, or without a broker: it stands all the same
                self._record(ownership)

    def resume(self) -> None:
        """Tries records again that partitions stand at, at once."""
        for ownership in self._owned.values():
            if ownership.block is not None:
                ownership.block = replace(ownership.block, retry_at=self._clock())

    @property
    def blocks(self) -> Mapping[Tp, Block]:
        """The partitions that stand still."""
        return {tp: each.block for tp, each in self._owned.items() if each.block is not None}

    def pass_over(self, ownership: Ownership, position: int, records: Sequence[OutgoingRecord]) -> None:
        """Goes forward past what is not acknowledged; the records that say so are written in the same transaction."""
        ownership.epoch, ownership.is_same_log = UNKNOWN, True  # nobody knows that of the record before
        self.move(records, [ownership.row(position)], self.token())
        ownership.mark_acknowledged(position)
        ownership.kept = (position, "")
        ownership.go_back(position)
        self.let_go(ownership.tp)

    def owned(self, topic: str, partition: int) -> Ownership:
        """The ownership of a partition.

        Raises:
            LostServerError: It is not ours.
        """
        if (topic, partition) not in self._owned:
            raise LostServerError(f"{topic}/{partition} is not read here")
        return self._owned[topic, partition]

    def _take(self, timeout: float) -> ConsumedRecord | None:
        hop = self.hop
        if hop is None or not hop.is_open:
            return self._polled(timeout)
        if hop.is_due:
            hop.commit()
            self._go_back()
        record = self._polled(0)
        if record is not None:
            return record
        if hop.is_open:  # nothing waits: do not let the open transaction wait either
            hop.commit()
        self._go_back()
        return self._polled(timeout)

    def _polled(self, timeout: float) -> ConsumedRecord | None:
        try:
            return self._handle.poll(timeout)
        except (
            SystemError
        ) as failure:  # Ctrl-C: confluent_kafka 2.16 looks for signals inside `poll`, and loses the exception
            if LOST_EXCEPTION not in str(failure):
                raise
            raise KeyboardInterrupt from failure

    def _prepare(self) -> None:
        self._go_back()
        late = [ownership for ownership in self._owned.values() if ownership.deferred >= 0]
        for ownership in late:
            self._commit(ownership, ownership.deferred)

    def _go_back(self) -> None:
        for ownership in self._owned.values():
            if ownership.rewind is None:
                continue
            self._seek(ownership, ownership.rewind)
            ownership.gone_back()
            self.on_move(ownership.tp)

    def _on_error(self, error: KafkaError, record: ConsumedRecord) -> None:
        meaning = meaning_of(error)
        if meaning is Meaning.END:
            ownership = self._owned.get((record.topic() or "", record.partition() or 0))
            if ownership is not None:
                ownership.is_at_end = True
                if ownership.before.unknown_until is None:  # what comes from here on was not there yet
                    ownership.before.unknown_until = record.offset()
            return
        if meaning is Meaning.UNFETCHABLE:
            self._on_unfetchable(error, record)
            return
        raised = read_error(error, self.topic)
        if isinstance(raised, FencedError):
            self.fenced(raised)
        elif isinstance(raised, ReconnectGivenUpError) and is_fatal(error) and self._may_rebuild():
            log.warning("%s: goes on with a new consumer: %s", self.topic, raised)
            self._is_broken = True
            return
        elif raised is not None and not isinstance(raised, DestinationUnavailableError):
            self._failed(raised)
        if raised is not None:
            raise raised
        log.info("%s: %s", self.topic, error.str())

    def _may_rebuild(self) -> bool:
        """A handle that fails again at once would do so for ever."""
        now, before = self._clock(), self._rebuilt_at
        self._rebuilt_at = now
        return self.life.is_refreshed(self.scope) and now - before >= REBUILD_S

    def _on_unfetchable(self, error: KafkaError, record: ConsumedRecord) -> None:
        ownership = self._owned.get((record.topic() or "", record.partition() or 0))
        if ownership is None:
            return
        if ownership.gap is not None:
            self._try_next_offset(ownership, ownership.gap, can_be_read=False)
            return
        start, bounds = 0, None
        with suppress(KafkaException):
            start = log_start(self._handle, ownership.tp)
            bounds = self._handle.get_watermark_offsets(TopicPartition(*ownership.tp), BLOCKING_S)
        if bounds is not None:  # else it fails again soon
            ownership.gap = Gap(max(ownership.next, start), bounds[1], error.str())
            self._try_next_offset(ownership, ownership.gap, can_be_read=False)

    def _try_next_offset(self, ownership: Ownership, gap: Gap, can_be_read: bool) -> None:
        """Seeks to the next offset to try behind a gap, or to the first readable one if it is found."""
        gap.learn(can_be_read)
        self._seek(ownership, gap.at)
        if not gap.is_known:
            return
        ownership.gap, ownership.next = None, gap.at
        if ownership.acknowledged < 0:
            ownership.acknowledged = gap.first
        self.skip(ownership, gap)

    def _seek(self, ownership: Ownership, offset: int) -> None:
        try:
            self._handle.seek(ownership.place(offset))
        except KafkaException as failure:
            raise ReconnectGivenUpError(
                f"cannot read {ownership.tp} from {offset} again: {failure.args[0].str()}"
            ) from failure

    def has_topic(self, topic: str) -> bool:
        """True if there is such a topic, as far as this consumer may know.

        Raises:
            ReconnectTimeoutError: No broker answered in time.
        """
        try:
            return check_topic(self._handle, topic) > 0
        except DestinationUnavailableError:
            return False

    def token(self) -> Any:
        """The group's metadata; taken together with a record and never refreshed for it (ER-14). None without a group."""
        return None if self.group is None else self._handle.consumer_group_metadata()

    def hold_back(self, ownership: Ownership) -> None:
        """Takes nothing more from a partition until `let_go`; the records that lie ready of it are fetched again then."""
        self._held_back.append(ownership)
        self._handle.pause([TopicPartition(*ownership.tp)])

    def let_go(self, tp: Tp) -> None:
        """Takes again from a partition that was held back, if it is still ours."""
        held = [each for each in self._held_back if each.tp == tp]
        self._held_back = [each for each in self._held_back if each.tp != tp]
        if held and tp in self._owned:
            self._handle.resume([TopicPartition(*tp)])

    # -- acknowledging ---------------------------------------------------------------------------------------------------

    def is_ours(self, ownership: Ownership, offset: int) -> bool:
        """True if a record that was read under `ownership` may still be acknowledged: its partition never left us, and it does not come again."""
        return self._owned.get(ownership.tp) is ownership and (ownership.rewind is None or offset <= ownership.rewind)

    def acknowledge(self, ownership: Ownership, offset: int) -> None:
        """Commits the position after `offset` and waits for the answer; all before it in that partition is acknowledged with it.

        Units given up before it go to `D.errors` in the same transaction. In the middle of a rebalance the broker refuses commits; then it
        is done by the next `poll` or before the partition leaves.

        Raises:
            LostServerError: The partition was lost or moved, or went back before this record: it comes again (R-34).
            ReconnectTimeoutError: The broker did not answer; call again.
            UowError: Units given up could not be written; call again, else they come again with all that is not acknowledged.
        """
        self.require_open()
        if self.hop is not None and self.hop.is_open:
            self.hop.commit()
        if not self.is_ours(ownership, offset):
            raise LostServerError(f"{ownership.tp[0]}/{ownership.tp[1]}/{offset} comes again")
        if offset < ownership.acknowledged:
            return
        self._commit(ownership, offset + 1)

    def _commit(self, ownership: Ownership, next_offset: int) -> None:
        if self.group is None:
            ownership.mark_acknowledged(next_offset)
            return
        try:
            for due in ownership.due(next_offset):
                self._commit_due(ownership, due)
            ownership.deferred = -1
        except KafkaException as failure:
            self._on_refused(ownership, next_offset, failure)
        except StaleGeneration as stale:
            self._defer(ownership, next_offset, str(stale))

    def _commit_due(self, ownership: Ownership, due: Due) -> None:
        self.before_commit()
        row = ownership.row(due.position)
        if not due.moves:
            self._commit_offsets([row])
        else:
            try:
                self.move(due.records, [row], self.token())
            except CommitOutcomeUnknownError:
                if not self._is_committed(row):
                    raise
        ownership.committed(row)

    def _is_committed(self, row: TopicPartition) -> bool:
        """True if a commit that was not answered took place, as far as the broker answers now."""
        with suppress(KafkaException):
            (found,) = self._handle.committed([TopicPartition(row.topic, row.partition)], STABLE_S)
            return bool(found.offset >= row.offset)
        return False

    def write_dead_letters(self) -> None:
        """Writes units that were given up, and wait for no acknowledgement, to `D.errors`.

        Raises:
            UowError: They could not be written: they come again.
        """
        for ownership in list(self._owned.values()):
            if ownership.waiting and ownership.deferred < 0 and ownership.rewind is None:
                self._write_dead_letters(ownership)

    def _write_dead_letters(self, ownership: Ownership) -> None:
        for due in ownership.due(ownership.acknowledged):
            if not due.moves:
                return
            try:
                self._commit_due(ownership, due)
            except StaleGeneration as stale:
                log.info("the group moved on, units that were given up come again: %s", str(stale))
                ownership.go_back(due.moves[0].first)
                return
            except UowError:
                ownership.go_back(due.moves[0].first)
                raise

    def record_deliveries(self, ownership: Ownership) -> bool:
        """Commits how often units were delivered, before one more is (W-87).

        Returns:
            False in the middle of a rebalance: the unit cannot be counted now.

        Raises:
            ReconnectTimeoutError: The broker did not answer.
        """
        if ownership.deferred >= 0:
            return False
        try:
            self._record(ownership)
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            if meaning_of(error) is Meaning.STALE_GENERATION:
                return False
            raise ReconnectTimeoutError(f"deliveries are not recorded: {error.str()}") from failure
        return True

    def _record(self, ownership: Ownership) -> None:
        row = ownership.row(ownership.acknowledged)
        if (row.offset, row.metadata or "") != ownership.kept:
            self._commit_offsets([row])
            ownership.committed(row)

    def _commit_offsets(self, rows: list[TopicPartition]) -> None:
        """Commits, and waits no longer than a call may: the library's own call has no time-out (R-19).

        Raises:
            KafkaException: The library's, or `_TIMED_OUT`.
        """
        if self._is_rebalancing:
            self._handle.commit(offsets=rows, asynchronous=False)
            return
        limit = self.life.waits.answer_s
        if self._late is None or self._late.is_over(limit):
            self._late = Call(lambda: self._handle.commit(offsets=rows, asynchronous=False))
            if self._late.returned(limit):
                return
        text = f"no answer within {limit:g} s from {self.life.servers}"
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, text, retriable=True))

    def _on_refused(self, ownership: Ownership, next_offset: int, failure: KafkaException) -> None:
        error: KafkaError = failure.args[0]
        text = f"{ownership.tp[0]}/{ownership.tp[1]} up to {next_offset}: {error.str()}"
        if error.code() in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError._FATAL):  # the next call says which fatal error
            raise LostServerError(text) from failure
        if meaning_of(error) is not Meaning.STALE_GENERATION:
            raise ReconnectTimeoutError(text) from failure
        self._defer(ownership, next_offset, text)

    def _defer(self, ownership: Ownership, next_offset: int, why: str) -> None:
        log.info("acknowledge waits for the rebalance: %s", why)
        ownership.deferred = next_offset
        ownership.mark_acknowledged(next_offset)

    def handling(self) -> AbstractContextManager[object]:
        """Whoever ends this reader waits for a handler, or whatever uses its handles, that runs inside; call `require_open` first: then none starts after the end (R-49)."""
        return self._guard

    def roll_back(self) -> None:
        """Goes back to what is not acknowledged: units handed out since then come again (W-52).

        Raises:
            ClientClosedError: Closed.
        """
        self.require_open()
        if self.hop is not None:
            self.hop.abort()
        for ownership in list(self._owned.values()):
            if ownership.acknowledged >= 0:
                self._owned[ownership.tp] = ownership.begun_again()

    def require_open(self) -> None:
        """Raises what a call on an ended reader raises, with the event that ended it, and when.

        Raises:
            ClientClosedError: Closed.
            StaleConnectionError: A loss event ended it.
        """
        if self._ended is not None:
            self._let_go(CLOSE_S if self.life.is_connected else 0.0)  # where whoever ended it could not
            raise self._ended.error(f"the reader of {self.topic!r}")

    def left_behind(self, ended: Ended) -> None:
        """In a child of fork: whatever a thread of the parent had in hand, nothing of it is touched any more."""
        self._guard = threading.RLock()
        self._ended, self._is_let_go = ended, True

    def fenced(self, failure: FencedError) -> None:
        """Somebody newer forwards or reads under our name: this reader ends and leaves the group, so that the newer one gets its partitions (R-26)."""
        self._ended = self._ended or self.life.lost_reader(str(failure), FencedError)
        if not self._is_rebalancing:  # else the poll that we are in does it
            self.end(self._ended, STEP_S)

    def close(self) -> None:
        """Settles what is open and leaves the group. A second call does nothing. Raises nothing about the state of the connection."""
        self.end(self.life.closed_now(), CLOSE_S)

    def end(self, ended: Ended, timeout: float) -> None:
        """Ends it in any thread: waits for the call that is under way in its own, then settles, if brokers are there, and leaves the group."""
        self._ended = self._ended or ended
        if self._guard.acquire(timeout=max(timeout, 2 * STEP_S)):  # else its own thread does it, in its next call
            try:
                self._let_go(timeout)
            finally:
                self._guard.release()

    def _let_go(self, timeout: float) -> None:
        if self._is_let_go or self._ended is None:
            return
        self._is_let_go = True
        if self.life.is_connected and self._ended.kind is ClientClosedError:
            self._commit_hop()
            self._leave(self._owned.values())
        if self.hop is not None:
            self.hop.close()
        self._owned = {}
        self.life.forget(self)
        if not returns(self._handle.close, max(timeout, STEP_S)):
            log.info("%s: the consumer is left to close by itself", self.topic)
        self.on_close()

    def _commit_hop(self) -> None:
        if self.hop is None or not self.hop.is_open:
            return
        try:
            self.hop.commit()
        except UowError as failure:
            log.warning("%s: the open hop was rolled back, its messages come again: %s", self.topic, failure)
