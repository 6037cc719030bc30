"""One run: a seed draws the cluster, the policy, the traffic and the faults; workers of production code live and die in it.

A worker is the production `Driver.run` on the production sink, `restore` and `PartitionTask`; only what speaks to brokers is simulated.
For a while there are faults between any two requests of any worker: processes are killed at a named commit step or anywhere else, are stopped
past their session and wake up as zombies, start twice under one name; rebalances are forced; requests are delayed, repeated, lost; leaders and
coordinators move; clocks jump; changelogs are compacted; retention deletes records that are not needed any more, and, in some runs while all
workers are down, some that are: that partition must be refused, and no other. Every life of a worker has replay bounds and a memory limit of its
own. Then the faults stop, and the run must become quiet: everything read, nothing open, no deadline forgotten.

Belongs here: random choices, and the supervisor of the workers. Does not belong here: the checks (`checks`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any, cast

from uow.processor.core.plan_size import PLAN_BYTES
from uow.processor.engine.batch import Batch, Task, Work
from uow.processor.engine.context import TaskContext
from uow.processor.engine.driver import Driver
from uow.processor.engine.driver_ports import Ports, Wanted
from uow.processor.engine.group_storage import is_replayable
from uow.processor.engine.memory_limit import LIGHT_SHARE, STOP_SHARE
from uow.processor.engine.placement import Placement, Placements
from uow.processor.engine.ports import (
    Blocked,
    Committed,
    Doubt,
    Plan,
    Tp,
)
from uow.processor.engine.replayable import ReplayLimits
from uow.processor.engine.restore import restore
from uow.processor.engine.settings_record import RecordedSettings
from uow.processor.engine.shares import SHARE_S
from uow.processor.engine.task import PartitionTask
from uow.processor.kafka.sink import KafkaSink
from uow.processor.kafka.worker_settings import CLOCK_LEAD_MS, WorkerSettings
from uow.processor.sim.call_traffic import CallTraffic
from uow.processor.sim.checks import Checker
from uow.processor.sim.losses import Losses
from uow.processor.sim.processes import Lived, Processes
from uow.processor.sim.router_checks import RouterChecks
from uow.processor.sim.router_traffic import RouterTraffic
from uow.processor.sim.rule_traffic import RuleTraffic
from uow.processor.sim.schedule import Actor, Crash, Scheduler
from uow.processor.sim.simulated_kafka import (
    EPOCH_MS,
    GROUP,
    TRANSACTIONS,
    Broker,
    BrokerSettings,
    Row,
    State,
)
from uow.processor.sim.simulated_ports import (
    PASSING,
    Process,
    SimClients,
    SimContents,
    SimLogReader,
    SimPathLog,
    SimSource,
    Trouble,
)
from uow.processor.sim.simulated_routers import SimRouters, SimUpstream
from uow.processor.sim.traffic import (
    HUGE,
    Traffic,
    draw_families,
    draw_late,
    draw_limits,
    draw_policy,
    draw_record_limit,
)
from uow.processor.sim.witness import Violation
from uow.schemas.error_classes import FencedError
from uow.schemas.framing import single_object_header
from uow.topics.catalogue import DestinationTopics
from uow.topics.headers import ORDER_KEY, Reading
from uow.topics.partitioner import partition_for
from uow.topics.path_map import (
    NONCE_BYTES,
    PARTITION,
    PathMap,
    claim_key,
    claim_value,
)
from uow.topics.policies import DestinationPolicy, Routing

TOPICS = DestinationTopics("A", "D")
PATHS = Tp(TOPICS.path_map, PARTITION)
PATH_SHARE = 0.25
"""Share of the runs with `routing = "path"`."""
BAD_NETWORK_SHARE = 0.15
"""Share of the runs in which connections break often, also when all other faults have stopped."""
BURYING_SHARE = 0.3
"""Share of the runs in which compaction takes tombstones also during a restore, as it may if that lasts longer than they do."""
QUIET_STEPS = 30_000
"""A run that is not quiet by then never will be."""
LAST_DEADLINE_MS = 70_000
"""Later than every deadline that the traffic can ask for."""
PUNCTUAL_MS = 20_000
"""Time after it by which every deadline must have been applied, without faults and with all clocks right."""
CLOCK_SHARE = 0.3
"""Share of the runs in which the wall clocks of workers are set, at any moment."""


@dataclass(slots=True)
class SimulationReport:
    """The result of a run.

    Attributes:
        seed: The run's seed.
        violation: The promise that was broken; None if none was.
        script: The events, line by line.
        steps, commits, units, corrections, commands, notices: Their numbers.
        crashes, zombies, doubts: Their numbers.
        pauses: Number of partitions paused because memory was short.
        moves: Number of moves of leaders and coordinators.
        cuts: Number of deletions by retention.
        losses: Partitions destroyed.
        leaps: Records appended by a broker whose clock had leapt.
        routed: Records of inputs that routers dealt with.
    """

    seed: int
    violation: str | None = None
    script: Sequence[str] = ()
    steps: int = 0
    commits: int = 0
    units: int = 0
    corrections: int = 0
    commands: int = 0
    notices: int = 0
    crashes: int = 0
    zombies: int = 0
    doubts: int = 0
    pauses: int = 0
    moves: int = 0
    cuts: int = 0
    losses: int = 0
    leaps: int = 0
    routed: int = 0


class TransientError(Exception):
    """Raised by a task, for a reason that passes."""


class Life:
    """One process of a worker, and the driver's `TaskRunner` in it.

    Args:
        run: The run.
        worker_name: Name of the worker.
        name: Name of this process in the script.

    Attributes:
        is_misled: True if compaction took tombstones while it restored.
    """

    def __init__(self, run: Simulation, worker_name: str, name: str) -> None:
        self.run, self.worker_name = run, worker_name
        self.stop = threading.Event()
        self.tasks: dict[Tp, Task] = {}
        self.limits = run.draw_limits()
        drawn = run.draw_context()
        self.context = replace(
            drawn,
            replay=self.limits,
            paths=None if drawn.paths is None else PathMap(),
            plan_bytes=run.aside.choice([PLAN_BYTES, 20_000, 0]),
            rules=run.rules.table(drawn.policy),
        )
        self.poll_records = run.rnd.choice([1, 3, 10, 50])
        self._costs = Random(f"{run.report.seed} {name} costs")  # of its own: what a seed drew before stays as it was
        self._is_costly = self._costs.random() < 0.3
        self.memory_limit = run.rnd.choice([HUGE, HUGE, 5_000, 2_000])
        self.driver: Driver | None = None
        self.paused_tps: frozenset[Tp] = frozenset()
        self._full_turns = 0
        self.is_misled = False
        self.error: BaseException | None = None
        self.port: Process | None = None
        self.settings = WorkerSettings(
            "A", "", worker_name, transaction_timeout_ms=int(run.broker.settings.transaction_ms)
        )
        self.actor: Actor = run.scheduler.spawn(name, self._body)

    def _body(self, actor: Actor) -> None:
        run = self.run
        memory = "" if self.memory_limit == HUGE else f", memory for {self.memory_limit} bytes"
        run.scheduler.say(f"starts as worker {self.worker_name}, polls of {self.poll_records}{memory}, {self.limits}")
        process = self.port = Process(
            actor, run.broker, run.rnd, run.aside, run.trouble, run.draw_skew(), run.checker.on_asked
        )
        process.on_read = run.on_read
        upstream = None
        if run.routers is not None:
            self.context = replace(self.context, rules=run.routers.rules_of(process, self.context.policy))
            upstream = SimUpstream(process)
        settings = self.settings
        sink = KafkaSink(
            cast(Any, SimClients(process, settings.transactional_id)),
            settings,
            on_step=lambda step: run.at_step(self, step),
            monotonic=lambda: run.scheduler.now / 1000,
            contents=SimContents(process),
            cpu=lambda: 0.0,
        )

        def restored(tps: Sequence[Tp], wanted: Wanted) -> Mapping[Tp, Task]:
            return restore(SimLogReader(process, wanted), {TOPICS.components: self.context}, tps, wanted)

        placements, paths = Placements({}), self.context.paths
        if paths is not None:
            path_log = SimPathLog(process, PATHS, paths)
            reading, commands = Reading.of(self.context.policy), self.context.command_reader
            placements = Placements({TOPICS.components: Placement(paths, path_log, reading, commands)})
        ports = Ports(
            SimSource(process),
            sink,
            process.clock,
            placements.restoring(restored),
            placements or None,
            upstream=upstream,
            faults=self.context.faults,
        )
        limit = self.memory_limit if run.faults else HUGE
        self.driver = Driver(ports, self, {TOPICS.components: TOPICS.commands}, self.poll_records, limit, self.stop)
        self.driver.run()

    # -- TaskRunner

    def assigned(self, tasks: Mapping[Tp, Task]) -> None:
        self.tasks.update(tasks)
        self._full_turns, self.is_misled = 0, False
        for tp, task in tasks.items():
            if tp in self.run.checker.lost:
                self.run.failed(f"partition {tp.partition} is restored from logs that were destroyed")
            self.run.scheduler.say(f"owns {tp.partition} from {task.position}, {len(task.groups)} groups open")

    def revoked(self, tps: Sequence[Tp]) -> None:
        self.run.scheduler.say(f"lets go of {[tp.partition for tp in tps]}")
        for tp in tps:
            self.tasks.pop(tp, None)

    def process(self, batches: Sequence[Batch]) -> None:
        run = self.run
        assert self.port is not None
        self.port.divisible = min(len(batch.records) for batch in batches) > 1
        self._check_memory(batches)
        for batch in batches:
            with batch:
                batch.apply(self.tasks[batch.tp], max(1, self.poll_records // 3))
                batch.seconds = self._costs.choice([0.0, SHARE_S, 4 * SHARE_S]) if self._is_costly else 0.0
                if batch.count > 1 and run.faults and run.rnd.random() < run.task_failure:
                    run.scheduler.say(f"the task of {batch.tp.partition} raises, its memory already changed")
                    raise TransientError
            if isinstance(batch.outcome, Plan):
                is_paused = batch.tp in self.paused_tps
                run.checker.on_plan(
                    batch.outcome,
                    self.context,
                    batch.latest,
                    is_paused=is_paused,
                    asked_at=batch.asked_at,
                    settled=batch.settled,
                )
                what = "tick" if batch.work is Work.TICK else f"to {batch.outcome.next_offset}"
                run.scheduler.say(f"plan for {batch.tp.partition}: {what}, {len(batch.outcome.outputs)} outputs")
        self.actor.wait()

    def committed(self, plans: Sequence[Plan]) -> None:
        self.run.scheduler.say(f"committed {[(plan.tp.partition, plan.next_offset) for plan in plans]}")
        for plan in plans:
            self.run.judged(lambda plan=plan: self.run.checker.compare_live(plan, self.tasks[plan.tp]))  # type: ignore[misc]

    def _check_memory(self, batches: Sequence[Batch]) -> None:
        """Paused partitions are not read; after as many turns as there are partitions, none that holds much is read far above the limit (ER-19)."""
        assert self.driver is not None
        reading = [batch.tp for batch in batches if batch.records]
        if self.paused_tps.intersection(reading):
            self.run.failed(f"reads from {reading}, though {sorted(self.paused_tps)} are paused")
        limit = self.driver.memory_limit_bytes
        held = {tp: task.memory_bytes for tp, task in self.tasks.items()}
        heavy = [tp for tp in reading if held[tp] > limit * LIGHT_SHARE / len(held)]
        self._full_turns = self._full_turns + 1 if heavy and sum(held.values()) > limit * STOP_SHARE else 0
        if self._full_turns > len(self.tasks):
            self.run.failed(f"holds {held}, may hold {limit} bytes, and reads on from {heavy}")

    def blocked(self, tp: Tp, cause: Blocked) -> None:
        expected = self.run.checker.lost.get(tp)
        if expected is None or expected not in str(cause):
            if PASSING not in str(cause) and not self.is_misled:
                self.run.failed(f"partition {tp.partition} is blocked: {cause}")
            self.run.scheduler.say(f"{tp.partition} is blocked for a while: {cause}")
            return
        self.run.scheduler.say(f"{tp.partition} is refused, as it must be: {cause}")

    def unblocked(self, tp: Tp) -> None:
        self.run.scheduler.say(f"{tp.partition} goes on")

    def paused(self, tps: Collection[Tp]) -> None:
        self.run.report.pauses += len(set(tps) - self.paused_tps)
        self.paused_tps = frozenset(tps)
        self.run.scheduler.say(f"paused because memory is short: {sorted(tp.partition for tp in tps)}")

    def doubted(self, doubt: Doubt) -> None:
        self.run.report.doubts += 1
        self.run.scheduler.say(f"{type(doubt).__name__}: {doubt}")

    def finished(self, error: BaseException | None) -> None:
        self.error = error
        if isinstance(error, Crash):
            return
        self.run.scheduler.say(f"ends: {error!r}" if error else "ends")
        if error is not None and not isinstance(error, FencedError):
            self.run.failed(f"the worker ends with {error!r}", error)


class Simulation:
    """One simulated run.

    Args:
        seed: Determines the whole run.
    """

    def __init__(self, seed: int) -> None:
        self.rnd = rnd = Random(seed)
        self.aside = Random(f"{seed} aside")  # dice for what was added later: what a seed drew before stays as it was
        self.report = SimulationReport(seed)
        self.scheduler = Scheduler(rnd)
        self.report.script = self.scheduler.script
        settings = BrokerSettings(rnd.randint(1, 3), rnd.random() < 0.4)
        self.broker = Broker(self.scheduler, settings)
        self._late = Random(f"{seed} late")
        self._families = draw_families(self.aside)
        policy = self._draw_policy()
        self.context = TaskContext(
            "D",
            TOPICS,
            policy,
            settings.partitions,
            single_object_header("Unit"),
            single_object_header("Outcome"),
            record_limit_bytes=draw_record_limit(rnd),
        )
        self._senders = PathMap()
        self._senders_at = 0
        if Random(f"{seed} has paths").random() < PATH_SHARE:  # dice of its own: other runs stay as they were
            self.context = replace(self.context, policy=replace(policy, routing=Routing.PATH), paths=self._senders)
        else:
            self.context = replace(self.context, policy=draw_late(policy, self._late))
        self._clock_dice = Random(f"{seed} has clocks that jump")
        self._jumping = self._clock_dice.random() < CLOCK_SHARE
        self._leaping = self._clock_dice.random() < CLOCK_SHARE
        self._skewed = rnd.random() < 0.25
        self._changing = rnd.random() < 0.3
        self._respelling = bool(self._families) and self.aside.random() < 0.5
        self._changing |= self._respelling
        if not self._changing:  # workers with different settings live side by side there, as real ones may not
            self.context = replace(self.context, recorded_settings=RecordedSettings.of("D", policy))
        self.checker = Checker(
            self.broker,
            self.context,
            strict_clocks=not self._skewed,
            strict_order=not (self._skewed or self._leaping),
            latest_ms=None if self._skewed or self._jumping else lambda: self.broker.now_ms() + CLOCK_LEAD_MS,
        )
        self.broker.on_commit = lambda transaction: self.judged(lambda: self.checker.on_commit(transaction))
        self.faults = True
        self.trouble = Trouble(*(rnd.choice([0, 0, 0.01, 0.05]) for _ in range(4)))
        self.trouble.refused = rnd.choice([0, 0, 0, 0.005])
        self._is_network_bad = self.aside.random() < BAD_NETWORK_SHARE
        if self._is_network_bad:
            self.trouble.delayed = 0.1
        self.trouble.silent = self.aside.choice([0, 0.3])
        self.trouble.cut_early = self.aside.choice([0, 0.5])
        self.trouble.unread = self.aside.choice([0, 0, 0.05])
        self._buries = self.aside.random() < BURYING_SHARE
        self.trouble.full = self.aside.choice([0, 0, 0.02])
        self.step_crash = rnd.choice([0, 0, 0.005, 0.02])
        self.step_pause = rnd.choice([0, 0, 0.005, 0.02])
        self.task_failure = rnd.choice([0, 0, 0.02, 0.1])
        self._restless = rnd.choice([0.2, 1.0, 2.0])
        self._traffic = Traffic(
            rnd, rnd.choice([4, 12]), ordered=self.context.paths is not None, aside=self.aside, families=self._families
        )
        self._records = rnd.choice([40, 120])
        self._loss_at = rnd.randrange(self._records) if rnd.random() < 0.25 and not self._changing else -1
        self.is_down = False
        self._commanding = rnd.choice([0, 0.05, 0.2, 0.4])
        self.rules = RuleTraffic(Random(f"{seed} rules"), is_on=self.context.paths is None)
        self.calls = CallTraffic(seed, self.rules.rows, is_on=self.context.paths is None)
        self.checker.context = replace(self.checker.context, rules=self.rules.table(policy, is_whole=True))
        self._workers = Processes(
            self, [str(number) for number in range(rnd.randint(1, 3))], "w", lambda *named: Life(self, *named)
        )
        self.routers: SimRouters | None = None
        self._add_routers(RouterTraffic(seed))
        self._violation: Violation | None = None
        self.scheduler.say(f"seed {seed}: {settings}", "run")
        self.scheduler.say(f"{policy}", "run")
        self.scheduler.say(f"{self.trouble}, skewed clocks: {self._skewed}", "run")

    def _add_routers(self, traffic: RouterTraffic) -> None:
        """In their share of the runs: in place of components by rule that nobody routed, and without losses."""
        if not traffic.is_on or self.context.paths is not None:
            return
        self.routers = SimRouters(self, traffic)
        self.rules = RuleTraffic(Random(), is_on=False)
        self.calls = CallTraffic(0, [], is_on=False)
        self._loss_at = -1
        whole = self.routers.all_rules(self.context.policy)
        self.checker.route(RouterChecks(self.broker, TOPICS, traffic), whole)

    def play(self) -> SimulationReport:
        """Plays it to the end; failures of workers are in the report."""
        report = self.report
        try:
            self.scheduler.play(self._plot())
        except Violation as violation:
            report.violation = str(violation)
            self.scheduler.say(f"VIOLATION: {violation}", "check")
        checker = self.checker
        report.commits, report.units = checker.commits, checker.units
        report.commands, report.notices = checker.commands, checker.notices
        report.routed = 0 if checker.routers is None else checker.routers.routed
        report.corrections = checker.corrections
        return report

    def _plot(self) -> Iterator[None]:
        self._workers.start_all()
        if self.routers is not None:
            self.routers.lives.start_all()
        yield from self._stormy()
        yield from self._become_quiet()
        self.judged(self.checker.at_the_end)
        self._raise_failures()

    # -- judgement

    def judged(self, check: Callable[[], None]) -> None:
        """Runs a check; a violation ends the run."""
        try:
            check()
        except Violation as violation:
            self._violation = self._violation or violation
            raise
        except Exception as error:  # noqa: BLE001 - whatever the check stumbles over is a finding
            self.failed(f"{type(error).__name__}: {error}", error)

    def failed(self, what: str, cause: BaseException | None = None) -> None:
        """Notes a violation; the run ends at the next step."""
        if self._violation is None:
            self._violation = Violation(what)
            self._violation.__cause__ = cause

    def _raise_failures(self) -> None:
        for error in self.scheduler.failures:
            self.failed(f"an actor ended with {error!r}", error)
        if self._violation is not None:
            raise self._violation

    # -- time

    def _step(self) -> Iterator[None]:
        scheduler, broker, rnd = self.scheduler, self.broker, self.rnd
        self.report.steps += 1
        if broker.markers and rnd.random() < 0.3:
            broker.deliver_marker(rnd)
        if broker.late and rnd.random() < 0.05 and not self._is_waited_for():
            broker.deliver_late(rnd)
        elif broker.late and self._is_network_bad and broker.is_writing() and self.aside.random() < 0.3:
            broker.deliver_late(self.aside)
        if self._jumping and self.faults and self._clock_dice.random() < 0.02:
            self._set_a_clock()
        yield
        if scheduler.is_idle:
            if broker.markers:
                broker.deliver_marker(rnd)
            elif broker.late and rnd.random() < 0.5 and not self._is_waited_for():
                broker.deliver_late(rnd)
            else:
                scheduler.now = max(scheduler.now, min(scheduler.next_wake(), scheduler.now + 500))
        scheduler.now += rnd.choice((0, 0, 0, 1, 3))
        broker.expire_members()
        broker.expire_transactions()
        self._raise_failures()

    def _is_waited_for(self) -> bool:
        """In a bad network a late request waits for the next transaction, in which it does most harm."""
        return self.trouble.delayed > 0 and self._is_network_bad and not self.broker.is_writing()

    # -- the storm

    def _stormy(self) -> Iterator[None]:
        rnd = self.rnd
        often = 6 if self._respelling else 1
        faults: list[tuple[float, Callable[[], None]]] = [
            (0.004 * often, self._workers.kill),
            (0.004, self._workers.pause),
            (0.010, self._workers.wake),
            (0.010 * often, self._workers.restart),
            (0.002, self._workers.start_twice),
            (0.002, self._workers.stop),
            (0.003, self._shake),
            (0.010, self._compact),
            (0.004, self._move),
            (0.008, self._cut),
            (0.004, self._leap),
            (0.004 * often, self._check_restore),
            *(self.routers.faults() if self.routers is not None else ()),
        ]
        sent = 0
        while sent < self._records:
            if rnd.random() < 0.08:
                for _ in range(rnd.randint(1, 8)):
                    self._send()
                    sent += 1
            if 0 <= self._loss_at <= sent:
                self._lose()
            for chance, fault in faults:
                if rnd.random() < chance * self._restless:
                    fault()
            yield from self._step()

    def _send(self) -> None:
        """Sends one record of a producer or an operator; some of their transactions stay open for a while, some abort."""
        rnd, broker = self.rnd, self.broker
        if self.routers is not None and self.routers.send():
            return
        topic, draw = TOPICS.components, self._traffic.next
        if rnd.random() < self._commanding:
            topic, draw = TOPICS.commands, self._traffic.command
        row = self.calls.next(topic) or self.rules.next(topic, broker.now_ms()) or draw(broker.now_ms())
        partitions = broker.settings.partitions
        home = partition_for(row[0] or b"", partitions) if self.context.paths is None else self._placed(row, topic)
        partition = home if rnd.random() < 0.95 else rnd.randrange(partitions)
        log = broker.log(Tp(topic, partition))
        if rnd.random() < 0.95:
            log.append(row, broker.now_ms() + self._leap_of(topic), now=self.scheduler.now)
            return
        owner = f"producer-{self.report.steps}-{log.end}"
        outcome = rnd.choice([State.COMMITTED, State.ABORTED])
        log.append(row, broker.now_ms(), owner, self.scheduler.now)
        broker.markers.append(("marker of a producer", lambda: log.finish(owner, outcome, broker.now_ms())))

    def _leap_of(self, topic: str) -> int:
        """The error of the broker's clock for this one record, in milliseconds."""
        if topic != TOPICS.components or not self._leaping or not self.faults or self._clock_dice.random() > 0.04:
            return 0
        self.report.leaps += 1
        return self._clock_dice.choice([90_000, 3_600_000, 10**11])

    def _placed(self, row: Row, topic: str) -> int:
        """The partition that a sender chooses under path routing: some hash; some claim, and may not wait for the claim; commands follow what is known."""
        rnd, broker, paths = self.rnd, self.broker, self._senders
        log, partitions = broker.log(PATHS), broker.settings.partitions
        group_id = row[0] or b""
        hashed = partition_for(group_id, partitions)
        if rnd.random() < 0.4:
            return hashed
        if any(name == ORDER_KEY for name, _ in row[2]):
            return hashed  # the worker knows where others of its order key are placed
        if topic == TOPICS.components and paths.get(group_id) is None and group_id and rnd.random() < 0.7:
            key = claim_key(group_id, rnd.randbytes(NONCE_BYTES))
            log.append((key, claim_value(rnd.randrange(partitions)), []), broker.now_ms(), now=self.scheduler.now)
        if rnd.random() < 0.7:
            for record in log.visible(self._senders_at, log.stable_end):
                paths.read(record.key(), record.value(), record.timestamp()[1])
            self._senders_at = log.stable_end
        placed = paths.get(group_id)
        return hashed if placed is None else placed

    def _draw_policy(self) -> DestinationPolicy:
        """Draws a policy. It accepts most of the spellings that senders use."""
        policy = draw_policy(self.rnd)
        if not self._families:
            return policy
        return replace(policy, accept_aliases=frozenset(each for each in self._families if self.aside.random() < 0.7))

    def draw_context(self) -> TaskContext:
        """The destination's settings for one process: in some runs they change from one start to the next."""
        if not self._changing:
            return self.context
        policy = replace(self._draw_policy(), routing=self.context.policy.routing)
        if not policy.has_paths:
            policy = draw_late(policy, self._late)
        if self._respelling:
            policy = replace(self.context.policy, accept_aliases=policy.accept_aliases)
        self.scheduler.say(f"{policy}", "run")
        return replace(self.context, policy=policy)

    def draw_limits(self) -> ReplayLimits:
        """Replay bounds of one start. Wide ones if only the spelling changes, so that one replay reads records that were read under several settings."""
        limits = draw_limits(self.rnd)
        return ReplayLimits(HUGE, HUGE, HUGE) if self._respelling else limits

    def draw_skew(self) -> float:
        """The error of a process's clock when it starts; it may be put right later."""
        skew = self.rnd.choice([0, -400, 5_000]) if self._skewed else 0.0
        return self._clock_dice.choice([skew, 400_000]) if self._skewed and self._jumping else skew

    def pause(self, actor: Actor, where: str = "") -> None:
        """Stops a process, often for longer than its session, sometimes for longer than its transaction may be open."""
        self.scheduler.say(f"SIGSTOP {actor.name}{where}", "fault")
        actor.paused_at = self.scheduler.now
        if self.rnd.random() < 0.6:
            self.scheduler.now += self.rnd.choice([3_000, 6_100, 6_500, 11_000])

    def at_step(self, life: Lived, step: str) -> None:
        """A process is at a named commit step: it may be killed or stopped there."""
        if self.faults and self.rnd.random() < self.step_crash:
            self.scheduler.say(f"killed at step {step}")
            self.report.crashes += 1
            life.actor.kill()
            raise Crash
        if self.faults and self.rnd.random() < self.step_pause:
            self.pause(life.actor, f" at step {step}")
        life.actor.wait()

    def _shake(self) -> None:
        self.scheduler.say("the group is shaken", "fault")
        self.broker.salt += 1
        self.broker.rebalance()

    def _compact(self) -> None:
        for partition in range(self.broker.settings.partitions):
            log = self.broker.log(Tp(TOPICS.groups_changelog, partition))
            log.compact(bury=self._bury())
        if self.context.paths is not None:
            self.broker.log(PATHS).compact(bury=False)  # tombstones stay longer than anybody sleeps

    def on_read(self) -> None:
        """Called when a restore has read something: compaction may run meanwhile."""
        if self._buries and self.faults and self.aside.random() < 0.2:
            self._compact()

    def _reading(self) -> list[Life]:
        """The processes that read logs now."""
        return [life for life in self._workers.living() if life.actor in self.broker.readers]

    def _bury(self) -> bool:
        """True if compaction takes tombstones. A reader may then believe in a row that was deleted, and must read once more."""
        reading = self._reading()
        if not self._buries:
            return not reading
        for life in reading:
            life.is_misled = True
        return bool(reading)

    def _move(self) -> None:
        """Moves a leader or a coordinator; mostly it is away for less time than clients wait, sometimes for longer."""
        places: list[Tp | str] = [TRANSACTIONS, GROUP, *sorted(self.broker.logs)]
        place = self.rnd.choice(places)
        for_ms = self.rnd.choice([20, 300, 300, 4_000, 15_000])
        self.scheduler.say(f"{place} moves, away for {for_ms} ms", "fault")
        self.report.moves += 1
        self.broker.move(place, for_ms)

    def _cut(self) -> None:
        """Retention deletes input that is not read any more, commands that are decided, and ledger records that are not needed any more."""
        for tp in self._commands():
            self.broker.log(tp).cut(self.checker.positions.get(tp, Committed(0, "")).offset or 0)
        for tp in self._inputs():
            if tp not in self.checker.lost:
                self.report.cuts += 1
                self.broker.log(tp).cut(self.checker.wanted(tp))
                if not self._changing:
                    self.checker.cut_ledger(tp)

    def _lose(self) -> None:
        """While all workers are down, destroys something that a restore needs, or resets an offset (ER-20)."""
        broker = self.broker
        if not self.is_down:
            self.scheduler.say("all workers are killed, and stay down", "fault")
            self.is_down = True
            for life in self._workers.living():
                life.actor.kill()
        if broker.markers or broker.late or any(log.open for log in broker.logs.values()):
            return
        self.is_down, self._loss_at = False, -1
        losses = Losses(broker, self.checker, self.rnd)
        drawn = losses.draw(self._inputs())
        if drawn is not None:
            tp, what = drawn
            self.scheduler.say(f"{what} of {tp.partition} is lost", "fault")
            self.report.losses += 1
            self.checker.lost[tp] = losses.inflict(tp, what)

    def _leap(self) -> None:
        """Time passes; the clocks of brokers may jump."""
        self.scheduler.now += self.rnd.choice([100, 1_000, 7_000])
        if self._skewed:
            self.broker.skew_ms = self.rnd.choice([0, -2_000, 300, 60_000])

    def _set_a_clock(self) -> None:
        """Sets a worker's wall clock, forward, back or right."""
        life = self._clock_dice.choice(self._workers.living() or [None])
        if life is not None and life.port is not None:
            life.port.skew_ms = self._clock_dice.choice([0, 0, 700, -700, 20_000, -20_000, 400_000, -400_000])
            self.scheduler.say(f"the wall clock of {life.actor.name} is off by {life.port.skew_ms:.0f} ms", "fault")

    def _check_restore(self) -> None:
        self.judged(self.checker.compare_restored)

    # -- quiet

    def _become_quiet(self) -> Iterator[None]:
        self.faults = self.is_down = False
        delayed = self.trouble.delayed if self._is_network_bad else 0
        self.trouble.stop()
        self.trouble.delayed = delayed
        self.broker.away.clear()
        for life in self._workers.living():
            if life.driver is not None:
                life.driver.memory_limit_bytes = HUGE
            if self._jumping and life.port is not None:
                life.port.skew_ms = 0
        self.scheduler.say("faults stop", "run")
        until = 0.0
        for _ in range(QUIET_STEPS):
            for processes in self._all_processes():
                processes.wake()
                processes.restart()
            yield from self._step()
            if not self._has_settled():
                continue
            self.trouble.stop()
            if self.broker.late:
                continue
            if not until:
                until = self.scheduler.now + LAST_DEADLINE_MS
                self.scheduler.now = until
            elif self.scheduler.now > until + 1_000 and not (overdue := self._overdue()):
                return
            elif self.scheduler.now > until + PUNCTUAL_MS:
                self.failed(
                    f"{overdue} groups outlive their deadline for {PUNCTUAL_MS} ms, though nobody is busy (W-83)"
                )
                return
        lag = {tp: self.checker.lag(tp) for tp in [*self._inputs(), *self._commands()]}
        self.failed(f"never quiet: records waiting {lag}, groups overdue {self._overdue()}")

    def _all_processes(self) -> Sequence[Processes[Any]]:
        return [self._workers] if self.routers is None else [self._workers, self.routers.lives]

    def _overdue(self) -> int:
        """The number of open groups past their deadline, by their worker's policy, and of partitions with a replayable group beyond its age."""
        now = min(self.broker.now_ms(), int(self.scheduler.now) + EPOCH_MS)
        tasks = [
            (cast(PartitionTask, task), life.context) for life in self._workers.living() for task in life.tasks.values()
        ]
        late = sum(group.due_at(each.policy) < now for task, each in tasks for group in task.groups.values())
        oldest = [
            (next((group for group in task.groups.values() if is_replayable(group)), None), each.replay.age_ms)
            for task, each in tasks
        ]  # by its place in the input; another's append time may lie before its own
        return late + sum(group is not None and group.opened_at + age_ms < now for group, age_ms in oldest)

    def _inputs(self) -> list[Tp]:
        return [Tp(TOPICS.components, partition) for partition in range(self.broker.settings.partitions)]

    def _commands(self) -> list[Tp]:
        return [Tp(TOPICS.commands, partition) for partition in range(self.broker.settings.partitions)]

    def _has_settled(self) -> bool:
        """Everything is read and committed; requests may still be on their way."""
        broker = self.broker
        return (
            not broker.markers
            and broker.preparing_since is None
            and not any(log.open for log in broker.logs.values())
            and not any(map(self.checker.lag, [*self._inputs(), *self._commands()]))
            and not (self.checker.routers is not None and self.checker.routers.lag())
        )


def play(seed: int) -> SimulationReport:
    """Plays the run of a seed."""
    with _quiet("uow.clock", "uow.partition", "uow.sink"):
        return Simulation(seed).play()


@contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Only errors are logged by these loggers meanwhile."""
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
