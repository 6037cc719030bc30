"""`docs/operations.md` names only what exists: metrics, settings, commands, anchors."""

from __future__ import annotations

import re
from pathlib import Path

from uow.cli.main import COMMANDS
from uow.config.settings import SETTINGS
from uow.processor.shell.monitor import COMMIT_SECONDS, HISTOGRAMS, METRICS
from uow.spark_sink.monitor import METRICS as SINK_METRICS

TEXT = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")


def test_every_metric_named_exists() -> None:
    named = set(re.findall(r"\buow_[a-z_]+", TEXT))
    scraped = {f"{spec.name}_total" if spec.kind == "counter" else spec.name for spec in (*METRICS, *SINK_METRICS)}
    scraped |= {spec.name for spec in HISTOGRAMS}
    scraped |= {f"{COMMIT_SECONDS[0]}_sum", f"{COMMIT_SECONDS[0]}_count"}
    assert named <= scraped


def test_every_metric_that_tells_of_trouble_is_explained() -> None:
    assert {"uow_blocked", "uow_paused", "uow_doubts_total", "uow_oldest_group_age_seconds"} <= set(
        re.findall(r"\buow_[a-z_]+", TEXT)
    )


def test_every_setting_and_command_named_exists() -> None:
    settings = {setting.key for setting in SETTINGS}
    assert set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", TEXT)) <= settings | {"read_committed", "superseded_by"} | {
        name for spec in (*METRICS, *SINK_METRICS) for name in (spec.name, f"{spec.name}_total")
    } | {spec.name for spec in HISTOGRAMS}
    assert set(re.findall(r"`uow ([a-z-]+)", TEXT)) <= {*COMMANDS}


def test_every_link_leads_somewhere() -> None:
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", head.lower()).replace(" ", "-")
        for head in re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
    }
    for link in re.findall(r"\]\(([^)]+)\)", TEXT):
        file, _, anchor = link.partition("#")
        assert not file or (Path(__file__).parents[2] / "docs" / file).is_file(), link
        assert file or anchor in anchors, link
