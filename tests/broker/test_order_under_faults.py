"""Strict order from one producer over a worker to a reader and a forwarder, while brokers and programs are killed (S-01, S-11, S-28, S-31)."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from strict_chains import COMMITTED, ROLLED_BACK, Chain, TransactedChain, UnitChain

from tests.broker.client_places import Topics
from tests.broker.cluster import Cluster
from tests.kafka_broker import Given, Kafka
from tests.processes import PATIENCE_S, Process, wait_for
from uow import errors
from uow.embedded.broker import EmbeddedBroker
from uow.prove.frames import Api, FrameFault, FrameRule, Proxy, Way

CUT_S = 12
"""Longer than the sessions of a worker and of the readers."""
DEAF_S = 45
"""Longer than a commit is asked for: its outcome is unknown then (R-71)."""
RECORDS = int(os.environ.get("UOW_DRILL_RECORDS", "100000"))


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker that may be killed."""
    with EmbeddedBroker(tmp_path / "kafka", heap="384m") as broker:
        yield broker


def check_goes_back_only(seen: Sequence[int], count: int) -> None:
    """Without repeats it is 1 to n, and a repeat is a contiguous block going back, never a jump forward."""
    furthest = 0
    for before, number in itertools.pairwise([0, *seen]):
        assert number <= furthest + 1, f"{number} after {before}: jumped over {furthest + 1}"
        assert number == before + 1 or number <= before, f"{number} after {before}"
        furthest = max(furthest, number)
    assert furthest == count


def run(chain: Chain, count: int, breaks: Sequence[Callable[[], None]]) -> None:
    """Sends, and breaks one thing after another, each after as many records."""
    due = {count * (place + 1) // (len(breaks) + 1): each for place, each in enumerate(breaks)}
    threads: list[threading.Thread] = []

    def disturb(number: int) -> None:
        if number in due:
            for thread in threads:  # two kills of one program at once would leave two of it
                thread.join(PATIENCE_S)
            threads.append(threading.Thread(target=due[number]))
            threads[-1].start()

    chain.send(count, disturb)
    for thread in threads:
        thread.join(PATIENCE_S)
    places = Topics(chain.broker.bootstrap)
    catches_up(lambda: max(chain.numbers(), default=0), count, chain.reader)
    check_goes_back_only(chain.numbers(), count)
    catches_up(lambda: places.end(chain.onward) // 2, count, chain.forwarder)  # a marker behind each record
    catches_up(lambda: len(places.read(chain.onward)), count, chain.forwarder)
    assert [chain.number(record) for record in places.read(chain.onward)] == [*range(1, count + 1)]
    chain.check_sent()


def catches_up(done: Callable[[], int], count: int, program: Process) -> None:
    """Waits for as long as a program gets on: with 100,000 records it is minutes behind."""
    while (before := done()) < count:
        wait_for(lambda before=before: done() > before, 2 * PATIENCE_S, lambda: program.output[-2000:])


def test_order_holds_over_kills_of_reader_and_forwarder(
    broker: Kafka, unique: str, tmp_path: Path, spawn: Callable[..., Process]
) -> None:
    """Each once at the forwarder's output; the reader goes back, never forward."""
    chain = Chain(broker, unique, tmp_path, spawn)
    run(chain, 600, [chain.kill_reader, chain.kill_forwarder] * 2)


@pytest.mark.drill
@pytest.mark.timeout(7200)
def test_order_holds_over_kills_of_brokers_too(
    own_broker: EmbeddedBroker, unique: str, tmp_path: Path, spawn: Callable[..., Process]
) -> None:
    """The same with 100,000 records, and ten kills of the broker, the reader and the forwarder."""
    chain = Chain(own_broker, unique, tmp_path, spawn)
    run(chain, RECORDS, [chain.kill_broker, chain.kill_reader, chain.kill_forwarder] * 10)


@pytest.fixture
def behind_proxies() -> Iterator[Cluster]:
    """Three brokers, each behind a proxy."""
    with ExitStack() as stack:
        yield stack.enter_context(Cluster([stack.enter_context(Proxy()) for _ in range(3)]))


def cut(proxy: Proxy, way: Way) -> None:
    """One broker hears, or is heard, no more for a while."""
    proxy.block(way)
    time.sleep(CUT_S)
    proxy.unblock()


def cut_commit(cluster: Cluster, client: str, fault: FrameFault) -> None:
    """The next end of a transaction of a client meets a fault, and no broker is heard any more until its outcome is unknown."""
    proxies = cluster.proxies.values()
    rules = [proxy.add(FrameRule(fault, {Api.END_TXN}, client, times=1)) for proxy in proxies]
    while not any(rule.hits for rule in rules):
        time.sleep(0.002)  # before the client asks again
    for proxy in proxies:
        proxy.block(Way.ANSWERS)
    time.sleep(DEAF_S)
    for proxy in proxies:
        proxy.clear()
        proxy.unblock()


def one_way_cuts(cluster: Cluster, topic: str) -> list[Callable[[], None]]:
    """Between a broker and all of its clients, longer than sessions last: of the topic's leader, then of the others."""
    leader = cluster.leader(topic, 0)
    numbers = [leader, *sorted(cluster.proxies.keys() - {leader})]
    return [partial(cut, cluster.proxies[number], way) for number in numbers for way in Way]


@pytest.mark.drill
@pytest.mark.timeout(900)
def test_order_holds_while_one_of_three_brokers_hears_or_is_heard_only(
    behind_proxies: Cluster, unique: str, tmp_path: Path, spawn: Callable[..., Process]
) -> None:
    chain = Chain(Given(behind_proxies.behind), unique, tmp_path, spawn)
    run(chain, 3_000, one_way_cuts(behind_proxies, chain.place.components))


@pytest.mark.drill
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("kind", "count"), [(TransactedChain, 3_000), (UnitChain, 1_000)], ids=["transacted", "units"])
def test_what_transactions_say_holds_while_one_of_three_brokers_hears_or_is_heard_only(
    behind_proxies: Cluster,
    unique: str,
    tmp_path: Path,
    spawn: Callable[..., Process],
    kind: type[TransactedChain],
    count: int,
) -> None:
    """Each is there, once and in order, or not, as the client said: at once, or asked by `commit()` or `recover` (R-30, R-62, R-71).

    Then two commits meet a fault, and no broker is heard: of one the request is lost, of the other one the answer. Both doubts are told.
    """
    chain = kind(Given(behind_proxies.behind), unique, tmp_path, spawn)
    cuts = one_way_cuts(behind_proxies, chain.place.components)
    cuts += [
        partial(cut_commit, behind_proxies, chain.client_id, fault)
        for fault in (FrameFault.HOLE, FrameFault.LOSE_ANSWER)
    ]
    run(chain, count, cuts)
    told = {each.fate for each in chain.attempts if errors.CommitOutcomeUnknownError.__name__ in each.doubts}
    assert told == {COMMITTED, ROLLED_BACK}


@pytest.mark.parametrize("seen", [[1, 3], [1, 2, 1, 3], [1, 2, 4, 3], [2], [1, 2]])
def test_the_check_sees_a_jump_and_an_end_that_is_missing(seen: list[int]) -> None:
    with pytest.raises(AssertionError):
        check_goes_back_only(seen, 3 if len(seen) < 4 else 4)


def test_the_check_lets_repeats_pass() -> None:
    check_goes_back_only([1, 2, 3, 2, 3, 4, 1, 2, 3, 4, 5], 5)
