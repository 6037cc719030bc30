"""Connections, sessions and units in the event loop: the client's own objects, whose calls are awaited.

Theory of operation. Each public class holds the client's object of the same name and adds no rule of its own. Calls that wait run in threads, in turns
(`uow.aio.threads`); the records of a unit and of a session, and single ones, are handed over in the loop where the library takes them at once.

Belongs here: those classes. Does not belong here: the work behind them (`uow.client`), readers (`uow.aio.readers`).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, Final, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from uow.aio import threads
from uow.aio.readers import MessageReader, Reader
from uow.aio.sends import TURN, Sends
from uow.aio.settings import MessagesSettings, UnitSettings, UnitsSettings
from uow.aio.threads import MOST, Lane, Opening, finish, in_loop
from uow.aio.values import Cancellation, FanOut, Message, ReceivedUnit, StreamedUnit, bare, wrapped
from uow.client import client_session, connection, unit_writer
from uow.client.answers import Cancellation as SyncCancellation
from uow.client.client_session import Acknowledge
from uow.client.fan_out import Request
from uow.client.forwarding import Forwarded
from uow.client.outgoing import Component, HeaderPairs, Value, as_component
from uow.client.reader import Reader as SyncReader
from uow.client.received import InnerUnit
from uow.client.received import Message as SyncMessage
from uow.client.sending import Sent
from uow.client.session_state import ConnectionState, Statistics, policy_of
from uow.errors import ClientClosedError
from uow.topics.manifests import ReplyContext
from uow.topics.policies import ReconnectPolicy

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
AnyReader = TypeVar("AnyReader", bound=Reader[Any])

_CALLBACKS: Final = ("on_given_up", "on_expired")
"""Settings of readers that are called back."""


def _awaited(
    method: Callable[Concatenate[connection.Connection, Arguments], Result],
) -> Callable[Concatenate[Connection, Arguments], Coroutine[Any, Any, Result]]:
    """The client's method, awaited: same arguments, same result, same errors."""

    @functools.wraps(method)
    async def call(self: Connection, /, *args: Arguments.args, **settings: Arguments.kwargs) -> Result:
        return await self._lane().run(partial(method, self._sync, *args, **settings))

    return call


def _hopping(
    method: Callable[Concatenate[connection.Connection, SyncMessage, Arguments], Result],
) -> Callable[Concatenate[Connection, Message, Arguments], Coroutine[Any, Any, Result]]:
    """The client's method for a message, awaited, in the turn of the message's reader."""

    @functools.wraps(method)
    async def call(
        self: Connection, message: Message, /, *args: Arguments.args, **settings: Arguments.kwargs
    ) -> Result:
        return await message._lane.run(partial(method, self._sync, message._sync, *args, **settings))

    return call


def _reading(
    method: Callable[Concatenate[connection.Connection, Arguments], SyncReader[Any]],
    kind: Callable[[Callable[[Lane], SyncReader[Any]]], AnyReader],
) -> Callable[Concatenate[Connection, Arguments], AnyReader]:
    """The client's method that makes a reader, which opens with its first call here."""

    @functools.wraps(method)
    def call(self: Connection, /, *args: Arguments.args, **settings: Arguments.kwargs) -> AnyReader:
        return kind(_opens(partial(method, self._sync), args, settings))

    return call


def _opens(
    make: Callable[..., SyncReader[Any]], args: tuple[Any, ...], settings: dict[str, Any]
) -> Callable[[Lane], SyncReader[Any]]:
    loop = asyncio.get_running_loop()

    def open_it(lane: Lane) -> SyncReader[Any]:
        called = {name: lane.back(_wrapping(settings[name], lane), loop) for name in _CALLBACKS if settings.get(name)}
        return make(*args, **settings | called)

    return open_it


def _wrapping(callback: Callable[[Any], object], lane: Lane) -> Callable[[Any], object]:
    return lambda given: callback(wrapped(given, lane))


class ConnectionFactory(connection.Factory):
    """As `uow.ConnectionFactory`, for the event loop. `listener` and `on_rejected` are called in the loop, and may be coroutine functions."""

    _linger_ms = 1  # tasks send side by side: a request for each record would cost more than the wait

    def connect(self) -> Opening[Connection]:
        """As `uow.ConnectionFactory.connect`: await it, or `async with`."""
        return Opening(self._connect)

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        listener = None if self._listener is None else in_loop(self._listener, loop)
        on_rejected = None if self._on_rejected is None else in_loop(self._on_rejected, loop)
        is_wanted = True

        def open_it() -> connection.Connection:
            opened = self._connected(on_rejected, listener)
            if not is_wanted:
                opened.close(0.0)
            return opened

        future = threads.begin(open_it)
        try:
            return Connection(await asyncio.shield(future))
        except asyncio.CancelledError:
            is_wanted = False
            future.add_done_callback(_close_late)
            raise


