"""The client: `connect` and `Connection`, which makes units, readers and hops, and closes them in a fixed order.

Belongs here: the public calls (P-10 to P-15) and the ownership of handles. Does not belong here: the work behind the calls, see
`uow.client.unit_writer`, `uow.client.reader`, `uow.client.forwarding`.
"""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial, wraps
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, ClassVar, Final, Literal, ParamSpec, Self, TypeVar, cast, overload
from uuid import uuid4

from uow.client.answers import Cancellation
from uow.client.barriers import drain
from uow.client.client_session import Acknowledge, ClientSession
from uow.client.consumption import Consumption, Start
from uow.client.dead_letters import DeadLetters
from uow.client.failure_policies import UNKNOWN, RecordedPolicies, asked
from uow.client.fan_out import FanOut, Request
from uow.client.forwarding import (
    Forwarded,
    Hop,
    Keep,
    Narrowing,
    Reassign,
    forwarded_record,
)
from uow.client.kafka_port import (
    Headers,
    KafkaPort,
    Librdkafka,
    check_name,
    check_properties,
    reconnect_properties,
)
from uow.client.long_units import SenderLog
from uow.client.nesting import StandIn, inner_unit
from uow.client.order_latch import Failed
from uow.client.outgoing import (
    HASHED,
    BareValue,
    Component,
    HeaderPairs,
    OutgoingRecord,
    Value,
    as_component,
    check_conflict,
    component_headers,
    header_pairs,
    mark_end,
    moment_ms,
    order_key_of,
    value_bytes,
)
from uow.client.probing import Recovered, find
from uow.client.reader import (
    Handling,
    Reader,
    UnitInterpreter,
    UnitsOnly,
    message_of,
)
from uow.client.received import Message, ReceivedUnit
from uow.client.references import END_EVENTS, References
from uow.client.refusals import OnRejected
from uow.client.sending import Sent
from uow.client.session import Handles, Session
from uow.client.session_state import (
    ConnectionState,
    Life,
    Listener,
    Scope,
    Statistics,
    Waits,
    policy_of,
)
from uow.client.streaming import SMALL_BUFFERS, StreamReader, UnitStream
from uow.client.strict_order import Way, sender_gap
from uow.client.timely_messages import (
    LONGEST_WAIT_MS,
    InTime,
    MessageReader,
    OnExpired,
)
from uow.client.tracing import Span, Tracer
from uow.client.transaction import NamedTransactions, OneTransaction
from uow.client.unit_writer import LongUnit, UnitWriter
from uow.client.unshown_headers import UnshownHeaders
from uow.client.verdict import GivenUp, Unreadable
from uow.config.command_key_files import read_signer
from uow.config.loading import load
from uow.errors import AmbiguousSendError, CommitOutcomeUnknownError, IncompleteUnitError, Suspect
from uow.processor.kafka.topic_ids import TopicIds
from uow.schemas import registry
from uow.schemas.codec import SchemaSource
from uow.schemas.error_classes import BadUnitIdError, ConfigError
from uow.topics.catalogue import DestinationTopics
from uow.topics.command_keys import CommandSigner, signed_headers
from uow.topics.commands import Command, Verb, command_headers, command_value
from uow.topics.headers import (
    COMPONENT_ID,
    CORRELATION_ID,
    COUNT,
    DELIVERY_MODE,
    END,
    EXPIRES_AT,
    PRIORITY,
    PRODUCER_ID,
    SEQ,
    Marks,
    Reading,
)
from uow.topics.manifests import ReplyContext
from uow.topics.policies import AliasFamily, ExpirationPolicy, ReconnectPolicy

KEEP: Final = Keep.AS_IT_CAME
NO_REPLY_CONTEXT: Final = ReplyContext()
Arguments = ParamSpec("Arguments")
PRESERVE: Final = "preserve"
AnyReader = TypeVar("AnyReader", bound=Reader[Any])
Opening = TypeVar("Opening", bound=Callable[..., Reader[Any]])


