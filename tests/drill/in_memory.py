"""A load through the engine's tasks in memory: logs as a worker without a broker would have left them. For tests of the checker only."""

from __future__ import annotations

import random
from collections.abc import Iterator

from uow.processor.engine.context import TaskContext
from uow.processor.engine.ports import Output, Plan, Tp
from uow.processor.engine.settings_record import RecordedSettings
from uow.processor.engine.task import PartitionTask
from uow.prove.ground_truth import GroundTruth, Headers, SentRecord
from uow.prove.judge import murmur2
from uow.prove.load import Script
from uow.prove.seen_records import Logs, Rec
from uow.schemas.framing import single_object_header
from uow.topics.catalogue import DestinationTopics
from uow.topics.policies import (
    DestinationPolicy,
    ExpirationPolicy,
    HandlingPolicy,
    OutcomesPolicy,
)

APPLICATION, DESTINATION, PARTITIONS = "shop", "megazon", 3
STEP_MS = 3


class ConsumedRec:
    """A `Rec` with the methods of a consumed record."""

    def __init__(self, rec: Rec) -> None:
        self._rec = rec

    def topic(self) -> str:
        return f"{DESTINATION}.components"

    def partition(self) -> int:
        return self._rec.partition

    def offset(self) -> int:
        return self._rec.offset

    def key(self) -> bytes | None:
        return self._rec.key

    def value(self) -> bytes | None:
        return self._rec.value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return list(self._rec.headers) or None

    def timestamp(self) -> tuple[int, int]:
        return 2, self._rec.timestamp


class TaskWorker:
    """All partitions of one destination, read in polls of random size; `logs` is what is committed."""

    def __init__(self, seed: int, expiration_ms: int = -1) -> None:
        policy = DestinationPolicy(
            HandlingPolicy.SINGLE_MESSAGE_DELIVERY,
            incomplete_expiration_ms=expiration_ms,
            expiration_policy=ExpirationPolicy.REDIRECT,
            outcomes=OutcomesPolicy.ALL,
        )
        self.names = DestinationTopics(APPLICATION, DESTINATION)
        units, outcomes = single_object_header("Unit"), single_object_header("Outcome")
        recorded_settings = RecordedSettings.of(DESTINATION, policy)
        context = TaskContext(
            DESTINATION, self.names, policy, PARTITIONS, units, outcomes, recorded_settings=recorded_settings
        )
        self.random = random.Random(seed)
        self.logs = Logs(**{name: {n: [] for n in range(PARTITIONS)} for name in vars(Logs()) if name != "committed"})
        self.tasks = {n: PartitionTask(Tp(self.names.components, n), context) for n in range(PARTITIONS)}
        self.now = 1_000_000

    def send(self, sent: SentRecord) -> None:
        """The broker's part."""
        if sent.committed:
            number = sent.partition if sent.partition >= 0 else murmur2(sent.key or b"") % PARTITIONS
            self._append("components", number, sent.key, sent.value, sent.headers)
            self.now += STEP_MS

    def _append(self, log: str, number: int, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        records = getattr(self.logs, log)[number]
        offset = records[-1].offset + self.random.choice((1, 1, 1, 2)) if records else 0
        records.append(Rec(number, offset, key, value, headers, self.now))

    def poll(self) -> bool:
        """One poll of each partition; whether anything was read."""
        worked = False
        for number, task in self.tasks.items():
            waiting = [rec for rec in self.logs.components[number] if rec.offset >= task.position]
            if waiting:
                self._commit(task.process([ConsumedRec(rec) for rec in waiting[: self.random.randrange(1, 80)]]))
                worked = True
        return worked

    def tick(self) -> None:
        """Every partition is at its end, and time has passed."""
        self.now += 1_000_000
        for task in self.tasks.values():
            plan = task.tick(self.now)
            if plan is not None:
                self._commit(plan)

    def _commit(self, plan: Plan) -> None:
        number = plan.tp.partition
        for key, value in plan.changelog:
            self._append("changelog", number, key, value, ())
        if plan.ledger is not None:
            self._append("ledger", number, None, plan.ledger, ())
        for output in plan.outputs:
            self._put_out(output)
        self.logs.committed[number] = plan.next_offset

    def _put_out(self, output: Output) -> None:
        number = output.partition if output.partition >= 0 else murmur2(output.key or b"") % PARTITIONS
        log = output.topic.rpartition(".")[2]
        self._append(log, number, output.key, output.value, tuple(output.headers))


def drained(seed: int, units: int, expiration_ms: int = -1) -> tuple[Logs, GroundTruth]:
    """A load, sent and processed to its end."""
    script, worker = Script(seed, PARTITIONS, window=20), TaskWorker(seed, expiration_ms)
    sent = list(_records(script, units))
    for at, each in enumerate(sent):
        worker.send(each)
        if not at % 50:
            worker.poll()
    while worker.poll():
        pass
    worker.tick()
    return worker.logs, GroundTruth(sent, script.whole)


def _records(script: Script, units: int) -> Iterator[SentRecord]:
    for step in script.steps(units):
        yield from step
