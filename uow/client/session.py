"""Everything of a connection that has a life of its own: its state, its watch, and the handles that it made, which end in one place and order.

Closing order: readers (each commits its hop first), transactions (open ones are aborted), the plain producer, then the callbacks. The same happens
when a loss event or the total time ends the connection, without waiting for brokers.

Belongs here: who owns a handle, and its end. Does not belong here: when a connection ends (`uow.client.session_state`), the calls of applications
(`uow.client.connection`).
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from uow.client.answers import Answers
from uow.client.consumption import Consumption
from uow.client.fan_out import CallRules
from uow.client.following import Follower
from uow.client.kafka_port import (
    SESSION_TIMEOUT_MS,
    ConsumerHandle,
    HeaderLookupHandle,
    KafkaPort,
    Librdkafka,
    LogWatch,
    ProducerHandle,
    consumer_properties,
    plain_producer_properties,
    transactional_properties,
)
from uow.client.path_claims import FOLLOWING, OpenLog, PathClaims
from uow.client.references import END_EVENTS
from uow.client.refusals import OnRejected, Refusals
from uow.client.sending import PlainSender
from uow.client.session_state import Ended, Life, Listener
from uow.client.session_watch import LEAVES_THE_SILENT, Watch
from uow.client.streaming import SMALL_BUFFERS
from uow.client.strict_order import StrictDestinations, StrictTopics
from uow.client.temporary import TemporaryDestinations
from uow.client.transaction import Transactions
from uow.errors import ClientClosedError, DuplicateClientIdError
from uow.processor.engine.ports import PathLog
from uow.processor.kafka.coordinator_liveness import CoordinatorLiveness
from uow.processor.kafka.path_log import KafkaPathLog
from uow.schemas.codec import SchemaSource
from uow.topics.admin import admin_client
from uow.topics.catalogue import DestinationTopics
from uow.topics.path_map import PathMap

OPEN: Final[dict[str, Session]] = {}
"""The sessions of this process that nobody closed, by id of their connection: nothing relies on garbage collection (R-65)."""
_OPENING: Final = threading.Lock()


def _leave_behind() -> None:
    _OPENING.release()
    for session in OPEN.values():
        session.left_behind()  # and they stay: a handle that is freed here waits for threads that are not there, or ends the process


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_OPENING.acquire, after_in_parent=_OPENING.release, after_in_child=_leave_behind)


class Handles:
    """Makes the handles of one connection, of one set of properties.

    Args:
        servers: Bootstrap addresses.
        client_id: For the broker's logs, and the base of group instance ids; None: without a name of its own.
        kafka: The application's properties.
        port: Makes the library's handles.
        transaction_ms: Time-out of transactions.
        linger_ms: How long a single record waits for others, unless the application says.
    """

    def __init__(
        self,
        servers: str,
        client_id: str | None,
        kafka: Mapping[str, Any],
        port: KafkaPort,
        transaction_ms: int,
        linger_ms: float = 0,
    ) -> None:
        self.client_id = client_id or "uow"
        self.identity = (client_id, frozenset(servers.split(","))) if client_id else None
        self._servers, self._kafka, self._port = servers, kafka, port
        self._transaction_ms = transaction_ms
        self._single = {"linger.ms": linger_ms, **kafka}

    def watching(self, on_error: Callable[[KafkaError], None], logger: logging.Logger) -> ProducerHandle:
        """For the watch: sends nothing."""
        properties = plain_producer_properties(self._servers, self.client_id, self._kafka)
        # an idempotent producer asks for a number at once, which a client that only reads has no right to
        properties |= {"enable.idempotence": False, "error_cb": on_error}
        if LEAVES_THE_SILENT.keys() & self._kafka.keys():
            self._port.producer(properties, logger)  # refuses what is no value; all other handles take it
        return self._port.producer({**properties, **LEAVES_THE_SILENT}, logger)

    def transactional(self, transactional_id: str, logger: logging.Logger) -> ProducerHandle:
        """For one transactional id."""
        properties = transactional_properties(
            self._servers, self.client_id, transactional_id, self._kafka, self._transaction_ms
        )
        return self._port.producer(properties, logger)

    def plain(self, logger: logging.Logger) -> ProducerHandle:
        """For records outside transactions."""
        return self._port.producer(plain_producer_properties(self._servers, self.client_id, self._single), logger)

    def consumer(self, group: str | None, kafka: Mapping[str, Any]) -> Callable[[logging.Logger], ConsumerHandle]:
        """Makes consumers of a group; without one, for reading alone."""
        properties = self._consumer_properties(group, kafka)
        return lambda logger: self._port.consumer(properties, logger)

    def member(
        self, group: str | None, kafka: Mapping[str, Any]
    ) -> tuple[Callable[[logging.Logger], ConsumerHandle], CoordinatorLiveness]:
        """The same, for a reader: with what their statistics say of the group's coordinator (S-29)."""
        properties = self._consumer_properties(group, kafka)
        session_ms = int(properties.get("session.timeout.ms", SESSION_TIMEOUT_MS))
        liveness, theirs = CoordinatorLiveness(session_ms), properties.get("stats_cb", _nothing)
        if group is not None:
            asked_ms = int(properties.get("statistics.interval.ms", 0)) or session_ms

            def on_statistics(text: str) -> None:
                liveness.on_statistics(json.loads(text))
                theirs(text)

            properties |= {"stats_cb": on_statistics, "statistics.interval.ms": min(asked_ms, session_ms // 10)}
            properties.setdefault("heartbeat.interval.ms", min(3000, session_ms // 3))
        return lambda logger: self._port.consumer(properties, logger), liveness

    def header_lookups(self, kafka: Mapping[str, Any]) -> Callable[[], HeaderLookupHandle]:
        """Makes handles that look for headers which the client does not show."""
        properties = self._consumer_properties(None, {**SMALL_BUFFERS, **kafka})
        return lambda: self._port.header_lookup_handle(properties)

    def _consumer_properties(self, group: str | None, kafka: Mapping[str, Any]) -> dict[str, Any]:
        given = {**self._kafka, **kafka}
        return consumer_properties(self._servers, self.client_id, group or f"uow-{uuid4().hex}", given)

    def admin_clients(self) -> Callable[[], AdminClient] | None:
        """Makes admin clients; a port that is not the library's has none."""
        kafka = {name: str(value) for name, value in self._kafka.items()}
        return (
            partial(admin_client, self._servers, kafka, LogWatch().logger)
            if isinstance(self._port, Librdkafka)
            else None
        )

    def path_logs(self) -> OpenLog:
        """Opens logs of path maps."""
        consumer = self.consumer(None, FOLLOWING)

        def open_log(topics: DestinationTopics, paths: PathMap) -> tuple[PathLog, ConsumerHandle]:
            handle = consumer(LogWatch().logger)
            return KafkaPathLog(topics, paths, lambda: handle, lambda: self.plain(LogWatch().logger)), handle

        return open_log

    def followers(self) -> Callable[[str], Follower]:
        """Follows topics from now on."""
        make = self.consumer(None, SMALL_BUFFERS)
        return lambda topic: Follower(make, topic)


def _nothing(text: str) -> None:
    """Most applications ask for no statistics."""


class Session:
    """The life of one connection, and what it owns. For any thread.

    Args:
        life: Its state.
        handles: Makes its handles.
        base: Of transactional ids.
        application: Whose path maps it reads.
        registry: For answers to commands.
        on_rejected: Hears of refused components.
        listener: Hears of what happens to the connection.
    """

    def __init__(
        self,
        life: Life,
        handles: Handles,
        base: str,
        application: str,
        registry: SchemaSource | None,
        on_rejected: OnRejected | None,
        listener: Listener | None,
    ) -> None:
        self.id = uuid4().hex
        self.rolls_back_on_refresh = False
        self.life, self.handles = life, handles
        self._registry = registry
        self.path_claims = PathClaims(application, handles.path_logs())
        self.strict = StrictDestinations(handles.consumer(None, END_EVENTS), handles.admin_clients())
        known_topics = StrictTopics(self.strict, self.path_claims.is_elastic)
        self.transactions = Transactions(base or f"uow-{self.id}", handles.transactional, known_topics, life)
        self.plain = PlainSender(handles.plain, known_topics, life)
        self.refusals: Refusals | None = None
        if on_rejected is not None:
            self.refusals = Refusals(self.id.encode(), on_rejected, handles.followers())
        self.temporary = TemporaryDestinations(self.id, self.strict.admin)
        self._answers: dict[str, Answers] = {}
        self.call_rules = CallRules(handles.consumer(None, {**END_EVENTS, **SMALL_BUFFERS}), application, life)
        self._readers: list[tuple[Consumption, weakref.ref[Any]]] = []
        self._opening: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        life.has_listener = listener is not None
        self._watch = Watch(life, handles.watching, listener, self._end_by_itself)

    def open(self) -> None:
        """Waits for a broker, as long as calls wait.

        Raises:
            DuplicateClientIdError: A live connection of this process has the client id.
            ReconnectTimeoutError: None answered in time; nothing is left open.
            ReconnectGivenUpError: The brokers refuse this client.
        """
        identity = self.handles.identity
        with _OPENING:
            if identity and any(each.handles.identity == identity and not each.life.ended for each in OPEN.values()):
                self.life.close()
                raise DuplicateClientIdError(f"client id {identity[0]!r} is in use by a connection of this process")
            OPEN[self.id] = self
        self._watch.start()
        try:
            if self.life.waits.blocking_ms:
                self.life.wait()
        except BaseException:
            self.close(0.0)
            raise

    # -- what it owns

    def answers_of(self, destination: str) -> Answers:
        """The answers to commands to a destination."""
        with self._lock:
            if destination not in self._answers:
                outcomes, follow = DestinationTopics("", destination).outcomes, self.handles.followers()
                self._answers[destination] = Answers(lambda: follow(outcomes), self._registry)
            return self._answers[destination]

    def adopt(self, consumption: Consumption, reader: Any) -> None:
        """A reader ends with the session at the latest, and where the policy does not refresh it, with a loss event."""
        with self._lock:
            self._readers.append((consumption, weakref.ref(reader)))
        self.life.watch_over(consumption, consumption.scope)

    def hand_over(self, consumption: Consumption, reader: Any) -> None:
        """It belongs to that reader now, for as long as somebody refers to that."""
        with self._lock:
            self._readers = [
                (each, weakref.ref(reader) if each is consumption else owner) for each, owner in self._readers
            ]

    @contextmanager
    def instance_of(self, group: str | None) -> Iterator[str]:
        """The name of a static member of a group: the client id, and a number where several of this connection read in one group (R-39).

        Until it is left, the name is not given to another one. Empty without a group, or a client id.
        """
        if group is None or self.handles.identity is None:
            yield ""
            return
        base = self.handles.client_id
        with self._lock:
            taken = {each.instance for each, _ in self._readers if each.group == group and not each.is_closed}
            names = (f"{base}-{number}" if number else base for number in itertools.count())
            name = next(each for each in names if each not in taken and (group, each) not in self._opening)
            self._opening.add((group, name))
        try:
            yield name
        finally:
            with self._lock:
                self._opening.remove((group, name))

    def close_abandoned(self, topic: str, group: str | None) -> None:
        """A reader whose loop was left would keep its partitions from its successor, which waits for it for ever."""
        with self._lock:
            for each, _ in self._readers:
                if each.is_closed:
                    self.life.forget(each)
            self._readers = [each for each in self._readers if not each[0].is_closed]
            abandoned = [
                each
                for each, reader in self._readers
                if reader() is None and (each.topic, each.group) == (topic, group)
            ]
        for consumption in abandoned:
            consumption.close()

    # -- the end

    def left_behind(self) -> None:
        """In a child of fork: none of its threads is there, and its sockets are the parent's. So each call says that it is closed, and nothing is done to it."""
        ended = self.life.left_behind()
        self._lock = threading.Lock()
        for consumption, _ in self._readers:
            consumption.left_behind(ended)
        self.transactions.left_behind(ended)
        self.plain.left_behind(ended)

    def _end_by_itself(self) -> None:
        """A loss event or the total time ended it: its handles go, without waiting for brokers."""
        OPEN.pop(self.id, None)
        ended = self.life.ended
        assert ended is not None
        self._release(ended, 0.0)

    def close(self, timeout: float) -> None:
        """Ends it, in `timeout` seconds. A second call does nothing."""
        was_stale = self.life.ended is not None
        if not self.life.close():
            return
        OPEN.pop(self.id, None)
        until = time.monotonic() + timeout
        if not was_stale:
            self._release(self.life.closed_now("close() of its connection"), timeout)
        self._watch.close(max(1.0, until - time.monotonic()))

    def _release(self, ended: Ended, timeout: float) -> None:
        until = time.monotonic() + timeout

        def left() -> float:
            return max(0.0, until - time.monotonic())

        with self._lock:
            readers = [consumption for consumption, _ in self._readers]
        for consumption in readers:
            consumption.end(ended, left())
        self.transactions.end(ended, left())
        self.plain.end(ended, left())
        self.path_claims.close()
        self.call_rules.close()
        for answers in self._answers.values():
            answers.close()
        if self.refusals is not None:
            self.refusals.close()
        if ended.kind is ClientClosedError and self.life.is_connected:
            self.temporary.delete(left())
