"""One round of a client proof: producers, forwarders and readers run under faults of themselves and of their broker, then the judge reads all.

Belongs here: topics, processes, faults, waiting. Does not belong here: the programs (`client_programs`) and judging (`client_judge`).
"""

from __future__ import annotations

import math
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import KafkaException
from confluent_kafka.cimpl import NewTopic

from uow.embedded.child_processes import ChildProcess
from uow.prove import reading
from uow.prove.client_judge import judge, read_journal
from uow.prove.client_programs import FENCED
from uow.prove.cluster_faults import ClusterFaults, Strangers
from uow.prove.faults import Fault, FaultKind, draw, parted
from uow.prove.proof import ProofSettings
from uow.prove.round import PARTITIONS, PENDING_S, QUIET_S, RoundCluster
from uow.prove.seen_records import Findings
from uow.prove.supervised_worker import Tally
from uow.prove.timeline import EventLog
from uow.topics import admin

KINDS: Final = (
    FaultKind.KILL,
    FaultKind.STOP,
    FaultKind.FREEZE,
    FaultKind.STORM,
    FaultKind.BROKER_STOP,
    FaultKind.BROKER_KILL,
    FaultKind.BROKER_FREEZE,
    FaultKind.FRAMES,
)
"""Kinds of fault that make sense for clients."""
PROGRAMS: Final = (("forwarder", 0), ("reader", 0), ("transacted", 0), ("plain", 0), ("forwarder", 1), ("reader", 1))
"""In the order in which they get faults."""
PRODUCERS: Final = ("plain", "transacted")
SESSION_MS: Final = 6000
LOOK_S: Final = 0.05
END_S: Final = 30.0
LONGEST_S: Final = 600.0
"""Longest that the programs may work on after the last fault, on a slow machine."""
CONNECT_S: Final = 15.0
"""Longest that a fault waits for its program to be at work."""
AT_WORK_BYTES: Final = 200
"""In the journal of a run, more than that it began."""
GOES_ON_BYTES: Final = 5000
"""That each producer writes after the last fault, so that there is something to compare."""
ENDED: Final = {FaultKind.KILL: 128 + signal.SIGKILL, FaultKind.STOP: 0}


class Program:
    """One program that is started again and again, each time with the next fault.

    Args:
        who: Role and number.
        command: The command that starts it.
        cluster: Where it connects to.
        folder: Of its journal and its output.
        faults: The remaining faults of programs, shared by all.
        tally: Counts faults, and collects findings.
        event_log: Collects events.
        has_late_requests: True if its requests may arrive late: a late one to join makes the broker believe in a second program of its name.
    """

    def __init__(
        self,
        who: str,
        command: Sequence[str],
        cluster: RoundCluster,
        folder: Path,
        faults: deque[Fault],
        tally: Tally,
        event_log: EventLog,
        has_late_requests: bool,
    ) -> None:
        self.who = who
        self._command, self._cluster = command, cluster
        self._log, self._journal = folder / f"{who}.log", folder / f"{who}.jsonl"
        self._faults, self._tally, self._event_log = faults, tally, event_log
        self._has_late_requests = has_late_requests
        self._fault: Fault | None = None
        self._leaves: FaultKind | None = None
        self._thaw_at = 0.0
        self.start()

    def start(self) -> None:
        """Starts it, with the next fault."""
        self._child = ChildProcess(self._command, self._log, self._cluster.environment)
        self._begun, self._leaves, self._thaw_at, self._wrote = time.monotonic(), None, 0.0, self.wrote
        self._fault = self._fault or (self._faults.popleft() if self._faults else None)

    @property
    def wrote(self) -> int:
        """Bytes in its journal."""
        return self._journal.stat().st_size if self._journal.exists() else 0

    @property
    def is_busy(self) -> bool:
        """True while a fault of it is still to come, or under way."""
        return self._fault is not None or self._leaves is not None

    def supervise(self) -> None:
        """One step: causes the fault if it is due; starts it again if it has ended."""
        now, fault = time.monotonic(), self._fault
        if (status := self._child.status) is not None:
            if status == FENCED and self._has_late_requests:
                self._tally.findings.counts["fenced by late requests"] += 1
            elif self._leaves is None or status != ENDED[self._leaves]:
                self._complain(status)
            self._child.kill()
            self.start()
        elif fault is None:
            if self._leaves is None and self._faults:
                self._fault, self._begun = self._faults.popleft(), now
        elif self._thaw_at:
            if now >= self._thaw_at:
                self._child.signal(signal.SIGCONT)
                self._happened(fault)
        elif self.wrote < self._wrote + AT_WORK_BYTES and now - self._begun < CONNECT_S:
            pass  # nothing would be disturbed yet
        elif now - self._begun >= fault.after_s:
            match fault.kind:
                case FaultKind.FREEZE:
                    self._child.signal(signal.SIGSTOP)
                    self._thaw_at = now + fault.lasts_s
                case _:
                    self._happened(fault)
                    self._leaves = fault.kind
                    self._child.signal(signal.SIGKILL if fault.kind is FaultKind.KILL else signal.SIGTERM)

    def _happened(self, fault: Fault) -> None:
        self._tally.faults[fault.name] += 1
        self._event_log.note(self.who, fault.name, fault.lasts_s, fault.detail)
        self._fault, self._thaw_at, self._begun = None, 0.0, time.monotonic()

    def end(self) -> None:
        """Ends it in order."""
        self._child.signal(signal.SIGTERM)
        try:
            status = self._child.wait(END_S)
        except subprocess.TimeoutExpired:
            self._child.signal(signal.SIGABRT)  # it says where it stands
            status = self._child.end(END_S)
        if status != 0:
            self._complain(status)

    def close(self) -> None:
        """Ends it at once."""
        self._child.signal(signal.SIGCONT)
        self._child.kill()

    def _complain(self, status: int | None) -> None:
        text = f"{self.who} ended with {status}; {self._log} ends with\n{self._child.said[-2000:]}"
        self._tally.findings.say("exit", text)


