"""A connection through outages, on librdkafka itself (R-02, R-03, R-11 to R-14, R-19 to R-22, R-27, R-43 to R-46, R-61, R-65, R-66)."""

from __future__ import annotations

import _thread
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import pytest

import uow
from tests.mock.mock_cluster import MockCluster
from tests.processes import wait_for
from uow import errors
from uow.client import session
from uow.client.session_state import Waits
from uow.processor.kafka import bounded

TOPIC = "shop.components"


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster(TOPIC) as running:
        yield running


_BEFORE = weakref.WeakSet[threading.Thread]()


@pytest.fixture(autouse=True)
def _threads_of_other_tests() -> None:
    _BEFORE.update(threading.enumerate())


def threads() -> list[str]:
    """Names of the client's threads that a test has started and that still live."""
    ours = [each for each in threading.enumerate() if each.name.startswith("uow-") and each not in _BEFORE]
    return [each.name for each in ours if each.name != bounded.IDLE]


def send(connection: uow.Connection, value: str = "x") -> uow.Sent:
    return connection.send("shop", value, id="a", seq=1)


def wait_no_longer_than(connection: uow.Connection, blocking_ms: int) -> None:
    """Calls made before had time; so an outage need not last six seconds."""
    life = connection._session.life
    life.waits = Waits(blocking_ms, life.waits.total_ms)


def later(what: Any, seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, what)
    timer.start()
    return timer


def test_all_brokers_gone_for_a_while_is_waited_out_by_the_same_objects_r02_r06_r11_r27(cluster: MockCluster) -> None:
    """Default settings. The reader ends, and says why; one that asks for `all` goes on, and `receive_nowait` waits for nothing (R-45)."""
    heard: list[Any] = []
    with (
        uow.connect(cluster.bootstrap, listener=heard.append) as connection,
        uow.connect(cluster.bootstrap, reconnect_policy="all") as other,
    ):
        name = connection.id
        send(connection, "1")
        reader, surviving = connection.messages(TOPIC, group=None), other.messages(TOPIC, group=None, start="earliest")
        browser = other.browse("shop", topic=TOPIC)
        assert surviving.receive(10) is not None
        cluster.down()
        wait_for(lambda: connection.state is other.state is uow.ConnectionState.RECONNECTING)
        with pytest.raises(errors.StaleConnectionError, match=cluster.bootstrap):
            reader.receive(0)
        waited_s = []
        for _ in range(21):
            began = time.perf_counter()
            with pytest.raises(errors.ReconnectTimeoutError):
                surviving.receive_nowait()
            waited_s.append(time.perf_counter() - began)
        assert median(waited_s) < 0.02
        with pytest.raises(errors.StaleConnectionError, match="is stale since"):
            browser.receive(0)
        up = later(cluster.up, 1.0)
        send(connection, "2")
        up.join()
        wait_for(lambda: connection.state is other.state is uow.ConnectionState.CONNECTED)
        message = surviving.receive(30)
        assert message is not None
        assert message.value == b"2"
        assert (connection.id, connection.epoch, connection.stats().reconnects) == (name, 2, 1)
        assert connection.stats().sent == 2
        with pytest.raises(errors.StaleConnectionError):
            next(reader)
        kinds = [type(each) for each in heard]
        assert kinds == [uow.ConnectionLost, uow.ConnectionRefreshed]
        assert heard[1].epoch == 2
    wait_for(lambda: threads() == [])


def test_connecting_waits_for_a_broker_and_no_longer_than_it_may_r12_r14(cluster: MockCluster) -> None:
    cluster.down()
    before = set(session.OPEN)
    factory = uow.ConnectionFactory(cluster.bootstrap, reconnect_blocking_ms=1000)
    with pytest.raises(
        errors.ReconnectTimeoutError, match=rf"no broker of {cluster.bootstrap} answered within 1 s: .+"
    ):
        factory.connect()
    wait_for(lambda: threads() == [])
    assert set(session.OPEN) <= before
    up = later(cluster.up, 1.0)
    with uow.connect(cluster.bootstrap, reconnect_blocking_ms=-1) as connection:
        send(connection)
    up.join()
    wait_for(lambda: threads() == [])


def test_calls_wait_for_the_blocking_time_and_the_record_goes_on_r19_r20_r22(cluster: MockCluster) -> None:
    with uow.connect(cluster.bootstrap, reconnect_policy="all") as connection:
        send(connection, "1")
        reader = connection.messages(TOPIC, group="g")
        message = reader.receive(30)
        assert message is not None
        wait_no_longer_than(connection, 500)
        cluster.down()
        wait_for(lambda: connection.state is uow.ConnectionState.RECONNECTING)
        component = uow.Component("2")
        with pytest.raises(errors.ReconnectTimeoutError, match="still under way") as raised:
            connection.send("shop", component, id="a", seq=1)
        for call in (reader.receive, message.acknowledge, lambda: connection.messages(TOPIC, group="h")):
            with pytest.raises(errors.ReconnectTimeoutError):
                call()
        with pytest.raises(errors.ReconnectTimeoutError), connection.unit("shop") as unit:
            unit.send("never")
        cluster.up()
        first = raised.value.pending.wait(30)
        assert first.offset >= 0
        wait_for(lambda: connection.state is uow.ConnectionState.CONNECTED)
        assert connection.stats().sent == 2