class Factory:
    """Settings of connections to one cluster; immutable, and holds no socket, so that a failure of one connection leaves it as it was (R-14).

    Args:
        servers: `HOST:PORT`, several with commas.
        kafka: librdkafka properties on top of ours (R-81).
        registry_url: Schema registry for units in Confluent framing; without one only those cannot be read.
        client_id: Name in the broker's logs and quotas; base of transactional ids; makes readers static members of their groups, so that after a
            restart they get their partitions back at once, and others wait for the session time-out instead (R-39, R-54). One live connection has
            it: the newer of two programs fences the older one (R-24). Under another policy than `all` a loss event ends all of the connection (R-23).
        transactional_id: Base of the transactional ids, `<base>-<n>`, in place of `client_id`. Stable over restarts, it lets a
            successor end at once what its predecessor left open (W-47); two live connections must not share it: the newer one
            fences the older. Without either the ids are random, and an orphan lasts until its time-out of 10 s (R-71).
        accept_aliases: Header families of other systems that mark a component for `forward` (W-17).
        on_span: Takes part in tracing: called with a span for each component sent or forwarded, which carries it on in `traceparent` (W-213).
        application: `application.id` of the workers. With it, ids of destinations under `routing = "path"` are claimed and their components
            sent straight to where they belong (W-105); without it the workers send them on. Readers find the destination's settings by it;
            without it they look for the topic that fits the destination's name.
        on_rejected: Called with each component of this connection that a destination refuses, as `uow.Rejection` (W-37), those of a second
            block under an id that is taken included. All that `unit` and `send` send then carries `uow-producer-id`. Called in a thread of its own,
            until the connection is closed; an exception that it raises is logged.
        reconnect_policy: What goes on after all brokers were gone: `producer`, the connection and what sends (R-02); `all`, readers too; `none`.
        reconnect_blocking_ms: Longest a call waits for a connection; 0: never, -1: for ever (R-19).
        reconnect_total_ms: How long reconnecting is tried, from the loss or from the last call, whichever is later; -1: for ever (R-42).
        transaction_timeout_ms: Time after which the broker ends a transaction: how long a dead sender holds back readers (W-50), and the longest outage
            that a commit can ride out.
        rollback_on_refresh: True rolls back the transaction of a transacted session that spans an outage, also where it could be committed (R-30).
        listener: Called with `ConnectionLost`, `ConnectionRefreshed` and `LostServer`, and with errors that no call is there to raise, in a
            thread of the connection (R-27).
        command_key: File of the private key that signs the commands of this connection: `cancel`, the manifests of `fan_out`, `command`.
        kafka_port: Makes the library's handles; for tests (`uow.client.kafka_port.KafkaPort`).

    Raises:
        ConfigError: A property contradicts one of ours, or an argument is none of the above.
    """

    _linger_ms: ClassVar[float] = 0

    def __init__(
        self,
        servers: str,
        *,
        kafka: Mapping[str, Any] | None = None,
        registry_url: str = "",
        client_id: str | None = None,
        transactional_id: str | None = None,
        accept_aliases: Iterable[AliasFamily | str] = (),
        on_span: Callable[[Span], object] | None = None,
        application: str = "",
        on_rejected: OnRejected | None = None,
        reconnect_policy: ReconnectPolicy | str = ReconnectPolicy.PRODUCER,
        reconnect_blocking_ms: int = 6000,
        reconnect_total_ms: int = -1,
        transaction_timeout_ms: int = 10_000,
        rollback_on_refresh: bool = False,
        listener: Listener | None = None,
        command_key: Path | str = "",
        kafka_port: KafkaPort | None = None,
    ) -> None:
        self._servers = servers
        self._policy = policy_of(reconnect_policy)
        self._waits = Waits.checked(reconnect_blocking_ms, reconnect_total_ms, transaction_timeout_ms)
        given = reconnect_properties(self._waits) | check_properties(kafka or {})
        check_name("client_id", client_id or None)
        check_name("transactional_id", transactional_id or None)
        port = kafka_port or Librdkafka()
        self._handles = Handles(servers, client_id, given, port, transaction_timeout_ms, self._linger_ms)
        self._registry = registry.connect(registry_url) if registry_url else None
        self._families = _families(accept_aliases)
        self._base, self._application = transactional_id or client_id or "", application
        self._rolls_back_on_refresh = rollback_on_refresh
        self._on_span, self._on_rejected, self._listener = on_span, on_rejected, listener
        self._signer = read_signer(command_key) if command_key else None

    @classmethod
    def from_config(cls, path: Path | None = None, **settings: Any) -> Self:
        """A factory by a `uow.toml` and the environment: addresses, `[kafka]`, the registry, the application and `[client]` (R-40).

        Args:
            path: The file; None: `uow.toml` of the working directory, if there is one.
            settings: Arguments of the constructor; each counts before the file's value.

        Raises:
            ConfigError: As the constructor; or the file has mistakes, all of which are named.
        """
        found = load(path)
        given: dict[str, Any] = {
            "servers": found.bootstrap_servers,
            "kafka": found.kafka,
            "registry_url": found.registry_url,
            "application": found.application_id,
            "command_key": found.value("application.command_key"),
            **found.client,
        }
        return cls(**(given | settings))

    def _connected(self, on_rejected: OnRejected | None, listener: Listener | None) -> Connection:
        life = Life(self._servers, self._policy, self._waits, is_named=self._handles.identity is not None)
        session = Session(life, self._handles, self._base, self._application, self._registry, on_rejected, listener)
        session.rolls_back_on_refresh = self._rolls_back_on_refresh
        session.open()
        return Connection(session, self._registry, self._families, self._on_span, self._application, self._signer)


class ConnectionFactory(Factory):
    """Makes connections to one cluster. Arguments: those of `connect`."""

    def connect(self) -> Connection:
        """A connection, which shares nothing with others of this factory (R-28).

        Raises:
            DuplicateClientIdError: A live connection of this process has the client id (R-24).
            ReconnectTimeoutError: No broker answered within the blocking time; nothing is left open (R-12).
            ReconnectGivenUpError: The brokers refuse this client.
        """
        return self._connected(self._on_rejected, self._listener)


def _connecting(make: Callable[Arguments, ConnectionFactory]) -> Callable[Arguments, Connection]:
    def connect(*args: Arguments.args, **settings: Arguments.kwargs) -> Connection:
        """A connection to a Kafka cluster: `ConnectionFactory(servers, ...).connect()`, with its arguments and errors.

        It waits for a broker, for the blocking time at most; other handles are opened when they are needed. Close it, or use it as a context
        manager. In a child of fork (gunicorn's preload, Celery, multiprocessing) it is closed: make another one there.
        """
        return make(*args, **settings).connect()

    describe(connect, make)
    return connect


def describe(connect: Callable[..., object], make: Callable[..., object]) -> None:
    """Lets `help()` and editors show the arguments of a function that hands all of them on: those of `make`, which is a kind of `Factory`."""
    result = inspect.signature(connect).return_annotation
    connect.__signature__ = inspect.signature(make).replace(return_annotation=result)  # type: ignore[attr-defined]
    arguments = inspect.cleandoc(Factory.__doc__ or "").partition("\nArgs:")[2]
    connect.__doc__ = f"{inspect.cleandoc(connect.__doc__ or '')}\n\nArgs:{arguments}"


connect = _connecting(ConnectionFactory)


def _families(given: Iterable[AliasFamily | str]) -> tuple[AliasFamily, ...]:
    try:
        return tuple([AliasFamily(family) for family in given])
    except ValueError:
        known = ", ".join(AliasFamily)
        raise ConfigError("accept_aliases", given, f"families are {known}") from None


def _renewable(open_reader: Opening) -> Opening:
    """The readers that it opens know how to be opened anew, on any connection."""

    @wraps(open_reader)
    def opened(connection: Connection, *args: Any, **settings: Any) -> Reader[Any]:
        reader = open_reader(connection, *args, **settings)
        reader._open = lambda other: open_reader(other, *args, **settings)
        return reader

    return cast(Opening, opened)


