"""Figures of groups by rule: what metrics and the worker's page say of them (aggregation, B-07, B-212)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from prometheus_client.samples import Sample

from tests.core.rule_script import r, row, told_by
from tests.core.script import Story, clock, ms
from tests.fake_record import INPUT
from uow.processor.engine import rule_figures
from uow.processor.engine.rule_figures import OVERRUN_LIMITS_S, WAIT_LIMITS_S, Histogram, RowName
from uow.processor.shell.monitor import WorkerStatus, registry_for
from uow.processor.shell.pages import groups_view
from uow.topics.policies import OutcomesPolicy
from uow.topics.rules import Release


def scraped(played: Story, now: float) -> list[Sample]:
    status = WorkerStatus("0", {INPUT.topic: "D"}, {INPUT: played.task})
    return [sample for family in registry_for(status, lambda: ms(now)).collect() for sample in family.samples]


def value(samples: list[Sample], name: str, **labels: str) -> float | None:
    wanted = {"destination": "D", "rule": "low-stock", **labels}
    found = [each.value for each in samples if each.name == name and each.labels == wanted]
    return found[0] if found else None


def test_a_look_that_is_held_up_is_an_overrun_in_metric_and_outcome_b07() -> None:
    played = told_by(r(at=0), r("France", at=12), rules=[row(age_ms=15_000), row("France", age_ms=15_000)])
    open_then = scraped(played, 18)
    assert value(open_then, "uow_overdue_groups") == 1
    assert value(open_then, "uow_oldest_open_group_seconds") == 18
    played.send(clock(19))
    (outcome,) = played.outcomes
    assert outcome.deadline_at == ms(15)
    assert outcome.closed_at == ms(19)
    samples = scraped(played, 19)
    assert value(samples, "uow_deadline_overrun_seconds_sum", row="UK") == 4
    assert value(samples, "uow_deadline_overrun_seconds_bucket", row="UK", le="2.0") == 0
    assert value(samples, "uow_deadline_overrun_seconds_bucket", row="UK", le="5.0") == 1
    assert value(samples, "uow_group_wait_seconds_sum", row="UK") == 19
    assert value(samples, "uow_group_wait_seconds_count", row="UK") == 1
    assert value(samples, "uow_overdue_groups") == 0
    assert value(samples, "uow_oldest_open_group_seconds") == 7


def test_what_the_page_says_of_a_row_is_what_its_outcomes_say_b212() -> None:
    rows = [
        row(complete_count=3, age_ms=5_000),
        row("France", age_ms=5_000),
        row("Spain", complete_count=1, rule={"release": Release.HOLD_ALL}, age_ms=9_000),
    ]
    traffic: list[Any] = []
    for number in range(40):
        name = ("UK", "France", "Spain", "UK", "UK")[number % 5]
        traffic += [r(name, at=number * 1.7), clock(number * 1.7 + 0.9)]
    played = told_by(*traffic, clock(100), rules=rows, outcomes=OutcomesPolicy.ALL)
    status = WorkerStatus("0", {INPUT.topic: "D"}, {INPUT: played.task})
    page = {each["row"]: each for each in groups_view(status, ms(100))["rules"]}
    samples = scraped(played, 100)
    names = {each.rule.partition("/")[2].partition("@")[0] for each in played.outcomes if each.rule}
    assert {*page} == names == {"UK", "France"}, "what waits for its release has not closed"
    for name in names:
        own = [each for each in played.outcomes if each.rule == f"low-stock/{name}@1"]
        units = [each for each in own if each.outcome in ("complete", "partial")]
        late = [each for each in own if each.reason == "age" and each.deadline_at is not None]
        waits, overruns = Histogram(WAIT_LIMITS_S), Histogram(OVERRUN_LIMITS_S)
        for each in own:
            waits.add((each.closed_at - each.opened_at) / 1000)
        for each in late:
            overruns.add((each.closed_at - (each.deadline_at or 0)) / 1000)
        assert late, "both rows have groups that time closed"
        assert page[name] == {
            "destination": "D",
            "rule": "low-stock",
            "row": name,
            "groups": len(own),
            "units": len(units),
            "fill": round(sum(each.count for each in units) / len(units), 2),
            "share_by_time": round(len(late) / len(own), 4),
            "wait_p50_s": waits.at_most(0.5),
            "wait_p99_s": waits.at_most(0.99),
            "overrun_p99_s": overruns.at_most(0.99),
        }
        assert value(samples, "uow_group_wait_seconds_sum", row=name) == pytest.approx(waits.total)
        assert value(samples, "uow_rule_components_total", row=name) == sum(each.count for each in units)
        for (outcome, reason), count in Counter((each.outcome, each.reason) for each in own).items():
            labels = {"row": name, "outcome": outcome.value, "reason": reason.value}
            assert value(samples, "uow_rule_groups_total", **labels) == count


def test_a_part_of_all_durations_is_bounded_by_its_class() -> None:
    several = Histogram((1.0, 2.0, 5.0))
    assert several.at_most(0.5) is None
    for seconds in (0.5, 1.0, 1.5, 7.0):
        several.add(seconds)
    assert (several.counts, several.total, several.count) == ([2, 1, 0, 1], 10.0, 4)
    assert [several.at_most(share) for share in (0.1, 0.5, 0.75, 0.99)] == [1.0, 1.0, 2.0, None]


def test_a_million_routing_names_have_no_figures_of_their_own_b212(monkeypatch: pytest.MonkeyPatch) -> None:
    everyone = row("*", complete_count=1)
    named = [r("*", id=f"low-stock/supplier-{number}", at=1) for number in range(50)]
    played = told_by(*named, rules=[everyone])
    assert {name: figures.units for name, figures in played.task.context.figures.rows.items()} == {
        RowName("low-stock", "*"): 50
    }
    monkeypatch.setattr(rule_figures, "MOST_ROWS", 2)
    several = [row(f"row-{number}", complete_count=1) for number in range(5)]
    played = told_by(*[r(f"row-{number}", at=1) for number in range(5)], rules=several)
    assert {name: figures.units for name, figures in played.task.context.figures.rows.items()} == {
        RowName("low-stock", "row-0"): 1,
        RowName("low-stock", "row-1"): 1,
        rule_figures.OTHERS: 3,
    }
