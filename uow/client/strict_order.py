"""Strict order, as applications meet it: the rules of `D.registry` are asked for at the first use of D, and applied to sends and readers (S-02).

Theory of operation. A destination is strict because `D.registry` says so, whatever the application's own configuration is. The view of it is
refreshed every `REFRESH_S`; one that cannot be refreshed stays as it was. An era names the topics by id and by partition count: a topic that was made
again, or has more partitions, is another destination, and everything stops until the operator has adopted it.

Keys of a strict destination are hashed here, over the partition count of the era: no metadata that the library hears of later moves a key.

Belongs here: those rules as checks. Does not belong here: the records (`uow.topics.strict_registry`), reading them (`uow.client.strict_log`), the
latch of plain producers (`uow.client.order_latch`), and blocking (`uow.client.blocking`).
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

from confluent_kafka import ConsumerGroupState, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from uow.client.kafka_port import (
    BLOCKING_S,
    REFRESH_S,
    REFRESH_TIMEOUT_S,
    ConsumerHandle,
    KnownTopics,
    LogWatch,
    ProducerHandle,
    check_topic,
)
from uow.client.outgoing import HASHED, OutgoingRecord
from uow.client.session_state import Life
from uow.client.strict_log import read_registry, record_of, registry_topic
from uow.errors import (
    AlreadyAttachedError,
    DestinationChangedError,
    DestinationUnavailableError,
    OrderConfigError,
    ReconnectTimeoutError,
    SubscriptionExpiredError,
)
from uow.processor.kafka.bounded import Call
from uow.topics import admin
from uow.topics.headers import DELIVERY_MODE, PRIORITY, decimal
from uow.topics.partitioner import partition_for
from uow.topics.policies import StrictAttach, StrictProducers, StrictTopology
from uow.topics.strict_order import OrderOverrideWarning, overrides
from uow.topics.strict_registry import Era, OrderGap, StrictRegistry, StrictRules, Subscription

log = logging.getLogger(__name__)

Make = Callable[[logging.Logger], ConsumerHandle]
"""Makes a consumer that tells the end of a partition."""
IDS_S: Final = 1.0
"""Topic ids are asked for again before a commit, if the last answer is older: no position of ours gets into a topic that was made again (S-15)."""
PLAIN_S: Final = 1.0
"""So long a topic that was asked for in time passes without any further look: most sends."""
ATTACHED_S: Final = 0.5
"""Interval at which a reader without partitions asks who has them."""
USUAL_PRIORITY: Final = 4
PERSISTENT: Final = b"persistent"
_SUFFIXES: Final = (".components", ".units")


class Way(StrEnum):
    """How a record is sent."""

    TRANSACTED = "transacted"
    PLAIN = "plain"
    REPAIR = "repair"
    """By an operator: it takes its place at the end, and its number says where it belongs."""


@dataclass(slots=True)
class StrictView:
    """A strict destination, as it was last seen.

    Attributes:
        registry: What `D.registry` says.
        trouble: The difference to the era, if there is one.
        until: When it is looked at again.
        ids_until: When the topic ids are.
    """

    registry: StrictRegistry
    trouble: DestinationChangedError | None
    until: float
    ids_until: float = 0.0

    @property
    def rules(self) -> StrictRules:
        assert self.registry.rules is not None
        return self.registry.rules

    @property
    def era(self) -> Era:
        assert self.registry.era is not None
        return self.registry.era

    def require_unchanged(self) -> None:
        """Raises `DestinationChangedError` if topics are not those of the era."""
        if self.trouble is not None:
            raise self.trouble


def destination_of(topic: str) -> str | None:
    """The destination whose input or output a topic is by its name; None for any other topic."""
    return next((topic.removesuffix(suffix) for suffix in _SUFFIXES if topic.endswith(suffix)), None)


class StrictDestinations:
    """The strict destinations that a connection uses. For any thread.

    Args:
        make: Makes a consumer that tells the end of a partition.
        make_admin: Makes an admin client; None where there is none: topic ids and other readers are not asked for then.
        clock: Seconds, from anywhere.

    Attributes:
        overridden: Number of overrides, by setting (S-27).
    """

    def __init__(
        self, make: Make, make_admin: Callable[[], AdminClient] | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.overridden: Counter[str] = Counter()
        self._make, self._make_admin, self._clock = make, make_admin, clock
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None
        self._views: dict[str, StrictView] = {}
        self._absent: dict[str, float] = {}
        self._looks: dict[str, Call] = {}
        """Those under way."""

    def of(self, destination: str, handle: Any, is_new: bool = False, life: Life | None = None) -> StrictView | None:
        """The destination, if it is strict. Callers share one look at it, and each waits as long as its own call may.

        Args:
            destination: Its name.
            handle: Producer or consumer, which is asked whether the destination has a registry; None: the answer is known to be yes.
            is_new: True to look again in any case.
            life: Of the connection that sends, which says how long calls wait; None: as long as a call waits by default.

        Raises:
            ReconnectTimeoutError: At the first use: no broker answered in time.
            DecodeError, OrderConfigError: `D.registry` cannot be understood.
        """
        now = self._clock()
        limit = BLOCKING_S if life is None else life.waits.answer_s
        with self._lock:
            view = self._views.get(destination)
            is_known = not is_new and (view is not None or destination in self._absent)
            if is_known and (now < self._known_until(destination) or (life is not None and not life.is_connected)):
                return view  # without a connection it stays as it was
            look = None if is_new else self._looks.get(destination)
            if look is None:
                limit = min(limit, REFRESH_TIMEOUT_S) if is_known else limit
                look = Call(partial(self._refresh, destination, handle, limit, is_known))
                self._looks[destination] = look
        if not look.returned(limit) and not is_known:
            what = f"{registry_topic(destination)} cannot be read"
            raise ReconnectTimeoutError(what) if life is None else life.too_long(what)
        with self._lock:
            return self._views.get(destination)

    def _known_until(self, destination: str) -> float:
        view = self._views.get(destination)
        return self._absent.get(destination, 0.0) if view is None else view.until

    def _refresh(self, destination: str, handle: Any, wait_s: float, is_known: bool) -> None:
        """Looks at a destination, in a thread of its own, and keeps what it finds. Raises as `of`."""
        view: StrictView | None = None
        try:
            view = self._look(destination, handle, wait_s)
        except (ReconnectTimeoutError, DestinationUnavailableError):
            if not is_known:
                raise
            view = self._views.get(destination)  # it stays as it was
            if view is not None:
                view.until = self._clock() + REFRESH_S
        finally:
            with self._lock:
                self._looks.pop(destination, None)
        with self._lock:
            if view is None:
                self._absent[destination] = self._clock() + REFRESH_S
                self._views.pop(destination, None)
            else:
                self._views[destination] = view

    def is_absent(self, destination: str) -> bool:
        """True if the destination is known not to be strict."""
        return self._clock() < self._absent.get(destination, 0.0)

    def _look(self, destination: str, handle: Any, wait_s: float) -> StrictView | None:
        """Asks a consumer of its own for topics: the reader's may be inside a rebalance (see `ConsumerHandle.list_topics`)."""
        try:
            if handle is not None:
                check_topic(handle, registry_topic(destination), wait_s)
        except DestinationUnavailableError:
            return None
        with closing(self._make(LogWatch().logger)) as own:
            registry = read_registry(own, destination, wait_s)
            if not registry.is_strict:
                return None
            if registry.era is None:
                rule = f"{registry_topic(destination)} has no era: run `uow topics create`"
                raise OrderConfigError(f"destinations.{destination}.strict_order", True, rule)
            view = StrictView(registry, None, self._clock() + REFRESH_S)
            self._compare(view, own, wait_s)
            return view

    def _compare(self, view: StrictView, handle: ConsumerHandle, wait_s: float) -> None:
        """Compares the topics with those of the era."""
        destination = view.registry.destination
        for name, topic in view.era.topics.items():
            try:
                count = check_topic(handle, name, wait_s)
            except DestinationUnavailableError:
                continue  # whoever uses it is told so
            if count != len(topic.starts):
                was = f"has {count} partitions, and had {len(topic.starts)} when era {view.era.number} began"
                view.trouble = _changed(destination, f"topic {name} {was}")
        self.compare_ids(view)

    def compare_ids(self, view: StrictView) -> None:
        """Compares the topics' ids with those of the era, unless that was done a moment ago."""
        known = {name: topic.id for name, topic in view.era.topics.items() if topic.id}
        if self._make_admin is None or not known or self._clock() < view.ids_until:
            return
        with suppress(KafkaException):  # asked again soon
            there = admin.topic_ids(self.admin(), [*known])
            view.ids_until = self._clock() + IDS_S
            for name, topic_id in known.items():
                if there.get(name, topic_id) != topic_id:
                    view.trouble = _changed(
                        view.registry.destination, f"topic {name} was made again since era {view.era.number} began"
                    )

    @property
    def has_admin(self) -> bool:
        """True if topic ids and other readers can be asked for."""
        return self._make_admin is not None

    def admin(self) -> AdminClient:
        """The admin client, made when it is first needed."""
        assert self._make_admin is not None
        with self._lock:
            if self._admin is None:
                self._admin = self._make_admin()
            return self._admin

    def warn(self, destination: str, requested: Mapping[str, Any]) -> list[OrderOverrideWarning]:
        """Logs and counts a warning for each requested value that strict order overrides (S-27)."""
        found = [*overrides(destination, requested)]
        for each in found:
            self.overridden[each.key] += 1
            log.warning("%s", each)
        return found

    # -- readers ----------------------------------------------------------------------------------------------------------

    def reading(
        self, handle: Any, topic: str, group: str | None, destination: str | None = None
    ) -> StrictReading | None:
        """The rules for a reader of a topic; None if it is not strict.

        Args:
            handle: Its consumer, which is asked whether the destination has a registry.
            topic: What it reads.
            group: Its consumer group.
            destination: Whose topic it is, where the name does not say so.

        Raises:
            OrderConfigError: It may not read a strict destination: no group, or another than `strict_group`.
            DestinationChangedError: The topics are not those of the era.
            AlreadyAttachedError: All partitions have a reader, and `strict_attach` is `fail`.
            UowError: As `of`.
        """
        name = destination or destination_of(topic)
        view = None if name is None else self.of(name, handle, is_new=True)
        if view is None or name is None:
            return None
        if group is None:
            rule = "a reader without a group delivers without a position: a strict destination needs a group"
            raise OrderConfigError("group", None, rule)
        wanted = view.rules.strict_group
        if wanted and topic != f"{name}.components" and group != wanted:
            raise OrderConfigError("group", group, f"{name} is an ordered queue of the group {wanted!r} (strict_group)")
        view.require_unchanged()
        if topic not in view.era.topics:
            raise _changed(name, f"topic {topic} is no part of era {view.era.number}")
        reading = StrictReading(self, view, topic, group)
        reading.require_place()
        return reading


