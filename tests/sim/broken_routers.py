"""Planted defects of routers, and of workers that wait for them (B-220); registered beside those of `defects`, and caught like them."""

from __future__ import annotations

from typing import Any

from tests.sim.defects import DEFECTS, defect
from uow.processor.engine.batch import Batch
from uow.processor.engine.driver import Driver
from uow.processor.engine.ports import Doubt, Plan, Tp
from uow.processor.kafka.router import RoutedPlan, Router
from uow.processor.kafka.router_desk import RouterDesk
from uow.processor.kafka.router_positions import RouterPositions
from uow.processor.kafka.sink import KafkaSink
from uow.topics.partitioner import partition_for


@defect(KafkaSink, "_produce")
def router_writes_without_a_transaction(original: Any) -> Any:
    """Components go out at once, and only positions are committed: a crash in between doubles them (B-27)."""

    def wrong(self: KafkaSink, producer: Any, plan: Plan) -> None:
        if isinstance(plan, RoutedPlan):
            broker = producer._broker
            for topic, partition, key, value, headers in plan.outputs:
                where = Tp(topic, partition_for(key or b"", broker.settings.partitions) if partition < 0 else partition)
                broker.log(where).append((key, value, headers), broker.now_ms())
            plan.outputs = []
        original(self, producer, plan)

    return wrong


@defect(RouterDesk, "unwritten")
def rows_are_not_written_beside_their_components(original: Any) -> Any:
    """Nobody knows the version of the row that a component names (B-11)."""
    return lambda self, rows: ()


@defect(RouterPositions, "settled")
def routers_are_not_waited_for(original: Any) -> Any:
    """The wall clock gives groups up while their components lie unread in an input (B-218)."""
    return lambda self, topic, now_ms: now_ms


@defect(Router, "_start_over")
def router_reads_on_after_a_doubt(original: Any) -> Any:
    """Records of the transaction that was aborted are passed over."""

    def wrong(self: Router, doubt: Doubt) -> None:
        original(self, doubt)
        self._again.clear()

    return wrong


@defect(Router, "_announce")
def router_without_partitions_announces_a_row(original: Any) -> Any:
    """Found by the simulator: all of them are revoked while it reads `A-rules`, and the worker ended."""

    def wrong(self: Router) -> None:
        owned = self.status.owned
        while owned and (outputs := self._desk.announcement(self._serve)):
            token, (tp, position) = self._source.token(), next(iter(owned.items()))
            self._sink.write([RoutedPlan(tp, "", "", position, "", 0, outputs=[*outputs])], token)
            self._desk.written(outputs)

    return wrong


@defect(Driver, "_on_written")
def partition_that_goes_while_rules_are_read_ends_the_worker(original: Any) -> Any:
    """Found by the simulator: another partition's rules are read, the group is served meanwhile, and it is revoked."""

    def wrong(self: Driver, batch: Batch, plan: Plan) -> None:
        if plan.awaits_rule is not None:
            self._partitions.tasks[batch.tp]
        original(self, batch, plan)

    return wrong


NAMES = frozenset(name for name, patches in DEFECTS.items() if patches[0][2].__module__ == __name__)
"""Those of this module."""
