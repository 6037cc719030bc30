"""The worker process: checks, log, signals, exit status.

Belongs here: everything between `uow worker` and a running app. Does not belong here: the app itself (`uow.processor.shell.app`).

| End | Exit status |
| --- | --- |
| SIGTERM or SIGINT: the poll in hand is committed, the group left | 0 |
| the same with `--flush-on-stop`: open groups are given up first; 1 if that cannot be done | 0 |
| a second signal: at once, nothing more is committed | 128 + its number |
| another worker with our name took over, or anything that cannot be repaired | 1 |
| settings or topics that cannot be, or settings that other workers do not have | 2 |
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Container, Iterator, MutableMapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import confluent_kafka as ck
import faust
import structlog
from confluent_kafka.admin import AdminClient
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from uow.processor.engine.poll_loop import Closable
from uow.processor.engine.ports import Tp
from uow.processor.engine.restore import remedy_for_count, why_fenced
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.error_table import Meaning, meaning_of
from uow.processor.kafka.log_reader import recorded_counts, recorded_hints
from uow.processor.kafka.worker_clock import wall_ms
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.processor.shell.app import (
    UowApp,
    create_app,
    kafka_ports,
    task_contexts,
)
from uow.processor.shell.page_server import web_address
from uow.processor.shell.settings_check import check_settings
from uow.schemas.error_classes import Complaint, ConfigError, FencedError, UowError
from uow.schemas.printable import printable, printable_lines
from uow.topics import admin
from uow.topics.catalogue import DestinationTopics, TopicSpec, expected, expected_of_routers
from uow.topics.policies import NEVER_MS, HandlingPolicy

log = logging.getLogger("uow.worker")

Answer = TypeVar("Answer")

FAILED = 1
LEAST_STEP_S = 1.0
SAY_AFTER_S = 5.0
RETRY_S = 0.05
NEW_TOPIC_S = 5.0
LOOK_AGAIN_S = 0.25
RESTORE_S = 30.0
_REMEDIES = {"topic": "run `uow topics create`", "partitions": "run `uow topics repartition`"}


class HeldGroup(NamedTuple):
    """An open group of a worker."""

    destination: str
    id: bytes
    generation: int


GiveUp = Callable[[Sequence[HeldGroup]], None]
"""Gives up open groups while the worker goes on, and returns when that is done. Called on a thread of its own; raises what it likes."""


def run_worker(
    settings: WorkerSettings,
    on_step: Callable[[str], None] = lambda step: None,
    wall: Callable[[], int] = wall_ms,
    give_up: GiveUp | None = None,
) -> int:
    """Runs one worker until it is asked to stop.

    Args:
        settings: Settings of the worker.
        on_step: Called at each commit step; for drills.
        wall: The wall clock, epoch ms; drills have one that jumps.
        give_up: Called before it stops, with the groups that are open then; None: they stay open (B-76).

    Returns:
        The exit status.

    Raises:
        ConfigError: Topics are missing or not as they must be (W-81, W-120, R-69), or settings are not those of the other workers (W-68).
    """
    set_up_log()
    if not settings.destinations:
        raise ConfigError(
            "destinations", "", "a worker needs at least one [destinations.NAME], with its handling_policy"
        )
    _warn(settings)
    partitions, limits = known_topics(settings)
    contexts = check_settings(settings, task_contexts(settings, partitions, limits))
    new_router = new_upstream = None
    rules_bytes: Callable[[], int] = int
    others: Sequence[Closable] = ()
    if settings.routers:  # others need not have the extra `rules`
        from uow.processor.kafka.rule_topics import deployment
        from uow.processor.shell.router_thread import (
            follow_rules,
            kafka_router,
            rule_tables,
            upstream,
            warn_of_missing_targets,
        )

        judged = deployment(settings)
        rules = follow_rules(settings, judged)
        warn_of_missing_targets(settings, rules.rules, partitions)
        contexts, rules_bytes, rule_log = rule_tables(settings, rules, contexts)
        new_router = kafka_router(settings, rules, judged, limits, partitions, on_step, wall)
        new_upstream = upstream(settings, rules)
        others = (rule_log,)
    ports = kafka_ports(settings, contexts, on_step, wall, new_upstream, rules_bytes, others)
    app = create_app(settings, ports, web_address(settings.web), new_router)
    loop = _new_loop()
    asyncio.set_event_loop(loop)
    app.finalize()
    app.worker_init()
    app.worker_init_post_autodiscover()
    worker = UowWorker(app, give_up, loop=loop, quiet=True, redirect_stdouts=False, override_logging=False)
    return worker.run()


class UowWorker(faust.Worker):
    """Faust's worker: says when it is ready, and leaves at once at the second signal.

    Args:
        app: The app.
        give_up: Gives up open groups before it stops, see `run_worker`.
    """

    def __init__(self, app: UowApp, give_up: GiveUp | None, **kwargs: Any) -> None:
        super().__init__(app, **kwargs)
        self._give_up = give_up
        self._is_left_open = False
        self._flushing: asyncio.Task[None] | None = None
        self.uow_app = app
        self.spinner = None
        self._signals = 0

    def run(self) -> int:
        """Runs to the end; the exit status.

        Raises:
            ConfigError: A worker with other settings has taken over (W-68).
        """
        try:
            self.execute_from_commandline()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else FAILED
        crash = self.crash_reason or self.uow_app.crash_reason
        if isinstance(crash, ConfigError):
            raise crash
        if isinstance(crash, FencedError):
            log.error("%s", crash)
        return FAILED if crash is not None or self._is_left_open else status

    async def on_startup_finished(self) -> None:
        """Partitions are owned and restored, or we are a spare; the same of the router's, if there is one."""
        await super().on_startup_finished()
        if not self._signals:
            await self.uow_app.wait_for_stopped(self.uow_app.restored)
        if not self._signals:
            await self.uow_app.wait_for_stopped(self.uow_app.router_ready)
        if not self._signals:
            print(f"worker {self.uow_app.status.worker_name} ready", flush=True)

    def install_signal_handlers(self) -> None:
        """Faust's handler, after counting the signal."""
        super().install_signal_handlers()
        for number, first in (
            (signal.SIGINT, self._on_sigint),
            (signal.SIGTERM, self._on_sigterm),
        ):
            self.loop.add_signal_handler(number, self.on_signal, number, first)

    def on_signal(self, number: signal.Signals, first: Callable[[], None]) -> None:
        """The first signal drains; at the second the process exits, and its successor aborts the open transaction, as after kill -9."""
        self._signals += 1
        if self._signals > 1:
            os._exit(128 + number)
        if self._give_up is None:
            log.info("%s: finishing the poll in hand", number.name)
            first()
        else:
            self._flushing = self.loop.create_task(self._flush(self._give_up, number.name, first))

    async def _flush(self, give_up: GiveUp, signal_name: str, first: Callable[[], None]) -> None:
        """Gives up what was open at the signal, also what only the components read meanwhile open; then stops as without. Ends with 1 if it cannot."""
        since, asked, unrestored = wall_ms(), set[HeldGroup](), list[Tp]()
        try:
            until = self.loop.time() + RESTORE_S
            await self._until_first_restored(until)
            while True:
                unrestored = await self._until_restored(unrestored, until)
                groups = [each for each in self._open_since(since) if each not in asked]
                if groups:
                    asked.update(groups)
                    await self.loop.run_in_executor(None, give_up, groups)
                    until = self.loop.time() + RESTORE_S
                elif self._unrestored() == unrestored:  # no state went while it was looked at
                    break
            if unrestored or self._is_restored_first():
                raise UowError(f"not every partition is restored {unrestored or ''}")
        except (UowError, ck.KafkaException) as error:
            self._is_left_open = True
            log.error("open groups were not given up: %s", error)
        log.info("%s: finishing the poll in hand", signal_name)
        first()

    async def _until_first_restored(self, until: float) -> None:
        """Waits for partitions of which nobody here knows yet what they hold: they have no task, or are not even assigned."""
        while self._is_restored_first() and self.loop.time() <= until:  # noqa: ASYNC110 - another thread's work
            await asyncio.sleep(0.05)

    def _is_restored_first(self) -> bool:
        """True while a partition is restored for the first time, or before the first assignment."""
        return bool(not self.uow_app.restored.is_set() or self.uow_app.status.read_unrestored())

    async def _until_restored(self, late: Container[Tp], until: float) -> list[Tp]:
        """Waits for partitions that are restored after a doubt, but not again for those that were late. Returns those without their state."""
        blocked = self.uow_app.status.blocked
        while True:
            unrestored = self._unrestored()
            if all(tp in blocked or tp in late for tp in unrestored) or self.loop.time() > until:
                return unrestored
            await asyncio.sleep(0.05)

    def _unrestored(self) -> list[Tp]:
        """The partitions that have no state here, though they had one, or are blocked for want of it."""
        status = self.uow_app.status
        restored = {tp for tp, task in status.tasks.items() if not task.has_let_go}
        return sorted({*status.tasks, *status.blocked} - restored)

    def _open_since(self, since: int) -> Iterator[HeldGroup]:
        for task in self.uow_app.status.tasks.values():
            for group in task.groups.values():
                if group.opened_at <= since:
                    yield HeldGroup(task.context.destination, group.id, group.generation)


