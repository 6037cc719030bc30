"""Components and commands that lie unread are assembled before groups move to other partitions (W-82, W-107).

A component that a worker sends on to its new partition gets a new append time there, and one that came in time would be late. So everything is read
under the partition count under which it was sent, by the loop of a worker (`uow.processor.engine.read_to_end`) with all that a worker of this
configuration knows: rules, target topics, the settings that are recorded. Its transactions are those of a worker, so the command may die in any
of them.

Belongs here: the parts of such a worker. Does not belong here: when it is done (`uow.ops.repartition`).
Imports the worker's shell, that is the extra `worker`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace

from uow.config.loading import Settings
from uow.ops.sole_member import MoveError
from uow.processor.engine.context import TaskContext
from uow.processor.engine.poll_loop import Closable
from uow.processor.engine.ports import Tp
from uow.processor.engine.read_to_end import NO_LIMIT, ReadToEnd
from uow.processor.engine.set_aside import SetAsideLimit
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.processor.shell.app import kafka_ports, task_contexts
from uow.processor.shell.monitor import WorkerStatus
from uow.processor.shell.settings_check import check_settings
from uow.processor.shell.worker import input_limits
from uow.schemas.error_classes import ConfigError
from uow.topics.catalogue import DestinationTopics

PATIENCE_MS = 120_000
"""Longest time without progress: brokers end a sender's transaction after a minute by default, and a blocked partition is tried again meanwhile."""


def assemble_unread(settings: Settings, destination: str, counts: Mapping[str, int]) -> None:
    """Reads to the ends that partitions have now.

    Args:
        settings: Configuration, that of the workers.
        destination: Its name.
        counts: Partition count of every topic: the one under which groups were assembled so far.

    Raises:
        ConfigError: The settings are not those that workers have recorded, or rules cannot be read.
        MoveError: Something cannot be read.
        StateCorruptedError: The state cannot be restored.
    """
    worker = replace(settings.worker("repartition"), memory_limit_bytes=NO_LIMIT)
    components = DestinationTopics(settings.application_id, destination).components
    with ExitStack() as stack:
        context, rules_bytes, others = _as_worker(worker, destination, counts, stack)
        ports = kafka_ports(worker, {components: context}, rules_bytes=rules_bytes, others=others)
        driver = ReadToEnd(
            ports(WorkerStatus(worker.worker_name, {components: destination})),
            {components: context.topics.commands},
            [Tp(components, number) for number in range(counts[components])],
            worker.poll_records,
            PATIENCE_MS,
            SetAsideLimit(worker.set_aside_per_minute),
        )
        driver.start()
        try:
            driver.join()
        finally:
            driver.request_stop()
            driver.join(PATIENCE_MS / 1000)  # after Ctrl-C: it commits what it has in hand, and leaves the group
    if driver.error is not None:
        raise driver.error
    if driver.why_not:
        raise MoveError(f"what lies unread cannot be read to its end: {driver.why_not}")


def _as_worker(
    worker: WorkerSettings, destination: str, counts: Mapping[str, int], stack: ExitStack
) -> tuple[TaskContext, Callable[[], int], tuple[Closable, ...]]:
    """The context of the destination as a worker has it, about the memory that rows of rules take, and what is to be closed.

    Raises:
        ConfigError: A worker of these settings would have others than those before it.
    """
    components = DestinationTopics(worker.application_id, destination).components
    inputs = [DestinationTopics(worker.application_id, name).components for name in worker.destinations]
    alone = replace(worker, destinations={destination: worker.destinations[destination]})
    contexts = task_contexts(worker, {name: counts.get(name, 1) for name in inputs}, input_limits(alone))
    contexts |= check_settings(alone, {components: contexts[components]})
    recorded = contexts[components].recorded_settings
    if recorded is not None and recorded.replaces:
        raise ConfigError(
            f"destinations.{destination}",
            destination,
            "its settings must be those that workers have recorded while something lies unread: run the command with the workers' configuration, or "
            "start workers with this one, and let them read to the end",
        )
    if not worker.routers:
        return contexts[components], int, ()
    from uow.processor.kafka.rule_topics import deployment  # needs the extra `rules`
    from uow.processor.shell.router_thread import follow_rules, rule_tables

    rules = follow_rules(worker, deployment(worker))
    stack.callback(rules.stop)
    contexts, rules_bytes, rule_log = rule_tables(worker, rules, contexts)
    return contexts[components], rules_bytes, (rule_log,)
