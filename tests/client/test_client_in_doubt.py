"""What a client does once a call was cut short, or its outcome is not known: each message is committed with its position, sent once, or said to be in doubt.

The broker is in memory.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import KafkaError
from fake_handles import FakeBroker, FakeConsumer, FakeProducer, consumed, failure
from test_aio import cancelled_at, play
from test_client_long_units import long, sent
from test_client_runs import UNITS, of, on_topic, written

import uow
from tests.processes import PATIENCE_S, wait_for
from uow import aio, errors
from uow.client import sending, session_state
from uow.client.ownership import Ownership
from uow.client.session_state import Waits
from uow.client.transaction import Transaction
from uow.topics.headers import COMPONENT_ID, DIGEST


def interrupt_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, after: bool = True) -> None:
    """Ctrl-C in a call of that name, behind its effect or before it; the next one goes through."""
    call, left = getattr(owner, name), [True]

    def interrupted(self: Any, *args: Any, **settings: Any) -> Any:
        if left and left.pop():
            if after:
                call(self, *args, **settings)
            raise KeyboardInterrupt
        return call(self, *args, **settings)

    monkeypatch.setattr(owner, name, interrupted)


# -- transactional ids


def test_an_id_of_a_connection_is_never_given_to_two_that_live(fake: FakeBroker, connection: uow.Connection) -> None:
    pool = connection._session.transactions
    first, named = pool.take(), pool.named("a-sender-x")
    pool.drop(named)
    assert len({first.transactional_id, pool.take().transactional_id, pool.take().transactional_id}) == 3


def test_recovering_does_not_fence_a_unit_that_has_the_id_now(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.lost_answers = 1
    fake.script["commit_transaction"] = [None, failure(KafkaError._FATAL)]
    with pytest.raises(errors.CommitOutcomeUnknownError) as unknown, connection.unit("d") as unit:
        unit.send("x")
    fake.script.clear()
    with connection.unit("d") as unit:
        unit.send("y")
        unit.send("z")
        begun = len(fake.producers)
        connection._session.transactions.end_orphan(unknown.value.transactional_id)
        assert len(fake.producers) == begun, "no second producer of an id that is in use"


def test_a_beginning_that_failed_may_be_repeated(fake: FakeBroker, connection: uow.Connection) -> None:
    with connection.unit("d") as unit:
        unit.send("x")
        fake.script["begin_transaction"] = [failure(KafkaError._STATE)]
        with pytest.raises(errors.TransactionRolledBackError):
            unit.send("y")
        assert unit.send("y") == 2
    assert [each.value for each in fake.visible] == [b"x", b"y"]


def test_long_units_whose_names_run_together_have_ids_of_their_own(fake: FakeBroker) -> None:
    with fake.connect(application="shop") as connection:
        ids = {
            connection.unit(destination, id=name, resume=True)._long.log.transactional_id  # type: ignore[union-attr]
            for destination, name in (("a", "b-c"), ("a-b", "c"), ("a", "b"), ("1-a", "b"))
        }
    assert len(ids) == 4


def test_a_commit_whose_connection_ends_meanwhile_is_one_whose_outcome_is_unknown(fake: FakeBroker) -> None:
    connection, gate = fake.connect(), threading.Event()
    fake.before["commit_transaction"] = lambda: gate.wait(PATIENCE_S)
    raised: list[BaseException] = []

    def send() -> None:
        try:
            with connection.unit("d") as unit:
                unit.send("x")
        except errors.UowError as failure:
            raised.append(failure)

    thread = threading.Thread(target=send)
    thread.start()
    wait_for(lambda: "commit_transaction" in fake.calls)
    connection.close(0.1)
    thread.join(PATIENCE_S)
    gate.set()
    assert [type(each) for each in raised] == [errors.CommitOutcomeUnknownError]


# -- units


def test_a_value_that_was_not_taken_is_not_in_the_digest(fake: FakeBroker, connection: uow.Connection) -> None:
    with connection.unit("d") as unit:
        unit.send("a")
        with pytest.raises(TypeError):
            unit.send("b", headers={"mine": 1.5})  # type: ignore[dict-item]
        placement, unit._partition = unit._placement, None
        unit._placement = lambda key: (_ for _ in ()).throw(errors.ReconnectTimeoutError("the path map"))
        with pytest.raises(errors.ReconnectTimeoutError):
            unit.send("b")
        unit._placement = placement
        unit.send("c")
    with connection.unit("d") as plain:
        plain.send("a")
        plain.send("c")
    ends = [each.marks[DIGEST] for each in fake.visible if DIGEST in each.marks]
    assert len(ends) == 2
    assert ends[0] == ends[1]


@pytest.mark.parametrize("error", [errors.TransactionRolledBackError, KeyboardInterrupt])
def test_a_unit_that_could_not_save_sends_nothing_more(fake: FakeBroker, error: type[BaseException]) -> None:
    with fake.connect(application="shop") as connection:
        is_cut = error is KeyboardInterrupt  # then nobody knows what became of the commit
        refused = errors.CommitOutcomeUnknownError if is_cut else errors.TransactionRolledBackError
        with pytest.raises(refused), long(connection) as unit:  # noqa: PT012  # leaving it raises
            for value in "abc":
                unit.send(value)
            if is_cut:
                unit._transaction.commit = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
            else:
                fake.script["flush"] = [failure(KafkaError._STATE, abort=True)]
            with pytest.raises(error):
                unit.save()
            for _ in range(2):
                with pytest.raises(refused):
                    unit.send("d")
            with pytest.raises(refused):
                unit.save()
        assert sent(fake) == []


# -- single records


def test_a_component_that_two_threads_send_is_written_once(
    fake: FakeBroker, connection: uow.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[uow.Sent] = []
    waiting: list[None] = []
    settle = sending.PlainSender.settle

    def noted(*args: Any) -> uow.Sent:
        waiting.append(None)
        return settle(*args)

    monkeypatch.setattr(sending.PlainSender, "settle", noted)
    for count in range(1, 51):
        component, both = uow.Component("x"), threading.Barrier(2)
        fake.answers = False

        def send(component: uow.Component = component, both: threading.Barrier = both) -> None:
            both.wait()
            places.append(connection.send("d", component, id="a", seq=1))

        threads = [threading.Thread(target=send) for _ in range(2)]
        for each in threads:
            each.start()
        wait_for(lambda count=count: len(waiting) == 2 * count)  # type: ignore[misc]
        fake.answers = True
        for each in threads:
            each.join(PATIENCE_S)
    assert (len(fake.visible), len(places)) == (50, 100)


def test_a_component_goes_to_each_place_that_it_is_sent_to(fake: FakeBroker) -> None:
    with fake.connect() as connection:
        connection.send("d", "first", id="z", seq=1)  # the looks at the topic have their time
        connection._session.life.waits = Waits(blocking_ms=50)
        component = uow.Component("x")
        fake.answers = False
        with pytest.raises(errors.ReconnectTimeoutError):
            connection.send("d", component, id="a", seq=1)
        fake.answers = True
        connection._session.life.waits = Waits()
        assert connection.send("e", component, id="a", seq=1).topic == "e.components"
        assert connection.send("d", component, id="a", seq=1).topic == "d.components"
    assert [each.name for each in fake.visible] == ["d.components", "d.components", "e.components"]


def test_records_that_nobody_waits_for_are_counted_and_forgotten(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "REMEMBERED", 5)
    with fake.connect() as connection:
        plain = connection._session.plain
        connection.send("d", "first", id="z", seq=1)
        connection._session.life.waits = Waits(1, 0)
        fake.answers = False
        components = [uow.Component(str(number)) for number in range(20)]
        for number, component in enumerate(components):
            with pytest.raises(errors.ReconnectTimeoutError):
                connection.send("d", component, id="a", seq=number + 1)
        assert len(plain._pending) == 20
        fake.answers = True
        plain.serve(0)
        assert connection.stats().sent == 21
        assert (len(plain._pending), len(plain._left)) == (0, 5)
        connection.send("d", components[-1], id="a", seq=20)
    assert len(fake.visible) == 21


def test_what_carries_no_identity_is_never_said_to_be_absent(fake: FakeBroker, connection: uow.Connection) -> None:
    connection.send("d", "plain")
    connection.send("d", uow.Component("mine", component_id="7"))
    assert [dict(each.headers) for each in fake.visible] == [{}, {COMPONENT_ID: b"7"}]
    for value, has_suspect in (("plain", False), (uow.Component("mine"), True)):
        fake.delivery_errors = [KafkaError(KafkaError._MSG_TIMED_OUT)]
        with pytest.raises(errors.AmbiguousSendError) as doubt:
            connection.send("d", value)
        assert (doubt.value.suspect is not None) == has_suspect
        if not has_suspect:
            with pytest.raises(ValueError, match="send a Component"):
                connection.probe(doubt.value)


# -- forwarding and sessions


def test_a_message_forwarded_to_two_topics_reaches_both_behind_a_commit_that_was_late(
    fake: FakeBroker, connection: uow.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.records = [consumed(b"0")]
    gate = threading.Event()
    message = next(connection.messages("t", group="g"))
    connection._session.life.waits = Waits(50, 0)
    fake.before["commit_transaction"] = lambda: gate.wait(PATIENCE_S)
    with monkeypatch.context() as outage:
        outage.setattr(session_state.Patience, "is_in_vain", True)
        with pytest.raises(errors.CommitPendingError):
            connection.forward(message, "one")
    gate.set()
    fake.before.clear()
    assert connection.forward(message, "two") is uow.Forwarded.COMMITTED
    assert connection.forward(message, "one") in (uow.Forwarded.COMMITTED, uow.Forwarded.AGAIN)
    assert [each.name for each in fake.visible] == ["one", "two"]
    assert connection.forward(message, "one", value=b"another") is uow.Forwarded.COMMITTED
    assert [each.value for each in fake.visible] == [b"0", b"0", b"another"]


def test_nothing_is_forwarded_while_an_earlier_commit_may_still_land(fake: FakeBroker) -> None:
    """The position would go back with it, and the message would be forwarded once more."""
    fake.records = [consumed(b"%d" % offset, offset=offset) for offset in range(3)]
    gate = threading.Event()
    with fake.connect() as connection:
        reader = connection.messages("t", group="g")
        first, second = next(reader), next(reader)
        consumer = fake.readers_of("t")[0]
        commit = consumer.commit

        def slow(**settings: Any) -> Any:
            assert gate.wait(PATIENCE_S)
            return commit(**settings)

        consumer.commit = slow  # type: ignore[method-assign]
        connection._session.life.waits = Waits(50, 0)
        with pytest.raises(errors.ReconnectTimeoutError):
            first.acknowledge()
        with pytest.raises(errors.ReconnectTimeoutError, match="still under way"):
            connection.forward(second, "out")
        assert fake.visible == []
        gate.set()
        wait_for(lambda: fake.commits)
        again = next(reader)
        assert again.value == b"1"
        assert connection.forward(again, "out") is uow.Forwarded.COMMITTED
    assert (fake.committed["t", 0][0], [each.value for each in fake.visible]) == (2, [b"1"])


def test_a_session_receives_nothing_while_its_commit_is_pending_r64(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    fake.records = [consumed(b"%d" % offset, offset=offset) for offset in range(2)]
    with connection.session(transacted=True) as session:
        reader = session.messages("t", group="g")
        next(reader)
        session._is_pending = True
        with pytest.raises(errors.CommitPendingError):
            next(reader)
        session._is_pending = False
        session._rows = []


@pytest.mark.parametrize("landed", [True, False])
def test_ctrl_c_in_a_commit_of_a_session_commits_each_message_once(
    fake: FakeBroker, connection: uow.Connection, landed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.records = [consumed(b"%d" % offset, offset=offset) for offset in range(3)]
    interrupted, steps = [True], list[str]()
    for owner, name in ((FakeProducer, "init_transactions"), (FakeConsumer, "committed")):
        call = getattr(owner, name)

        def noted(self: Any, *args: Any, name: str = name, call: Any = call) -> Any:
            steps.append(name)
            return call(self, *args)

        monkeypatch.setattr(owner, name, noted)

    def commit(self: Any, *args: Any, **settings: Any) -> None:
        if interrupted and interrupted.pop():
            if landed:
                real(self, *args, **settings)
            else:
                self._abandon()
            steps.append("interrupted")
            raise KeyboardInterrupt
        real(self, *args, **settings)

    real = Transaction.commit
    monkeypatch.setattr(Transaction, "commit", commit)
    with connection.session(transacted=True) as session:
        reader, producer = session.messages("t", group="g"), session.producer()
        while (message := reader.receive(0)) is not None:
            producer.send(message.value, destination="d", to="out")
            try:
                session.commit()
            except KeyboardInterrupt:
                continue
    assert [each.value for each in fake.visible] == [b"0", b"1", b"2"]
    assert fake.committed["t", 0][0] == 3
    if not landed:
        assert steps[steps.index("interrupted") :][1:3] == ["init_transactions", "committed"], "first a new epoch"


# -- handlers


def test_stop_before_run_is_heard(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.records = [consumed(b"0")]
    reader, seen = connection.messages("t", group="g"), []
    reader.stop()
    reader.run(seen.append)
    assert seen == []

    def handle(message: uow.Message) -> None:
        seen.append(message)
        reader.stop()

    reader.run(handle)
    assert len(seen) == 1


def test_a_message_whose_handler_was_left_by_ctrl_c_comes_again(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.records = [consumed(b"%d" % offset, offset=offset) for offset in range(2)]
    reader, seen = connection.messages("t", group="g"), []

    def handle(message: uow.Message) -> None:
        seen.append(message.value)
        if len(seen) == 1:
            raise KeyboardInterrupt
        if len(seen) == 3:
            reader.stop()

    with pytest.raises(KeyboardInterrupt):
        reader.run(handle)
    reader.run(handle)
    assert seen == [b"0", b"0", b"1"]


def test_handlers_go_on_behind_a_commit_that_was_rolled_back(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.records = [consumed(b"%d" % offset, offset=offset) for offset in range(2)]
    reader = connection.messages("t", group="g", commit_interval_ms=1000)
    fake.script["flush"] = [failure(KafkaError._STATE, abort=True)]
    seen: list[bytes | None] = []

    def handle(message: uow.Message) -> None:
        seen.append(message.value)
        connection.forward(message, "out")
        if len(seen) == 3:
            reader.stop()

    reader.run(handle)
    reader.close()
    assert seen == [b"0", b"0", b"1"]
    assert [each.value for each in fake.visible] == [b"0", b"1"]


# -- streams


def assert_streams_both(reader: uow.StreamReader) -> None:
    """Units a and b come whole, and none was given up."""
    got = []
    for _ in range(2):
        unit = next(reader)
        got.append((unit.id, [each.seq for each in unit.components]))
        unit.acknowledge()
    assert got == [("a", [1, 2, 3]), ("b", [1, 2, 3])]
    assert reader.given_up == {}


def test_a_stream_that_was_cut_short_never_ends_as_if_it_were_whole(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.topics = {UNITS: 2, "D.errors": 2}
    fake.records = on_topic([*written(*of("a")), *written(*of("b"))])
    with fake.connect() as connection:
        reader = connection.stream("D", group="g")
        unit = next(reader)
        assert next(unit.components).seq == 1
        interrupt_once(monkeypatch, uow.client.consumption.Consumption, "poll")
        with pytest.raises(KeyboardInterrupt):
            list(unit.components)
        for _ in range(2):
            with pytest.raises(errors.LostServerError, match="cut short"):
                list(unit.components)
        assert_streams_both(reader)


def test_an_awaited_stream_goes_on_where_a_loop_over_it_was_cancelled(fake: FakeBroker) -> None:
    fake.topics = {UNITS: 2, "D.errors": 2}
    fake.records = on_topic(written(*of("a", 6)))
    gate = threading.Event()

    async def story(connection: aio.Connection) -> None:
        async with connection.stream("D", "g") as reader:
            unit = await anext(reader)
            seen = [(await anext(unit.components)).seq]
            consumer = fake.readers_of(UNITS)[0]
            poll = consumer.poll

            def slow(timeout: float) -> Any:
                assert gate.wait(PATIENCE_S)
                return poll(timeout)

            consumer.poll = slow  # type: ignore[method-assign]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(unit.components), 0.05)
            gate.set()
            seen += [each.seq async for each in unit.components]
            assert seen == [1, 2, 3, 4, 5, 6]
            await unit.acknowledge()

    play(story, fake)
    assert fake.committed[UNITS, 0][0] == 6


# -- awaited


def test_an_awaited_send_that_was_cancelled_is_not_in_the_unit(fake: FakeBroker) -> None:
    gate = threading.Event()

    async def cancelled(call: Callable[[], Any]) -> None:
        task = asyncio.ensure_future(call())
        await asyncio.sleep(0.02)
        task.cancel()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def story(connection: aio.Connection) -> None:
        async with connection.unit("d", id="a") as unit:
            await unit.send("1")
            fake.before["begin_transaction"] = lambda: gate.wait(PATIENCE_S)
            await cancelled(lambda: unit.send("2"))
            assert await unit.send("2") == 2
            assert await unit.send("3") == 3
        gate.clear()
        with pytest.raises(errors.IncompleteUnitError, match="nothing marks its end"):  # noqa: PT012  # leaving it raises
            async with connection.unit("d", id="b") as unit:
                await unit.send("1")
                await cancelled(lambda: unit.send("2"))

    play(story, fake)
    with fake.connect() as connection, connection.unit("d") as unit:
        for value in "123":
            unit.send(value)
    assert [each.value for each in fake.visible] == [b"1", b"2", b"3"] * 2
    assert fake.visible[2].marks[DIGEST] == fake.visible[5].marks[DIGEST]


@pytest.mark.parametrize("step", range(16))
@pytest.mark.parametrize("rolls_back", [True, False])
def test_a_session_commits_the_position_of_each_message_that_it_handed_out_and_of_no_other(
    step: int, rolls_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeBroker()
    fake.records = [consumed(b"%d" % offset, offset=offset) for offset in range(4)]

    async def story(connection: aio.Connection) -> None:
        async with connection.session(transacted=True) as session:
            producer, reader = session.producer(), session.messages("t", "g")
            in_hand: list[bytes | None] = []

            async def work() -> None:
                while (message := await reader.receive(0.01)) is not None:
                    in_hand.append(message.value)
                    await producer.send(message.value, destination="d", to="out")
                    await session.commit()
                    in_hand.clear()

            if await cancelled_at(step, monkeypatch)(work()):
                if rolls_back:
                    await session.rollback()
                else:
                    with suppress(errors.TransactionRolledBackError):  # a send that was cancelled may be in it or not
                        await session.commit()
                position = fake.committed.get(("t", 0), (0, ""))[0]
                assert position == len(fake.visible), "a position and what came of it are committed together"
            await work()

    play(story, fake)
    assert [each.value for each in fake.visible] == [b"0", b"1", b"2", b"3"]
    assert fake.committed["t", 0][0] == 4


# -- errors


def test_errors_tell_their_text_in_every_way() -> None:
    for error in (
        errors.SendRejectedError("t: too large"),
        errors.ConfigError("setting", 1, "a rule"),
        errors.DecodeError("uow-pos", "odd").at("t", 0, 7),
        errors.AmbiguousSendError("t", errors.Suspect("7", "t")),
    ):
        again = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own bytes
        for each in (error, again):
            assert each.args == (str(error),)
            assert repr(each) == f"{type(error).__name__}({str(error)!r})"
            assert str(error)


# -- waiting for the registry


def test_senders_share_one_look_at_the_registry_and_each_waits_its_own_time_r19(fake: FakeBroker) -> None:
    gate = threading.Event()
    fake.before["list_topics"] = lambda: gate.wait(PATIENCE_S)
    raised: list[BaseException] = []
    with fake.connect(reconnect_blocking_ms=200) as connection:

        def send(number: int) -> None:
            try:
                connection.send("d", "x", id="a", seq=number)
            except errors.UowError as failure:
                raised.append(failure)

        senders = [threading.Thread(target=send, args=(number,)) for number in range(1, 11)]
        for each in senders:
            each.start()
        for each in senders:
            each.join(PATIENCE_S)
        assert [type(each) for each in raised] == [errors.ReconnectTimeoutError] * 10
        assert fake.calls.count("list_topics") == 1
        gate.set()
        fake.before.clear()
        wait_for(lambda: not connection._session.strict._looks)
        connection.send("d", "x", id="a", seq=11)


def test_a_destination_stays_as_it_was_while_there_is_no_connection_r19(fake: FakeBroker) -> None:
    with fake.connect() as connection:
        strict, life = connection._session.strict, connection._session.life
        connection.send("d", "x", id="a", seq=1)
        strict._absent["d"] = 0.0
        asked = fake.calls.count("list_topics")
        life._is_connected = False
        assert strict.of("d", fake.producers[0], life=life) is None
        assert fake.calls.count("list_topics") == asked
        life._is_connected = True
        fake.script["list_topics"] = [failure(KafkaError._TIMED_OUT)] * 100
        assert strict.of("d", fake.producers[0], life=life) is None, "not answered: it stays as it was"
        assert strict.is_absent("d")


# -- what a second reader of all this found


def test_an_awaited_send_that_was_cancelled_and_is_repeated_is_written_once(fake: FakeBroker) -> None:
    async def story(connection: aio.Connection) -> None:
        await connection.send("d", "first", id="z", seq=1)
        plain = connection._sync._session.plain
        for topic in ("d", "e"):  # known, and new: the latter asks in a thread
            component = uow.Component("x")
            fake.answers = False
            task = asyncio.ensure_future(connection.send(topic, component, id="a", seq=1))
            await asyncio.to_thread(wait_for, lambda: plain._pending)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            fake.answers = True
            while plain._pending:
                await asyncio.to_thread(plain.serve, 0.01)
            assert (await connection.send(topic, component, id="a", seq=1)).offset == 7

    play(story, fake)
    assert [each.name for each in fake.visible[1:]] == ["d.components", "e.components"]


def test_what_a_handler_forwarded_before_ctrl_c_goes_with_it(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.records = [consumed(b"%d" % offset, offset=offset) for offset in range(2)]
    reader, seen = connection.messages("t", group="g", commit_interval_ms=5000), []

    def handle(message: uow.Message) -> None:
        seen.append(message.value)
        connection.forward(message, "out")
        if len(seen) == 1:
            raise KeyboardInterrupt
        if message.value == b"1":
            reader.stop()

    with pytest.raises(KeyboardInterrupt):
        reader.run(handle)
    reader.run(handle)
    reader.close()
    assert [each.value for each in fake.visible] == [b"0", b"1"]


@pytest.mark.parametrize("then", ["commit", "rollback", "receive"])
def test_ctrl_c_just_behind_the_commit_of_a_session_doubles_nothing(
    fake: FakeBroker, connection: uow.Connection, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    fake.records = [consumed(b"%d" % offset, offset=offset) for offset in range(2)]
    with connection.session(transacted=True) as session:
        reader, producer = session.messages("t", group="g"), session.producer()
        producer.send(next(reader).value, destination="d", to="out")
        with monkeypatch.context() as interrupted:
            interrupt_once(interrupted, Ownership, "committed", after=False)
            with pytest.raises(KeyboardInterrupt):
                session.commit()
        if then != "receive":
            getattr(session, then)()
        while (message := reader.receive(0)) is not None:
            producer.send(message.value, destination="d", to="out")
            session.commit()
    assert [each.value for each in fake.visible] == [b"0", b"1"]
    assert fake.committed["t", 0][0] == 2


def test_a_stream_whose_topic_cannot_be_read_for_a_moment_gives_up_no_healthy_unit(fake: FakeBroker) -> None:
    fake.topics = {UNITS: 1, "D.errors": 1}
    fake.records = on_topic([*written(*of("a")), *written(*of("b"))])
    with fake.connect() as connection:
        reader = connection.stream("D", group="g")
        unit = next(reader)
        next(unit.components)
        fake.read_errors = [KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)]
        with pytest.raises(errors.DestinationUnavailableError):
            list(unit.components)
        assert_streams_both(reader)


def test_who_left_hears_of_the_record_that_another_one_waited_for(fake: FakeBroker) -> None:
    with fake.connect() as connection:
        component, plain = uow.Component("x"), connection._session.plain
        connection.send("d", "first", id="z", seq=1)
        fake.answers = False
        connection._session.life.waits = Waits(20, 0)
        with pytest.raises(errors.ReconnectTimeoutError):
            connection.send("d", component, id="a", seq=1)
        fake.answers = True
        for _ in range(3):
            assert connection.send("d", component, id="a", seq=1).offset == 7
        assert len(plain._left) == 1
    assert len(fake.visible) == 2


def test_ctrl_c_behind_produce_leaves_a_record_that_is_waited_for(
    fake: FakeBroker, connection: uow.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.send("d", "first", id="z", seq=1)
    for step in ((FakeProducer, "produce"), (sending.PlainSender, "_noted")):
        component = uow.Component("x")
        with monkeypatch.context() as interrupted:
            interrupt_once(interrupted, *step)
            with pytest.raises(KeyboardInterrupt):
                connection.send("d", component, id="a", seq=1)
        connection.send("d", component, id="a", seq=1)
        assert fake.visible.pop().value == b"x"
        assert len(fake.visible) == 1


def test_run_ends_where_its_topic_is_gone(fake: FakeBroker, connection: uow.Connection) -> None:
    reader = connection.messages("t", group="g")
    fake.read_errors = [KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)]
    with pytest.raises(errors.DestinationUnavailableError):
        reader.run(lambda message: None)


def test_run_ends_where_the_commit_of_its_session_is_pending(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.records = [consumed(b"0")]
    with connection.session(transacted=True) as session:
        reader = session.messages("t", group="g")
        session._is_pending = True
        with pytest.raises(errors.CommitPendingError):
            reader.run(lambda message: None)
        session._is_pending = False


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_session_acknowledges_nothing_that_its_handler_failed_at(
    fake: FakeBroker, connection: uow.Connection, error: type[BaseException]
) -> None:
    fake.records = [consumed(b"0")]
    with connection.session(acknowledge="auto") as session:
        reader = session.messages("t", group="g")

        def handle(message: uow.Message) -> None:
            reader.stop()
            raise error

        with suppress(KeyboardInterrupt):
            reader.run(handle)
    assert fake.committed.get(("t", 0), (0, ""))[0] == 0


def test_ctrl_c_in_the_middle_of_a_send_ends_the_unit(
    fake: FakeBroker, connection: uow.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(errors.TransactionRolledBackError), connection.unit("d") as unit:  # noqa: PT012  # leaving it raises
        unit.send("a")
        with monkeypatch.context() as interrupted:
            interrupt_once(interrupted, FakeProducer, "produce")
            with pytest.raises(KeyboardInterrupt):
                unit.send("b")
        unit.send("b")
    assert fake.visible == []


def test_an_identity_among_the_headers_counts(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.delivery_errors = [KafkaError(KafkaError._MSG_TIMED_OUT)]
    with pytest.raises(errors.AmbiguousSendError) as doubt:
        connection.send("d", "x", headers={COMPONENT_ID: "mine"})
    assert doubt.value.suspect is not None
    assert doubt.value.suspect.component_id == "mine"