def test_without_reconnecting_a_loss_ends_all_and_nothing_is_tried_again_r61(cluster: MockCluster) -> None:
    with uow.connect(cluster.bootstrap, reconnect_policy="none") as connection:
        send(connection)
        reader = connection.messages(TOPIC, group="g")
        cluster.down()
        wait_for(lambda: connection.state is uow.ConnectionState.STALE)
        wait_for(lambda: threads() == [])
        cluster.up()
        calls = (lambda: send(connection), lambda: next(reader), lambda: connection.unit("shop"))
        for call in calls:
            with pytest.raises(errors.StaleConnectionError, match=r"stale since 20.*brokers of"):
                call()
        assert connection.stats().reconnects == 0


def test_given_up_after_the_total_time_the_listener_and_the_records_are_told_r42(cluster: MockCluster) -> None:
    heard: list[Any] = []
    with uow.connect(cluster.bootstrap, reconnect_total_ms=1000, listener=heard.append) as connection:
        send(connection)
        wait_no_longer_than(connection, 100)
        cluster.down()
        wait_for(lambda: connection.state is uow.ConnectionState.RECONNECTING)
        with pytest.raises(errors.ReconnectTimeoutError) as raised:
            send(connection)
        wait_for(lambda: connection.state is uow.ConnectionState.STALE)
        with pytest.raises(errors.ReconnectGivenUpError, match="for 1 s"):
            send(connection)
        wait_for(lambda: len(heard) == 3)
        with pytest.raises(errors.AmbiguousSendError):
            raised.value.pending.wait(30)
    assert [type(each) for each in heard] == [
        uow.ConnectionLost,
        errors.ReconnectGivenUpError,
        errors.AmbiguousSendError,
    ]


def test_listener_may_close_the_connection_and_hears_of_no_refresh_r27(cluster: MockCluster) -> None:
    heard: list[Any] = []
    made: list[uow.Connection] = []

    def listener(event: Any) -> None:
        heard.append(event)
        made[0].close()

    made.append(uow.connect(cluster.bootstrap, listener=listener))
    cluster.down()
    wait_for(lambda: made[0].state is uow.ConnectionState.CLOSED)
    cluster.up()
    wait_for(lambda: threads() == [])
    assert [type(each) for each in heard] == [uow.ConnectionLost]
    with pytest.raises(errors.ClientClosedError, match="closed since"):
        send(made[0])


def test_close_keeps_its_time_in_an_outage_and_reports_what_was_not_answered_r66(cluster: MockCluster) -> None:
    heard: list[Any] = []
    connection = uow.connect(cluster.bootstrap, reconnect_policy="all", listener=heard.append)
    send(connection)
    reader = connection.messages(TOPIC, group="g")
    assert reader.receive(30) is not None
    wait_no_longer_than(connection, 100)
    cluster.down()
    wait_for(lambda: connection.state is uow.ConnectionState.RECONNECTING)
    for value in ("1", "2", "3"):
        with pytest.raises(errors.ReconnectTimeoutError):
            send(connection, value)
    begun = time.monotonic()
    connection.close(1.0)
    took = time.monotonic() - begun
    connection.close(1.0)
    assert took < 6, "the library alone would wait for ever"
    lost = [each for each in heard if isinstance(each, errors.AmbiguousSendError)]
    assert len({each.suspect.component_id for each in lost if each.suspect is not None}) == 3
    wait_for(lambda: threads() == [])


def test_dropped_connection_warns_and_stays_open_r65(cluster: MockCluster) -> None:
    connection = uow.connect(cluster.bootstrap)
    name = connection.id
    with pytest.warns(ResourceWarning, match="was not closed"):
        del connection
    session.OPEN[name].close(1.0)
    assert name not in session.OPEN
    wait_for(lambda: threads() == [])