def known_topics(settings: WorkerSettings) -> tuple[dict[str, int], dict[str, int]]:
    """Partition counts by topic (`check_topics`), and record limits by `D.components` (`input_limits`).

    A missing topic is looked for again for `NEW_TOPIC_S`: one broker may know a new topic later than the others.

    Raises:
        ConfigError: Every topic that is missing or not as it must be.
    """
    look = Retrying(
        stop=stop_after_delay(NEW_TOPIC_S),
        wait=wait_fixed(LOOK_AGAIN_S),
        retry=retry_if_exception(_is_unknown_topic),
        reraise=True,
    )
    return look(_look_for_topics, settings)


def _look_for_topics(settings: WorkerSettings) -> tuple[dict[str, int], dict[str, int]]:
    partitions, limits = check_topics(settings), input_limits(settings)
    for name in limits:
        if not partitions[name]:  # of two brokers one knew it
            raise ConfigError(f"topic {name}, topic", admin.MISSING, "must be there, for every broker")
    return partitions, limits


def _is_unknown_topic(error: BaseException) -> bool:
    if isinstance(error, ConfigError):
        return any(each.value == admin.MISSING for each in error.complaints)
    return isinstance(error, ck.KafkaException) and error.args[0].code() == ck.KafkaError.UNKNOWN_TOPIC_OR_PART


