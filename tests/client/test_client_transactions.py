"""What becomes of a transaction that meets trouble (R-30, R-75 to R-78, R-82, ER-04)."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError
from fake_handles import FakeBroker, FakeProducer, failure

import uow
from uow import errors
from uow.client import kafka_port, transaction
from uow.client.kafka_port import LOG_LEVEL, transactional_properties
from uow.client.session_state import Waits


@pytest.fixture
def connection(fake: FakeBroker) -> Iterator[uow.Connection]:
    with fake.connect(client_id="shop") as connection:
        yield connection


def send(connection: uow.Connection, *values: str) -> None:
    with connection.unit("megazon") as unit:
        for value in values:
            unit.send(value)


def values(fake: FakeBroker) -> list[bytes | None]:
    return [sent.value for sent in fake.visible]


def test_units_follow_each_other_on_one_producer(fake: FakeBroker, connection: uow.Connection) -> None:
    send(connection, "a")
    send(connection, "b")
    assert len(fake.producers) == 1
    assert fake.producers[0].properties["transactional.id"] == "shop-0"


def test_units_open_at_once_have_transactional_ids_of_their_own(fake: FakeBroker, connection: uow.Connection) -> None:
    with connection.unit("megazon") as outer:
        outer.send("a")
        outer.send("b")
        send(connection, "c")
        assert values(fake) == [b"c"]
    assert [each.properties["transactional.id"] for each in fake.producers] == ["shop-0", "shop-1"]


@pytest.mark.parametrize("line", ["FAIL [thrd:x]: Disconnected", "REQTMOUT [thrd:x]: 1 timed out", "TXNERR", "FATAL"])
def test_doubt_in_the_log_replaces_the_producer_before_the_next_transaction(
    fake: FakeBroker, connection: uow.Connection, line: str
) -> None:
    """R-75: a late request must not hit the next transaction; the transactional id stays, so the epoch rises."""
    send(connection, "a")
    fake.log_lines = [line]
    send(connection, "b")
    older, newer = fake.producers
    assert older.properties["transactional.id"] == newer.properties["transactional.id"]
    assert newer.calls[0] == "init_transactions"
    assert values(fake) == [b"a", b"b"]


UP = "FAIL [thrd:TxnCoordinator]: TxnCoordinator: host:9092: Disconnected (after 3ms in state UP)"
REFUSED = "FAIL [thrd:host:9092/2]: host:9092/2: Connect to ipv6#[::1]:9092 failed: Connection refused (after 0ms in state CONNECT)"
OF_BOOTSTRAP = (
    "FAIL [thrd:host:9092/bootstrap]: host:9092/bootstrap: Disconnected (after 1ms in state APIVERSION_QUERY)"
)


@pytest.mark.parametrize(("lines", "handles"), [([UP], 2), ([REFUSED, OF_BOOTSTRAP], 1), ([REFUSED, UP, UP], 2)])
def test_handle_whose_connections_broke_while_it_began_is_not_used(
    fake: FakeBroker, connection: uow.Connection, lines: list[str], handles: int
) -> None:
    """ER-11, R-75: on such a one librdkafka may keep silent about the next break. Dead addresses are no reason."""
    fake.log_lines = lines
    send(connection, "a")
    assert [producer.calls.count("begin_transaction") for producer in fake.producers] == [*[0] * (handles - 1), 1]
    send(connection, "b")
    assert len(fake.producers) == handles
    assert values(fake) == [b"a", b"b"]


def test_other_log_lines_replace_nothing(fake: FakeBroker, connection: uow.Connection) -> None:
    send(connection, "a")
    fake.log_lines = ["CONNECT [thrd:x]: FAIL is not at the start here"]
    send(connection, "b")
    assert len(fake.producers) == 1


def test_a_failed_delivery_fails_the_whole_unit(fake: FakeBroker, connection: uow.Connection) -> None:
    """ER-04: every record's fate is known before the commit counts."""
    fake.delivery_errors = [KafkaError(KafkaError._MSG_TIMED_OUT)]
    with pytest.raises(errors.TransactionRolledBackError):
        send(connection, "a", "b", "c")
    assert values(fake) == []
    assert "commit_transaction" not in fake.calls
    send(connection, "d")
    assert values(fake) == [b"d"]


