"""The checker: it accepts what the engine makes, and it fails on each kind of damage."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from copy import deepcopy
from itertools import islice
from pathlib import Path

import pytest

from tests.drill.in_memory import DESTINATION, drained
from uow.prove import checker
from uow.prove.checker import check
from uow.prove.definitions import SETTINGS_KEY, UNIT
from uow.prove.ground_truth import GroundTruth, load_truth
from uow.prove.load import Script
from uow.prove.seen_records import Findings, Logs

LIMIT_MS = 4000


@pytest.fixture(scope="module")
def run() -> tuple[Logs, GroundTruth]:
    return drained(seed=5, units=400)


def verdict(logs: Logs, truth: GroundTruth, expiration_ms: int = -1) -> Findings:
    return check(logs, truth, DESTINATION, expiration_ms)


def test_checker_and_load_import_nothing_of_the_product() -> None:
    """The judge shares no code with the worker; the import contract says so as well, this names what is allowed."""
    own = {
        f"uow.prove.{name}"
        for name in ("ground_truth", "seen_records", "judge", "definitions", "checker", "reading", "load")
    }
    for name in own:
        path = Path(checker.__file__).with_name(f"{name.rpartition('.')[2]}.py")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        found |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        roots = {each.partition(".")[0] for each in found - own}
        assert roots <= set(sys.stdlib_module_names) | {"confluent_kafka", "fastavro"}, name


@pytest.mark.parametrize("seed", range(8))
def test_what_the_engine_makes_is_accepted(seed: int) -> None:
    logs, truth = drained(seed, units=300)
    report = verdict(logs, truth)
    assert not report.anomalies, report.texts
    assert report.counts["unit"] > 1000
    assert min(report.counts[each] for each in ("units", "rejected", "passed", "held", "open")) > 0


@pytest.mark.parametrize("seed", range(4))
def test_what_the_engine_expires_is_accepted(seed: int) -> None:
    """W-71, W-82: every expiry is legitimate, whole groups that took too long included."""
    logs, truth = drained(seed, units=300, expiration_ms=LIMIT_MS)
    report = verdict(logs, truth, LIMIT_MS)
    assert not report.anomalies, report.texts
    assert report.counts["expired"] > 0
    assert report.counts["open"] == 0


def test_truth_survives_its_file(run: tuple[Logs, GroundTruth], tmp_path: Path) -> None:
    _, truth = run
    truth.save(tmp_path / "truth.jsonl")
    assert load_truth(tmp_path / "truth.jsonl") == truth


@pytest.mark.parametrize("steps", range(40, 80))
def test_load_can_be_stopped_at_any_step(steps: int) -> None:
    script = Script(steps, 4, window=3)
    list(islice(script.steps(), steps))
    assert all(step for step in script.finish())
    assert not script.open


def some_unit(logs: Logs, size: int = 3) -> tuple[int, int]:
    """(partition, index in D.units) of a unit with at least so many components."""
    for number, records in logs.units.items():
        for index, rec in enumerate(records):
            if rec.first("uow-unit-id") and int(rec.first("uow-size") or b"0") >= size:
                return number, index
    raise AssertionError("no such unit")


def rewrite(logs: Logs, change: Callable[[dict], None]) -> None:
    """Changes a unit's body."""
    import io

    import fastavro

    number, index = some_unit(logs)
    rec = logs.units[number][index]
    unit = UNIT.decode(rec.value)
    change(unit)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, UNIT.schema, unit)
    logs.units[number][index] = rec._replace(value=UNIT.header + out.getvalue())


def drop_a_unit(logs: Logs) -> None:
    number, index = some_unit(logs)
    del logs.units[number][index]


def double_a_unit(logs: Logs) -> None:
    number, index = some_unit(logs)
    logs.units[number].append(logs.units[number][index])


def swap_two_units(logs: Logs) -> None:
    records = next(each for each in logs.units.values() if len(each) > 1)
    records[0], records[1] = records[1], records[0]


def swap_components(logs: Logs) -> None:
    rewrite(logs, lambda unit: unit["components"].reverse())


def alter_a_value(logs: Logs) -> None:
    rewrite(logs, lambda unit: unit["components"][0].update(value=b"other"))


def alter_a_header(logs: Logs) -> None:
    rewrite(logs, lambda unit: unit["components"][1]["headers"].append({"name": "more", "value": b""}))


def lose_a_component(logs: Logs) -> None:
    rewrite(logs, lambda unit: unit["components"].pop(1))


def mix_two_units(logs: Logs) -> None:
    number, _ = some_unit(logs)
    other = next(each for each in reversed(logs.units[number]) if each.first("uow-unit-id"))
    foreign = UNIT.decode(other.value)["components"][0]
    rewrite(logs, lambda unit: unit["components"].__setitem__(0, foreign))


def lose_a_rejection(logs: Logs) -> None:
    next(each for each in logs.rejected.values() if each).pop()