def check_topics(settings: WorkerSettings) -> dict[str, int]:
    """Partition counts by topic; waits for a broker first.

    Raises:
        ConfigError: Every topic that is missing or not as it must be; names `uow topics create`.
    """
    client = Clients(settings).admin()
    partitions = _insist(settings, partial(_partitions, client, _step_s(settings)))
    _insist(settings, partial(admin.require_group, client, settings.application_id))
    complaints, warnings = [], []

    def check(specs: Sequence[TopicSpec]) -> None:
        for each in _insist(settings, partial(admin.check, client, specs)):
            if each.advised:
                warnings.append(each)
                continue
            remedy = _REMEDIES.get(each.what, "`uow topics check` lists all that must be changed")
            rule = f"must be {each.expected}: {each.reason}" + ("" if each.actual == admin.HIDDEN else f"; {remedy}")
            complaints.append(Complaint(f"topic {each.topic}, {each.what}", each.actual, rule))

    if settings.routers:
        check(expected_of_routers(settings.application_id, settings.inputs))
    for name, policy in settings.destinations.items():
        replay, trial = settings.replay_ms, settings.is_trial
        check(expected(settings.application_id, name, policy, replay_ms=replay, is_trial=trial))
        names = DestinationTopics(settings.application_id, name)
        topic = names.components
        partitions.setdefault(topic, 0)
        if policy.is_bound_to_count and names.path_map in partitions:
            rule = "groups lie where it says, not where a hash does: set routing = path; or, once no group is open, delete it"
            complaints.append(Complaint(f"topic {names.path_map}", "there", rule))
        found = _insist(settings, partial(recorded_hints, Clients(settings), topic, partitions[topic]))
        marks = {each.moved for each in found if each.moved is not None}
        complaints += [Complaint(f"destinations.{name}", name, "; ".join(why_fenced(mark))) for mark in marks]
        if policy.is_bound_to_count:
            for was in recorded_counts(found):
                if was != partitions[topic]:
                    rule = f"must be {was}, as when its groups were assembled: {remedy_for_count(name)}"
                    complaints.append(Complaint(f"topic {topic}, partitions", partitions[topic], rule))
    if complaints:
        raise ConfigError.many(complaints)
    for each in warnings:
        log.warning("%s", each)
    return partitions