@dataclass(frozen=True, slots=True)
class ClientResult:
    """The result of a round.

    Attributes:
        seconds: Its duration.
        faults: Number of faults, by name.
        findings: Counts and anomalies.
        folder: Folder of journals and logs.
    """

    seconds: float
    faults: dict[str, int]
    findings: Findings
    folder: Path


def play(
    cluster: RoundCluster,
    folder: Path,
    seed: int,
    kinds: Sequence[FaultKind],
    count: int,
    until: float,
    command: Sequence[str] = (),
) -> ClientResult:
    """Plays a round. When it returns, every process that it started has ended, and its topics are deleted.

    Args:
        cluster: The Kafka cluster.
        folder: For journals and logs; made here.
        seed: Decides the faults, but not their timing.
        kinds: Kinds of fault to draw from.
        count: Number of faults.
        until: Time by `time.monotonic` after which no fault begins.
        command: The command that starts a program; tests use one with a planted defect.

    Raises:
        RuntimeError: The thread of cluster faults failed: nothing was judged.
        TimeoutError: A topic cannot be read to its end: nothing was judged.
    """
    folder.mkdir(parents=True)
    rng, name, begun = random.Random(seed), f"prove-client-{uuid4().hex[:8]}", time.monotonic()
    of_programs, of_cluster = parted(draw(rng, kinds, count))
    tally, event_log, faults = Tally(), EventLog(), deque(of_programs)
    topics = [f"{name}.components", f"{name}.onward"]
    client = admin.admin_client(cluster.bootstrap, cluster.properties)
    replication = admin.default_replication(client)
    for made in client.create_topics([NewTopic(each, PARTITIONS, replication) for each in topics]).values():
        made.result(PENDING_S)
    start = [*(command or (sys.executable, "-m", "uow.prove.client_programs"))]
    try:
        with ExitStack() as stack:
            programs: list[Program] = []
            is_late = FaultKind.FRAMES in kinds
            for role, number in PROGRAMS:
                who = f"{role}-{number}"
                arguments = [*start, role, str(number), name, cluster.for_workers, str(folder)]
                programs.append(Program(who, arguments, cluster, folder, faults, tally, event_log, is_late))
                stack.callback(programs[-1].close)
            strangers = Strangers(cluster.client, f"{name}-read", topics[1:], SESSION_MS, rng)
            troubles = ClusterFaults(of_cluster, [], strangers, cluster.broker, cluster.proxy, name, event_log, tally)
            troubles.start()
            stack.callback(troubles.stop)
            while faults or troubles.is_alive() or any(each.is_busy for each in programs):
                if time.monotonic() >= until:
                    faults.clear()
                    troubles.hush()
                for each in programs:
                    each.supervise()
                time.sleep(LOOK_S)
            if troubles.error is not None:
                raise RuntimeError(f"{troubles.name}: {troubles.error}") from troubles.error
            producers = [each for each in programs if each.who.startswith(PRODUCERS)]
            goals = [(each, each.wrote + GOES_ON_BYTES) for each in producers]
            _wait_while(programs, lambda: any(each.wrote < goal for each, goal in goals), tally.findings, "a producer")
            for each in producers:
                each.end()
            others = [each for each in programs if each not in producers]
            _wait_read(cluster, name, others, tally.findings)
            for each in others:
                each.end()
        findings = tally.findings
        for said in cluster.proxy.fences.take() if cluster.proxy is not None else ():
            findings.say("not fenced", said)
        journals = {path.stem: read_journal(path) for path in sorted(folder.glob("*.jsonl"))}
        came, onward = (reading.read_topic(cluster.client, each) for each in topics)
        findings.add(judge(journals, came, onward))
        return ClientResult(time.monotonic() - begun, dict(tally.faults), findings, folder)
    finally:
        _remove(client, name, topics)


