"""The client's port on librdkafka: the methods it needs, the properties of handles, and their log.

Belongs here: the Protocols that `confluent_kafka.Producer` and `Consumer` satisfy (tests put fakes there), the properties that we
set (R-81), and the watch on a handle's log. Does not belong here: sending and reading.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol, cast

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from uow.client.session_state import Life, Patience, Waits
from uow.config.settings import KAFKA_RULES
from uow.errors import AccessDeniedError, DestinationUnavailableError, ReconnectTimeoutError
from uow.processor.kafka.bounded import BoundedProducer
from uow.processor.kafka.doubt import LOG_LEVEL
from uow.processor.kafka.error_table import Meaning, meaning_of
from uow.processor.kafka.header_lookup import HeaderLookup
from uow.processor.kafka.outage import Outage
from uow.processor.kafka.transactional_producer import TransactionalHandle
from uow.schemas.error_classes import Complaint, ConfigError, DecodeError
from uow.topics.access import denied_text
from uow.topics.catalogue import RECORD_LIMIT_BYTES, TOPIC_NAME, is_topic_name
from uow.topics.temporary import is_temporary

__all__ = ["ConsumedRecord", "ConsumerHandle", "HeaderLookupHandle", "KafkaPort", "ProducerHandle"]
"""The Protocols: applications that test against a Kafka of their own making implement them."""

log = logging.getLogger(__name__)

HeaderPair = tuple[str, bytes | None]
Headers = list[HeaderPair]

BLOCKING_S: Final = 6.0
"""Longest a call waits for a connection or for room in the send buffer (R-80, `reconnect_blocking_ms`)."""
STEP_S: Final = 0.5
"""Longest single wait inside the library, so that Ctrl-C is heard."""
REFRESH_S: Final = 30.0
"""Interval at which a topic that is sent to is asked for again; that of the library's own metadata."""
TEMPORARY_S: Final = 1.0
"""The same of a temporary destination: the library would try on for half a minute where that is gone."""
REFRESH_TIMEOUT_S: Final = 1.0
_MAX_NAME_BYTES: Final = 32_767
TRANSACTION_TIMEOUT_MS: Final = 10_000
"""Bounds how long the transaction of a dead sender holds back readers (W-50)."""


