"""The Faust app: one agent and one table per destination, on our transport; and the worker process around it.

Belongs here: Faust's settings, and how the parts are put together. Does not belong here: the poll loop
(`uow.processor.engine.driver`), what Faust asks of a transport (`uow.processor.shell.transport`), signals and exit (`uow.processor.shell.worker`).

`create_app(settings, new_ports)` serves tests too: give it ports in memory and call `app.start()`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import closing
from time import monotonic, thread_time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import faust
from mode import CrashingSupervisor
from mode.utils.locks import Event

from uow.processor.engine.batch import Batch, Task
from uow.processor.engine.context import TaskContext
from uow.processor.engine.driver import Driver
from uow.processor.engine.driver_ports import Ports, TaskRunner, Upstream, Wanted
from uow.processor.engine.group_faults import GroupFaults
from uow.processor.engine.hidden_headers import HiddenHeaders
from uow.processor.engine.memory_limit import RestoreRoom, remembered_limit
from uow.processor.engine.placement import Placement, Placements
from uow.processor.engine.poll_loop import Closable
from uow.processor.engine.ports import Meanwhile, Tp
from uow.processor.engine.replayable import ReplayLimits
from uow.processor.engine.restore import restore
from uow.processor.engine.set_aside import SetAsideLimit
from uow.processor.engine.target_topics import no_targets
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.contents import KafkaContents
from uow.processor.kafka.fast_partitioner import fastest_partition_for
from uow.processor.kafka.leader_epochs import LeaderEpochs
from uow.processor.kafka.log_reader import KafkaLogReader, Readiness
from uow.processor.kafka.path_log import KafkaPathLog
from uow.processor.kafka.record_limits import limit_reader
from uow.processor.kafka.sink import KafkaSink
from uow.processor.kafka.source import KafkaSource
from uow.processor.kafka.topic_ids import TopicIds
from uow.processor.kafka.worker_clock import WorkerClock, wall_ms
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.processor.shell.monitor import WorkerStatus
from uow.processor.shell.page_server import PageServer, WebAddress
from uow.processor.shell.pages import add_pages, only_known_hosts
from uow.processor.shell.table import GroupTable, WorkerTables
from uow.processor.shell.transport import BatchSchema
from uow.schemas.registry import framer_for
from uow.topics.catalogue import DestinationTopics
from uow.topics.headers import Reading
from uow.topics.path_map import PARTITION, PathMap
from uow.topics.policies import FieldSource
from uow.topics.record_size import INPUT_LIMIT_BYTES

if TYPE_CHECKING:  # the extra `rules` need not be installed
    from uow.processor.kafka.router import Router

log = logging.getLogger("uow.worker")

TURN_S = 0.1
"""Longest time that a batch works before the web pages have their turn; a slice of records may come on top."""

NewPorts = Callable[[WorkerStatus], Ports]
"""Makes the driver's ports; they keep counts in the status."""
NewRouter = Callable[[WorkerStatus, Callable[[], None], Callable[[BaseException | None], None]], "Router"]
"""Makes the router; it shows itself in the status, says when it is ready, and how it ended."""

IDLE_S = 1.0
COLLECT_EVERY_S = 60.0


