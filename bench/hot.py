"""The engine alone, without a broker: CPU per component of its steps, and of a bare dictionary loop on the same records.

Records are small Python objects here, so the binding's share is missing on both sides. The least of several repetitions counts: it is the
figure that other programs on the machine disturb least. Run it alone with `python -m bench hot`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bench.drain import POLICY
from bench.workloads import PARTITIONS, WORKLOADS, Record
from uow.processor.core.fast_path import process_rows
from uow.processor.engine.context import TaskContext
from uow.processor.engine.outputs import WrittenOutputs
from uow.processor.engine.ports import Tp
from uow.processor.engine.task import PartitionTask
from uow.schemas.framing import single_object_header
from uow.topics.catalogue import DestinationTopics

POLL = 1_250
"""Records of one partition in a poll of 5,000 over four."""

NOW_MS = 1_700_000_000_000


class Fake:
    """A consumed record."""

    __slots__ = ("_headers", "_key", "_offset", "_timestamp", "_value")

    def __init__(self, record: Record, offset: int) -> None:
        self._offset, self._key, self._value, self._headers = offset, record.id, record.value, record.headers
        self._timestamp = (2, NOW_MS + offset // 50)

    def topic(self) -> str:
        return "hot.components"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes:
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return self._headers  # type: ignore[return-value]

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp


def new_task() -> PartitionTask:
    """A partition of units of work."""
    unit, outcome = single_object_header("Unit"), single_object_header("Outcome")
    context = TaskContext("hot", DestinationTopics("bench", "hot"), POLICY, 1, unit, outcome)
    return PartitionTask(Tp("hot.components", 0), context)


def _dictionary(records: Sequence[Fake], took: dict[str, float]) -> None:
    """The work of `bench.bare` on records, without Kafka."""
    began = time.thread_time()
    groups: dict[bytes, dict[int, Any]] = {}
    closed: set[bytes] = set()
    out = []
    for record in records:
        (_, group), (_, seq), *ends = record.headers()
        assert group is not None
        if group in closed:
            continue
        held = groups.get(group)
        if held is None:
            held = groups[group] = {}
        number = int(seq)  # type: ignore[arg-type]
        if number in held:
            continue
        held[number] = record.value()
        if ends and ends[0][1] == b"true":
            held[0] = number
        if held.get(0) == len(held) - 1:
            del groups[group]
            closed.add(group)
            size = held.pop(0)
            value = b"".join([held[number] for number in range(1, size + 1)])
            out.append((value, group, [("uow-id", group), ("uow-kind", b"unit"), ("uow-size", b"%d" % size)]))
    took["dictionary"] = time.thread_time() - began


def _whole(records: Sequence[Fake], took: dict[str, float]) -> None:
    task, began = new_task(), time.thread_time()
    for at in range(0, len(records), POLL):
        task.process(records[at : at + POLL])
    took["process"] = time.thread_time() - began


def _steps(records: Sequence[Fake], took: dict[str, float]) -> None:
    """The steps of `PartitionTask.process`, one by one."""
    task, clock = new_task(), time.thread_time
    partition = task.partition
    for step in ("columns", "fast path", "units", "rows and ledger"):
        took[step] = 0.0
    for at in range(0, len(records), POLL):
        begin = clock()
        (columns,) = partition.reader.read(records[at : at + POLL])
        took["columns"] += (done := clock()) - begin
        process_rows(partition, columns, partition.on_record)
        took["fast path"] += (begin := clock()) - done
        happened, written = partition.happened, WrittenOutputs()
        for effect in happened.effects:
            task.writer.write(effect, written)
        took["units"] += (done := clock()) - begin
        happened.effects = []
        partition.position = columns.offsets[-1] + 1
        task._plan()
        took["rows and ledger"] += clock() - done


LOOPS: tuple[Callable[[Sequence[Fake], dict[str, float]], None], ...] = (_dictionary, _whole, _steps)


def measure(records: int, repetitions: int, name: str = "w5") -> dict[str, float]:
    """CPU microseconds per component by step, the least of the repetitions; `ratio` is process to dictionary."""
    workload = WORKLOADS[name].of(records)
    workload = replace(workload, open_groups=max(1, workload.open_groups // PARTITIONS))
    fakes = [Fake(record, offset) for offset, record in enumerate(workload.records())]
    least: dict[str, float] = {}
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for _ in range(repetitions):
            for loop in LOOPS:
                took: dict[str, float] = {}
                loop(fakes, took)
                for step, seconds in took.items():
                    least[step] = min(least.get(step, float("inf")), seconds / len(fakes) * 1e6)
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()
    return least | {"ratio": least["process"] / least["dictionary"]}
