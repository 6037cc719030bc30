"""`make bench` runs, its numbers are numbers, and what it measured made the right units. Never how fast: that is the reader's business."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench import by_rule, client_asyncio, client_reads, client_sends, hot, latency, routing, takeover
from bench.__main__ import BenchOptions, Results, drains, main, restores, table
from bench.drain import BenchBroker
from bench.finished_units import FinishedUnits
from bench.gate import PRODUCT, ROOT, Gate
from bench.restore_times import Restores
from bench.workloads import WORKLOADS, produce
from tests.kafka_broker import Kafka
from uow.embedded.broker import EmbeddedBroker
from uow.schemas.codec import decode_as
from uow.schemas.records import Unit
from uow.topics.catalogue import DestinationTopics

RECORDS = 3_000


@pytest.fixture
def place(broker: Kafka, tmp_path: Path) -> BenchBroker:
    return BenchBroker(broker.bootstrap, tmp_path, broker.data if isinstance(broker, EmbeddedBroker) else None)


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_a_workload_is_the_same_every_time_and_every_group_gets_each_number(name: str) -> None:
    workload = WORKLOADS[name].of(RECORDS)
    records = list(workload.records())
    assert records == list(workload.records())
    numbers: dict[bytes, set[int]] = {}
    for record in records:
        numbers.setdefault(record.id, set()).add(record.seq)
    assert len(numbers) == workload.units
    assert all(seen == set(range(1, workload.components + 1 - workload.missing)) for seen in numbers.values())


def test_finished_units_are_units_with_their_components_in_order() -> None:
    made = list(FinishedUnits(DestinationTopics("a", "d"), 50).records())
    units = [decode_as(Unit, each.value) for each in made]
    assert len({unit.unit_id for unit in units}) == 50
    assert {tuple(part.seq for part in unit.components) for unit in units} == {(1, 2, 3, 4, 5)}
    assert all(
        dict(each.headers)["uow-unit-id"] == unit.unit_id.encode() for each, unit in zip(made, units, strict=True)
    )


def test_worker_and_comparisons_make_every_unit_once_and_have_numbers(place: BenchBroker) -> None:
    results = Results()
    drains(place, BenchOptions(["w5"], rounds=1, records=RECORDS, seconds=0, rate=0), results, lambda line: None)
    for run in ("w5 bare", "w5 worker", "w5 keeps nothing", "w5 no replay", "w5 no transactions"):
        assert all(one.median > 0 for name, one in results.series[run].items() if name != "internal")
        assert results.series[run]["units"].median == WORKLOADS["w5"].of(RECORDS).units
    if place.data is not None:
        internal = {run: series["internal"].median for run, series in results.series.items()}
        assert internal["w5 keeps nothing"] == 0 < min(internal["w5 worker"], internal["w5 no replay"])
    assert table(results).row_count == 5


def test_plain_faust_makes_every_unit(place: BenchBroker) -> None:
    destination = place.destination("faust")
    topics = place.create(place.application(), destination)
    workload = WORKLOADS["w5"].of(500)
    produce(place.bootstrap, topics.components, workload)
    done = place.drain("plain_faust", destination)
    assert done.units == workload.units
    assert done.cpu_us > 0


@pytest.mark.drill  # a dozen seconds of starting workers
def test_heir_of_a_worker_that_was_stopped_delivers_from_every_partition(place: BenchBroker) -> None:
    assert takeover.measure(place, 200, "stopped") > 0


@pytest.mark.drill  # a dozen seconds of sending and reading, each way twice
def test_the_client_is_measured_in_each_way(place: BenchBroker) -> None:
    for way in client_asyncio.WAYS:
        assert all(figure > 0 for figure in client_asyncio.measure(place, 2_000, way).values())
    for way in client_sends.WAYS:
        assert all(figure > 0 for figure in client_sends.measure(place, 2_000, way).values())
    assert all(figure > 0 for figure in client_reads.measure(place, 2_000).values())


def test_every_held_component_is_restored_with_an_old_changelog_as_well(place: BenchBroker) -> None:
    results = Results()
    restores(place, BenchOptions(["restore"], rounds=1, records=RECORDS, seconds=0, rate=0), results, lambda line: None)
    assert {"changelog", "uncompacted", "input"} == set(Restores.CASES)
    for case in Restores.CASES:
        run = f"restore {case}"
        assert results.series[run]["held"].median == RECORDS
        assert results.series[run]["per_s"].median > 0


def test_latency_is_measured_on_every_unit(place: BenchBroker) -> None:
    done = latency.measure(place, seconds=8, rate=200)
    assert done["units"] == latency.workload(1600).units
    assert 0 < done["p50_ms"] <= done["p99_ms"] <= done["max_ms"]


def test_the_gate_runs_the_code_of_each_tree_and_measures_both(broker: Kafka, tmp_path: Path) -> None:
    """Programs of a copy say something that those of this tree do not."""
    reference = tmp_path / "reference"
    for name in PRODUCT:
        shutil.copytree(ROOT / name, reference / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    with (reference / "processor" / "core" / "fast_path.py").open("a") as module:
        module.write('print("code of the reference", flush=True)\n')
    gate = Gate(broker.bootstrap, tmp_path, ROOT, reference, lambda line: None)
    played = gate.drains(gate.trees, WORKLOADS["w5"].of(RECORDS))
    assert all(figure > 0 for tree in gate.trees for figure in played[tree].values())
    these, those = latency.by_turns(list(gate.places.values()), turns=2, seconds=1, rate=400)
    assert [len(turn) for turn in (*these, *those)] == [latency.workload(400).units] * 4
    assert min(map(min, these + those)) > 0
    for tree, place in gate.places.items():
        logs = [log.read_text() for log in tmp_path.glob(place.destination("*[0-9].log"))]
        assert len(logs) == (2 if tree == reference else 3), "two workers; and the bare loop, of this tree"
        assert sum("code of the reference" in log for log in logs) == (2 if tree == reference else 0)


def test_router_and_bare_loop_are_measured(place: BenchBroker) -> None:
    assert all(value > 0 for value in routing.Routing(place, RECORDS).measure().values())


def test_groups_by_rule_are_measured_without_a_broker() -> None:
    assert by_rule.count_ten(2_000, 1)["ratio"] > 0
    assert by_rule.ages(500, 1)["ratio"] > 0


def test_the_hot_path_is_measured_without_a_broker(capsys: pytest.CaptureFixture[str]) -> None:
    assert all(value > 0 for value in hot.measure(2_000, 1).values())
    assert main(["hot", "--records", "500", "--rounds", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"]["hot w5"]["process"]["median"] > 0