def give_another_reason(logs: Logs) -> None:
    records = next(each for each in logs.rejected.values() if each)
    headers = tuple((name, b"other" if name == "uow-error-case" else value) for name, value in records[0].headers)
    records[0] = records[0]._replace(headers=headers)


def lose_a_plain_record(logs: Logs) -> None:
    for records in logs.units.values():
        for index, rec in enumerate(records):
            if not rec.first("uow-unit-id"):
                del records[index]
                return


def alter_a_plain_record(logs: Logs) -> None:
    for records in logs.units.values():
        for index, rec in enumerate(records):
            if not rec.first("uow-unit-id"):
                records[index] = rec._replace(value=b"other")
                return


def pass_a_component(logs: Logs) -> None:
    number, index = some_unit(logs)
    place = UNIT.decode(logs.units[number][index].value)["components"][0]["source"]["offset"]
    origin = next(rec for rec in logs.components[number] if rec.offset == place)
    logs.units[number].append(origin)


def forget_a_held_component(logs: Logs) -> None:
    rows = next(each for each in logs.changelog.values() if each)
    last = {rec.key: rec for rec in rows}
    rows.remove(next(rec for rec in last.values() if rec.value is not None and rec.key != SETTINGS_KEY))


def keep_a_closed_component(logs: Logs) -> None:
    rows = next(each for each in logs.changelog.values() if any(rec.value is None for rec in each))
    rows.remove(next(rec for rec in reversed(rows) if rec.value is None))


def break_the_ledger(logs: Logs) -> None:
    del next(each for each in logs.ledger.values() if len(each) > 2)[1]


def lose_the_whole_ledger(logs: Logs) -> None:
    for records in logs.ledger.values():
        records.clear()


def lose_an_outcome(logs: Logs) -> None:
    next(each for each in logs.outcomes.values() if each).pop()


def set_an_offset_back(logs: Logs) -> None:
    logs.committed[0] -= 3


def send_on_twice(logs: Logs) -> None:
    for records in logs.components.values():
        for rec in records:
            if rec.headers[-1:] == (("uow-rerouted", b"1"),) and len(rec.headers) == 4:
                records.append(rec._replace(offset=records[-1].offset + 1))
                return


def lose_an_input_record(logs: Logs) -> None:
    del logs.components[0][5]


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (drop_a_unit, "missing"),
        (double_a_unit, "doubled"),
        (swap_two_units, "sequence"),
        (swap_components, "order"),
        (alter_a_value, "bytes"),
        (alter_a_header, "bytes"),
        (lose_a_component, "incomplete"),
        (mix_two_units, "mixed"),
        (lose_a_rejection, "unaccounted"),
        (give_another_reason, "reason"),
        (lose_a_plain_record, "missing"),
        (alter_a_plain_record, "invented"),
        (pass_a_component, "both"),
        (forget_a_held_component, "changelog"),
        (keep_a_closed_component, "changelog"),
        (break_the_ledger, "ledger"),
        (lose_the_whole_ledger, "ledger"),
        (lose_an_outcome, "outcomes"),
        (set_an_offset_back, "lag"),
        (send_on_twice, "doubled"),
        (lose_an_input_record, "input"),
    ],
)
def test_damage_is_seen(run: tuple[Logs, GroundTruth], damage: Callable[[Logs], None], kind: str) -> None:
    """The checker is able to fail."""
    logs, truth = run
    broken = deepcopy(logs)
    damage(broken)
    assert verdict(broken, truth).anomalies[kind] > 0


def test_unit_both_completed_and_expired_is_seen() -> None:
    logs, truth = drained(3, units=300, expiration_ms=LIMIT_MS)
    number, index = some_unit(logs)
    unit = logs.units[number][index]
    template = next(rec for records in logs.errors.values() for rec in records)
    source = UNIT.decode(unit.value)["components"][0]["source"]
    origin = next(rec for rec in logs.components[number] if rec.offset == source["offset"])
    added = tuple(pair for pair in template.headers[-6:] if pair[0] != "uow-source")
    mark = ("uow-source", f"{source['topic']}/{source['partition']}/{source['offset']}".encode())
    logs.errors[number].append(origin._replace(headers=(*origin.headers, *added, mark)))
    assert verdict(logs, truth, LIMIT_MS).anomalies["both"] > 0


def test_expiry_before_its_time_is_seen() -> None:
    """W-82: a shorter limit than the one in force makes every expiry illegitimate, a longer one as well."""
    logs, truth = drained(3, units=300, expiration_ms=LIMIT_MS)
    assert verdict(logs, truth, LIMIT_MS + 500).anomalies["expiry"] > 0
    assert (
        verdict(logs, truth, LIMIT_MS - 500).anomalies["overdue"]
        + verdict(logs, truth, LIMIT_MS - 500).anomalies["expiry"]
        > 0
    )
