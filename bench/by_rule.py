"""Groups by rule in the engine alone, without a broker: `count(10)` beside W5, and open groups with deadlines beside as many without.

As in `bench.hot` records are small Python objects, and the least of several repetitions counts. Run it alone with `python -m bench count10 ages`.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from bench.drain import POLICY
from bench.hot import NOW_MS, POLL, Fake
from bench.hot import new_task as task_of_units
from bench.workloads import PARTITIONS, WORKLOADS
from uow.processor.engine.context import TaskContext
from uow.processor.engine.ports import Tp
from uow.processor.engine.task import PartitionTask
from uow.schemas.framing import single_object_header
from uow.topics.catalogue import DestinationTopics
from uow.topics.grouping import GroupPolicy, policy_of
from uow.topics.rules import ResolvedRow, Row, Rule

COUNT = 10
AGES_MS = range(60_000, 160_000, 1_000)


class Rows:
    """Rows of a rule by name (`RuleTable`)."""

    def __init__(self, rows: Mapping[str, Row]) -> None:
        rule = Rule("low-stock", 1, "hot")
        self._policies = {name: policy_of(ResolvedRow(rule, row), POLICY) for name, row in rows.items()}

    def policy(self, name: str) -> GroupPolicy | None:
        return self._policies.get(name)

    kept = policy

    def catch_up(self, meanwhile: Any) -> None:
        """Every row is known."""


class Routed(NamedTuple):
    """A component as a router writes it."""

    id: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


def routed(key: bytes, name: bytes, row: bytes, offset: int) -> Fake:
    """The component at an offset."""
    headers = [
        ("uow-destination", name),
        ("uow-id", key),
        ("uow-rule", row),
        ("uow-input", b"stock.events/0/%d" % offset),
        ("uow-arrived-at", b"%d" % (NOW_MS + offset // 50)),
    ]
    return Fake(Routed(key, b"v" * 200, headers), offset)  # type: ignore[arg-type]


def task_of_rows(rows: Mapping[str, Row]) -> PartitionTask:
    """A partition with these rows."""
    framing = single_object_header("Unit"), single_object_header("Outcome")
    context = TaskContext("hot", DestinationTopics("bench", "hot"), POLICY, 1, *framing, rules=Rows(rows))
    return PartitionTask(Tp("hot.components", 0), context)


def count_ten(records: int, repetitions: int) -> dict[str, float]:
    """CPU microseconds per component of W5 (`bare_us`) and of `count(10)` with an age (`us`), as many groups open at a time, and the ratio."""
    w5 = WORKLOADS["w5"].of(records)
    w5 = replace(w5, open_groups=w5.open_groups // PARTITIONS)
    units = [Fake(record, offset) for offset, record in enumerate(w5.records())]
    rnd, made = random.Random(1), 0
    open_names: list[tuple[bytes, list[int]]] = []
    ruled = []
    for offset in range(records):  # each name takes ten components, then another one takes its place
        while len(open_names) < w5.open_groups:
            open_names.append((b"supplier-%d" % made, [COUNT]))
            made += 1
        at = rnd.randrange(len(open_names))
        name, left = open_names[at]
        ruled.append(routed(b"low-stock/" + name, name, b"low-stock/*@1", offset))
        left[0] -= 1
        if not left[0]:
            open_names[at] = open_names[-1]
            open_names.pop()
    rows = {"low-stock/*@1": Row("low-stock", "*", 1, complete_count=COUNT, age_ms=60_000)}
    bare, us = _least([(units, task_of_units), (ruled, lambda: task_of_rows(rows))], repetitions)
    return {"bare_us": bare, "us": us, "ratio": us / bare}


def ages(groups: int, repetitions: int) -> dict[str, float]:
    """The same of components of so many open groups, two each, without a limit of time (`bare_us`) and with a hundred different ages (`us`)."""
    kinds = {}
    for name in ("never", "aged"):
        rows = {
            f"low-stock/{at}@1": Row("low-stock", str(at), 1, complete_count=3, age_ms=at if name == "aged" else None)
            for at in AGES_MS
        }
        kinds[name] = rows
    records = []
    for offset in range(2 * groups):
        number = offset % groups
        at = AGES_MS[number % len(AGES_MS)]
        records.append(routed(b"low-stock/%d" % number, b"%d" % at, b"low-stock/%d@1" % at, offset))
    bare, us = _least(
        [(records, lambda: task_of_rows(kinds["never"])), (records, lambda: task_of_rows(kinds["aged"]))], repetitions
    )
    return {"bare_us": bare, "us": us, "ratio": us / bare}


def _least(sides: Sequence[tuple[Sequence[Fake], Callable[[], PartitionTask]]], repetitions: int) -> list[float]:
    """CPU microseconds per record of each side, by turns."""
    least = [float("inf")] * len(sides)
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for _ in range(repetitions):
            for side, (records, make) in enumerate(sides):
                task, began = make(), time.thread_time()
                for at in range(0, len(records), POLL):
                    task.process(records[at : at + POLL])
                    task.tick(records[min(at + POLL, len(records)) - 1].timestamp()[1])
                least[side] = min(least[side], (time.thread_time() - began) / len(records) * 1e6)
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()
    return least
