"""Repair on a real broker with a real worker: commands wait for a worker, are answered, and are known to the next one (W-62, W-203)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from tests.broker.worker_places import Destination, decoded
from tests.kafka_broker import Kafka, committed_rows
from tests.processes import PATIENCE_S, Process, wait_for
from tests.report.summaries import EMPTY
from uow import connect
from uow.cli.main import main
from uow.cli.report_command import groups_of
from uow.client.outgoing import OutgoingRecord
from uow.report.sections import report_page
from uow.schemas import codec
from uow.schemas.records import Answer, Outcome
from uow.terminal.printing import wall_clock_ms


@pytest.fixture
def place(broker: Kafka, unique: str, tmp_path: Path, spawn: Callable[..., Process]) -> Destination:
    return Destination(broker.bootstrap, unique, tmp_path, spawn, partitions=3)


def run(place: Destination, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "-c", str(place.config)], catch_exceptions=False)


def repair(place: Destination, verb: str, *arguments: str) -> Result:
    return run(place, verb, place.name, *arguments, "--why", "the test says so", "--by", "Jill")


def open_groups(place: Destination) -> set[str]:
    return {group["id"] for group in json.loads(run(place, "groups", place.name, "--json").output)["groups"]}


def totals(place: Destination) -> list[dict[str, int]]:
    return json.loads(run(place, "groups", place.name, "--totals", "--json").output)


def outcomes(place: Destination) -> list[object]:
    return [codec.decode(record.value()) for record in place.read(f"{place.name}.outcomes")]


def test_a_worker_that_flushes_on_stop_gives_up_what_is_open_each_by_its_policy_b76(place: Destination) -> None:
    place.create(expiration_policy="redirect")
    worker = place.worker("flush", options=("--flush-on-stop",))
    place.send([(f"open-{number}", 1, False) for number in range(6)])
    wait_for(lambda: len(open_groups(place)) == 6)
    assert worker.child.terminate(90) == 0
    assert open_groups(place) == set()
    given_up = {record.key(): dict(record.headers()) for record in place.read(f"{place.name}.errors")}
    assert sorted(given_up) == [b"open-%d" % number for number in range(6)]
    assert {said["uow-failure-reason"] for said in given_up.values()} == {b"expired"}
    answers = [each for each in outcomes(place) if isinstance(each, Answer)]
    assert {(each.verb, each.why, each.by, each.done) for each in answers} == {
        ("expire", "flush on stop", "worker flush", True)
    }


def test_what_people_see_counts_no_markers_and_says_when_a_command_closed_a_group_w201(place: Destination) -> None:
    """Each transaction leaves a marker at an offset of its own, an aborted one its records as well: nobody waits for them."""
    place.create(outcomes="all")
    worker = place.worker()
    producer = Producer(
        {"bootstrap.servers": place.bootstrap, "transactional.id": place.name, "partitioner": "murmur2_random"}
    )
    producer.init_transactions(PATIENCE_S)
    for value, is_meant in ((b"plain", True), (b"never", False), (b"never", False)):
        producer.begin_transaction()
        for partition in range(place.partitions):
            producer.produce(place.components, value, b"plain", partition)
        producer.flush(PATIENCE_S)
        (producer.commit_transaction if is_meant else producer.abort_transaction)(30)
    place.send([("slow", 1, False)])
    place.wait_delivered(place.partitions)
    wait_for(lambda: open_groups(place) == {"slow"})
    assert [each["behind"] for each in totals(place)] == [0] * place.partitions
    assert "wait to be read" not in run(place, "doctor").output

    assert repair(place, "cancel", "slow").exit_code == 0
    (command,) = place.read(f"{place.name}.commands")
    (outcome,) = [each for each in outcomes(place) if isinstance(each, Outcome) and each.id == "slow"]
    shown = json.loads(run(place, "show", place.name, "slow", "--json").output)["closed"]
    assert shown["closed_at"] == outcome.closed_at == command.timestamp()[1]
    assert worker.child.terminate() == 0

    place.send([("later", seq, False) for seq in (1, 2)])
    assert sum(each["behind"] for each in totals(place)) == 2
    assert "up to 2 records wait to be read" in run(place, "doctor").output


def test_every_verb_is_answered_by_the_worker_and_a_repeated_command_does_nothing_more_w203(place: Destination) -> None:
    place.create(incomplete_expiration_ms=3_600_000, expiration_policy="redirect", outcomes="all")
    early = repair(place, "cancel", "nobody", "--timeout", "200ms", "--command-id", "early")
    assert early.exit_code == 1
    assert "no answer about nobody in 0.2 s" in early.stderr
    assert "--command-id early" in early.stderr
    worker = place.worker()
    place.send([(f"g{number}", seq, False) for number in range(9) for seq in (1, 3)])
    wait_for(lambda: len(open_groups(place)) == 9)
    page = report_page(EMPTY, wall_clock_ms(), groups_of(place.config, [place.name]))
    rows = re.findall(f"<td>(g[0-8])</td><td>{place.name}</td><td>[0-9.]+ m?s</td><td>1,3</td><td>2,4-</td><td>2", page)
    assert ("9 groups are open; the oldest for" in page, {*rows}) == (True, {f"g{number}" for number in range(9)})

    assert repair(place, "release", "g0", "--dry-run").output.startswith("release g0: would be done: delivers 2")
    assert "g0" in open_groups(place)
    told = [
        repair(place, "release", "g0"),
        repair(place, "cancel", "g1", "--command-id", "cancel-g1"),
        repair(place, "expire", "g2"),
        repair(place, "extend", "g3", "--until", "+2h"),
        repair(place, "declare-end", "g4", "--seq", "4"),
        repair(place, "waive", "g5", "--seq", "2"),
        repair(place, "remove", "g5", "3"),
    ]
    assert [result.exit_code for result in told] == [0] * 7, [result.output for result in told]
    late = repair(place, "release", "g1", "--json")
    assert (late.exit_code, json.loads(late.output)["text"]) == (
        1,
        "the group is closed already: cancelled, reason command",
    )

    # what was said is there for the next worker
    assert worker.child.terminate() == 0
    again = place.worker()
    repeated = repair(place, "cancel", "g1", "--command-id", "cancel-g1")
    assert (repeated.exit_code, repeated.output) == (1, "cancel g1: not done: a repeated command does nothing more\n")
    place.send([("g4", 2, False), ("g4", 4, False), ("g5", 3, False), ("g5", 4, True)])
    bulk = repair(place, "cancel", "--match", "g[678]")
    assert (bulk.exit_code, len(bulk.output.splitlines())) == (0, 3)
    wait_for(lambda: open_groups(place) == {"g3"}, PATIENCE_S, lambda: str(open_groups(place)))
    assert again.child.terminate() == 0

    units = {record.key(): decoded(record.value()) for record in place.read(place.units)}
    assert {key: unit["outcome"] for key, unit in units.items()} == {
        b"g0": "partial",
        b"g4": "complete",
        b"g5": "partial",
    }
    assert {unit["reason"] for unit in units.values()} == {"command"}
    errors = [dict(record.headers()) for record in place.read(f"{place.name}.errors")]
    assert sorted({(each["uow-id"], each["uow-failure-reason"]) for each in errors}) == [
        (b"g1", b"cancelled"),
        (b"g2", b"expired"),
        (b"g5", b"cancelled"),
        *[(b"g%d" % number, b"cancelled") for number in (6, 7, 8)],
    ]
    assert all(each["uow-error-text"].endswith(b": the test says so") for each in errors)
    outcomes = [dict(record.headers()) for record in place.read(f"{place.name}.outcomes")]
    sources = [each["uow-source"] for each in outcomes if each["uow-kind"] == b"answer"]
    assert len(sources) == len(set(sources)) == len(place.read(f"{place.name}.commands")) == 14


def test_a_forwarder_gives_a_component_up_and_its_unit_with_it_w62(place: Destination) -> None:
    place.create()
    worker = place.worker()
    place.send([("order", 1, False), ("order", 3, True)])
    wait_for(lambda: open_groups(place) == {"order"})
    with connect(place.bootstrap) as connection:
        hop = f"{place.name}.rejected"  # any topic that is there
        connection.send(place.name, b"nobody has it", id="order", seq=2, to=hop)
        message = next(iter(connection.messages(hop, group=place.name)))
        cancelled = connection.cancel(message, destination=place.name, why="out of stock", by="gadget-planet")
        answer = cancelled.answer(30)
        assert answer is not None
        assert (answer.done, answer.id, answer.by) == (True, "order", "gadget-planet")
        assert answer.text.startswith("closes the group as cancelled: 2 components")
        assert not open_groups(place)
    (position,) = committed_rows(place.bootstrap, place.name, [(hop, message.partition)])
    assert position.offset == message.offset + 1, "command and position are one transaction"
    errors = [dict(record.headers()) for record in place.read(f"{place.name}.errors")]
    assert [each["uow-seq"] for each in errors] == [b"1", b"3"]
    assert {each["uow-error-text"] for each in errors} == {b"the group cancelled: command: out of stock"}
    assert worker.child.terminate() == 0


def test_refused_and_given_up_components_are_corrected_and_sent_again_w202_w80(place: Destination) -> None:
    place.create(late_policy="reopen", expiration_policy="redirect")
    worker = place.worker()
    with connect(place.bootstrap) as connection:
        for group_id, seq, end, more in (
            ("order", "two", True, {}),
            ("order", "1", False, {}),
            ("brief", "1", True, {"uow-expires-at": "1", "user": "said"}),
        ):
            marks = {"uow-id": group_id, "uow-seq": seq, "uow-end": str(end).lower(), **more}
            headers = [(name, text.encode()) for name, text in marks.items()]
            record = OutgoingRecord(place.components, group_id.encode(), b"content", headers)
            connection.send_again(f"{group_id} {seq}", record)

    def listed(place_of: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(
            run(place, "rejected", place.name, "--from", place_of, "--json").output
        )
        return found

    wait_for(lambda: listed("rejected") and listed("errors"))
    (refused,), (expired,) = listed("rejected"), listed("errors")
    assert (refused["class"], refused["case"], refused["id"], refused["seq"]) == (
        "BadSequenceNumberError",
        "malformed",
        "order",
        "two",
    )
    assert (expired["failure"], expired["case"], expired["id"]) == ("expired", "component-expired", "brief")
    assert refused["where"] in run(place, "rejected", place.name, "--class", "Bad*", "--id", "ord*").output

    again = ("resubmit", place.name)
    assert run(place, *again).exit_code == 2, "neither coordinates nor filters nor --all"
    assert run(place, *again, "--all", "--class", "*").exit_code == 2
    assert run(place, *again, f"{place.name}.rejected/0/999").exit_code == 1
    assert "(dry run)" in run(place, *again, "--all", "--dry-run").output
    assert run(place, *again, refused["where"], "--set", "uow-seq=2").exit_code == 0
    assert run(place, *again, "--from", "errors", "--id", "brief").exit_code == 0
    place.wait_delivered(2)
    assert worker.child.terminate() == 0
    units = {unit["id"]: unit for unit in (decoded(record.value()) for record in place.read(place.units))}
    assert [each["seq"] for each in units["order"]["components"]] == [1, 2]
    way = {each["name"]: each["value"] for each in units["order"]["components"][1]["headers"]}
    assert way["uow-resubmitted"].decode() == refused["where"]
    assert way["uow-hops"].decode() == f"{place.name}.rejected"
    kept = {each["name"]: each["value"] for each in units["brief"]["components"][0]["headers"]}
    assert (kept["user"], "uow-expires-at" in kept, "uow-error-class" in kept) == (b"said", False, False)


def test_a_unit_is_corrected_by_the_worker_after_the_one_that_was_killed_b205(place: Destination) -> None:
    place.create(late_policy="amend")
    worker = place.worker()
    place.send([("order", 1, False), ("order", 2, False)])
    wait_for(lambda: open_groups(place) == {"order"})
    assert repair(place, "release", "order").exit_code == 0

    def correctable() -> float:
        told = [line for line in worker.metrics().splitlines() if line.startswith("uow_correctable_units{")]
        return sum(float(line.rpartition(" ")[2]) for line in told)

    wait_for(lambda: correctable() == 1)
    worker.child.kill()

    worker = place.worker()
    worker.wait_owns(3)
    place.send([("order", 3, True), ("order", 2, False)])
    wait_for(lambda: len(place.read(f"{place.name}.units")) == 2 and place.read(f"{place.name}.rejected"))
    former, corrected = (dict(record.headers()) for record in place.read(f"{place.name}.units"))
    assert (former["uow-outcome"], former["uow-size"]) == (b"partial", b"2")
    assert (corrected["uow-outcome"], corrected["uow-size"], corrected["uow-generation"]) == (b"complete", b"3", b"2")
    assert corrected["uow-supersedes"] == former["uow-unit-id"]
    with connect(place.bootstrap) as connection:
        units = connection.units(place.name, group="readers")
        assert [next(units).supersedes for _ in range(2)] == [None, former["uow-unit-id"].decode()]
    told = [each for each in outcomes(place) if isinstance(each, Outcome)]
    assert [each.supersedes for each in told] == [None, former["uow-unit-id"].decode()]
    shown = run(place, "show", place.name, "order").output
    assert f"generation 2: complete, 3 components, corrects unit {told[0].unit_id}" in shown
    assert correctable() == 0
    assert worker.child.terminate() == 0
