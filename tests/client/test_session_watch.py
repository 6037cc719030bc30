"""The watch over a connection, with a handle that does what a test says: what it hears, and when it answers (R-09; F6)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka import KafkaError, KafkaException

import uow
from tests.processes import wait_for
from uow import errors
from uow.client import session_watch
from uow.client.kafka_port import Librdkafka


class Handle:
    """Answers at once, until it is told otherwise.

    Attributes:
        answers: Whether questions are answered; if not, they wait for their time.
        refuses: Whether each question meets a refusal of the client's identity.
        hears: The errors that it tells at its next poll.
        waited_s: How long each question that was not answered waited.
    """

    def __init__(self, on_error: Callable[[KafkaError], None]) -> None:
        self._on_error = on_error
        self.answers = True
        self.refuses = False
        self.hears: list[int] = []
        self.waited_s: list[float] = []

    def poll(self, timeout: float) -> int:
        while self.hears:
            self._on_error(KafkaError(self.hears.pop(0), "by script"))
        return 0

    def list_topics(self, topic: str, timeout: float) -> Any:
        if self.refuses:
            self.hears.append(KafkaError._AUTHENTICATION)
        if not self.answers:
            self.waited_s.append(timeout)
            time.sleep(timeout)
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return None


class Port(Librdkafka):
    """Gives the watch its handle; nothing else is asked for here."""

    def __init__(self, **attributes: bool) -> None:
        self._attributes = attributes

    def producer(self, properties: dict[str, Any], logger: Any) -> Any:
        self.handle = Handle(properties["error_cb"])
        vars(self.handle).update(self._attributes)
        return self.handle


@pytest.fixture
def heard() -> list[Any]:
    return []


@pytest.fixture
def port(heard: list[Any]) -> Iterator[Port]:
    made = Port()
    with uow.connect("fake:9092", kafka_port=made, listener=heard.append):
        yield made


def test_that_the_library_leaves_silent_brokers_is_no_broken_connection(port: Port, heard: list[Any]) -> None:
    """All that it says then is that all brokers are down; it says so of one that went away as well."""
    port.handle.answers = False
    wait_for(lambda: port.handle.waited_s == [session_watch.PATIENT_S])
    port.handle.hears = [KafkaError._ALL_BROKERS_DOWN]
    wait_for(lambda: port.handle.hears == [])
    time.sleep(0.5)
    assert {*port.handle.waited_s} == {session_watch.PATIENT_S}
    assert heard == []


def test_where_no_thread_can_be_started_nobody_counts_as_silent_and_the_watch_goes_on(
    port: Port, heard: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []

    def refused(ask: object) -> None:
        tried.append(ask)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(session_watch, "Call", refused)
    wait_for(lambda: len(tried) > 2)
    assert heard == []
    port.handle.answers = False
    port.handle.hears = [KafkaError._TRANSPORT]
    wait_for(lambda: heard != [])
    assert heard == [uow.ConnectionLost(1, "by script")]


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN])
def test_a_broken_connection_is_asked_about_and_lost_at_once(port: Port, heard: list[Any], code: int) -> None:
    port.handle.answers = False
    port.handle.hears = [code]
    wait_for(lambda: heard != [])
    assert port.handle.waited_s[0] == session_watch.ASK_S
    cause = "by script" if code == KafkaError._TRANSPORT else "no broker answers any more"
    assert heard == [uow.ConnectionLost(1, cause)]


def test_an_answer_of_before_the_break_does_not_bring_the_connection_back(port: Port, heard: list[Any]) -> None:
    """The question that was under way when it broke."""
    port.handle.answers = False
    wait_for(lambda: port.handle.waited_s == [session_watch.PATIENT_S])
    under_way = port.handle
    port.handle.hears = [KafkaError._TRANSPORT]
    wait_for(lambda: heard != [])
    time.sleep(1.0)
    assert under_way.waited_s[:2] == [session_watch.PATIENT_S, session_watch.ASK_S]
    assert [type(event) for event in heard] == [uow.ConnectionLost]


def test_refusals_are_counted_as_fast_as_ever_r09() -> None:
    """A call that waits for a second only must hear of them, in three."""
    begun = time.monotonic()
    with pytest.raises(errors.ReconnectGivenUpError, match="refuses this client: by script"):
        uow.connect("fake:9092", kafka_port=Port(answers=False, refuses=True), reconnect_blocking_ms=4000)
    assert time.monotonic() - begun < 4.0


@pytest.mark.parametrize("setting", ["socket.timeout.ms", "socket.max.fails"])
def test_a_time_out_that_is_no_number_is_refused_though_the_watch_has_its_own(setting: str) -> None:
    with pytest.raises(ck.KafkaException, match=setting):
        uow.connect("127.0.0.1:1", kafka={setting: "soon"}, reconnect_blocking_ms=0)
