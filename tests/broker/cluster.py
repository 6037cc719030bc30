"""Three real brokers on this machine, replication 3: leaders move, followers are slow, markers come late.

The first node is the controller as well and is never stopped; the others are brokers alone. All are embedded brokers and end with the test.
"""

from __future__ import annotations

import base64
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from uuid import uuid4

from confluent_kafka.admin import AdminClient

from tests.conftest import QUIET
from tests.processes import PATIENCE_S, wait_for
from uow.embedded.broker import CLUSTER_ID, HOST, EmbeddedBroker
from uow.prove.frames import Proxy

SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "broker.session.timeout.ms": "3000",  # others take over from one that is silent
    "replica.lag.time.max.ms": "4000",  # a follower that stands still holds the high watermark back so long, then it leaves
    "replica.fetch.wait.max.ms": "100",
    "controlled.shutdown.enable": "true",
    "num.partitions": "2",
}


class Node(EmbeddedBroker):
    """One of three.

    Args:
        number: Its `node.id`.
        first: The node that is the controller; None: this one.
        advertised: As that of `EmbeddedBroker`.
    """

    def __init__(self, number: int, first: Node | None = None, advertised: int | None = None) -> None:
        super().__init__(heap="256m", settings=SETTINGS, advertised=advertised)
        self.number, self.first = number, first
        self.controller = 0

    def _properties(self, controller: int) -> dict[str, str]:
        settings = super()._properties(controller)
        if self.first is None:
            self.controller = controller
            return settings
        settings["listeners"] = settings["listeners"].replace(f",CONTROLLER://{HOST}:{controller}", "")
        settings["controller.quorum.voters"] = f"1@{HOST}:{self.first.controller}"
        return settings | {"process.roles": "broker", "node.id": str(self.number)}

    def _format(self, data: Path, properties: Path) -> None:
        """As Kafka's own tool would, without a JVM; folders of one cluster must not share an id."""
        super()._format(data, properties)
        folder = base64.urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
        lines = ("version=1", f"cluster.id={CLUSTER_ID}", f"node.id={self.number}", f"directory.id={folder}")
        (data / "meta.properties").write_text("\n".join(lines) + "\n")

    def freeze(self) -> None:
        """SIGSTOP: its followers get nothing, its leaders hear nothing, for as long as it lasts."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)


class Cluster:
    """Three nodes; a context manager.

    Args:
        proxies: One before each node, started already: who begins at `behind` meets the nodes through them alone. The nodes meet each other directly.
    """

    def __init__(self, proxies: Sequence[Proxy] = ()) -> None:
        ports = [proxy.port for proxy in proxies] or [None] * 3
        first = Node(1, None, ports[0])
        self.nodes = {1: first, 2: Node(2, first, ports[1]), 3: Node(3, first, ports[2])}
        self.proxies = dict(zip(self.nodes, proxies, strict=False))

    def __enter__(self) -> Self:
        try:
            self.nodes[1].start()
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda number: self.nodes[number].start(), (2, 3)))
            for number, proxy in self.proxies.items():
                proxy.upstream = self.nodes[number].behind
            self.admin = AdminClient({"bootstrap.servers": self.bootstrap}, logger=QUIET)
            wait_for(lambda: len(self.admin.list_topics(timeout=PATIENCE_S).brokers) == 3, PATIENCE_S, "three brokers")
            return self
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends them; a frozen one as well."""
        for node in reversed(self.nodes.values()):
            node.thaw()
            node.close()

    @property
    def bootstrap(self) -> str:
        """All three."""
        return ",".join(node.bootstrap for node in self.nodes.values())

    @property
    def behind(self) -> str:
        """All three, through their proxies."""
        return ",".join(proxy.address for proxy in self.proxies.values())

    def leader(self, topic: str, partition: int) -> int:
        """Number of the node that leads a partition; -1 while there is none."""
        found = self.admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions.get(partition)
        return -1 if found is None else found.leader

    @contextmanager
    def frozen(self, number: int) -> Iterator[None]:
        """A node stands still meanwhile."""
        self.nodes[number].freeze()
        try:
            yield
        finally:
            self.nodes[number].thaw()
