"""The range of the routers' inputs that an audit judges, and where the next one begins: no Spark and no broker (B-203)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.fake_record import FakeRecord
from uow.processor.engine.ports import Tp
from uow.spark_sink import routed_inputs
from uow.spark_sink.kafka import Cluster, OffsetSpan
from uow.spark_sink.routed_inputs import RoutedInputs, RoutedMark
from uow.spark_sink.routed_places import Judgement, Places, Wrong
from uow.spark_sink.tables import DeltaTables

STOCK, HERE, THERE = Tp("stock", 0), Tp("D.components", 0), Tp("E.components", 0)


class Kafka:
    """Three partitions: an input, and components of two destinations."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.logs: dict[Tp, list[FakeRecord]] = defaultdict(list)
        self.starts: dict[Tp, int] = defaultdict(int)
        self.routed, self.refused = 0, list[int]()
        for name in ("begins", "ends", "committed"):
            patch.setattr(routed_inputs, name, getattr(self, name))
        patch.setattr(routed_inputs, "PartitionLog", self.reading)
        patch.setattr(RoutedInputs, "_compacted", lambda inputs: [])
        patch.setattr(RoutedInputs, "_collected", lambda inputs, tasks: self.collected(inputs, tasks))

    def append(self, tp: Tp, place: int | None = None) -> int:
        headers = [] if place is None else [("uow-input", b"stock/0/%d" % place)]
        self.logs[tp].append(FakeRecord(len(self.logs[tp]), headers, tp=tp))
        return len(self.logs[tp]) - 1

    def begins(self, cluster: object, topic: str) -> dict[int, int]:
        return {0: self.starts[Tp(topic, 0)]}

    def ends(self, cluster: object, topic: str) -> dict[int, int]:
        return {0: len(self.logs[Tp(topic, 0)])}

    def committed(self, cluster: object, group: str, topic: str) -> OffsetSpan:
        assert group == "A-router"
        start = self.starts[Tp(topic, 0)]
        return OffsetSpan({0: start}, {0: max(start, self.routed)})

    def reading(self, cluster: object, topic: str, partition: int, start: int) -> Any:
        log = self.logs[Tp(topic, partition)]

        class Reading:
            def until(self, end: int) -> Iterator[list[FakeRecord]]:
                yield log[start:end]

            def close(self) -> None: ...

        return Reading()

    def collected(self, inputs: RoutedInputs, tasks: Sequence[Any]) -> list[Any]:
        reading = routed_inputs._Reading(inputs.cluster, tasks)
        rows = [row for number in range(len(tasks)) for row in reading._of_task(number)]
        (of_input,) = (task for task in tasks if task.is_input)
        table = Places()
        for offset in self.refused:
            if of_input.start <= offset < of_input.end:
                table.note("stock", 0, offset)
        return [*rows, *routed_inputs._rows(routed_inputs._TABLE, table)]

    def judge(self, mark: RoutedMark = RoutedMark()) -> tuple[Judgement, RoutedMark]:  # noqa: B008
        tables: Any = [DeltaTables(None, name) for name in "DE"]  # type: ignore[arg-type]
        spark: Any = None
        return RoutedInputs(spark, Cluster(""), "A", ["stock"], tables).judge(mark)


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    return Kafka(monkeypatch)


def wrong(judgement: Judgement) -> list[tuple[Wrong, int]]:
    return [(what, offset) for what, _, _, offset in judgement.examples]


def test_a_record_may_be_in_any_destination_of_its_router_or_refused(kafka: Kafka) -> None:
    for where in (HERE, THERE, None, HERE):
        offset = kafka.append(STOCK)
        kafka.append(where, offset) if where is not None else kafka.refused.append(offset)
    kafka.routed = 4
    found, mark = kafka.judge()
    assert (wrong(found), found.received) == ([], {"stock": 4})
    assert (mark.judged, mark.read) == ({"stock/0": 4}, {"D.components/0": 2, "E.components/0": 1})


def test_routers_that_went_on_meanwhile_are_judged_by_the_next_audit_once(kafka: Kafka) -> None:
    for place in range(4):
        kafka.append(STOCK)
        kafka.append(HERE, place)
    kafka.refused = [3]
    kafka.routed = 2
    found, mark = kafka.judge()
    assert (wrong(found), found.received) == ([], {"stock": 2})
    kafka.routed = 4
    later, _ = kafka.judge(mark)
    assert (wrong(later), later.received) == ([(Wrong.DOUBLED, 3)], {"stock": 2})


def test_a_record_that_is_routed_again_after_it_was_judged_is_a_double(kafka: Kafka) -> None:
    kafka.append(HERE, kafka.append(STOCK))
    kafka.routed = 1
    _, mark = kafka.judge()
    kafka.append(THERE, 0)
    again, mark = kafka.judge(mark)
    assert wrong(again) == [(Wrong.DOUBLED, 0)]
    assert wrong(kafka.judge(mark)[0]) == [], "it was told"


def test_what_retention_took_of_components_before_anybody_looked_is_not_called_lost(kafka: Kafka) -> None:
    for place in range(6):
        kafka.append(STOCK)
        if place != 4:
            kafka.append(HERE, place)
    kafka.routed = 6
    kafka.starts[HERE] = 2
    found, _ = kafka.judge()
    assert (wrong(found), found.unjudged) == ([(Wrong.LOST, 4)], 2)
    kafka.starts[HERE] = 5
    found, _ = kafka.judge()
    assert (wrong(found), found.unjudged) == ([], 6), "no component is left to judge by"


def test_what_retention_took_after_it_was_judged_costs_nothing(kafka: Kafka) -> None:
    for place in range(3):
        kafka.append(STOCK)
        kafka.append(HERE, place)
    kafka.routed = 3
    _, mark = kafka.judge()
    kafka.starts |= {HERE: 3, STOCK: 3}
    kafka.append(HERE, kafka.append(STOCK))
    kafka.append(STOCK)
    kafka.routed = 5
    found, _ = kafka.judge(mark)
    assert (wrong(found), found.unjudged, found.received) == ([(Wrong.LOST, 4)], 0, {"stock": 2})
