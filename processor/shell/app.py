"""The Faust app: one agent and one table per destination, on our transport; and the worker process around it.

Belongs here: Faust's settings, how the parts are put together, what a worker checks before it starts. Does not belong here: the poll loop
(`processor.engine.driver`), what Faust asks of a transport (`processor.shell.transport`), signals and exit (`processor.shell.worker`).

`create_app(settings, new_ports)` serves tests too: give it ports in memory and call `app.start()`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import closing
from time import monotonic
from types import MappingProxyType
from typing import Any

import faust
from mode import CrashingSupervisor

from processor.engine.batch import Batch, Task
from processor.engine.context import INPUT_LIMIT_BYTES, TaskContext
from processor.engine.driver import Driver, Host, Ports, Wanted, remembered_share
from processor.engine.ports import Meanwhile, Tp
from processor.engine.restore import restore
from processor.engine.ways import AllWays, Ways
from processor.engine.young import ReplayLimits
from processor.kafka.clients import Clients
from processor.kafka.clock import WorkerClock, wall_ms
from processor.kafka.partitioner import fastest_partition_for
from processor.kafka.paths import KafkaPathLog
from processor.kafka.reader import KafkaLogReader, Readiness
from processor.kafka.settings import WorkerSettings
from processor.kafka.sink import KafkaSink
from processor.kafka.source import KafkaSource
from processor.shell.monitor import WorkerStatus
from processor.shell.pages import WebAddress, add_pages
from processor.shell.table import GroupTable, Tables
from processor.shell.transport import BatchSchema
from schemas.registry import framer_for
from topics.catalogue import DestinationTopics
from topics.headers import Reading
from topics.paths import PARTITION, PathMap

log = logging.getLogger("uow.worker")

TURN_S = 0.1
"""How long a batch works before the pages have their turn, and a slice of records longer at most."""

NewPorts = Callable[[WorkerStatus], Ports]
"""Makes the driver's ports; the status is for what they count."""

IDLE_S = 1.0
COLLECT_EVERY_S = 60.0


class UowApp(faust.App):
    """A Faust app whose records come from the driver.

    Attributes:
        worker_settings: Of this worker.
        status: What pages and metrics show.
        new_ports: Makes the ports.
    """

    worker_settings: WorkerSettings
    status: WorkerStatus
    new_ports: NewPorts

    def new_driver(self, host: Host) -> Driver:
        """The poll loop for this app, not started yet."""
        settings, stop = self.worker_settings, threading.Event()
        ports = self.new_ports(self.status)
        return Driver(
            ports,
            host,
            {
                topic: DestinationTopics(settings.application_id, name).commands
                for topic, name in self.status.destinations.items()
            },
            settings.poll_records,
            settings.memory_limit_bytes,
            stop,
        )

    async def on_first_start(self) -> None:
        """No folders: the state lives in Kafka. The collector would cost 1 to 10 µs a record with many open groups: frozen and off."""
        gc.collect()
        gc.freeze()
        gc.disable()

    async def on_started_init_extra_tasks(self) -> None:
        """Faust's own, and the collector's turn."""
        await super().on_started_init_extra_tasks()
        self.add_future(self._collect_when_idle())

    async def _collect_when_idle(self) -> None:
        """What cycles leave behind is collected when nothing has moved for a second, at most once a minute."""
        loop = asyncio.get_running_loop()
        collected_at = loop.time()
        while not self.should_stop:
            await self.sleep(IDLE_S)
            now = loop.time()
            if (
                now - collected_at >= COLLECT_EVERY_S
                and now - self.status.busy_at >= IDLE_S
                and collected_at < self.status.busy_at
            ):
                gc.collect()
                collected_at = loop.time()

    async def on_stop(self) -> None:
        """Drains before Faust suspends its flow and empties the agents' queues."""
        drain = getattr(self.consumer, "drain", None)
        if drain is not None:
            await drain()
        await super().on_stop()
        gc.enable()
        gc.unfreeze()


def create_app(settings: WorkerSettings, new_ports: NewPorts, web: WebAddress | None = None) -> UowApp:
    """The app, not started.

    Args:
        settings: Of the worker.
        new_ports: Makes the driver's ports.
        web: Where the pages listen; None: no pages.
    """
    topics = {name: DestinationTopics(settings.application_id, name) for name in settings.destinations}
    app = UowApp(
        settings.application_id,
        broker=f"uow://{settings.bootstrap_servers.partition(',')[0]}",
        Table=GroupTable,
        TableManager=Tables,
        agent_supervisor=CrashingSupervisor,
        store="memory://",
        topic_allow_declare=False,
        topic_disable_leader=True,
        table_standby_replicas=0,
        stream_wait_empty=False,
        web_enabled=web is not None,
        web_bind=web.host if web else "127.0.0.1",
        web_host=web.host if web else "127.0.0.1",
        web_port=web.port if web else 6066,
        web_tables_enabled=False,
        web_router_enabled=False,
        web_stats_enabled=False,
    )
    app.worker_settings, app.new_ports = settings, new_ports
    app.status = WorkerStatus(settings.slot, {each.components: name for name, each in topics.items()})
    for name, each in topics.items():
        table = app.Table(
            name,
            key_type=bytes,
            value_type=bytes,
            changelog_topic=app.topic(each.groups_changelog, acks=False),
        )
        channel = app.topic(each.components, schema=BatchSchema(), acks=False)
        app.agent(channel, name=each.components)(_agent(table))
    add_pages(app, app.status, wall_ms)
    return app


