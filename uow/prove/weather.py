"""What befalls all workers at once: rolling restarts, strangers in their group, requests that go astray, and their broker's outages.

One thread, one fault after the other. Broker faults are for the embedded broker only; whatever is done to it, it runs again in the end.

**Disk full** without root: `RLIMIT_FSIZE` of the running Kafka process is lowered to a little above the largest segment it is writing to. A
write that crosses the limit is cut off in the middle and fails with an `IOException`, as on a full disk. Kafka takes its only log folder
for broken and halts; it is started again without the limit, finds the torn batch and cuts it off.

Belongs here: doing it. Does not belong here: what befalls one worker (`slot`).
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

from uow.broker import EmbeddedBroker
from uow.prove.events import BROKER, GROUP, NETWORK, Notebook
from uow.prove.faults import Fault, Kind
from uow.prove.frames import TRANSACTION, Api, Proxy, Rule
from uow.prove.frames import Fault as How
from uow.prove.slot import Slot, Tally

PATIENCE_S = 60.0
LOOK_S = 0.05
LATE_S = 1.0
CUT_BEGINNINGS = 0.7
"""Share of `InitProducerId` that is cut while requests of transactions go astray."""

ROOM_BYTES = 60_000
"""What may still be written before the disk is full."""

TOO_LARGE = b"File too large"
"""What Kafka's log says then."""

QUIET = logging.getLogger("uow.prove.weather")
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False


class Strangers:
    """Members of the workers' group that join, take what they are given, do nothing with it, and leave.

    Args:
        client: librdkafka properties.
        group: The workers'.
        topics: What the workers subscribe to.
        session_ms: As the workers have it.
        rng: Decides who stays how long.
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
        """Comes and goes for so long, and until partitions have moved: the last who come stay for them. What came of it.

        Raises:
            RuntimeError: They are given no partition: that is no storm.
        """
        until, joined = time.monotonic() + seconds, 0
        taken: list[ck.TopicPartition] = []
        while not stopped.is_set() and (time.monotonic() < until or not taken):
            if time.monotonic() > until + PATIENCE_S:
                raise RuntimeError(f"{joined} strangers joined, and were given nothing")
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


class Weather(threading.Thread):
    """Lets faults happen, one after the other, each after its pause.

    Args:
        faults: What, in order.
        slots: Of the workers.
        strangers: For rebalance storms.
        broker: Ours; None: somebody else's, and `faults` has none for it.
        proxy: Between it and the workers; None: nothing is, and `faults` has none for it.
        fresh: Start of the names of the folders that this round's partitions have in the broker's data.
        notebook: Takes events.
        tally: Takes what happened.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        slots: Sequence[Slot],
        strangers: Strangers,
        broker: EmbeddedBroker | None,
        proxy: Proxy | None,
        fresh: str,
        notebook: Notebook,
        tally: Tally,
    ) -> None:
        super().__init__(name="prove-weather", daemon=True)
        self._faults, self._slots, self._strangers, self._fresh = faults, slots, strangers, fresh
        self._broker, self._proxy = broker, proxy
        self._notebook, self._tally = notebook, tally
        self._stopped = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        """The thread; the owner looks at `error`."""
        try:
            for fault in self._faults:
                if self._stopped.wait(fault.after_s):
                    return
                began = time.monotonic()
                lane, detail = self._happen(fault)
                self._tally.faults[fault.name] += 1
                self._notebook.note(lane, fault.name, time.monotonic() - began, detail)
        except BaseException as error:  # noqa: BLE001 - the thread's boundary
            self.error = error

    def hush(self) -> None:
        """What happens now comes to its end, nothing more begins."""
        self._stopped.set()

    def stop(self) -> None:
        """Ends it before its time."""
        self.hush()
        self.join(2 * PATIENCE_S)

    def _happen(self, fault: Fault) -> tuple[str, str]:
        """Does it; whom it befell, and more about it."""
        match fault.kind:
            case Kind.ROLL:
                return GROUP, self._roll()
            case Kind.STORM:
                return GROUP, self._strangers.visit(fault.lasts_s, self._stopped)
            case Kind.FRAMES:
                return NETWORK, self._disturb(fault)
            case Kind.BROKER_STOP:
                return BROKER, self._outage(EmbeddedBroker.stop, fault)
            case Kind.BROKER_KILL:
                return BROKER, self._outage(EmbeddedBroker.kill, fault)
            case Kind.DISK_FULL:
                return BROKER, self._outage(self._fill_disk, fault)
            case Kind.BROKER_FREEZE:
                return BROKER, self._freeze(fault)
            case _:
                raise AssertionError(fault)

    def _roll(self) -> str:
        for slot in self._slots:
            slot.roll()
            until = time.monotonic() + PATIENCE_S
            while not slot.is_rolled and time.monotonic() < until and not self._stopped.is_set():
                time.sleep(LOOK_S)
        return "one worker after the other"

    def _disturb(self, fault: Fault) -> str:
        """What is held arrives up to a second later, often in the next transaction; all of it in the end.

        Handles that replace those in doubt are cut as they begin: librdkafka keeps silent about a break that is like the last ones (ER-11).
        """
        assert self._proxy is not None, "faults of requests are for an embedded broker"
        assert fault.way is not None
        rule = self._proxy.add(Rule(fault.way, fault.requests, chance=fault.share))
        if TRANSACTION.issuperset(fault.requests):
            self._proxy.add(Rule(How.CUT, {Api.INIT_PRODUCER_ID}, chance=CUT_BEGINNINGS))
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
        limit = max([begin, *_sizes(broker.folder / "data", self._fresh)]) + ROOM_BYTES  # the log must say it, too
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        until = time.monotonic() + PATIENCE_S
        while broker.is_running:
            if time.monotonic() > until:
                raise TimeoutError(f"Kafka goes on although files cannot grow beyond {limit} bytes; see {broker.log}")
            time.sleep(LOOK_S)
        broker.stop()
        with broker.log.open("rb") as said:
            said.seek(begin)
            if TOO_LARGE not in said.read():
                raise RuntimeError(f"Kafka ended, but not for want of room; see {broker.log}")
        return "Kafka halted: java.io.IOException: " + TOO_LARGE.decode()


def can_fill_disk() -> bool:
    """Another process's limits can be changed here: Linux only."""
    return hasattr(resource, "prlimit")


def _sizes(data: Path, fresh: str) -> Iterable[int]:
    """Sizes of the segments of this round's partitions."""
    for log in data.glob(f"{fresh}*/*.log"):
        yield log.stat().st_size
