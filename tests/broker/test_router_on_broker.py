"""The router in worker processes, on a real broker (B-27)."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from examples.low_stock.warehouse import events
from tests.broker.routed_places import RoutedPlace, now_ms
from tests.broker.worker_places import Destination, Worker
from tests.conftest import QUIET
from tests.processes import PATIENCE_S, wait_for
from uow.cli.main import main
from uow.schemas import codec
from uow.schemas.records import Outcome, Reason

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


def test_router_killed_on_the_way_routes_each_record_once_from_inputs_of_any_size_b17_b27(place: Destination) -> None:
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
    routed.rules.unlink()  # B-17: the mirror serves a worker that starts while the rules cannot be read
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


LIMITS = {f"limit-{number}": 1_000 + 40 * number for number in range(50)}


def test_scenarios_close_by_count_and_by_time_b61_b62_b63_b65_b110(place: Destination) -> None:
    """The three numbered scenarios with a fifth of their times, side by side; Spain over a stop and a start of the only worker.

    Beside them fifty names, each with a limit of its own (B-110).
    """
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
        | {name: {"target_topic": "own", "age_ms": age} for name, age in LIMITS.items()}
    )
    routed.create(SHORT, outcomes="all")
    worker = place.worker()
    sizes = {"France": 10, "France-9": 9, "France-11": 11, "France-20": 20, "UK": 3, "Spain": 12}
    routed.send([("events", name, document(name, number)) for name, count in sizes.items() for number in range(count)])
    routed.send([("events", name, document(name, 0)) for name in LIMITS])
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
    wait_for(lambda: len(units(routed, "own")) == len(LIMITS))
    assert check_deadlines(routed, {name: age for name, (_, age) in rows.items()} | LIMITS) >= LIMITS.keys()


def test_groups_outlive_every_kind_of_end_and_start_of_their_worker_b66(place: Destination) -> None:
    """Twelve of twenty for each name, then a kill. A worker keeps no files, so that none are missed.

    `Down` is overdue before two other workers start, `Killed` closes while they run, `Completed` gets its other eight from there.
    """
    ages = {"Down": 8_000, "Killed": 20_000, "Completed": 600_000}
    routed = RoutedPlace(place, {"events": 3})
    routed.put_rules(
        {name: {"target_topic": name.lower(), "complete_count": 20, "age_ms": age} for name, age in ages.items()}
    )
    routed.create(SHORT, outcomes="all")
    doomed = place.worker()
    routed.send([("events", name, document(name, number)) for number in range(12) for name in reversed(ages)])
    wait_for(lambda: len(components(routed)) == 36 and place.committed() >= 36)
    doomed.child.signal(signal.SIGKILL)
    assert doomed.child.wait(PATIENCE_S) == 128 + signal.SIGKILL
    last = max(record.timestamp()[1] for record in components(routed))
    wait_for(lambda: now_ms() > last + ages["Down"] + 1_500)
    heirs = [place.worker(name, wait=False) for name in ("1", "2")]
    for heir in heirs:
        heir.child.wait_output(f"worker {heir.worker_name} ready", 90)
    routed.send([("events", "Completed", document("Completed", number)) for number in range(12, 20)])
    wait_for(lambda: all(units(routed, name.lower()) for name in ages))
    partial = (12, "partial", "age", "1")
    for name, wanted in {"Down": partial, "Killed": partial, "Completed": (20, "complete", "count", "1")}.items():
        ((*told, inside),) = units(routed, name.lower())
        assert (tuple(told), sorted(inside)) == (wanted, list(range(wanted[0])))
    check_deadlines(routed, ages)
    series = f'uow_deadline_overrun_seconds_sum{{destination="{place.name}",row="Down",rule="low-stock"}}'
    assert sum(heir.metric(series) for heir in heirs) > 1


@pytest.mark.drill
def test_a_hundred_thousand_open_groups_are_there_after_a_restart_b37(place: Destination) -> None:
    """A group for each made-up name; `pytest -m drill -s` shows what they take."""
    routed, count = RoutedPlace(place, {"events": 4}), 100_000
    routed.put_rules({"*": {"complete_count": 2, "age_ms": 86_400_000}}, default_group="per_name")
    routed.create()
    worker = place.worker()
    began = time.monotonic()
    routed.send(("events", f"name-{number}", document("x", number)) for number in range(count))
    wait_for(lambda: summed(worker, "uow_open_groups") == count, 300)
    took = time.monotonic() - began
    for how, stop in {"stop": signal.SIGTERM, "kill": signal.SIGKILL}.items():
        worker.child.signal(stop)
        assert worker.child.wait(90) == (0 if how == "stop" else 128 + stop)
        began = time.monotonic()
        worker = place.worker()
        ready = time.monotonic() - began
        assert summed(worker, "uow_open_groups") == count
        memory = summed(worker, "uow_memory_bytes")
        print(f"opened in {took:.1f} s; {how}: ready after {ready:.1f} s, uow_memory_bytes {memory:,.0f}")
    routed.send([("events", f"name-{number}", document("x", number)) for number in range(0, count, 1_000)])
    wait_for(lambda: len(units(routed, "other")) == count // 1_000)
    assert summed(worker, "uow_open_groups") == count - count // 1_000


def summed(worker: Worker, name: str) -> float:
    """A metric over all partitions."""
    return sum(float(line.rpartition(" ")[2]) for line in worker.metrics().splitlines() if line.startswith(name + "{"))


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


def check_deadlines(routed: RoutedPlace, ages: dict[str, int]) -> AbstractSet[str]:
    """What closed by age had the deadline of its first component and its own row, and closed after it (L4, B-110). Returns the names."""
    arrivals: dict[str, list[int]] = {}
    for record in sorted(
        components(routed), key=lambda record: record.offset()
    ):  # those of a name lie on one partition
        said = dict(record.headers())
        name = said["uow-id"].decode().partition("/")[2]
        arrivals.setdefault(name, []).append(int(said["uow-arrived-at"]))
    told = [codec.decode_as(Outcome, record.value()) for record in routed.place.read(f"{routed.place.name}.outcomes")]
    by_age = {one.id.partition("/")[2]: one for one in told if one.reason is Reason.AGE}
    for name, one in by_age.items():
        first = min(
            arrivals[name][-one.count :]
        )  # the router takes partitions in turn: the last one need not have arrived last
        assert one.deadline_at == first + ages[name] < one.closed_at
    return by_age.keys()


def test_an_input_without_append_times_gives_no_arrival_and_a_refresh_is_heard_at_once(place: Destination) -> None:
    """Aggregation, section 3; B-12: the next regular look is an hour away. B-06: the version counts for groups that open then, in the same process. B-57: its target is made later."""
    routed = RoutedPlace(place, {"events": 1}, log_append_time=False)
    routed.put_rules()
    routed.create(SHORT, refresh_ms=3_600_000, status=1)
    away = routed.rules.rename(routed.rules.with_suffix(".away"))
    missing = CliRunner().invoke(main, ["worker", "-c", str(place.config)])
    assert (missing.exit_code, "rules.source" in missing.stderr) == (2, True)  # B-17: nor is there a mirror yet
    away.rename(routed.rules)
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
    routed.put_rules({"*": {"age_ms": 500, "target_topic": "late"}})
    assert CliRunner().invoke(main, ["rules", "refresh", "-c", str(place.config)]).exit_code == 0
    worker.child.wait_output("rules: version 2 is in force")
    routed.send([("events", "UK", b"<Test/>")])
    worker.child.wait_output("late does not exist")  # B-57
    wait_for(lambda: place.read(f"{place.name}.outcomes"))
    admin = AdminClient({"bootstrap.servers": place.bootstrap})
    admin.create_topics([NewTopic(routed.topic("late"), 1, 1)])[routed.topic("late")].result(PATIENCE_S)
    wait_for(lambda: place.read(routed.topic("late")))
    (unit,) = place.read(routed.topic("late"))
    said = dict(unit.headers())
    assert (said["uow-rule"], said["uow-reason"]) == (b"low-stock/*@2", b"age")
    assert worker.child.terminate(90) == 0


def test_every_event_of_the_warehouse_is_in_one_unit_of_its_own_application_within_its_limits_b08_b112(
    place: Destination, tmp_path: Path
) -> None:
    """`examples/low_stock` with a tenth of its times; the last units close by age. Two applications with the same rule and keys have half of the events each."""
    twin = Destination(place.bootstrap, f"{place.name}-twin", tmp_path / "twin", place.spawn)
    twin.config.parent.mkdir()
    sent, both = list(events(1000)), [RoutedPlace(each, {"events": 4}) for each in (place, twin)]
    limits = {"France": 10, "UK": 5, "Spain": 20, "*": 10}
    workers = []
    for routed, half in zip(both, (sent[:500], sent[500:]), strict=True):
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
        workers.append(routed.place.worker())
        routed.send([("events", str(event["supplier"]), json.dumps(event).encode()) for event in half])

    def delivered(routed: RoutedPlace) -> list[dict[str, Any]]:
        topics = [routed.topic(name) for name in ("france", "uk", "spain", "other")]
        return [json.loads(record.value()) for topic in topics for record in routed.place.read(topic)]

    for routed, half in zip(both, (sent[:500], sent[500:]), strict=True):
        wait_for(lambda routed=routed: sum(len(unit["components"]) for unit in delivered(routed)) >= 500)  # type: ignore[misc]
        units = delivered(routed)
        found = [json.loads(each["value"]["text"]) for unit in units for each in unit["components"]]
        assert Counter(event["event_id"] for event in found) == Counter(event["event_id"] for event in half)
        for unit in units:
            name = unit["id"].partition("/")[2]
            assert len(unit["components"]) <= limits[name]
            inside = {json.loads(each["value"]["text"])["supplier"] for each in unit["components"]}
            assert inside == {name} or name == "*"
    for worker in workers:
        assert worker.child.terminate(90) == 0


def test_no_group_is_given_up_while_its_component_lies_in_an_open_transaction_of_an_input_b218(
    place: Destination,
) -> None:
    """The transaction began before the deadline and ends long after it; the group is overdue meanwhile, as the metric says."""
    routed = RoutedPlace(place, {"first": 1, "second": 1})
    routed.put_rules({"UK": {"target_topic": "uk", "complete_count": 3, "age_ms": 1_000}})
    routed.create(SHORT)
    worker = place.worker()
    properties = {"bootstrap.servers": place.bootstrap, "transactional.id": f"slow-{place.name}"}
    producer = Producer(properties, logger=QUIET)
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    headers: Any = [("uow-destination", b"UK")]
    producer.produce(routed.inputs["second"], document("UK", 0), headers=headers)
    assert producer.flush(PATIENCE_S) == 0
    routed.send([("first", "UK", document("UK", 1))])
    series = f'uow_overdue_groups{{destination="{place.name}",rule="low-stock"}}'
    wait_for(lambda: worker.metric(series) == 1)
    assert units(routed, "uk") == []
    producer.commit_transaction(PATIENCE_S)
    wait_for(lambda: units(routed, "uk"))
    ((size, outcome, reason, generation, inside),) = units(routed, "uk")
    assert ((size, outcome, reason, generation), sorted(inside)) == ((2, "partial", "age", "1"), [0, 1])


def test_a_record_that_is_too_deep_is_refused_alone_and_no_worker_ends(place: Destination) -> None:
    routed = RoutedPlace(place, {"events": 1})
    routed.put_rules(
        {"*": {"target_topic": "other", "complete_count": 3, "value_format": "json"}}, accept="quantity > 0"
    )
    routed.create(SHORT)
    deep = b'{"quantity": %s%s}' % (b"[" * 600, b"]" * 600)
    values = [
        b'{"quantity": 1}',
        deep,
        b'{"quantity": 2}',
        b'{"quantity": %s%s}' % (b"[" * 50_000, b"]" * 50_000),
        b'{"quantity": 3}',
    ]
    worker = place.worker()
    routed.send([("events", "UK", value) for value in values])
    wait_for(lambda: len(place.read(routed.topic("other"))) == 1, what=lambda: worker.child.output)
    wait_for(lambda: len(place.read(f"{place.name}.rejected")) == 2)
    refused = [dict(record.headers()) for record in place.read(f"{place.name}.rejected")]
    assert [(each["uow-error-class"], each["uow-error-case"]) for each in refused] == [(b"DecodeError", b"json")] * 2
    assert {each["uow-input"].rpartition(b"/")[2] for each in refused} == {b"1", b"3"}
    assert worker.child.terminate(90) == 0
