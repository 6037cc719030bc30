"""What an audit of stored groups finds: each fault planted, and nothing else found (aggregation, B-69, B-70)."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from tests.core.rule_script import Table, r, row
from tests.core.script import TOPICS, c, clock, ms, told
from tests.core.test_by_rule_release import holding, twice
from tests.core.test_fan_in import gathering, manifest
from tests.engine.restored_logs import Logs
from tests.engine.test_by_rule_restored import new_task, write
from tests.engine.test_recycling import CHANGELOG, UK, plant
from tests.fake_record import INPUT, FakeRecord
from tests.processes import PATIENCE_S
from uow.cli import groups_command, repeated_audit, stranded
from uow.cli.main import main
from uow.ops import group_audit
from uow.ops.group_audit import Finding, Kind, Report, group_findings, lost_inputs
from uow.ops.inspect import open_groups
from uow.processor.engine.ports import Stretch, Tp
from uow.processor.engine.rows import KEPT_KEY
from uow.processor.engine.target_topics import WAITING_KEY
from uow.processor.engine.task import CREDIT_KEY, LIVE_KEY
from uow.schemas.records import SETTINGS_KEY, changelog_key, rule_changelog_key
from uow.topics.rules import Release

KEY = b"low-stock/UK"


def found(logs: Logs, now: float = 10, table: Table | None = None) -> list[tuple[Kind, str, str, int]]:
    findings = group_findings(logs, new_task(table=table or Table(UK)).context, ms(now))
    return [(each.kind, each.where, each.id, each.generation) for each in findings]


def next_offset(logs: Logs) -> int:
    return logs.bounds([CHANGELOG])[CHANGELOG][1]


def test_nothing_is_found_where_nothing_is_wrong_b69() -> None:
    logs, _ = write(r(at=0), c(1, id="a", at=1), c(2, id="a", at=2), r(at=3), clock(4), rows=[UK])
    assert found(logs) == []


def test_rows_of_no_open_group_are_none_of_its_faults_b69() -> None:
    """A unit that may be corrected, a live rule, a release in advance, a unit that waits for its topic, settings."""
    logs, _ = write(r(at=0), rows=[UK])
    for first in (KEPT_KEY, LIVE_KEY, CREDIT_KEY, WAITING_KEY):
        logs.append(CHANGELOG, first + b"low-stock/UK\0\0\0\0\1", b"value")
    logs.append(CHANGELOG, SETTINGS_KEY, b"value")
    findings = group_findings(logs, new_task(table=Table(UK)).context, ms(10))
    assert [each for each in findings if each.where.startswith(f"{TOPICS.groups_changelog}/")] == []


def test_a_manifest_alone_is_a_group_b69() -> None:
    logs, _ = write(manifest(at=0), rows=[gathering()])
    assert found(logs, table=Table(gathering())) == []


def test_a_component_without_a_group_is_found_with_its_coordinates_b69() -> None:
    logs, _ = write(r(at=0), rows=[UK])
    place = f"{TOPICS.groups_changelog}/{INPUT.partition}/{next_offset(logs)}"
    plant(logs, r(at=-500, arrived=-600))
    assert found(logs) == [(Kind.COMPONENT_WITHOUT_GROUP, place, "low-stock/UK", 3)]
    (finding,) = group_findings(logs, new_task(table=Table(UK)).context, ms(10))
    assert (finding.component, finding.arrived_at) == (f"{INPUT.topic}/{INPUT.partition}/0", ms(-600))


def test_a_component_whose_group_closed_long_ago_is_found_b69() -> None:
    logs, played = write(c(1, id="a", at=0), rows=[UK])
    (row_of_a,) = [
        (key, value) for plan in played.plans for key, value in plan.changelog if key == changelog_key(b"a", 1)
    ]
    played.plans.clear()
    played.send(c(2, end=True, id="a", at=1))
    for plan in played.plans:
        logs.add(plan)
    place = f"{TOPICS.groups_changelog}/{INPUT.partition}/{next_offset(logs)}"
    logs.append(CHANGELOG, *row_of_a)
    assert (Kind.COMPONENT_WITHOUT_GROUP, place, "a", 1) in found(logs)


def test_a_generation_that_waits_is_open_though_a_later_one_has_closed_b69() -> None:
    rules = [holding(Release.HOLD_ALL)]
    logs, _ = write(*twice(0), *twice(1), told("release", id=KEY.decode(), generation=2, at=2), rows=rules)
    table = Table(*rules)
    assert found(logs, table=table) == []
    assert [(each.id, each.generation) for each in open_groups(logs, new_task(table=table).context)] == [
        (KEY.decode(), 1)
    ]


def test_a_group_without_components_is_found_b69() -> None:
    logs, played = write(r(at=0), rows=[UK])
    (_, group_row) = played.plans[0].changelog
    place = f"{TOPICS.groups_changelog}/{INPUT.partition}/{next_offset(logs)}"
    logs.append(CHANGELOG, rule_changelog_key(KEY, 7, 0), group_row[1])
    assert found(logs) == [(Kind.GROUP_WITHOUT_COMPONENTS, place, "low-stock/UK", 1)]


def test_a_group_of_a_row_that_is_not_in_the_rules_is_found_b69() -> None:
    logs, _ = write(r(at=0), rows=[UK])
    assert found(logs, table=Table(row("France", age_ms=1))) == [
        (Kind.UNKNOWN_RULE, f"{TOPICS.groups_changelog}/{INPUT.partition}/1", "low-stock/UK", 1)
    ]


def test_an_overdue_group_is_found_some_seconds_after_its_deadline_b69() -> None:
    logs, _ = write(r(at=0), rows=[UK])
    assert found(logs, now=65) == []
    assert found(logs, now=65.1) == [(Kind.OVERDUE, f"{INPUT.topic}/{INPUT.partition}", "low-stock/UK", 1)]


def test_rows_that_are_none_are_found_and_the_rest_is_looked_at_all_the_same_b69() -> None:
    logs, _ = write(r(at=0), rows=[UK])
    places = [f"{TOPICS.groups_changelog}/{INPUT.partition}/{next_offset(logs) + more}" for more in (0, 1)]
    logs.append(CHANGELOG, rule_changelog_key(KEY, 5, 1), b"rubbish")
    logs.append(CHANGELOG, b"\1", b"rubbish")
    ledger = Tp(TOPICS.closed_changelog, INPUT.partition)
    places.insert(0, f"{ledger.topic}/{INPUT.partition}/{logs.bounds([ledger])[ledger][1]}")
    logs.append(ledger, None, b"rubbish")
    assert [each[:2] for each in found(logs)] == [(Kind.STATE, place) for place in places]


class Topics:
    """Topics in memory; those after `starts` are left by retention."""

    def __init__(self, records: Sequence[FakeRecord], starts: Mapping[Tp, int]) -> None:
        self.records, self.starts = records, starts

    def bounds(self, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        return {tp: (self.starts.get(tp, 0), 1_000) for tp in tps}

    def read(self, ranges: Mapping[Tp, tuple[int, int]]) -> Iterator[Stretch]:
        for tp, (start, end) in ranges.items():
            some = [each for each in self.records if each.tp == tp and start <= each.offset_ < end]
            if some:
                yield tp, some


STOCK, COMPONENTS, REFUSED = Tp("stock", 1), Tp("components", 0), Tp("rejected", 0)


def came(offset: int) -> FakeRecord:
    return FakeRecord(offset, None, tp=STOCK, at=1_000 + offset)


def trace(tp: Tp, offset: int, of: int | str, at: int = 2_000) -> FakeRecord:
    return FakeRecord(offset, [("uow-input", f"stock/1/{of}".encode())], tp=tp, at=at)


@pytest.mark.parametrize(
    ("starts", "lost"),
    [({}, [4, 6]), ({COMPONENTS: 2}, [6]), ({REFUSED: 9}, [])],
    ids=["all is there", "retention took components", "retention took all that was refused"],
)
def test_a_record_of_an_input_that_left_no_trace_is_found_b69(starts: dict[Tp, int], lost: list[int]) -> None:
    """Numbers 4 and 6 are lost; 8 is behind the router's position."""
    records = [came(offset) for offset in (3, 4, 5, 6, 7, 8)]
    records += [
        trace(COMPONENTS, 1, 3, 1_003),
        trace(COMPONENTS, 2, 5, 1_005),
        trace(COMPONENTS, 3, "x/y"),
        trace(REFUSED, 8, 7),
    ]
    found = lost_inputs(Topics(records, starts), {STOCK: (3, 8)}, [COMPONENTS, REFUSED])  # type: ignore[arg-type]
    assert [(each.kind, each.where) for each in found] == [(Kind.LOST_INPUT, f"stock/1/{offset}") for offset in lost]


