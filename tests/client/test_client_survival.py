"""Readers whose partitions go, and what the listener hears of it (R-03, R-34, R-47, R-50); a handle made without a broker."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError
from fake_handles import FakeBroker, consumed, failure
from test_client_readers import a_unit, record_of

import uow
from tests.processes import wait_for
from uow import errors
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
