"""Workloads by name, from a seed: the same records in the same order on every machine.

Belongs here: the content of records, and a plain fast producer that preloads a topic. Does not belong here: measuring.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import confluent_kafka as ck

from uow.topics.headers import END, ID, SEQ
from uow.topics.partitioner import partition_for

PARTITIONS = 4
DUPLICATES_BACK = 20_000
"""A duplicate repeats one of this many records before it: some of their groups are still open, some are closed."""

ABSENT = "-absent"
"""Ends the name of a workload with the same records, but `uow-end` on the last component of a unit only, as a foreign producer may send them."""

QUIET = logging.getLogger("bench.librdkafka")
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False


class Record(NamedTuple):
    id: bytes
    seq: int
    end: bool
    value: bytes
    says_false: bool = True

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        """The headers of a component: three, or two where only the last component of a unit has an end mark."""
        head = [(ID, self.id), (SEQ, b"%d" % self.seq)]
        return [*head, (END, b"true" if self.end else b"false")] if self.end or self.says_false else head


@dataclass(frozen=True, slots=True)
class Workload:
    """A set of records to send.

    Attributes:
        name: Its name on the command line.
        components: Number of components per unit.
        size: Size of a component's value in bytes.
        open_groups: Number of groups open at a time; components arrive shuffled over them.
        units: Number of units, unless the command line gives another.
        duplicates: Share of records that repeat an earlier one, headers and value alike.
        missing: Number of components at the end of each group that are never sent, so that no group completes.
        says_false: `uow-end` is `false` on all components but the last; else absent there.
    """

    name: str
    components: int
    size: int
    open_groups: int
    units: int
    duplicates: float = 0.01
    missing: int = 0
    says_false: bool = True
    seed: int = 1

    def of(self, records: int) -> Workload:
        """The same with about this many records."""
        return replace(self, units=max(1, records // (self.components - self.missing)))

    def records(self) -> Iterator[Record]:
        """In the order they are sent."""
        rnd = random.Random(f"{self.name.removesuffix(ABSENT)}/{self.seed}")
        noise = rnd.randbytes(self.size + 4096)
        pool: list[tuple[bytes, list[int]]] = []
        recent: list[Record] = []
        begun = sent = 0
        whole = self.components
        while True:
            while len(pool) < self.open_groups and begun < self.units:
                numbers = list(range(1, whole + 1 - self.missing))
                rnd.shuffle(numbers)
                pool.append((str(uuid.UUID(int=rnd.getrandbits(128), version=4)).encode(), numbers))
                begun += 1
            if not pool:
                return
            at = int(rnd.random() * len(pool))
            group, numbers = pool[at]
            seq = numbers.pop()
            if not numbers:
                pool[at] = pool[-1]
                pool.pop()
            begin = int(rnd.random() * 4096)
            record = Record(group, seq, seq == whole, noise[begin : begin + self.size], self.says_false)
            yield record
            if self.duplicates:
                if len(recent) < DUPLICATES_BACK:
                    recent.append(record)
                else:
                    recent[sent % DUPLICATES_BACK] = record
                sent += 1
                if rnd.random() < self.duplicates:
                    yield recent[int(rnd.random() * len(recent))]


WORKLOADS = {
    each.name: each
    for each in (
        Workload("w5", 5, 200, 10_000, 100_000),
        Workload("w5" + ABSENT, 5, 200, 10_000, 100_000, says_false=False),
        Workload("w100", 100, 1_000, 500, 1_500),
        Workload("w10k", 10_000, 200, 8, 40),
        Workload("w1", 1, 200, 1, 400_000),
        Workload("held", 6, 200, 10_000, 20_000, duplicates=0.0, missing=1),
    )
}
"""w5 is the one that is compared, w5-absent the same without `uow-end: false`. held leaves 100,000 components in 20,000 open groups."""


def produce(bootstrap: str, topic: str, workload: Workload) -> int:
    """Preloads a topic; returns the number of records."""
    records = workload.records()
    return send(bootstrap, ((topic, r.value, r.id, partition_for(r.id, PARTITIONS), r.headers) for r in records))


Sent = tuple[str, bytes, bytes, int, list[tuple[str, bytes]]]
"""Topic, value, key, partition and headers of a record."""


def send(bootstrap: str, records: Iterable[Sent]) -> int:
    """Sends records as fast as one producer can; returns their number."""
    producer: Any = ck.Producer(
        {
            "bootstrap.servers": bootstrap,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 524_288,
            "linger.ms": 20,
            "batch.size": 500_000,
            "enable.idempotence": True,
        },
        logger=QUIET,
    )
    count = 0
    for topic, value, key, partition, headers in records:
        while True:
            try:
                producer.produce(topic, value, key, partition, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
        count += 1
    if left := producer.flush(120):
        raise RuntimeError(f"{left} records of the workload could not be sent")
    return count
