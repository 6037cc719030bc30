"""A whole worker in one process, without a broker: the Faust app, its agents, tables and the driver's thread, on ports in memory.

Belongs here: starting and waiting. Tests say what happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

from tests.shell.memory_kafka import (
    Faults,
    MemoryKafka,
    MemoryLogReader,
    MemorySink,
    MemorySource,
)
from uow.processor.engine.batch import Task
from uow.processor.engine.driver_ports import Ports, Wanted
from uow.processor.engine.ports import (
    Blocked,
    Headers,
    Plan,
    RawRecord,
    Tp,
)
from uow.processor.engine.restore import restore
from uow.processor.engine.task import PartitionTask
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.processor.shell.app import UowApp, create_app, task_contexts
from uow.processor.shell.monitor import WorkerStatus
from uow.processor.shell.page_server import WebAddress
from uow.processor.shell.settings_check import checked_contexts
from uow.schemas import codec
from uow.schemas.records import SETTINGS_KEY, Answer
from uow.topics.commands import Command, Verb, command_headers
from uow.topics.policies import DestinationPolicy, HandlingPolicy

PARTITIONS = 2
UNITS = DestinationPolicy(handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY)
CHANGELOG = "A-D-groups-changelog"
DEADLINE_S = 30.0


class Poisonable:
    """The real task, which raises at a record's own step where its value is `boom`, and blocks at `block`: our bug, planted."""

    def __init__(self, task: PartitionTask) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def on_records(self, records: Sequence[RawRecord]) -> None:
        self._look(records)
        self._task.on_records(records)

    def process(self, records: Sequence[RawRecord], commands: Sequence[RawRecord] = ()) -> Plan:
        self._look(records)
        return self._task.process(records, commands)

    def _look(self, records: Sequence[RawRecord]) -> None:
        for record in records:
            if record.value() == b"boom":
                self._task.partition.in_hand = record.offset()
                raise LookupError(f"poison at {record.offset()}")
            if record.value() == b"block":
                raise Blocked(f"cannot go on at {record.offset()}")


def settings(worker_name: str = "0", policy: DestinationPolicy = UNITS, **changes: Any) -> WorkerSettings:
    """Settings of a worker for destination `D` of application `A`. Nothing is set aside unless a test says so: a planted bug blocks."""
    changes = {"set_aside_per_minute": 0} | changes
    return WorkerSettings("A", "nowhere:9092", worker_name, destinations={"D": policy}, web="off", **changes)


def c(seq: int, *, id: str = "u", end: bool = False, value: bytes | None = None, **more: str) -> Headers:
    """Headers of a component."""
    headers: Headers = [("uow-id", id.encode()), ("uow-seq", str(seq).encode())]
    if end:
        headers.append(("uow-end", b"true"))
    return headers + [(f"uow-{name.replace('_', '-')}", text.encode()) for name, text in more.items()]


def send(kafka: MemoryKafka, id: str, *components: tuple[int, bool], value: bytes = b"x") -> None:
    """Appends components `(number, end)` of one group to `D.components`."""
    for seq, end in components:
        kafka.append("D.components", id.encode(), value, c(seq, id=id, end=end))


def tell(kafka: MemoryKafka, verb: Verb, id: str) -> None:
    """Appends a command to `D.commands`."""
    kafka.append("D.commands", id.encode(), None, command_headers(Command(b"c-" + id.encode(), verb, id.encode(), "w")))


def answers(kafka: MemoryKafka) -> list[Answer]:
    """What `D.outcomes` has of answers."""
    records = [record for record in kafka.topic("D.outcomes") if ("uow-kind", b"answer") in (record.headers() or [])]
    return [codec.decode_as(Answer, record.value() or b"") for record in records]


def send_to(kafka: MemoryKafka, partition: int, id: str, seq: int, end: bool = False, value: bytes = b"x") -> None:
    """Appends one component to the partition that its id belongs to; the id is made to fit."""
    kafka.append("D.components", id.encode(), value, c(seq, id=id, end=end), partition=partition)


def new_ports(
    kafka: MemoryKafka, configured: WorkerSettings, sink: MemorySink, rules_bytes: int = 0
) -> Callable[[WorkerStatus], Ports]:
    """Ports in memory for one worker, around its sink; it saw what was recorded when it was alone, and no other worker."""
    contexts = task_contexts(configured, {"D.components": kafka.partitions})
    reader = MemoryLogReader(kafka)
    inputs = [Tp("D.components", number) for number in range(kafka.partitions)]
    contexts = checked_contexts(contexts, reader, lambda: reader.committed(inputs), lambda: 0, [None])

    def restored(tps: Sequence[Tp], wanted: Wanted) -> Mapping[Tp, Task]:
        tasks = restore(MemoryLogReader(kafka), contexts, tps, wanted)
        return {tp: Poisonable(task) for tp, task in tasks.items()}

    def make(status: WorkerStatus) -> Ports:
        return Ports(
            source=MemorySource(kafka, configured.worker_name),
            sink=sink,
            clock=kafka.clock,
            restore=restored,
            rules_bytes=lambda: rules_bytes,
            targets=contexts["D.components"].targets,
            faults=contexts["D.components"].faults,
        )

    return make


@asynccontextmanager
async def running(
    kafka: MemoryKafka,
    configured: WorkerSettings | None = None,
    faults: Faults | None = None,
    web: WebAddress | None = None,
    sink: MemorySink | None = None,
    rules_bytes: int = 0,
) -> AsyncIterator[UowApp]:
    """The app, started and ready; stopped on leaving."""
    configured = configured or settings()
    sink = sink or MemorySink(kafka, configured.transactional_id, faults)
    app = create_app(configured, new_ports(kafka, configured, sink, rules_bytes), web)
    app.finalize()
    app.worker_init()
    app.worker_init_post_autodiscover()
    await app.start()
    try:
        yield app
    finally:
        await app.stop()


def rows(kafka: MemoryKafka) -> list[bytes]:
    """Keys of the live changelog rows, but that of the settings."""
    return [key or b"" for _, key in kafka.compact(CHANGELOG) if key != SETTINGS_KEY]


async def until(condition: Callable[[], Any], what: str = "") -> None:
    """Waits for the condition; fails after a deadline."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():  # noqa: ASYNC110 - the condition is a view of another thread's work
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"not reached: {what or condition}") from None


def in_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Runs an async test in a loop of its own."""

    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run