def test_connections_of_one_factory_share_nothing_r28() -> None:
    """Two clusters in place of one behind a cut line: the second has lost its only one."""
    with MockCluster(TOPIC) as one, MockCluster(TOPIC) as two:
        heard: list[Any] = []
        factory = uow.ConnectionFactory(one.bootstrap, listener=heard.append)
        with factory.connect() as first, factory.connect() as second, uow.connect(two.bootstrap) as third:
            two.down()
            wait_for(lambda: third.state is uow.ConnectionState.RECONNECTING)
            send(first)
            send(second)
            first.close()
            send(second)
            assert heard == []


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python's own handler: that of a Spark session, which may live in this process, would ask its JVM to cancel jobs instead."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_is_heard_in_every_call_that_waits_for_ever(cluster: MockCluster) -> None:
    """While nobody answers, and with a blocking time without end: nothing else ends these calls."""
    with uow.connect(cluster.bootstrap, reconnect_policy="all") as connection:
        send(connection)
        message = (reader := connection.messages(TOPIC, group="g")).receive(30)
        assert message is not None
        with connection.unit("shop") as unit:
            unit.send("warm")
        wait_no_longer_than(connection, -1)
        cluster.down()
        wait_for(lambda: connection.state is uow.ConnectionState.RECONNECTING)

        def a_unit() -> None:
            with connection.unit("shop") as unit:
                unit.send("never")

        def interrupted(call: Callable[[], object]) -> None:
            """The timer starts where the interrupt is expected already: a busy machine may take as long for one line."""
            timer = later(_thread.interrupt_main, 0.3)
            try:
                call()
            finally:
                timer.join()

        calls = (
            lambda: send(connection),
            reader.receive,
            message.acknowledge,
            a_unit,
            lambda: connection.messages(TOPIC, group="h"),
            lambda: uow.connect(cluster.bootstrap, reconnect_blocking_ms=-1),
        )
        for call in calls:
            with pytest.raises(KeyboardInterrupt):
                interrupted(call)
        wait_no_longer_than(connection, 100)


def test_a_reader_with_a_handler_goes_on_and_none_starts_after_the_end_r38_r48_r49(cluster: MockCluster) -> None:
    handled: list[bytes | None] = []
    ended: list[BaseException] = []
    with uow.connect(cluster.bootstrap, reconnect_policy="all") as connection:
        reader = connection.messages(TOPIC, group="g", start="earliest")

        def run() -> None:
            try:
                reader.run(lambda message: handled.append(message.value))
            except errors.UowError as error:
                ended.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        for value in ("1", "2"):
            send(connection, value)
        wait_for(lambda: len(handled) == 2)
        wait_no_longer_than(connection, 200)
        cluster.down()
        wait_for(lambda: connection.state is uow.ConnectionState.RECONNECTING)
        time.sleep(1.0)  # longer than any call waits
        cluster.up()
        wait_for(lambda: connection.state is uow.ConnectionState.CONNECTED)
        wait_no_longer_than(connection, 30_000)
        send(connection, "3")
        wait_for(lambda: b"3" in handled)
        reader.close()
        count = len(handled)
        send(connection, "4")
        thread.join(30)
    assert [type(each) for each in ended] == [errors.ClientClosedError]
    assert len(handled) == count


def test_what_was_acknowledged_never_comes_again_and_all_else_does_r57(cluster: MockCluster) -> None:
    """Over outages one after the other; 20 kills of a real broker: `uow prove --client`."""
    with (
        uow.connect(cluster.bootstrap, reconnect_policy="all", reconnect_blocking_ms=30_000) as connection,
        connection.messages(TOPIC, group="g", start="earliest") as reader,
    ):
        seen: list[bytes | None] = []
        done: set[bytes | None] = set()
        for number in range(9):
            send(connection, str(number))
            message = reader.receive(30)
            assert message is not None
            assert message.value not in done
            seen.append(message.value)
            if number % 3 == 2:
                cluster.down()
                wait_for(lambda: connection.state is uow.ConnectionState.RECONNECTING)
                cluster.up()
                wait_for(lambda: connection.state is uow.ConnectionState.CONNECTED)
            try:
                message.acknowledge()
                done.add(message.value)
            except errors.LostServerError:
                reader.roll_back()
        while len(done) < 9:
            message = reader.receive(30)
            assert message is not None
            assert message.value not in done
            message.acknowledge()
            done.add(message.value)
        assert reader.receive(0.2) is None


def test_a_partition_without_leader_concerns_only_who_uses_it_r67() -> None:
    """Under `none`, where a loss event would end everything."""
    heard: list[Any] = []
    with (
        MockCluster(TOPIC, "other.components", partitions=1) as cluster,
        uow.connect(cluster.bootstrap, reconnect_policy="none", listener=heard.append) as connection,
    ):
        cluster.lead(TOPIC, 0, broker=-1)  # the mock cluster crashes where somebody is producing there already
        connection.send("other", "x", id="a", seq=1)
        reader = connection.messages("other.components", group=None, start="earliest")
        wait_no_longer_than(connection, 500)
        with pytest.raises(errors.ReconnectTimeoutError, match=rf"{TOPIC}.*still under way: no answer within 0.5 s"):
            send(connection)
        wait_no_longer_than(connection, 30_000)
        connection.send("other", "y", id="a", seq=2)
        values = [(reader.receive(30) or pytest.fail("nothing came")).value for _ in range(2)]
        assert values == [b"x", b"y"]
        assert connection.state is uow.ConnectionState.CONNECTED
        assert heard == []
        cluster.lead(TOPIC, 0)
        send(connection)
