"""A real Apache Kafka on this machine: one node, KRaft, loopback only.

For the demo, tests and development. Java and the jars come from `uow.jvm`; nothing else has to be installed.
Belongs here: the broker's configuration, its folder, start, readiness and end. Does not belong here: topics (`uow.topics.admin`), and clusters
that somebody else runs.

Kafka ends when the process that started it ends, killed or not (`uow/jvm/watch.py`).
"""

import fcntl
import logging
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Self

from uow.jvm import archive, jars, java

__all__ = [
    "BrokerFailed",
    "BrokerStopped",
    "EmbeddedBroker",
    "FolderInUse",
    "Parent",
    "PortTaken",
    "Tier",
    "serve",
]

HOST = "127.0.0.1"
CLUSTER_ID = "AAAAAAAAQAAAAAAAAAAAAA"
PORTS = range(20_000, 30_000)
"""Where free ports are looked for. Systems choose the ports of outgoing connections above these (Linux from 32,768), so nobody gets one by accident
before Kafka has bound it, or while Kafka is stopped and started again."""
SCRATCH_PREFIX = "uow-broker-"
SCRATCH_SAFE_SECONDS = 60
FOLDER_PATIENCE_SECONDS = 20.0
WATCH = Path(java.__file__).with_name("watch.py")
# without a logger librdkafka prints on standard error, even about reconnecting to a broker that stops
_QUIET = logging.getLogger("uow.broker.probe")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "num.partitions": "4",
    "auto.create.topics.enable": "false",
    # one node: internal topics with one replica; few partitions, so that coordinators load at once
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",  # tests kill many members, and waiting 6 s for each would take too long
    # otherwise the log cleaner's map takes a quarter of a small heap
    "log.cleaner.enable": "true",
    "log.cleaner.threads": "1",
    "log.cleaner.dedupe.buffer.size": "16777216",
    # one node: nobody takes over when it is silent for a while, as on a busy machine or a notebook that was asleep
    "broker.session.timeout.ms": "60000",
    "broker.heartbeat.interval.ms": "500",
    "num.network.threads": "2",
    "num.io.threads": "4",
}

AFTER_A_KILL = {"broker.session.timeout.ms": "3000"}
"""A killed node can register again only after its old session has timed out, by the settings of now."""


class Tier(Enum):
    """Degree of optimisation by the JVM."""

    QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
    """First compiler only: fastest start, least CPU for short runs."""
    FULL = ("-XX:+UseG1GC", "-XX:+UnlockExperimentalVMOptions", "-XX:G1NewSizePercent=60")
    """Both compilers, for benchmarks and long runs. Most of the heap is for new objects: the cost of a pause grows with the objects that survive
    it, so rare pauses cost less. With Kafka's own goal of 20 ms and a heap of one gigabyte there is a pause of 15 ms every second."""


class Parent(Enum):
    """Behaviour of `serve` when the process that started it ends."""

    FOLLOW = "stop too"
    IGNORE = "go on"


class BrokerFailed(RuntimeError):
    """Kafka ended by itself or was not ready in time; `log_tail` holds the end of its log."""

    def __init__(self, what: str, log: Path) -> None:
        self.log = log
        self.log_tail = _tail(log)
        super().__init__(f"{what}; {log} ends with\n{self.log_tail}")


class PortTaken(RuntimeError):
    """Another program uses the port."""

    def __init__(self, port: int) -> None:
        self.port = port
        super().__init__(f"port {port} is taken by another program")


