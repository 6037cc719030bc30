"""Values read back on librdkafka: single records of `D.components`, by place (W-117).

Belongs here: getting from one record to the next. Does not belong here: which records, and what becomes of one that is gone
(`processor.engine.stayed`). Not a member of the group.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import confluent_kafka as ck

from processor.engine.ports import Doubt, Tp
from processor.kafka.clients import Clients
from processor.kafka.hidden import HeaderLook, NoAnswerError
from schemas.records import Component, Source

JUMP_BYTES: Final = 524_288
"""What lies between two components is read over up to about this much; a jump fetches anew."""
RECORD_BYTES: Final = 200
"""What a record has beside its value, about."""
STEP_S: Final = 0.1
_GONE: Final = frozenset(
    {ck.KafkaError._AUTO_OFFSET_RESET, ck.KafkaError.OFFSET_OUT_OF_RANGE, ck.KafkaError._PARTITION_EOF}
)


class KafkaContents:
    """Port `Contents`; opens its consumer when it is first asked.

    Args:
        clients: Makes handles.
        answer_s: Longest wait for one record.
    """

    def __init__(self, clients: Clients, answer_s: float) -> None:
        self._clients, self._answer_s = clients, answer_s
        self._consumer: ck.Consumer | None = None
        self._where: tuple[str, int] | None = None
        self._next = 0
        self._look = HeaderLook(clients.content_properties(), answer_s)

    def hidden(self, tp: Tp, offsets: Sequence[int]) -> set[int]:
        """Which of these records have headers that the client does not show; raises `Doubt`."""
        try:
            return self._look.hidden(tp.topic, tp.partition, offsets)
        except NoAnswerError as error:
            raise Doubt(f"headers of a record cannot be looked at: {error}") from error

    def read(self, components: Sequence[Component]) -> Iterator[Any]:
        """The records of these that still lie at their places; raises `Doubt`."""
        lengths = [each.reference.length for each in components if each.reference is not None]
        each_bytes = sum(lengths) // len(components) + RECORD_BYTES
        self._where = None  # the end of the log, as it was told in the last portion, says nothing now
        for component in components:
            record = self._record(component.source, each_bytes)
            if record is not None:
                yield record

    def _record(self, place: Source, each_bytes: int) -> Any:
        """What lies there, or None; records about there have about so many bytes."""
        consumer, deadline = self._consumer_at(place, each_bytes), time.monotonic() + self._answer_s
        trouble = "no answer"
        while time.monotonic() < deadline:
            record = consumer.poll(STEP_S)
            if record is None:
                continue
            error = record.error()
            if error is None:
                offset = record.offset() or 0
                self._next = offset + 1
                if offset >= place.offset:
                    return record if offset == place.offset else None
            elif error.code() in _GONE:
                self._where = None
                return None
            else:
                trouble = error.str()
        raise Doubt(f"a component at {place} cannot be read back: {trouble}")

    def _consumer_at(self, place: Source, each_bytes: int) -> ck.Consumer:
        """About to read the place: with a jump, or soon."""
        if self._consumer is None:
            self._consumer = self._clients.content_consumer()
        if (
            self._where != (place.topic, place.partition)
            or not 0 <= (place.offset - self._next) * each_bytes <= JUMP_BYTES
        ):
            self._consumer.assign([ck.TopicPartition(place.topic, place.partition, place.offset)])
            self._where, self._next = (place.topic, place.partition), place.offset
        return self._consumer

    def close(self) -> None:
        """Closes the consumers."""
        self._look.close()
        if self._consumer is not None:
            self._consumer.close()
