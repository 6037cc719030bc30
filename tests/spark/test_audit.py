"""`uow audit`: clean where nothing went wrong, and every way of going wrong is found."""

from __future__ import annotations

import time
from collections.abc import Callable

from spark_sink.comparison import What
from spark_sink.recompute import Fate
from spark_sink.tables import Table
from tests.spark.stage import STARTED_MS, Stage, c, plain


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
    stage = make_stage(incomplete_expiration_ms=600_000, expiration_policy="redirect")
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


def test_each_way_of_tampering_with_the_tables_is_found(stage: Stage) -> None:
    """The audit must be able to fail: each change below is one difference of its kind, at its place, and nothing else is."""
    busy_day(stage)
    stage.sink()
    assert stage.audit().is_clean
    for table, change in (
        (Table.UNITS, "DELETE FROM {} WHERE id = 'many-0'"),
        (Table.UNITS, "INSERT INTO {} SELECT * FROM {} WHERE id = 'many-1'"),
        (Table.UNITS, "UPDATE {} SET outcome = 'partial' WHERE id = 'many-2'"),
        (Table.UNITS, "UPDATE {} SET headers = slice(headers, 1, 3) WHERE id = 'many-3'"),
        (Table.UNITS, "INSERT INTO {} SELECT 'forged', * EXCEPT (unit_id) FROM {} WHERE id = 'many-4'"),
        (Table.COMPONENTS, "DELETE FROM {} WHERE id = 'many-5' AND seq = 1"),
        (Table.COMPONENTS, "INSERT INTO {} SELECT * FROM {} WHERE id = 'many-6' AND seq = 2"),
        (Table.COMPONENTS, "UPDATE {} SET value = X'00' WHERE id = 'many-7' AND seq = 1"),
        (Table.COMPONENTS, "UPDATE {} SET headers = reverse(headers) WHERE id = 'many-8' AND seq = 1"),
        (Table.COMPONENTS, "UPDATE {} SET position = 3 - position WHERE id = 'many-9'"),
        (Table.COMPONENTS, "UPDATE {} SET seq = 3 - seq WHERE id = 'many-10' AND seq = 2"),
        (Table.REJECTED, "DELETE FROM {} WHERE id = 'bad'"),
        (Table.REJECTED, "INSERT INTO {} SELECT * FROM {} WHERE error_class = 'UnitConflictError'"),
        (Table.REJECTED, "UPDATE {} SET value = X'00' WHERE error_case = 'conflict'"),
        (Table.REJECTED, "UPDATE {} SET error_case = 'b' WHERE error_class = 'OutOfSequenceRangeError'"),
        (Table.REJECTED, "UPDATE {} SET source_offset = 0 WHERE error_class = 'BadUnitIdError' AND key IS NULL"),
        (Table.PASSED, "DELETE FROM {} WHERE value = X'32'"),
    ):
        stage.tamper(table, change)
    report = stage.audit()
    found = [(each.what, each.source, each.id) for each in report.examples]
    unit_missing = [(What.MISSING, "units", "many-0"), (What.UNEXPECTED, "units", "many-4")]
    assert sorted(found, key=str) == sorted(
        [
            *unit_missing,
            (What.DOUBLED, "units", "many-1"),
            (What.CONTENT, "units", "many-2"),
            (What.CONTENT, "units", "many-3"),
            (What.MISSING, "components", "many-5"),
            (What.DOUBLED, "components", "many-6"),
            (What.CONTENT, "components", "many-7"),
            (What.CONTENT, "components", "many-8"),
            (What.ORDER, "components", "many-9"),
            (What.ORDER, "components", "many-9"),
            (What.CONTENT, "components", "many-10"),
            (What.MISSING, "rejected", "bad"),
            (What.DOUBLED, "rejected", "x"),
            (What.CONTENT, "rejected", "two"),
            (What.CONTENT, "rejected", "jill"),
            (What.MISSING, "rejected", None),
            (What.UNEXPECTED, "rejected", None),
            (What.MISSING, "passed", None),
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
    stage.tamper(Table.PASSED, "UPDATE {} SET offset = -offset")
    report = stage.audit()
    assert report.totals == {What.ORDER: 2}
    stage.tamper(Table.PASSED, "UPDATE {} SET offset = -offset")
    stage.put(stage.names.units, b"a", b"forged", [])
    stage.put(
        stage.names.rejected,
        b"x",
        b"v",
        [("uow-id", b"x"), ("uow-error-class", b"UowError"), ("uow-source", b"nowhere")],
    )
    stage.sink()
    assert stage.audit().totals == {What.UNEXPECTED: 2}


def test_time_alone_closes_lawfully_only_behind_the_deadline(make_stage: Callable[..., Stage]) -> None:
    """W-72, W-83, W-207: with no later record in the log, a recorded closing is taken as fact, but not one before the deadline."""
    discard = make_stage(incomplete_expiration_ms=1000)
    partial = make_stage(incomplete_expiration_ms=1000, expiration_policy="deliver_partial")
    early = make_stage(incomplete_expiration_ms=86_400_000, expiration_policy="redirect")
    for stage in (discard, partial, early):
        stage.send([c("x", 1), c("x", 3, end=True)])
        stage.work()
        stage.sink()
        assert stage.audit().count(Fate.OPEN) == 2, "nothing says that it closed"
        stage.tick(int(time.time() * 1000) + (86_400_000 if stage is early else 0))
        stage.sink()
    report = discard.audit()
    assert report.is_clean
    assert report.count(Fate.EXPIRED) == 2
    report = partial.audit()
    assert report.is_clean
    assert report.units == {"partial": 1}
    assert early.audit().totals == {What.CLOSING: 1}


def test_a_group_that_expired_although_its_last_component_came_in_time_is_found(
    make_stage: Callable[..., Stage],
) -> None:
    """W-82: a worker that lets its wall clock run ahead of unread records loses units; the log shows it."""
    stage = make_stage(incomplete_expiration_ms=1000, expiration_policy="redirect")
    stage.send([c("x", 1)], at=0)
    stage.work()
    stage.tick(STARTED_MS + 5000)
    stage.send([c("x", 2, end=True)], at=1000)
    stage.work()
    stage.sink()
    report = stage.audit()
    assert {(each.what, each.source) for each in report.examples} >= {
        (What.MISSING, "units"),
        (What.UNEXPECTED, "rejected"),
        (What.CLOSING, stage.names.closed_changelog),
    }
