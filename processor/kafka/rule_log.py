"""`A-rules` on librdkafka: every row of a rule that a component was ever stamped with, by its name (aggregation, section 5).

Routers write it in their transactions, and nothing in it is ever changed. A transaction is visible in the components before it is here, or the
other way round; so a reader that misses a name reads to the end offset as a `read_uncommitted` reader sees it, and waits for open
transactions before it.

Its records are input like any other: one that is no row, or no set of rules, is logged with its place, counted, and left out. Whether a row is
to be believed is another question (`uow.processor.rules.trusted_rows`).

Belongs here: polling, and rows by name. Does not belong here: what a row means to a group (`uow.topics.grouping`), writing it
(`uow.processor.kafka.router`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

import confluent_kafka as ck

from uow.processor.engine.ports import Doubt, Meanwhile, Tp
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.error_table import Meaning, is_passing, meaning_of
from uow.processor.kafka.log_reader import KafkaLogReader
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.processor.rules.columns import WrongRows
from uow.processor.rules.mirror import LatestMirror
from uow.schemas.error_classes import DecodeError
from uow.topics.catalogue import RULES_PARTITION, rules_topic
from uow.topics.rules import REFRESH_KEY, RULES_KEY, ResolvedRow

log = logging.getLogger("uow.rules")

ANSWER_S: Final = 15.0
"""Longest wait for the end: a router that died in a transaction holds readers back for ten seconds by default."""
STEP_S: Final = 0.1
CHUNK: Final = 1_000
ROW_SHARE: Final = 2
"""Memory of a row, and of the policy made of it, by the bytes of its record; `tests/rules/test_rule_log.py` measures it."""
MOST_LOGGED: Final = 100
"""Records that are named in the log when they are left out: somebody may write any number of them."""
CHUNKS: Final = 20
"""Most chunks in one go: somebody who appends faster than we read must not keep us here."""


class KafkaRuleLog:
    """The rows as far as they were read. For one thread.

    Args:
        topic: `A-rules`.
        make_consumer: Makes a `read_committed` consumer that is assigned by hand, and begins where the log does when its offset is gone.
        end_offset: The log's end, as a `read_uncommitted` reader sees it; insists on an answer.
        on_refresh: Called when somebody asks for a look at the source.
        monotonic: Seconds, from anywhere.

    Attributes:
        rows: Row by its name: the first one after its version was there, since routers write that before; else the last.
        latest: The mirror.
        row_bytes: About the memory that they and their policies take: part of `memory_limit_bytes`.
        ignored: Records whose value is not the row that their key names.
    """

    def __init__(
        self,
        topic: str,
        make_consumer: Callable[[], Any],
        end_offset: Callable[[Meanwhile], int],
        on_refresh: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topic, self._make_consumer, self._end_offset = topic, make_consumer, end_offset
        self._on_refresh, self._monotonic = on_refresh, monotonic
        self._consumer: Any = None
        self._next = 0
        self.rows: dict[str, ResolvedRow] = {}
        self._provisional: set[str] = set()
        self.latest = LatestMirror()
        self.row_bytes = self.ignored = 0
        self._are_counted = True
        self._targets: frozenset[str] = frozenset()

    @property
    def mirror(self) -> bytes | None:
        """All rules of the latest version (`uow.processor.rules.mirror`); None if there are none, or they fit into no record."""
        return self.latest.data

    @property
    def mirror_version(self) -> int:
        """The latest version, also of rules that fit into no record; 0 if there is none."""
        return self.latest.version

    def follow(self) -> None:
        """Reads the records that are there now; does not wait."""
        for _ in range(CHUNKS):
            if not self._poll(0):
                break

    def catch_up(self, meanwhile: Meanwhile) -> None:
        """Reads to the end offset of now.

        Raises:
            Doubt: It was not reached in time.
        """
        end = self._end_offset(meanwhile)
        until = self._monotonic() + ANSWER_S
        while self._next < end:
            if not self._poll(STEP_S) and self._monotonic() > until:
                raise Doubt(f"{self._topic} was not read to its end in {ANSWER_S:g} s")
            meanwhile()

    def _poll(self, timeout: float) -> int:
        """Reads some records; returns how many."""
        if self._consumer is None:
            self._consumer = self._make_consumer()
            self._consumer.assign([ck.TopicPartition(self._topic, RULES_PARTITION, ck.OFFSET_BEGINNING)])
        count = 0
        for message in self._consumer.consume(CHUNK, timeout):
            error = message.error()
            if error is None:
                count += 1
                self._read(message.key() or b"", message.value(), message.offset())
                self._next = message.offset() + 1
            elif meaning_of(error) is Meaning.END:
                self._next = message.offset()
            elif is_passing(error):
                log.warning("%s: %s: %s", self._topic, error.name(), error.str())
            else:
                raise ck.KafkaException(error)
        return count

    def _read(self, key: bytes, value: bytes | None, offset: int) -> None:
        if key == REFRESH_KEY:
            self._on_refresh()
        elif key == RULES_KEY:
            self._read_mirror(value, offset)
        else:
            self._read_row(key.decode(errors="replace"), value or b"", offset)

    def _read_mirror(self, value: bytes | None, offset: int) -> None:
        try:
            self.latest.read(value)
        except WrongRows as error:
            self._ignore(offset, str(error))

    def _read_row(self, name: str, value: bytes, offset: int) -> None:
        try:
            row = ResolvedRow.decode(value)
        except DecodeError as error:
            self._ignore(offset, str(error))
            return
        if row.name != name:
            self._ignore(offset, f"its key is {name!r}, and its row is {row.name!r}")
        elif name not in self.rows or name in self._provisional:
            before = self.rows.get(name)
            self.rows[name] = row
            self.row_bytes += ROW_SHARE * (len(value) - (len(before.encode()) if before is not None else 0))
            self._are_counted = False
            if row.version > self.latest.version:
                self._provisional.add(name)
            else:
                self._provisional.discard(name)

    def _ignore(self, offset: int, why: str) -> None:
        self.ignored += 1
        if self.ignored <= MOST_LOGGED:
            log.warning("%s/%d/%d is left out: %s", self._topic, RULES_PARTITION, offset, why[:1_000])
            if self.ignored == MOST_LOGGED:
                log.warning("%s: further such records are counted, and not named", self._topic)

    def target_topics(self) -> frozenset[str]:
        """The topics that these rows may write to: targets, and what calls may ask for."""
        if not self._are_counted:
            self._are_counted = True
            self._targets = frozenset(topic for row in self.rows.values() for topic in row.written_topics)
        return self._targets

    def close(self) -> None:
        """Closes the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None


def open_rule_log(settings: WorkerSettings, on_refresh: Callable[[], None] = lambda: None) -> KafkaRuleLog:
    """A reader of `A-rules`; each thread has its own."""
    clients, tp = Clients(settings), Tp(rules_topic(settings.application_id), RULES_PARTITION)

    def end_offset(meanwhile: Meanwhile) -> int:
        with closing(KafkaLogReader(clients, meanwhile)) as reader:
            return reader.bounds([tp])[tp][1]

    return KafkaRuleLog(tp.topic, clients.path_consumer, end_offset, on_refresh)
