"""The router of a worker, put together: its ports on librdkafka, and the rules it follows.

Loaded only by workers that have routers: it needs the extra `rules`. Belongs here: how the parts fit. Does not belong here: the loop
(`uow.processor.kafka.router`), starting and stopping the thread (`uow.processor.shell.bridge`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import confluent_kafka as ck

from uow.processor.engine.context import TaskContext
from uow.processor.engine.poll_loop import Closable
from uow.processor.engine.ports import Doubt, Meanwhile, Tp
from uow.processor.engine.set_aside import SetAsideLimit
from uow.processor.kafka.asked_log import KafkaAskedLog
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.contents import KafkaContents
from uow.processor.kafka.input_logs import KafkaInputLogs
from uow.processor.kafka.leader_epochs import LeaderEpochs
from uow.processor.kafka.log_ends import LogEnds
from uow.processor.kafka.log_offsets import LogOffsets
from uow.processor.kafka.log_reader import KafkaLogReader
from uow.processor.kafka.router import Router, RouterPorts, RouterStatus, first_positions
from uow.processor.kafka.router_desk import LoggedRules, RouterDesk, rules_of
from uow.processor.kafka.router_positions import RouterPositions
from uow.processor.kafka.rule_log import open_rule_log
from uow.processor.kafka.sink import KafkaSink
from uow.processor.kafka.source import KafkaSource
from uow.processor.kafka.target_topics import kafka_targets
from uow.processor.kafka.topic_ids import TopicIds
from uow.processor.kafka.worker_clock import WorkerClock, wall_ms
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.processor.rules.columns import WrongRows
from uow.processor.rules.deployment import Deployment, missing_targets
from uow.processor.rules.in_force import RuleFollower, RulesInForce, default_rules
from uow.processor.rules.mirror import read_mirror
from uow.processor.rules.routing import RouteTarget
from uow.processor.rules.rule_set import RuleSet, RuleTables
from uow.processor.rules.store import rule_source
from uow.processor.rules.targets import target_topics
from uow.processor.rules.trusted_rows import TrustedRows
from uow.processor.shell.app import NewRouter
from uow.processor.shell.monitor import WorkerStatus
from uow.processor.shell.router_rights import check_rights
from uow.schemas.error_classes import ConfigError
from uow.schemas.registry import framer_for
from uow.topics.catalogue import DestinationTopics, rules_topic
from uow.topics.commands import CommandReader
from uow.topics.policies import Oversize
from uow.topics.record_size import INPUT_LIMIT_BYTES, RecordLimit

log = logging.getLogger("uow.rules")


@dataclass(frozen=True, slots=True)
class LoggedMirror:
    """The rules as routers wrote them to `A-rules`: port `RuleMirror`."""

    settings: WorkerSettings

    def tables(self) -> RuleTables | None:
        """The latest set; None if there is none, or none that can be read."""
        try:
            with closing(open_rule_log(self.settings)) as log_:
                log_.catch_up(lambda: None)
                return None if log_.mirror is None else read_mirror(log_.mirror)
        except (WrongRows, Doubt, ck.KafkaException) as error:
            log.warning("the rules in %s cannot be read: %s", rules_topic(self.settings.application_id), error)
            return None


def follow_rules(settings: WorkerSettings, judged: Deployment) -> RuleFollower:
    """The rules in force, followed by a thread of their own.

    Args:
        settings: Settings of the worker.
        judged: The check of a version.

    Raises:
        ConfigError: There are none to begin with.
    """
    try:
        source = rule_source(settings.rules.source)
    except ValueError as error:
        raise ConfigError("rules.source", "...", str(error)) from None
    in_force = RulesInForce(
        source,
        judged.complaints,
        settings.rules.refresh_ms,
        LoggedMirror(settings),
        default_rules(settings.destinations) if settings.rules.allow_defaults else None,
    )
    in_force.start()
    return RuleFollower(in_force)


def warn_of_missing_targets(settings: WorkerSettings, rules: RuleSet, there: Collection[str]) -> None:
    """Names the topics to which rules send units and that are not there: no obstacle, since they may be made later (B-57)."""
    for topic in missing_targets(rules, settings.destinations, there):
        log.warning("target topic %s does not exist: `uow topics create` makes it", topic)


def rule_tables(
    settings: WorkerSettings, rules: RuleFollower, contexts: Mapping[str, TaskContext]
) -> tuple[dict[str, TaskContext], Callable[[], int], Closable]:
    """The contexts of tasks with the rows of `A-rules`; about the memory that rows take, those of the router as well; and the one reader of all."""
    log_ = open_rule_log(settings)
    trusted = TrustedRows(
        lambda: rules.read,
        rules.has_all_versions,
        log_.latest,
        settings.destinations,
        settings.application_id,
        rules.look,
    )
    counts = {context.destination: context.partitions for context in contexts.values()}

    def in_runs() -> dict[str, int]:
        """Of rows of shape `consecutive`. Where only a unit of unusual size becomes a run, that unit alone fails, and the others do not wait (B-60)."""
        policies = {name: replace(policy, oversize=Oversize.FAIL) for name, policy in settings.destinations.items()}
        found = {name: target_topics(rules.rules, name, policy) for name, policy in policies.items()}
        return {topic: counts[name] for name, topics in found.items() for topic, runs in topics.items() if runs}

    targets = kafka_targets(Clients(settings), log_.target_topics, in_runs)
    with_rules = {
        topic: replace(context, rules=LoggedRules(log_, context.destination, context.policy, trusted), targets=targets)
        for topic, context in contexts.items()
    }
    return with_rules, lambda: 2 * log_.row_bytes, log_


def upstream(settings: WorkerSettings, rules: RuleFollower) -> RouterPositions:
    """How far the routers are, for the assembler (B-218)."""
    # for so long nobody routes when a worker dies
    silence = settings.session_timeout_ms + settings.transaction_timeout_ms
    destinations = {DestinationTopics(settings.application_id, name).components: name for name in settings.destinations}

    def inputs_of(components: str) -> dict[str, int]:
        destination = destinations[components]
        return {
            topic: max(router.input_stall_ms, silence)
            for router in settings.routers.values()
            if any(rule.destination == destination for rule in rules_of(router, rules.rules))
            for topic in router.inputs
        }

    routers = settings.of_routers
    clients = Clients(routers)
    offsets = LogOffsets(clients)
    return RouterPositions(
        KafkaInputLogs(clients, routers.application_id, offsets),
        LogEnds(offsets.ends),
        LogEnds(offsets.stable_ends),
        LogEnds(offsets.starts),
        inputs_of,
    )


def kafka_router(
    settings: WorkerSettings,
    rules: RuleFollower,
    judged: Deployment,
    limits: Mapping[str, int],
    partitions: Mapping[str, int],
    on_step: Callable[[str], None] = lambda step: None,
    wall: Callable[[], int] = wall_ms,
) -> NewRouter:
    """Makes the router on librdkafka.

    Args:
        settings: Settings of the worker.
        rules: The rules in force.
        judged: The check of a version: tells which routers cannot go on by it.
        limits: Largest record by topic name, for `D.components`.
        partitions: Number of partitions by topic name, the same.
        on_step: Called at each commit step, with `router-` before its name; for drills.
        wall: The wall clock, epoch ms.

    Raises:
        ConfigError: As of `check_rights`.
    """
    check_rights(settings, rules.rules, wall())
    targets, framer, signer = {}, framer_for(settings.registry_url), settings.command_signer()
    for name, policy in settings.destinations.items():
        topics = DestinationTopics(settings.application_id, name)
        limit = RecordLimit(limits.get(topics.components, INPUT_LIMIT_BYTES))
        framing = framer.header("Answer", topics.outcomes)
        targets[name] = RouteTarget(topics, policy, limit, partitions.get(topics.components, 1), framing, signer)
    routers, started = settings.of_routers, time.monotonic()

    def new_router(
        worker: WorkerStatus, on_ready: Callable[[], None], on_finished: Callable[[BaseException | None], None]
    ) -> Router:
        clients, clock = Clients(routers), WorkerClock(wall, lead_ms=settings.clock_lead_ms)
        epochs = LeaderEpochs()
        source = KafkaSource(clients, routers, clock, epochs, TopicIds(clients.admin))

        def on_replaced(cause: str) -> None:
            worker.replaced += 1

        def starts(tps: Sequence[Tp], meanwhile: Meanwhile) -> Mapping[Tp, int]:
            with closing(KafkaLogReader(clients, meanwhile, epochs=epochs)) as reader:
                return first_positions(reader, tps)

        rule_log = open_rule_log(settings, rules.refresh)
        desk = RouterDesk(
            lambda: rules.rules,
            settings.routers,
            targets,
            rule_log,
            rules_topic(settings.application_id),
            wall,
            lambda in_force: judged.held(in_force) if rules.is_faulty(in_force) else {},
        )
        sink = KafkaSink(clients, routers, lambda step: on_step(f"router-{step}"), on_replaced, epochs=epochs)
        contents = KafkaContents(clients, settings.transaction_timeout_ms / 2000)
        commands = {name: (each.topics.commands, CommandReader(name, each.policy)) for name, each in targets.items()}
        asked = KafkaAskedLog(commands, clients.path_consumer)
        ports = RouterPorts(source, sink, starts, contents, desk, asked)
        status = worker.router = RouterStatus(
            ends=lambda: source.ends,
            rules_age_s=lambda: time.monotonic() - (rules.status.seen_at_s or started),
            rules_rejected=lambda: rules.status.rejected,
            rules_errors=lambda: rules.status.errors,
            rules_left_out=lambda: rule_log.ignored,
        )
        limit = SetAsideLimit(settings.set_aside_per_minute)
        inputs, stop = settings.inputs, threading.Event()
        return Router(ports, inputs, settings.poll_records, status, stop, on_ready, on_finished, set_aside=limit)

    return new_router
