"""A TCP proxy that understands Kafka's frames well enough to hold, lose, repeat or cut requests.

Belongs here: connections, frames, rules about requests. Does not belong here: the conclusions from a fault (`tests/broker/test_frame_faults.py`,
`uow prove`), and the contents of requests beyond their header.

A request is a size, then API key, version, correlation id and client id; an answer is a size, then the correlation id. Only that is read, and
the producer id of a transaction's requests, in order to report a producer that begins another transaction after one of its requests met a fault
(`Fences`). A broker tells its clients where to connect, so it needs a listener of its own that it advertises under the proxy's port
(`EmbeddedBroker(advertised=proxy.port)`); the checker connects directly to the other listener.

    with Proxy(seed=7) as proxy, EmbeddedBroker(advertised=proxy.port) as broker:
        proxy.upstream = broker.behind
        rule = proxy.add(Rule(Fault.HOLD, {Api.END_TXN}, times=1))
        ...  # a client of proxy.address commits, is cut, commits again
        rule.wait()
        proxy.release()  # the first frame arrives, late
"""

from __future__ import annotations

import asyncio
import random
import struct
import threading
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, NamedTuple, Self, TypeVar

_Result = TypeVar("_Result")

HOST = "127.0.0.1"
LIMIT = 1 << 20
"""Bytes that are read beyond the present frame, per connection."""

ARRIVAL_S = 5.0
"""Longest wait for the broker's answer to a late frame."""


class Api(IntEnum):
    """API keys of requests, as far as they are used here."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


MEMBERSHIP = frozenset({Api.JOIN_GROUP, Api.SYNC_GROUP, Api.HEARTBEAT, Api.LEAVE_GROUP})
"""Requests that keep a consumer in its group. Clients send them on a separate connection, so a fault here does not affect fetches."""

TRANSACTION = frozenset(
    {Api.PRODUCE, Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN, Api.TXN_OFFSET_COMMIT, Api.END_TXN}
)
"""Requests of a transaction."""


class FrameFault(Enum):
    """Faults of a request that a rule selected."""

    HOLD = "hold"
    """The request is held and the client's connection is cut, so that it repeats the request on another. `Proxy.release` delivers the first one late."""
    HOLE = "hole"
    """The request is held, and nothing passes on this connection any more in either direction: the client notices only by a time-out."""
    CUT = "cut"
    """The request is lost, and the connection is cut."""
    LOSE_ANSWER = "lose answer"
    """The request reaches the broker, but its answer is lost, and the connection is cut."""
    REPEAT = "repeat"
    """The request passes, and `Proxy.release` delivers a copy later."""
    RELEASE = "release"
    """The request passes, but only after all held requests have arrived."""


class Way(Enum):
    """A direction of traffic."""

    REQUESTS = "requests"
    ANSWERS = "answers"


@dataclass(frozen=True, slots=True)
class Request:
    """The header of a request."""

    api: int
    version: int
    correlation: int
    client: str


class ProducerEpoch(NamedTuple):
    """A producer as the broker knows it; each new producer instance has a new epoch."""

    transactional_id: str
    producer: int
    epoch: int


@dataclass(eq=False)
class FrameRule:
    """A rule that selects requests for a fault.

    Attributes:
        fault: The fault.
        apis: API keys of the requests; empty: any.
        client: Prefix of their client id.
        skip: Number of matching requests that pass first.
        times: How many requests it affects; -1: all until the rule is removed.
        chance: Share of the matching requests, chosen by the proxy's random generator.
        hits: Number of requests affected so far.
    """

    fault: FrameFault
    apis: Collection[int] = ()
    client: str = ""
    skip: int = 0
    times: int = -1
    chance: float = 1.0
    hits: int = 0
    _hit: threading.Event = field(default_factory=threading.Event, repr=False)

    def wait(self, timeout: float = 30) -> None:
        """Waits until it has happened once.

        Raises:
            TimeoutError: It did not.
        """
        if not self._hit.wait(timeout):
            raise TimeoutError(f"no request matched {self} in {timeout:g} s")

    def takes(self, request: Request, dice: random.Random) -> bool:
        """True if the rule applies to this request, which it then counts."""
        if (self.apis and request.api not in self.apis) or not request.client.startswith(self.client):
            return False
        if self.hits == self.times or (self.chance < 1 and dice.random() >= self.chance):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.hits += 1
        self._hit.set()
        return True


@dataclass(eq=False, slots=True)
class _Held:
    """A held frame, with the connection to the broker that it was on."""

    link: _Link
    request: Request
    frame: bytes
    answered: asyncio.Event = field(default_factory=asyncio.Event)


