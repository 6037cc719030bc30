"""Fan-out: one call sends several requests, and the manifest by which their replies become one unit (aggregation, 6.9, B-77 to B-91).

Theory of operation. A call names no row of a rule, and the worker takes every setting from the log. So the rules are read from `A-rules`, where routers
keep all of them; the row of a call is chosen as a router would choose it, and is written to `A-rules` in the transaction of the call where it is not there yet.

Belongs here: the records of a call, its id, and waiting for its unit. Does not belong here: the text of a manifest (`uow.topics.manifests`), what it
means to a group (`uow.processor.core`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from uow.client.following import Make
from uow.client.kafka_port import STEP_S, ConsumerHandle, Headers, LogWatch, check_topic
from uow.client.library_errors import read_error
from uow.client.outgoing import HASHED, HeaderPairs, OutgoingRecord, Value, header_pairs, value_bytes
from uow.client.reader import Reader
from uow.client.received import ReceivedUnit
from uow.client.session_state import Life
from uow.errors import ReconnectTimeoutError
from uow.processor.kafka.error_table import Meaning, meaning_of
from uow.processor.rules.columns import WrongRows
from uow.processor.rules.mirror import LatestMirror
from uow.processor.rules.rule_set import RuleSet, RuleTables
from uow.schemas.error_classes import ConfigError, RoutingError
from uow.topics.catalogue import RULES_PARTITION, rules_topic
from uow.topics.commands import Command, Verb
from uow.topics.headers import COMPONENT_ID, REPLY_TO, REQUEST_ID
from uow.topics.manifests import (
    Manifest,
    ReplyContext,
    RequestEntry,
    read_manifest,
    request_id,
)
from uow.topics.rules import RULES_KEY, ResolvedRow, Rule

log = logging.getLogger(__name__)

REQUEST_KEY: Final = "request"
"""`group_key` of the rules that gather replies."""
RULES_FRESH_S: Final = 1.0
"""Rules are looked at again after this: a call may be made by the version before, which stays what it was."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a call.

    Attributes:
        topic: Where it goes.
        value: As for `UnitWriter.send`.
        folder: Name of its reply in the unit; several may have the same. Without it that of the topic.
        key: Kafka key; the id of the request without it.
        headers: Further headers. The service needs `uow-request-id`, which is set.
        reply_to: `uow-reply-to`: the topic for the reply, an input of the router.
        weight: What the reply counts for a quorum, 1 to 1,000,000, in calls of up to 1,000 requests (B-209).
        notice_topic: Where the service hears that its reply is needed no longer; one of the rules' `notice_topics`. None: it does not.
    """

    topic: str
    value: Value = None
    folder: str = ""
    key: str | bytes | None = None
    headers: HeaderPairs = None
    reply_to: str | None = None
    weight: int = 1
    notice_topic: str | None = None

    def entry(self) -> RequestEntry:
        """It, as the manifest lists it."""
        return RequestEntry(self.folder or self.topic, self.topic, self.weight, self.notice_topic)


class FanOut:
    """A call whose manifest and requests are committed.

    Attributes:
        id: `uow-id` of the unit that its replies make.
        request_ids: Id of each request, in order.
        topic: Where the unit goes.
    """

    def __init__(
        self, id: str, request_ids: tuple[str, ...], topic: str, reader: Reader[ReceivedUnit] | None = None
    ) -> None:
        self.id, self.request_ids, self.topic = id, request_ids, topic
        self._reader = reader
        self._unit: ReceivedUnit | None = None

    def unit(self, timeout: float | None = None) -> ReceivedUnit | None:
        """Waits for the unit of a call with `awaits=True`; None if it did not come in time: ask again.

        A call whose group ends without a unit (cancelled, failed) has none.

        Args:
            timeout: Seconds; None: for ever.

        Raises:
            ConfigError: The call was made without `awaits`.
            UowError: As `Reader.receive`.
        """
        if self._unit is None and self._reader is None:
            raise ConfigError("awaits", False, "a call that is waited for is made with awaits=True")
        until = None if timeout is None else time.monotonic() + timeout
        while self._unit is None and self._reader is not None:
            left = None if until is None else max(0.0, until - time.monotonic())
            unit = self._reader.receive(left)
            if unit is not None and unit.id == self.id:
                self._unit = unit
                self.close()
            elif unit is None and left is not None:
                return None
        return self._unit

    def close(self) -> None:
        """Waits no longer."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def __repr__(self) -> str:
        return f"FanOut({self.id!r}, {len(self.request_ids)} requests, to {self.topic})"


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call as it is sent.

    Attributes:
        command: The manifest.
        requests: Their records.
        row: The row of the group.
        topic: Where the unit goes.
        is_new: True if the row is not in `A-rules`.
    """

    command: Command
    requests: tuple[OutgoingRecord, ...]
    row: ResolvedRow
    topic: str
    is_new: bool

    @property
    def request_ids(self) -> tuple[str, ...]:
        """In order."""
        count = len(self.requests)
        return tuple([request_id(self.command.group_id.decode(), number) for number in range(1, count + 1)])


class CallRules:
    """The rules that gather replies, as routers keep them in `A-rules`. For any thread.

    Args:
        make: Makes a consumer that is told of the ends of partitions.
        application: `application.id` of the workers.
        life: Of the connection.
    """

    def __init__(self, make: Make, application: str, life: Life) -> None:
        self._make, self._application, self._life = make, application, life
        self.topic = rules_topic(application)
        self._lock = threading.Lock()
        self._handle: ConsumerHandle | None = None
        self._next = 0
        self._read_at = -RULES_FRESH_S
        self._rows: set[bytes] = set()
        self._rules = RuleSet(RuleTables())
        self._mirror = LatestMirror()

    def plan(
        self,
        destination: str,
        name: str,
        requests: Sequence[Request],
        timeout_ms: int | None,
        reply: ReplyContext,
        rule_id: str | None,
        units: str,
    ) -> PlannedCall:
        """The records of a call.

        Raises:
            ConfigError: No rule of the destination gathers replies, or several do and none is named; the rules do not allow what the call asks for.
            RoutingError: The rule has no row for the name. Case `no-rule`.
            DecodeError: The manifest is none. Case `manifest`.
            TypeError: A value or header cannot be sent.
            UowError: `A-rules` cannot be read.
        """
        with self._lock:
            self._refresh()
            rule = self._rule(destination, rule_id)
            row = self._rules.resolve(rule, name, round(time.time() * 1000))
            is_new = row is not None and row.name.encode() not in self._rows
        if row is None:
            raise RoutingError(f"rule {rule.rule_id}, routing name {name!r}", case="no-rule")
        group_id = f"{rule.rule_id}/{name}/{uuid4().hex}"
        listed = tuple([each.entry() for each in requests])
        manifest = read_manifest(Manifest(name, listed, timeout_ms, reply).encode())
        topic = row.row.target_topic or units
        if reply.topic not in (None, topic, *row.reply_topics):
            raise ConfigError("reply.topic", reply.topic, "neither the row's target nor among the rules' reply_topics")
        for each in listed:
            if each.notice_topic not in (None, *row.notice_topics):
                raise ConfigError("notice_topic", each.notice_topic, "is not among the rules' notice_topics")
        command = Command(
            f"fan-out {group_id}".encode(),
            Verb.MANIFEST,
            group_id.encode(),
            f"fan-out {name}",
            rule=row.name,
            manifest=manifest,
        )
        records = tuple(
            [_request_record(each, request_id(group_id, number)) for number, each in enumerate(requests, 1)]
        )
        return PlannedCall(command, records, row, reply.topic or topic, is_new)

    def _rule(self, destination: str, rule_id: str | None) -> Rule:
        found = [
            rule
            for rule in self._rules.rules
            if rule.destination == destination and rule.group_key.partition(":")[0] == REQUEST_KEY
        ]
        if rule_id is not None:
            found = [rule for rule in found if rule.rule_id == rule_id]
        if len(found) == 1:
            return found[0]
        known = ", ".join(rule.rule_id for rule in found)
        why = (
            f"several gather replies for {destination}: {known}"
            if found
            else f"none in {self.topic} gathers replies for {destination}"
        )
        if self._mirror.version and self._mirror.data is None:
            why += f", and version {self._mirror.version} is too large for that topic"
        raise ConfigError("rule", rule_id, why)

    def _refresh(self) -> None:
        """Reads `A-rules` to its end, if that was not done just now."""
        if not self._application:
            raise ConfigError("application", "", "a call needs the application.id of the workers, to read its rules")
        clock = self._life.clock
        if clock() - self._read_at < RULES_FRESH_S and self._rules.version:
            return
        tp = TopicPartition(self.topic, RULES_PARTITION)
        try:
            if self._handle is None:
                self._handle = self._opened()
            _, end = self._handle.get_watermark_offsets(tp, self._life.waits.answer_s)
            until = clock() + self._life.waits.answer_s
            while self._next < end and clock() < until:
                self._poll(self._handle)
        except (KafkaException, TypeError) as failure:  # no watermarks in time: None
            error = failure.args[0]
            raised = read_error(error, self.topic) if isinstance(error, KafkaError) else None
            raise raised or ReconnectTimeoutError(f"{self.topic} cannot be read: {failure}") from failure
        if self._next < end:  # the row that a call needs may be among the rest
            raise self._life.too_long(f"{self.topic} was read to {self._next} of {end}")
        self._read_at = clock()

    def _opened(self) -> ConsumerHandle:
        handle = self._make(LogWatch().logger)
        try:
            check_topic(handle, self.topic, life=self._life)
            handle.assign([TopicPartition(self.topic, RULES_PARTITION, OFFSET_BEGINNING)])
        except BaseException:
            handle.close()
            raise
        return handle

    def _poll(self, handle: ConsumerHandle) -> None:
        """Reads a record, or learns where the end is: behind the marks of transactions, which are no records."""
        record = handle.poll(STEP_S)
        if record is None:
            return
        error = record.error()
        if error is not None:
            if meaning_of(error) is Meaning.END:
                self._next = record.offset() or 0
            elif meaning_of(error) is not Meaning.PASSING:
                raise KafkaException(error)
            return
        self._next = (record.offset() or 0) + 1
        key, value = record.key() or b"", record.value()
        if key == RULES_KEY:
            try:
                tables = self._mirror.read(value)
            except WrongRows as error:  # those before it hold, as for workers
                log.warning(
                    "%s/%d/%s is left out: %s", self.topic, RULES_PARTITION, record.offset(), str(error)[:1_000]
                )
            else:
                self._rules = self._rules if tables is None else RuleSet(tables)
        else:
            self._rows.add(key)

    def record(self, row: ResolvedRow) -> OutgoingRecord:
        """The record of a row for `A-rules`; the same bytes as a router's."""
        return OutgoingRecord(self.topic, row.name.encode(), row.encode(), [], RULES_PARTITION)

    def close(self) -> None:
        """Closes the consumer."""
        with self._lock:
            if self._handle is not None:
                self._handle.close()
                self._handle = None


def _request_record(request: Request, id: str) -> OutgoingRecord:
    own = [pair for pair in header_pairs(request.headers) if pair[0] not in (REQUEST_ID, COMPONENT_ID, REPLY_TO)]
    marks: Headers = [(REQUEST_ID, id.encode()), (COMPONENT_ID, id.encode())]
    if request.reply_to is not None:
        marks.append((REPLY_TO, request.reply_to.encode()))
    key = request.key if request.key is not None else id
    raw_key = key.encode() if isinstance(key, str) else key
    return OutgoingRecord(request.topic, raw_key, value_bytes(request.value), [*own, *marks], HASHED)
