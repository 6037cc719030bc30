"""Units that are sent over several transactions, and go on after a crash (B-123): how far a sender has come is in `A-senders`.

Each transaction of such a unit has a record there as well: how many of its components are out, or, in the last one, that it ended. So what that topic says and what lies in
`D.components` is one. The transactional id is made of destination and id: whoever resumes a unit fences its former sender first, and then reads.

Belongs here: the records of `A-senders`, and reading them. Does not belong here: components (`uow.client.unit_writer`), transactions (`uow.client.transaction`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, KafkaException, TopicPartition

from uow.client.following import Make
from uow.client.kafka_port import STEP_S, ConsumedRecord, ConsumerHandle, LogWatch, check_topic, coordinates
from uow.client.outgoing import HASHED, OutgoingRecord
from uow.client.references import END_EVENTS
from uow.client.session_state import Life
from uow.errors import ReconnectTimeoutError
from uow.processor.kafka.error_table import Meaning, meaning_of
from uow.schemas.error_classes import DecodeError
from uow.schemas.records import UnitOutcome
from uow.topics.catalogue import senders_topic
from uow.topics.headers import MAX_SEQ, OUTCOME, SEQ, decimal
from uow.topics.partitioner import partition_for

_OPEN: Final = b"open"
"""Value of the record of a unit that has not ended; of one that has it is null, so that compaction removes it."""


class Progress(NamedTuple):
    """The progress of a unit: how many of its components are committed, and how it ended, if it has."""

    sent: int = 0
    outcome: UnitOutcome | None = None


class SenderLog:
    """The part of `A-senders` that is about one unit.

    Args:
        application: `application.id` of the workers.
        destination: Of the unit.
        id: Of the unit.
        consumer: Makes consumers with such properties.
        life: Of the connection.
    """

    def __init__(
        self, application: str, destination: str, id: str, consumer: Callable[[Mapping[str, Any]], Make], life: Life
    ) -> None:
        self.topic = senders_topic(application)
        # with the length of the first name, so that no other two names give the same id
        self.transactional_id = f"{application}-sender-{len(destination)}-{destination}-{id}"
        self._key = destination.encode() + b"\0" + id.encode()
        self._consumer, self._life = consumer, life

    def record(self, progress: Progress) -> OutgoingRecord:
        """The record that is committed with the components that it counts."""
        headers: list[tuple[str, bytes | None]] = [(SEQ, b"%d" % progress.sent)]
        if progress.outcome is not None:
            headers.append((OUTCOME, progress.outcome.encode()))
        return OutgoingRecord(self.topic, self._key, _OPEN if progress.outcome is None else None, headers, HASHED)

    def read(self) -> Progress:
        """The progress of the unit. Ask once nobody else can send for it any more.

        Raises:
            DestinationUnavailableError: There is no such topic: `uow topics create --senders` makes it.
            ReconnectTimeoutError: It cannot be read to its end in time.
            DecodeError: The unit's record cannot be read.
        """
        try:
            with self._opened("read_uncommitted") as handle:
                partition = partition_for(self._key, check_topic(handle, self.topic, life=self._life))
                tp = TopicPartition(self.topic, partition, OFFSET_BEGINNING)
                # as a reader of everything sees it: another sender's open transaction must not hide what is committed behind its beginning
                _, end = handle.get_watermark_offsets(tp, self._life.waits.answer_s)
            with self._opened("read_committed") as handle:
                handle.assign([tp])
                last = self._last(handle, end)
        except (KafkaException, TypeError) as failure:  # no watermarks in time: None
            raise ReconnectTimeoutError(f"{self.topic} cannot be read: {failure}") from failure
        return Progress() if last is None else self._progress(last)

    @contextmanager
    def _opened(self, isolation: str) -> Iterator[ConsumerHandle]:
        handle = self._consumer({**END_EVENTS, "isolation.level": isolation})(LogWatch().logger)
        try:
            yield handle
        finally:
            handle.close()

    def _last(self, handle: ConsumerHandle, end: int) -> ConsumedRecord | None:
        """The unit's last record before `end`."""
        found: ConsumedRecord | None = None
        position, clock = 0, self._life.clock
        until = clock() + self._life.waits.answer_s
        while position < end:
            record = handle.poll(STEP_S)
            error = None if record is None else record.error()
            if record is not None and error is None:
                position = coordinates(record)[2] + 1
                until = clock() + self._life.waits.answer_s
                found = record if record.key() == self._key else found
            elif record is not None and error is not None and meaning_of(error) is Meaning.END:
                position = coordinates(record)[2]
            elif error is not None and meaning_of(error) is not Meaning.PASSING:
                raise KafkaException(error)
            if position < end and clock() >= until:
                raise ReconnectTimeoutError(f"{self.topic} was read to {position}, and ends at {end}")
        return found

    def _progress(self, record: ConsumedRecord) -> Progress:
        said = dict(record.headers() or ())
        count, outcome = decimal(said.get(SEQ) or b""), said.get(OUTCOME)
        ends = {each.encode(): each for each in (UnitOutcome.COMPLETE, UnitOutcome.CANCELLED)}
        if count is None or not 0 < count <= MAX_SEQ or (record.value() is None) != (outcome in ends):
            topic, partition, offset = coordinates(record)
            why = "a record that no sender of units writes"
            raise DecodeError("senders", why, topic=topic, partition=partition, offset=offset)
        return Progress(count, None if outcome is None else ends[outcome])