class FolderInUse(RuntimeError):
    """Another broker uses the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(f"another broker uses {folder}")


class BrokerStopped(RuntimeError):
    """The start was cancelled on request."""


class EmbeddedBroker:
    """A broker as a child process.

    As a context manager it starts the broker and stops it in the end, and removes the folder if it is a temporary one. Explicit calls of `stop`
    and `start` restart it on the same port and data. It must not be shared between threads while it starts or stops.

    Args:
        folder: the folder of data, configuration and log; by default a temporary folder that is deleted in the end.
        port: the client port; 0 finds a free one, which later starts keep.
        heap: the JVM's largest heap.
        tier: degree of optimisation by the JVM.
        jvm_flags: more flags for the JVM.
        settings: broker properties that override `SETTINGS`, such as `{"log.retention.ms": "1000"}`.
        advertised: the port of a proxy: the broker also listens at `behind`, and gives clients that connect there this port as its address.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        port: int = 0,
        heap: str = "512m",
        tier: Tier = Tier.QUICK,
        jvm_flags: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        advertised: int | None = None,
    ) -> None:
        self._scratch = folder is None
        self.folder = _new_scratch() if folder is None else Path(folder).expanduser().resolve()
        self.port = port
        self.heap = heap
        self.flags = [*tier.value, *jvm_flags]
        self.settings = dict(settings or {})
        self._advertised = advertised
        self._behind = 0
        self._watcher: subprocess.Popen[str] | None = None
        self._lock: int | None = None
        self._log_begin = 0
        self.pid: int | None = None
        """Process id of Kafka itself; None when it has not been started."""

    def __repr__(self) -> str:
        return f"EmbeddedBroker({str(self.folder)!r}, port={self.port}, pid={self.pid})"

    @property
    def bootstrap(self) -> str:
        """`127.0.0.1:PORT`."""
        return f"{HOST}:{self.port}"

    @property
    def behind(self) -> str:
        """Address at which a proxy reaches a broker with `advertised`; the same after each start."""
        return f"{HOST}:{self._behind}"

    @property
    def log(self) -> Path:
        """Kafka's log file; each start appends to it."""
        return self.folder / "server.log"

    @property
    def data(self) -> Path:
        """The folder of Kafka's partitions."""
        return self.folder / "data"

    @property
    def _was_killed(self) -> bool:
        """True if there are data, and Kafka has not closed them."""
        return (self.data / "meta.properties").exists() and not (self.data / ".kafka_cleanshutdown").exists()

    @property
    def is_running(self) -> bool:
        """True while the process runs."""
        return self._watcher is not None and self._watcher.poll() is None

    def start(self, timeout: float = 90, abandon: threading.Event | None = None) -> Self:
        """Start, and return when a client gets an answer.

        Args:
            timeout: seconds until the start counts as failed.
            abandon: when a signal handler or another thread sets it, the start is cancelled.

        Raises:
            PortTaken: the given port is in use.
            FolderInUse: another broker uses the folder.
            BrokerFailed: Kafka ended or was not ready in time.
            BrokerStopped: `abandon` was set.
            uow.jvm.jars.JarsMissing, uow.jvm.java.JavaMissing: the message says what to install.
        """
        if self.is_running:
            return self
        fixed, fixed_behind = self.port, self._behind
        if fixed and not _is_free(fixed):
            raise PortTaken(fixed)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # its logs have payloads
        self._hold_folder(FOLDER_PATIENCE_SECONDS)
        deadline = time.monotonic() + timeout
        try:
            for attempt in range(1, 4):  # another program may take a free port before Kafka binds it
                controller, client, behind = _free_ports(3)
                self.port, self._behind = fixed or client, fixed_behind or behind
                try:
                    self._launch(controller)
                    self._wait_ready(deadline, abandon)
                    return self
                except PortTaken:
                    if attempt == 3 or (fixed and not _is_free(fixed)):
                        raise
            raise AssertionError("unreachable")
        except BaseException:
            self.stop()
            self.port = fixed
            raise

    def stop(self, timeout: float = 20) -> None:
        """End Kafka cleanly, killing it after `timeout` seconds; the data is kept. Does nothing when Kafka does not run."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            if watcher.poll() is None:
                watcher.terminate()
                try:
                    watcher.wait(timeout)
                except subprocess.TimeoutExpired:
                    self._signal(signal.SIGKILL)
                    watcher.wait()
            _close_pipes(watcher)
        self.pid = None
        if (
            not self._scratch
        ):  # other processes delete temporary folders that nobody has locked, also between a stop and a start
            self._release_folder()

    def kill(self) -> None:
        """End Kafka with SIGKILL, like a power failure, for drills; `start` starts it again."""
        self._signal(signal.SIGKILL)
        self.stop()

    def close(self) -> None:
        """Stop, and remove the folder if it is a temporary one."""
        # The data is deleted, so there is no need for a clean end.
        self.kill() if self._scratch and self.is_running else self.stop()
        if self._scratch:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._release_folder()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _signal(self, number: int) -> None:
        if self.pid is not None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def _hold_folder(self, timeout: float) -> None:
        """Lock the folder. A broker whose owner was killed may still be stopping in it: wait for its end."""
        if self._lock is not None:
            return
        lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._lock = lock
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(lock)
                    raise FolderInUse(self.folder) from None
                time.sleep(0.1)

    def _release_folder(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _java(self, heap: str, flags: Sequence[str] = ()) -> list[str]:
        logger = "-Dorg.slf4j.simpleLogger."
        levels = [f"{logger}defaultLogLevel=warn", f"{logger}log.kafka.server=info", f"{logger}showDateTime=true"]
        shared = archive.flags(class_archive())
        return [str(java.find().executable), f"-Xmx{heap}", *shared, *flags, *levels, "-cp", java_path()]

    def _properties(self, controller: int) -> dict[str, str]:
        """All of `server.properties`; `controller`: a free port."""
        settings = {
            **SETTINGS,
            **(AFTER_A_KILL if self._was_killed else {}),
            **self.settings,
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listeners": f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self.port}",
            "log.dirs": str(self.data),
        }
        if self._advertised is not None:
            settings["listeners"] += f",PROXIED://{HOST}:{self._behind}"
            settings["advertised.listeners"] += f",PROXIED://{HOST}:{self._advertised}"
            settings["listener.security.protocol.map"] += ",PROXIED:PLAINTEXT"
        return settings

    def _launch(self, controller: int) -> None:
        data, properties = self.data, self.folder / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._properties(controller).items()))
        if not (data / "meta.properties").exists():
            self._format(data, properties)
        self._log_begin = self.log.stat().st_size if self.log.exists() else 0
        command = [*self._java(self.heap, self.flags), "kafka.Kafka", str(properties)]
        watch = [sys.executable, "-I", "-S", str(WATCH), str(self.log), str(self.folder) if self._scratch else ""]
        assert self._lock is not None
        self._watcher = subprocess.Popen(
            [*watch, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # A terminal's Ctrl-C must reach this process only, which then stops Kafka in an orderly way.
            start_new_session=True,
            # The watcher keeps the folder locked until Kafka has ended, even if this process is killed.
            pass_fds=(self._lock,),
        )
        assert self._watcher.stdout is not None
        self.pid = int(self._watcher.stdout.readline() or 0) or None

    def _format(self, data: Path, properties: Path) -> None:
        """Format the data folder: by Kafka's tool once per Kafka version, as that costs a JVM start, later by copying two small files."""
        template = jars.folder() / f"formatted-{jars.version('broker', 'kafka_2.13')}"
        if (template / "meta.properties").exists():
            data.mkdir(parents=True, exist_ok=True)
            for each in template.iterdir():
                shutil.copyfile(each, data / each.name)  # without the template's mode
            return
        data.mkdir(parents=True, exist_ok=True)
        tool = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
        done = subprocess.run([*self._java("128m"), *tool], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"format of {data} failed: {done.stdout}{done.stderr}")
        mine = template.with_name(f"{template.name}.{os.getpid()}.{id(self)}")
        try:
            shutil.copytree(data, mine)
            mine.rename(template)
        except OSError:  # another process was faster, or the folder is read-only: the template only saves time
            shutil.rmtree(mine, ignore_errors=True)

    def _wait_ready(self, deadline: float, abandon: threading.Event | None) -> None:
        while True:
            assert self._watcher is not None
            if abandon is not None and abandon.is_set():
                raise BrokerStopped(f"start in {self.folder} was cancelled")
            if self._watcher.poll() is not None:
                _close_pipes(self._watcher)
                self._watcher = None
                said = _tail(self.log, self._log_begin)
                if "Address already in use" in said:
                    raise PortTaken(self.port)
                if "Failed to acquire lock" in said:
                    raise FolderInUse(self.folder)
                raise BrokerFailed("Kafka ended while starting", self.log)
            if _answers(self.port):
                return
            if time.monotonic() > deadline:
                raise BrokerFailed("Kafka was not ready in time", self.log)
            time.sleep(0.05)


