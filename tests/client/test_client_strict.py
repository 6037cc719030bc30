"""Strict order in the client, without a broker: handlers, transactions, and what is not strict (S-05, S-10, S-26)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fake_handles import FakeBroker, consumed

import uow
from uow import errors
from uow.client.strict_order import StrictDestinations, StrictReading, StrictView
from uow.topics.strict_registry import Era, EraTopic, StrictRegistry, StrictRules

TOPIC = "t"


@pytest.fixture
def fake() -> FakeBroker:
    fake = FakeBroker()
    fake.topics = {TOPIC: 1, "inner.components": 1, "d.registry": 1}
    marks = [("uow-id", b"u"), ("uow-seq", b"1")]
    fake.records = [consumed(b"%d" % n, offset=n, headers=marks) for n in range(6)]
    return fake


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[StrictDestinations]:
    """Makes the topic strict, without a registry to be read."""
    found: list[StrictDestinations] = []

    def reading(
        self: StrictDestinations, handle: Any, topic: str, group: str, destination: str | None
    ) -> StrictReading:
        registry = StrictRegistry("d", StrictRules(), Era(1, {topic: EraTopic("", (0,))}, 1, "", ""))
        found.append(self)
        view = StrictView(registry, None, 1e12)
        self._views["d"] = view
        return StrictReading(self, view, topic, group)

    monkeypatch.setattr(StrictDestinations, "reading", reading)
    monkeypatch.setattr(StrictReading, "refresh", lambda self, is_new=False: None)
    return iter(found)


def test_contrary_numbers_of_a_handler_are_overridden_with_a_warning_each(
    connection: uow.Connection, strict: Iterator[StrictDestinations], caplog: pytest.LogCaptureFixture
) -> None:
    """S-10."""
    seen: list[bytes | None] = []
    reader = connection.messages(TOPIC, group="g")

    def handle(message: uow.Message) -> None:
        seen.append(message.value)
        if len(seen) == 3:
            reader.stop()

    with caplog.at_level(logging.WARNING):
        reader.run(handle, concurrency=8, max_batch_size=50)
    assert seen == [b"0", b"1", b"2"]
    assert [line for line in caplog.messages if "OrderOverrideWarning" in line] == [
        "OrderOverrideWarning: destination d: concurrency is 8, strict order makes it 1",
        "OrderOverrideWarning: destination d: max_batch_size is 50, strict order makes it 1",
    ]
    assert next(strict).overridden == {"concurrency": 1, "max_batch_size": 1}


def test_without_strict_order_more_than_one_at_a_time_is_refused(connection: uow.Connection) -> None:
    with pytest.raises(errors.ConfigError, match="only 1 is supported yet"):
        connection.messages(TOPIC, group="g").run(print, concurrency=2)


def test_work_that_a_handler_leaves_behind_is_told_once(
    connection: uow.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """S-26."""
    reader, ends = connection.messages(TOPIC, group="g"), threading.Event()

    async def later() -> None: ...

    with pytest.raises(TypeError, match="coroutine function"):
        reader.run(lambda_coroutine)
    calls = 0

    def handle(message: uow.Message) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            threading.Thread(target=ends.wait, name="left-behind").start()
            return None
        reader.stop()
        return later()

    try:
        with caplog.at_level(logging.WARNING):
            reader.run(handle)
    finally:
        ends.set()
    told = [line for line in caplog.messages if "left work behind" in line]
    assert [line.partition("behind: ")[2] for line in told] == [
        "left-behind; its order is not kept",
        "an awaitable that nobody waits for; its order is not kept",
    ]


async def lambda_coroutine(message: uow.Message) -> None:
    """Returns before its work is done."""


def test_a_reader_has_one_transaction_open_at_a_time(
    connection: uow.Connection, strict: Iterator[StrictDestinations]
) -> None:
    """S-05."""
    message = connection.messages(TOPIC, group="g").receive(1)
    assert message is not None
    with connection.unit("inner", stands_for=message) as unit:
        unit.send("x")  # kept back, for it may be the last one
        unit.send("y")
        with pytest.raises(errors.AlreadyAttachedError), connection.unit("inner", stands_for=message) as second:
            second.send("x")


def test_a_handler_that_fails_is_tried_again_while_the_reader_goes_on_polling(
    connection: uow.Connection, fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-14, of any destination."""
    monkeypatch.setattr("uow.client.blocking.RETRY_S", (0.05,))
    reader, seen = connection.messages(TOPIC, group="g"), []
    told: list[uow.OrderBlocked] = []

    def handle(message: uow.Message) -> None:
        seen.append(message.offset)
        if seen.count(1) == 1 and message.offset == 1:
            raise ValueError("not yet")
        if message.offset == 2:
            reader.stop()

    reader.run(handle, on_blocked=told.append)
    assert seen == [0, 1, 1, 2]
    assert [(each.position, each.is_stopped) for each in told] == [(1, False)]
    assert fake.commits[-1] == [(0, 3)]


def test_a_forwarder_that_swaps_two_messages_is_stopped_at_the_first_swap(
    connection: uow.Connection, fake: FakeBroker
) -> None:
    """S-17: it is told both, nothing of the swap is visible, and in order it goes on."""
    with pytest.raises(errors.ConfigError, match="preserve"):
        connection.messages(TOPIC, group="g", order="random")
    fake.topics["next"] = 1
    reader = connection.messages(TOPIC, group="g", order="preserve")
    first, second = reader.receive(1), reader.receive(1)
    assert first is not None
    assert second is not None
    connection.forward(second, to="next")
    with pytest.raises(errors.OrderConfigError, match="t/0/0 after 1"):
        connection.forward(first, to="next")
    assert [sent.value for sent in fake.visible] == [b"1"]
    careless = connection.messages(TOPIC, group="other")
    later = [careless.receive(1), careless.receive(1)]
    for message in reversed(later):
        assert message is not None
        connection.forward(message, to="next")
    assert len(fake.visible) == 3