def _agent(table: Any) -> Any:
    async def assemble(batches: AsyncIterator[Batch]) -> None:
        """Lets the partition's task work; an exception inside blocks the partition (ER-03)."""
        async for batch in batches:
            with batch:
                turn_ends = monotonic() + TURN_S
                for _ in batch.steps(table.tasks[batch.tp.partition]):
                    if monotonic() > turn_ends:
                        await asyncio.sleep(0)
                        turn_ends = monotonic() + TURN_S

    return assemble


def task_contexts(
    settings: WorkerSettings, partitions: Mapping[str, int], limits: Mapping[str, int] = MappingProxyType({})
) -> dict[str, TaskContext]:
    """What the tasks of each destination share, by name of `D.components`.

    Args:
        settings: Of the worker.
        partitions: Count by topic name.
        limits: Largest record by topic name, for `D.components`.
    """
    framer, partition_for = framer_for(settings.registry_url), fastest_partition_for()
    paths_bytes = (
        settings.memory_limit_bytes // 4 // max(1, sum(each.has_paths for each in settings.destinations.values()))
    )
    contexts = {}
    for name, policy in settings.destinations.items():
        topics = DestinationTopics(settings.application_id, name)
        contexts[topics.components] = TaskContext(
            name,
            topics,
            policy,
            partitions[topics.components],
            framer.header("Unit", topics.units),
            framer.header("Outcome", topics.outcomes),
            framer.header("Answer", topics.outcomes),
            input_limit_bytes=limits.get(topics.components, INPUT_LIMIT_BYTES),
            partition_for=partition_for,
            replay=ReplayLimits(settings.replay_limit_records, settings.replay_limit_bytes, settings.replay_limit_ms),
            paths=PathMap(partitions[topics.components], paths_bytes) if policy.has_paths else None,
            remembered_bytes=remembered_share(settings.memory_limit_bytes),
        )
    return contexts


def kafka_ports(
    settings: WorkerSettings,
    contexts: Mapping[str, TaskContext],
    on_step: Callable[[str], None] = lambda step: None,
    wall: Callable[[], int] = wall_ms,
) -> NewPorts:
    """The ports on librdkafka; `on_step` and `wall` are drills' way in."""

    def new_ports(status: WorkerStatus) -> Ports:
        def on_replaced(cause: str) -> None:
            status.replaced += 1

        clients, clock = Clients(settings), WorkerClock(wall, lead_ms=settings.clock_lead_ms)
        ways = _ways(clients, contexts)
        status.paths = {each.destination: each.paths for each in contexts.values() if each.paths is not None}

        def restored(tps: Sequence[Tp], wanted: Wanted) -> Mapping[Tp, Task]:
            with closing(KafkaLogReader(clients, wanted, settings.restore_stall_ms)) as reader:
                return restore(reader, contexts, tps, wanted)

        source = KafkaSource(clients, settings, clock)
        status.read_stable_lags = lambda: source.stable_lags
        status.read_complaint = lambda: source.complaint

        def logs(tp: Tp) -> tuple[Sequence[Tp], int]:
            topics = contexts[tp.topic].topics
            own = (topics.groups_changelog, topics.closed_changelog)
            return [Tp(topic, tp.partition) for topic in (*own, topics.components, topics.commands)], len(own)

        return Ports(
            source=source,
            sink=KafkaSink(clients, settings, on_step, on_replaced),
            clock=clock,
            restore=ways.restoring(restored),
            ways=ways or None,
            ready=Readiness(clients, logs).ready,
        )

    return new_ports


def _ways(clients: Clients, contexts: Mapping[str, TaskContext]) -> AllWays:
    """The ways of the destinations under path routing."""
    ways = {}
    for components, context in contexts.items():
        if context.paths is not None:
            tp = Tp(context.topics.path_map, PARTITION)

            def end_offset(meanwhile: Meanwhile, tp: Tp = tp) -> int:
                with closing(KafkaLogReader(clients, meanwhile)) as reader:
                    return reader.bounds([tp])[tp][1]

            path_log = KafkaPathLog(
                context.topics, context.paths, clients.path_consumer, clients.path_producer, end_offset
            )
            ways[components] = Ways(context.paths, path_log, Reading.of(context.policy))
    return AllWays(ways)
