"""Readers whose partitions go, and what the listener hears of it (R-03, R-34, R-47, R-50); a handle made without a broker."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest
from confluent_kafka import KafkaError
from fake_handles import FakeBroker, FakeHeaderLookup, consumed, failure
from test_client_readers import a_unit, record_of

import uow
from tests.processes import wait_for
from uow import errors
from uow.client import transaction
from uow.client.kafka_port import LogWatch
from uow.client.session_watch import REFUSALS


def three(fake: FakeBroker) -> None:
    fake.records = [consumed(b"%d" % offset, offset=offset) for offset in range(3)]


@pytest.mark.parametrize("how", ["lost", "revoke"])
def test_listener_hears_of_partitions_that_go_before_anything_comes_again_r47_r50(fake: FakeBroker, how: str) -> None:
    three(fake)
    heard: list[Any] = []
    with fake.connect(listener=heard.append) as connection, connection.messages("t", group="g") as reader:
        held = [next(reader) for _ in range(3)]
        held[0].acknowledge()
        fake.consumers[-1].moved(how, 0)
        fake.consumers[-1].moved("assign", 0)
        again = reader.receive(0) or next(reader)
        assert heard == [uow.LostServer(1, (("t", 0),), {("t", 0): 1})]
        assert again.offset == 1
        with pytest.raises(errors.LostServerError):
            held[2].acknowledge()
        again.acknowledge()
    assert fake.committed["t", 0][0] == 2


def test_partitions_without_unacknowledged_messages_go_silently(fake: FakeBroker) -> None:
    three(fake)
    heard: list[Any] = []
    with fake.connect(listener=heard.append) as connection, connection.messages("t", group="g") as reader:
        for _ in range(3):
            next(reader).acknowledge()
        fake.consumers[-1].moved("lost", 0)
        fake.consumers[-1].moved("assign", 0)
        assert reader.receive(0) is None
    assert heard == []


def test_lost_partitions_end_a_reader_that_is_not_refreshed_and_it_leaves_the_group_r03(fake: FakeBroker) -> None:
    three(fake)
    with fake.connect(reconnect_policy="producer") as connection, connection.messages("t", group="g") as reader:
        message = next(reader)
        fake.consumers[-1].moved("lost", 0)
        for call in (lambda: reader.receive(0), message.acknowledge, reader.roll_back):
            with pytest.raises(errors.StaleConnectionError, match=r"reader of 't' is stale since 20.*gave t/0 away"):
                call()
        assert fake.consumers[-1].closed
        assert connection.state is uow.ConnectionState.CONNECTED
    assert fake.commits == []


def test_planned_rebalance_is_no_loss_event(fake: FakeBroker) -> None:
    three(fake)
    with fake.connect(reconnect_policy="producer") as connection, connection.messages("t", group="g") as reader:
        next(reader)
        fake.consumers[-1].moved("revoke", 0)
        assert reader.receive(0) is None


def test_brokers_that_refuse_us_again_and_again_are_given_up_and_the_cause_is_told_r09(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [failure(KafkaError._AUTHENTICATION, text="wrong password")] * REFUSALS
    fake.asked = [*refusals]
    with pytest.raises(errors.ReconnectGivenUpError, match="fake:9092 refuses this client"):
        fake.connect()
    fake.asked = refusals[1:]
    with fake.connect() as connection:
        assert connection.state is uow.ConnectionState.CONNECTED


def test_listener_that_fails_is_logged_and_hears_of_the_next_event(
    fake: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Any] = []

    def listener(event: Any) -> None:
        heard.append(event)
        raise ZeroDivisionError

    with fake.connect(listener=listener) as connection:
        life = connection._session.life
        life.lost("by hand")
        wait_for(lambda: len(heard) == 2)
    assert [type(each) for each in heard] == [uow.ConnectionLost, uow.ConnectionRefreshed]
    assert caplog.text.count("the listener of the connection to fake:9092 failed") == 2


def test_lines_of_an_outage_are_thinned_out_in_the_log_and_none_is_hidden_from_us(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines: list[str] = []
    watch = LogWatch(lines.append)
    with caplog.at_level("DEBUG", "uow.client.kafka_port"):
        for number in range(1000):
            watch.logger.info("FAIL: 127.0.0.1:%d: Connect failed after %dms", 9092, number)
    assert len(lines) == 1000
    assert len(caplog.records) == 1


def test_a_browser_reads_all_units_from_the_oldest_on_and_commits_nothing(fake: FakeBroker) -> None:
    fake.records = [record_of(a_unit(name), offset) for offset, name in enumerate("ab")]
    with fake.connect() as connection, connection.browse("megazon") as browser:
        for expected in "ab":
            unit = next(browser)
            assert unit.id == expected
            unit.acknowledge()
    assert fake.commits == []
    assert fake.committed == {}


def test_marks_tell_what_was_handed_out_before_and_what_others_may_have_had_r35(fake: FakeBroker) -> None:
    """Three records are there at first, the fourth comes later; then the partition goes and comes back."""
    three(fake)
    with fake.connect() as connection, connection.messages("t", group="g") as reader:
        assert [next(reader).redelivered for _ in range(3)] == [None] * 3
        fake.records.append(consumed(b"3", offset=3))
        assert next(reader).redelivered is False
        reader.roll_back()
        assert [next(reader).redelivered for _ in range(4)] == [True] * 4
        fake.records.append(consumed(b"4", offset=4))
        fake.consumers[-1].moved("revoke", 0)
        assert reader.receive(0) is None
        fake.consumers[-1].moved("assign", 0)
        assert [next(reader).redelivered for _ in range(5)] == [True] * 4 + [None]
        fake.records.append(consumed(b"5", offset=5))
        assert next(reader).redelivered is False


def test_a_unit_that_comes_to_a_reader_which_waits_at_the_end_is_surely_new_r35_r58(fake: FakeBroker) -> None:
    """Also the first that it gets at all: nobody else can have had it."""
    fake.records = [record_of(a_unit("a"), 0)]
    fake.committed["megazon.units", 0] = (1, "")
    with fake.connect() as connection, connection.units("megazon", group="g") as reader:
        assert reader.receive(0.1) is None
        fake.records.append(record_of(a_unit("b"), 1))
        assert next(reader).redelivered is False


def test_marks_of_a_reader_alone_depend_on_nobody_else_r35(fake: FakeBroker) -> None:
    three(fake)
    with fake.connect() as connection, connection.messages("t", group=None, start="earliest") as reader:
        assert [next(reader).redelivered for _ in range(3)] == [False] * 3


def test_marks_of_units_r35_r58(fake: FakeBroker) -> None:
    fake.records = [record_of(a_unit(name), offset) for offset, name in enumerate("ab")]
    with fake.connect() as connection, connection.units("megazon", group="g") as reader:
        assert (next(reader).redelivered, next(reader).redelivered) == (None, None)
        reader.roll_back()
        assert next(reader).redelivered is True


@pytest.mark.parametrize("interval", [0, 1000])
@pytest.mark.parametrize("has_handler", [True, False])
def test_a_forwarder_that_somebody_newer_fenced_ends_its_reader_and_leaves_the_group_r26(
    fake: FakeBroker, interval: int, has_handler: bool
) -> None:
    """Standing at the message and trying again would keep the partitions from the newer one for ever."""
    three(fake)
    fake.topics = {"t": 1, "next": 1}
    fake.script["commit_transaction"] = [failure(KafkaError._FENCED, fatal=True)]
    with fake.connect() as connection, connection.messages("t", group="g", commit_interval_ms=interval) as reader:

        def forward(message: uow.Message) -> None:
            connection.forward(message, to="next")

        def run() -> None:
            if has_handler:
                reader.run(forward)
            while True:
                forward(next(reader))

        for _ in range(2):
            with pytest.raises(errors.FencedError, match="transactional id"):
                run()
        assert fake.consumers[-1].closed
        assert fake.visible == []
        assert connection.state is uow.ConnectionState.CONNECTED


def test_a_unit_that_somebody_newer_fenced_in_a_handler_ends_the_reader_too(fake: FakeBroker) -> None:
    three(fake)
    fake.topics = {"t": 1, "d.components": 1}
    fake.script["commit_transaction"] = [failure(KafkaError._FENCED, fatal=True)]
    with fake.connect() as connection, connection.messages("t", group="g") as reader:

        def handle(message: uow.Message) -> None:
            with connection.unit("d") as unit:
                unit.send("x")

        with pytest.raises(errors.FencedError):
            reader.run(handle)
        assert fake.consumers[-1].closed


FENCED = KafkaError(
    KafkaError._FATAL, f"Fatal error: {KafkaError(KafkaError.FENCED_INSTANCE_ID).str()}: Fatal consumer error"
)
"""As librdkafka 2.16 hands it out: the code is fatal, the flag is not set, and the text says the rest."""
FATAL = KafkaError(KafkaError._FATAL, "Fatal error: by script")


def test_a_fatal_error_makes_a_reader_go_on_with_a_new_consumer_and_nothing_is_made_anew_by_the_user_r18(
    fake: FakeBroker,
) -> None:
    """Session, producer and reader of one connection; the listener hears what comes again before it does."""
    three(fake)
    fake.topics = {"t": 1, "d.components": 1}
    heard: list[Any] = []
    with fake.connect(listener=heard.append) as connection, connection.session(transacted=True) as session:
        producer, reader = session.producer("d"), session.messages("t", group="g")
        assert next(reader).offset == 0
        session.commit()
        assert next(reader).offset == 1
        producer.send("thrown away")
        fake.read_errors = [FATAL]
        again = next(reader)
        assert heard == [uow.LostServer(1, (("t", 0),), {("t", 0): 1})]
        assert (again.offset, again.redelivered) == (1, True)
        with pytest.raises(errors.TransactionRolledBackError, match="comes again"):
            session.commit()
        assert next(reader).offset == 1
        producer.send("kept")
        session.commit()
        assert [sent.value for sent in fake.visible] == [b"kept"]
        assert [len(fake.readers_of("t")), connection.stats().rebuilds] == [2, 1]
        assert fake.readers_of("t")[0].closed
        fake.read_errors = [FATAL]
        for _ in range(2):  # one that fails again at once is given up
            with pytest.raises(errors.ReconnectGivenUpError, match="by script"):
                reader.receive(0)
        wait_for(lambda: isinstance(heard[-1], errors.ReconnectGivenUpError))


def test_a_fatal_error_ends_a_reader_that_is_not_refreshed(fake: FakeBroker) -> None:
    three(fake)
    with fake.connect(reconnect_policy="producer") as connection, connection.messages("t", group="g") as reader:
        fake.read_errors = [FATAL]
        for _ in range(2):
            with pytest.raises(errors.ReconnectGivenUpError, match="by script"):
                reader.receive(0)


@pytest.mark.parametrize(("start", "offsets"), [("earliest", [0, 1, 2, 3, 4, 5]), ("latest", [3, 5])])
def test_a_reader_alone_that_begins_anew_goes_on_or_says_what_it_missed_r56(
    fake: FakeBroker, start: str, offsets: list[int]
) -> None:
    three(fake)
    heard: list[Any] = []
    with (
        fake.connect(listener=heard.append) as connection,
        connection.messages("t", group=None, start=start) as reader,
    ):
        fake.records.append(consumed(b"3", offset=3))
        before = 1 if start == "latest" else 4
        seen = [next(reader).offset for _ in range(before)]
        fake.records.append(consumed(b"4", offset=4))
        fake.read_errors = [FATAL]
        assert reader.receive(0) is None
        seen += [each.offset for each in [reader.receive(0)] if each is not None]
        fake.records.append(consumed(b"5", offset=5))
        seen.append(next(reader).offset)
        assert seen == offsets
        missed = [uow.Missed("t", 0, 4, 5)] if start == "latest" else []
        wait_for(lambda: heard == missed)


def test_a_reader_whose_name_somebody_newer_has_ends_and_says_so_r24(fake: FakeBroker) -> None:
    three(fake)
    with fake.connect(client_id="shop") as connection:
        reader = connection.messages("t", group="g")
        message = next(reader)
        fake.script["commit"] = [failure(KafkaError._FATAL, text="Commit failed: Local: Fatal error")]
        with pytest.raises(errors.LostServerError):
            message.acknowledge()
        fake.read_errors = [FENCED]
        for _ in range(2):
            with pytest.raises(errors.FencedError, match=r"group\.instance\.id"):
                reader.receive(0)
        assert fake.readers_of("t")[0].closed
        assert connection.state is uow.ConnectionState.CONNECTED


@pytest.mark.parametrize("how", ["lost", "fenced"])
def test_a_connection_with_a_client_id_ends_whole_with_a_loss_and_frees_the_id_r23(fake: FakeBroker, how: str) -> None:
    """Under the default policy; its producers too."""
    three(fake)
    heard: list[Any] = []
    connection = fake.connect(client_id="shop", reconnect_policy="producer", listener=heard.append)
    reader = connection.messages("t", group="g")
    next(reader)
    if how == "lost":
        fake.consumers[-1].moved("lost", 0)
    else:
        fake.read_errors = [FENCED]
    kind = errors.StaleConnectionError if how == "lost" else errors.FencedError
    for call in (lambda: reader.receive(0), lambda: connection.send("d", "x"), lambda: connection.unit("d")):
        with pytest.raises(kind):
            call()
    assert connection.state is uow.ConnectionState.STALE
    with fake.connect(client_id="shop"):
        pass
    wait_for(lambda: [type(each) for each in heard] == [kind])
    connection.close()


def test_a_client_id_has_one_live_connection_in_a_process_r24(fake: FakeBroker) -> None:
    with (
        fake.connect(client_id="shop"),
        fake.connect(client_id="till"),
        fake.connect(),
        fake.connect(),
        pytest.raises(errors.DuplicateClientIdError, match="'shop'"),
    ):
        fake.connect(client_id="shop")
    with fake.connect(client_id="shop") as connection:
        connection._session.life.lost("by hand")
        with pytest.raises(errors.DuplicateClientIdError):  # of `all`, it waits and goes on
            fake.connect(client_id="shop")


def test_readers_of_a_connection_with_a_client_id_are_static_members_each_with_a_name_r39(fake: FakeBroker) -> None:
    def names() -> list[str]:
        return [each.properties.get("group.instance.id", "") for each in fake.readers_of("t")]

    with fake.connect(client_id="shop") as connection:
        first, _second, _other = (connection.messages("t", group=group) for group in ("g", "g", "h"))
        first.close()
        connection.messages("t", group="g")
        assert names() == ["shop", "shop-1", "shop", "shop"]
    with fake.connect() as connection, connection.messages("t", group="g"):
        assert names()[4:] == [""]


def test_caches_of_a_partition_that_moved_are_gone_and_no_repeat_is_unmarked_r51(fake: FakeBroker) -> None:
    """Of a reader that has collected half a unit, has units given up that wait, and reads ahead."""
    three(fake)
    with fake.connect() as connection, connection.messages("t", group="g") as reader:
        held = [next(reader) for _ in range(2)]
        consumption = reader._consumption
        before = consumption.owned("t", 0)
        before.add_dead_letter([], 2, 2)
        fake.consumers[-1].moved("lost", 0)
        fake.consumers[-1].moved("assign", 0)
        again = next(reader)
        after = consumption.owned("t", 0)
        assert after is not before
        assert (after.waiting, after.run, after.gap, after.rewind) == ([], None, None, None)
        assert (again.offset, again.redelivered) == (0, True)
        for message in held:
            with pytest.raises(errors.LostServerError):
                message.acknowledge()


def test_committed_offsets_that_somebody_deleted_are_not_begun_anew_r26(fake: FakeBroker) -> None:
    """An administrator deletes the group behind a reader that has committed in it: reading it all again would be silent."""
    three(fake)
    with fake.connect() as connection, connection.messages("t", group="g") as reader:
        next(reader).acknowledge()
        fake.committed.clear()
        fake.consumers[-1].moved("lost", 0)
        fake.consumers[-1].moved("assign", 0)
        for _ in range(2):
            with pytest.raises(errors.SubscriptionExpiredError, match=r"were deleted.*t/0"):
                reader.receive(0)


def test_where_a_group_begins_is_asked_again_with_a_new_consumer_after_it_was_not_answered(fake: FakeBroker) -> None:
    """Else the reader, which says that the call may be repeated, would never read."""
    three(fake)
    with fake.connect() as connection, connection.messages("t", group="g") as reader:
        fake.script["committed"] = [failure(KafkaError._TIMED_OUT)]
        with pytest.raises(errors.ReconnectTimeoutError, match="committed offsets of group 'g'"):
            reader.receive(0)
        assert next(reader).offset == 0


def test_a_forward_waits_no_longer_than_a_call_and_goes_on_r19_r63(fake: FakeBroker) -> None:
    """The commit is asked for again by the same message, or by whatever comes next; each is visible once."""
    three(fake)
    fake.topics = {"t": 1, "next": 1}
    with fake.connect(reconnect_blocking_ms=200) as connection, connection.messages("t", group="g") as reader:
        first = next(reader)
        life, done = connection._session.life, threading.Event()
        fake.asked = [failure(KafkaError._TRANSPORT)] * 1000
        fake.before["commit_transaction"] = lambda: (life.lost("by script"), done.wait(30))
        for call in (
            lambda: connection.forward(first, to="next"),
            lambda: connection.forward(first, to="next"),
            reader.receive,
        ):
            with pytest.raises(errors.CommitPendingError):
                call()
        fake.before.clear()
        fake.asked.clear()
        done.set()
        wait_for(lambda: life.is_connected)
        second = next(reader)
        assert connection.forward(first, to="next") is uow.Forwarded.COMMITTED
        connection.forward(second, to="next")
    assert [sent.value for sent in fake.visible] == [b"0", b"1"]
    assert fake.committed["t", 0][0] == 2


@pytest.mark.parametrize("took_place", [True, False])
def test_a_forward_whose_commit_is_never_answered_comes_again_only_if_it_did_not_take_place(
    fake: FakeBroker, took_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ER-12: the committed offsets tell. Without them it would be sent twice."""
    monkeypatch.setattr(transaction, "COMMIT_S", 0.0)
    three(fake)
    fake.topics = {"t": 1, "next": 1}
    with fake.connect() as connection, connection.messages("t", group="g") as reader:
        message = next(reader)
        if took_place:
            fake.lost_answers = 1
        else:
            fake.script["commit_transaction"] = [failure(KafkaError._TIMED_OUT, retriable=True)]
        with pytest.raises(errors.CommitOutcomeUnknownError):
            connection.forward(message, to="next")
        assert connection.forward(message, to="next") is uow.Forwarded.AGAIN, "nobody knows yet"
        for _ in range(2 if took_place else 3):
            assert connection.forward(next(reader), to="next") is uow.Forwarded.COMMITTED
    assert [sent.value for sent in fake.visible] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("how", ["by hand", "by the listener"])
