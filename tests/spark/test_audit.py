"""`uow audit`: clean where nothing went wrong, and every way of going wrong is found."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tests.spark.stage import STARTED_MS, Stage, c, plain
from uow.schemas.records import Range
from uow.spark_sink.comparison import DifferenceKind
from uow.spark_sink.recompute import Fate
from uow.spark_sink.tables import Table
from uow.topics.commands import Command, Verb
from uow.topics.policies import ExpirationPolicy
from uow.topics.routes import Route, RouteMatching
from uow.topics.selector import Selector

pytestmark = pytest.mark.timeout(600)


def busy_day(stage: Stage) -> None:
    """Every line of the decision table that a record can come to, and plain traffic between."""
    stage.send(
        [plain("letter", b"1"), c("jill", 2), c("jill", 3, end=True, more="x"), plain("letter", b"2"), c("jill", 1)]
    )
    stage.send(
        [c("jill", 3, end=True, more="x"), c("jill", 9), c("bob", 1, end=True), plain("letter", b"1"), c("bad", 0)]
    )
    stage.send(
        [
            c("two", 1),
            c("two", 1, value=b"other"),
            c("two", 2, end=True),
            c("two", 2),
            c("open", 7),
            plain("letter", None),
        ]
    )
    stage.send(
        [(b"x", b"v", [("uow-id", b"\xff"), ("uow-seq", b"1")]), (None, None, [("uow-id", b""), ("uow-seq", b"1")])]
    )
    stage.send([(b"x", b"v", [("uow-id", b"x"), ("uow-seq", b"1"), ("uoo-name", b"x")])])
    stage.send([(b"x", b"v", [("uow-id", b"x"), ("uow-seq", b"1"), ("uow-priority", b"high")])])
    for number in range(20):
        stage.send([c(f"many-{number}", 2, end=True, value=b"%d" % number), c(f"many-{number}", 1)])
    stage.work()


def test_a_busy_day_is_clean_and_the_sums_agree(make_stage: Callable[..., Stage]) -> None:
    """W-216: received = the sum of all fates; aborted records are not among them."""
    stage = make_stage(incomplete_expiration_ms=600_000, expiration_policy=ExpirationPolicy.REDIRECT)
    busy_day(stage)
    wrong = 1 - stage.tasks[0].partition.place.partition if stage.tasks[0].partition.elsewhere(b"lost") is None else 0
    stage.send([c("lost", 1), c("lost", 2, end=True)], partition=wrong)
    stage.send([c("lost", 3, uow_rerouted="1")], partition=wrong)
    stage.abort(stage.names.components, [c("never", 1, end=True)])
    stage.work()
    stage.work()
    stage.send([c("early", 1), c("early", 3)], at=100_000)
    stage.send([plain(f"later-{n}") for n in range(8)], at=800_000)
    stage.send([c("early", 2)], at=800_001)
    stage.work()
    stage.tick()
    stage.sink()
    report = stage.audit()
    assert report.examples == ()
    assert report.is_clean
    counts = [task.counts for task in stage.tasks.values()]
    assert report.received == sum(each.received for each in counts)
    assert report.count(Fate.DELIVERED) == sum(each.delivered for each in counts) == report.found[Fate.DELIVERED] == 48
    assert report.count(Fate.EXPIRED) == sum(each.expired for each in counts) == report.found[Fate.EXPIRED] == 3
    assert report.count(Fate.OPEN) == sum(each.open for each in counts) == 0
    assert (
        report.count(Fate.REJECTED)
        == sum(each.rejected + each.duplicate for each in counts)
        == report.found[Fate.REJECTED]
    )
    assert report.count(Fate.PASSED) + report.count(Fate.REROUTED) == sum(each.passed for each in counts)
    assert report.count(Fate.REROUTED) == 2
    assert report.units == {"complete": 24, "expired": 2}
    assert report.left_out == report.unread == 0


def test_units_count_once_in_whichever_topics_their_routes_say_w100(make_stage: Callable[..., Stage]) -> None:
    """W-216: what lies in a topic that no route names for it, or is missing from one that does, is found."""
    urgent, books = (f"{uuid.uuid4().hex}.{lane}" for lane in ("urgent", "books"))
    routes = Route(Selector("uow-priority > 4"), urgent), Route(Selector("kind = 'book'"), books)
    stage = make_stage(route_matching=RouteMatching.ALL, routes=routes)
    stage.send([plain("letter"), c("low", 1, end=True), c("high", 1), c("high", 2, end=True, uow_priority="9")])
    stage.send([c("both", 1, end=True, uow_priority="9", kind="book"), c("book", 1, end=True, kind="book")])
    stage.work()
    stage.sink()
    assert sorted((row.topic.rpartition(".")[2], row.id) for row in stage.rows(Table.UNITS)) == [
        ("books", "book"),
        ("books", "both"),
        ("units", "low"),
        ("urgent", "both"),
        ("urgent", "high"),
    ]
    report = stage.audit()
    assert report.is_clean, report.examples
    assert report.count(Fate.DELIVERED) == report.found[Fate.DELIVERED] == 5

    def misplace(rows: list[dict[str, Any]]) -> None:
        moved = next(row for row in rows if row["id"] == "both" and row["topic"] == books)
        moved["topic"] = stage.names.units
        rows.append({**next(row for row in rows if row["topic"] == urgent), "offset": 99})

    stage.tamper(Table.UNITS, misplace)
    found = stage.audit()
    assert {one.what: one.detail.rpartition(".")[2] for one in found.examples if one.source == "units"} == {
        DifferenceKind.MISSING: "books",
        DifferenceKind.UNEXPECTED: "units",
        DifferenceKind.DOUBLED: "urgent",
    }


def test_what_commands_did_is_computed_again_and_what_can_no_longer_be_is_left_out_w203(
    make_stage: Callable[..., Stage],
) -> None:
    stage = make_stage()
    stage.send([c("whole", 1), c("whole", 2, end=True), c("short", 1), c("gone", 1), c("kept", 1), c("lost", 1)])
    stage.send([c("fixed", 1), c("fixed", 2, value=b"wrong")])
    stage.work()
    for verb, group_id in (Verb.RELEASE, b"short"), (Verb.CANCEL, b"gone"), (Verb.EXTEND, b"kept"):
        stage.command(Command(b"of " + group_id, verb, group_id, "because", until=1))
    stage.command(Command(b"remove", Verb.REMOVE, b"fixed", "because", numbers=(Range(2, 2),)))
    stage.command(Command(b"of lost", Verb.CANCEL, b"lost", "because"), is_kept=False)
    stage.send([c("fixed", 2, end=True), c("short", 1)])
    stage.work()
    stage.sink()
    stage.tamper(Table.UNITS, lambda rows: rows.remove(next(row for row in rows if row["id"] == "short")))
    report = stage.audit()
    assert [(one.what, one.source, one.id) for one in report.examples] == [(DifferenceKind.MISSING, "units", "short")]
    assert report.left_out == 1
    assert report.units == {"complete": 2, "partial": 1, "cancelled": 1}


Rows = list[dict[str, Any]]


def row(rows: Rows, **values: Any) -> dict[str, Any]:
    """The one row with these values."""
    [found] = [each for each in rows if all(each[name] == value for name, value in values.items())]
    return found


def change_units(rows: Rows) -> None:
    rows.remove(row(rows, id="many-0"))
    rows.append(row(rows, id="many-1"))
    row(rows, id="many-2")["outcome"] = "partial"
    del row(rows, id="many-3")["headers"][-1]
    rows.append(row(rows, id="many-4") | {"unit_id": "forged"})


def change_components(rows: Rows) -> None:
    rows.remove(row(rows, id="many-5", seq=1))
    rows.append(row(rows, id="many-6", seq=2))
    row(rows, id="many-7", seq=1)["value"] = b"\0"
    row(rows, id="many-8", seq=1)["headers"].reverse()
    one, two = row(rows, id="many-9", seq=1), row(rows, id="many-9", seq=2)
    one["position"], two["position"] = 2, 1
    row(rows, id="many-10", seq=2)["seq"] = 1


def change_rejected(rows: Rows) -> None:
    rows.remove(row(rows, id="bad"))
    rows.append(row(rows, error_class="UnitConflictError"))
    row(rows, error_case="conflict")["value"] = b"\0"
    row(rows, error_class="OutOfSequenceRangeError")["error_case"] = "b"
    row(rows, error_class="BadUnitIdError", key=None)["source_offset"] = 0


def change_passed(rows: Rows) -> None:
    rows.remove(row(rows, value=b"2"))


def test_each_way_of_tampering_with_the_tables_is_found(stage: Stage) -> None:
    """The audit must be able to fail: each change is one difference of its kind, at its place, and nothing else is."""
    busy_day(stage)
    stage.sink()
    stage.tamper(Table.UNITS, change_units)
    stage.tamper(Table.COMPONENTS, change_components)
    stage.tamper(Table.REJECTED, change_rejected)
    stage.tamper(Table.PASSED, change_passed)
    report = stage.audit()
    found = [(each.what, each.source, each.id) for each in report.examples]
    unit_missing = [(DifferenceKind.MISSING, "units", "many-0"), (DifferenceKind.UNEXPECTED, "units", "many-4")]
    assert sorted(found, key=str) == sorted(
        [
            *unit_missing,
            (DifferenceKind.DOUBLED, "units", "many-1"),
            (DifferenceKind.CONTENT, "units", "many-2"),
            (DifferenceKind.CONTENT, "units", "many-3"),
            (DifferenceKind.MISSING, "components", "many-5"),
            (DifferenceKind.DOUBLED, "components", "many-6"),
            (DifferenceKind.CONTENT, "components", "many-7"),
            (DifferenceKind.CONTENT, "components", "many-8"),
            (DifferenceKind.ORDER, "components", "many-9"),
            (DifferenceKind.ORDER, "components", "many-9"),
            (DifferenceKind.CONTENT, "components", "many-10"),
            (DifferenceKind.MISSING, "rejected", "bad"),
            (DifferenceKind.DOUBLED, "rejected", "x"),
            (DifferenceKind.CONTENT, "rejected", "two"),
            (DifferenceKind.CONTENT, "rejected", "jill"),
            (DifferenceKind.MISSING, "rejected", None),
            (DifferenceKind.UNEXPECTED, "rejected", ""),
            (DifferenceKind.MISSING, "passed", None),
        ],
        key=str,
    )
    assert not report.is_clean
    assert sum(report.totals.values()) == len(found)
    assert all(each.place and each.detail for each in report.examples)


def test_swapped_plain_records_and_records_out_of_nowhere_are_found(stage: Stage) -> None:
    """W-121, W-123: plain records are compared by content and order; a forged record has no fate in the log."""
    stage.send([plain("a", b"1"), plain("a", b"2"), c("x", 1, end=True)])
    stage.work()
    stage.sink()

    def swap(rows: Rows) -> None:
        one, two = row(rows, value=b"1"), row(rows, value=b"2")
        one["offset"], two["offset"] = two["offset"], one["offset"]

    stage.tamper(Table.PASSED, swap)
    stage.put(
        stage.names.rejected,
        b"x",
        b"v",
        [("uow-id", b"x"), ("uow-error-class", b"UowError"), ("uow-source", b"nowhere")],
    )
    stage.sink()
    assert stage.audit().totals == {DifferenceKind.ORDER: 2, DifferenceKind.UNEXPECTED: 1}


def test_time_alone_closes_lawfully_only_behind_the_deadline(make_stage: Callable[..., Stage]) -> None:
    """W-72, W-83, W-207: with no later record in the log, a recorded closing is taken as fact, but not one before the deadline."""
    discard = make_stage(incomplete_expiration_ms=1000)
    partial = make_stage(incomplete_expiration_ms=1000, expiration_policy=ExpirationPolicy.DELIVER_PARTIAL)
    early = make_stage(incomplete_expiration_ms=86_400_000, expiration_policy=ExpirationPolicy.REDIRECT)
    reports = {}
    for stage in (discard, partial, early):
        stage.send([c("x", 1), c("x", 3, end=True)])
        stage.work()
        stage.tick(int(time.time() * 1000) + (86_400_000 if stage is early else 0))
        if stage is discard:
            stage.send([c("open yet", 1)])
            stage.work()
        stage.sinking().tables.make(stage.spark)
        stage.sink()
        reports[stage] = stage.audit()
    assert (reports[discard].is_clean, reports[discard].count(Fate.EXPIRED)) == (True, 2)
    assert reports[discard].count(Fate.OPEN) == 1
    assert (reports[partial].is_clean, reports[partial].units) == (True, {"partial": 1})
    assert reports[early].totals == {DifferenceKind.CLOSING: 1}


def test_a_group_that_expired_although_its_last_component_came_in_time_is_found(
    make_stage: Callable[..., Stage],
) -> None:
    """W-82: a worker that lets its wall clock run ahead of unread records loses units; the log shows it."""
    stage = make_stage(incomplete_expiration_ms=1000, expiration_policy=ExpirationPolicy.REDIRECT)
    stage.send([c("x", 1)], at=0)
    stage.work()
    stage.tick(STARTED_MS + 5000)
    stage.send([c("x", 2, end=True)], at=1000)
    stage.work()
    stage.sink()
    report = stage.audit()
    assert {(each.what, each.source) for each in report.examples} >= {
        (DifferenceKind.MISSING, "units"),
        (DifferenceKind.UNEXPECTED, "rejected"),
        (DifferenceKind.CLOSING, stage.names.closed_changelog),
    }
