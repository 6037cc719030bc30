"""Sink and audit understand units of every shape (W-116, W-117, W-127, W-208, W-216)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.spark.stage import Stage, c, plain
from tests.spark.test_audit import busy_day
from uow.processor.engine import shapes
from uow.spark_sink.recompute import digest
from uow.spark_sink.tables import Table
from uow.topics.headers import IN_RUN, OWN
from uow.topics.policies import (
    ExpirationPolicy,
    HandlingPolicy,
    Oversize,
    Shape,
)
from uow.topics.runs import record_headers

pytestmark = pytest.mark.timeout(600)


def clean_busy_day(make_stage: Callable[..., Stage], shape: Shape) -> Stage:
    """Its audit is clean, Jill's order complete, and what came of the group `open` partial."""
    stage = make_stage(shape=shape, incomplete_expiration_ms=60_000, expiration_policy=ExpirationPolicy.DELIVER_PARTIAL)
    busy_day(stage)
    stage.tick()
    stage.sink()
    assert stage.audit().examples == ()
    (jill,) = (row for row in stage.rows(Table.UNITS) if row.id == "jill")
    assert (jill["count"], jill.outcome, jill.reason, jill.key) == (3, "complete", "end", b"jill")
    parts = stage.rows(Table.COMPONENTS)
    assert [(part.position, part.seq, part.source_topic) for part in parts if part.id == "jill"] == [
        (number, number, stage.names.components) for number in (1, 2, 3)
    ]
    assert [part.seq for part in parts if part.id == "open"] == [7]
    return stage


def test_a_busy_day_of_runs_is_clean_and_damage_is_seen_w216(make_stage: Callable[..., Stage]) -> None:
    stage = clean_busy_day(make_stage, Shape.CONSECUTIVE)

    def spoil(rows: list[dict[str, object]]) -> None:
        rows[0]["value"] = b"spoilt"

    stage.tamper(Table.COMPONENTS, spoil)
    assert [difference.detail for difference in stage.audit().examples] == ["key, value or headers"]


def test_a_busy_day_of_references_is_clean_w117_w216(make_stage: Callable[..., Stage]) -> None:
    clean_busy_day(make_stage, Shape.REFERENCE)


def test_an_oversized_unit_in_another_shape_is_a_row_like_the_small_ones_w208(make_stage: Callable[..., Stage]) -> None:
    big = b"x" * 900_000
    stage = make_stage(oversize=Oversize.CONSECUTIVE)
    stage.send([c("small", 1, end=True), plain("letter")])
    for number in range(1, 13):
        stage.send([c("large", number, value=big, end=number == 12, shop=f"{number}")])
    stage.work()
    stage.sink()
    assert stage.audit().examples == ()
    assert sorted((row.id, row["count"]) for row in stage.rows(Table.UNITS)) == [("large", 12), ("small", 1)]
    assert all(row.opened_at is not None and row.bytes for row in stage.rows(Table.UNITS))
    parts = sorted((row for row in stage.rows(Table.COMPONENTS) if row.id == "large"), key=lambda row: row.seq)
    assert [row.end for row in parts] == [False] * 11 + [True]
    assert [len(row.value) for row in parts] == [900_000] * 12
    assert all(row.timestamp is not None and ("uow-id", b"large") in map(tuple, row.headers) for row in parts)


def test_runs_that_a_worker_of_an_earlier_version_wrote_are_audited_by_what_they_told_w216(
    make_stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    def less(*args: Any) -> list[tuple[str, bytes | None]]:
        made = record_headers(*args)
        return [pair for pair in made if pair[0] not in IN_RUN and not pair[0].startswith(OWN)]

    stage = make_stage(shape=Shape.CONSECUTIVE)
    stage.send([c("before", 1), c("before", 2, end=True)])
    with monkeypatch.context() as earlier:
        earlier.setattr(shapes, "record_headers", less)
        stage.work()
    stage.send([c("now", 1), c("now", 2, end=True)])
    stage.work()
    stage.sink()
    assert stage.audit().examples == ()
    assert {(row.id, row.opened_at is None) for row in stage.rows(Table.UNITS)} == {("before", True), ("now", False)}


def test_what_claims_to_be_a_unit_is_none_in_the_tables_w96_w121(make_stage: Callable[..., Stage]) -> None:
    """Passed as a plain record, given up as a component; and the audit expects just that."""
    stage = make_stage(
        shape=Shape.CONSECUTIVE, incomplete_expiration_ms=60_000, expiration_policy=ExpirationPolicy.REDIRECT
    )
    claims = [("uow-kind", b"unit"), ("uow-unit-id", b"u"), ("uow-own-x", b"1")]
    key, value, marks = c("open", 1)
    stage.send(
        [
            c("real", 1, end=True),
            (b"a", b"no unit", [("uow-id", b"a"), *claims, ("uow-pos", b"1/2")]),
            (b"b", b"\xc3\x01no unit", [("uow-id", b"b"), *claims]),
            (key, value, [*marks, *claims]),
        ]
    )
    stage.work()
    stage.tick()
    stage.sink()
    report = stage.audit()
    assert report.examples == ()
    assert [row.id for row in stage.rows(Table.UNITS)] == ["real"]
    assert sorted(row.value for row in stage.rows(Table.PASSED)) == [b"no unit", b"\xc3\x01no unit"]
    (refused,) = stage.rows(Table.REJECTED)
    assert (refused.id, refused.failure_reason) == ("open", "expired")


def test_a_unit_whose_component_is_gone_is_kept_as_one_that_cannot_be_read_w117(
    make_stage: Callable[..., Stage],
) -> None:
    stage = make_stage(shape=Shape.REFERENCE)
    stage.send([c("a", 1), c("a", 2, end=True)], partition=None)
    stage.work()
    (partition,) = (p for p, task in stage.tasks.items() if task.counts.delivered)
    admin = AdminClient({"bootstrap.servers": stage.servers})
    for done in admin.delete_records([TopicPartition(stage.names.components, partition, 1)]).values():
        done.result(20)
    stage.sink()
    assert stage.rows(Table.UNITS) == stage.rows(Table.COMPONENTS) == []
    (row,) = stage.rows(Table.UNREADABLE)
    assert row.id == "a"
    assert f"{stage.names.components}/{partition}/0" in row.reason


def test_nothing_is_a_unit_of_a_destination_that_forms_none_w65(make_stage: Callable[..., Stage]) -> None:
    stage = make_stage(handling_policy=HandlingPolicy.PASS_THROUGH)
    claims = [("uow-id", b"a"), ("uow-kind", b"unit"), ("uow-unit-id", b"u"), ("uow-pos", b"1/1")]
    stage.send([(b"a", b"no unit", claims)])
    stage.work()
    stage.sink()
    assert [[*map(tuple, row.headers)] for row in stage.rows(Table.PASSED)] == [claims]
    assert stage.rows(Table.UNITS) == stage.rows(Table.REJECTED) == []


def test_digest_tells_null_from_empty() -> None:
    headers = [("a", None), ("a", b""), ("b", b"x")]
    assert len({digest(key, value, headers) for key in (None, b"") for value in (None, b"")}) == 4
    assert digest(None, None, headers) != digest(None, None, headers[:2])