def test_a_reader_is_opened_anew_on_the_cluster_where_its_topic_went_r60(fake: FakeBroker, how: str) -> None:
    """It goes on at the group's committed offset there, with its counters; what it handed out before is not acknowledged there."""
    elsewhere = FakeBroker()
    for broker in (fake, elsewhere):
        three(broker)
    elsewhere.committed["t", 0] = (1, "")
    made: list[uow.MessageReader] = []

    def listener(event: Any) -> None:
        if isinstance(event, uow.ConnectionLost) and how == "by the listener":
            made[0].renew(second)

    with (
        fake.connect(listener=listener, reconnect_policy="producer" if how == "by hand" else "all") as first,
        elsewhere.connect() as second,
    ):
        reader = first.messages("t", group="g")
        made.append(reader)
        old = next(reader)
        first._session.life.lost("by script")
        if how == "by hand":
            with pytest.raises(errors.StaleConnectionError):
                reader.receive(0)
            reader.renew(second)
        else:
            wait_for(lambda: reader._renew_on is not None or elsewhere.consumers)
        new = next(reader)
        assert (new.offset, len(elsewhere.readers_of("t"))) == (1, 1)
        assert fake.readers_of("t")[0].closed
        with pytest.raises((errors.LostServerError, errors.StaleConnectionError, errors.ClientClosedError)):
            old.acknowledge()
        first.close()
        new.acknowledge()
        reader.run(lambda message: reader.stop())
        assert elsewhere.committed["t", 0][0] == 3
        reader.close()


