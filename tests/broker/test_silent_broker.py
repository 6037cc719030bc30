"""A broker that falls silent, frozen or behind a line that drops everything: its clients hear of it in time (F6)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

import uow
from tests.broker.client_places import Topics
from tests.processes import PATIENCE_S, wait_for
from uow import errors
from uow.embedded.broker import EmbeddedBroker
from uow.prove.frames import FrameFault, FrameRule, Proxy

pytestmark = [pytest.mark.broker, pytest.mark.slow]

Silence = tuple[Callable[[], object], Callable[[], object]]
"""Begins it; ends it."""


def signals(broker: EmbeddedBroker, number: int) -> None:
    assert broker.pid is not None
    os.kill(broker.pid, number)


@pytest.fixture(scope="module")
def house() -> Iterator[tuple[EmbeddedBroker, Proxy]]:
    with Proxy() as proxy, EmbeddedBroker(heap="384m", advertised=proxy.port) as broker:
        proxy.upstream = broker.behind
        yield broker, proxy


@pytest.fixture(params=["frozen", "hole"])
def silence(house: tuple[EmbeddedBroker, Proxy], request: pytest.FixtureRequest) -> Iterator[Silence]:
    broker, proxy = house
    frozen = (lambda: signals(broker, signal.SIGSTOP), lambda: signals(broker, signal.SIGCONT))
    hole = (lambda: proxy.add(FrameRule(FrameFault.HOLE)), proxy.clear)
    chosen = frozen if request.param == "frozen" else hole
    yield chosen
    chosen[1]()


def test_a_reader_that_only_waits_hears_of_a_silent_broker_in_time(
    house: tuple[EmbeddedBroker, Proxy], silence: Silence
) -> None:
    broker, proxy = house
    name = f"silent-{uuid4().hex[:8]}"
    places = Topics(broker.bootstrap)
    places.make(name, partitions=1)
    places.put(name, (b"k", b"x", {}))
    heard: list[tuple[float, Any]] = []
    with (
        uow.connect(
            proxy.address,
            listener=lambda event: heard.append((time.monotonic(), event)),
            reconnect_policy="all",
        ) as connection,
        uow.connect(proxy.address) as other,
    ):
        reader = other.messages(name, group=name, start="earliest")
        message = reader.receive(PATIENCE_S)
        assert message is not None
        message.acknowledge()
        assert reader.receive(4.0) is None
        assert heard == []
        silent_at = time.monotonic()
        silence[0]()
        with pytest.raises(errors.StaleConnectionError, match="brokers have fallen silent: no answer for"):
            reader.receive()
        assert 8.0 < time.monotonic() - silent_at < 15.0
        wait_for(lambda: heard != [])
        lost_at, event = heard[0]
        assert "brokers have fallen silent" in event.cause
        assert 8.0 < lost_at - silent_at < 15.0
        silence[1]()
        wait_for(lambda: connection.state is uow.ConnectionState.CONNECTED)
