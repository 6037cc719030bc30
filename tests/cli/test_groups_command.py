"""`uow groups`: people and programs are told the same (W-201)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from uow.cli import groups_command
from uow.cli.main import main
from uow.ops.inspect import Totals, Unfinished, WaitingUnit
from uow.processor.engine.group_view import OpenGroup
from uow.schemas.records import Range, UnitOutcome
from uow.terminal.printing import span_text

NOW = 1_000_000
GROUP = OpenGroup(
    id="low-stock/Spain",
    partition=11,
    generation=12,
    held=(Range(1, 3),),
    missing=(Range(4, 5),),
    waived=(),
    end=5,
    count=3,
    bytes=1_234,
    opened_at=NOW - 61_000,
    deadline=NOW + 122_000,
    rule="low-stock/Spain@7",
    waits_for="2 more",
    waits_since=None,
    sources=(),
)
UNIT = WaitingUnit("low-stock/UK", 13, "partial", "orders.uk", 14)
TOTALS = Totals(21, 22, 23, 24, 25, 26, 27, dict(zip(UnitOutcome, range(31, 40), strict=False)))
JSON_OF = {"end": "end", "waits for": "waits_for"}
"""The field of each column of another name; a span is the difference of two moments."""
SPANS = {"age": "age_ms", "deadline in": "deadline"}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the command prints, with some words."""
    monkeypatch.setattr(groups_command, "task_context", lambda *_: None)
    monkeypatch.setattr(groups_command, "log_reader", lambda _: nullcontext())
    monkeypatch.setattr(groups_command, "wall_clock_ms", lambda: NOW)
    monkeypatch.setattr(groups_command, "unfinished", lambda *_: Unfinished([GROUP], [UNIT]))
    monkeypatch.setattr(groups_command, "totals", lambda *_: [TOTALS])
    return lambda *words: CliRunner().invoke(main, ["groups", "D", *words]).stdout


def tables(text: str) -> list[Mapping[str, str]]:
    """The only row of each table, by column."""
    parts = [part.splitlines() for part in text.strip().split("\n\n")]
    return [dict(zip(*(line.split("\t") for line in lines), strict=True)) for lines in parts]


def test_every_column_of_the_lists_is_in_the_document_of_programs_b57(told: Any) -> None:
    opened, waiting = tables(told())
    document = json.loads(told("--json"))
    assert [*document] == ["groups", "waiting_units"]
    (group,), (unit,) = document.values()
    for name, cell in opened.items():
        if name in SPANS:
            at = group[SPANS[name]]
            assert cell == span_text(at - NOW if name == "deadline in" else at)
        else:
            assert cell == str(group[JSON_OF.get(name, name)])
    assert [*waiting.values()] == [str(value) for value in unit.values()]
    assert [*waiting][1:] == [*unit][1:] == [each.name for each in fields(WaitingUnit)][1:]


def test_every_column_of_the_totals_is_in_the_document_of_programs_and_on_the_page_of_operations(told: Any) -> None:
    (row,) = tables(told("--totals"))
    (document,) = json.loads(told("--totals", "--json"))
    assert row == {name: str(value) for name, value in document.items()}
    text = (Path(__file__).parents[2] / "docs/operations.md").read_text()
    (line,) = [each for each in text.splitlines() if "`uow groups D --totals`: " in each]
    assert {*re.findall(r"`(\w+)`", line)} == {*row} - {"partition", *UnitOutcome}


@pytest.mark.parametrize(("past_ms", "is_told"), [(-1, False), (5_000, False), (5_001, True)])
def test_below_the_list_stands_how_many_groups_are_overdue_and_where_it_is_told_why(
    told: Any, monkeypatch: pytest.MonkeyPatch, past_ms: int, is_told: bool
) -> None:
    """One of which the close fails is open for everybody else."""
    groups = [replace(GROUP, deadline=deadline) for deadline in (NOW - past_ms, NOW + 1, None)]
    monkeypatch.setattr(groups_command, "unfinished", lambda *_: Unfinished(groups, []))
    said = CliRunner().invoke(main, ["groups", "D"]).stderr
    assert ("1 overdue: the page /groups/ of the worker says" in said) is is_told