def _close_late(future: asyncio.Future[connection.Connection]) -> None:
    """The connection that nobody waited for."""
    if not future.cancelled() and future.exception() is None:
        threads.begin(partial(future.result().close, 0.0))


def _connecting(
    make: Callable[Arguments, ConnectionFactory],
) -> Callable[Arguments, Opening[Connection]]:
    def connect(*args: Arguments.args, **settings: Arguments.kwargs) -> Opening[Connection]:
        """As `uow.connect`, for the event loop: `async with uow.aio.connect(...) as connection`, or await it, and close the connection."""
        return make(*args, **settings).connect()

    connection.describe(connect, make)
    return connect


connect = _connecting(ConnectionFactory)


class Connection:
    """As `uow.Connection`, in the event loop that made it. Its calls may be made from any task; what they return is for one task each.

    Attributes:
        id: Of this connection, for as long as it lives.
    """

    def __init__(self, sync: connection.Connection) -> None:
        self.id = sync.id
        self._sync = sync
        self._sends = Sends(sync._session.plain, sync._session.life)
        self._room = asyncio.Semaphore(MOST)

    def _lane(self) -> Lane:
        return Lane(self._room)

    async def __aenter__(self) -> Self:
        self._sync._require_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def state(self) -> ConnectionState:
        """As of `uow.Connection`."""
        return self._sync.state

    @property
    def epoch(self) -> int:
        """As of `uow.Connection`."""
        return self._sync.epoch

    @property
    def reconnect_policy(self) -> ReconnectPolicy:
        """As of `uow.Connection`."""
        return self._sync.reconnect_policy

    @reconnect_policy.setter
    def reconnect_policy(self, policy: ReconnectPolicy | str) -> None:
        self._sync.reconnect_policy = policy_of(policy)

    def stats(self) -> Statistics:
        """As of `uow.Connection`; does not wait."""
        return self._sync.stats()

    def session(
        self, acknowledge: Acknowledge | str = Acknowledge.CLIENT, *, transacted: bool = False
    ) -> ClientSession:
        """As `uow.Connection.session`."""
        return ClientSession(self, self._sync.session(acknowledge, transacted=transacted))

    # -- sending

    def unit(
        self,
        destination: str,
        id: str | None = None,
        *,
        stands_for: Message | None = None,
        **settings: Unpack[UnitSettings],
    ) -> UnitWriter:
        """As `uow.Connection.unit`, with its settings: an asynchronous context manager."""
        message = None if stands_for is None else stands_for._sync
        lane = self._lane() if stands_for is None else stands_for._lane
        make = partial(self._sync.unit, destination, id, stands_for=message, **settings)
        return UnitWriter(make, lane, self._sync._session.life.waits.close_s)

    async def send(
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
        """As `uow.Connection.send`. Cancelled, it may be written or not: sending the same `Component` again waits for the same record."""
        self._sync._require_open()
        component = as_component(value)
        record = partial(self._sync._record, destination, component, id, seq, end, count, to, key, headers)
        asks_first = id is not None and self._sync._asks_before_sending
        made = await self._lane().run(record) if asks_first else record()
        return await self._sends.send(component.component_id, made)

    probe = _awaited(connection.Connection.probe)
    recover = _awaited(connection.Connection.recover)
    resend = _awaited(connection.Connection.resend)
    skip = _awaited(connection.Connection.skip)
    command = _awaited(connection.Connection.command)
    command_everywhere = _awaited(connection.Connection.command_everywhere)
    command_to = _awaited(connection.Connection.command_to)
    send_again = _awaited(connection.Connection.send_again)
    drain = _awaited(connection.Connection.drain)
    temporary_destination = _awaited(connection.Connection.temporary_destination)
    forward = _hopping(connection.Connection.forward)

    async def cancel(self, message: Message, *, destination: str, why: str, by: str | None = None) -> Cancellation:
        """As `uow.Connection.cancel`."""
        call = partial(self._sync.cancel, message._sync, destination=destination, why=why, by=by)
        sync: SyncCancellation = await message._lane.run(call)
        return Cancellation(sync, message._lane, self._lane())

    async def fan_out(
        self,
        destination: str,
        name: str,
        requests: Iterable[Request],
        timeout_ms: int | None = None,
        *,
        reply: ReplyContext = connection.NO_REPLY_CONTEXT,
        rule: str | None = None,
        cause: Message | None = None,
        awaits: bool = False,
    ) -> FanOut:
        """As `uow.Connection.fan_out`. Cancelled, the call may be made or not."""
        settings: dict[str, Any] = {"reply": reply, "rule": rule, "cause": bare(cause), "awaits": awaits}
        call = partial(self._sync.fan_out, destination, name, requests, timeout_ms, **settings)
        lane = self._lane()
        return FanOut(await (lane if cause is None else cause._lane).run(call), lane)

    # -- reading

    @overload
    def units(
        self,
        destination: str,
        group: str | None,
        *,
        include_plain: Literal[False] = False,
        **settings: Unpack[UnitsSettings],
    ) -> Reader[ReceivedUnit]: ...
    @overload
    def units(
        self, destination: str, group: str | None, *, include_plain: bool, **settings: Unpack[UnitsSettings]
    ) -> Reader[ReceivedUnit | Message]: ...
    def units(
        self, destination: str, group: str | None, *, include_plain: bool = False, **settings: Unpack[UnitsSettings]
    ) -> Reader[Any]:
        """As `uow.Connection.units`, with its settings. It opens with the reader's block or first call, which raise what it meets."""
        given = {"include_plain": include_plain, **settings}
        return Reader(_opens(self._sync.units, (destination, group), given))

    browse = _reading(connection.Connection.browse, Reader[ReceivedUnit])
    stream = _reading(connection.Connection.stream, Reader[StreamedUnit])

    def messages(self, topic: str, group: str | None, **settings: Unpack[MessagesSettings]) -> MessageReader:
        """As `uow.Connection.messages`, with its settings. It opens with the reader's block or first call, which raise what it meets."""
        return MessageReader(_opens(self._sync.messages, (topic, group), {**settings}))

    # -- closing

    async def close(self, timeout: float | None = None) -> None:
        """As `uow.Connection.close`. Cancelled, it waits for its end all the same."""
        await finish(self._close(timeout), 2 * self._sync._session.life.waits.close_s)

    async def _close(self, timeout: float | None) -> None:
        await threads.begin(partial(self._sync.close, timeout))
        await self._sends.close()


class UnitWriter:
    """As `uow.UnitWriter`, in the event loop: an asynchronous context manager, for one task.

    Leaving the block by an exception, a cancellation as well, aborts. A cancellation that comes while the block is being left waits for the outcome, for
    the blocking time at most: the transaction is committed or aborted as a whole, and `is_committed` tells.

    Attributes:
        is_committed: True once the commit was answered.
    """

    def __init__(self, make: Callable[[], unit_writer.UnitWriter], lane: Lane, close_s: float) -> None:
        self.is_committed = False
        self._make, self._lane, self._close_s = make, lane, close_s
        self._sync: unit_writer.UnitWriter | None = None
        self._at_once = 0

    @property
    def _entered(self) -> unit_writer.UnitWriter:
        if self._sync is None:
            raise ClientClosedError("components are sent inside the unit's block")
        return self._sync

    @property
    def id(self) -> str:
        """The group id; inside the block and behind it."""
        return self._entered.id

    @property
    def destination(self) -> str:
        """Where the components become a unit."""
        return self._entered.destination

    @property
    def count(self) -> int:
        """How many components were given so far."""
        return self._entered.count

    async def __aenter__(self) -> Self:
        if self._sync is not None:
            raise ClientClosedError("a unit's block is entered once")
        made = await self._lane.run(self._make)
        self._sync = made.__enter__() if made._long is None else await self._lane.run(made.__enter__)
        return self

    async def save(self) -> int:
        """As `uow.UnitWriter.save`."""
        return await self._lane.run(self._entered.save)

    async def send(
        self,
        value: Value | Component | ReceivedUnit | InnerUnit,
        *,
        to: str | None = None,
        headers: HeaderPairs = None,
        key: str | bytes | None = None,
    ) -> int:
        """As `uow.UnitWriter.send`. Cancelled, this component is not in the unit, and may be sent again."""
        sync, value = self._entered, bare(value)
        if not self._lane.is_free or not sync._is_placed:
            return await self._taken(partial(sync.send, value, to=to, headers=headers, key=key))
        self._at_once += 1
        if self._at_once % TURN == 0:
            await asyncio.sleep(0)
        record = sync._prepared(value, to, headers, key)
        if sync._takes_at_once:
            try:
                return sync._take(record, may_wait=False)
            except BufferError:
                pass
        return await self._taken(partial(sync._take, record))

    async def _taken(self, call: Callable[[], int]) -> int:
        return await self._lane.run(call, keep=self._take_back)

    def _take_back(self, future: asyncio.Future[int]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._entered._take_back()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await finish(self._settle(partial(self._entered.__exit__, kind, error, trace), kind is None), self._close_s)

    async def commit(self) -> None:
        """As `uow.UnitWriter.commit`."""
        await finish(self._settle(self._entered.commit, True), self._close_s)

    async def _settle(self, call: Callable[[], None], is_commit: bool) -> None:
        await self._lane.run(call)
        self.is_committed = is_commit


class ClientSession:
    """As `uow.ClientSession`, in the event loop; an asynchronous context manager, for one task. Its calls, and those of its readers, take turns.

    Attributes:
        acknowledge: As of `uow.ClientSession`.
        transacted: As of `uow.ClientSession`.
    """

    def __init__(self, of: Connection, sync: client_session.ClientSession) -> None:
        self.acknowledge, self.transacted = sync.acknowledge, sync.transacted
        self._connection, self._sync = of, sync
        self._lane = of._lane()

    async def __aenter__(self) -> Self:
        self._sync._require_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._finish(partial(self._sync.__exit__, kind, error, trace))

    def producer(self, destination: str | None = None) -> Producer:
        """As `uow.ClientSession.producer`."""
        return Producer(self, self._sync.producer(destination))

    def units(self, destination: str, group: str | None, **settings: Any) -> Reader[ReceivedUnit]:
        """As `uow.ClientSession.units`."""
        return Reader(_opens(self._sync.units, (destination, group), settings), self._lane)

    def messages(self, topic: str, group: str | None, **settings: Any) -> MessageReader:
        """As `uow.ClientSession.messages`."""
        return MessageReader(_opens(self._sync.messages, (topic, group), settings), self._lane)

    async def forward(self, message: Message, to: str | None = None, **settings: Any) -> Forwarded:
        """As `uow.ClientSession.forward`."""
        return await self._lane.run(partial(self._sync.forward, message._sync, to, **settings))

    async def commit(self) -> None:
        """As `uow.ClientSession.commit`. Cancelled, it waits for the outcome all the same, for the blocking time at most."""
        await self._finish(self._sync.commit)

    async def rollback(self) -> None:
        """As `uow.ClientSession.rollback`."""
        await self._finish(self._sync.rollback)

    async def close(self) -> None:
        """As `uow.ClientSession.close`."""
        await self._finish(self._sync.close)

    def _doom(self, future: asyncio.Future[Any]) -> None:
        """A send that was cancelled may be in the transaction or not."""
        self._sync._doom("a send was cancelled: roll back, and send all of it again")

    async def _finish(self, call: Callable[[], None]) -> None:
        await finish(self._lane.run(call), self._connection._sync._session.life.waits.close_s)


class Producer:
    """As `uow.Producer`, in the event loop.

    Attributes:
        destination: That of every `send` which names none; None: each names one.
    """

    def __init__(self, session: ClientSession, sync: client_session.Producer) -> None:
        self.destination = sync.destination
        self._session, self._sync = session, sync
        self._at_once = 0

    async def send(
        self,
        value: Value | Component,
        *,
        destination: str | None = None,
        id: str | None = None,
        seq: int | None = None,
        end: bool = False,
        count: int | None = None,
        to: str | None = None,
        key: str | bytes | None = None,
        headers: HeaderPairs = None,
    ) -> Sent | None:
        """As `uow.Producer.send`."""
        session = self._session
        session._sync._require_open()
        where = self._sync._where(destination)
        marks = {"id": id, "seq": seq, "end": end, "count": count, "to": to, "key": key, "headers": headers}
        if not session.transacted:
            return await session._connection.send(where, value, **marks)  # type: ignore[arg-type]
        component = as_component(value)
        self._at_once += 1
        if self._at_once % TURN == 0:
            await asyncio.sleep(0)
        if session._lane.is_free and not (id is not None and session._connection._sync._asks_before_sending):
            record = session._connection._sync._record(where, component, **marks)  # type: ignore[arg-type]
            try:
                if session._sync._takes_at_once(record):
                    session._sync._produce(record, may_wait=False)
                    return None
            except BufferError:
                pass
            return await session._lane.run(partial(session._sync._send, component, record), keep=session._doom)
        send = partial(self._sync.send, component, destination=destination, **marks)  # type: ignore[arg-type]
        return await session._lane.run(send, keep=session._doom)