def input_limits(settings: WorkerSettings) -> dict[str, int]:
    """Record limit of each `D.components`: a misrouted component must fit it once more (W-110)."""
    names = [DestinationTopics(settings.application_id, name).components for name in settings.destinations]
    found = _insist(settings, partial(admin.topic_settings, Clients(settings).admin(), names))
    return {name: int(found[name]["max.message.bytes"]) for name in names if "max.message.bytes" in found[name]}


def _insist(settings: WorkerSettings, ask: Callable[[], Answer]) -> Answer:
    """Asks again for as long as no broker answers, at most `broker_wait_ms`; a refusal is an answer.

    Raises:
        KafkaException: A broker refuses, or none answered in time.
    """
    since, said = time.monotonic(), False
    while True:
        try:
            return ask()
        except ck.KafkaException as failure:
            error = failure.args[0]
            # librdkafka's own errors are below 0
            is_answer = meaning_of(error) is Meaning.NOT_AUTHORISED or (
                error.code() > 0 and meaning_of(error) is not Meaning.PASSING
            )
            waited = time.monotonic() - since
            if is_answer or 0 <= settings.broker_wait_ms < waited * 1000:
                raise
            if not said and waited > SAY_AFTER_S:
                said = True
                log.warning("no broker answers at %s: %s", settings.bootstrap_servers, error.str())
            time.sleep(RETRY_S)


def _step_s(settings: WorkerSettings) -> float:
    """Longest wait for one answer: short only if the worker waits no longer than that, since an answer that comes later is thrown away."""
    wait_ms = settings.broker_wait_ms
    return admin.TIMEOUT_S if wait_ms < 0 else min(admin.TIMEOUT_S, max(LEAST_STEP_S, wait_ms / 1000))


def _partitions(client: AdminClient, step_s: float) -> dict[str, int]:
    topics = client.list_topics(timeout=step_s).topics
    return {name: len(topic.partitions) for name, topic in topics.items()}


def _warn(settings: WorkerSettings) -> None:
    for override in settings.overrides:
        log.warning("%s", override)
    for name, policy in settings.destinations.items():
        unlimited = policy.incomplete_expiration_ms == NEVER_MS and policy.idle_expiration_ms == NEVER_MS
        if policy.handling_policy is HandlingPolicy.PASS_THROUGH:
            if not unlimited:
                log.warning(
                    "destination %s: expiration has no effect under handling_policy = pass_through",
                    name,
                )
        elif unlimited:
            log.warning(
                "destination %s: incomplete_expiration_ms = -1, groups may wait for ever",
                name,
            )


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _escape(logger: Any, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The event with escapes: words of records and of other programs must not reach a terminal as they are, nor begin a line that nobody logged."""
    return {
        key: (printable_lines if key in ("exception", "stack") else printable)(value)
        if isinstance(value, str)
        else value
        for key, value in event.items()
    }


def set_up_log(level: int = logging.INFO) -> None:
    """One stream, standard error: for people on a terminal, JSON lines in a pipe. Standard output has the ready line only."""
    terminal = sys.stderr.isatty()
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=not terminal),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    render: list[Any] = (
        [structlog.processors.format_exc_info, _escape, structlog.dev.ConsoleRenderer()]
        if terminal
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *render,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for noisy in ("mode", "faust", "aiohttp", "asyncio", "uow.processor.shell"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
