"""The one factory of librdkafka handles: every property that we set, with its reason, in one place.

Belongs here: properties, and loggers of handles. Does not belong here: the use of a handle (`source`, `transactional_producer`, `log_reader`).
`[kafka]` of the user goes first and ours on top; a property that would break a promise is refused earlier, by name (`uow.config.loading`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

from uow.processor.kafka.bounded import BoundedProducer
from uow.processor.kafka.doubt import LOG_LEVEL
from uow.processor.kafka.outage import Outage
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.topics.admin import Admin
from uow.topics.catalogue import RECORD_LIMIT_BYTES

CONSUMER = {
    "fetch.queue.backoff.ms": "20",  # else a reader that empties a full queue waits for the rest of a second
}

GROUP_CONSUMER = {
    "enable.auto.commit": "false",  # positions move in our transactions only
    "enable.auto.offset.store": "false",
    "auto.offset.reset": "error",  # a silent reset is loss or replay; the first start is explicit (ER-20)
    "isolation.level": "read_committed",
    "partition.assignment.strategy": "cooperative-sticky",
    "enable.partition.eof": "true",  # the only sign that a partition is read to its end when markers end it (W-82)
    "fetch.wait.max.ms": "100",
    "queued.max.messages.kbytes": "4096",  # per partition; beside memory_limit_bytes, and more is read back from main memory
    # The next fetch then: the limit above counts values only, and a record can be a megabyte of headers. A partition with more is left out of
    # fetches, and one that asks for silent partitions only waits `fetch.wait.max.ms`: so not fewer than come in while a transaction is written
    "queued.min.messages": "64",
    "fetch.queue.backoff.ms": "4",  # so that it comes in time
}

LOG_CONSUMER = {
    "max.poll.interval.ms": "86400000",  # no member: one that is meant for members may be shorter than the library's session
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "auto.offset.reset": "earliest",  # a log start that retention moved meanwhile; the ledger's chain tells if it mattered
    "enable.partition.eof": "true",
    "fetch.wait.max.ms": "20",  # a restore waits for the last fetch of each partition
    "fetch.message.max.bytes": "8388608",
    "fetch.max.bytes": "67108864",
    "queued.min.messages": "200000",
    "queued.max.messages.kbytes": "131072",
}

CONTENT_CONSUMER = {
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",  # an offset that retention took is an error, not skipped
    "fetch.message.max.bytes": "1048576",
    "queued.max.messages.kbytes": "2048",
    "fetch.queue.backoff.ms": "2",  # each jump empties the queue
}

PATH_CONSUMER = {
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": "500",
    "fetch.message.max.bytes": "1048576",
    "queued.min.messages": "20000",  # a claim is a key: the library counts values only
    "queued.max.messages.kbytes": "8192",
}

PRODUCER = {
    "partitioner": "murmur2_random",  # one key, one partition, whichever client sends (W-109)
    "linger.ms": "100",  # the commit sends at once; earlier, and librdkafka's thread spins until the partition's first request is answered
    "retry.backoff.ms": "1",  # else a transaction sleeps 100 ms while markers of the last one are still written
    "queue.buffering.max.messages": "1000000",
    "message.max.bytes": str(RECORD_LIMIT_BYTES),
    "batch.num.messages": "100000",
    "allow.auto.create.topics": "false",
    # A re-bootstrap ends the thread of a broker that the library still takes for the group's coordinator: sending offsets then waits for
    # it for ever (librdkafka issue 5511). After a broken connection the producer is replaced anyway, and bootstraps as it begins
    "metadata.recovery.strategy": "none",
}

CONNECTION = {
    "reconnect.backoff.ms": "100",
    "reconnect.backoff.max.ms": "1500",
    "socket.connection.setup.timeout.ms": "6000",
    "socket.keepalive.enable": "true",
    "topic.metadata.refresh.interval.ms": "30000",
}


class HandleLog(logging.Handler):
    """Receives librdkafka's log lines of one handle, hands them to `on_line`, each one, and to the worker's log, where repeats are counted.

    Lines about properties of the other kind of handle (`CONFWARN`) are dropped: `[kafka]` is one table for all handles.
    """

    def __init__(
        self, target: logging.Logger, on_line: Callable[[str], None] | None = None, outage: Outage | None = None
    ) -> None:
        super().__init__()
        self._target, self._on_line, self._outage = target, on_line, outage or Outage()

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if self._on_line is not None:
            self._on_line(line)
        if not line.startswith("CONFWARN"):
            # A broken connection is the library's to mend: it logs it at INFO or ERROR by taste, people need it once, as a warning
            level = logging.DEBUG if line.endswith(": retrying") else min(record.levelno, logging.WARNING)
            if self._target.isEnabledFor(level) and (shown := self._outage.line(line)) is not None:
                self._target.log(level, "%s", shown)


class Clients:
    """Makes handles for one worker, or for a command that inspects.

    Args:
        settings: Addresses of brokers, and our names.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings, self._outage = settings, Outage()
        self._common = {
            **settings.kafka,
            **{name: value for name, value in CONNECTION.items() if name not in settings.kafka},
            "bootstrap.servers": settings.bootstrap_servers,
            "log_level": str(LOG_LEVEL),
        }
        self._common.setdefault("client.id", settings.transactional_id)

    def group_consumer(self, on_statistics: Callable[[str], None] = lambda text: None) -> ck.Consumer:
        """Member of the consumer group; subscribes, reads the input. Its statistics come inside its polls (ER-18)."""
        settings = self._settings
        return self._consumer(
            "source",
            GROUP_CONSUMER
            | {
                "stats_cb": on_statistics,
                "statistics.interval.ms": str(settings.session_timeout_ms // 10),
                "session.timeout.ms": str(settings.session_timeout_ms),
                "heartbeat.interval.ms": str(max(100, min(1000, settings.session_timeout_ms // 3))),
            },
        )

    def log_consumer(self, isolation: str) -> ck.Consumer:
        """Assigned by hand, never a member; knows the group's name only to ask for its committed offsets.

        Args:
            isolation: `read_committed`; or `read_uncommitted`, for end offsets (ER-06).
        """
        return self._consumer("reader", LOG_CONSUMER | {"isolation.level": isolation})

    def content_consumer(self) -> ck.Consumer:
        """Reads single records, with a jump from one to the next: what is fetched ahead is mostly thrown away."""
        return self._consumer("contents", LOG_CONSUMER | CONTENT_CONSUMER)

    def content_properties(self) -> dict[str, Any]:
        """Those of `content_consumer`, for a handle that is not the client's (`uow.processor.kafka.header_lookup`)."""
        return self._consumer_properties(LOG_CONSUMER | CONTENT_CONSUMER)

    def path_consumer(self) -> ck.Consumer:
        """Follows a path map; waits for news at the broker, not here."""
        return self._consumer("paths", LOG_CONSUMER | PATH_CONSUMER)

    def path_producer(self) -> ck.Producer:
        """Writes claims of the path map, outside transactions."""
        properties = {
            **self._common,
            "enable.idempotence": "true",
            "linger.ms": "0",
            "allow.auto.create.topics": "false",
        }
        return ck.Producer(properties, logger=_handle_logger("paths", self._outage))

    def producer(self, on_line: Callable[[str], None], spare: int = 0) -> ck.Producer:
        """The transactional producer; its log lines go to `on_line` as well (ER-11). With a number, of a spare id (decision 102)."""
        settings = self._settings
        properties = {
            **self._common,
            **{name: value for name, value in PRODUCER.items() if name not in settings.kafka},
            "enable.idempotence": "true",
            "transactional.id": settings.transactional_id + (f"~{spare}" if spare else ""),
            "transaction.timeout.ms": str(settings.transaction_timeout_ms),
            "socket.timeout.ms": str(
                min(12_000, settings.transaction_timeout_ms)
            ),  # more is refused; noticed within a transaction
        }
        return BoundedProducer(properties, logger=_handle_logger("sink", self._outage, on_line))

    def admin(self) -> AdminClient:
        """For questions about topics."""
        return Admin(self._common, _handle_logger("admin", self._outage))

    def _consumer(self, name: str, properties: dict[str, Any]) -> ck.Consumer:
        return ck.Consumer(self._consumer_properties(properties), logger=_handle_logger(name, self._outage))

    def _consumer_properties(self, properties: dict[str, Any]) -> dict[str, Any]:
        own = {
            key: value
            for key, value in (CONSUMER | properties).items()
            if key not in self._settings.kafka or key in _NEVER_OVERRIDDEN
        }
        return {**self._common, **own, "group.id": self._settings.application_id}


_NEVER_OVERRIDDEN = frozenset(GROUP_CONSUMER) - {
    "fetch.wait.max.ms",
    "queued.max.messages.kbytes",
    "queued.min.messages",
    "fetch.queue.backoff.ms",
} | {"stats_cb", "statistics.interval.ms", "max.poll.interval.ms"}


def _handle_logger(name: str, outage: Outage, on_line: Callable[[str], None] | None = None) -> logging.Logger:
    """A logger of its own per handle: lines of a replaced handle cannot be taken for those of its successor (ER-13)."""
    logger = logging.Logger(f"librdkafka.{name}", logging.DEBUG)  # noqa: LOG001 - outside the tree, one per handle
    logger.addHandler(HandleLog(logging.getLogger(f"uow.librdkafka.{name}"), on_line, outage))
    return logger