def test_a_record_refused_for_good_keeps_its_class(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.delivery_errors = [KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)]
    with pytest.raises(errors.SendRejectedError):
        send(connection, "a", "b")
    assert values(fake) == []


def test_a_commit_that_asks_for_an_abort_is_rolled_back(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.script["commit_transaction"] = [failure(KafkaError._TIMED_OUT, abort=True)]
    with pytest.raises(errors.TransactionRolledBackError):
        send(connection, "a")
    assert fake.calls[-1] == "abort_transaction"
    send(connection, "b")
    assert values(fake) == [b"b"]
    assert len(fake.producers) == 2  # in doubt, hence replaced


def test_a_commit_without_answer_is_asked_again(fake: FakeBroker, connection: uow.Connection) -> None:
    """R-30; the next transaction gets a new producer."""
    fake.script["commit_transaction"] = [failure(KafkaError._TIMED_OUT, retriable=True)]
    send(connection, "a")
    send(connection, "b")
    assert values(fake) == [b"a", b"b"]
    assert fake.calls.count("commit_transaction") == 3
    assert "abort_transaction" not in fake.calls
    assert len(fake.producers) == 2


def test_a_commit_that_is_never_answered_is_unknown(
    fake: FakeBroker, connection: uow.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never an abort then: it would answer with a conflict (notes on librdkafka)."""
    monkeypatch.setattr(transaction, "COMMIT_S", 0.0)
    fake.script["commit_transaction"] = [failure(KafkaError._TIMED_OUT, retriable=True)]
    with pytest.raises(errors.CommitOutcomeUnknownError):
        send(connection, "a")
    assert "abort_transaction" not in fake.calls
    assert fake.calls[-1] == "purge", "thrown away at once: the library would go on asking for the commit"
    send(connection, "b")
    assert len(fake.producers) == 2


def test_a_commit_that_is_fenced_after_one_without_answer_is_unknown(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    """R-30: the first request may have gone well before somebody else took the id."""
    fake.script["commit_transaction"] = [
        failure(KafkaError._TIMED_OUT, retriable=True),
        failure(KafkaError._FENCED, fatal=True),
    ]
    with pytest.raises(errors.CommitOutcomeUnknownError):
        send(connection, "a")
    assert "abort_transaction" not in fake.calls


def test_a_young_transaction_that_is_fenced_was_taken_over(fake: FakeBroker, connection: uow.Connection) -> None:
    """ER-13: the id belongs to somebody else now; no contest between two instances."""
    fake.script["commit_transaction"] = [failure(KafkaError._FENCED, fatal=True)]
    with pytest.raises(errors.FencedError, match="shop-0"):
        send(connection, "a")
    with pytest.raises(errors.FencedError, match="taken over"):
        send(connection, "b")
    assert len(fake.producers) == 1


def test_a_transaction_that_outlived_its_time_out_is_rolled_back(fake: FakeBroker, connection: uow.Connection) -> None:
    """R-76: the broker's own abort looks like a fence; nothing is visible, and the next unit goes out."""
    connection._session.life.waits = Waits(transaction_ms=0)
    fake.script["commit_transaction"] = [failure(KafkaError._FENCED, fatal=True)]
    with pytest.raises(errors.TransactionRolledBackError, match="time-out"):
        send(connection, "a")
    send(connection, "b")
    assert values(fake) == [b"b"]


def test_other_fatal_errors_rebuild_the_producer(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.script["produce"] = [failure(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, fatal=True)]
    with pytest.raises(errors.TransactionRolledBackError):
        send(connection, "a", "b")
    send(connection, "c")
    assert values(fake) == [b"c"]
    assert len(fake.producers) == 2


def test_a_full_buffer_is_waited_for(fake: FakeBroker, connection: uow.Connection) -> None:
    """R-78: produce() raises at once, the caller waits up to the blocking time."""
    fake.script["produce"] = [BufferError(), BufferError()]
    send(connection, "a")
    assert values(fake) == [b"a"]


def test_a_buffer_that_stays_full_rejects(fake: FakeBroker, connection: uow.Connection) -> None:
    send(connection, "a")  # the looks at the topic have their time
    connection._session.life.waits = Waits(blocking_ms=1)
    fake.script["produce"] = [BufferError()] * 10_000
    with pytest.raises(errors.SendRejectedError, match="stayed full"):
        send(connection, "b")
    assert values(fake) == [b"a"]


def test_a_topic_is_asked_for_once(fake: FakeBroker, connection: uow.Connection) -> None:
    send(connection, "a", "b")
    send(connection, "c")
    connection.send("megazon", "d")
    assert fake.calls.count("list_topics") == 2, "the topic, and the registry that would make its order strict"


def test_a_destination_that_got_more_partitions_is_noticed_and_sent_to_no_longer_w107(
    fake: FakeBroker, connection: uow.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_port, "REFRESH_S", 0.0)
    fake.topics = {"megazon.components": 4, "gadget-planet": 1}
    send(connection, "a")
    connection.send("megazon", "b", to="gadget-planet")
    fake.topics = {"megazon.components": 8, "gadget-planet": 2}
    connection.send("megazon", "c", to="gadget-planet")  # any count will do on the way (W-54)
    with pytest.raises(errors.ConfigError, match=r"had 4 partitions when .* `uow topics repartition megazon`"):
        send(connection, "d")
    with pytest.raises(errors.ConfigError, match="had 4 partitions"):
        connection.send("megazon", "e")
    assert values(fake) == [b"a", b"b", b"c"]


def test_a_look_that_finds_no_broker_stops_nobody(
    fake: FakeBroker, connection: uow.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_port, "REFRESH_S", 0.0)
    send(connection, "a")
    fake.script["list_topics"] = [failure(KafkaError._TRANSPORT)]
    send(connection, "b")
    assert values(fake) == [b"a", b"b"]


def test_an_unknown_topic_fails_the_unit_before_it_is_produced(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.topics = {"megazon.components": 4}
    with pytest.raises(errors.DestinationUnavailableError, match="gadget-planet"), connection.unit("megazon") as unit:
        unit.send("a", to="gadget-planet")
    assert "produce" not in fake.calls
    assert fake.calls[-1] == "abort_transaction"


def test_a_predecessor_that_is_still_being_ended_is_waited_for(fake: FakeBroker, connection: uow.Connection) -> None:
    """R-71: `init_transactions` answers in steps."""
    fake.script["init_transactions"] = [failure(KafkaError._TIMED_OUT, retriable=True), None]
    send(connection, "a")
    assert values(fake) == [b"a"]


def test_no_broker_in_time_is_told(
    fake: FakeBroker, connection: uow.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "INIT_S", 0.0)
    fake.script["init_transactions"] = [failure(KafkaError._TIMED_OUT, retriable=True)]
    with pytest.raises(errors.ReconnectTimeoutError):
        send(connection, "a")
    send(connection, "b")
    assert values(fake) == [b"b"]


def test_a_beginning_waits_no_longer_for_another_thread_than_for_a_broker(
    fake: FakeBroker, connection: uow.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-64: a recovery of the same id holds it for as long as no broker answers."""
    send(connection, "a")
    (used,) = connection._session.transactions._all
    monkeypatch.setattr(transaction, "INIT_S", 0.3)
    with used.beginning, pytest.raises(errors.ReconnectTimeoutError):
        send(connection, "b")
    monkeypatch.undo()
    with used.beginning:
        closing = threading.Timer(0.1, connection.close, [0.0])
        closing.start()
        with pytest.raises(errors.ClientClosedError):
            send(connection, "b")
        closing.join()
    assert values(fake) == [b"a"]


def test_a_refused_transactional_id_is_final(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.script["init_transactions"] = [failure(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, fatal=True)]
    with pytest.raises(errors.ReconnectGivenUpError):
        send(connection, "a")


def test_a_fatal_error_that_got_lost_in_a_callback_is_found_again(fake: FakeBroker, connection: uow.Connection) -> None:
    """The library throws fatal errors out of poll and flush, as a SystemError where a delivery callback got in its way."""
    send(connection, "a")
    fake.script["begin_transaction"] = [None, failure(KafkaError._FENCED, fatal=True)]
    fake.script["flush"] = [SystemError("returned NULL without setting an exception")]
    with pytest.raises(errors.FencedError):
        send(connection, "b")


def test_a_fatal_error_that_produce_does_not_name_is_found(fake: FakeBroker, connection: uow.Connection) -> None:
    send(connection, "a")
    fake.script["begin_transaction"] = [None, failure(KafkaError._FENCED, fatal=True)]
    fake.script["produce"] = [failure(KafkaError._FATAL)]
    with pytest.raises(errors.FencedError):
        send(connection, "b")


def test_other_system_errors_stay_what_they_are(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.script["flush"] = [SystemError("something else")]
    with pytest.raises(SystemError, match="something else"):
        send(connection, "a")
    send(connection, "b")
    assert values(fake) == [b"b"]


def test_what_a_transaction_depends_on_is_not_for_the_user_to_set() -> None:
    """R-81: after a re-bootstrap the library would forget that a coordinator is gone, and wait for ever."""
    asked = {"metadata.recovery.strategy": "rebootstrap", "log_level": 0, "linger.ms": 7}
    properties = transactional_properties("b:9092", "c", "t", asked)
    assert (properties["metadata.recovery.strategy"], properties["log_level"]) == ("none", LOG_LEVEL)
    assert properties["linger.ms"] == 7


def test_counters_add_up_over_producers_that_were_replaced_r08(fake: FakeBroker, connection: uow.Connection) -> None:
    send(connection, "a", "b")
    connection.send("megazon", "x", id="a", seq=1)
    fake.log_lines = ["FAIL [thrd:x]: Disconnected"]
    send(connection, "c")
    fake.script["commit_transaction"] = [failure(KafkaError.INVALID_TXN_STATE, abort=True)]
    with pytest.raises(errors.TransactionRolledBackError):
        send(connection, "never")
    counted = connection.stats()
    assert (counted.sent, counted.reconnects, counted.rebuilds) == (4, 0, 1)


@pytest.mark.parametrize("is_fatal", [False, True])
def test_an_exception_that_the_library_lost_is_ctrl_c_unless_the_handle_is_dead(
    fake: FakeBroker, connection: uow.Connection, monkeypatch: pytest.MonkeyPatch, is_fatal: bool
) -> None:
    """Else a program that is asked to stop goes on, and is told that its record is in doubt."""
    lost: list[BaseException] = [SystemError("returned NULL without setting an exception")]
    if is_fatal:
        lost.append(failure(KafkaError._FATAL, fatal=True))
    poll = FakeProducer.poll

    def losing(self: FakeProducer, timeout: float) -> int:
        if self.undelivered and lost:
            raise lost.pop(0)
        return poll(self, timeout)

    monkeypatch.setattr(FakeProducer, "poll", losing)
    with pytest.raises(errors.AmbiguousSendError if is_fatal else KeyboardInterrupt):
        connection.send("d", "x", id="a", seq=1)
    connection.send("d", "y", id="a", seq=2)
    assert len(fake.producers) == 1 + is_fatal


def test_a_signal_that_the_library_hears_while_it_takes_headers_is_ctrl_c(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    """Else a program that is asked to stop ends with a `TypeError` about the name of a header."""
    lost = TypeError("expected header key to be unicode string")
    fake.script["produce"] = [lost, lost]
    with pytest.raises(KeyboardInterrupt):
        connection.send("d", "x", id="a", seq=1)
    with pytest.raises(KeyboardInterrupt), connection.unit("d") as unit:
        unit.send("x")
    fake.script["produce"] = [TypeError("another one")]
    with pytest.raises(TypeError, match="another one"):
        connection.send("d", "y", id="a", seq=2)
    send(connection, "b")
    assert values(fake) == [b"b"]
