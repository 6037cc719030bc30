"""One budget for a worker's whole process: whatever is sent, its memory stays within the limit and what the program takes besides (ER-19)."""

from __future__ import annotations

import itertools
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import psutil
import pytest
from confluent_kafka import Producer

from tests.broker.worker_places import Place, Worker
from tests.processes import wait_for
from topics.catalogue import DestinationTopics
from topics.paths import claim_key

LIMIT_BYTES = 64 * 1024 * 1024
BESIDES_BYTES = 1024 * 1024 * 1024
"""The program itself, queues of the Kafka client, and one poll in hand (docs/operations.md)."""
ANSWER_S = 10.0
"""Two seconds are promised on a machine of its own."""
SLOW = 120.0
pytestmark = pytest.mark.timeout(400)

Headers = list[tuple[str, bytes | None]]


class Watch:
    """Looks at a worker again and again: the most memory it had, and whether its page answered every time."""

    def __init__(self, worker: Worker) -> None:
        self._process = psutil.Process(worker.child.pid)
        line = worker.child.wait_output("pages on http://")
        self._metrics = line.partition("pages on ")[2].partition("/groups/")[0] + "/metrics"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.peak_bytes = 0
        self.text = ""
        self.failures: list[str] = []

    def _look(self) -> None:
        while not self._ended.wait(0.05):
            self.peak_bytes = max(self.peak_bytes, self._process.memory_info().rss)
            try:
                with urllib.request.urlopen(self._metrics, timeout=ANSWER_S) as answer:
                    self.text = answer.read().decode()
            except OSError as failure:
                self.failures.append(str(failure))

    def total(self, name: str) -> float:
        """Sum of a metric's rows, as of the last look."""
        return sum(float(line.rpartition(" ")[2]) for line in self.text.splitlines() if line.startswith(f"{name}{{"))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(2 * ANSWER_S)


@contextmanager
def sender(place: Place) -> Iterator[Callable[..., None]]:
    """Sends records with any headers."""
    producer = Producer(
        {
            "bootstrap.servers": place.bootstrap,
            "linger.ms": 20,
            "queue.buffering.max.kbytes": 200_000,
            "compression.type": "zstd",
        }
    )

    def send(topic: str, partition: int, key: bytes, value: bytes | None, headers: Headers) -> None:
        while True:
            try:
                producer.produce(topic, value, key, partition, headers=headers)  # type: ignore[arg-type]
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)

    yield send
    assert not producer.flush(60)


def component(name: str, seq: int, end: bool, user: Headers) -> Headers:
    return [("uow-id", name.encode()), ("uow-seq", b"%d" % seq), ("uow-end", b"true" if end else b"false"), *user]


def layouts(place: Place, send: Callable[..., None]) -> None:
    """24 MB of records of 6 kB, no two with the same header names: some refused for their number, some units of one."""
    for number in range(4_000):
        many = 1_200 if number % 2 else 450
        names: Headers = [(f"{number:x}{index:x}", b"") for index in range(many)]
        name = f"layout-{number}"
        send(place.components, number % 4, name.encode(), b"v", component(name, 1, True, names))


def tails(place: Place, send: Callable[..., None]) -> None:
    """Ends of open groups: 110 with 60,000 headers each, and 40 with as many bytes and as many headers as may be."""
    tiny: Headers = [("ab", b"cd")] * 60_000
    most: Headers = [("abc", b"x" * 600)] * 900
    for number in range(150):
        name = f"tail-{number}"
        send(
            place.components, number % 4, name.encode(), b"v", component(name, 9, True, tiny if number < 110 else most)
        )


def closed_ids(place: Place, send: Callable[..., None]) -> None:
    """Long ids that are remembered, with fingerprints."""
    for number in range(40_000):
        name = f"closed-{number}-" + "x" * 230
        send(place.components, number % 4, name.encode(), b"v", component(name, 1, True, []))


def claims(place: Place, send: Callable[..., None]) -> None:
    """Ways for ids that never come."""
    topic = DestinationTopics(f"A-{place.name}", place.name).path_map
    for number in range(100_000):
        send(
            topic,
            0,
            claim_key(b"claim-%d-%b" % (number, b"x" * 230), number.to_bytes(16, "big")),
            b"%d" % (number % 4),
            [],
        )


def test_no_flood_of_anything_takes_more_memory_than_the_limit_and_others_are_served_meanwhile(place: Place) -> None:
    """Four floods, each of which took gigabytes or grew for ever, and innocents on every partition behind each."""
    place.create(
        {"memory_limit_bytes": LIMIT_BYTES}, routing="path", fingerprints="always", closed_retention_ms=3_600_000
    )
    worker = place.worker()
    serial = itertools.count()
    seen: dict[str, Any] = {}
    with Watch(worker) as watch:
        for flood in (layouts, tails, closed_ids, claims):
            watch.peak_bytes = 0
            with sender(place) as send:
                flood(place, send)
            innocents = [f"innocent-{next(serial)}" for _ in range(12)]
            for partition in range(4):
                place.send(
                    [(name, seq, seq == 2) for name in innocents[partition::4] for seq in (1, 2)], partition=partition
                )
            wait_for(
                lambda: not set(map(str.encode, innocents)) - set(place.delivered()),  # noqa: B023
                SLOW,
                lambda: f"{flood.__name__}: {watch.text}",  # noqa: B023
            )
            seen[flood.__name__] = watch.peak_bytes >> 20
        print("peak MiB:", seen)
        assert max(seen.values()) << 20 < LIMIT_BYTES + BESIDES_BYTES, seen
        assert watch.failures == []
        wait_for(lambda: watch.total("uow_path_map_bytes") < LIMIT_BYTES / 4, SLOW, "ways that nobody uses end early")
        assert 0 < watch.total("uow_remembered_bytes") <= LIMIT_BYTES / 4
        assert watch.total("uow_closed_groups_forgotten_total") > 0
    assert "the oldest are forgotten before closed_retention_ms" in worker.child.output
    assert "the oldest that nobody uses end early" in worker.child.output
    refused = [dict(each.headers())["uow-error-case"] for each in place.read(f"{place.name}.rejected")]
    assert refused == [b"headers"] * (2_000 + 110)
    assert worker.child.terminate(90) == 0
