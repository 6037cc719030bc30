"""The frame proxy between a client and a server that only notes what came."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from tests.frames.fake_broker import NAME, Client, FakeBroker, request
from tests.processes import wait_for
from uow.prove.frames import (
    Api,
    Fences,
    FrameFault,
    FrameRule,
    ProducerEpoch,
    Proxy,
    Request,
    Way,
    parse,
    producer_of,
)

ADD, END, FETCH = Api.ADD_PARTITIONS_TO_TXN, Api.END_TXN, Api.FETCH


@pytest.fixture
def behind() -> Iterator[FakeBroker]:
    running = FakeBroker()
    yield running
    running.close()


@pytest.fixture
def proxy(behind: FakeBroker) -> Iterator[Proxy]:
    with Proxy(behind.address, seed=7) as running:
        yield running


def test_header_is_read_with_and_without_a_client_id() -> None:
    assert parse(request(26, 5, "me", b"body")) == Request(26, 0, 5, "me")
    assert parse(b"\x00\x03\x00\x0c\x00\x00\x00\x09\xff\xff") == Request(3, 12, 9, "")


def test_without_rules_everything_passes_in_order_and_is_counted(proxy: Proxy, behind: FakeBroker) -> None:
    with Client(proxy.address) as client:
        frames = [request(api, number, body=b"x" * 100_000) for number, api in enumerate([FETCH, END, 77] * 5)]
        for frame in frames:
            client.send(frame)
        assert [client.answer() for _ in frames] == list(range(15))
    assert behind.came == frames
    assert [proxy.counts[api] for api in (FETCH, END, 77)] == [5, 5, 5]


def test_held_request_arrives_late_and_its_answer_reaches_nobody(proxy: Proxy, behind: FakeBroker) -> None:
    rule = proxy.add(FrameRule(FrameFault.HOLD, {END}, times=1))
    with Client(proxy.address) as first, Client(proxy.address) as second:
        assert first.ask(request(FETCH, 1)) == 1
        assert first.ask(request(END, 2)) is None, "the client is cut"
        rule.wait()
        assert second.ask(request(END, 3)) == 3, "repeated elsewhere, it passes"
        assert len(behind.came) == 2
        assert proxy.release() == 1
        assert behind.came[-1] == request(END, 2)
        assert proxy.held == 0
        assert second.ask(request(FETCH, 4)) == 4


@pytest.mark.parametrize("way", Way)
def test_a_blocked_way_lets_the_other_pass_and_what_waited_arrives_late(
    proxy: Proxy, behind: FakeBroker, way: Way
) -> None:
    with Client(proxy.address) as client:
        assert client.ask(request(FETCH, 1)) == 1
        proxy.block(way)
        client.send(request(END, 2))
        wait_for(lambda: way is Way.REQUESTS or len(behind.came) == 2)
        assert client.hears_nothing()
        assert len(behind.came) == (1 if way is Way.REQUESTS else 2)
        proxy.unblock()
        assert client.answer() == 2
        proxy.block(way)
        client.send(request(END, 3))
    proxy.unblock()
    wait_for(lambda: len(behind.came) == 3, what=lambda: f"came: {behind.came}")


def test_hole_swallows_both_ways_until_the_rules_are_cleared(proxy: Proxy, behind: FakeBroker) -> None:
    proxy.add(FrameRule(FrameFault.HOLE, {END}))
    with Client(proxy.address) as client, Client(proxy.address) as other:
        client.send(request(END, 1))
        client.send(request(FETCH, 2))
        assert client.hears_nothing()
        assert other.ask(request(FETCH, 3)) == 3
        assert behind.came == [request(FETCH, 3)]
        proxy.clear()
        assert client.answer() is None
        assert proxy.release() == 1


def test_cut_request_never_arrives(proxy: Proxy, behind: FakeBroker) -> None:
    proxy.add(FrameRule(FrameFault.CUT, {END}))
    with Client(proxy.address) as client:
        assert client.ask(request(END, 1)) is None
    assert behind.came == []


def test_lost_answer_means_the_request_arrived(proxy: Proxy, behind: FakeBroker) -> None:
    proxy.add(FrameRule(FrameFault.LOSE_ANSWER, {END}))
    with Client(proxy.address) as client:
        assert client.ask(request(END, 1)) is None
    assert behind.came == [request(END, 1)]


def test_repeated_request_arrives_twice_and_is_answered_once(proxy: Proxy, behind: FakeBroker) -> None:
    proxy.add(FrameRule(FrameFault.REPEAT, {END}, times=1))
    with Client(proxy.address) as client:
        assert client.ask(request(END, 1)) == 1
        assert proxy.release() == 1
        assert client.ask(request(FETCH, 2)) == 2
    assert behind.came == [request(END, 1), request(END, 1), request(FETCH, 2)]


def test_request_that_releases_comes_behind_what_was_held(proxy: Proxy, behind: FakeBroker) -> None:
    proxy.add(FrameRule(FrameFault.HOLD, {Api.PRODUCE}, times=1))
    proxy.add(FrameRule(FrameFault.RELEASE, {Api.PRODUCE}, times=1))
    with Client(proxy.address) as first, Client(proxy.address) as second:
        assert first.ask(request(Api.PRODUCE, 1)) is None
        assert second.ask(request(Api.PRODUCE, 2)) == 2
    assert behind.came == [request(Api.PRODUCE, 1), request(Api.PRODUCE, 2)]


def test_rules_choose_by_key_client_and_count(proxy: Proxy) -> None:
    worker, other = f"{NAME}-w1", f"{NAME}-other"
    rule = proxy.add(FrameRule(FrameFault.CUT, {END}, client=f"{NAME}-w", skip=1, times=1))
    with Client(proxy.address) as client, Client(proxy.address) as spared:
        assert [client.ask(request(END, 1, worker)), client.ask(request(FETCH, 2, worker))] == [1, 2]
        assert spared.ask(request(END, 3, other)) == 3
        assert client.ask(request(END, 4, worker)) is None
        assert spared.ask(request(END, 5, worker)) == 5
    assert rule.hits == 1


def test_chance_is_drawn_from_the_seed(behind: FakeBroker) -> None:
    def hits(seed: int) -> list[int]:
        with Proxy(behind.address, seed=seed) as proxy:
            rule, found = proxy.add(FrameRule(FrameFault.REPEAT, client=NAME, chance=0.5)), []
            with Client(proxy.address) as client:
                for number in range(40):
                    client.ask(request(END, number))
                    found.append(rule.hits)
            return found

    assert hits(1) == hits(1)
    assert hits(1) != hits(2)
    assert 5 < hits(1)[-1] < 35


def test_everything_can_be_cut_at_once(proxy: Proxy) -> None:
    with Client(proxy.address) as one, Client(proxy.address) as two:
        assert (one.ask(request(FETCH, 1)), two.ask(request(FETCH, 2))) == (1, 2)
        proxy.cut()
        assert (one.answer(), two.answer()) == (None, None)


def test_without_a_broker_connections_are_refused() -> None:
    with Proxy() as proxy, Client(proxy.address) as client:
        assert client.answer() is None


def test_rule_that_nothing_fits_is_said() -> None:
    with pytest.raises(TimeoutError, match="no request matched"):
        FrameRule(FrameFault.CUT).wait(0.0)


def _of(api: int, epoch: int = 4, name: bytes = b"app-worker-a") -> tuple[bytes, Request]:
    body = struct.pack(">h", len(name)) + name + struct.pack(">qh", 77, epoch) + b"more"
    frame = request(api, 1, body=body)
    return frame, parse(frame)


def test_producer_of_a_request_is_read_where_it_begins_with_that() -> None:
    assert producer_of(*_of(END)) == ProducerEpoch("app-worker-a", 77, 4)
    assert producer_of(*_of(FETCH)) is None
    assert producer_of(*(short := request(END, 1), parse(short))) is None


@pytest.mark.parametrize(
    ("seen", "goes_on"),
    [
        ([(ADD, 4, None), (END, 4, FrameFault.HOLD), (END, 4, None), (ADD, 4, None)], True),
        ([(ADD, 4, FrameFault.CUT), (ADD, 4, None), (END, 4, None), (ADD, 4, None)], True),
        ([(ADD, 4, None), (END, 4, FrameFault.HOLD), (END, 4, None), (ADD, 5, None)], False),
        ([(ADD, 4, FrameFault.HOLE), (ADD, 4, None), (END, 4, None)], False),
        ([(ADD, 4, None), (END, 4, FrameFault.REPEAT), (ADD, 4, None)], False),
        ([(ADD, 4, None), (END, 4, None), (ADD, 4, None), (END, 4, FrameFault.LOSE_ANSWER), (ADD, 5, None)], False),
    ],
)
def test_producer_that_begins_again_after_a_fault_is_told(
    seen: list[tuple[int, int, FrameFault | None]], goes_on: bool
) -> None:
    """ER-11."""
    fences = Fences()
    for api, epoch, fault in seen:
        fences.see(*_of(api, epoch), fault)
    assert ["app-worker-a" in said for said in fences.take()] == [True] * goes_on
    assert fences.take() == []


def test_a_foreign_client_at_the_port_of_the_fake_broker_is_cut_and_not_noted(behind: FakeBroker) -> None:
    """The port may have been that of another test's broker."""
    with Client(behind.address) as foreign, Client(behind.address) as ours:
        assert foreign.ask(request(Api.API_VERSIONS, 1, "rdkafka")) is None
        assert ours.ask(request(END, 2)) == 2
    assert behind.came == [request(END, 2)]