def test_what_only_one_of_two_looks_sees_is_no_finding_and_the_status_tells_b69(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker may commit meanwhile."""
    passing, lasting = Finding(Kind.OVERDUE, "D.components/0", "a", 1), Finding(Kind.OVERDUE, "D.components/0", "b", 1)
    looks = iter([[passing, lasting], [lasting], []])
    monkeypatch.setattr(group_audit, "_look", lambda *_: Report(next(looks), ["said"]))
    monkeypatch.setattr(group_audit, "task_context", lambda *_: None)
    monkeypatch.setattr(group_audit, "LOOK_AGAIN_S", 0.0)
    monkeypatch.setattr(groups_command, "audit", group_audit.audit)
    told = CliRunner().invoke(main, ["groups", "D", "--audit"])
    assert (told.exit_code, [line.split()[2] for line in told.stdout.splitlines()[1:]]) == (1, ["b"])
    told = CliRunner().invoke(main, ["groups", "D", "--audit", "--json"])
    assert (told.exit_code, json.loads(told.stdout)) == (0, {"findings": [], "left_out": ["said"]})


def test_an_audit_may_repeat_as_often_as_the_rules_say_and_publishes_what_it_found_b71(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Finding(Kind.COMPONENT_WITHOUT_GROUP, "changelog/0/1", "a", 1, "D.components/0/1")
    late = Finding(Kind.OVERDUE, "D.components/0", "b", 1)
    rounds, slept, scraped = [[lost, lost, late], [late], []], [], []
    rules, config = tmp_path / "rules.toml", tmp_path / "uow.toml"
    config.write_text(
        f'[application]\nid = "A"\n[destinations.D]\nhandling_policy = "single_message_delivery"\n[rules]\nsource = "{rules}"\n'
    )
    wanted = ["groups", "D", "--audit", "--repeat", "--metrics-port", "0", "-c", str(config)]
    monkeypatch.setattr(repeated_audit, "audit", lambda *_: Report(rounds.pop(0), []))
    told: list[str] = []
    monkeypatch.setattr(repeated_audit, "say", told.append)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        with urllib.request.urlopen(told[0].partition("on ")[2], timeout=PATIENCE_S) as answer:
            text = answer.read().decode()
        scraped.append([line.rpartition(" ")[2] for line in text.splitlines() if line.startswith("uow_orphans{")])
        scraped[-1] += [line for line in text.splitlines() if 'kind="overdue group"' in line]
        if not rounds:
            raise KeyboardInterrupt
        rules.write_text(RULES.format(parameter="audit_every_ms = 90000"))

    monkeypatch.setattr(repeated_audit, "time", SimpleNamespace(sleep=sleep))  # other threads may sleep, too
    rules.write_text(RULES.format(parameter="audit_every_ms = 60000"))
    said = CliRunner().invoke(main, wanted)
    assert (said.exit_code, slept) == (0, [60, 90, 90]), said.output
    line = 'uow_audit_findings{destination="D",kind="overdue group"}'
    assert scraped == [["2.0", f"{line} 1.0"], ["0.0", f"{line} 1.0"], ["0.0", f"{line} 0.0"]]
    rules.write_text(RULES.format(parameter=""))
    said = CliRunner().invoke(main, wanted)
    assert (said.exit_code, "parameter.audit_every_ms" in said.stderr) == (2, True), "off by default"
    assert CliRunner().invoke(main, ["groups", "D", "--repeat", "-c", str(config)]).exit_code == 2


RULES = """
version = 1
author = "a test"
why = "to see"
[parameter]
{parameter}
[[rule]]
rule_id = "low-stock"
destination = "D"
row = [{{ routing_name = "UK", age_ms = 60_000 }}, {{ routing_name = "*", age_ms = 5_000 }}]
"""


@pytest.mark.parametrize(
    ("stranded_after", "older_than", "told"),
    [
        ("30000", "1h", "stranded_after_ms is 30000, and the longest age_ms in force is 60000"),
        ("60000", "1h", "stranded_after_ms is 60000, and the longest age_ms in force is 60000"),
        ("90000", "80s", "is less than stranded_after_ms, which is 90000"),
        (None, "1h", "the parameter stranded_after_ms is not set"),
        ("90000", "90s", ""),
    ],
    ids=str,
)
def test_age_alone_calls_nothing_stranded_that_may_be_in_time_b70(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stranded_after: str | None, older_than: str, told: str
) -> None:
    one = Finding(Kind.COMPONENT_WITHOUT_GROUP, "changelog/0/1", "a", 1, "D.components/0/1", arrived_at=1)
    asked: list[object] = []
    monkeypatch.setattr(stranded, "log_reader", lambda _: nullcontext())
    monkeypatch.setattr(stranded, "task_context", lambda *_: None)
    monkeypatch.setattr(stranded, "stranded", lambda *_: [one])
    monkeypatch.setattr(stranded, "ask", lambda *arguments: asked.append(arguments[3]))
    parameter = "" if stranded_after is None else f"stranded_after_ms = {stranded_after}"
    rules, config = tmp_path / "rules.toml", tmp_path / "uow.toml"
    rules.write_text(RULES.format(parameter=parameter))
    config.write_text(
        f'[application]\nid = "A"\n[destinations.D]\nhandling_policy = "single_message_delivery"\n[rules]\nsource = "{rules}"\n'
    )
    said = CliRunner().invoke(main, ["resubmit", "D", "--older-than", older_than, "-c", str(config)])
    assert (said.exit_code, told in said.stderr, len(asked)) == (2 if told else 0, True, not told), said.output
