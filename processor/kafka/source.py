"""The engine's source on librdkafka: a member of the consumer group.

Belongs here: rebalances, polls, end offsets, the consumer's errors. Does not belong here: handling records
(`uow.processor.engine.driver`), and reading logs for restore (`uow.processor.kafka.log_reader`).

A poll waits for its first record, takes what lies there and `GRACE_S` for company, and goes: a drained input is committed at once. Only
when the poll before was full, that is under backlog, it may wait up to `commit_interval_ms` to fill.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, cast

import confluent_kafka as ck

from uow.processor.engine.ports import (
    Blocked,
    Doubt,
    EndQuestion,
    Poll,
    RawRecord,
    Released,
    Tp,
)
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.consumed import apart, by_partition
from uow.processor.kafka.coordinator_liveness import CoordinatorLiveness
from uow.processor.kafka.error_table import Meaning, meaning_of
from uow.processor.kafka.leader_epochs import CUT_OFF, TRUNCATED, LeaderEpochs, known, was_cut
from uow.processor.kafka.log_ends import monotonic_ms
from uow.processor.kafka.log_offsets import LogOffsets
from uow.processor.kafka.outage import Outage
from uow.processor.kafka.replicated_ends import ReplicatedEnds
from uow.processor.kafka.topic_ids import MADE_AGAIN, TopicIds
from uow.processor.kafka.worker_clock import WorkerClock
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.schemas.error_classes import FencedError

log = logging.getLogger("uow.source")

GRACE_S = 0.002
"""Seconds that a poll without backlog waits for more records after its first one."""

TAKEN_AT_ONCE = 32
"""Records that are taken from the library in one call. It unpacks their headers then, to some ninety bytes each, and nobody can see before how many there are."""

UNPACK_CPU_S = 0.02
"""CPU seconds of a poll in the library, after which it is handed over as it is: 5,000 ordinary records take a fifth of that, half a million headers all of it."""

SEEK_S = 5.0

_GUIDE = "See the operations guide, section 'A partition is blocked'"


class KafkaSource:
    """Port `Source`. Every call from one thread; callbacks run inside `control`, `read` and `close`.

    Args:
        clients: Makes the handles.
        settings: The group, and the interval to fill a poll.
        clock: Is shown what is read, and says when an end offset is asked for.
        epochs: Are shown what is read, and know what was committed.
        ids: Of the topics; None: nobody asks for them.

    Attributes:
        stable_lags: How far the last stable offset is behind the end offset, by partition, as of the last statistics (W-50).
        held_back: The partitions whose readable records are all read, while an open transaction holds back others: by the offset at which it
            began, since when, epoch ms.
        ends: End offset by partition, as of the same.
    """

    def __init__(
        self,
        clients: Clients,
        settings: WorkerSettings,
        clock: WorkerClock,
        epochs: LeaderEpochs | None = None,
        ids: TopicIds | None = None,
    ) -> None:
        self._clients, self._clock, self._ids = clients, clock, ids
        self._epochs = epochs or LeaderEpochs()
        self._same_log: set[Tp] = set()
        self.stable_lags: Mapping[Tp, int] = {}
        self.held_back: dict[Tp, tuple[int, int]] = {}
        self.ends: Mapping[Tp, int] = {}
        self._liveness = CoordinatorLiveness(settings.session_timeout_ms)
        self._stands_still = False
        self._outage = Outage()
        self._fill_s = settings.commit_interval_ms / 1000
        self._consumer: ck.Consumer | None = None
        self._ends = ReplicatedEnds(LogOffsets(clients))
        self._stash: list[Any] = []
        self._was_full = False
        self._topics: list[str] = []
        self._owned: set[Tp] = set()
        self._delivered: dict[Tp, int] = {}
        self._reached: dict[Tp, int] = {}

    def open(
        self,
        topics: Sequence[str],
        on_assign: Callable[[list[Tp]], None],
        on_revoke: Released,
        on_lost: Released,
    ) -> None:
        """Joins the group."""
        self._topics = list(topics)
        consumer = self._consumer = self._clients.group_consumer(self._on_statistics)

        def assign(_: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
            self._liveness.renew()
            on_assign([Tp(each.topic, each.partition) for each in partitions])
            consumer.incremental_assign([])  # accepted; what is read, and from where, is said in `begin`

        def release(notify: Released, partitions: list[ck.TopicPartition]) -> None:
            tps = notify([Tp(each.topic, each.partition) for each in partitions])
            ours = [tp for tp in tps if tp in self._owned]  # one that is not restored, or cannot be, is not read yet
            self._owned.difference_update(tps)
            for tp in tps:
                self._forget(tp, -1)
            consumer.incremental_unassign([ck.TopicPartition(*tp) for tp in ours])

        consumer.subscribe(
            self._topics,
            on_assign=assign,
            on_revoke=lambda _, partitions: release(on_revoke, partitions),
            on_lost=lambda _, partitions: release(on_lost, partitions),
        )

    def _on_statistics(self, text: str) -> None:
        statistics = json.loads(text)
        self._liveness.on_statistics(statistics)
        partitions = {
            Tp(name, int(number)): each
            for name, topic in statistics["topics"].items()
            for number, each in topic["partitions"].items()
            if each["ls_offset"] >= 0
        }
        self.stable_lags = {tp: max(0, each["hi_offset"] - each["ls_offset"]) for tp, each in partitions.items()}
        self.ends = {tp: each["hi_offset"] for tp, each in partitions.items()}
        now, before = time.time_ns() // 1_000_000, self.held_back
        self.held_back = {
            tp: _since(before.get(tp), each["ls_offset"], now)
            for tp, each in partitions.items()
            if each["ls_offset"] < each["hi_offset"]
            and each["next_offset"] >= each["ls_offset"]
            and not each["fetchq_cnt"]
        }

    def begin(self, positions: Mapping[Tp, int]) -> None:
        """Fetches these from now on. To the group the partitions of `D.commands` among them are not there.

        Resumes them as well: the library keeps in mind that one was paused when it went, and would never fetch it again.
        """
        self._owned.update(positions)
        for tp, offset in positions.items():
            self._forget(tp, offset)
        assigned = [self._epochs.place(tp, offset) for tp, offset in positions.items()]
        self._group.incremental_assign(assigned)
        if assigned:
            self._group.resume(assigned)

    def control(self, timeout: float) -> None:
        """Serves rebalances. A record that comes along is kept for the next read."""
        self._ends.send()
        message = self._group.poll(timeout)
        if message is not None:
            self._stash.append(message)

    def read(self, limit: int, timeout: float) -> Poll | None:
        """At most `limit` records; see the module's text for how long it waits. None while the coordinator is silent (ER-18)."""
        if self._is_cut_off():
            self.control(timeout)
            return None
        if self._ids is not None:
            self._ids.look(self._topics)
        messages, self._stash = self._stash, []
        consumer = self._group
        if not messages:
            first = consumer.poll(timeout)
            if first is None:
                self._was_full = False
                return None
            messages = [first]
        if len(messages) < limit:
            self._take(messages, limit, self._fill_s if self._was_full else GRACE_S)
        self._was_full = len(messages) >= limit
        return self._sorted(messages)

    def _take(self, messages: list[Any], limit: int, seconds: float) -> None:
        """Adds what lies there and what comes within that time. The library unpacks headers as it hands records over: see `TAKEN_AT_ONCE`."""
        until, began = time.monotonic() + seconds, time.thread_time()
        while (wanted := min(TAKEN_AT_ONCE, limit - len(messages))) > 0:
            taken = self._group.consume(wanted, max(0.0, until - time.monotonic()))
            messages += taken
            if len(taken) < wanted or time.thread_time() - began > UNPACK_CPU_S:
                return

    def _sorted(self, messages: Sequence[Any]) -> Poll | None:
        records: dict[Tp, list[RawRecord]] = {}
        trouble: dict[Tp, Blocked] = {}
        found, events = apart(messages)
        for event in events:
            self._on_error(event, event.error(), trouble)
        for tp, stretch in by_partition(found):
            if tp in self._owned:
                records.setdefault(tp, []).extend(stretch)
        for tp in records.keys() - self._same_log:
            self._compare(tp, records, trouble)
        if self._ids is not None and self._ids.changed:
            self._refuse_new_topics(self._ids.changed, records, trouble)
        for tp, rows in records.items():
            last: Any = rows[-1]
            self._delivered[tp] = last.offset() + 1
            self._epochs.see(tp, last.offset(), last.leader_epoch())
            self._clock.see(tp, last.timestamp()[1])
        if not records and not trouble:
            return None
        return Poll(records, self._group.consumer_group_metadata(), trouble)

    def _compare(self, tp: Tp, records: dict[Tp, list[RawRecord]], trouble: dict[Tp, Blocked]) -> None:
        """At the first records of a partition, where the leader was another one when its position was committed (`leader_epochs`)."""
        position, first = self._delivered.get(tp, 0), cast(Any, records[tp][0])
        before = self._epochs.before(tp, position)
        if 0 <= before < known(first.leader_epoch()):
            try:
                if was_cut(partial(self._clients.log_consumer, "read_committed"), tp, position, before):
                    trouble[tp] = Blocked(f"{tp.topic}/{tp.partition}: {CUT_OFF.format(position)}. {_GUIDE}")
            except ck.KafkaException as failure:
                text = failure.args[0].str()
                trouble[tp] = Blocked(
                    f"{tp.topic}/{tp.partition}: what lies before the committed position cannot be read: {text}"
                )
        if tp in trouble:
            del records[tp]
        else:
            self._same_log.add(tp)

    @staticmethod
    def _refuse_new_topics(
        changed: Collection[str], records: dict[Tp, list[RawRecord]], trouble: dict[Tp, Blocked]
    ) -> None:
        for tp in [tp for tp in records if tp.topic in changed]:
            del records[tp]
            trouble[tp] = Blocked(f"{tp.topic}/{tp.partition}: {MADE_AGAIN}. {_GUIDE}")

    @property
    def complaint(self) -> str | None:
        """The reason why nothing can be read just now; None if reading works. Any thread may ask."""
        return self._liveness.complaint

    def _is_cut_off(self) -> bool:
        lost = self._liveness.is_lost
        if lost != self._stands_still:
            self._stands_still = lost
            if lost:
                log.warning("%s: standing still until it answers", self._liveness.complaint)
            else:
                log.warning("the group's coordinator answers again")
        return lost

    def _on_error(self, message: Any, error: ck.KafkaError, trouble: dict[Tp, Blocked]) -> None:
        meaning = meaning_of(error)
        if meaning is Meaning.END:
            tp = Tp(message.topic(), message.partition())
            if tp in self._owned:
                self._reached[tp] = message.offset()
        elif meaning is Meaning.OUT_OF_RANGE and TRUNCATED in error.str():
            tp = Tp(message.topic(), message.partition())
            trouble[tp] = Blocked(
                f"{tp.topic}/{tp.partition}: {CUT_OFF.format(self._delivered.get(tp, -1))} ({error.str()}). {_GUIDE}"
            )
        elif meaning is Meaning.OUT_OF_RANGE:
            tp = Tp(message.topic(), message.partition())
            at = self._delivered.get(tp, -1)
            trouble[tp] = Blocked(
                f"{tp.topic}/{tp.partition}: the committed position {at} is no longer in the log ({error.str()}): retention overtook it, and the "
                f"records up to the log's start are lost. Nothing was skipped. {_GUIDE}"
            )
        elif meaning is Meaning.UNFETCHABLE:
            tp = Tp(message.topic(), message.partition())
            trouble[tp] = Blocked(
                f"{tp.topic}/{tp.partition}: the records at offset {self._delivered.get(tp, -1)} cannot be fetched ({error.str()}). {_GUIDE}"
            )
        elif error.fatal():
            raise FencedError(f"the consumer cannot go on: {error.name()}: {error.str()}")
        elif error.code() == ck.KafkaError._MAX_POLL_EXCEEDED:
            log.warning("no poll for max.poll.interval.ms: the partitions are given away, the worker rejoins")
        else:
            self._grumble(f"consumer: {error.name()}: {error.str()}")  # the library goes on by itself

    def _grumble(self, text: str) -> None:
        if (line := self._outage.line(text)) is not None:
            log.warning("%s", line)

    def token(self) -> Any:
        """The group's metadata now."""
        return self._group.consumer_group_metadata()

    def end(self, tp: Tp) -> EndQuestion:
        """Asks for an end that counts what is not replicated yet (decision 23). While the coordinator is silent there is no answer."""
        asked_at, since = self._clock.at(tp), monotonic_ms()
        told: list[int] = []

        def answer() -> int | None:
            if self._is_cut_off():
                return None
            if not told and (end := self._ends.end(tp, since)) is not None:
                told.append(end)  # a later question moves no answer
            return told[0] if told else None

        answer()
        return EndQuestion(asked_at, answer)

    def has_read(self, tp: Tp, position: int, end: int) -> bool:
        """The last fetch also counts as a position that was read to, unless records above `position` were handed over."""
        return self.reached(tp, position) >= end

    def reached(self, tp: Tp, position: int) -> int:
        """As far as the last fetch, unless records above `position` were handed over."""
        reached = self._reached.get(tp, -1) if position >= self._delivered.get(tp, 0) else -1
        return max(position, reached)

    def seek(self, positions: Mapping[Tp, int]) -> None:
        """Reads on from these offsets; what is already fetched of these partitions is dropped.

        Raises:
            Doubt: A partition cannot be set back now.
        """
        for tp, offset in positions.items():
            self._forget(tp, offset)
            self._seek(self._epochs.place(tp, offset))
        self._was_full = False  # what filled the poll is gone: what others have sent is not to wait until it is back

    def _seek(self, to: ck.TopicPartition) -> None:
        until = time.monotonic() + SEEK_S
        while True:
            try:
                self._group.seek(to)
                return
            except ck.KafkaException as failure:  # the partition's fetcher is still starting
                if time.monotonic() > until:
                    raise Doubt(f"cannot seek {to.topic}/{to.partition}: {failure.args[0].str()}") from failure
                time.sleep(0.01)

    def _forget(self, tp: Tp, position: int) -> None:
        """Forgets everything that was read of a partition."""
        self._reached.pop(tp, None)
        self._same_log.discard(tp)
        if position >= 0:
            self._delivered[tp] = position
        else:
            self._delivered.pop(tp, None)
        if self._stash:
            self._stash = [message for message in self._stash if (message.topic(), message.partition()) != tp]

    def pause(self, tps: Sequence[Tp]) -> None:
        """Stops fetching these; heartbeats and polls go on."""
        owned = [ck.TopicPartition(*tp) for tp in tps if tp in self._owned]
        if owned:
            self._group.pause(owned)

    def resume(self, tps: Sequence[Tp]) -> None:
        """Fetches these again."""
        owned = [ck.TopicPartition(*tp) for tp in tps if tp in self._owned]
        if owned:
            self._group.resume(owned)

    def close(self) -> None:
        """Leaves the group."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None

    @property
    def _group(self) -> ck.Consumer:
        assert self._consumer is not None, "open the source first"
        return self._consumer


def _since(before: tuple[int, int] | None, stable: int, now: int) -> tuple[int, int]:
    """The last stable offset of a partition that is held back, and since when it has not moved."""
    return before if before is not None and before[0] == stable else (stable, now)
