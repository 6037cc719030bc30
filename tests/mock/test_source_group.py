"""The source as a member of a group, on librdkafka's mock cluster."""

from __future__ import annotations

import confluent_kafka as ck

from tests.conftest import QUIET
from tests.mock.mock_cluster import MockCluster
from tests.processes import PATIENCE_S, wait_for
from uow.processor.engine.ports import Tp
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.source import KafkaSource
from uow.processor.kafka.worker_clock import WorkerClock
from uow.processor.kafka.worker_settings import WorkerSettings

INPUT = "in"


class SourceMember:
    """A source that begins to read what it is given, from the start."""

    def __init__(self, cluster: MockCluster) -> None:
        settings = WorkerSettings("A", cluster.bootstrap, "0")
        self.source = KafkaSource(Clients(settings), settings, WorkerClock())
        self.owned: set[Tp] = set()
        self.new: list[Tp] = []
        self.source.open([INPUT], self._on_assign, self._on_release, self._on_release)

    def _on_assign(self, tps: list[Tp]) -> None:
        self.new += tps

    def _on_release(self, tps: list[Tp]) -> list[Tp]:
        self.owned -= set(tps)
        return tps

    def owns(self, count: int) -> bool:
        """Whether it owns that many partitions, after another look."""
        self.source.control(0.1)
        if self.new:
            self.source.begin(dict.fromkeys(self.new, 0))
            self.owned.update(self.new)
            self.new = []
        return len(self.owned) == count


def test_partition_that_was_paused_when_it_went_is_read_when_it_comes_back() -> None:
    """Librdkafka keeps in mind what was paused, over any number of assignments; the engine does not (ER-17, ER-19)."""
    with MockCluster(INPUT) as cluster:
        one = SourceMember(cluster)
        wait_for(lambda: one.owns(2))
        one.source.pause(sorted(one.owned))
        two = SourceMember(cluster)
        wait_for(lambda: one.owns(1) and two.owns(1))
        two.source.close()
        wait_for(lambda: one.owns(2))
        producer = ck.Producer({"bootstrap.servers": cluster.bootstrap}, logger=QUIET)
        for partition in range(2):
            producer.produce(INPUT, b"x", partition=partition)
        assert not producer.flush(PATIENCE_S)
        read: set[Tp] = set()

        def back_is_read() -> bool:
            poll = one.source.read(10, 0.2)
            read.update(poll.records if poll is not None else ())
            return bool(read)

        wait_for(back_is_read)
        one.source.close()
