"""Faults that affect all workers at once: rolling restarts, strangers in their group, disturbed requests, and outages of their broker.

One thread causes one fault after the other. Broker faults are for the embedded broker only, which always runs again in the end.

**Disk full** without root: `RLIMIT_FSIZE` of the running Kafka process is lowered to a little above the largest segment it is writing to. A
write that crosses the limit stops in the middle and fails with an `IOException`, as on a full disk. Kafka considers its only log folder
broken and halts; it is started again without the limit, finds the incomplete batch and truncates the log there.

Belongs here: causing these faults. Does not belong here: faults of one worker (`supervised_worker`).
"""

from __future__ import annotations

import logging
import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import confluent_kafka as ck

from uow.embedded.broker import EmbeddedBroker
from uow.prove.faults import Fault, FaultKind
from uow.prove.frames import TRANSACTION, Api, FrameRule, Proxy
from uow.prove.frames import FrameFault as How
from uow.prove.supervised_worker import SupervisedWorker, Tally
from uow.prove.timeline import (
    BROKER,
    GROUP,
    NETWORK,
    EventLog,
)

PATIENCE_S = 60.0
LOOK_S = 0.05
LATE_S = 1.0
CUT_BEGINNINGS = 0.7
"""Share of `InitProducerId` that is cut while requests of transactions go astray."""

ROOM_BYTES = 60_000
"""Number of bytes that may still be written before the disk is full."""

TOO_LARGE = b"File too large"
"""The text in Kafka's log after that."""

QUIET = logging.getLogger("uow.prove.cluster_faults")
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False


class Strangers:
    """Members of the workers' group that join, take partitions without processing them, and leave.

    Args:
        client: librdkafka properties.
        group: The workers' consumer group.
        topics: The topics that the workers subscribe to.
        session_ms: The workers' session time-out.
        rng: Decides how long each stays.
    """

    def __init__(
        self, client: Mapping[str, str], group: str, topics: Sequence[str], session_ms: int, rng: random.Random
    ) -> None:
        self._topics, self._rng = topics, rng
        self._properties = {
            **client,
            "group.id": group,
            "session.timeout.ms": str(session_ms),
            "partition.assignment.strategy": "cooperative-sticky",
            "enable.auto.commit": "false",
            "enable.auto.offset.store": "false",
            "isolation.level": "read_committed",
            "log_level": "2",
        }

    def visit(self, seconds: float, stopped: threading.Event) -> str:
        """Joins and leaves for this time, and until partitions have moved to the strangers. Returns a summary.

        Raises:
            RuntimeError: They were given no partition, so there was no storm.
        """
        until, joined = time.monotonic() + seconds, 0
        taken: list[ck.TopicPartition] = []
        while not stopped.is_set() and (time.monotonic() < until or not taken):
            if time.monotonic() > until + PATIENCE_S:
                raise RuntimeError(f"{joined} strangers joined, but were given no partition")
            with ExitStack() as stack:
                members = [ck.Consumer(self._properties, logger=QUIET) for _ in range(self._rng.randrange(1, 3))]
                for member in members:
                    stack.callback(member.close)
                    member.subscribe(list(self._topics), on_assign=lambda _, given: taken.extend(given))
                joined += len(members)
                leave_at = time.monotonic() + self._rng.uniform(0.1, 1.2)
                while not stopped.is_set() and (
                    time.monotonic() < leave_at or (not taken and until < time.monotonic() < until + PATIENCE_S)
                ):
                    for member in members:
                        member.consume(1, 0.02)
        return f"{joined} strangers joined and left, {len(taken)} partitions moved to them"


