"""Values read back on librdkafka: single records of `D.components`, by place (W-117).

Belongs here: getting from one record to the next. Does not belong here: choosing the records, and handling one that is gone
(`uow.processor.engine.external_values`). Not a member of the group.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import confluent_kafka as ck

from uow.processor.engine.ports import Doubt, Tp
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.error_table import GONE
from uow.processor.kafka.header_lookup import HeaderLookup, LookupTimeoutError
from uow.schemas.records import ComponentRecord, Source

JUMP_BYTES: Final = 524_288
"""About how many bytes between two components are read and dropped; over a larger distance the consumer jumps, which fetches anew."""
RECORD_BYTES: Final = 200
"""About how many bytes a record has beside its value."""
STEP_S: Final = 0.1


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
        self._lookup = HeaderLookup(clients.content_properties(), answer_s)

    def hidden(self, tp: Tp, offsets: Sequence[int]) -> set[int]:
        """Those of these records whose headers the client does not show; raises `Doubt`."""
        try:
            return self._lookup.hidden(tp.topic, tp.partition, offsets)
        except LookupTimeoutError as error:
            raise Doubt(f"headers of a record cannot be read again: {error}") from error

    def read(self, components: Sequence[ComponentRecord]) -> Iterator[Any]:
        """The records of these that still lie at their places; raises `Doubt`."""
        lengths = [each.reference.length for each in components if each.reference is not None]
        each_bytes = sum(lengths) // len(components) + RECORD_BYTES
        self._where = None  # the end of the log, as it was told in the last portion, says nothing now
        for component in components:
            record = self._record(component.source, each_bytes)
            if record is not None:
                yield record

    def _record(self, place: Source, each_bytes: int) -> Any:
        """The record at that place, None if it is gone. `each_bytes` is the usual size of the records around it."""
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
            elif error.code() in GONE:
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
        self._lookup.close()
        if self._consumer is not None:
            self._consumer.close()
