"""Open transactions and who holds them, without Java: brokers keep them in the compacted topic `__transaction_state`, which may be read like any other.

Theory of operation. The key is a transactional id, the newest value its state: producer id, since when, the partitions in it. Kafka has two versions of the
value, the second with compact lengths and tagged fields; a version that is unknown here is passed over. Whoever calls `init_transactions` with the id ends what is open
under it, which is how a restarted producer does it.

Belongs here: reading that topic, and ending by the id. Does not belong here: which open transactions are findings (`uow.ops.order_checks`).
"""

from __future__ import annotations

import struct
from contextlib import closing
from typing import Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Producer, TopicPartition

from uow.client.kafka_port import Librdkafka, LogWatch, consumer_properties, transactional_properties
from uow.client.library_errors import read_error
from uow.config.loading import Settings
from uow.ops.destination_logs import counts_with
from uow.processor.kafka.error_table import Meaning, meaning_of
from uow.schemas.error_classes import ConfigError
from uow.terminal.printing import wall_clock_ms
from uow.topics.order_state import hangs
from uow.topics.routes import unit_topics

STATE_TOPIC: Final = "__transaction_state"
ANSWER_S: Final = 15.0
INIT_S: Final = 30.0
_OPEN: Final = (1, 2, 3)
"""Ongoing, and those whose markers are being written."""
Place = tuple[str, int]


class OpenTransaction(NamedTuple):
    """A transaction that is open.

    Attributes:
        transactional_id: Its id.
        producer_id: Number of its producer.
        since: Epoch ms.
        places: The partitions in it.
    """

    transactional_id: str
    producer_id: int
    since: int
    places: frozenset[Place]


class _Fields:
    """Reads the fields of a value, one after the other."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self._at = raw, 0
        self._is_compact = self.number("h") == 1

    def number(self, kind: str) -> int:
        (found,) = struct.unpack_from(f">{kind}", self._raw, self._at)
        self._at += struct.calcsize(kind)
        return int(found)

    def _varint(self) -> int:
        found = shift = 0
        while True:
            byte = self.number("B")
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return found

    def length(self, kind: str) -> int:
        """Of a text (`h`) or a list (`i`); that of nothing is 0."""
        return max(0, self._varint() - 1 if self._is_compact else self.number(kind))

    def text(self) -> str:
        size = self.length("h")
        self._at += size
        return self._raw[self._at - size : self._at].decode()

    def skip_tags(self) -> None:
        for _ in range(self._varint() if self._is_compact else 0):
            self._varint()
            self._at += self._varint()


def read_state(key: bytes, value: bytes) -> OpenTransaction | None:
    """The transaction of a record of the topic; None if it is not open, or of a version that is unknown."""
    try:
        name, state = _Fields(b"\0\0" + key[2:]), _Fields(value)
        if key[:2] != b"\0\0" or value[:2] not in (b"\0\0", b"\0\1"):
            return None
        producer_id = state.number("q")
        state.number("h")  # epoch
        state.number("i")  # time-out
        if state.number("b") not in _OPEN:
            return None
        places = []
        for _ in range(state.length("i")):
            topic = state.text()
            places += [(topic, state.number("i")) for _ in range(state.length("i"))]
            state.skip_tags()
        state.number("q")  # last change
        return OpenTransaction(name.text(), producer_id, state.number("q"), frozenset(places))
    except (struct.error, UnicodeDecodeError):
        return None


def open_transactions(settings: Settings) -> list[OpenTransaction]:
    """Those of the whole cluster.

    Raises:
        AccessDeniedError, UowError: This user may not read `__transaction_state`.
        NoAnswerError: There was never a transaction.
        KafkaException: No broker answers.
    """
    count = counts_with(settings, STATE_TOPIC)[STATE_TOPIC]
    own = {**settings.kafka, "enable.partition.eof": True}
    properties = consumer_properties(settings.bootstrap_servers, "uow", f"{settings.application_id}-look", own)
    found: dict[bytes, OpenTransaction | None] = {}
    with closing(Librdkafka().consumer(properties, LogWatch().logger)) as handle:
        handle.assign([TopicPartition(STATE_TOPIC, number, OFFSET_BEGINNING) for number in range(count)])
        waiting = {*range(count)}
        while waiting and (record := handle.poll(ANSWER_S)) is not None:
            error = record.error()
            if error is None:
                key, value = record.key() or b"", record.value()
                found[key] = None if value is None else read_state(key, value)
            elif meaning_of(error) is Meaning.END:
                waiting.discard(record.partition() or 0)
            elif (raised := read_error(error, STATE_TOPIC)) is not None:
                raise raised
    return [each for each in found.values() if each is not None]


def end_transaction(settings: Settings, transactional_id: str, *, is_forced: bool = False) -> None:
    """Ends what is open under an id, by taking the id over: its records are never seen, and a producer that uses the id is fenced.

    Args:
        settings: The configuration.
        transactional_id: The id.
        is_forced: Also a transaction that its coordinator would still end, or one without a topic of this application.

    Raises:
        ConfigError: Nothing is open under the id, or what is open must not be ended without force.
        AccessDeniedError, NoAnswerError: As for `open_transactions`.
        KafkaException: This user may not use the id, or no broker answers.
    """
    found = next((each for each in open_transactions(settings) if each.transactional_id == transactional_id), None)
    refusal = _refusal(settings, found, is_forced)
    if refusal:
        raise ConfigError("--end-transaction", transactional_id, refusal)
    watch = LogWatch()
    properties = transactional_properties(settings.bootstrap_servers, "uow", transactional_id, settings.kafka)
    Producer(properties, logger=watch.logger).init_transactions(INIT_S)


def _refusal(settings: Settings, found: OpenTransaction | None, is_forced: bool) -> str:
    """Why a transaction is not ended; empty if it is."""
    if found is None:
        return "nothing is open under this id"
    if is_forced:
        return ""
    if not is_hanging(settings, found.since):
        return "it may still be at work, and ends by itself: it is not older than transaction_timeout_ms and 20 s; --force ends it all the same"
    if not any(_is_ours(settings, topic) for topic, _ in found.places):
        return "it has written to no topic of this application; --force ends it all the same"
    return ""


def is_hanging(settings: Settings, since: int) -> bool:
    """True if what has been open since then would have been ended by now, if it were ours (S-09)."""
    return hangs(since, wall_clock_ms(), int(settings.value("worker.transaction_timeout_ms")))


def _is_ours(settings: Settings, topic: str) -> bool:
    routed = {each for name in settings.destinations for each in unit_topics(settings.policy(name).routes, "")}
    return topic in routed or topic.startswith(
        (f"{settings.application_id}-", *(f"{name}." for name in settings.destinations))
    )
