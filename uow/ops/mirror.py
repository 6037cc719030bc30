"""Records of one cluster, copied into topics of another, each once: key, value, headers and partition as they were.

Theory of operation. A transaction on the target holds copies and, as offsets of a consumer group of the target, how far the source has been
read. So copies and positions agree whatever happens in between, and the next run goes on there. The offset stands on the *target's* topic, since a
broker takes offsets of its own topics only; beside it stand the source topic's id, the offsets at which source and copy begin, and counts.
A copy has another offset than its original, since markers and aborted records are not copied. As nobody else writes there meanwhile, the n-th
record is the copy of the n-th: `match` reads both again, compares them, and says where an offset of the source lies in the copy.

Records that no client can send again, since their headers cannot be read, are left and counted.

Belongs here: copying, and the comparison. Does not belong here: which topics, from where, and when (`uow.ops.migration`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, zip_longest
from typing import Any, NamedTuple, Self

import confluent_kafka as ck

from uow.ops.sole_member import MoveError
from uow.processor.core.columns import UnreadableRecord, looked_at
from uow.processor.engine.ports import Blocked, Committed, Contents, Doubt, Headers, RawRecord, Tp
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.contents import KafkaContents
from uow.processor.kafka.log_reader import KafkaLogReader
from uow.processor.kafka.transactional_producer import TransactionalProducer, text_of
from uow.processor.kafka.worker_clock import wall_ms
from uow.processor.kafka.worker_settings import WorkerSettings

TRANSACTION_MS = 60_000
BATCH_BYTES = 33_554_432
BATCH_S = 2.0
"""A transaction ends with the first of these."""
RECORD_BYTES = 200
"""About how many bytes a record has beside key and value."""
OFFSETS_S = 20.0
NO_TIME = 0
_TEXT = re.compile(r"1;T=([^;]+);F=(\d+);B=(\d+);N=(\d+);L=(\d+)")


class Progress(NamedTuple):
    """How far a partition is copied.

    Attributes:
        topic_id: Kafka's id of the source's topic: one that was deleted and made again is another.
        next: Next offset of the source.
        first: The offset of the source at which copying began.
        begin: The end of the target's partition at that time.
        copied: How many records were copied.
        left: How many were left.
    """

    topic_id: str
    next: int
    first: int
    begin: int
    copied: int = 0
    left: int = 0

    @classmethod
    def of(cls, committed: Committed) -> Self | None:
        """As it was committed; None if nothing of the kind was."""
        found = _TEXT.fullmatch(committed.metadata)
        if committed.offset is None or found is None:
            return None
        first, begin, copied, left = map(int, found.groups()[1:])
        return cls(found[1], committed.offset, first, begin, copied, left)

    @property
    def text(self) -> str:
        """The metadata of the committed offset."""
        return f"1;T={self.topic_id};F={self.first};B={self.begin};N={self.copied};L={self.left}"


class Copy(NamedTuple):
    """A record as it is written again; `content` is None for one that cannot be."""

    offset: int
    at: int
    content: tuple[bytes | None, bytes | None, Headers] | None


def copies(tp: Tp, records: Sequence[RawRecord], contents: Contents) -> list[Copy]:
    """The copies of records that lie one after another in a partition.

    Args:
        tp: The partition.
        records: At least one; their headers were not looked at before.
        contents: Finds those whose headers the client does not show.
    """
    found, bare = [], []
    for headers, record in looked_at(records):
        is_unreadable = isinstance(record, UnreadableRecord)
        if not headers and not is_unreadable:
            bare.append(record.offset())
        kind, at = record.timestamp()
        content = None if is_unreadable else (record.key(), record.value(), headers or [])
        found.append(Copy(record.offset(), at if kind else NO_TIME, content))
    if bare and (hidden := set(contents.hidden(tp, bare))):
        found = [each._replace(content=None) if each.offset in hidden else each for each in found]
    return found


class Mirror:
    """Copies from topics of one cluster to topics of another.

    Args:
        source: Handles on the cluster that is read.
        target: Settings on the other one; `application_id` is the group that keeps the positions, and belongs to this mirror alone.
        pairs: The target's topic for each of the source's.
        on_step: Called as `copying` before each commit; drills end the process there.
    """

    def __init__(
        self, source: Clients, target: WorkerSettings, pairs: Mapping[str, str], on_step: Callable[[str], None]
    ) -> None:
        target = replace(target, transaction_timeout_ms=TRANSACTION_MS)
        clients = Clients(target)
        self._pairs, self._on_step = pairs, on_step
        self.source, self.target = KafkaLogReader(source, self._commit_in_time), KafkaLogReader(clients)
        self.contents = KafkaContents(source, TRANSACTION_MS / 2000)
        self.target_contents = KafkaContents(clients, TRANSACTION_MS / 2000)
        self._member = clients.log_consumer("read_committed")
        self._producer = TransactionalProducer(clients.producer, TRANSACTION_MS / 1000)
        self.progress: dict[Tp, Progress] = {}
        self._moved: dict[Tp, Progress] = {}
        self._size = 0

    def _there(self, tp: Tp) -> Tp:
        return Tp(self._pairs[tp.topic], tp.partition)

    def resume(self, tps: Sequence[Tp]) -> Mapping[Tp, Progress]:
        """The progress of partitions of the source, as far as there is some."""
        there = {self._there(tp): tp for tp in tps}
        found = self.target.committed(list(there))
        self.progress = {there[at]: each for at, one in found.items() if (each := Progress.of(one)) is not None}
        return self.progress

    def begin(self, progress: Mapping[Tp, Progress]) -> None:
        """Writes where copying of each partition begins, all at once; nothing was copied before."""
        self._member.commit(offsets=self._offsets(progress), asynchronous=False)
        self.progress = dict(progress)

    def open(self) -> None:
        """Ends the transaction of a run that was cut off, and keeps a second run out."""

        def patience(failure: ck.KafkaException | None) -> None:
            if time.monotonic() > until:
                raise failure or MoveError("connections to the target's brokers break again and again")

        until = time.monotonic() + TRANSACTION_MS / 1000
        self._producer.open(patience)

    def _offsets(self, progress: Mapping[Tp, Progress]) -> list[ck.TopicPartition]:
        return [ck.TopicPartition(*self._there(tp), each.next, each.text) for tp, each in progress.items()]

    def copy(self, ends: Mapping[Tp, int]) -> int:
        """Copies up to these offsets of the source, in transactions.

        Returns:
            How many records were copied.

        Raises:
            MoveError: It was cut off; the next run goes on.
        """
        before = self.copied
        ranges = {tp: (self.progress[tp].next, end) for tp, end in ends.items() if end > self.progress[tp].next}
        if not ranges:
            return 0
        try:
            self._copy(ranges)
        except (ck.KafkaException, Doubt, Blocked, BufferError) as failure:
            cause = failure.args[0]
            why = text_of(cause) if isinstance(cause, ck.KafkaError) else str(cause)
            raise MoveError(f"copying was cut off, and goes on when the command is run again: {why}") from failure
        return self.copied - before

    @property
    def copied(self) -> int:
        """Records copied so far, in all runs."""
        return sum(each.copied for each in self.progress.values())

    def _copy(self, ranges: Mapping[Tp, tuple[int, int]]) -> None:
        self._moved.clear()
        for tp, records in self.source.read(ranges):
            if not self._moved:
                self._begin_transaction()
            done = self._moved.get(tp) or self.progress[tp]
            for each in copies(tp, records, self.contents):
                done = done._replace(next=each.offset + 1)
                if each.content is None:
                    done = done._replace(left=done.left + 1)
                    continue
                self._produce(self._there(tp), each)
                done = done._replace(copied=done.copied + 1)
                self._size += RECORD_BYTES + sum(len(part or b"") for part in each.content[:2])
            self._moved[tp] = done
            if self._size >= BATCH_BYTES:
                self._commit()
        if not self._moved:
            self._begin_transaction()
        for tp, (_, end) in ranges.items():  # what lies before the end, and is no record, is behind us as well
            done = self._moved.get(tp) or self.progress[tp]
            self._moved[tp] = done._replace(next=max(done.next, end))
        self._commit()

    def _commit_in_time(self) -> None:
        """The reader may wait long for the open transaction of a producer: ours does not."""
        if self._moved and self._producer.age_s > BATCH_S:
            self._commit()

    def _begin_transaction(self) -> None:
        def patience(failure: ck.KafkaException | None) -> None:
            raise failure or Doubt("connections to the target's brokers break again and again")

        self._producer.begin(patience)

    def _produce(self, to: Tp, each: Copy) -> None:
        assert each.content is not None
        key, value, headers = each.content
        at = min(each.at, wall_ms())  # a broker refuses what is far ahead of its clock
        produce: Any = self._producer.handle.produce
        self._producer.produce(
            lambda: produce(to.topic, value, key, to.partition, None, None, at, headers),
            TRANSACTION_MS / 1000 - self._producer.age_s,
        )

    def _commit(self) -> None:
        self._producer.send_offsets(self._offsets(self._moved), self._member.consumer_group_metadata(), OFFSETS_S)
        self._on_step("copying")
        self._producer.commit(OFFSETS_S)
        self.progress.update(self._moved)
        self._moved.clear()
        self._size = 0

    def match(self, tp: Tp, wanted: Iterable[int]) -> dict[int, Place]:
        """Where offsets of a partition of the source lie in its copy, all of which is read again and compared.

        Raises:
            MoveError: It is not the copy that this mirror made.
        """
        there, done = self._there(tp), self.progress[tp]
        end = self.target.bounds([there])[there][1]
        written = self._read(self.target, self.target_contents, there, done.begin, end)
        if self.source.bounds([tp])[tp][0] > done.first:  # retention was there meanwhile: what it took is not compared
            written = islice(written, done.copied - sum(1 for _ in self._originals(tp)), None)
        return matched(there, self._originals(tp), written, end, wanted)

    def _originals(self, tp: Tp) -> Iterator[Copy]:
        done = self.progress[tp]
        return (each for each in self._read(self.source, self.contents, tp, done.first, done.next) if each.content)

    @staticmethod
    def _read(reader: KafkaLogReader, contents: Contents, tp: Tp, first: int, end: int) -> Iterator[Copy]:
        for _, records in reader.read({tp: (first, end)}):
            yield from copies(tp, records, contents)

    def close(self) -> None:
        """Closes the handles. An open transaction is ended by the next run, or by its time-out."""
        self._producer.discard()
        self._member.close()
        for each in (self.source, self.target, self.contents, self.target_contents):
            each.close()


class Place(NamedTuple):
    """An offset in the copy, and how many records follow it there."""

    offset: int
    unread: int


def matched(
    there: Tp, originals: Iterable[Copy], written: Iterable[Copy], end: int, wanted: Iterable[int]
) -> dict[int, Place]:
    """Where offsets of the source lie in its copy: at the copy of the first record that is not before them. Pure.

    Args:
        there: The partition with the copy, for the message.
        originals: Records of the source, in order.
        written: Records of the copy, in order.
        end: End offset of the copy.
        wanted: Offsets of the source.

    Raises:
        MoveError: They are not the same records.
    """
    waiting = sorted(set(wanted), reverse=True)
    places: dict[int, tuple[int, int]] = {}
    count = 0
    for original, copy in zip_longest(originals, written):
        if original is None or copy is None or original.content != copy.content:
            raise MoveError(
                f"{there.topic}/{there.partition} is not the copy of what was read: another program has written there, or records were "
                "deleted; delete the target's topics, take the move back (`--undo`), and begin anew"
            )
        while waiting and waiting[-1] <= original.offset:
            places[waiting.pop()] = copy.offset, count
        count += 1
    places.update((offset, (end, count)) for offset in waiting)
    return {offset: Place(at, count - before) for offset, (at, before) in places.items()}
