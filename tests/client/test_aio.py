"""The client for asyncio, over handles in memory: the same results and errors, and cancellation at each step that leaves nothing half done."""

from __future__ import annotations

import asyncio
import inspect
import threading
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from confluent_kafka import KafkaError
from fake_handles import FakeBroker, FakeProducer, consumed, failure

import uow
from tests.processes import PATIENCE_S, wait_for
from uow import aio, errors
from uow.aio import threads
from uow.client import session
from uow.client.session_state import Waits

RECORDS = [consumed(b"v%d" % offset, offset=offset) for offset in range(4)]
STEPS = 24
"""More than any story here has: both ends of each call in a thread."""


@asynccontextmanager
async def connected(fake: FakeBroker, **options: Any) -> AsyncIterator[aio.Connection]:
    settings = {"reconnect_policy": "all", "kafka_port": fake} | options
    async with asyncio.timeout(PATIENCE_S), aio.connect("fake:9092", **settings) as connection:
        yield connection


def play(story: Callable[[aio.Connection], Awaitable[None]], fake: FakeBroker, **options: Any) -> None:
    async def run() -> None:
        async with connected(fake, **options) as connection:
            await story(connection)

    asyncio.run(run())


def cancelled_at(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, bool]]:
    """Runs a story and cancels it as its call in a thread begins (even steps), or has ended (odd ones). True if it was."""
    calls = 0
    task: asyncio.Task[None] | None = None
    begin = threads.begin

    def counted(call: Callable[[], Any]) -> asyncio.Future[Any]:
        nonlocal calls
        future = begin(call)
        if task is not None and not task.done() and calls == step // 2:
            asyncio.get_running_loop().call_soon(task.cancel) if step % 2 == 0 else future.add_done_callback(
                lambda _: task.cancel()
            )
        calls += 1
        return future

    async def run(story: Coroutine[Any, Any, None]) -> bool:
        nonlocal task
        monkeypatch.setattr(threads, "begin", counted)
        task = asyncio.ensure_future(story)
        try:
            await task
        except asyncio.CancelledError:
            return True
        finally:
            monkeypatch.setattr(threads, "begin", begin)
        return False

    return run


def test_unit_is_sent_as_the_synchronous_client_sends_it(fake: FakeBroker) -> None:
    other = FakeBroker()
    with other.connect() as connection, connection.unit("megazon", "u", priority=7) as unit:
        for value in ("a", {"b": 1}):
            unit.send(value, headers={"uow-component-id": "c"})

    async def story(connection: aio.Connection) -> None:
        async with connection.unit("megazon", "u", priority=7) as unit:
            assert [await unit.send(each, headers={"uow-component-id": "c"}) for each in ("a", {"b": 1})] == [1, 2]
        assert (unit.id, unit.count, unit.is_committed, unit.destination) == ("u", 2, True, "megazon")
        assert connection.stats().sent == 2

    play(story, fake)
    assert [(each.name, each.key, each.value, each.headers) for each in fake.visible] == [
        (each.name, each.key, each.value, each.headers) for each in other.visible
    ]


def test_errors_are_those_of_the_synchronous_client(fake: FakeBroker) -> None:
    async def story(connection: aio.Connection) -> None:
        with pytest.raises(errors.EmptyUnitError):
            async with connection.unit("megazon"):
                pass
        with pytest.raises(errors.BadUnitIdError):
            async with connection.unit("megazon", ""):
                pass
        with pytest.raises(errors.BadSequenceNumberError):
            await connection.send("megazon", "x", id="a", seq=0)
        with pytest.raises(errors.ConfigError, match="start"):
            await connection.units("megazon", "g", start="soon").receive(0)
        fake.delivery_errors = [KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)]
        with pytest.raises(errors.SendRejectedError):
            await connection.send("megazon", "x", id="a", seq=1)
        fake.script["commit_transaction"] = [failure(KafkaError._FENCED, fatal=True)]
        with pytest.raises(errors.FencedError):
            async with connection.unit("megazon") as unit:
                await unit.send("a")
        await connection.close()
        with pytest.raises(errors.ClientClosedError, match="close"):
            await connection.send("megazon", "x", id="a", seq=1)

    play(story, fake)


