"""`uow audit`: clean where nothing went wrong, and every way of going wrong is found and named (W-216).

One destination lives through everything that is right, and is audited; then through everything that is wrong, in the worker, in a topic and in the tables,
and is audited twice: from there on, and from the beginning. What is expected is written down by hand, and shared with nothing in the audit.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.spark.stage import ASIDE, PARTITIONS, STARTED_MS, Stage, c, plain
from uow.cli.audit_page import set_aside_text
from uow.processor.core.happened import Counts
from uow.schemas.records import Range
from uow.spark_sink.audit import AuditReport
from uow.spark_sink.comparison import DifferenceKind
from uow.spark_sink.recompute import Fate
from uow.spark_sink.tables import Table
from uow.topics.command_keys import CommandKey, CommandSigner
from uow.topics.commands import Command, Verb
from uow.topics.partitioner import partition_for
from uow.topics.policies import ExpirationPolicy, HandlingPolicy, LatePolicy, Routing
from uow.topics.routes import Route, RouteMatching
from uow.topics.selector import Selector

pytestmark = pytest.mark.timeout(600)

Rows = list[dict[str, Any]]

UNITS = ["removed", "doubled", "swapped", "changed", "lost", "both", "right", "first", "second", "third"]


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


@dataclass(frozen=True)
class Story:
    """The reports on one destination: of what is right, of what is wrong since then, and of everything, with what the tests need to know of it.

    Attributes:
        clean: Before anything was wrong.
        counts: The worker's, at that time.
        since: By an audit that goes on from there, while the group of `swapped` is open.
        report: By an audit of everything.
        places: Where components came from, by id and number.
        unit_ids: By id.
        ledger: Name of the topic.
    """

    clean: AuditReport
    counts: list[Counts]
    since: AuditReport
    report: AuditReport
    places: dict[tuple[str, int], str]
    unit_ids: dict[str, str]
    ledger: str


@pytest.fixture(scope="module")
def story(make_shared_stage: Callable[..., Stage]) -> Story:
    """Ids are placed by a path map, and not all are where senders send them. Other tests go by the hash."""
    stage = make_shared_stage(
        routing=Routing.PATH, incomplete_expiration_ms=600_000, expiration_policy=ExpirationPolicy.REDIRECT
    )
    all_that_is_right(stage)
    stage.sink()
    clean = stage.audit()
    counts = [replace(task.counts) for task in stage.tasks.values()]
    units_to_damage(stage)
    wrong_units_of_the_worker(stage)
    stage.sink()
    places = {
        (row.id, row.seq): f"{row.source_topic}/{row.source_partition}/{row.source_offset}"
        for row in stage.rows(Table.COMPONENTS)
    }
    unit_ids = {row.id: row.unit_id for row in stage.rows(Table.UNITS)}
    for table, change in (
        (Table.UNITS, change_units),
        (Table.COMPONENTS, change_components),
        (Table.REJECTED, change_rejected),
        (Table.PASSED, change_passed),
    ):
        stage.tamper(table, change)
    since = stage.audit(incremental=True)
    return Story(clean, counts, since, stage.audit(), places, unit_ids, stage.names.closed_changelog)


def all_that_is_right(stage: Stage) -> None:
    """A busy day, ids that are placed elsewhere, an aborted transaction, a group that time closes, and one that stays open."""
    for name in ("swapped", "changed", "right", "before"):
        stage.place(name)
    busy_day(stage)
    stage.abort(stage.names.components, [c("never", 1, end=True)])
    stage.send([c("early", 1), c("early", 3)], at=100_000)
    stage.send([plain(f"later-{n}") for n in range(8)], at=800_000)
    stage.send([c("early", 2)], at=800_001)
    stage.send([c("before", 1, end=True), c("swapped", 3, value=b"early")])
    stage.work()
    stage.work()  # what was sent on
    stage.tick(STARTED_MS + 900_000)


def wrong_units_of_the_worker(stage: Stage) -> None:
    """Commands, one of which is lost; a group that expires although its last component came in time, and one whose deadline is not yet over."""
    stage.send([c("whole", 1), c("whole", 2, end=True), c("short", 1), c("gone", 1), c("kept", 1), c("forgotten", 1)])
    stage.send([c("fixed", 1), c("fixed", 2, value=b"wrong")])
    stage.work()
    until = STARTED_MS + 3_000_000
    for verb, group_id in (Verb.RELEASE, b"short"), (Verb.CANCEL, b"gone"), (Verb.EXTEND, b"kept"):
        stage.command(Command(b"of " + group_id, verb, group_id, "because", until=until))
    stage.command(Command(b"remove", Verb.REMOVE, b"fixed", "because", numbers=(Range(2, 2),)))
    stage.command(Command(b"of forgotten", Verb.CANCEL, b"forgotten", "because"), is_kept=False)
    stage.send([c("fixed", 2, end=True), c("short", 1)])
    stage.work()

    stage.send([c("in-time", 1)], at=1_000_000)
    stage.work()
    stage.tick(STARTED_MS + 1_605_000)
    stage.send([c("in-time", 2, end=True)], at=1_100_000)
    stage.work()
    stage.send([c("too-soon", 1)], at=6_000_000)
    stage.work()
    stage.tick(STARTED_MS + 6_700_000)
    stage.send([c("still", 1)])
    stage.work()


def units_to_damage(stage: Stage) -> None:
    """Among them a unit that is reported as expired although it was delivered, and a report that comes out of nowhere."""
    for name in (*UNITS, "refused"):
        stage.send(
            [c(name, 1, value=f"value of {name}/1".encode()), plain("letter", f"about {name}".encode())], partition=None
        )
        stage.send([c(name, 2, end=name != "swapped", value=f"value of {name}/2".encode())])
    stage.send([c("swapped", 4, end=True)])
    stage.work()
    stage.work()
    came = {
        (headers["uow-id"], headers["uow-seq"]): f"{record.topic()}/{record.partition()}/{record.offset()}".encode()
        for record in stage.read(stage.names.components)
        if (headers := dict(record.headers())).keys() >= {"uow-id", "uow-seq"}
    }
    for name, number, why, error in (
        ("both", b"1", b"expired", b"UowError"),
        ("refused", b"1", b"failed", b"UnitTooLargeError"),
        ("refused", b"2", b"failed", b"UnitTooLargeError"),
    ):
        group_id = name.encode()
        said = [("uow-id", group_id), ("uow-error-class", error), ("uow-error-case", b"age"), ("uow-error-text", b"-")]
        source = ("uow-source", came[group_id, number])
        stage.put(
            stage.names.errors,
            group_id,
            b"value of %s/%s" % (group_id, number),
            [*said, source, ("uow-failure-reason", why), ("uow-missing", b"")],
        )
    forged = [("uow-id", b"forged"), ("uow-error-class", b"UowError"), ("uow-source", b"nowhere")]
    stage.put(stage.names.rejected, b"x", b"v", forged)


def row(rows: Rows, **values: Any) -> dict[str, Any]:
    """The one row with these values."""
    [found] = [each for each in rows if all(each[name] == value for name, value in values.items())]
    return found


def sharing(rows: Rows) -> Rows:
    """Two of the last three units: of two partitions, one has two of them."""
    places = {row["partition"]: row for row in rows if row["id"] == "first"}
    for other in ("second", "third"):
        found = row(rows, id=other)
        if found["partition"] in places:
            return [places[found["partition"]], found]
        places[found["partition"]] = found
    raise AssertionError("three units are on three partitions")


def change_units(rows: Rows) -> None:
    rows.remove(row(rows, id="short"))
    rows.remove(row(rows, id="removed"))
    rows.remove(row(rows, id="refused"))
    rows.append(row(rows, id="doubled") | {"offset": 1_000})
    rows.append(row(rows, id="many-1"))
    early, late = sharing(rows)
    early["offset"], late["offset"] = late["offset"], early["offset"]
    row(rows, id="many-2")["outcome"] = "partial"
    del row(rows, id="many-3")["headers"][-1]
    rows.append(row(rows, id="many-4") | {"unit_id": "forged"})


def change_components(rows: Rows) -> None:
    rows[:] = [row for row in rows if row["id"] not in ("removed", "refused")]
    rows += [row | {"unit_offset": 1_000} for row in rows if row["id"] == "doubled"]
    rows.remove(row(rows, id="lost", seq=1))
    rows.append(row(rows, id="many-6", seq=2))
    row(rows, id="changed", seq=2)["value"] = b"value of changed/3"
    row(rows, id="many-7", seq=1)["value"] = b"\0"
    row(rows, id="many-8", seq=1)["headers"].reverse()
    for name in ("swapped", "many-9"):
        one, two = row(rows, id=name, seq=1), row(rows, id=name, seq=2)
        one["position"], two["position"] = two["position"], one["position"]
    row(rows, id="many-10", seq=2)["seq"] = 1


def change_rejected(rows: Rows) -> None:
    rows.remove(row(rows, id="bad"))
    rows.append(row(rows, error_class="UnitConflictError"))
    row(rows, error_case="conflict")["value"] = b"\0"
    row(rows, error_class="OutOfSequenceRangeError", id="jill")["error_case"] = "b"
    row(rows, error_class="BadUnitIdError", key=None)["source_offset"] = 0


def change_passed(rows: Rows) -> None:
    one, two = sorted((row for row in rows if row["key"] == b"letter"), key=lambda row: int(row["offset"]))[-2:]
    one["offset"], two["offset"] = two["offset"], one["offset"]
    rows.remove(
        next(row for row in rows if row["partition"] != one["partition"])
    )  # order is told where none is missing


def test_a_busy_day_is_clean_and_the_sums_agree(story: Story) -> None:
    """W-216: received = the sum of all fates; aborted records are not among them."""
    report, counts = story.clean, story.counts
    assert report.examples == ()
    assert report.is_clean
    assert report.received == sum(each.received for each in counts)
    assert report.count(Fate.DELIVERED) == sum(each.delivered for each in counts) == report.found[Fate.DELIVERED] == 47
    assert report.count(Fate.EXPIRED) == sum(each.expired for each in counts) == report.found[Fate.EXPIRED] == 3
    assert report.count(Fate.OPEN) == sum(each.open for each in counts) == 1
    assert (
        report.count(Fate.REJECTED)
        == sum(each.rejected + each.duplicate for each in counts)
        == report.found[Fate.REJECTED]
    )
    assert report.count(Fate.PASSED) + report.count(Fate.REROUTED) == sum(each.passed for each in counts)
    assert report.count(Fate.REROUTED) == 2
    assert report.units == {"complete": 24, "expired": 2, "open": 1}
    assert report.left_out == report.unread == 0


def found(report: AuditReport, *ids: str | None) -> set[tuple[str, str, str | None, str]]:
    """Differences of some ids, or of all that came after the first audit."""
    return {
        (each.what.value, each.source, each.id, each.place)
        for each in report.examples
        if (each.id in ids if ids else not is_early(each.id))
    }


def is_early(id: str | None) -> bool:
    """True for ids of the busy day, and of records without one."""
    return id in (None, "", "bad", "x", "two", "jill") or id.startswith("many-")


def test_each_planted_damage_is_found_and_named_and_nothing_else_is(story: Story) -> None:
    """By an audit of everything, and by one that goes on from the last, while the group of `swapped` is open."""
    report, places, unit_ids = story.report, story.places, story.unit_ids
    assert story.since.since is not None
    assert found(story.since) == found(report)
    assert found(report, *UNITS[:7]) == {
        ("missing", "units", "removed", unit_ids["removed"]),
        ("missing", "components", "removed", places["removed", 1]),
        ("missing", "components", "removed", places["removed", 2]),
        ("doubled", "units", "doubled", unit_ids["doubled"]),
        ("doubled", "components", "doubled", places["doubled", 1]),
        ("doubled", "components", "doubled", places["doubled", 2]),
        ("wrong order", "components", "swapped", places["swapped", 1]),
        ("wrong order", "components", "swapped", places["swapped", 2]),
        ("wrong content", "components", "changed", places["changed", 2]),
        ("missing", "components", "lost", places["lost", 1]),
        ("unexpected", "rejected", "both", places["both", 1]),
    }
    assert found(report, "refused") == {
        ("refused", "units", "refused", unit_ids["refused"]),
        *(("refused", table, "refused", places["refused", n]) for table in ("components", "rejected") for n in (1, 2)),
    }
    assert {each[:2] for each in found(report, *UNITS[7:])} == {("wrong order", "units")}
    for each in (story.since, report):
        assert [one.source for one in each.examples if one.id is None and one.what is DifferenceKind.ORDER] == [
            "passed",
            "passed",
        ]
    others = {"refused", "short", "in-time", "too-soon", "forged"}
    assert {each.id for each in report.examples if not is_early(each.id)} <= {*UNITS, *others} - {"right"}
    assert all(each.place and each.detail for each in report.examples)
    assert sum(report.totals.values()) == len(report.examples)
    assert not report.is_clean


def test_each_way_of_tampering_with_the_tables_is_found(story: Story) -> None:
    """The audit must be able to fail: each change is one difference of its kind, at its place, and nothing else is."""
    early = [(each.what, each.source, each.id) for each in story.report.examples if is_early(each.id)]
    assert Counter(each for each in early if each[:2] != (DifferenceKind.ORDER, "passed")) == Counter(
        [
            (DifferenceKind.UNEXPECTED, "units", "many-4"),
            (DifferenceKind.DOUBLED, "units", "many-1"),
            (DifferenceKind.CONTENT, "units", "many-2"),
            (DifferenceKind.CONTENT, "units", "many-3"),
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
        ]
    )


def test_records_out_of_nowhere_are_found(story: Story) -> None:
    """W-123: a forged record has no fate in the log."""
    assert {each[:2] for each in found(story.report, "forged")} == {("unexpected", "rejected")}


def test_what_commands_did_is_computed_again_and_what_can_no_longer_be_is_left_out_w203(story: Story) -> None:
    ids = ("whole", "short", "gone", "kept", "fixed", "forgotten")
    assert found(story.report, *ids) == {("missing", "units", "short", story.unit_ids["short"])}
    assert story.since.left_out == story.report.left_out == 1
    # by the log alone `forgotten` has expired; the ledger says otherwise, so it is not judged
    assert story.report.units == {"complete": 38, "partial": 1, "cancelled": 1, "expired": 5, "open": 1}


def test_time_alone_closes_lawfully_only_behind_the_deadline(story: Story) -> None:
    """W-72, W-83, W-207: with no later record in the log, a recorded closing is taken as fact, but not one before the deadline."""
    assert {each[:2] for each in found(story.report, "too-soon")} == {("unlawful closing", "closings")}
    assert found(story.report, "kept") == set()


def test_a_group_that_expired_although_its_last_component_came_in_time_is_found(story: Story) -> None:
    """W-82: a worker that lets its wall clock run ahead of unread records loses units; the log shows it."""
    assert {each[:2] for each in found(story.report, "in-time")} == {
        ("missing", "units"),
        ("missing", "components"),
        ("unexpected", "rejected"),
        ("unlawful closing", story.ledger),
    }


def test_units_count_once_in_whichever_topics_their_routes_say_w100(make_stage: Callable[..., Stage]) -> None:
    """W-216, W-72, W-83: what lies in a topic that no route names for it, or is missing from one that does, is found; and nothing else, though a
    group expired of which only the ledger tells."""
    urgent, books = (f"{uuid.uuid4().hex}.{lane}" for lane in ("urgent", "books"))
    routes = Route(Selector("uow-priority > 4"), urgent), Route(Selector("kind = 'book'"), books)
    stage = make_stage(
        route_matching=RouteMatching.ALL, routes=routes, incomplete_expiration_ms=1000, late_policy=LatePolicy.AMEND
    )
    stage.send([plain("letter"), c("low", 1, end=True), c("high", 1), c("high", 2, end=True, uow_priority="9")])
    stage.send([c("both", 1, end=True, uow_priority="9", kind="book"), c("book", 1, end=True, kind="book")])
    stage.send([c("fixed", 1), c("fixed", 2, uow_priority="9", kind="book")])
    stage.work()
    stage.command(Command(b"1", Verb.RELEASE, b"fixed", "because"))
    stage.send([c("expires", 1), c("expires", 3, end=True), c("fixed", 3, end=True, uow_priority="9")])
    stage.work()
    stage.tick()
    stage.send([c("open yet", 1)])
    stage.work()
    stage.sink()
    assert sorted((row.topic.rpartition(".")[2], row.id) for row in stage.rows(Table.UNITS)) == [
        ("books", "book"),
        ("books", "both"),
        ("books", "fixed"),
        ("units", "low"),
        ("urgent", "both"),
        ("urgent", "fixed"),
        ("urgent", "fixed"),
        ("urgent", "high"),
    ]
    current = [row for row in stage.rows(Table.UNITS) if row.id == "fixed" and row.superseded_by is None]
    assert [(row.topic, row.outcome) for row in current] == [(urgent, "complete")]

    def misplace(rows: list[dict[str, Any]]) -> None:
        row(rows, id="both", topic=books)["topic"] = stage.names.units
        rows.append(row(rows, id="high") | {"offset": 99})

    stage.tamper(Table.UNITS, misplace)
    report = stage.audit()
    assert {(each.what, each.source, each.id, each.detail.rpartition(".")[2]) for each in report.examples} == {
        (DifferenceKind.MISSING, "units", "both", "books"),
        (DifferenceKind.UNEXPECTED, "units", "both", "units"),
        (DifferenceKind.DOUBLED, "units", "high", "urgent"),
    }
    assert report.count(Fate.DELIVERED) == report.found[Fate.DELIVERED] == 8
    assert (report.count(Fate.EXPIRED), report.count(Fate.OPEN)) == (2, 1)


def test_the_audit_obeys_the_commands_that_the_worker_obeyed_and_no_others(make_stage: Callable[..., Stage]) -> None:
    """Unsigned and forged ones have the ids of those that are signed, and the same append times."""
    operator, stranger = CommandSigner("ops", bytes(32)), CommandSigner("ops", b"\1" * 32)
    stage = make_stage(command_keys=(CommandKey("ops", operator.public, frozenset({"all"})),))
    stage.send([c("wanted", 1), c("strange", 1), c("whole", 1, end=True)])
    stage.work()
    for group_id, verb in ((b"wanted", Verb.RELEASE), (b"strange", Verb.CANCEL)):
        stage.command(Command(b"1", verb, group_id, "because"))
        stage.command(Command(b"1", verb, group_id, "because"), signer=stranger)
    stage.command(Command(b"1", Verb.RELEASE, b"wanted", "because"), signer=operator)
    assert clean(stage, complete=1, partial=1).count(Fate.OPEN) == 1
    stage.command(Command(b"2", Verb.CANCEL, b"strange", "because"), signer=operator)
    clean(
        stage, incremental=True, partial=1, cancelled=1
    )  # no component came since the last audit, so that one is judged again


def clean(stage: Stage, *, incremental: bool = False, **counts: int) -> AuditReport:
    """The report of an audit after the sink has caught up, without differences, with these numbers of units."""
    stage.sink()
    report = stage.audit(incremental=incremental)
    assert report.examples == ()
    assert report.is_clean
    assert report.units == counts
    return report


def test_no_false_alarm_over_all_that_is_right(make_stage: Callable[..., Stage]) -> None:
    """Open groups, expiry, commands, aborts, records on a wrong partition; then retention takes the beginning of the input, and the state of the worker stays."""
    stage = make_stage(incomplete_expiration_ms=60_000, expiration_policy=ExpirationPolicy.REDIRECT)
    wrong = 1 if stage.tasks[0].partition.elsewhere(b"astray") is None else 0
    stage.send([c("astray", 1), c("astray", 2, end=True), c("astray", 3, uow_rerouted="1")], partition=wrong)
    stage.work()
    stage.work()  # what was sent on
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
    report = clean(stage, complete=3, partial=1, expired=2, open=1)
    assert report.count(Fate.REROUTED) == 2
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


def test_records_that_were_set_aside_are_named_with_their_units_and_are_no_difference(
    make_stage: Callable[..., Stage],
) -> None:
    """From the whole log, and incrementally; a row of them that is taken away from the tables is one."""
    stage = make_stage(incomplete_expiration_ms=60_000, expiration_policy=ExpirationPolicy.REDIRECT)
    stage.send([c("whole", 1), c("lacks", 1), c("lacks", 2, value=ASIDE), (b"x", ASIDE, []), c("whole", 2, end=True)])
    stage.send([c("lacks", 3, end=True)])
    stage.work()
    report = clean(stage, complete=1, open=1)
    (of_unit,) = [place for place, group_id in report.set_aside.items() if group_id == "lacks"]
    assert of_unit.startswith(f"{stage.names.components}/")
    assert [*report.set_aside.values()].count(None) == 1
    assert report.count(Fate.REJECTED) == report.found[Fate.REJECTED] == 2
    stage.send([c("whole2", 1, value=ASIDE), c("whole2", 1, end=True)])
    stage.work()
    report = clean(stage, incremental=True, complete=1, open=1)
    assert [*report.set_aside.values()] == ["whole2"]
    lines = set_aside_text(report)
    assert "1 record was set aside, and is in no unit: " in lines
    assert lines.endswith("of whole2")


def test_a_claim_that_a_record_was_set_aside_excuses_no_missing_unit(make_stage: Callable[..., Stage]) -> None:
    """Somebody who may write `D.rejected` says so of a record that the worker held, and of one that it did set aside."""
    stage = make_stage()
    stage.send([c("robbed", 1), c("robbed", 2, end=True), c("true", 1, value=ASIDE), c("whole", 1, end=True)])
    stage.work()
    place = f"{stage.names.components}/{partition_for(b'robbed', PARTITIONS)}/0"
    names = ("uow-id", "uow-error-class", "uow-error-case", "uow-error-text", "uow-source")
    said = (b"robbed", b"InternalError", b"KeyError", b"forged", place.encode())
    stage.put(stage.names.rejected, b"robbed", b"1", [*zip(names, said, strict=True)])
    stage.sink()
    report = stage.audit()
    (claim,) = [each for each in report.examples if each.what is DifferenceKind.CLAIMED]
    assert (claim.place, claim.id, "the worker held it" in claim.detail) == (place, "robbed", True)
    assert (report.totals[DifferenceKind.CLAIMED], [*report.set_aside.values()]) == (1, ["true"])
    assert report.count(Fate.DELIVERED) == 3


def test_a_record_that_was_set_aside_where_no_ledger_can_tell_is_noted_and_is_no_difference(
    make_stage: Callable[..., Stage],
) -> None:
    """One where nothing is ever held; as one of which the ledger is gone, long before the records are."""
    stage = make_stage(handling_policy=HandlingPolicy.PASS_THROUGH)
    stage.send([c("true", 1, value=ASIDE), plain("y")])
    stage.work()
    stage.sink()
    report = stage.audit()
    assert (report.totals, report.examples, len(report.set_aside)) == ({}, (), 1)
    assert report.note.startswith("1 records count as set aside")


def test_nothing_is_a_unit_of_a_destination_that_forms_none_w65(make_stage: Callable[..., Stage]) -> None:
    """And no group is: the audit finds nothing wrong."""
    stage = make_stage(handling_policy=HandlingPolicy.PASS_THROUGH)
    claims = [("uow-id", b"a"), ("uow-kind", b"unit"), ("uow-unit-id", b"u"), ("uow-pos", b"1/1")]
    stage.send([(b"a", b"no unit", claims), c("x", 1), c("x", 2, end=True), plain("y")])
    stage.work()
    clean(stage)
    assert claims in [[*map(tuple, row.headers)] for row in stage.rows(Table.PASSED)]
    assert len(stage.rows(Table.PASSED)) == 4
    assert stage.rows(Table.UNITS) == stage.rows(Table.REJECTED) == []