class UowApp(faust.App):
    """A Faust app whose records come from the driver.

    Attributes:
        worker_settings: Settings of this worker.
        status: Shown by pages and metrics.
        new_ports: Makes the ports.
        make_router: Makes the router; None: this worker routes nothing.
        router_ready: It has its partitions, or there is none.
        restored: Every partition that was assigned has been restored once, or is blocked.
    """

    worker_settings: WorkerSettings
    status: WorkerStatus
    new_ports: NewPorts
    make_router: NewRouter | None
    router_ready: Event
    restored: Event
    web: PageServer

    def _new_web(self) -> PageServer:
        return PageServer(self)

    def new_driver(self, runner: TaskRunner) -> Driver:
        """The poll loop for this app, not started yet."""
        settings, stop = self.worker_settings, threading.Event()
        ports = self.new_ports(self.status)
        self.status.monotonic_ms = ports.clock.monotonic_ms
        return Driver(
            ports,
            runner,
            {
                topic: DestinationTopics(settings.application_id, name).commands
                for topic, name in self.status.destinations.items()
            },
            settings.poll_records,
            settings.memory_limit_bytes,
            stop,
            SetAsideLimit(settings.set_aside_per_minute),
        )

    def new_router(
        self, on_ready: Callable[[], None], on_finished: Callable[[BaseException | None], None]
    ) -> Router | None:
        """The router's thread for this app, not started yet."""
        return None if self.make_router is None else self.make_router(self.status, on_ready, on_finished)

    async def on_first_start(self) -> None:
        """No folders: the state lives in Kafka. The collector would cost 1 to 10 µs a record with many open groups: frozen and off."""
        gc.collect()
        gc.freeze()
        gc.disable()

    async def on_started_init_extra_tasks(self) -> None:
        """Faust's own tasks, and the garbage collector's."""
        await super().on_started_init_extra_tasks()
        self.add_future(self._collect_when_idle())

    async def _collect_when_idle(self) -> None:
        """Collects garbage cycles when nothing has happened for a second, at most once a minute."""
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


def create_app(
    settings: WorkerSettings,
    new_ports: NewPorts,
    web: WebAddress | None = None,
    new_router: NewRouter | None = None,
) -> UowApp:
    """The app, not started.

    Args:
        settings: Settings of the worker.
        new_ports: Makes the driver's ports.
        web: Address of the pages; None: no pages.
        new_router: Makes the router; None: the worker routes nothing.
    """
    topics = {name: DestinationTopics(settings.application_id, name) for name in settings.destinations}
    app = UowApp(
        settings.application_id,
        broker=f"uow://{settings.bootstrap_servers.partition(',')[0]}",
        Table=GroupTable,
        TableManager=WorkerTables,
        agent_supervisor=CrashingSupervisor,
        store="memory://",
        topic_allow_declare=False,
        topic_disable_leader=True,
        table_standby_replicas=0,
        stream_wait_empty=False,
        web_enabled=web is not None,
        web_application_options={"middlewares": [only_known_hosts(settings.web_names)]},
        web_tables_enabled=False,
        web_router_enabled=False,
        web_stats_enabled=False,
    )
    app.worker_settings, app.new_ports = settings, new_ports
    if web is not None:
        app.web.address = web
    overrides = Counter(each.destination for each in settings.overrides)
    destinations = {each.components: name for name, each in topics.items()}
    app.status = WorkerStatus(settings.worker_name, destinations, overrides=overrides)
    app.make_router, app.router_ready, app.restored = new_router, Event(), Event()
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
                turn_ends, began = monotonic() + TURN_S, thread_time()
                for _ in batch.steps(table.tasks[batch.tp.partition]):
                    if monotonic() > turn_ends:
                        batch.seconds += thread_time() - began
                        await asyncio.sleep(0)
                        turn_ends, began = monotonic() + TURN_S, thread_time()
                batch.seconds += thread_time() - began

    return assemble


def task_contexts(
    settings: WorkerSettings, partitions: Mapping[str, int], limits: Mapping[str, int] = MappingProxyType({})
) -> dict[str, TaskContext]:
    """The context of each destination's tasks, by name of `D.components`.

    Args:
        settings: Settings of the worker.
        partitions: Count by topic name.
        limits: Largest record by topic name, for `D.components`.
    """
    framer, partition_for = framer_for(settings.registry_url), fastest_partition_for()
    paths_bytes = (
        settings.memory_limit_bytes // 4 // max(1, sum(each.has_paths for each in settings.destinations.values()))
    )
    contexts, targets, faults = {}, no_targets(), GroupFaults()
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
            framer.header("DeadlineWarning", topics.outcomes),
            input_limit_bytes=limits.get(topics.components, INPUT_LIMIT_BYTES),
            partition_for=partition_for,
            replay=ReplayLimits(settings.replay_limit_records, settings.replay_limit_bytes, settings.replay_limit_ms),
            paths=PathMap(partitions[topics.components], paths_bytes) if policy.has_paths else None,
            remembered_bytes=remembered_limit(settings.memory_limit_bytes),
            targets=targets,
            faults=faults,
        )
    return contexts