def test_block_that_is_left_by_an_exception_sends_nothing(fake: FakeBroker) -> None:
    async def send_and_fail(unit: aio.UnitWriter) -> None:
        async with unit:
            await unit.send("a")
            await unit.send("b")
            raise ZeroDivisionError

    async def story(connection: aio.Connection) -> None:
        unit = connection.unit("megazon")
        with pytest.raises(ZeroDivisionError):
            await send_and_fail(unit)
        assert not unit.is_committed

    play(story, fake)
    assert fake.visible == []
    assert "abort_transaction" in fake.calls


@pytest.mark.parametrize("step", range(STEPS))
def test_unit_that_is_cancelled_anywhere_is_sent_whole_or_not_at_all(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeBroker()

    async def send_three(connection: aio.Connection, id: str) -> None:
        async with connection.unit("megazon", id) as unit:
            for value in "abc":
                await unit.send(value)

    async def story(connection: aio.Connection) -> None:
        was_cancelled = await cancelled_at(step, monkeypatch)(send_three(connection, "first"))
        await send_three(connection, "second")  # on the same transactional id: the first one has given it back
        sent = [dict(each.headers)["uow-id"] for each in fake.visible]
        assert sent in ([b"second"] * 3, [b"first"] * 3 + [b"second"] * 3)
        assert was_cancelled or len(sent) == 6

    play(story, fake)
    ids = {each.properties["transactional.id"] for each in fake.producers if "transactional.id" in each.properties}
    assert len(ids) == 1
    ends = [each for each in fake.calls if each.endswith("_transaction")]
    assert ends[::2] == ["begin_transaction"] * (len(ends) // 2)


def test_block_that_is_cancelled_aborts_behind_the_call_that_is_under_way(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No two calls ever meet inside an object."""
    order: list[str] = []
    gate = threading.Event()
    begin, abort = FakeProducer.begin_transaction, FakeProducer.abort_transaction

    def slow_begin(self: FakeProducer) -> None:
        order.append("begins")
        assert gate.wait(PATIENCE_S)
        begin(self)
        order.append("has begun")

    def noted_abort(self: FakeProducer, timeout: float) -> None:
        order.append("aborts")
        abort(self, timeout)

    monkeypatch.setattr(FakeProducer, "begin_transaction", slow_begin)
    monkeypatch.setattr(FakeProducer, "abort_transaction", noted_abort)

    async def send_two(connection: aio.Connection) -> None:
        async with connection.unit("megazon") as unit:
            await unit.send("a")
            await unit.send("b")

    async def story(connection: aio.Connection) -> None:
        task = asyncio.ensure_future(send_two(connection))
        await asyncio.to_thread(wait_for, lambda: order)
        task.cancel()
        await asyncio.wait([task], timeout=0.05)
        assert (order, task.done()) == (["begins"], False)
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    play(story, fake)
    assert order == ["begins", "has begun", "aborts"]
    assert fake.visible == []


@pytest.mark.parametrize("step", range(STEPS))
def test_receiving_that_is_cancelled_anywhere_loses_nothing_and_doubles_nothing(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeBroker()
    fake.records = RECORDS.copy()
    seen: list[bytes | None] = []

    async def read(reader: aio.MessageReader) -> None:
        while len(seen) < len(RECORDS):
            message = await reader.receive(0.01)
            if message is not None:
                seen.append(message.value)
                await message.acknowledge()

    async def story(connection: aio.Connection) -> None:
        async with connection.messages("t", "g") as reader:
            await cancelled_at(step, monkeypatch)(read(reader))
            await read(reader)
            assert await reader.receive(0) is None

    play(story, fake)
    assert seen == [b"v0", b"v1", b"v2", b"v3"]
    assert fake.committed["t", 0][0] in (3, 4)  # the acknowledgement that was cancelled may be the last one


@pytest.mark.parametrize("step", range(STEPS // 2))
def test_forwarding_that_is_cancelled_anywhere_forwards_each_once(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeBroker()
    fake.records = RECORDS.copy()

    async def forward_all(connection: aio.Connection, reader: aio.MessageReader) -> None:
        while (message := await reader.receive(0.01)) is not None:
            assert await connection.forward(message, "onward") is uow.Forwarded.COMMITTED

    async def story(connection: aio.Connection) -> None:
        async with connection.messages("t", "g") as reader:
            await cancelled_at(step, monkeypatch)(forward_all(connection, reader))
        async with connection.messages("t", "g") as reader:
            await forward_all(connection, reader)

    play(story, fake)
    assert [each.value for each in fake.visible] == [b"v0", b"v1", b"v2", b"v3"]


def test_connecting_that_is_cancelled_leaves_no_connection(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {*session.OPEN}

    async def story() -> None:
        async def connect() -> None:
            await aio.connect("fake:9092", kafka_port=fake)

        assert await cancelled_at(0, monkeypatch)(connect())
        await asyncio.to_thread(wait_for, lambda: fake.watches and {*session.OPEN} == before)

    asyncio.run(story())


def test_closing_that_is_cancelled_closes(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {*session.OPEN}

    async def story() -> None:
        connection = await aio.connect("fake:9092", kafka_port=fake)
        await connection.send("megazon", "x", id="a", seq=1)
        assert await cancelled_at(0, monkeypatch)(connection.close())
        assert {*session.OPEN} == before

    asyncio.run(story())


def test_many_sends_at_once_need_one_thread(fake: FakeBroker) -> None:
    async def story(connection: aio.Connection) -> None:
        await connection.send("megazon", "first", id="a", seq=1)
        before = {each.name for each in threading.enumerate()}
        sent = await asyncio.gather(*[connection.send("megazon", "x", id="a", seq=number) for number in range(2, 502)])
        assert {each.name for each in threading.enumerate()} <= before
        assert sent == [uow.Sent("megazon.components", 0, 7)] * 500
        assert connection.stats().sent == 501

    play(story, fake)
    assert [each.properties["linger.ms"] for each in fake.producers] == [1]  # the waiting client has 0
    assert [dict(each.headers)["uow-seq"] for each in fake.visible] == [b"%d" % number for number in range(1, 502)]


def test_send_without_an_answer_goes_on_and_the_same_component_waits_for_it(fake: FakeBroker) -> None:
    async def story(connection: aio.Connection) -> None:
        await connection.send("megazon", "first", id="z", seq=1)  # the looks at the topic have their time
        connection._sync._session.life.waits = Waits(blocking_ms=50)
        component = uow.Component("x")
        fake.answers = False
        with pytest.raises(errors.ReconnectTimeoutError, match="still under way") as late:
            await connection.send("megazon", component, id="a", seq=1)
        assert not late.value.pending.is_known
        waiting = [asyncio.ensure_future(connection.send("megazon", component, id="a", seq=1)) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        fake.answers = True
        connection._sync._session.life.waits = Waits()
        assert (await waiting[1]).offset == 7

    play(story, fake)
    assert len(fake.visible) == 2


def test_handler_may_await_the_very_reader_that_calls_it(fake: FakeBroker) -> None:
    fake.records = RECORDS.copy()

    async def story(connection: aio.Connection) -> None:
        reader = connection.messages("t", "g")

        async def handle(message: aio.Message) -> None:
            assert threading.current_thread() is threading.main_thread()
            assert await connection.forward(message, "onward") is uow.Forwarded.COMMITTED
            if message.offset == 3:
                reader.stop()

        await reader.run(handle)

    play(story, fake)
    assert [each.value for each in fake.visible] == [b"v0", b"v1", b"v2", b"v3"]


def test_handler_that_is_cancelled_leaves_its_message_for_the_next_one(fake: FakeBroker) -> None:
    fake.records = RECORDS.copy()
    ends: list[str] = []

    async def story(connection: aio.Connection) -> None:
        async with connection.messages("t", "g") as reader:
            begun = asyncio.Event()

            async def handle(message: aio.Message) -> None:
                begun.set()
                try:
                    await asyncio.sleep(PATIENCE_S)
                except asyncio.CancelledError:
                    ends.append("cancelled")
                    raise

            running = asyncio.ensure_future(reader.run(handle))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            message = await reader.receive(1)
            assert message is not None
            assert (message.offset, ends) == (0, ["cancelled"])

    play(story, fake)
    assert fake.committed["t", 0][0] == 0


def test_handler_that_fails_blocks_its_partition(fake: FakeBroker) -> None:
    fake.records = RECORDS[:1]
    blocked: list[uow.OrderBlocked] = []

    async def story(connection: aio.Connection) -> None:
        reader = connection.messages("t", "g")

        async def handle(message: aio.Message) -> None:
            raise ZeroDivisionError

        async def on_blocked(block: uow.OrderBlocked) -> None:
            blocked.append(block)
            reader.stop()

        await reader.run(handle, on_blocked=on_blocked)

    play(story, fake)
    assert [each.cause for each in blocked] == ["ZeroDivisionError: "]


def test_transacted_session_commits_what_it_sent_with_what_it_received_and_takes_turns_with_its_reader(
    fake: FakeBroker,
) -> None:
    async def story(connection: aio.Connection) -> None:
        async with connection.session(transacted=True) as transacted:
            producer, reader = transacted.producer("megazon"), transacted.messages("t", "g")
            idle = asyncio.ensure_future(reader.receive())
            await asyncio.sleep(0.01)
            assert await producer.send("x", id="a", seq=1) is None  # though the reader waits for ever
            fake.records = RECORDS[:1]
            message = await idle
            assert message is not None
            assert fake.visible == []
            await transacted.commit()
            assert (len(fake.visible), fake.committed["t", 0][0]) == (1, 1)
            await producer.send("y", id="a", seq=2)
            await producer.send("z", id="a", seq=3)
            await transacted.rollback()
        assert len(fake.visible) == 1

    play(story, fake)


def test_listener_is_called_in_the_loop(fake: FakeBroker) -> None:
    heard: list[tuple[object, bool]] = []

    async def listener(event: object) -> None:
        await asyncio.sleep(0)
        heard.append((event, threading.current_thread() is threading.main_thread()))

    async def story(connection: aio.Connection) -> None:
        connection._sync._session.life.lost("gone, by script")
        await asyncio.to_thread(wait_for, lambda: heard)

    play(story, fake, listener=listener)
    assert isinstance(heard[0][0], uow.ConnectionLost)
    assert heard[0][1]


PAIRS = [
    (uow.Connection, aio.Connection),
    (uow.ClientSession, aio.ClientSession),
    (uow.Producer, aio.Producer),
    (uow.UnitWriter, aio.UnitWriter),
    (uow.Reader, aio.Reader),
    (uow.MessageReader, aio.MessageReader),
    (uow.ReceivedUnit, aio.ReceivedUnit),
    (uow.ReceivedDocument, aio.ReceivedDocument),
    (uow.StreamedUnit, aio.StreamedUnit),
    (uow.Message, aio.Message),
    (uow.Cancellation, aio.Cancellation),
    (uow.FanOut, aio.FanOut),
    (uow.ConnectionFactory, aio.ConnectionFactory),
]


def parameters(method: Any) -> set[str]:
    """Names of the arguments, those of `Unpack` included."""
    found = {*inspect.signature(method).parameters} - {"self", "args"}
    if "settings" in found and method.__annotations__.get("settings") != "Any":
        unpacked = typing.get_type_hints(method)["settings"]
        found = found - {"settings"} | set(typing.get_args(unpacked)[0].__annotations__)
    return found


@pytest.mark.parametrize(("sync", "awaited"), PAIRS, ids=lambda each: each.__name__)
def test_each_public_name_and_argument_is_that_of_the_synchronous_client(sync: type, awaited: type) -> None:
    names = {name for name in dir(sync) if not name.startswith("_")}
    assert {name for name in dir(awaited) if not name.startswith("_")} >= names
    for name in names:
        before, now = inspect.getattr_static(sync, name), inspect.getattr_static(awaited, name)
        if inspect.isfunction(before) and inspect.isfunction(now) and parameters(now) != {"settings", *parameters(now)}:
            assert parameters(now) == parameters(before), name


def test_a_close_is_heard_by_the_thread_that_is_about_to_sleep(fake: FakeBroker) -> None:
    """It had slept for ever, and `close()` waited for it."""

    async def story(connection: aio.Connection) -> None:
        await connection.send("megazon", "x", id="a", seq=1)
        sends = connection._sends

        class ClosedBefore(threading.Event):
            def clear(self) -> None:
                sends._is_closed = True
                self.set()
                super().clear()

        sends._work = ClosedBefore()
        thread = sends._thread
        assert thread is not None
        thread.join(PATIENCE_S / 9)
        is_alive = thread.is_alive()
        sends._work.set()
        assert not is_alive

    play(story, fake)
