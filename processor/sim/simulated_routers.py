"""Routers of a run: the production router, its desk and its sink in processes that live and die like those of workers.

Rules change on the way; a worker reads their rows from `A-rules`, as far as transactions let it, and asks how far the routers are before it gives
a group up by time.

Belongs here: ports, processes, sending. Does not belong here: what is drawn (`router_traffic`), judging (`router_checks`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import confluent_kafka as ck

from uow.processor.engine.ports import Meanwhile, RawRecord, Tp
from uow.processor.kafka.asked_log import AskedOf
from uow.processor.kafka.log_ends import LogEnds
from uow.processor.kafka.log_offsets import Answers
from uow.processor.kafka.router import Router, RouterPorts, RouterStatus, first_positions
from uow.processor.kafka.router_desk import LoggedRules, RouterDesk
from uow.processor.kafka.router_positions import RouterPositions
from uow.processor.kafka.rule_log import KafkaRuleLog
from uow.processor.kafka.sink import KafkaSink
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.processor.rules.routing import RouteTarget
from uow.processor.rules.row_table import RowTable
from uow.processor.sim.processes import Processes
from uow.processor.sim.router_traffic import INPUT, ROUTERS, RouterTraffic
from uow.processor.sim.schedule import Actor, Crash
from uow.processor.sim.simulated_kafka import EPOCH_MS, GROUP, State
from uow.processor.sim.simulated_ports import Process, SimClients, SimContents, SimLogReader, SimQuestion, SimSource
from uow.schemas.error_classes import FencedError
from uow.topics.catalogue import RULES_PARTITION, rules_topic
from uow.topics.commands import RecordPlace
from uow.topics.partitioner import partition_for
from uow.topics.policies import DestinationPolicy
from uow.topics.record_size import RecordLimit

if TYPE_CHECKING:
    from uow.processor.sim.simulation import Simulation

RULES = Tp(rules_topic("A"), RULES_PARTITION)


class _Read(NamedTuple):
    """The answer of a consumer: a record, or, with an error, that the end is reached."""

    at: int
    record: RawRecord | None = None

    def error(self) -> ck.KafkaError | None:
        return None if self.record is not None else ck.KafkaError(ck.KafkaError._PARTITION_EOF)

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return None if self.record is None else self.record.key()

    def value(self) -> bytes | None:
        return None if self.record is None else self.record.value()


class NobodyAsks:
    """Port `AskedLog` where no command about a router's input ever comes."""

    def look(self, standing: Mapping[RecordPlace, int]) -> Mapping[RecordPlace, list[AskedOf]]:
        return {}

    def close(self) -> None:
        """Nothing is open."""


class SimRuleConsumer:
    """A consumer of `A-rules`, as far as `KafkaRuleLog` uses it."""

    def __init__(self, process: Process) -> None:
        self._process, self._log, self._next = process, process.broker.log(RULES), 0

    def assign(self, where: Any) -> None:
        """It begins at the log's start anyway."""

    def consume(self, count: int, timeout: float) -> Sequence[_Read]:
        log, away = self._log, self._process.broker.is_away
        if timeout:
            self._process.actor.wait(lambda: log.stable_end > self._next and not away(RULES), timeout * 1000)
        if away(RULES):
            return ()
        found = log.visible(self._next, log.end)[:count]
        self._next = found[-1].offset() + 1 if found else log.stable_end
        return [_Read(each.offset(), each) for each in found] or [_Read(self._next)]

    def close(self) -> None:
        """Nothing is open."""


def rule_log(process: Process) -> KafkaRuleLog:
    """The reader of `A-rules` of one process."""

    def end_offset(meanwhile: Meanwhile) -> int:
        while process.broker.is_away(RULES):
            process.actor.wait(timeout_ms=100)
            meanwhile()
        return process.broker.log(RULES).end

    scheduler = process.broker.scheduler
    return KafkaRuleLog(
        RULES.topic, lambda: SimRuleConsumer(process), end_offset, monotonic=lambda: scheduler.now / 1000
    )