def test_handles_of_a_reader_that_is_closed_elsewhere_go_when_it_has_finished_with_them(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing the one that looks for hidden headers, while it looks, ended the process."""
    three(fake)
    begun, go_on, events = threading.Event(), threading.Event(), []

    def hidden(self: FakeHeaderLookup, *place: Any) -> set[int]:
        begun.set()
        go_on.wait(30)
        events.append("looked")
        return set()

    monkeypatch.setattr(FakeHeaderLookup, "hidden", hidden)
    monkeypatch.setattr(FakeHeaderLookup, "close", lambda self: events.append("closed"))
    with fake.connect() as connection:
        reader = connection.messages("t", group="g")
        reading = threading.Thread(target=reader.receive)
        closing = threading.Thread(target=reader.close)
        reading.start()
        assert begun.wait(30)
        closing.start()
        closing.join(0.1)
        go_on.set()
        reading.join(30)
        closing.join(30)
    assert events == ["looked", "closed"]


def statistics(at: float, answers: int) -> str:
    """Those of the library for a member, of which a coordinator has answered so many requests."""
    coordinator = {"rx": answers, "rxidle": 0, "req": {}}
    return json.dumps({"ts": int(at * 1e6), "brokers": {"GroupCoordinator": coordinator}})


def test_a_reader_hands_out_nothing_while_the_coordinator_of_its_group_is_silent_s29(fake: FakeBroker) -> None:
    """The leaders go on answering. What was heard of the coordinator while the application worked counts."""
    three(fake)
    theirs: list[str] = []
    kafka = {"session.timeout.ms": 10_000, "stats_cb": theirs.append}
    with fake.connect(kafka=kafka) as connection, connection.messages("t", group="g") as reader:
        handle, contact = fake.consumers[-1], reader._consumption._liveness
        assert handle.properties["statistics.interval.ms"] == 1_000
        assert next(reader).value == b"0"
        now = time.monotonic()
        contact._monotonic = lambda: now
        for _ in range(2):  # the first tells from where on answers count
            handle.properties["stats_cb"](statistics(now, 1))
        now += 8.1
        assert reader.receive(0) is None
        assert handle.paused == {("t", 0)}
        now += 100  # however long: it comes to an end only by the group's word
        assert reader.receive(0) is None
        handle.properties["stats_cb"](statistics(now, 2))
        assert [next(reader).value for _ in range(2)] == [b"1", b"2"]
        assert len(theirs) == 3


def test_a_reader_learns_from_the_committed_offset_how_far_others_came_r35(fake: FakeBroker) -> None:
    """An orderly end says all; a kill leaves what the last commit said."""
    fake.records = [consumed(b"%d" % offset, offset=offset) for offset in range(5)]

    def marks(count: int) -> list[bool | None]:
        return [next(reader).redelivered for _ in range(count)]

    with fake.connect() as first, first.messages("t", group="g") as reader:
        one, _, _ = (next(reader) for _ in range(3))
        one.acknowledge()
    assert fake.committed["t", 0] == (1, "d1;2:1")
    second = fake.connect()
    reader = second.messages("t", group="g")
    assert marks(3) == [True, True, None]
    fake.kill(second)
    with fake.connect() as third, third.messages("t", group="g") as reader:
        assert marks(4) == [True, True, None, None]
    with fake.connect() as fourth, fourth.messages("t", group="g") as reader:
        assert marks(4) == [True] * 4
        fake.records.append(consumed(b"5", offset=5))
        assert marks(1) == [False]