class StrictReading:
    """The rules for one reader of a strict topic. For its thread.

    Args:
        destinations: Those of its connection.
        view: Its destination.
        topic: What it reads.
        group: Its consumer group.
    """

    def __init__(self, destinations: StrictDestinations, view: StrictView, topic: str, group: str) -> None:
        self.destination = view.registry.destination
        self.topic, self.group = topic, group
        self._destinations, self._view = destinations, view
        self._look_at = 0.0

    @property
    def rules(self) -> StrictRules:
        """The rules, as last seen."""
        return self._view.rules

    def refresh(self, is_new: bool = False) -> None:
        """Looks at the destination again, now and then.

        Raises:
            DestinationChangedError: The topics are not those of the era, or nothing is strict any more.
        """
        view = self._destinations.of(self.destination, None, is_new)
        if view is None:
            raise _changed(self.destination, f"{registry_topic(self.destination)} says that it is strict no longer")
        if view.era.number != self._view.era.number:
            raise _changed(self.destination, f"era {view.era.number} has begun")
        self._view = view
        view.require_unchanged()

    def before_commit(self) -> None:
        """Makes sure that the topic is still that of the era. Raises as `refresh`."""
        self._destinations.compare_ids(self._view)
        self._view.require_unchanged()

    def warn(self, requested: Mapping[str, Any]) -> list[OrderOverrideWarning]:
        """As `StrictDestinations.warn`."""
        return self._destinations.warn(self.destination, requested)

    def first_starts(self, committed: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Of the committed offsets of some partitions, those of partitions that this group never read: each gets the start of the era as offset.

        Raises:
            OrderConfigError: The group read the topic before the era began (S-13).
            SubscriptionExpiredError: The group has read the partition in this era, and its offset is gone.
        """
        fresh: list[TopicPartition] = []
        before: list[TopicPartition] = []
        starts = self._view.era.topics[self.topic].starts
        for row in committed:
            known = self._view.registry.subscriptions.get((self.group, self.topic, row.partition))
            if known is not None and known.era == self._view.era.number:
                if row.offset < 0:
                    raise SubscriptionExpiredError(
                        f"the committed offset of group {self.group!r} for {self.topic}/{row.partition} is gone: it was read in this era"
                    )
            elif known is None and row.offset < 0:
                fresh.append(TopicPartition(self.topic, row.partition, starts[row.partition]))
            else:
                before.append(row)
        if before:
            backlog = sum(max(0, starts[row.partition] - row.offset) for row in before if row.offset >= 0)
            raise OrderConfigError(
                "group",
                self.group,
                f"it read {self.topic} before era {self._view.era.number} of {self.destination} began, and has a backlog of up to {backlog} records: "
                f"`uow adopt {self.destination} --group {self.group} --why ...` begins it at the start of the era",
            )
        return fresh

    def subscriptions(self, rows: Sequence[TopicPartition]) -> list[OutgoingRecord]:
        """The records that say that the group has begun with these partitions."""
        at = time.time_ns() // 1_000_000
        entries = [Subscription(self.group, self.topic, row.partition, self._view.era.number, "", at) for row in rows]
        return [record_of(self.destination, entry) for entry in entries]

    def gap(self, partition: int, first: int, last: int, cause: str, by: str = "") -> OutgoingRecord:
        """The record that says that the group passed over something (S-14, S-33)."""
        at = time.time_ns() // 1_000_000
        who = by or f"{socket.gethostname()}, process {os.getpid()}"
        return record_of(
            self.destination, OrderGap(self.group, self.topic, partition, first, last, cause[:1000], who, at)
        )

    def require_place(self) -> None:
        """Makes sure that there is a partition left, if `strict_attach` says so; to be asked as long as none is owned.

        Raises:
            AlreadyAttachedError: Other readers have all of them.
        """
        now = time.monotonic()
        if self.rules.strict_attach is not StrictAttach.FAIL or not self._destinations.has_admin or now < self._look_at:
            return
        self._look_at = now + ATTACHED_S
        with suppress(KafkaException):  # a group that does not exist yet, for one
            answer = self._destinations.admin().describe_consumer_groups([self.group], request_timeout=BLOCKING_S)
            found = answer[self.group].result()
            owned = [
                tp for member in found.members for tp in member.assignment.topic_partitions if tp.topic == self.topic
            ]
            all_of_them = len(self._view.era.topics[self.topic].starts)
            if found.state is ConsumerGroupState.STABLE and len(owned) >= all_of_them:
                who = ", ".join(
                    sorted({member.client_id for member in found.members if member.assignment.topic_partitions})
                )
                raise AlreadyAttachedError(
                    f"every partition of {self.topic} has a reader of group {self.group!r}: {who}"
                )


def _changed(destination: str, what: str) -> DestinationChangedError:
    return DestinationChangedError(f"{what}; `uow adopt {destination} --why ...` begins a new era")


def sender_gap(destination: str, record: OutgoingRecord, cause: str, by: str) -> OutgoingRecord:
    """The record that says that a producer gave a record up (S-30). No offset is known of it: the time stands for one."""
    at = time.time_ns() // 1_000_000
    return record_of(
        destination, OrderGap("producer", record.topic, max(record.partition, 0), at, at, cause[:1000], by, at)
    )


class StrictTopics(KnownTopics):
    """The topics that a connection sends to, strict ones included. For any thread.

    Args:
        strict: The strict destinations.
        is_elastic: As for `KnownTopics`.
        clock: Seconds, from anywhere.
    """

    def __init__(
        self,
        strict: StrictDestinations,
        is_elastic: Callable[[str], bool] = lambda topic: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(is_elastic, clock)
        self._strict = strict
        self._plain_until: dict[str, float] = {}

    def is_known(self, topic: str) -> bool:
        """As of any topic; never of one whose order is strict, or may be."""
        destination = topic.removesuffix(".components")
        return super().is_known(topic) and (destination == topic or self._strict.is_absent(destination))

    def admit(self, handle: ProducerHandle, record: OutgoingRecord, way: str, life: Life) -> bool:
        """Checks a record for its topic, and gives it its partition. Returns True if its destination is strict.

        Raises:
            OrderConfigError: It would break strict order (S-19, S-21, S-23, S-24).
            DestinationChangedError: The topics are not those of the era (S-15, S-21).
            UowError: As `check`.
        """
        now = self._clock()
        if now < self._plain_until.get(record.topic, 0.0):
            return False
        if self.is_known(record.topic):
            self._plain_until[record.topic] = now + PLAIN_S
            return False
        destination = record.topic.removesuffix(".components")
        if destination == record.topic or (view := self._strict.of(destination, handle, life=life)) is None:
            self.check(handle, record.topic, life)
            return False
        view.require_unchanged()
        partitions = len(view.era.topics[record.topic].starts)
        _check_send(destination, view.rules, record, way, partitions)
        if record.key is not None and record.partition == HASHED:
            record.partition = partition_for(record.key, partitions)
        return True


def _check_send(destination: str, rules: StrictRules, record: OutgoingRecord, way: str, partitions: int) -> None:
    name = f"destinations.{destination}"
    if way != Way.REPAIR and way != rules.strict_producers:
        how = {
            StrictProducers.TRANSACTED: "in transactions: `unit` or `forward`",
            StrictProducers.PLAIN: "record by record: `send`",
        }
        rule = f"strict order has one way of sending, and {destination} takes records {how[rules.strict_producers]}"
        raise OrderConfigError(f"{name}.strict_producers", way, rule)
    priorities = [value for header, value in record.headers if header == PRIORITY] or [b"%d" % USUAL_PRIORITY]
    for priority in priorities:
        if decimal(priority or b"") != rules.strict_priority:
            said = (priority or b"").decode("ascii", "backslashreplace")
            raise OrderConfigError(
                PRIORITY, said, f"strict order has one priority, and that of {destination} is {rules.strict_priority}"
            )
    for header, mode in record.headers:
        if header == DELIVERY_MODE and (mode or b"").lower() != PERSISTENT:
            said = (mode or b"").decode("ascii", "backslashreplace")
            raise OrderConfigError(
                DELIVERY_MODE, said, f"strict order needs every record: {destination} takes persistent ones only"
            )
    if record.key is None and record.partition == HASHED and partitions > 1:
        rule = f"{destination} has {partitions} partitions, and without a key there is no order among its records"
        if rules.strict_order_topology is StrictTopology.REFUSE:
            raise OrderConfigError("key", None, rule)
        log.warning("a record without a key: %s", rule)
