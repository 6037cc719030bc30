"""Generated pages are what `make docs` would write now, and leave nothing out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import docs
from uow.processor.core.decide import LINES
from uow.processor.shell.monitor import FATES, HISTOGRAMS, METRICS
from uow.spark_sink.monitor import METRICS as SINK_METRICS


def test_no_generated_page_has_drifted() -> None:
    assert docs.drifted() == [], "run: make docs"


def test_lines_of_the_table_stand_in_the_order_in_which_the_code_tries_them() -> None:
    listed = [(line.number, line.code) for line in docs.TABLE if line.code in {each.judge for each in LINES}]
    assert listed == [(line.number, line.judge) for line in LINES]


def test_every_metric_and_every_fate_is_told() -> None:
    page = docs.metrics_page()
    assert [spec.name for spec in (*METRICS, *HISTOGRAMS, *SINK_METRICS) if f"| `{spec.name}" not in page] == []
    assert {*docs.FATE_TEXTS} == {*FATES}


def test_drifted_page_is_told_by_check_and_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    page = Path("docs") / "metrics.md"
    monkeypatch.setattr(docs, "PAGES", {page: lambda: "new"})
    (tmp_path / "docs").mkdir()
    (tmp_path / page).write_text("old")
    assert docs.main(["--check"]) == 1
    assert "metrics.md" in capsys.readouterr().out
    assert (tmp_path / page).read_text() == "old"
    assert docs.main([]) == 0
    assert (tmp_path / page).read_text() == "new"
    assert docs.main(["--check"]) == 0