def _wait_read(cluster: RoundCluster, name: str, programs: Sequence[Program], findings: Findings) -> None:
    """Waits until everything is forwarded and acknowledged."""
    for group, topic in ((f"{name}-forward", f"{name}.components"), (f"{name}-read", f"{name}.onward")):
        _wait_while(programs, partial(reading.unread, cluster.client, group, topic), findings, f"{group} on {topic}")


def _wait_while(programs: Sequence[Program], is_so: Callable[[], object], findings: Findings, who: str) -> None:
    """Lets the programs go on while something is so, but not for ever, and not if they do nothing any more."""
    begun = at = time.monotonic()
    wrote = -1
    while is_so():
        for each in programs:
            each.supervise()
        now, before, wrote = time.monotonic(), wrote, sum(each.wrote for each in programs)
        if wrote > before:
            at = now
        if now - at > QUIET_S or now - begun > LONGEST_S:
            findings.say("not quiet", f"{who} did not come to an end {now - begun:.0f} s after the last fault")
            return
        time.sleep(10 * LOOK_S)


def _remove(client: Any, name: str, topics: Sequence[str]) -> None:
    """Deletes the round's topics and groups, as far as the broker lets it."""
    pending = [*client.delete_topics([*topics], operation_timeout=PENDING_S).values()]
    pending += client.delete_consumer_groups([f"{name}-forward", f"{name}-read"]).values()
    for each in pending:
        each.exception()


def prove(
    cluster: RoundCluster,
    settings: ProofSettings,
    folder: Path,
    keep: bool,
    tell: Callable[[int, str, bool], None],
    command: Sequence[str] = (),
) -> dict[str, Any]:
    """Rounds until the time is over, or as many as asked for.

    Args:
        cluster: The Kafka cluster.
        settings: Seed, kinds, minutes, rounds, faults in a round.
        folder: For journals and logs; those of good rounds are removed, unless `keep`.
        keep: See there.
        tell: Called after each round with its number, its result in one line, and True if there was no anomaly.
        command: As of `play`.

    Returns:
        The result as one JSON object.
    """
    begun, total, faults = time.monotonic(), Findings(), Counter[str]()
    until = math.inf if settings.rounds else begun + 60 * settings.minutes
    number, failure = 0, ""
    while not failure and (number < settings.rounds if settings.rounds else time.monotonic() < until or not number):
        seed = random.Random(f"{settings.seed}/{number}").randrange(1 << 30)
        own = folder / f"round-{number}"
        try:
            result = play(cluster, own, seed, [*settings.kinds], settings.per_round, until, command)
        except (RuntimeError, TimeoutError, KafkaException) as error:
            failure = f"round {number} could not be judged: {error}"
            break
        total.add(result.findings)
        faults.update(result.faults)
        is_good, counts = not result.findings.anomalies, result.findings.counts
        tell(number, f"{counts['records']:,} records, {sum(result.faults.values())} faults", is_good)
        if is_good and not keep:
            shutil.rmtree(own)
        number += 1
    counts, anomalies = total.counts, sum(total.anomalies.values())
    amount = f"{number} round{'' if number == 1 else 's'}, {sum(faults.values())} faults, {counts['records']:,} records sent, {counts['forwarded']:,} forwarded"
    is_proved = not failure and not anomalies
    return {
        "proved": is_proved,
        "verdict": f"nothing is proved: {failure}"
        if failure
        else f"{'proved: ' * is_proved}{amount}, {anomalies:,} anomalies",
        "seed": settings.seed,
        "seconds": round(time.monotonic() - begun, 1),
        "faults": dict(faults),
        "counts": dict(sorted(counts.items())),
        "anomalies": dict(total.anomalies),
        "texts": total.texts,
    }