def parse(frame: bytes) -> Request:
    """The header of a request's frame (without its size)."""
    api, version, correlation, length = struct.unpack_from(">hhih", frame)
    return Request(api, version, correlation, frame[10 : 10 + max(length, 0)].decode(errors="replace"))


_NAMED = frozenset({Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN, Api.END_TXN})
"""Requests that begin with the transactional id and the producer, in the versions below `_FLEXIBLE`, which librdkafka uses."""
_FLEXIBLE = 3
_HURTS = frozenset({FrameFault.HOLD, FrameFault.HOLE, FrameFault.CUT, FrameFault.LOSE_ANSWER})
"""Faults that the client notices, by a broken connection or a time-out."""


def producer_of(frame: bytes, request: Request) -> ProducerEpoch | None:
    """The producer whose transaction a request belongs to; None for other requests."""
    if request.api not in _NAMED or request.version >= _FLEXIBLE:
        return None
    start = 12 + max(0, *struct.unpack_from(">h", frame, 8))
    try:
        (length,) = struct.unpack_from(">h", frame, start - 2)
        producer, epoch = struct.unpack_from(">qh", frame, start + length)
    except struct.error:
        return None
    return ProducerEpoch(frame[start : start + length].decode(errors="replace"), producer, epoch)


class Fences:
    """Checks that a producer is replaced after one of its requests met a fault, so that a late request meets a newer epoch (ER-11).

    After such a request the transaction may end, but the same producer must not begin another one.
    """

    def __init__(self) -> None:
        self._broken: list[str] = []
        self._hurt: dict[ProducerEpoch, str] = {}
        self._ended: set[ProducerEpoch] = set()

    def see(self, frame: bytes, request: Request, fault: FrameFault | None) -> None:
        """Takes note of a request and its fault."""
        producer = producer_of(frame, request)
        if producer is None:
            return
        if producer in self._ended and request.api == Api.ADD_PARTITIONS_TO_TXN:
            name, number, epoch = producer
            said = (
                f"{name} (producer {number}, epoch {epoch}) began another transaction after {self._hurt.pop(producer)}"
            )
            self._ended.remove(producer)
            self._broken.append(said)
        if fault in _HURTS:
            self._hurt.setdefault(producer, f"its {Api(request.api).name}: {fault.value}")
        elif producer in self._hurt and request.api == Api.END_TXN:
            self._ended.add(producer)

    def take(self) -> list[str]:
        """Producers that began another transaction since the last call, in words."""
        said, self._broken = self._broken, []
        return said


