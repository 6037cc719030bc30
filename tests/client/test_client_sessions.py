"""Client sessions: what belongs together is committed together, and a doomed transaction says so once (R-25, R-29 to R-33, R-36, R-59)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from confluent_kafka import KafkaError
from fake_handles import FakeBroker, consumed, failure
from test_client_readers import a_unit, record_of

import uow
from tests.processes import PATIENCE_S, wait_for
from uow import errors
from uow.client.session_state import Waits

ABORT = {"abort": True}


@pytest.fixture(autouse=True)
def three(fake: FakeBroker) -> None:
    fake.records = [consumed(b"%d" % offset, offset=offset) for offset in range(3)]


def values(fake: FakeBroker) -> list[bytes | None]:
    return [sent.value for sent in fake.visible]


def test_what_is_sent_and_received_is_committed_together_r29_r32(fake: FakeBroker, connection: uow.Connection) -> None:
    with connection.session(transacted=True) as session:
        session.commit()  # nothing to do
        reader, producer = session.messages("t", group="g"), session.producer("megazon")
        for number in (1, 2):
            assert producer.send(f"out {number}", id="a", seq=number) is None
            next(reader)
        assert (values(fake), fake.committed) == ([], {})
        session.commit()
        assert (values(fake), fake.committed["t", 0][0]) == ([b"out 1", b"out 2"], 2)
        next(reader)
        session.commit()
        assert fake.committed["t", 0][0] == 3
        assert len(fake.producers) == 1, "one transactional id"


def test_a_rollback_sends_nothing_and_hands_out_again_r33(fake: FakeBroker, connection: uow.Connection) -> None:
    with connection.session(transacted=True) as session:
        reader, producer = session.messages("t", group="g"), session.producer()
        for step in (session.rollback, session.commit):
            assert next(reader).value == b"0"
            producer.send("out", destination="megazon", id="a", seq=1)
            step()
        assert next(reader).value == b"1"
    assert (values(fake), fake.committed["t", 0][0]) == ([b"out"], 1)


def test_a_doomed_transaction_takes_all_and_says_so_once_r30_r31(fake: FakeBroker, connection: uow.Connection) -> None:
    with connection.session(transacted=True) as session:
        reader, producer = session.messages("t", group="g"), session.producer("megazon")
        next(reader)
        fake.script["produce"] = [failure(KafkaError._STATE, abort=True)]
        for number in (1, 2, 3):
            producer.send("never", id="a", seq=number)
            next(reader) if number < 3 else None
        with pytest.raises(errors.TransactionRolledBackError):
            session.commit()
        assert (values(fake), fake.committed) == ([], {})
        assert next(reader).value == b"0"
        producer.send("again", id="a", seq=1)
        session.commit()
    assert (values(fake), fake.committed["t", 0][0]) == ([b"again"], 1)


@pytest.mark.parametrize("how", ["lost", "revoke"])
def test_partitions_that_went_doom_the_transaction_r30(fake: FakeBroker, connection: uow.Connection, how: str) -> None:
    with connection.session(transacted=True) as session:
        reader, producer = session.messages("t", group="g"), session.producer("megazon")
        next(reader)
        producer.send("never", id="a", seq=1)
        fake.consumers[-1].moved(how, 0)
        assert reader.receive(0) is None
        with pytest.raises(errors.TransactionRolledBackError, match="comes again: t/0/0"):
            session.commit()
    assert (values(fake), fake.committed.get(("t", 0), (0,))[0]) == ([], 0)


@pytest.mark.parametrize("rolls_back", [True, False])
def test_transaction_over_a_refresh_is_committed_unless_it_is_to_be_rolled_back_r30(
    fake: FakeBroker, rolls_back: bool
) -> None:
    with fake.connect(rollback_on_refresh=rolls_back) as connection, connection.session(transacted=True) as session:
        producer = session.producer("megazon")
        producer.send("1", id="a", seq=1)
        life = connection._session.life
        epoch = connection.epoch
        life.lost("by hand")
        life.answered()
        assert connection.epoch > epoch
        producer.send("2", id="a", seq=2)
        if rolls_back:
            with pytest.raises(errors.TransactionRolledBackError, match="refreshed"):
                session.commit()
        session.commit()
    assert values(fake) == ([] if rolls_back else [b"1", b"2"])


def test_a_stale_generation_rolls_the_session_back(fake: FakeBroker, connection: uow.Connection) -> None:
    with connection.session(transacted=True) as session:
        reader = session.messages("t", group="g")
        next(reader)
        fake.script["send_offsets"] = [failure(KafkaError.ILLEGAL_GENERATION, abort=True)]
        with pytest.raises(errors.TransactionRolledBackError, match="group moved on"):
            session.commit()
        assert next(reader).value == b"0"
        session.commit()
    assert fake.committed["t", 0][0] == 1


def test_forwarded_messages_are_part_of_the_transaction_r62(fake: FakeBroker, connection: uow.Connection) -> None:
    with connection.session(transacted=True) as session:
        reader = session.messages("t", group="g")
        for _ in range(2):
            assert session.forward(next(reader), to="next") is uow.Forwarded.PENDING
        assert reader.receive(0) is not None
        assert values(fake) == [], "that nothing waits commits nothing"
        session.commit()
    assert (values(fake), fake.committed["t", 0][0]) == ([b"0", b"1"], 3)


def test_units_are_received_whole(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.records = [record_of(a_unit(name), offset) for offset, name in enumerate("ab")]
    with connection.session(transacted=True) as session:
        reader = session.units("megazon", group="g")
        assert [next(reader).id for _ in "ab"] == ["a", "b"]
        session.rollback()
        assert next(reader).id == "a"
        session.commit()
    assert fake.committed["megazon.units", 0][0] == 1


def test_auto_acknowledges_each_when_the_next_one_is_asked_for_and_the_last_at_close_r59(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    with connection.session("auto") as session:
        reader = session.messages("t", group="g")
        for expected in (None, 1, 2):
            next(reader)
            assert fake.committed.get(("t", 0), (None,))[0] == expected
    assert fake.committed["t", 0][0] == 3


def test_auto_does_not_acknowledge_what_was_not_handled(fake: FakeBroker, connection: uow.Connection) -> None:
    def handle() -> None:
        with connection.session("auto") as session:
            next(session.messages("t", group="g"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        handle()
    assert fake.committed["t", 0][0] == 0


def test_lost_partitions_raise_nothing_under_auto_r47(fake: FakeBroker) -> None:
    heard: list[Any] = []
    with fake.connect(listener=heard.append) as connection, connection.session("auto") as session:
        reader = session.messages("t", group="g")
        next(reader)
        fake.consumers[-1].moved("lost", 0)
        fake.consumers[-1].moved("assign", 0)
        next(reader)  # acknowledged before the loss
        fake.consumers[-1].moved("lost", 0)
        fake.consumers[-1].moved("assign", 0)
        while (message := reader.receive(0)) is None:
            pass
        assert message.offset >= 1
    assert all(isinstance(each, uow.LostServer) for each in heard)


def test_a_closed_session_is_closed_with_its_children_and_nobody_elses_r25(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    session = connection.session(transacted=True)
    reader, producer = session.messages("t", group="g"), session.producer("megazon")
    producer.send("never", id="a", seq=1)
    session.close()
    session.close()
    life = connection._session.life
    life.lost("by hand")
    life.answered()
    calls = (session.commit, lambda: next(reader), lambda: producer.send("x", id="a", seq=1), session.producer)
    for call in calls:
        with pytest.raises(errors.ClientClosedError, match="closed since 20"):
            call()
    connection.send("megazon", "x", id="a", seq=1)
    assert values(fake) == [b"x"]


def test_producers_are_bound_to_a_destination_or_name_one_each_time_r36(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    with connection.session() as session:
        assert session.producer("megazon").send("1", id="a", seq=1) == uow.Sent("megazon.components", 0, 7)
        session.producer().send("2", destination="other", id="a", seq=1)
        for producer, destination in ((session.producer(), None), (session.producer("megazon"), "other")):
            with pytest.raises(TypeError, match="either to the producer or to send"):
                producer.send("x", destination=destination, id="a", seq=1)
    assert [sent.name for sent in fake.visible] == ["megazon.components", "other.components"]


def test_bad_use_is_refused_by_name(fake: FakeBroker, connection: uow.Connection) -> None:
    with pytest.raises(errors.ConfigError, match="acknowledge"):
        connection.session("sometimes")
    with connection.session() as plain, pytest.raises(errors.ConfigError, match="transacted"):
        plain.commit()
    with connection.session(transacted=True) as session:
        session.messages("t", group="g")
        with pytest.raises(errors.ConfigError, match="one reader at a time"):
            session.messages("t", group="g")


def test_a_commit_that_is_not_answered_can_only_be_asked_for_again_r64(
    fake: FakeBroker, connection: uow.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()
    with connection.session(transacted=True) as session:
        reader, producer = session.messages("t", group="g"), session.producer("megazon")
        next(reader)
        producer.send("1", id="a", seq=1)
        handle = fake.producers[-1]
        commit = handle.commit_transaction
        monkeypatch.setattr(handle, "commit_transaction", lambda timeout: (answer.wait(60), commit(timeout)))
        connection._session.life.waits = Waits(blocking_ms=10)
        fake.asked = [failure(KafkaError._TRANSPORT)] * 100_000
        connection._session.life.lost("by hand")
        for call in (session.commit, session.commit, session.rollback, lambda: producer.send("2", id="a", seq=2)):
            with pytest.raises(errors.CommitPendingError):
                call()
        fake.asked.clear()
        answer.set()
        connection._session.life.waits = Waits()
        session.commit()
        assert (values(fake), fake.committed["t", 0][0]) == ([b"1"], 1)
        next(reader)
        session.commit()
    assert fake.committed["t", 0][0] == 2


def test_another_commit_after_one_that_nobody_answered_does_not_say_that_all_is_well(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    with connection.session(transacted=True) as session:
        producer = session.producer("megazon")
        producer.send("1", id="a", seq=1)
        fake.lost_answers = 1
        for _ in range(3):
            with pytest.raises(errors.CommitOutcomeUnknownError) as unknown:
                session.commit()
            assert unknown.value.transactional_id
        producer.send("2", id="a", seq=2)
        session.commit()
        session.commit()  # nothing to do
        producer.send("3", id="a", seq=3)
        fake.lost_answers = 1
        with pytest.raises(errors.CommitOutcomeUnknownError):
            session.commit()
        session.rollback()
        session.commit()


def silenced(fake: FakeBroker, connection: uow.Connection) -> threading.Event:
    """No broker answers any more, and none a commit until the event is set."""
    answer = threading.Event()
    fake.before["commit_transaction"] = lambda: answer.wait(PATIENCE_S)
    fake.asked = [failure(KafkaError._TRANSPORT)] * 100_000
    connection._session.life.lost("by hand")
    return answer


@pytest.mark.parametrize("closes", ["session", "connection"])
@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("receives", [True, False])
def test_a_commit_that_was_under_way_when_all_was_closed_is_told_of_truly(
    fake: FakeBroker, closes: str, lands: bool, receives: bool
) -> None:
    """`ClientClosedError` would say that nothing of it was done."""
    connection = fake.connect(reconnect_blocking_ms=50)
    session = connection.session(transacted=True)
    if receives:
        next(session.messages("t", group="g"))
    session.producer("megazon").send("1", id="a", seq=1)
    answer = silenced(fake, connection)
    with pytest.raises(errors.CommitPendingError):
        session.commit()
    if lands:
        answer.set()
        wait_for(lambda: fake.visible)
    (session if closes == "session" else connection).close()
    if lands and closes == "connection":
        session.commit()
        session.close()
    else:
        for _ in range(2):
            with pytest.raises(errors.CommitOutcomeUnknownError):
                session.commit()
    answer.set()
    connection.close()


def test_a_unit_whose_commit_was_under_way_when_its_connection_was_closed_says_that_nobody_knows(
    fake: FakeBroker,
) -> None:
    connection = fake.connect(reconnect_blocking_ms=50)
    with pytest.raises(errors.CommitPendingError), connection.unit("d") as unit:  # noqa: PT012  # leaving it raises
        unit.send("1")
        answer = silenced(fake, connection)
    connection.close()
    with pytest.raises(errors.CommitOutcomeUnknownError):
        unit.commit()
    answer.set()


def test_a_send_that_could_not_begin_does_not_make_the_last_commit_known(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    with connection.session(transacted=True) as session:
        producer = session.producer("megazon")
        producer.send("1", id="a", seq=1)
        fake.lost_answers = 1
        with pytest.raises(errors.CommitOutcomeUnknownError):
            session.commit()
        fake.script["init_transactions"] = [failure(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)]
        with pytest.raises(errors.ReconnectGivenUpError):
            producer.send("2", id="a", seq=2)
        with pytest.raises(errors.CommitOutcomeUnknownError):
            session.commit()


def test_a_program_that_ends_itself_in_a_commit_does_not_take_it_for_rolled_back(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    """As the handler of SIGTERM of a command does."""
    with connection.session(transacted=True) as session:
        session.producer("megazon").send("1", id="a", seq=1)

        def end() -> None:
            raise SystemExit(143)

        fake.before["commit_transaction"] = end
        with pytest.raises(SystemExit):
            session.commit()
        fake.before.clear()
        with pytest.raises(errors.CommitOutcomeUnknownError):
            session.commit()


def test_a_child_of_fork_does_not_wait_for_the_commit_of_its_parent(fake: FakeBroker) -> None:
    connection = fake.connect(reconnect_blocking_ms=50)
    session = connection.session(transacted=True)
    session.producer("megazon").send("1", id="a", seq=1)
    answer = silenced(fake, connection)
    with pytest.raises(errors.CommitPendingError):
        session.commit()
    connection._session.transactions.left_behind(connection._session.life.closed_now())
    with pytest.raises(errors.ClientClosedError):
        session.commit()
    answer.set()
    connection.close()
