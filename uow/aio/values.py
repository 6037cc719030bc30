"""The values that readers hand out in the event loop: those of the client, with an `acknowledge` that is awaited.

Belongs here: how they are awaited. Does not belong here: what they hold (`uow.client.received`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, fields
from typing import Any

from uow.aio.threads import Lane
from uow.client import answers, fan_out, received, streaming
from uow.client.forwarding import Forwarded
from uow.client.received import AnyMessage, AnyUnit, ReceivedComponent, WholeUnit
from uow.schemas.records import Answer


@dataclass(frozen=True, slots=True, eq=False)
class Message(AnyMessage):
    """As `uow.Message`, in the event loop."""

    _lane: Lane = field(kw_only=True, repr=False)
    _sync: received.Message = field(kw_only=True, repr=False)

    async def acknowledge(self) -> None:
        """As `uow.Message.acknowledge`. Cancelled, it may be acknowledged or not."""
        await self._lane.run(self._acknowledge)


@dataclass(frozen=True, slots=True, eq=False)
class ReceivedUnit(WholeUnit):
    """As `uow.ReceivedUnit`, in the event loop."""

    _lane: Lane = field(kw_only=True, repr=False)
    _sync: received.ReceivedUnit = field(kw_only=True, repr=False)

    async def acknowledge(self) -> None:
        """As `uow.ReceivedUnit.acknowledge`. Cancelled, it may be acknowledged or not."""
        await self._lane.run(self._acknowledge)


@dataclass(frozen=True, slots=True, eq=False)
class ReceivedDocument(ReceivedUnit):
    """As `uow.ReceivedDocument`, in the event loop.

    Attributes:
        value: The document.
    """

    value: bytes = field(kw_only=True)

    def text(self) -> str:
        """The document as text; it is UTF-8."""
        return self.value.decode()


@dataclass(frozen=True, slots=True, eq=False)
class StreamedUnit(AnyUnit):
    """As `uow.StreamedUnit`, in the event loop.

    Attributes:
        components: In number order, once; an asynchronous iterator.
        document: As of `uow.StreamedUnit`.
    """

    components: AsyncIterator[ReceivedComponent] = field(kw_only=True)
    document: bytes | None = field(kw_only=True)
    _lane: Lane = field(kw_only=True, repr=False)
    _sync: streaming.StreamedUnit = field(kw_only=True, repr=False)

    @property
    def size(self) -> int:
        """Number of components."""
        return self._sync.size

    async def acknowledge(self) -> None:
        """As `uow.StreamedUnit.acknowledge`."""
        await self._lane.run(self._sync.acknowledge)


class _Components(AsyncIterator[ReceivedComponent]):
    """The components of a streamed unit. One that was read for a call which was cancelled comes with the next one, and so does an error."""

    def __init__(self, unit: streaming.StreamedUnit, lane: Lane) -> None:
        self._unit, self._lane = unit, lane
        self._kept: deque[asyncio.Future[ReceivedComponent | None]] = deque()

    async def __anext__(self) -> ReceivedComponent:
        component = await self._lane.run(self._following, keep=self._kept.append)
        if component is None:
            raise StopAsyncIteration
        return component

    def _following(self) -> ReceivedComponent | None:
        """In a thread, in its turn."""
        return self._kept.popleft().result() if self._kept else next(self._unit.components, None)


_FIELDS = {each: tuple(one.name for one in fields(each)) for each in (received.Message, received.ReceivedUnit)}
_STREAMED = tuple(each.name for each in fields(AnyUnit))


def wrapped(given: Any, lane: Lane) -> Any:
    """The value for the event loop of one that a reader of the client hands out."""
    match given:
        case received.Message():
            return Message(*[getattr(given, name) for name in _FIELDS[received.Message]], _lane=lane, _sync=given)
        case received.ReceivedUnit():
            own = [getattr(given, name) for name in _FIELDS[received.ReceivedUnit]]
            if isinstance(given, received.ReceivedDocument):
                return ReceivedDocument(*own, value=given.value, _lane=lane, _sync=given)
            return ReceivedUnit(*own, _lane=lane, _sync=given)
        case streaming.StreamedUnit():
            own = [getattr(given, name) for name in _STREAMED]
            components = _Components(given, lane)
            return StreamedUnit(*own, components=components, document=given.document, _lane=lane, _sync=given)
    return given


def bare(given: Any) -> Any:
    """The client's own value of one that was wrapped; anything else as it is."""
    return given._sync if isinstance(given, Message | ReceivedUnit | StreamedUnit) else given


class Cancellation:
    """As `uow.Cancellation`, in the event loop.

    Attributes:
        forwarded: As of `forward`.
        command_id: `uow-command-id`.
    """

    def __init__(self, sync: answers.Cancellation, lane: Lane, others: Lane) -> None:
        self.command_id = sync.command_id
        self._sync, self._lane, self._others = sync, lane, others

    @property
    def forwarded(self) -> Forwarded:
        """The result of forwarding the command."""
        return self._sync.forwarded

    async def answer(self, timeout: float = 30.0) -> Answer | None:
        """As `uow.Cancellation.answer`. Other readers of the connection go on meanwhile."""
        if self.forwarded is Forwarded.PENDING:
            await self._lane.run(lambda: self._sync.answer(0.0))
        return await self._others.run(lambda: self._sync.answer(timeout))

    def __repr__(self) -> str:
        return repr(self._sync)


class FanOut:
    """As `uow.FanOut`, in the event loop.

    Attributes:
        id: `uow-id` of the unit that its replies make.
        request_ids: Id of each request, in order.
        topic: Where the unit goes.
    """

    def __init__(self, sync: fan_out.FanOut, lane: Lane) -> None:
        self.id, self.request_ids, self.topic = sync.id, sync.request_ids, sync.topic
        self._sync, self._lane = sync, lane

    async def unit(self, timeout: float | None = None) -> ReceivedUnit | None:
        """As `uow.FanOut.unit`."""
        found: ReceivedUnit | None = wrapped(await self._lane.run(lambda: self._sync.unit(timeout)), self._lane)
        return found

    async def close(self) -> None:
        """As `uow.FanOut.close`."""
        await self._lane.run(self._sync.close)

    def __repr__(self) -> str:
        return repr(self._sync)
