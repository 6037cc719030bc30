"""Strict order from one producer over a worker to a reader and a forwarder, while brokers and programs are killed (S-01, S-11, S-28, S-31)."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from strict_places import StrictPlace

import uow
from tests.broker.client_places import Topics
from tests.broker.cluster import Cluster
from tests.drill import order_programs
from tests.kafka_broker import Given, Kafka
from tests.processes import PATIENCE_S, Process, wait_for
from uow import errors
from uow.embedded.broker import EmbeddedBroker
from uow.prove.frames import Proxy, Way

CUT_S = 12
"""Longer than the sessions of a worker and of the readers."""
RECORDS = int(os.environ.get("UOW_DRILL_RECORDS", "100000"))


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker that may be killed."""
    with EmbeddedBroker(tmp_path / "kafka", heap="384m") as broker:
        yield broker


class Chain:
    """A producer, a worker, a reader and a forwarder of one strict destination."""

    def __init__(self, broker: Kafka, name: str, folder: Path, spawn: Callable[..., Process]) -> None:
        self.broker, self.spawn, self.onward = broker, spawn, f"{name}-onward"
        self.place = StrictPlace(broker.bootstrap, name, folder)
        self.place.create(strict_producers="plain", handling_policy="pass_through")
        Topics(broker.bootstrap).make(self.onward, partitions=1)
        self.seen = folder / "seen"
        self.seen.touch()
        worker = spawn("uow", "worker", "-c", self.place.file, "--name", "0", env={"UOW_WORKER__WEB": "off"})
        worker.wait_output("worker 0 ready")
        self.reader, self.forwarder = self.program("read", str(self.seen)), self.program("forward", self.onward)

    def program(self, what: str, out: str) -> Process:
        return self.spawn(sys.executable, order_programs.__file__, what, self.broker.bootstrap, self.place.name, out)

    def send(self, count: int, progress: Callable[[int], None] = lambda number: None) -> None:
        """Numbers from 1, one after the other; a send that was not answered is waited for with the same component."""
        with uow.connect(self.broker.bootstrap) as connection:
            for number in range(1, count + 1):
                component = uow.Component(str(number))
                while True:
                    try:
                        connection.send(self.place.name, component)
                        break
                    except errors.ReconnectTimeoutError:
                        continue
                progress(number)

    def numbers(self) -> list[int]:
        return [int(line) for line in self.seen.read_text().splitlines() if line]

    def kill_reader(self) -> None:
        self.reader.kill()
        self.reader = self.program("read", str(self.seen))

    def kill_forwarder(self) -> None:
        self.forwarder.kill()
        self.forwarder = self.program("forward", self.onward)

    def kill_broker(self) -> None:
        assert isinstance(self.broker, EmbeddedBroker)
        self.broker.kill()
        self.broker.start()


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
    assert [int(record.value() or b"0") for record in places.read(chain.onward)] == [*range(1, count + 1)]


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


@pytest.mark.drill
@pytest.mark.timeout(900)
def test_order_holds_while_one_of_three_brokers_hears_or_is_heard_only(
    behind_proxies: Cluster, unique: str, tmp_path: Path, spawn: Callable[..., Process]
) -> None:
    """One-way cuts between a broker and all of its clients, longer than sessions last: of the leader of the input, then of the others."""
    cluster = behind_proxies
    chain = Chain(Given(cluster.behind), unique, tmp_path, spawn)
    leader = cluster.leader(chain.place.components, 0)
    others = sorted(cluster.proxies.keys() - {leader})

    def cut(number: int, way: Way) -> None:
        cluster.proxies[number].block(way)
        time.sleep(CUT_S)
        cluster.proxies[number].unblock()

    run(chain, 3_000, [partial(cut, number, way) for number in (leader, *others) for way in Way])


@pytest.mark.parametrize("seen", [[1, 3], [1, 2, 1, 3], [1, 2, 4, 3], [2], [1, 2]])
def test_the_check_sees_a_jump_and_an_end_that_is_missing(seen: list[int]) -> None:
    with pytest.raises(AssertionError):
        check_goes_back_only(seen, 3 if len(seen) < 4 else 4)


def test_the_check_lets_repeats_pass() -> None:
    check_goes_back_only([1, 2, 3, 2, 3, 4, 1, 2, 3, 4, 5], 5)