def java_path() -> str:
    """Kafka's class path.

    Raises:
        uow.jvm.jars.JarsMissing: at least one jar is absent.
    """
    return os.pathsep.join(map(str, jars.class_path("broker")))


def class_archive() -> Path:
    """Path of an archive of Kafka's classes, with which a broker starts in half the CPU time."""
    return archive.archive("kafka", jars.class_path("broker"))


def serve(
    port: int = 9092,
    folder: str | os.PathLike[str] | None = None,
    *,
    heap: str = "512m",
    tier: Tier = Tier.FULL,
    parent: Parent | None = None,
    settings: Mapping[str, str] | None = None,
    say: Callable[[str], None] | None = None,
) -> int:
    """Run a broker in the foreground until SIGTERM, SIGINT or SIGHUP.

    Prints `broker ready on HOST:PORT` once clients get answers. Must be called from the main thread, since it handles signals.

    Args:
        port: the client port; 0 finds a free one.
        folder: the data; by default a temporary folder that is deleted in the end.
        heap: the JVM's largest heap.
        tier: degree of optimisation by the JVM.
        parent: the behaviour when the process that started this one ends. Default: stop too, but go on under `nohup`.
        settings: broker properties, as for `EmbeddedBroker`.
        say: called with the ready line; by default a flushed `print`.

    Returns:
        The exit status: 0 if stopped on request, 1 if Kafka ended by itself.

    Raises:
        PortTaken, FolderInUse, BrokerFailed: as `EmbeddedBroker.start` does.
    """
    stop = threading.Event()

    def on_signal(signum: int, frame: FrameType | None) -> None:
        stop.set()

    under_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    parent = parent or (Parent.IGNORE if under_nohup else Parent.FOLLOW)
    handled = [signal.SIGTERM, signal.SIGINT, *([] if under_nohup else [signal.SIGHUP])]
    before = {number: signal.signal(number, on_signal) for number in handled}
    started_by = os.getppid()
    broker = EmbeddedBroker(folder, port=port, heap=heap, tier=tier, settings=settings)
    try:
        broker.start(abandon=stop)
        (say or _print_flushed)(f"broker ready on {broker.bootstrap}")
        while not stop.wait(0.3):
            if not broker.is_running:
                print(BrokerFailed("Kafka ended by itself", broker.log), file=sys.stderr)
                return 1
            if parent is Parent.FOLLOW and os.getppid() != started_by:
                break
        return 0
    except BrokerStopped:
        return 0
    finally:
        broker.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_flushed(line: str) -> None:
    print(line, flush=True)