class Connection:
    """Sends and reads. `unit`, `send`, `units` and `messages` may be called from any thread; what they return is for one thread each.

    Closing order: readers (each commits its hop first), transactions (open ones are aborted), then the plain producer.

    Attributes:
        id: Of this connection, for as long as it lives (R-17).
    """

    def __init__(
        self,
        session: Session,
        registry: SchemaSource | None,
        families: tuple[AliasFamily, ...],
        on_span: Callable[[Span], object] | None,
        application: str,
        signer: CommandSigner | None = None,
    ) -> None:
        self.id = session.id
        self._signer = signer
        self._session, self._registry, self._application = session, registry, application
        self._reading = Reading(families)
        self._open_units: set[tuple[str, str]] = set()
        self._trace = Tracer(on_span, self._reading).step if on_span is not None else _untraced

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session is not None and session.life.ended is None:
            warnings.warn(f"connection {self.id} was not closed", ResourceWarning, stacklevel=1, source=self)

    def _require_open(self) -> None:
        self._session.life.require_open()

    # -- state -----------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConnectionState:
        """`connected`, `reconnecting` while no broker answers, and at the end `stale` or `closed`."""
        return self._session.life.state

    @property
    def epoch(self) -> int:
        """Number of times that the connection was made, from 1: each refresh after an outage is the next one (R-17)."""
        return self._session.life.epoch

    @property
    def reconnect_policy(self) -> ReconnectPolicy:
        """The objects that go on after all brokers were gone. A new one counts from the next loss event on (R-40)."""
        return self._session.life.policy

    @reconnect_policy.setter
    def reconnect_policy(self, policy: ReconnectPolicy | str) -> None:
        self._session.life.policy = policy_of(policy)

    def stats(self) -> Statistics:
        """Counters since the connection was made, over all handles that it had (R-08)."""
        life = self._session.life
        return Statistics(life.sent, life.reconnects, life.rebuilds, life.since)

    @property
    def _asks_before_sending(self) -> bool:
        """True if a component's place has to be claimed first, or its refusals listened for: that waits."""
        return bool(self._application) or self._session.refusals is not None

    def _traceable(self, destination: str, headers: Headers) -> Headers:
        """Adds our producer id and listens for refusals, if the application asked for them (W-37)."""
        refusals = self._session.refusals
        if refusals is None or any(name == PRODUCER_ID for name, _ in headers):
            return headers
        refusals.listen(destination)
        return [*headers, (PRODUCER_ID, self.id.encode())]

    def session(
        self, acknowledge: Acknowledge | str = Acknowledge.CLIENT, *, transacted: bool = False
    ) -> ClientSession:
        """Producers and readers that belong together (R-29).

        Args:
            acknowledge: `client`: the application acknowledges; `auto`: the session does, when the next one is asked for.
            transacted: True: what is sent and what is received since the last `commit()` or `rollback()` is one transaction.

        Raises:
            ConfigError: There is no such setting.
        """
        self._require_open()
        try:
            setting = Acknowledge(acknowledge)
        except ValueError:
            raise ConfigError("acknowledge", acknowledge, f"one of {', '.join(Acknowledge)}") from None
        return ClientSession(self, setting, transacted)

    # -- sending ---------------------------------------------------------------------------------------------------------

    def unit(
        self,
        destination: str,
        id: str | None = None,
        *,
        correlation_id: str | None = None,
        priority: int | None = None,
        expires_at: int | datetime | None = None,
        delivery_mode: str | None = None,
        headers: HeaderPairs = None,
        stands_for: Message | None = None,
        segment_bytes: int | None = None,
        resume: bool = False,
        leave_open: bool = False,
    ) -> UnitWriter:
        """A unit to be sent, as a context manager: numbers from 1, end mark on the last one, all in one transaction (W-45).

        Args:
            destination: Where the components become a unit; they go to `<destination>.components`, or where `send(to=)` says.
            id: 1 to 255 bytes of UTF-8; a fresh UUID4 without it. An id is never used twice (W-18).
            correlation_id: `uow-correlation-id` on all components.
            priority: `uow-priority` on all components, 0 to 9 (W-133).
            expires_at: `uow-expires-at` on all components; a datetime with a time zone, or epoch ms.
            delivery_mode: `uow-delivery-mode` on all components.
            headers: Further headers on all components.
            stands_for: A component, from `messages`, that this unit replaces: an inner unit (W-205). Its position is committed in the same
                transaction, and its user headers, priority and the like are on all components. Once the unit is whole, `forward` its
                message from `<destination>.units`: it takes the outer id, number and end mark. The destination's shape is `envelope`.
            segment_bytes: A component that goes straight to the destination and is longer goes in pieces of so many bytes, each a record of
                its own; the worker joins them (B-124). So it may be larger than a record of `<destination>.components`.
            resume: True for a long unit over several transactions, which goes on after a crash (B-123). `save()` in its block commits what was given so
                far, and the block begins behind what was committed under this `id` before: `count` says how many components are out. All of a
                unit that has ended are, and its block does nothing. It needs `application` and the topic `A-senders` (`uow topics create --senders`).
                Whoever sent the unit before is fenced. Left by an exception the unit is cancelled, once a part of it is out.
            leave_open: True if it stays open then instead.

        Raises:
            ValueError: `segment_bytes` is below 1.
            ConfigError: `resume` without `id` or `application`, or with `stands_for`.
            UnitClosedError: On entering the block: the unit was cancelled.
            BadUnitIdError, DecodeError, UnitConflictError: Id or headers cannot be, or `stands_for` is no component.
            LostServerError: On entering or leaving the block: the partition of `stands_for` has moved, and it comes again. So it does when the
                block ends by an exception.
            ClientClosedError: The connection is closed.
        """
        self._require_open()
        if segment_bytes is not None and segment_bytes < 1:
            raise ValueError(f"segment_bytes is 1 or more, not {segment_bytes}")
        given: dict[str, str | int | None] = {
            CORRELATION_ID: correlation_id,
            PRIORITY: priority,
            EXPIRES_AT: None if expires_at is None else moment_ms(expires_at),
            DELIVERY_MODE: delivery_mode,
        }
        common = header_pairs([(name, value) for name, value in given.items() if value is not None]) + header_pairs(
            headers
        )
        own_id, transaction = str(uuid4()), OneTransaction(self._session.transactions)
        if stands_for is not None:
            own_id, inherited = inner_unit(destination, stands_for, self._reading)
            given_names = {name for name, _ in common}
            common = [pair for pair in inherited if pair[0] not in given_names] + common
            transaction = StandIn(self._session.transactions, stands_for)
        topic = _topics(destination).components
        unit_id = own_id if id is None else id
        long = None
        if resume:
            if id is None or not self._application or stands_for is not None:
                raise ConfigError(
                    "resume",
                    True,
                    "a unit is resumed by its id, with the application of the connection, and stands for nothing",
                )
            long = self._long_unit(destination, id, leave_open)
            transaction = long.transactions
        return UnitWriter(
            destination,
            topic,
            unit_id,
            self._traceable(destination, common),
            lambda order_key: self._session.path_claims.claimed(destination, unit_id.encode(), order_key),
            transaction,
            self._trace,
            self._open_units,
            segment_bytes,
            long,
        )

    def _long_unit(self, destination: str, id: str, leave_open: bool) -> LongUnit:
        session = self._session
        log = SenderLog(self._application, destination, id, partial(session.handles.consumer, None), session.life)
        command = Command(f"sender {uuid4().hex}".encode(), Verb.CANCEL, id.encode(), "its sender failed")
        cancellation = partial(self._command_record, destination, command)
        return LongUnit(log, NamedTransactions(session.transactions, log.transactional_id), cancellation, leave_open)

    def send(
        self,
        destination: str,
        value: Value | Component,
        *,
        id: str | None = None,
        seq: int | None = None,
        end: bool = False,
        count: int | None = None,
        to: str | None = None,
        key: str | bytes | None = None,
        headers: HeaderPairs = None,
    ) -> Sent:
        """Sends one component under a number of the caller's, outside transactions, and waits until the broker has it.

        For units that several producers share (W-41, W-42). Without `id` it sends a plain record (W-22).

        Args:
            destination: Where the component belongs; it goes to `<destination>.components`, under the id as key.
            value: As for `UnitWriter.send`.
            id: The group id.
            seq: The component's number, 1 to 2147483647.
            end: True for the last component.
            count: `uow-count`, the total number of components, where known.
            to: An intermediate topic instead.
            key: Kafka key at the intermediate topic, or of a plain record.
            headers: Further headers.

        Raises:
            BadSequenceNumberError: No number (a), below 1 (b), above the range (malformed); nothing is sent (W-25 to W-27).
            BadUnitIdError: The id is empty or too long, or there are marks without an id.
            UnitConflictError: `uoo-name` beside the id (W-33).
            IncompleteUnitError: A block of this connection sends that unit just now: the component belongs there (B-120).
            DestinationUnavailableError, SendRejectedError: Certainly not written.
            ReconnectTimeoutError: No answer in time; it goes on in the background. Calling again with the same `Component` waits for
                the same record and sends no second one (R-22).
            AmbiguousSendError: It may be written or not; repeat with the same `Component`.
        """
        self._require_open()
        component = as_component(value)
        record = self._record(destination, component, id, seq, end, count, to, key, headers)
        return self._session.plain.send(component.component_id, record)

    def _record(
        self,
        destination: str,
        component: Component,
        id: str | None,
        seq: int | None,
        end: bool,
        count: int | None,
        to: str | None,
        key: str | bytes | None,
        headers: HeaderPairs,
    ) -> OutgoingRecord:
        """The record that `send` sends. Raises as `send`, for what cannot be."""
        components = f"{destination}.components"
        topic = to or components
        own = [] if component.headers is headers is None else header_pairs(component.headers) + header_pairs(headers)
        if count is not None:
            own.append((COUNT, b"%d" % count))
        key = component.key if key is None else key
        raw_key = key.encode() if isinstance(key, str) else key
        if id is None:
            record = _plain_record(topic, component, own, raw_key, seq, end, count)
        else:
            if self._open_units and (destination, id) in self._open_units:
                raise IncompleteUnitError(f"unit {id} is open: send its components in its block", id=id.encode())
            if self._session.refusals is not None:
                own = self._traceable(destination, own)
            marked = component_headers(id, seq, component.component_id, (), own)
            partition = HASHED
            if topic == components:
                raw_key = id.encode()
                if self._application:
                    partition = self._session.path_claims.claimed(destination, raw_key, order_key_of(marked))
            elif raw_key is None:
                raw_key = id.encode()
            marked = mark_end(marked) if end else marked
            record = OutgoingRecord(topic, raw_key, value_bytes(component.value), marked, partition)
            self._trace(record)
        return record

    def drain(self, first: str, last: str, version: int, timeout: float | None = None) -> None:
        """Waits until all that was sent into a pipeline of forwarders has come out, before one is inserted or taken away (S-16).

        A barrier of the next version goes into every partition of the first topic; forwarders send it on like any message (`Message.barrier`). Senders
        should pause, or at least not go over to that version, until this returns: then they send through the changed pipeline, with the header
        `uow-pipeline-version`. Every topic on the way has the same number of partitions.

        Args:
            first: The topic that senders send to now.
            last: The last topic that stays; of a destination `<destination>.units`.
            version: The next version; a reader that keeps the order takes a record of it only behind this barrier, and none of a lower one any more.
            timeout: Seconds; None: for ever.

        Raises:
            ConfigError: The version is below 1, or the topics have different numbers of partitions.
            ReconnectTimeoutError: It did not come out everywhere in time: it is still under way, or a forwarder stands; repeating is safe.
            UowError: As leaving the block of `unit`.
        """
        self._require_open()
        session = self._session
        if version < 1:
            raise ConfigError("version", version, "at least 1: records without one have version 0")
        follower = session.handles.followers()(last)
        try:
            counts = {topic: follower.partitions_of(topic) for topic in (first, last)}
            if len(set(counts.values())) > 1:
                raise ConfigError(
                    "partitions", counts, "a barrier keeps its partition number: topics must have as many"
                )
        except BaseException:
            follower.close()
            raise
        drain(OneTransaction(session.transactions), (first, counts[first]), follower, version, timeout)

    def temporary_destination(self) -> str:
        """Makes a topic of one partition for this connection, for replies: its close deletes the topic (R-10).

        It is sent to and read like any other topic: `send(..., to=NAME)`, `messages(NAME, group=None, start="earliest")`. Once it is gone nobody makes
        it again: a reader gets `DestinationChangedError`, a sender, a moment later, `DestinationUnavailableError`. If this process is killed, or
        no broker answers at the close, it stays, and `uow doctor` names it.

        Returns:
            Its name.

        Raises:
            DestinationUnavailableError: The brokers refuse, or do not answer: it takes the right to create topics.
        """
        self._require_open()
        return self._session.temporary.make()

    def fan_out(
        self,
        destination: str,
        name: str,
        requests: Iterable[Request],
        timeout_ms: int | None = None,
        *,
        reply: ReplyContext = NO_REPLY_CONTEXT,
        rule: str | None = None,
        cause: Message | None = None,
        awaits: bool = False,
    ) -> FanOut:
        """Sends several requests whose replies make one unit, and the manifest that lists them, in one transaction (B-77 to B-91).

        It returns once that is committed, and waits for no reply (B-90). A rule of the destination with `group_key = "request"` gathers the replies,
        from the inputs of its router. Each service copies `uow-request-id` of the request into `uow-correlation-id` of its reply.

        Args:
            destination: Where the replies become a unit.
            name: Routing name: it chooses the row of the rule. Many calls may have the same.
            requests: At least one; the unit has the replies in this order.
            timeout_ms: How long replies are waited for from now on; 0: for ever; None: `age_ms` of the row.
            reply: The output that is wanted: topic, key, correlation id, user headers.
            rule: Id of the rule, where several of the destination gather replies.
            cause: A message, from `messages`, that is done with by this call: its position is committed in the same transaction.
            awaits: True if the unit is waited for, with `unit()` of the result: it is read from its topic as of now. That takes a reader of its own, so for many
                calls read `units(destination, ..., topic=...)` in one place.

        Raises:
            ConfigError: No rule, or the rules do not allow what is asked for; nothing is sent.
            RoutingError: The rule has no row for this name. Case `no-rule`.
            DecodeError: The manifest cannot be: no request, a blank folder, more than 64 KiB. Case `manifest`.
            LostServerError: The partition of `cause` has moved, and it comes again; nothing is sent.
            UowError: As for a commit (R-82).
        """
        self._require_open()
        rules, units = self._session.call_rules, _topics(destination).units
        call = rules.plan(destination, name, [*requests], timeout_ms, reply, rule, units)
        records = [self._command_record(destination, call.command), *call.requests]
        if call.is_new:
            records.insert(0, rules.record(call.row))
        reader = self.units(destination, None, topic=call.topic) if awaits else None
        pool = self._session.transactions
        transaction = OneTransaction(pool) if cause is None else StandIn(pool, cause)
        try:
            transaction.begin()
            for record in records:
                self._trace(record)
                transaction.produce(record)
            transaction.commit()
        except BaseException:
            if reader is not None:
                reader.close()
            raise
        finally:
            transaction.end()
        return FanOut(call.command.group_id.decode(), call.request_ids, call.topic, reader)

    # -- in doubt --------------------------------------------------------------------------------------------------------

    def probe(self, error: AmbiguousSendError) -> Sent | None:
        """Looks for a record of which nobody could say whether it was written, from the last known end of its partition on (R-04).

        Returns:
            Its place in the log; None if it is not there, so that it may be sent again.

        Raises:
            ValueError: The error is not about a record with an identity.
            DestinationUnavailableError: The partition cannot be read to its end within the blocking time; ask again (R-05).
        """
        self._require_open()
        if error.suspect is None:
            raise ValueError(
                "the record carries no identity, so it cannot be told from others: send a Component to look for it"
            )
        return self._find(error.suspect, "read_uncommitted")

    def recover(self, error: CommitOutcomeUnknownError) -> Recovered:
        """Finds out the end of a transaction whose commit was not answered: what is open of it is ended first (R-71).

        Raises:
            ValueError: No record of the transaction has an identity.
            DestinationUnavailableError: A partition cannot be read to its end within the blocking time; ask again.
            FencedError: Someone newer owns the transactional id.
            ReconnectTimeoutError: No broker answered in time.
        """
        self._require_open()
        if error.suspect is None:
            raise ValueError("no record of the transaction carries an identity: send a Component to look for it")
        self._session.transactions.end_orphan(error.transactional_id)
        found = self._find(error.suspect, "read_committed")
        return Recovered.ROLLED_BACK if found is None else Recovered.COMMITTED

    def _find(self, suspect: Suspect, isolation: str) -> Sent | None:
        session = self._session
        make = session.handles.consumer(None, {**END_EVENTS, "isolation.level": isolation})
        return find(make, suspect, session.life)

    def resend(self, destination: str) -> Sent | None:
        """Under strict order, sends the record again whose failure holds back all later ones of `send`; None if there is none (S-30).

        Raises:
            UowError: As `send`; it goes on to hold them back.
        """
        self._require_open()
        return self._session.plain.resend(_topics(destination).components)

    def skip(self, destination: str, *, why: str) -> bool:
        """Under strict order, gives up the record whose failure holds back all later ones of `send`; the order gap is recorded (S-30).

        Args:
            destination: As of `send`.
            why: The reason, for whoever meets the gap.

        Returns:
            False if nothing was held back.

        Raises:
            OrderBlockedError: The record is still under way: `resend` waits for it.
            ConfigError: `why` is empty.
            UowError: The gap could not be recorded; nothing has changed.
        """
        self._require_open()
        if not why:
            raise ConfigError("why", why, "an order gap needs a reason")

        def record_gap(failed: Failed) -> None:
            gap = sender_gap(destination, failed.record, f"{why}: {failed.error}", self._session.handles.client_id)
            self._session.plain.send(f"gap {failed.component_id}", gap)

        return self._session.plain.skip(_topics(destination).components, record_gap)

    # -- reading ---------------------------------------------------------------------------------------------------------

    @overload
    def units(
        self,
        destination: str,
        group: str | None,
        *,
        start: Start | str | None = None,
        topic: str | None = None,
        include_plain: Literal[False] = False,
        expiration_policy: ExpirationPolicy | str | None = None,
        redelivery_limit: int | None = None,
        unreadable: Unreadable | str = Unreadable.REDIRECT,
        on_given_up: Callable[[GivenUp], object] | None = None,
        kafka: Mapping[str, Any] | None = None,
    ) -> Reader[ReceivedUnit]: ...
    @overload
    def units(
        self,
        destination: str,
        group: str | None,
        *,
        start: Start | str | None = None,
        topic: str | None = None,
        include_plain: bool,
        expiration_policy: ExpirationPolicy | str | None = None,
        redelivery_limit: int | None = None,
        unreadable: Unreadable | str = Unreadable.REDIRECT,
        on_given_up: Callable[[GivenUp], object] | None = None,
        kafka: Mapping[str, Any] | None = None,
    ) -> Reader[ReceivedUnit | Message]: ...
    @_renewable
    def units(
        self,
        destination: str,
        group: str | None,
        *,
        start: Start | str | None = None,
        topic: str | None = None,
        include_plain: bool = False,
        expiration_policy: ExpirationPolicy | str | None = None,
        redelivery_limit: int | None = None,
        unreadable: Unreadable | str = Unreadable.REDIRECT,
        on_given_up: Callable[[GivenUp], object] | None = None,
        kafka: Mapping[str, Any] | None = None,
    ) -> Reader[Any]:
        """Finished units of a destination, `read_committed`, each to one reader of the group (W-13, W-49).

        Args:
            destination: Its `<destination>.units` is read.
            group: Consumer group. None reads alone, all partitions, and commits nothing.
            start: Where a group without a committed offset begins: `earliest` (default), `latest`, `committed` (refuse). Without a
                group the default is `latest`.
            topic: One that a route or a rule of the destination names, in place of `<destination>.units` (W-98). What a rule made as an XML
                document comes as a `ReceivedDocument`.
            include_plain: True hands out records that passed through the destination too, as `Message`. Under
                `handling_policy = "pass_through"` that is all of them, whatever their headers say (W-65).
            expiration_policy: For a unit whose `uow-expires-at` has passed: it is not handed out (W-86). Discarded, logged, or,
                with `redirect`, moved to `<destination>.errors`. Without a group nothing is kept back. Default: the setting of the destination's
                workers, as they recorded it in `<application>-<destination>-groups-changelog` when the reader met its first unit.
                Where this client may not read that, nothing is thrown away: `redirect`, with a warning.
            redelivery_limit: How many redeliveries of a unit may fail; after one more it goes, whole, to `<destination>.errors`, and reading
                goes on (W-87). -1: any number. Each delivery is committed before the unit is opened, so that one which kills its consumer
                is counted too; without a limit they are counted while readers close in order. Default: as for `expiration_policy`, else -1.
            unreadable: For a record that should be a unit and cannot be read: `redirect` (to `<destination>.errors`), or `log`.
                Without a group it is logged. Either way the next unit is handed out.
            on_given_up: Called with each unit that is not handed out, and the reason.
            kafka: librdkafka properties for this reader.

        Raises:
            DestinationUnavailableError: The topic does not exist.
            ReconnectTimeoutError: No broker answered in time.
            ConfigError: `start` or a policy is none of these, or a property contradicts ours.
        """
        handling = self._handling(destination, expiration_policy, redelivery_limit, unreadable, on_given_up)
        interpreter = (
            UnitInterpreter(handling, partial(message_of, registry=self._registry))
            if include_plain
            else UnitsOnly(handling)
        )
        make = partial(Reader, interpret=interpreter, given_up=handling.dead_letters.counts)
        return self._unit_reader(topic, group, start, kafka or {}, handling, make)

    @_renewable
    def browse(self, destination: str, *, topic: str | None = None) -> Reader[ReceivedUnit]:
        """The finished units of a destination, from the oldest on, without taking them from anybody: alone, and committing nothing.

        A browser is never refreshed: whatever the policy, all brokers gone end it with `StaleConnectionError` (R-06).

        Args:
            destination: Its `<destination>.units` is read.
            topic: Another topic, as for `units`.

        Raises:
            UowError: As `units`.
        """
        handling = self._handling(destination, None, None, Unreadable.LOG, None)
        make = partial(Reader, interpret=UnitsOnly(handling), given_up=handling.dead_letters.counts)
        return self._unit_reader(topic, None, Start.EARLIEST, {}, handling, make, Scope.BROWSER)

    @_renewable
    def stream(
        self,
        destination: str,
        group: str | None,
        *,
        topic: str | None = None,
        start: Start | str | None = None,
        expiration_policy: ExpirationPolicy | str | None = None,
        redelivery_limit: int | None = None,
        unreadable: Unreadable | str = Unreadable.REDIRECT,
        on_given_up: Callable[[GivenUp], object] | None = None,
        kafka: Mapping[str, Any] | None = None,
    ) -> StreamReader:
        """As `units`, for units that are too large for memory: of shape `consecutive`, components come as they are asked for (W-116).

        It reads ahead less than `units`, which is faster for small ones. Arguments and errors as there.
        """
        handling = self._handling(
            destination, expiration_policy, redelivery_limit, unreadable, on_given_up, SMALL_BUFFERS
        )
        make = partial(StreamReader, stream=UnitStream(handling), given_up=handling.dead_letters.counts)
        return self._unit_reader(topic, group, start, {**SMALL_BUFFERS, **(kafka or {})}, handling, make)

    def _handling(
        self,
        destination: str,
        expiration_policy: ExpirationPolicy | str | None,
        redelivery_limit: int | None,
        unreadable: Unreadable | str,
        on_given_up: Callable[[GivenUp], object] | None,
        buffers: Mapping[str, Any] = MappingProxyType({}),
    ) -> Handling:
        topics = _topics(destination)
        lookups = self._session.handles.consumer(None, {**END_EVENTS, **buffers})
        recorded = RecordedPolicies(lookups, self._application, destination)
        dead_letters = DeadLetters(
            topics.errors,
            topics.errors if _unreadable(unreadable) is Unreadable.REDIRECT else None,
            asked(expiration_policy, redelivery_limit, recorded),
            self._session.transactions.take,
            self._session.transactions.give_back,
            on_given_up,
        )
        return Handling(destination, self._registry, References(topics.components, lookups), dead_letters)

    def _unit_reader(
        self,
        topic: str | None,
        group: str | None,
        start: Start | str | None,
        kafka: Mapping[str, Any],
        handling: Handling,
        make: Callable[[Consumption], AnyReader],
        scope: Scope = Scope.READER,
    ) -> AnyReader:
        def with_companions(consumption: Consumption) -> AnyReader:
            consumption.on_close = handling.references.close
            handling.dead_letters.serve(consumption)
            return make(consumption)

        units = topic or _topics(handling.destination).units
        return self._reader(
            units,
            group,
            start,
            {**END_EVENTS, **check_properties(kafka)},
            with_companions,
            destination=handling.destination,
            scope=scope,
        )

    @_renewable
    def messages(
        self,
        topic: str,
        group: str | None,
        *,
        start: Start | str | None = None,
        commit_interval_ms: int = 0,
        unreadable_to: str | None = None,
        on_given_up: Callable[[GivenUp], object] | None = None,
        on_expired: OnExpired | None = None,
        longest_wait_ms: int = LONGEST_WAIT_MS,
        order: str | None = None,
        kafka: Mapping[str, Any] | None = None,
    ) -> MessageReader:
        """Single records of a topic, for a forwarding hop. Arguments and errors as for `units`.

        None is handed out before its `uow-deliver-at`, and none after its `uow-expires-at`, by this machine's clock and in the spellings of
        `accept_aliases` too (W-08, W-53). Messages behind one that is early wait with it; other partitions are read on.

        Args:
            topic: Any topic.
            group: Consumer group; None reads alone and commits nothing.
            start: As for `units`.
            commit_interval_ms: 0: each `forward` is a transaction of its own. Else forwarded messages share one that is committed when it
                is this old, when no message waits, at a rebalance and at `close`; at most half of the transaction time-out of 10 s.
            unreadable_to: A topic for records whose headers cannot be read: such a one can be no message, and cannot be forwarded.
                Without it they are passed over; either way they are logged and counted, and the next one is handed out.
            on_given_up: Called with each of them, and with each that has expired.
            on_expired: Is given each message that has expired, to `forward` it elsewhere, or to `cancel` its unit; if it raises, so does the
                reader, and the message comes again. Without it such a message is passed over, logged, counted in `reader.given_up`, and given to
                `on_given_up`.
            longest_wait_ms: A message that is to be delivered later than this from now is handed out at once, logged, and counted in
                `reader.hurried`: else any writer of the topic could stop the reader. The destination holds its unit back all the same.
            order: `preserve` declares that what is forwarded keeps the order of the input: a `forward` that would not is `OrderConfigError` (S-17). So it
                is of every message of a strict topic.
            kafka: librdkafka properties for this reader.
        """
        if not 0 <= commit_interval_ms <= 5000:
            raise ConfigError("commit_interval_ms", commit_interval_ms, "0 to 5000: half of the transaction time-out")
        if order not in (None, PRESERVE):
            raise ConfigError("order", order, f"{PRESERVE}, or nothing")
        if longest_wait_ms < 0:
            raise ConfigError("longest_wait_ms", longest_wait_ms, "at least 0")
        transactions, registry = self._session.transactions, self._registry
        dead_letters = DeadLetters(
            "", unreadable_to, lambda: UNKNOWN, transactions.take, transactions.give_back, on_given_up
        )
        hidden = UnshownHeaders(self._session.handles.header_lookups(kafka or {}))
        in_time = InTime(self._reading, dead_letters, hidden, registry, on_expired, longest_wait_ms)

        def make(consumption: Consumption) -> MessageReader:
            dead_letters.serve(consumption)
            consumption.on_close = hidden.close
            consumption.keeps_order |= order == PRESERVE
            return MessageReader(consumption, in_time, dead_letters.counts)

        return self._reader(topic, group, start, check_properties(kafka or {}), make, commit_interval_ms)

    def _reader(
        self,
        topic: str,
        group: str | None,
        start: Start | str | None,
        kafka: Mapping[str, Any],
        make: Callable[[Consumption], AnyReader],
        commit_interval_ms: int = 0,
        destination: str | None = None,
        scope: Scope = Scope.READER,
    ) -> AnyReader:
        self._require_open()
        try:
            begin = Start(start) if start is not None else Start.EARLIEST if group is not None else Start.LATEST
        except ValueError:
            raise ConfigError("start", start, f"one of {', '.join(Start)}") from None
        check_name("group", group)
        session = self._session
        session.close_abandoned(topic, group)
        with session.instance_of(group) as instance:
            named = {"group.instance.id": instance} if instance else {}
            make_consumer, liveness = session.handles.member(group, {**named, **kafka})
            consumption = Consumption(
                make_consumer,
                topic,
                group,
                begin,
                liveness,
                commit_interval_ms,
                partial(session.strict.reading, topic=topic, group=group, destination=destination),
                life=session.life,
                scope=scope,
                instance=instance,
                ids=TopicIds(session.strict.admin) if session.strict.has_admin else None,
            )
            reader = make(consumption)
            session.adopt(consumption, reader)
        return reader

    # -- forwarding ------------------------------------------------------------------------------------------------------

    def forward(
        self,
        message: Message,
        to: str | None = None,
        *,
        destination: str | None = None,
        value: Value | Keep = KEEP,
        headers: HeaderPairs = None,
        only: Iterable[str] | None = None,
        leave_out: Iterable[str] = (),
        reassign: bool = False,
    ) -> Forwarded:
        """Sends a message on: its key and every header stay (W-55 to W-60), and its position is committed in the same transaction.

        Exactly once per hop: what is sent and the consumed position become visible together or not at all, also when the process dies
        in between. A message that is neither forwarded nor acknowledged is done with when a later one of its partition is.

        Args:
            message: From `messages`. A finished unit that stands for a component becomes that component (W-205).
            to: The next topic.
            destination: Or the last hop: to `<destination>.components`, under the group id as key (W-59).
            value: The new value; without it the value stays as it is.
            headers: Headers to change or add.
            only: Names of the user headers that travel on; without it all do. Headers that start with `uow-` or `uoo-`, and alias spellings,
                always travel (W-56).
            leave_out: Names of headers that stay behind.
            reassign: True allows `headers` and `leave_out` to change id, number or end mark, in our spelling or that of another system (W-63).

        Returns:
            `committed`; `pending` with a `commit_interval_ms`; or `again`: the partition has moved, or a rebalance interrupted the
            transaction, nothing was sent, and the message comes again to the reader that has the partition; or nobody knows yet what became of
            an earlier transaction, and it comes again if that was rolled back.

        Raises:
            TypeError: Not exactly one of `to` and `destination`; one text in place of several names.
            BadUnitIdError, BadSequenceNumberError, UnitConflictError: The headers cannot be; nothing is sent.
            CommitPendingError: No broker answered for the blocking time: forward the same message again, or go on receiving; the commit goes on.
            FencedError: Someone newer owns the transactional id: the reader ends.
            UowError: As for a commit (R-82). Nothing of it is visible, and the message comes again with the next iteration, unless it is
                forwarded or acknowledged before; after `CommitOutcomeUnknownError` it comes again if it was rolled back.
        """
        self._require_open()
        record = self._forwarded(
            message,
            to,
            destination=destination,
            value=value,
            headers=headers,
            only=only,
            leave_out=leave_out,
            reassign=reassign,
        )
        return self._hop(message).forward(message, record)

    def _forwarded(
        self,
        message: Message,
        to: str | None,
        *,
        destination: str | None,
        value: Value | Keep,
        headers: HeaderPairs,
        only: Iterable[str] | None,
        leave_out: Iterable[str],
        reassign: bool,
    ) -> OutgoingRecord:
        """The record that `forward` sends. Raises as `forward`, for what cannot be."""
        if (to is None) == (destination is None):
            raise TypeError("forward() needs either to= or destination=")
        topic = to if to is not None else _topics(destination or "").components
        reassignment = Reassign.ALLOWED if reassign else Reassign.NEVER
        narrowing = Narrowing.of(only, leave_out)
        record = forwarded_record(
            message, topic, destination is not None, value, headers, reassignment, self._reading, narrowing
        )
        if message.barrier is not None:
            record.partition = message.partition
        marks = self._reading.read(record.headers) if destination is not None else None
        if destination is not None and isinstance(marks, Marks):
            record.partition = self._session.path_claims.claimed(destination, marks.id, marks.order_key)
        self._trace(record)
        return record

    def cancel(self, message: Message, *, destination: str, why: str, by: str | None = None) -> Cancellation:
        """Gives a message up, and with it its unit: the group closes as `cancelled`, what it holds goes to the errors topic (W-62).

        The command and the consumed position are committed in one transaction, as by `forward`. A worker decides it once it has read what was sent
        before it. A unit of which nothing came yet is cancelled as well: what comes of it is late then.

        Args:
            message: A component from `messages`.
            destination: Where its unit would be assembled.
            why: The reason: it stands in the outcome's answer, and beside each component given up.
            by: The name of the person or program that gives up.

        Returns:
            `forwarded` as of `forward`; that the command is committed is not yet its fate: `answer()` waits for the worker's answer.

        Raises:
            BadUnitIdError: The message is no component.
            DestinationUnavailableError: The destination has no `D.outcomes`, where the answer comes.
            ConfigError: `why` is empty.
            UowError: As `forward`.
        """
        self._require_open()
        marks = self._reading.read(message.headers)
        group_id = getattr(marks, "id", None)
        if group_id is None:
            raise BadUnitIdError("cancel() needs a component; this message has no id that can be read")
        if not why:
            raise ConfigError("why", why, "a command needs a reason")
        source = f"{message.topic}/{message.partition}/{message.offset}"
        command = Command(f"cancel:{destination}:{source}".encode(), Verb.CANCEL, group_id, why, by)
        signer = None if self._signer is None else self._signer.name
        hop, cancellation = self._hop(message), self._session.answers_of(destination).expect(command, signer)
        cancellation._sent(hop.forward(message, self._command_record(destination, command)), hop)
        return cancellation

    def command(self, destination: str, command: Command) -> Sent:
        """Sends a command to a destination's workers, outside transactions, and waits until the broker has it (W-203).

        Raises:
            UowError: As `send`.
        """
        self._require_open()
        return self._session.plain.send(f"command {command.id!r}", self._command_record(destination, command))

    def command_everywhere(self, destination: str, command: Command, partitions: int) -> None:
        """Sends a command about a whole rule to every partition of a destination, in one transaction (B-104).

        Args:
            destination: Name of the destination.
            command: The command; its rule is the key.
            partitions: How many `D.commands` has.

        Raises:
            UowError: As leaving the block of `unit`.
        """
        self._require_open()
        key = command.rule.encode()
        record = self._signed_command(destination, command, key, 0)
        transaction = OneTransaction(self._session.transactions)
        try:
            transaction.begin()
            for partition in range(partitions):
                transaction.produce(OutgoingRecord(record.topic, key, None, record.headers, partition))
            transaction.commit(patience=transaction.patience())
        finally:
            transaction.end()

    def command_to(self, destination: str, command: Command, partition: int, key: bytes) -> Sent:
        """Sends a command that is of no group to one partition of a destination, as `command` does.

        Raises:
            UowError: As `send`.
        """
        self._require_open()
        record = self._signed_command(destination, command, key, partition)
        return self._session.plain.send(f"command {command.id!r}", record)

    def _command_record(self, destination: str, command: Command) -> OutgoingRecord:
        partition = self._session.path_claims.known(destination, command.group_id)
        return self._signed_command(destination, command, command.group_id, partition)

    def _signed_command(self, destination: str, command: Command, key: bytes, partition: int) -> OutgoingRecord:
        """The record of a command, signed as of now if this connection has a key."""
        value = command_value(command)
        now_ms = time.time_ns() // 1_000_000
        headers = signed_headers(self._signer, destination, key, value, command_headers(command), now_ms)
        return OutgoingRecord(_topics(destination).commands, key, value, headers, partition)

    def send_again(self, coordinates: str, record: OutgoingRecord) -> Sent:
        """Sends a record as it stands, that lies at these coordinates, outside transactions, and waits until the broker has it (W-202).

        Raises:
            UowError: As `send`.
        """
        self._require_open()
        return self._session.plain.send(f"again {coordinates}", record, Way.REPAIR)

    def _hop(self, message: Message) -> Hop:
        consumption = message._consumption
        consumption.require_open()
        if not isinstance(consumption.hop, Hop):
            transactions = self._session.transactions
            consumption.hop = Hop(transactions.take(), transactions.give_back, consumption)
        return consumption.hop

    # -- closing ---------------------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """Closes readers, transactions and the plain producer, in this order, then the callbacks. Open units are aborted.

        A second call does nothing. It raises nothing about the state of the connection.

        Args:
            timeout: Longest it takes, seconds; None: the blocking time (R-66). Records that were not answered by then go to the listener, as
                `AmbiguousSendError`.
        """
        self._session.close(self._session.life.waits.close_s if timeout is None else timeout)


def _untraced(record: OutgoingRecord) -> None:
    """Trace headers travel on as they are."""


def _unreadable(given: Unreadable | str) -> Unreadable:
    try:
        return Unreadable(given)
    except ValueError:
        raise ConfigError("unreadable", given, f"one of {', '.join(Unreadable)}") from None


def _topics(destination: str) -> DestinationTopics:
    return DestinationTopics("", destination)


def _plain_record(
    topic: str, component: Component, headers: Headers, key: bytes | None, seq: int | None, end: bool, count: int | None
) -> OutgoingRecord:
    if seq is not None or end or count is not None or any(name in (SEQ, END) for name, _ in headers):
        raise BadUnitIdError("a number or an end mark without an id", case="empty")
    check_conflict(headers)
    if not isinstance(component, BareValue) and all(name != COMPONENT_ID for name, _ in headers):
        headers = [*headers, (COMPONENT_ID, component.component_id.encode())]  # else nobody could find it again
    return OutgoingRecord(topic, key, value_bytes(component.value), headers)