class Proxy:
    """Stands between clients and one broker. Its loop runs in a thread of its own; every method may be called from any other.

    Args:
        upstream: `HOST:PORT` of the broker; may be set later, until then connections are refused.
        port: Where to listen; 0 finds a free one.
        seed: For rules with a chance.
    """

    def __init__(self, upstream: str = "", *, port: int = 0, seed: int = 0) -> None:
        self.upstream = upstream
        self.port = port
        self.counts: Counter[int] = Counter()
        """Number of requests received, by API key."""
        self.fences = Fences()
        self.open_ways = {way: asyncio.Event() for way in Way}
        self._dice = random.Random(seed)
        self._rules: list[FrameRule] = []
        self._held: list[_Held] = []
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="uow-frames", daemon=True)

    @property
    def address(self) -> str:
        """`HOST:PORT` for clients."""
        return f"{HOST}:{self.port}"

    @property
    def held(self) -> int:
        """Number of held frames."""
        return len(self._held)

    def start(self) -> Self:
        """Starts listening."""
        for way in self.open_ways.values():
            way.set()
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._accept, HOST, self.port, limit=LIMIT))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def close(self) -> None:
        """Cuts all connections. Frames that are still held never arrive."""
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, rule: FrameRule) -> FrameRule:
        """Adds a rule. For each request the first rule that applies decides."""
        self._run(lambda: self._rules.append(rule))
        return rule

    def clear(self) -> None:
        """Removes all rules. Held frames stay held; connections on which nothing passes any more are cut."""

        def clear() -> None:
            self._rules.clear()
            for link in list(self._links):
                if link.is_hole:
                    link.cut_client()

        self._run(clear)

    def cut(self) -> None:
        """Cuts every connection that is open now."""

        def cut() -> None:
            for link in list(self._links):
                link.cut()

        self._run(cut)

    def block(self, way: Way) -> None:
        """Nothing goes this way any more; the other one is open. As in a network, a client notices by its time-outs only."""
        self._run(self.open_ways[way].clear)

    def unblock(self) -> None:
        """Both ways are open. What waited arrives late, requests also of connections that the client has closed since: TCP had kept them."""
        for way in self.open_ways.values():
            self._run(way.set)

    def release(self, wait_s: float = ARRIVAL_S) -> int:
        """Delivers the held frames in their order, and waits for the broker's answers, which are dropped.

        Returns:
            The number of answered frames; frames on a connection that the broker has closed get no answer.
        """
        return self._do(self.deliver_held(wait_s))

    # -- on the loop

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            host, _, port = self.upstream.rpartition(":")
            broker = await asyncio.open_connection(host, int(port), limit=LIMIT)
        except (OSError, ValueError):
            writer.close()
            self._tasks.discard(task)
            return
        link = _Link(self, reader, writer, *broker)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)
            self._tasks.discard(task)

    def verdict(self, request: Request) -> FrameFault | None:
        """The fault of a request, or None."""
        self.counts[request.api] += 1
        return next((rule.fault for rule in self._rules if rule.takes(request, self._dice)), None)

    def hold(self, held: _Held) -> None:
        """Holds a frame."""
        self._held.append(held)

    async def deliver_held(self, wait_s: float) -> int:
        """Delivers the held frames, for `release`."""
        held, self._held = self._held, []
        for each in held:
            each.link.deliver_late(each)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                for each in held:
                    await each.answered.wait()
        return sum(each.answered.is_set() for each in held)

    async def _end(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- from other threads

    def _do(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _run(self, work: Callable[[], object]) -> None:
        async def run() -> None:
            work()

        self._do(run())


class _Link:
    """A client's connection and the corresponding one to the broker, which outlives it, because held frames need it."""

    def __init__(
        self,
        proxy: Proxy,
        from_client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        from_broker: asyncio.StreamReader,
        to_broker: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = from_client, to_client
        self._from_broker, self._to_broker = from_broker, to_broker
        self._passed: set[int] = set()
        self._lost: set[int] = set()
        self._late: dict[int, list[_Held]] = {}
        self._owed = 0
        self.is_hole = False

    async def run(self) -> None:
        """Forwards in both directions until both ends are closed."""
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._requests())
                ways.create_task(self._answers())
        finally:
            self.cut()

    async def _requests(self) -> None:
        try:
            while True:
                frame = await _frame(self._from_client)
                await self._proxy.open_ways[Way.REQUESTS].wait()
                if self.is_hole:
                    continue
                request = parse(frame)
                fault = self._proxy.verdict(request)
                self._proxy.fences.see(frame, request, fault)
                if fault in (FrameFault.HOLD, FrameFault.HOLE, FrameFault.REPEAT):
                    self._proxy.hold(_Held(self, request, frame))
                    self._owed += 1
                if fault is FrameFault.HOLE:
                    self.is_hole = True
                elif fault in (FrameFault.HOLD, FrameFault.CUT):
                    break
                else:
                    if fault is FrameFault.LOSE_ANSWER:
                        self._lost.add(request.correlation)
                    elif fault is FrameFault.RELEASE:
                        await self._proxy.deliver_held(ARRIVAL_S)
                    self._passed.add(request.correlation)
                    _send(self._to_broker, frame)
                    await self._to_broker.drain()
        except _GONE:
            pass
        self.cut_client()
        if not self._owed:
            self._to_broker.close()

    async def _answers(self) -> None:
        try:
            while True:
                frame = await _frame(self._from_broker)
                await self._proxy.open_ways[Way.ANSWERS].wait()
                (correlation,) = struct.unpack_from(">i", frame)
                if correlation in self._lost:
                    break
                if correlation not in self._passed:
                    self._late[correlation].pop(0).answered.set()
                    self._owed -= 1
                    if not self._owed and self._to_client.is_closing():
                        break
                    continue
                self._passed.discard(correlation)
                if not self.is_hole and not self._to_client.is_closing():
                    _send(self._to_client, frame)
                    with suppress(*_GONE):
                        await self._to_client.drain()
        except _GONE:
            pass
        self.cut()

    def deliver_late(self, held: _Held) -> None:
        """Sends a held frame to the broker."""
        if not self._to_broker.is_closing():
            self._late.setdefault(held.request.correlation, []).append(held)
            _send(self._to_broker, held.frame)

    def cut_client(self) -> None:
        """Closes the client's connection."""
        self._to_client.close()

    def cut(self) -> None:
        """Closes both connections."""
        self._to_client.close()
        self._to_broker.close()


_GONE = (asyncio.IncompleteReadError, OSError)


async def _frame(stream: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await stream.readexactly(4))
    return await stream.readexactly(size)


def _send(stream: asyncio.StreamWriter, frame: bytes) -> None:
    stream.write(struct.pack(">i", len(frame)))
    stream.write(frame)