def kafka_ports(
    settings: WorkerSettings,
    contexts: Mapping[str, TaskContext],
    on_step: Callable[[str], None] = lambda step: None,
    wall: Callable[[], int] = wall_ms,
    upstream: Upstream | None = None,
    rules_bytes: Callable[[], int] = lambda: 0,
    others: Sequence[Closable] = (),
) -> NewPorts:
    """The ports on librdkafka; drills pass `on_step` and `wall`, workers that have routers `upstream`, `rules_bytes` and what is to be closed with them."""

    def new_ports(status: WorkerStatus) -> Ports:
        def on_replaced(cause: str) -> None:
            status.replaced += 1

        clients, clock = Clients(settings), WorkerClock(wall, lead_ms=settings.clock_lead_ms)
        placements = _placements(clients, contexts)
        status.paths = {each.destination: each.paths for each in contexts.values() if each.paths is not None}

        room, epochs = RestoreRoom(settings.memory_limit_bytes), LeaderEpochs()

        def restored(tps: Sequence[Tp], wanted: Wanted) -> Mapping[Tp, Task]:
            with closing(KafkaLogReader(clients, wanted, settings.restore_stall_ms, epochs)) as reader:
                return restore(reader, contexts, tps, wanted, room)

        targets = next(iter(contexts.values())).targets
        targets.read_limit = limit_reader(clients)
        source = KafkaSource(clients, settings, clock, epochs, TopicIds(clients.admin))
        contents = KafkaContents(clients, settings.transaction_timeout_ms / 2000)
        by_value = [topic for topic, each in contexts.items() if each.policy.field_source is FieldSource.VALUE]
        status.rules_bytes = rules_bytes
        status.read_stable_lags = lambda: source.stable_lags
        status.read_held_back = lambda: source.held_back
        status.read_complaint = lambda: source.complaint
        if upstream is not None:
            status.read_stalled = lambda: upstream.stalled

        def logs(tp: Tp) -> tuple[Sequence[Tp], int]:
            topics = contexts[tp.topic].topics
            own = (topics.groups_changelog, topics.closed_changelog)
            return [Tp(topic, tp.partition) for topic in (*own, topics.components, topics.commands)], len(own)

        return Ports(
            source=source,
            sink=KafkaSink(clients, settings, on_step, on_replaced, contents=contents, epochs=epochs),
            clock=clock,
            restore=placements.restoring(restored),
            placement=placements or None,
            ready=Readiness(clients, logs).ready,
            hidden=HiddenHeaders(by_value, contents) if by_value else None,
            upstream=upstream,
            rules_bytes=rules_bytes,
            targets=targets,
            faults=next(iter(contexts.values())).faults,
            room=room,
            others=(placements, *others),
        )

    return new_ports


def _placements(clients: Clients, contexts: Mapping[str, TaskContext]) -> Placements:
    """The placements of all destinations under path routing."""
    by_topic = {}
    for components, context in contexts.items():
        if context.paths is not None:
            tp = Tp(context.topics.path_map, PARTITION)

            def end_offset(meanwhile: Meanwhile, tp: Tp = tp) -> int:
                with closing(KafkaLogReader(clients, meanwhile)) as reader:
                    return reader.bounds([tp])[tp][1]

            path_log = KafkaPathLog(
                context.topics, context.paths, clients.path_consumer, clients.path_producer, end_offset
            )
            by_topic[components] = Placement(
                context.paths, path_log, Reading.of(context.policy), context.command_reader
            )
    return Placements(by_topic)