class _Offset(NamedTuple):
    """An answer of `list_offsets`."""

    offset: int


class SimInputs:
    """Port `InputLogs`, and questions for ends: each leader and the coordinator answers in its own time, or hangs."""

    def __init__(self, process: Process) -> None:
        self._process, self._broker = process, process.broker

    def partitions(self, name: str) -> Any:
        """The numbers of an input's partitions."""
        return SimQuestion(self._process, "metadata", lambda: dict.fromkeys(range(self._broker.settings.partitions)))

    def positions(self) -> Any:
        """Committed positions of the group, of inputs and others."""
        return SimQuestion(
            self._process, GROUP, lambda: {tp: at.offset or 0 for tp, at in self._broker.committed.items()}
        )

    def ends(self, tps: Sequence[Tp], timeout: float) -> Answers:
        """As of `LogOffsets`."""
        return {tp: SimQuestion(self._process, tp, partial(self._end, tp)) for tp in tps}  # type: ignore[misc]

    def starts(self, tps: Sequence[Tp], timeout: float) -> Answers:
        """As of `LogOffsets`."""
        return {tp: SimQuestion(self._process, tp, partial(self._start, tp)) for tp in tps}  # type: ignore[misc]

    def stable_ends(self, tps: Sequence[Tp], timeout: float) -> Answers:
        """As of `LogOffsets`."""
        return {tp: SimQuestion(self._process, tp, partial(self._stable_end, tp)) for tp in tps}  # type: ignore[misc]

    def _stable_end(self, tp: Tp) -> _Offset:
        return _Offset(self._broker.log(tp).stable_end)

    def _end(self, tp: Tp) -> _Offset:
        return _Offset(self._broker.log(tp).end)

    def _start(self, tp: Tp) -> _Offset:
        return _Offset(self._broker.log(tp).start)


class SimUpstream(RouterPositions):
    """Port `Upstream`: the production one, with the brokers' answers."""

    def __init__(self, process: Process) -> None:
        logs, scheduler, calls = SimInputs(process), process.broker.scheduler, count()
        limits = {INPUT: ROUTERS["events"].input_stall_ms}

        def now() -> float:  # no two calls in the same moment, as in production
            return scheduler.now + next(calls) * 1e-6

        ends, stable_ends, starts = (LogEnds(each, now) for each in (logs.ends, logs.stable_ends, logs.starts))
        super().__init__(logs, ends, stable_ends, starts, lambda topic: limits, now)
        self._process = process

    def settled(self, topic: str, now_ms: int) -> int:
        """As in production, between other things that happen."""
        self._process.actor.wait()
        return super().settled(topic, now_ms)


class SimRows(LoggedRules):
    """A worker's table of rules.

    Args:
        log: Its reader of `A-rules`.
        policy: Of its destination.
        all_rules: The table of somebody who knows each row at once.
    """

    def __init__(self, log: KafkaRuleLog, policy: DestinationPolicy, all_rules: RowTable) -> None:
        super().__init__(log, "D", policy)
        self._all_rules = all_rules

    def whole(self) -> RowTable:
        """That one."""
        return self._all_rules


