"""Sink and audit understand units of every shape (W-116, W-117, W-127, W-208, W-216)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from spark_sink.recompute import digest
from spark_sink.tables import Table
from tests.spark.stage import Stage, c, plain
from tests.spark.test_audit import busy_day
from topics.policies import ExpirationPolicy, Oversize, Shape

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
    assert [len(row.value) for row in stage.rows(Table.COMPONENTS) if row.id == "large"] == [900_000] * 12


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
    (row,) = stage.rows(Table.REJECTED)
    assert (row.id, row.error_class, row.error_case) == ("a", "DecodeError", "unit")


def test_digest_tells_null_from_empty() -> None:
    headers = [("a", None), ("a", b""), ("b", b"x")]
    assert len({digest(key, value, headers) for key in (None, b"") for value in (None, b"")}) == 4
    assert digest(None, None, headers) != digest(None, None, headers[:2])