class ConsumedRecord(Protocol):
    """The methods of `confluent_kafka.Message` that we use."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Any: ...
    def timestamp(self) -> tuple[int, int]: ...
    def leader_epoch(self) -> int | None: ...
    def error(self) -> KafkaError | None: ...


class ProducerHandle(TransactionalHandle, Protocol):
    """The methods of `confluent_kafka.Producer` that we use."""

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        *,
        on_delivery: Callable[[KafkaError | None, Any], None],
        headers: Any,
    ) -> None: ...
    def list_topics(self, topic: str, timeout: float) -> Any:
        """The watch over a connection calls it in two threads."""


class ConsumerHandle(Protocol):
    """The methods of `confluent_kafka.Consumer` that we use."""

    def subscribe(
        self,
        topics: list[str],
        *,
        on_assign: Callable[[Any, list[TopicPartition]], None],
        on_revoke: Callable[[Any, list[TopicPartition]], None],
        on_lost: Callable[[Any, list[TopicPartition]], None],
    ) -> None: ...
    def assign(self, partitions: list[TopicPartition]) -> None: ...
    def incremental_assign(self, partitions: list[TopicPartition]) -> None: ...
    def incremental_unassign(self, partitions: list[TopicPartition]) -> None: ...
    def poll(self, timeout: float) -> ConsumedRecord | None: ...
    def seek(self, partition: TopicPartition) -> None: ...
    def pause(self, partitions: list[TopicPartition]) -> None: ...
    def resume(self, partitions: list[TopicPartition]) -> None: ...
    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]: ...
    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]: ...
    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]: ...
    def list_topics(self, topic: str | None, timeout: float) -> Any:
        """Never inside a callback of the same handle: confluent_kafka 2.16 forgets the call that it is in, and aborts the process at its next callback."""

    def consumer_group_metadata(self) -> Any: ...
    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> Any: ...
    def close(self) -> None: ...


class HeaderLookupHandle(Protocol):
    """The methods of `uow.processor.kafka.header_lookup.HeaderLookup` that we use."""

    def hidden(self, topic: str, partition: int, offsets: Sequence[int]) -> Collection[int]: ...
    def close(self) -> None: ...


class KafkaPort(Protocol):
    """Makes handles."""

    def producer(self, properties: dict[str, Any], logger: logging.Logger) -> ProducerHandle: ...
    def consumer(self, properties: dict[str, Any], logger: logging.Logger) -> ConsumerHandle: ...
    def header_lookup_handle(self, properties: dict[str, Any]) -> HeaderLookupHandle: ...


class Librdkafka:
    """Real handles."""

    def producer(self, properties: dict[str, Any], logger: logging.Logger) -> ProducerHandle:
        return BoundedProducer(properties, logger=logger)

    def consumer(self, properties: dict[str, Any], logger: logging.Logger) -> ConsumerHandle:
        return cast(
            ConsumerHandle, confluent_kafka.Consumer(properties, logger=logger)
        )  # its commit() is overloaded too finely

    def header_lookup_handle(self, properties: dict[str, Any]) -> HeaderLookupHandle:
        return HeaderLookup(properties, BLOCKING_S)


SESSION_TIMEOUT_MS: Final = 45_000
"""The library's default: a member that was silent so long loses its partitions."""
_EVERYWHERE: Final[Mapping[str, Any]] = {
    "reconnect.backoff.max.ms": 1500,
    "socket.timeout.ms": TRANSACTION_TIMEOUT_MS,
    "socket.connection.setup.timeout.ms": 6000,
    "socket.keepalive.enable": True,
    "metadata.recovery.rebootstrap.trigger.ms": 30_000,
    "topic.metadata.refresh.interval.ms": 30_000,
    "allow.auto.create.topics": False,
}
_PRODUCER: Final[Mapping[str, Any]] = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    # librdkafka sleeps this long when the markers of the last transaction are still being written: 105 ms or 3 ms a transaction
    "retry.backoff.ms": 2,
    "retry.backoff.max.ms": 20,
}
_CONSUMER: Final[Mapping[str, Any]] = {
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "partition.assignment.strategy": "cooperative-sticky",
    "fetch.wait.max.ms": 100,
    "fetch.queue.backoff.ms": 20,  # else a reader that empties a full queue waits for the rest of a second
}
_FREE: Final = frozenset({"session.timeout.ms", "message.max.bytes"})
"""Ruled for a worker, free for a client."""
_RULES: Final = {name: rule for rule in KAFKA_RULES for name in rule.properties if name not in _FREE}


def check_properties(kafka: Mapping[str, Any]) -> dict[str, Any]:
    """The properties that a user gives as `kafka=`, checked: none of them may break a promise of ours.

    Raises:
        ConfigError: One complaint for each property that contradicts ours (W-49, W-109, R-81).
    """
    complaints = []
    for name, value in kafka.items():
        rule = _RULES.get(name)
        text = str(value).lower()
        if rule is not None and text not in rule.allowed:
            complaints.append(Complaint(f"kafka.{name}", value, rule.rule))
    if complaints:
        raise ConfigError.many(complaints)
    return dict(kafka)


def check_name(setting: str, name: str | None) -> None:
    """Refuses a name with which the library would end the process, or wait for ever.

    Raises:
        ConfigError: It is blank, or a text that Kafka's protocol cannot carry.
    """
    text = str(name or "").encode(errors="replace")
    is_sound = name is None or (text.strip() != b"" and b"\0" not in text and text.decode() == name)
    if not is_sound or len(text) > _MAX_NAME_BYTES:
        raise ConfigError(
            setting, name, f"must be a text that is not blank, without NUL, up to {_MAX_NAME_BYTES:,} bytes"
        )