class RouterLife:
    """One process of a router.

    Args:
        routers: Those of the run.
        worker_name: Name of its worker.
        name: Name of this process in the script.
    """

    def __init__(self, routers: SimRouters, worker_name: str, name: str) -> None:
        self._routers, self.worker_name = routers, worker_name
        self.stop = threading.Event()
        self._poll_records = routers.run.rnd.choice([1, 3, 10, 50])
        self.actor: Actor = routers.run.scheduler.spawn(name, self._body)

    def _body(self, actor: Actor) -> None:
        run = self._routers.run
        run.scheduler.say(f"starts as router {self.worker_name}, polls of {self._poll_records}")
        process = Process(actor, run.broker, run.rnd, run.aside, run.trouble, run.draw_skew())
        process.divisible = True
        settings = WorkerSettings(
            "A", "", self.worker_name, transaction_timeout_ms=int(run.broker.settings.transaction_ms)
        ).of_routers
        contents = SimContents(process)
        sink = KafkaSink(
            cast(Any, SimClients(process, settings.transactional_id)),
            settings,
            on_step=lambda step: run.at_step(self, step),
            monotonic=lambda: run.scheduler.now / 1000,
            contents=contents,
        )
        context, traffic = run.context, self._routers.traffic
        target = RouteTarget(context.topics, context.policy, RecordLimit(), context.partitions)
        wall: Callable[[], int] = lambda: int(run.scheduler.now + process.skew_ms) + EPOCH_MS  # noqa: E731
        desk = RouterDesk(lambda: traffic.rules, ROUTERS, {"D": target}, rule_log(process), RULES.topic, wall)
        ports = RouterPorts(
            SimSource(process),
            sink,
            lambda tps, meanwhile: first_positions(SimLogReader(process, meanwhile, insists=True), tps),
            contents,
            desk,
            NobodyAsks(),
        )
        Router(
            ports,
            [INPUT],
            self._poll_records,
            RouterStatus(),
            self.stop,
            on_finished=self._on_finished,
            monotonic=lambda: run.scheduler.now / 1000,
        ).run()

    def _on_finished(self, error: BaseException | None) -> None:
        if isinstance(error, Crash):
            return
        run = self._routers.run
        run.scheduler.say(f"ends: {error!r}" if error else "ends")
        if error is not None and not isinstance(error, FencedError):
            run.failed(f"the router ends with {error!r}", error)


class SimRouters:
    """The routers of a run, and what they read.

    Args:
        run: The run.
        traffic: Drawn for it.
    """

    def __init__(self, run: Simulation, traffic: RouterTraffic) -> None:
        self.run, self.traffic = run, traffic
        self.lives = Processes(run, [str(number) for number in range(run.rnd.randint(1, 2))], "r", self._new)

    def _new(self, worker_name: str, name: str) -> RouterLife:
        return RouterLife(self, worker_name, name)

    def faults(self) -> Collection[tuple[float, Callable[[], None]]]:
        """Probability and fault, beside those of workers."""
        lives = self.lives
        return [
            (0.005, lives.kill),
            (0.005, lives.pause),
            (0.010, lives.wake),
            (0.015, lives.restart),
            (0.003, lives.start_twice),
            (0.002, lives.stop),
            (0.005, self._change_rules),
        ]

    def _change_rules(self) -> None:
        self.traffic.change()
        self.run.scheduler.say(f"version {self.traffic.rules.version} of the rules", "fault")

    def send(self) -> bool:
        """A record of the input, or a command; some records belong to transactions that stay open for a while, or abort. False: another sender's turn."""
        rnd, broker = self.run.rnd, self.run.broker
        if rnd.random() < 0.3:
            return False
        if rnd.random() < 0.1:
            row = self.traffic.command(broker.now_ms())
            home = Tp(self.run.context.topics.commands, partition_for(row[0] or b"", broker.settings.partitions))
            broker.log(home).append(row, broker.now_ms(), now=self.run.scheduler.now)
            return True
        log = broker.log(Tp(INPUT, rnd.randrange(broker.settings.partitions)))
        row, now = self.traffic.record(), self.run.scheduler.now
        if rnd.random() < 0.9:
            log.append(row, broker.now_ms(), now=now)
            return True
        owner, outcome = f"source-{self.run.report.steps}-{log.end}", rnd.choice([State.COMMITTED, State.ABORTED])
        log.append(row, broker.now_ms(), owner, now)
        broker.markers.append(("marker of a source", lambda: log.finish(owner, outcome, broker.now_ms())))
        return True

    def rules_of(self, process: Process, policy: DestinationPolicy) -> SimRows:
        """The rows as a worker reads them."""
        return SimRows(rule_log(process), policy, self.all_rules(policy))

    def all_rules(self, policy: DestinationPolicy) -> RowTable:
        """The same for somebody who knows each row at once."""
        return RowTable(self.traffic.rows, "D", policy)
