"""The router in worker processes, on a real broker (B-27)."""

from __future__ import annotations

import json
import signal
from collections import Counter
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from examples.low_stock.warehouse import events
from tests.broker.routed_places import RoutedPlace
from tests.broker.worker_places import Destination
from tests.processes import wait_for
from uow.cli.main import main

pytestmark = pytest.mark.timeout(300)
INPUTS = {"one": 1, "four": 4, "twelve": 12}
SHORT = {"session_timeout_ms": 2000, "poll_records": 100}


def components(routed: RoutedPlace) -> list[Any]:
    return routed.place.read(routed.place.components)


def check_routed(routed: RoutedPlace, sent: int) -> None:
    """Each record once, one partition for each key, order of each input partition kept within a key."""
    places: Counter[bytes] = Counter()
    partitions: dict[bytes, set[int]] = {}
    last: dict[tuple[bytes, bytes], int] = {}
    for record in sorted(components(routed), key=lambda record: (record.partition(), record.offset())):
        headers = dict(record.headers())
        key, where = record.key(), headers["uow-input"]
        places[where] += 1
        partitions.setdefault(key, set()).add(record.partition())
        line, _, offset = where.rpartition(b"/")
        assert int(offset) > last.get((key, line), -1)
        last[key, line] = int(offset)
        assert headers["uow-id"] == key
        assert int(headers["uow-arrived-at"]) <= record.timestamp()[1]
    assert set(places.values()) == {1}
    assert len(places) == sent
    assert {len(each) for each in partitions.values()} == {1}


def test_router_killed_on_the_way_routes_each_record_once_from_inputs_of_any_size_b27(place: Destination) -> None:
    routed = RoutedPlace(place, INPUTS)
    routed.put_rules(
        {name: {"target_topic": target, "complete_count": 10} for name, target in (("UK", "uk"), ("*", "other"))},
        default_group="per_name",
    )
    routed.create(SHORT)
    rows = [
        (name, f"supplier-{number % 40}", b"<order number='%d'/>" % number) for number in range(1000) for name in INPUTS
    ]
    routed.send(rows)
    for crash in ("router-produced:2:9", "router-commit:2:9:3", "router-committed:2:9"):
        doomed = place.worker(wait=False, UOW_CRASH=crash)
        assert doomed.child.wait(90) == 128 + signal.SIGKILL, doomed.child.output
    heir = place.worker()
    wait_for(
        lambda: len(components(routed)) >= 3000, what=lambda: f"{len(components(routed))}: {heir.page()['router']}"
    )
    wait_for(lambda: routed.lag(heir) == 0)
    check_routed(routed, 3000)
    mirrored = {record.key(): record.value() for record in place.read(f"A-{place.name}-rules")}
    assert {*mirrored} == {b"low-stock/*@1", b"rules"}
    assert heir.metric('uow_routed_records_total{fate="routed",rule="low-stock"}') > 0
    assert heir.child.terminate(90) == 0


def document(word: str, number: int) -> bytes:
    return f"<?xml version='1.0'?><Test n='{number}'>{word}</Test>".encode()


def test_scenarios_close_by_count_and_by_time_b61_b62_b63_b65(place: Destination) -> None:
    """The three numbered scenarios with a fifth of their times, side by side; Spain over a stop and a start of the only worker."""
    routed = RoutedPlace(place, {"events": 3})
    rows = {
        "France": (10, 6_000),
        "France-9": (10, 6_000),
        "France-11": (10, 6_000),
        "France-20": (10, 6_000),
        "UK": (5, 3_000),
        "Spain": (20, 12_000),
    }
    routed.put_rules(
        {name: {"target_topic": name.lower(), "complete_count": n, "age_ms": age} for name, (n, age) in rows.items()}
        | {"*": {"complete_count": 10, "age_ms": 12_000}}
    )
    routed.create(SHORT, outcomes="all")
    worker = place.worker()
    sizes = {"France": 10, "France-9": 9, "France-11": 11, "France-20": 20, "UK": 3, "Spain": 12}
    routed.send([("events", name, document(name, number)) for name, count in sizes.items() for number in range(count)])
    wait_for(lambda: len(units(routed, "france")) == 1 and len(units(routed, "france-20")) == 2)
    assert worker.child.terminate(90) == 0
    assert units(routed, "spain") == []
    place.worker()
    wanted = {
        "france": [(10, "complete", "count", "1")],
        "france-9": [(9, "partial", "age", "1")],
        "france-11": [(10, "complete", "count", "1"), (1, "partial", "age", "2")],
        "france-20": [(10, "complete", "count", "1"), (10, "complete", "count", "2")],
        "uk": [(3, "partial", "age", "1")],
        "spain": [(12, "partial", "age", "1")],
    }
    for target, expected in wanted.items():
        wait_for(lambda target=target, expected=expected: len(units(routed, target)) >= len(expected))  # type: ignore[misc]
        assert [each[:4] for each in units(routed, target)] == expected
    for name in sizes:
        numbers = [number for unit in units(routed, name.lower()) for number in unit[4]]
        assert sorted(numbers) == list(range(sizes[name]))
    check_deadlines(routed, rows)