def reconnect_properties(waits: Waits) -> dict[str, Any]:
    """Properties that follow from how long calls wait: a broker that is back is tried several times within one wait."""
    blocking_ms = waits.blocking_ms
    return {"reconnect.backoff.max.ms": 1500 if blocking_ms <= 0 else max(100, min(1500, blocking_ms // 4))}


def plain_producer_properties(servers: str, client_id: str, kafka: Mapping[str, Any]) -> dict[str, Any]:
    """For records outside transactions: without a time limit (S-30), sent at once because the caller waits for each."""
    own = {"bootstrap.servers": servers, "client.id": client_id, "message.timeout.ms": 0, "linger.ms": 0}
    return {**_EVERYWHERE, **_PRODUCER, **own, **kafka}


def transactional_properties(
    servers: str,
    client_id: str,
    transactional_id: str,
    kafka: Mapping[str, Any],
    timeout_ms: int = TRANSACTION_TIMEOUT_MS,
) -> dict[str, Any]:
    """For transactions; `message.timeout.ms` is left to the library, which bounds it by the transaction's time-out.

    Two properties are not the user's: the log level, since `LogWatch` needs the lines, and the recovery of metadata.
    """
    own = {
        "bootstrap.servers": servers,
        "client.id": client_id,
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
        "socket.timeout.ms": min(timeout_ms, TRANSACTION_TIMEOUT_MS),
        "message.max.bytes": RECORD_LIMIT_BYTES,  # a unit that is given up is as large as a record of ours can be
    }
    fixed = {
        "log_level": LOG_LEVEL,
        # a re-bootstrap makes the library forget that a coordinator is gone (issue 5511); after a broken connection the handle is replaced
        "metadata.recovery.strategy": "none",
    }
    return {**_EVERYWHERE, **_PRODUCER, **own, **kafka, **fixed}


def consumer_properties(servers: str, client_id: str, group: str, kafka: Mapping[str, Any]) -> dict[str, Any]:
    """For readers: `read_committed`, nothing committed or reset behind our back (W-49, W-52)."""
    own = {"bootstrap.servers": servers, "client.id": client_id, "group.id": group}
    return {**_EVERYWHERE, **_CONSUMER, **own, **kafka}


class LogWatch(logging.Handler):
    """Receives one handle's log lines, which arrive inside `poll`: they go to `on_line`, and, thinned out, to our debug log.

    Args:
        on_line: Called with each line. Disconnects and time-outs mean doubt about what the broker still has of us (ER-11, R-75).
    """

    def __init__(self, on_line: Callable[[str], None] = lambda line: None) -> None:
        super().__init__()
        self._on_line = on_line
        self._outage = Outage()
        # no part of the logger tree: no handler of the application prints these lines
        self.logger = logging.Logger("uow.librdkafka", logging.DEBUG)  # noqa: LOG001
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        self._on_line(line)
        if log.isEnabledFor(logging.DEBUG) and (shown := self._outage.line(line)) is not None:
            log.debug("%s", shown)


class KnownTopics:
    """Topics that a connection sends to, with the partition count that each had at first; asked for again now and then. For any thread.

    The library itself takes a new count as soon as it hears of it, and sends to where ids belong then.

    Args:
        is_elastic: True for a topic that may get another count at any time.
        clock: Seconds, from anywhere.
    """

    def __init__(
        self,
        is_elastic: Callable[[str], bool] = lambda topic: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_elastic = is_elastic
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._refresh_at: dict[str, float] = {}

    def is_known(self, topic: str) -> bool:
        """True if `admit` lets its records through without asking anybody."""
        return self._clock() < self._refresh_at.get(topic, 0.0)

    def check(self, handle: ProducerHandle, topic: str, life: Life) -> None:
        """Asks for a topic that is new, or was not asked for in a while and while there is a connection.

        Raises:
            DestinationUnavailableError, ReconnectTimeoutError: As `check_topic`, for a new one, and for a temporary one.
            ConfigError: The input of a destination has another count than at first: its open groups may be on other partitions (W-107).
        """
        now = self._clock()
        if now < self._refresh_at.get(topic, now):
            return
        known = self._counts.get(topic)
        if known is None:
            self._counts[topic] = check_topic(handle, topic, life=life)
        elif not life.is_connected:
            return
        elif is_temporary(topic):
            check_topic(handle, topic, life=life)
        elif topic.endswith(".components") and not self._is_elastic(topic):
            with suppress(DestinationUnavailableError, ReconnectTimeoutError):  # sending will tell
                self._compare(topic, known, check_topic(handle, topic, REFRESH_TIMEOUT_S))
        self._refresh_at[topic] = now + (TEMPORARY_S if is_temporary(topic) else REFRESH_S)

    def admit(self, handle: ProducerHandle, record: Any, way: str, life: Life) -> bool:
        """Checks the topic of a record that is sent that way. Returns True if its order is strict; raises as `check`."""
        self.check(handle, record.topic, life)
        return False

    def _compare(self, topic: str, known: int, count: int) -> None:
        if count != known:
            destination = topic.removesuffix(".components")
            rule = (
                f"had {known} partitions when this connection began to send to it: `uow topics repartition {destination}` moves what is "
                "open; then make a new connection"
            )
            raise ConfigError(f"topic {topic}, partitions", count, rule)


def check_topic(
    handle: ProducerHandle | ConsumerHandle, topic: str, wait_s: float = BLOCKING_S, life: Life | None = None
) -> int:
    """Asks for a topic, so that a wrong name is an error at once and not after the library's time-outs.

    Args:
        handle: Any handle.
        topic: Its name.
        wait_s: Longest wait for an answer, in short steps, so that Ctrl-C is heard.
        life: Of the connection, which says how long to wait, and names the brokers.

    Returns:
        Its number of partitions.

    Raises:
        DestinationUnavailableError: There is no such topic, or none of its partitions is known.
        AccessDeniedError: This user may not know of it.
        ReconnectTimeoutError: No broker answered in time.
    """
    if not is_topic_name(topic):  # the library would raise errors of its own kinds
        raise DestinationUnavailableError(f"no topic may be called {topic!r}: {TOPIC_NAME}")
    patience = None if life is None else Patience(life)
    until = time.monotonic() + wait_s
    found = None
    while found is None:
        try:
            found = handle.list_topics(topic, min(wait_s, STEP_S))
        except KafkaException as failure:
            if life is not None and patience is not None:
                if patience.is_over:
                    raise life.too_long(f"topic {topic!r}") from failure
            elif time.monotonic() >= until:
                text = f"no broker answered within {wait_s:g} s: {failure.args[0].str()}"
                raise ReconnectTimeoutError(text) from failure
    asked = found.topics.get(topic)
    return _partitions_of(topic, asked)


def _partitions_of(topic: str, found: Any) -> int:
    if found is None or (
        found.error is not None and found.error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
    ):
        raise DestinationUnavailableError(
            f"there is no topic {topic!r}; `uow topics create` makes those of a destination"
        )
    if found.error is not None and meaning_of(found.error) is Meaning.NOT_AUTHORISED_FOR_TOPIC:
        raise AccessDeniedError(denied_text(topic))
    if found.error is not None or not found.partitions:
        raise DestinationUnavailableError(f"topic {topic!r} is not available: {found.error}")
    return len(found.partitions)


def log_start(handle: ConsumerHandle, tp: tuple[str, int]) -> int:
    """Offset of the first record that is left. `get_watermark_offsets` may give the end instead (librdkafka 2.16, after a refusal).

    Raises:
        KafkaException: Refused, or not answered in time.
    """
    (found,) = handle.offsets_for_times([TopicPartition(*tp, OFFSET_BEGINNING)], BLOCKING_S)
    if found.error is not None:
        raise KafkaException(found.error)
    return found.offset


def coordinates(record: ConsumedRecord) -> tuple[str, int, int]:
    """Topic, partition and offset of a record that was read."""
    topic, partition, offset = record.topic(), record.partition(), record.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return topic, partition, offset


def raw_headers(record: ConsumedRecord) -> Headers:
    """All header pairs, in order, none collapsed (W-23).

    Through `map`, as in `uow.processor.core.columns.look_at_headers`, which says why: a direct call may hide that a name is no UTF-8.

    Raises:
        DecodeError: A name is no UTF-8. The headers of this record must not be read again.
    """
    try:
        pairs: Sequence[tuple[str, bytes | None]] = next(map(type(record).headers, (record,))) or ()
    except (UnicodeDecodeError, SystemError) as error:
        raise DecodeError("headers", "a header name is no UTF-8") from error
    return list(pairs)
