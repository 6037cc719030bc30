"""Rules tried on recorded inputs give the units of a real run under those rules (B-204)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.rule_script import r, sizes, told_by
from tests.core.script import Story, clock
from tests.rules.low_stock import NOON, ROWS, RULE, TABLES, changed
from uow.ops.rehearsal import Figures, RowFigures, TooManyRecords, recorded, rehearsed
from uow.processor.engine.ports import Tp
from uow.processor.rules.conditions import group_policy
from uow.processor.rules.rule_set import RuleSet
from uow.topics.policies import DestinationPolicy, HandlingPolicy
from uow.topics.routers import RouterSettings

DESTINATION = DestinationPolicy(handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY)
INPUT = "stock.events"


class Input:
    """A record of the input, `seconds` after noon."""

    def __init__(self, name: str | None, seconds: float, offset: int = 0, partition: int = 0) -> None:
        self._place, self._at = (INPUT, partition, offset), NOON + round(1_000 * seconds)
        self.pairs: Any = [] if name is None else [("uow-destination", name.encode())]

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._place[2]

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return b"<Test/>"

    def headers(self) -> Any:
        return self.pairs

    def timestamp(self) -> tuple[int, int]:
        return 2, self._at


def played(rules: RuleSet, records: list[Input]) -> Figures:
    routers = {"r": RouterSettings((INPUT,))}
    return rehearsed(records, rules, routers, {"supply": DESTINATION}, "shop")


def test_records_without_a_key_are_told_with_the_reason_b22() -> None:
    """Those that are refused and those that go to row `*` alike."""
    records = [Input(name, 0.0, offset) for offset, name in enumerate(["UK", None, None])]
    assert played(RuleSet(TABLES), records).keyless == {
        ("low-stock", "nothing in the record says which group it belongs to: header:uow-destination: finds nothing"): 2
    }
    by_order = RuleSet(replace(TABLES, rules=(replace(RULE, group_key="key + path:/order/@id"),)))
    found = played(by_order, records)
    assert [(*kind, count) for kind, count in found.keyless.items()] == [
        ("low-stock", "nothing in the record says which group it belongs to: key: finds nothing", 3)
    ]
    assert found.rejected == 3


def day() -> list[Input]:
    """France every second for 50 s and the UK every fourth: counts and limits of time close groups."""
    france = [("France", second) for second in range(50)]
    uk = [("UK", 4.0 * number + 0.5) for number in range(13)]
    return [Input(name, at, offset) for offset, (name, at) in enumerate(sorted(france + uk, key=lambda each: each[1]))]


def real(ran: Story, name: str) -> RowFigures:
    """The figures of the units that came out for a routing name."""
    found = RowFigures()
    for unit, (outcome, reason, size) in zip(ran.units, sizes(ran), strict=True):
        if unit.id == f"low-stock/{name}":
            found.units += 1
            found.partial += outcome == "partial"
            found.by_age += reason in ("age", "idle")
            found.components += size
            found.waits_ms.append(unit.closed_at - unit.opened_at)
    return found


@pytest.mark.parametrize("count", [10, 20])
def test_a_rehearsal_equals_a_run_of_the_assembler_under_those_rules_b204(count: int) -> None:
    rules = RuleSet(TABLES.with_rows_of(changed(2, rows=(replace(ROWS[0], version=2, complete_count=count),))))
    figures = played(rules, day())
    france, uk = figures.rows["low-stock/France"], figures.rows["low-stock/UK"]
    policies = {}
    for name in ("France", "UK"):
        row = rules.resolve(RULE, name, NOON)
        assert row is not None
        policies[name] = group_policy(replace(row, row=replace(row.row, value_format=None)), DESTINATION)
    script = [
        r(
            each.pairs[0][1].decode(),
            at=(each.timestamp()[1] - NOON) / 1_000,
            version=2 if each.pairs[0][1] == b"France" else 1,
        )
        for each in day()
    ]
    ran = told_by(*script, clock(600), rules=[*policies.values()])
    assert figures.rows == {f"low-stock/{name}": real(ran, name) for name in ("France", "UK")}
    assert (figures.records, figures.rejected, france.components + uk.components) == (63, 0, 63)
    told = france.row()
    assert (told["files"], told["share_by_age"]) == ((5, 0.0) if count == 10 else (3, 0.3333))
    assert (uk.row()["share_by_age"], uk.row()["wait_p99_ms"]) == (1.0, 15_001)


def test_fill_and_waits_follow_the_count() -> None:
    ten = played(RuleSet(TABLES), day()).rows["low-stock/France"]
    assert ten.row() == {
        "units": 5,
        "files": 5,
        "partial": 0,
        "by_age": 0,
        "share_by_age": 0.0,
        "fill": 10.0,
        "wait_p50_ms": 9_000,
        "wait_p99_ms": 9_000,
        "not_delivered": 0,
        "open": 0,
    }


def test_refused_records_and_groups_that_nothing_closes_are_counted() -> None:
    endless = replace(ROWS[0], complete_count=100, age_ms=None)
    rules = RuleSet(replace(TABLES, rows=(endless,)))
    unreadable = Input("France", 3)

    def headers() -> Any:
        raise SystemError

    unreadable.headers = headers  # type: ignore[method-assign]
    figures = played(rules, [Input("France", 1), Input("Mars", 2, 1), Input(None, 2, 2), unreadable])
    assert (figures.records, figures.rejected, figures.rows["low-stock/France"].open) == (4, 3, 1)


def test_a_group_that_is_due_is_closed_before_the_next_record_opens_one() -> None:
    rules = RuleSet(replace(TABLES, rules=(replace(RULE, max_open_groups=1),)))
    figures = played(rules, [Input("France", 0), Input("UK", 40, 1), Input("Spain", 41, 2)])
    assert (figures.rejected, sorted(figures.rows)) == (1, ["low-stock/France", "low-stock/UK"])


class Log:
    """A log of two partitions, of which the second is ahead."""

    def bounds(self, tps: Any) -> Any:
        return dict.fromkeys(tps, (0, 2))

    def read(self, ranges: Any) -> Any:
        for tp in ranges:
            yield tp, [Input("France", 2 * offset + tp.partition, offset, tp.partition) for offset in range(2)]


def test_records_of_several_partitions_are_played_in_order_of_time_and_never_too_many() -> None:
    tps = [Tp(INPUT, 0), Tp(INPUT, 1)]
    log: Any = Log()
    found = [(each.partition(), each.offset()) for each in recorded(log, tps, NOON + 1_000, 10)]
    assert found == [(1, 0), (0, 1), (1, 1)]
    with pytest.raises(TooManyRecords):
        recorded(log, tps, 0, 3)