def _new_scratch() -> Path:
    """A new temporary folder. Old ones that nobody has locked, because owner and watcher were both killed, are removed."""
    root = Path(tempfile.gettempdir())
    for old in root.glob(f"{SCRATCH_PREFIX}*"):
        try:
            if time.time() - old.stat().st_mtime < SCRATCH_SAFE_SECONDS:
                continue  # perhaps created a moment ago and not locked yet
            lock = os.open(old / ".lock", os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(old, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)
    folder = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX))
    (folder / ".lock").touch()
    return folder


def _free_ports(count: int) -> list[int]:
    return list(islice(filter(_is_free, random.SystemRandom().sample(PORTS, len(PORTS))), count))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # like Kafka: a port in TIME_WAIT is free
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _answers(port: int) -> bool:
    """True if a client gets the broker's description. A TCP connection is tried first, since a Kafka client takes long to fail on a closed port."""
    try:
        socket.create_connection((HOST, port), 0.2).close()
    except OSError:
        return False
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": f"{HOST}:{port}", "log_level": 0}, logger=_QUIET)
    try:
        return bool(admin.list_topics(timeout=1).brokers)
    except KafkaException:
        return False


def _close_pipes(watcher: "subprocess.Popen[str]") -> None:
    for pipe in (watcher.stdin, watcher.stdout):
        if pipe is not None:
            pipe.close()


def _tail(log: Path, begin: int = 0, limit: int = 3000) -> str:
    """The end of a log, from byte `begin` on."""
    if not log.exists():
        return ""
    with log.open("rb") as f:
        f.seek(max(begin, log.stat().st_size - limit))
        return f.read().decode(errors="replace")
