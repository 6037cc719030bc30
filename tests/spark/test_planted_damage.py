"""Damage that was planted into one run, in tables and in a topic, is found and named; all that is right is not (W-216).

Nothing here is shared with the audit: what is expected is written down by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.spark.stage import STARTED_MS, Stage, c, plain
from uow.schemas.records import Range
from uow.spark_sink.audit import AuditReport
from uow.spark_sink.comparison import DifferenceKind
from uow.spark_sink.recompute import Fate
from uow.spark_sink.tables import Table
from uow.topics.commands import Command, Verb
from uow.topics.policies import ExpirationPolicy, HandlingPolicy, Routing

pytestmark = pytest.mark.timeout(600)

Rows = list[dict[str, Any]]

UNITS = ["removed", "doubled", "swapped", "changed", "lost", "both", "right", "one", "two", "three"]


def of(rows: Rows, name: str, **values: Any) -> dict[str, Any]:
    """The one row of an id with these values."""
    [found] = [
        row for row in rows if row["id"] == name and all(row[column] == value for column, value in values.items())
    ]
    return found


def sharing(rows: Rows) -> Rows:
    """Two of the last three units: of two partitions, one has two of them."""
    places = {row["partition"]: row for row in rows if row["id"] == "one"}
    for other in ("two", "three"):
        row = of(rows, other)
        if row["partition"] in places:
            return [places[row["partition"]], row]
        places[row["partition"]] = row
    raise AssertionError("three units are on three partitions")


def damage_units(rows: Rows) -> None:
    rows.remove(of(rows, "removed"))
    rows.append(of(rows, "doubled") | {"offset": 1_000})
    early, late = sharing(rows)
    early["offset"], late["offset"] = late["offset"], early["offset"]


def damage_components(rows: Rows) -> None:
    rows[:] = [row for row in rows if row["id"] != "removed"]
    rows += [row | {"unit_offset": 1_000} for row in rows if row["id"] == "doubled"]
    first, second = of(rows, "swapped", seq=1), of(rows, "swapped", seq=2)
    first["position"], second["position"] = second["position"], first["position"]
    of(rows, "changed", seq=2)["value"] = b"value of changed/3"
    rows.remove(of(rows, "lost", seq=1))


def damage_passed(rows: Rows) -> None:
    one, two = sorted(rows, key=lambda row: int(row["offset"]))[-2:]
    one["offset"], two["offset"] = two["offset"], one["offset"]


def test_each_planted_damage_is_found_and_named_and_nothing_else_is(make_stage: Callable[..., Stage]) -> None:
    """By an audit of everything, and by one that goes on from the last, while the group of `swapped` is open.

    Ids are placed by a path map, and not all are where senders send them. Other tests go by the hash.
    """
    stage = make_stage(routing=Routing.PATH)
    for name in ("swapped", "changed", "right", "before"):
        stage.place(name)
    stage.send([c("before", 1, end=True), plain("letter", b"before"), c("swapped", 3, value=b"early")])
    stage.work()
    stage.work()  # what was sent on
    stage.sink()
    report = stage.audit()
    assert report.is_clean
    assert report.count(Fate.REROUTED) == 2
    for name in UNITS:
        stage.send(
            [c(name, 1, value=f"value of {name}/1".encode()), plain("letter", f"about {name}".encode())], partition=None
        )
        stage.send([c(name, 2, end=name != "swapped", value=f"value of {name}/2".encode())])
    stage.send([c("swapped", 4, end=True), c("open", 1)])
    stage.work()
    stage.work()
    stage.sink()
    places = {
        (row.id, row.seq): f"{row.source_topic}/{row.source_partition}/{row.source_offset}"
        for row in stage.rows(Table.COMPONENTS)
    }
    units = {row.id: row for row in stage.rows(Table.UNITS)}

    stage.tamper(Table.UNITS, damage_units)
    stage.tamper(Table.COMPONENTS, damage_components)
    stage.tamper(Table.PASSED, damage_passed)
    # a unit that was delivered is reported as expired too
    said = [("uow-id", b"both"), ("uow-error-class", b"UowError"), ("uow-error-case", b"age"), ("uow-error-text", b"-")]
    source, why = ("uow-source", places["both", 1].encode()), ("uow-failure-reason", b"expired")
    stage.put(stage.names.errors, b"both", b"value of both/1", [*said, source, why, ("uow-missing", b"")])
    stage.sink()
    since = stage.audit(incremental=True)
    report = stage.audit()
    assert since.since is not None
    assert {replace(each, detail="") for each in since.examples} == {
        replace(each, detail="") for each in report.examples
    }
    assert since.totals == report.totals
    found = {(each.what.value, each.source, each.id, each.place) for each in report.examples}
    assert found >= {
        ("missing", "units", "removed", units["removed"].unit_id),
        ("missing", "components", "removed", places["removed", 1]),
        ("missing", "components", "removed", places["removed", 2]),
        ("doubled", "units", "doubled", units["doubled"].unit_id),
        ("doubled", "components", "doubled", places["doubled", 1]),
        ("doubled", "components", "doubled", places["doubled", 2]),
        ("wrong order", "components", "swapped", places["swapped", 1]),
        ("wrong order", "components", "swapped", places["swapped", 2]),
        ("wrong content", "components", "changed", places["changed", 2]),
        ("missing", "components", "lost", places["lost", 1]),
        ("unexpected", "rejected", "both", places["both", 1]),
    }
    others = {(each.what.value, each.source) for each in report.examples if each.id not in UNITS[:6]}
    assert others == {("wrong order", "passed"), ("wrong order", "units")}
    assert "right" not in {each.id for each in report.examples}
    assert report.totals[DifferenceKind.MISSING] == 4


def clean(stage: Stage, *, incremental: bool = False, **counts: int) -> AuditReport:
    """The report of an audit after the sink has caught up, without differences, with these numbers of units."""
    stage.sink()
    report = stage.audit(incremental=incremental)
    assert report.examples == ()
    assert report.is_clean
    assert report.units == counts
    return report


def test_no_false_alarm_over_all_that_is_right(make_stage: Callable[..., Stage]) -> None:
    """Open groups, expiry, commands, aborts, pass-through; then retention takes the beginning of the input, and the state of the worker stays."""
    stage = make_stage(incomplete_expiration_ms=60_000, expiration_policy=ExpirationPolicy.REDIRECT)
    stage.send([c("whole", 1), plain("a", b"1"), c("whole", 2, end=True), c("expires", 1), plain("a", b"2")])
    stage.send([c("released", 1), c("fixed", 1), c("fixed", 2, value=b"wrong"), c("bad", 0), c("straddles", 1)])
    stage.send([(b"x", b"v", [("uow-id", b"\xff"), ("uow-seq", b"1")])])
    stage.abort(stage.names.components, [c("never", 1, end=True)])
    stage.send([c("halted", 1)], at=50_000)
    stage.work()
    stage.command(Command(b"1", Verb.RELEASE, b"released", "because"))
    stage.command(Command(b"2", Verb.REMOVE, b"fixed", "because", numbers=(Range(2, 2),)))
    stage.send([c("fixed", 2, end=True), c("straddles", 2)], at=50_000)
    stage.work()
    stage.tick(STARTED_MS + 70_000)  # no record tells of it until the next audit
    report = clean(stage, complete=2, partial=1, expired=2, open=1)
    assert report.left_out == 0
    assert report.since is None

    cut = [TopicPartition(stage.names.components, p, task.partition.position) for p, task in stage.tasks.items()]
    late = [c("straddles", 3, end=True), c("whole", 2, end=True), plain("a", b"3"), c("next", 1, end=True)]
    stage.send(late, at=100_000)
    stage.work()
    stage.command(Command(b"3", Verb.CANCEL, b"halted", "because"))
    admin = AdminClient({"bootstrap.servers": stage.servers})  # the requests end with it
    for done in admin.delete_records(cut).values():
        done.result(20)
    report = clean(stage, incremental=True, complete=1, expired=2, cancelled=1)
    assert report.left_out == 0
    assert report.since == {each.partition: each.offset for each in cut}
    assert {fate: report.count(fate) for fate in report.fates} == {fate: report.found[fate] for fate in report.fates}
    report = stage.audit()
    assert report.examples == ()
    assert report.left_out >= 4

    passing = make_stage(handling_policy=HandlingPolicy.PASS_THROUGH)
    passing.send([c("x", 1), c("x", 2, end=True), plain("y")])
    passing.work()
    clean(passing)