def units(routed: RoutedPlace, target: str) -> list[tuple[int, str, str, str, list[int]]]:
    """Size, outcome, reason, generation and the numbers of the documents inside, in order of generation."""
    found = []
    for record in routed.place.read(routed.topic(target)):
        said = {name: value.decode() for name, value in record.headers()}
        root = ET.fromstring(record.value())
        assert root.tag == "Aggregation"
        inside = [int(each.get("n") or -1) for each in root]
        size = int(said["uow-size"])
        assert len(inside) == size
        assert record.key() == said["uow-id"].encode()
        found.append((size, said["uow-outcome"], said["uow-reason"], said["uow-generation"], inside))
    return sorted(found, key=lambda unit: unit[3])


def check_deadlines(routed: RoutedPlace, rows: dict[str, tuple[int, int]]) -> None:
    """What closed by age closed as of its deadline: the arrival of its first component and the age of its row (L4)."""
    arrivals: dict[str, list[int]] = {}
    for record in components(routed):
        said = dict(record.headers())
        arrivals.setdefault(said["uow-id"].decode(), []).append(int(said["uow-arrived-at"]))
    for record in routed.place.read(f"{routed.place.name}.outcomes"):
        said = dict(record.headers())
        if said.get("uow-reason") == b"age" and b"France-11" not in said["uow-id"]:
            name = said["uow-id"].decode().partition("/")[2]
            assert record.timestamp()[1] > min(arrivals[said["uow-id"].decode()]) + rows[name][1]


def test_an_input_without_append_times_gives_no_arrival_and_a_refresh_is_heard_at_once(place: Destination) -> None:
    """Aggregation, section 3; B-12: the next regular look is an hour away."""
    routed = RoutedPlace(place, {"events": 1}, log_append_time=False)
    routed.put_rules()
    routed.create(SHORT, refresh_ms=3_600_000, status=1)
    told = CliRunner().invoke(main, ["doctor", "-c", str(place.config)]).output
    assert f"{routed.inputs['events']}: message.timestamp.type is CreateTime, should be LogAppendTime" in " ".join(
        told.split()
    )
    worker = place.worker()
    routed.send([("events", "UK", b"<Test/>"), ("events", "UK", b"<Test>")], transactional=f"sender-{place.name}")
    wait_for(lambda: len(components(routed)) == 1)
    (record,) = components(routed)
    assert "uow-arrived-at" not in dict(record.headers())
    (rejected,) = place.read(f"{place.name}.rejected")
    assert (dict(rejected.headers())["uow-error-case"], rejected.value()) == (b"xml", b"<Test>")
    assert worker.metric('uow_routed_records_total{fate="rejected",rule="low-stock"}') == 1
    routed.put_rules({"*": {"complete_count": 1}})
    assert CliRunner().invoke(main, ["rules", "refresh", "-c", str(place.config)]).exit_code == 0
    worker.child.wait_output("rules: version 2 is in force")
    routed.send([("events", "UK", b"<Test/>")])
    wait_for(lambda: place.read(routed.topic("other")))
    assert worker.child.terminate(90) == 0


def test_every_event_of_the_warehouse_is_in_exactly_one_unit_within_its_limits_b08(place: Destination) -> None:
    """`examples/low_stock` with a tenth of its times; the last units close by age."""
    routed = RoutedPlace(place, {"events": 4})
    limits = {"France": 10, "UK": 5, "Spain": 20, "*": 10}
    routed.put_rules(
        {
            name: {
                "target_topic": name.lower().replace("*", "other"),
                "complete_count": n,
                "age_ms": 3_000,
                "value_format": "json",
            }
            for name, n in limits.items()
        },
        delay_item="path:product",
    )
    routed.create(SHORT)
    worker = place.worker()
    sent = list(events(1000))
    routed.send([("events", str(event["supplier"]), json.dumps(event).encode()) for event in sent])
    topics = [routed.topic(name) for name in ("france", "uk", "spain", "other")]

    def delivered() -> list[dict[str, Any]]:
        return [json.loads(record.value()) for topic in topics for record in place.read(topic)]

    wait_for(lambda: sum(len(unit["components"]) for unit in delivered()) >= 1000)
    found = [json.loads(each["value"]["text"]) for unit in delivered() for each in unit["components"]]
    assert Counter(event["event_id"] for event in found) == Counter(event["event_id"] for event in sent)
    for unit in delivered():
        name = unit["id"].partition("/")[2]
        assert len(unit["components"]) <= limits[name]
        inside = {json.loads(each["value"]["text"])["supplier"] for each in unit["components"]}
        assert inside == {name} or name == "*"
    assert worker.child.terminate(90) == 0