class ClusterFaults(threading.Thread):
    """Causes faults, one after the other, each after its pause.

    Args:
        faults: The faults, in order.
        workers: All workers.
        strangers: The members for rebalance storms.
        broker: The embedded broker; None on another cluster, and then `faults` has no broker faults.
        proxy: The proxy between broker and workers; None without one, and then `faults` has none for it.
        fresh: Prefix of the names of this round's partition folders in the broker's data.
        event_log: Collects events.
        tally: Counts faults and exit statuses, and collects findings.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        workers: Sequence[SupervisedWorker],
        strangers: Strangers,
        broker: EmbeddedBroker | None,
        proxy: Proxy | None,
        fresh: str,
        event_log: EventLog,
        tally: Tally,
    ) -> None:
        super().__init__(name="prove-cluster-faults", daemon=True)
        self._faults, self._workers, self._strangers, self._fresh = faults, workers, strangers, fresh
        self._broker, self._proxy = broker, proxy
        self._event_log, self._tally = event_log, tally
        self._stopped = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        """The thread; an exception is kept in `error` for the owner."""
        try:
            for fault in self._faults:
                if self._stopped.wait(fault.after_s):
                    return
                began = time.monotonic()
                lane, detail = self._happen(fault)
                self._tally.faults[fault.name] += 1
                self._event_log.note(lane, fault.name, time.monotonic() - began, detail)
        except BaseException as error:  # noqa: BLE001 - the thread's boundary
            self.error = error

    def hush(self) -> None:
        """Lets the present fault end, and starts no further one."""
        self._stopped.set()

    def stop(self) -> None:
        """Ends the present fault early."""
        self.hush()
        self.join(2 * PATIENCE_S)

    def _happen(self, fault: Fault) -> tuple[str, str]:
        """Causes a fault; returns whom it affected, and details."""
        match fault.kind:
            case FaultKind.ROLL:
                return GROUP, self._roll()
            case FaultKind.STORM:
                return GROUP, self._strangers.visit(fault.lasts_s, self._stopped)
            case FaultKind.FRAMES:
                return NETWORK, self._disturb(fault)
            case FaultKind.BROKER_STOP:
                return BROKER, self._outage(EmbeddedBroker.stop, fault)
            case FaultKind.BROKER_KILL:
                return BROKER, self._outage(EmbeddedBroker.kill, fault)
            case FaultKind.DISK_FULL:
                return BROKER, self._outage(self._fill_disk, fault)
            case FaultKind.BROKER_FREEZE:
                return BROKER, self._freeze(fault)
            case _:
                raise AssertionError(fault)

    def _roll(self) -> str:
        for worker in self._workers:
            worker.request_restart()
            until = time.monotonic() + PATIENCE_S
            while not worker.is_restarted and time.monotonic() < until and not self._stopped.is_set():
                time.sleep(LOOK_S)
        return "one worker after the other"

    def _disturb(self, fault: Fault) -> str:
        """Disturbs requests. Held frames arrive up to a second later, often during the next transaction; all of them arrive in the end.

        The connections of new producers that replace those in doubt are cut too: librdkafka does not report a break that is like the last ones
        (ER-11).
        """
        assert self._proxy is not None, "faults of requests are for an embedded broker"
        assert fault.way is not None
        rule = self._proxy.add(FrameRule(fault.way, fault.requests, chance=fault.share))
        if TRANSACTION.issuperset(fault.requests):
            self._proxy.add(FrameRule(How.CUT, {Api.INIT_PRODUCER_ID}, chance=CUT_BEGINNINGS))
        late, until = 0, time.monotonic() + fault.lasts_s
        while time.monotonic() < until and not self._stopped.wait(LATE_S):
            late += self._proxy.release(LATE_S)
        self._proxy.clear()
        late += self._proxy.release(LATE_S)
        return f"{fault.detail}: {rule.hits} requests, {late} frames arrived late"

    # -- the broker

    @property
    def _ours(self) -> EmbeddedBroker:
        assert self._broker is not None, "faults of a broker are for an embedded one"
        return self._broker

    def _outage(self, end: Callable[[EmbeddedBroker], str | None], fault: Fault) -> str:
        said = end(self._ours) or "ended"
        self._stopped.wait(fault.lasts_s)
        self._ours.start()
        return f"{said}, started again after {fault.lasts_s:.1f} s"

    def _freeze(self, fault: Fault) -> str:
        pid = self._ours.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            self._stopped.wait(fault.lasts_s)
        finally:
            os.kill(pid, signal.SIGCONT)
        return fault.detail

    def _fill_disk(self, broker: EmbeddedBroker) -> str:
        assert broker.pid is not None
        begin = broker.log.stat().st_size
        limit = (
            max([begin, *_sizes(broker.folder / "data", self._fresh)]) + ROOM_BYTES
        )  # room for the log line about it
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        until = time.monotonic() + PATIENCE_S
        while broker.is_running:
            if time.monotonic() > until:
                raise TimeoutError(f"Kafka continues although files cannot grow beyond {limit} bytes; see {broker.log}")
            time.sleep(LOOK_S)
        broker.stop()
        with broker.log.open("rb") as said:
            said.seek(begin)
            if TOO_LARGE not in said.read():
                raise RuntimeError(f"Kafka ended, but not because of the file size limit; see {broker.log}")
        return "Kafka halted: java.io.IOException: " + TOO_LARGE.decode()


def can_fill_disk() -> bool:
    """True if the limits of another process can be changed, which only Linux allows."""
    return hasattr(resource, "prlimit")


def _sizes(data: Path, fresh: str) -> Iterable[int]:
    """Sizes of the segments of this round's partitions."""
    for log in data.glob(f"{fresh}*/*.log"):
        yield log.stat().st_size
