"""Brokers that fall silent while their connections stay open, so that nothing breaks of which a client would hear (R-03, R-19, R-43; F6)."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import uow
from tests.mock.mock_cluster import MockCluster
from tests.processes import PATIENCE_S, wait_for
from uow import ConnectionState, errors

pytestmark = pytest.mark.slow

TOPIC = "shop.components"
FOR_EVER_MS = 600_000
NOT_BEFORE_S, NOT_AFTER_S = 8.0, 15.0
"""12 s are promised. Before the first a slow broker may still answer; the rest is what a busy machine takes."""


class Heard:
    """A listener, which notes when it heard what."""

    def __init__(self) -> None:
        self.events: list[tuple[float, Any]] = []

    def __call__(self, event: Any) -> None:
        self.events.append((time.monotonic(), event))

    @property
    def kinds(self) -> list[type]:
        return [type(event) for _, event in self.events]

    def first_within(self, seconds: float) -> tuple[float, Any]:
        """The first event, and when it came; fails after that time."""
        until = time.monotonic() + seconds
        while not self.events:
            assert time.monotonic() < until, f"nothing heard in {seconds:g} s"
            time.sleep(0.05)
        return self.events[0]


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster(TOPIC) as running:
        yield running
        running.slow(0)


def raised_by(call: Callable[[], object]) -> tuple[threading.Thread, list[tuple[float, BaseException]]]:
    """Runs a call that is to raise in a thread; the list tells what it raised, and when."""
    raised: list[tuple[float, BaseException]] = []

    def run() -> None:
        try:
            call()
        except errors.UowError as error:
            raised.append((time.monotonic(), error))

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


def test_silence_is_a_loss_in_time_also_for_who_only_waits_and_whatever_time_out_the_application_has(
    cluster: MockCluster,
) -> None:
    heard, patient, closes = Heard(), Heard(), Heard()
    made: list[uow.Connection] = []

    def closing(event: Any) -> None:
        closes(event)
        made[0].close()

    made.append(uow.connect(cluster.bootstrap, listener=closing))
    settings = {"socket.timeout.ms": 60_000, "socket.max.fails": 0}
    with (
        uow.connect(cluster.bootstrap, listener=heard, reconnect_policy="all") as connection,
        uow.connect(cluster.bootstrap, listener=patient, kafka=settings),
        uow.connect(cluster.bootstrap) as ended,
        uow.connect(cluster.bootstrap, reconnect_policy="all", reconnect_blocking_ms=1000) as waits,
    ):
        idle = [each.messages(TOPIC, group=None, start="earliest") for each in (ended, waits)]
        assert [reader.receive(0.1) for reader in idle] == [None, None]
        cluster.slow(FOR_EVER_MS)
        silent_at = time.monotonic()
        readers = [raised_by(reader.receive) for reader in idle]
        for listener in (heard, patient, closes):
            lost_at, event = listener.first_within(NOT_AFTER_S + 1)
            assert isinstance(event, uow.ConnectionLost)
            assert "brokers have fallen silent" in event.cause
            assert NOT_BEFORE_S < lost_at - silent_at < NOT_AFTER_S
        assert connection.state is ConnectionState.RECONNECTING
        with pytest.raises(errors.ReconnectTimeoutError, match="brokers have fallen silent"):
            waits.send("shop", "x", id="a", seq=1)
        for (thread, raised), kind, blocking_s in zip(
            readers, (errors.StaleConnectionError, errors.ReconnectTimeoutError), (0.0, 1.0), strict=True
        ):
            thread.join(PATIENCE_S)
            raised_at, error = raised[0]
            assert type(error) is kind
            assert "brokers have fallen silent" in str(error)
            assert NOT_BEFORE_S < raised_at - silent_at < NOT_AFTER_S + blocking_s
        cluster.slow(0)
        wait_for(lambda: connection.state is ConnectionState.CONNECTED)
        wait_for(lambda: len(heard.events) == 2)
    assert heard.kinds == [uow.ConnectionLost, uow.ConnectionRefreshed]
    assert closes.kinds == [uow.ConnectionLost]
    assert made[0].state is ConnectionState.CLOSED


def test_one_silent_broker_of_three_is_no_loss() -> None:
    """Each connection leaves it for another one, whichever it had asked until then."""
    heard = Heard()
    with ExitStack() as all_:
        clusters = [all_.enter_context(MockCluster(TOPIC, brokers=3)) for _ in range(3)]
        for cluster in clusters:
            for _ in range(4):
                all_.enter_context(uow.connect(cluster.bootstrap, listener=heard))
        for silent, cluster in enumerate(clusters, 1):
            cluster.slow(FOR_EVER_MS, broker=silent)
        time.sleep(NOT_AFTER_S + 3.0)
        assert heard.events == []
        for silent, cluster in enumerate(clusters, 1):
            cluster.slow(0, broker=silent)


def test_brokers_that_take_three_seconds_are_no_loss_and_come_back_from_one(cluster: MockCluster) -> None:
    """Their connection breaks in the middle: longer than a broken one has for an answer, so it is lost, but not for ever."""
    heard = Heard()
    with uow.connect(cluster.bootstrap, listener=heard, reconnect_policy="all") as connection:
        cluster.slow(3000)
        time.sleep(NOT_AFTER_S + 3.0)
        assert heard.events == []
        cluster.down()
        wait_for(lambda: connection.state is ConnectionState.RECONNECTING)
        cluster.up()
        wait_for(lambda: connection.state is ConnectionState.CONNECTED)
        cluster.slow(0)


def test_a_connection_that_breaks_is_noticed_at_once_also_while_a_question_is_under_way(cluster: MockCluster) -> None:
    """Six connections, begun one after the other: at any moment some of them have asked, and some have not."""
    heard = [Heard() for _ in range(6)]
    with ExitStack() as all_:
        for listener in heard:
            all_.enter_context(uow.connect(cluster.bootstrap, listener=listener))
            time.sleep(0.7)
        cluster.slow(2500)
        time.sleep(5.0)
        broken_at = time.monotonic()
        cluster.down()
        for listener in heard:
            lost_at, event = listener.first_within(5.0)
            assert isinstance(event, uow.ConnectionLost)
            assert "silent" not in event.cause
            assert lost_at - broken_at < 4.0
        cluster.slow(0)
        cluster.up()


@pytest.mark.parametrize("silent_s", [5.0, NOT_AFTER_S], ids=["before the loss", "behind it"])
def test_closing_among_silent_brokers_takes_no_time_and_the_listener_has_heard_all(
    cluster: MockCluster, silent_s: float
) -> None:
    heard = Heard()
    connection = uow.connect(cluster.bootstrap, listener=heard, reconnect_policy="all")
    cluster.slow(FOR_EVER_MS)
    time.sleep(silent_s)
    begun = time.monotonic()
    missed = connection._session.life.tell(uow.Missed("t", 0, 1, 2))
    connection.close(0.0)
    assert time.monotonic() - begun < 3.0
    assert missed.is_set()
    assert heard.kinds == ([uow.ConnectionLost] if silent_s == NOT_AFTER_S else []) + [uow.Missed]


SUSPENDED = """
import sys, time, uow
with uow.connect(sys.argv[1], listener=lambda event: print("heard", event, flush=True)) as connection:
    print("ready", flush=True)
    sys.stdin.read()
    print(connection.state)
"""


def test_a_client_that_stood_still_has_lost_nothing(cluster: MockCluster) -> None:
    """Four of them, some of which stand still while their question is under way."""
    command = [sys.executable, "-c", SUSPENDED, cluster.bootstrap]
    clients = []
    for _ in range(4):
        clients.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert clients[-1].stdout is not None
        assert clients[-1].stdout.readline() == "ready\n"
        time.sleep(0.8)
    cluster.slow(1000)
    time.sleep(4.0)
    for client in clients:
        client.send_signal(signal.SIGSTOP)
    time.sleep(20.0)
    for client in clients:
        client.send_signal(signal.SIGCONT)
    cluster.slow(0)
    time.sleep(5.0)
    assert [client.communicate("", PATIENCE_S)[0] for client in clients] == ["connected\n"] * 4
