"""Sink and audit understand units of every shape (W-116, W-117, W-127, W-208, W-216)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.spark.stage import Stage, c
from tests.spark.test_audit import busy_day
from uow.processor.engine import shapes
from uow.spark_sink.recompute import digest
from uow.spark_sink.tables import Table
from uow.topics.headers import IN_RUN, OWN
from uow.topics.policies import (
    ExpirationPolicy,
    Oversize,
    Shape,
)
from uow.topics.runs import record_headers

pytestmark = pytest.mark.timeout(600)


def lived_a_busy_day(stage: Stage) -> None:
    """Jill's order is complete in the tables, and the group `open` is partial."""
    busy_day(stage)
    stage.tick()
    stage.sink()
    (jill,) = (row for row in stage.rows(Table.UNITS) if row.id == "jill")
    assert (jill["count"], jill.outcome, jill.reason, jill.key) == (3, "complete", "end", b"jill")
    parts = stage.rows(Table.COMPONENTS)
    assert [(part.position, part.seq, part.source_topic) for part in parts if part.id == "jill"] == [
        (number, number, stage.names.components) for number in (1, 2, 3)
    ]
    assert [part.seq for part in parts if part.id == "open"] == [7]


PARTIAL = {"incomplete_expiration_ms": 60_000, "expiration_policy": ExpirationPolicy.DELIVER_PARTIAL}


def test_a_busy_day_of_runs_is_right_and_damage_is_seen_w216(
    make_stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a worker of an earlier version wrote some of them: they are audited by what they told."""

    def less(*args: Any) -> list[tuple[str, bytes | None]]:
        made = record_headers(*args)
        return [pair for pair in made if pair[0] not in IN_RUN and not pair[0].startswith(OWN)]

    stage = make_stage(shape=Shape.CONSECUTIVE, **PARTIAL)
    stage.send([c("before", 1), c("before", 2, end=True)])
    with monkeypatch.context() as earlier:
        earlier.setattr(shapes, "record_headers", less)
        stage.work()
    lived_a_busy_day(stage)
    assert {row.id for row in stage.rows(Table.UNITS) if row.opened_at is None} == {"before"}

    def spoil(rows: list[dict[str, object]]) -> None:
        next(row for row in rows if row["id"] == "bob")["value"] = b"spoilt"

    stage.tamper(Table.COMPONENTS, spoil)
    [difference] = stage.audit().examples
    assert (difference.id, difference.detail) == ("bob", "key, value or headers")


def test_a_busy_day_of_references_is_clean_and_a_unit_whose_component_is_gone_cannot_be_read_w117_w216(
    make_stage: Callable[..., Stage],
) -> None:
    """It is kept as what it is."""
    stage = make_stage(shape=Shape.REFERENCE, **PARTIAL)
    lived_a_busy_day(stage)
    assert stage.audit().examples == ()

    before = len(stage.rows(Table.UNITS))
    stage.send([c("a", 1), c("a", 2, end=True)])
    stage.work()
    [first, _] = [record for record in stage.read(stage.names.components) if record.key() == b"a"]
    admin = AdminClient({"bootstrap.servers": stage.servers})
    lost = TopicPartition(first.topic(), first.partition(), first.offset() + 1)
    for done in admin.delete_records([lost]).values():
        done.result(20)
    stage.sink()
    assert len(stage.rows(Table.UNITS)) == before
    (row,) = stage.rows(Table.UNREADABLE)
    assert row.id == "a"
    assert f"{first.topic()}/{first.partition()}/{first.offset()}" in row.reason


def test_an_oversized_unit_in_another_shape_is_a_row_like_the_small_ones_w208_w96_w121(
    make_stage: Callable[..., Stage],
) -> None:
    """What claims to be a unit is none: passed as a plain record, given up as a component; and the audit expects just that."""
    big = b"x" * 900_000
    stage = make_stage(
        oversize=Oversize.CONSECUTIVE, incomplete_expiration_ms=60_000, expiration_policy=ExpirationPolicy.REDIRECT
    )
    claims = [("uow-kind", b"unit"), ("uow-unit-id", b"u"), ("uow-own-x", b"1")]
    key, value, marks = c("open", 1)
    stage.send(
        [
            c("small", 1, end=True),
            (b"a", b"no unit", [("uow-id", b"a"), *claims, ("uow-pos", b"1/2")]),
            (b"b", b"\xc3\x01no unit", [("uow-id", b"b"), *claims]),
            (key, value, [*marks, *claims]),
        ]
    )
    for number in range(1, 13):
        stage.send([c("large", number, value=big, end=number == 12, shop=f"{number}")])
    stage.work()
    stage.tick()
    stage.sink()
    assert stage.audit().examples == ()
    assert sorted((row.id, row["count"]) for row in stage.rows(Table.UNITS)) == [("large", 12), ("small", 1)]
    assert all(row.opened_at is not None and row.bytes for row in stage.rows(Table.UNITS))
    parts = sorted((row for row in stage.rows(Table.COMPONENTS) if row.id == "large"), key=lambda row: row.seq)
    assert [row.end for row in parts] == [False] * 11 + [True]
    assert [len(row.value) for row in parts] == [900_000] * 12
    assert all(row.timestamp is not None and ("uow-id", b"large") in map(tuple, row.headers) for row in parts)
    assert sorted(row.value for row in stage.rows(Table.PASSED)) == [b"no unit", b"\xc3\x01no unit"]
    (refused,) = stage.rows(Table.REJECTED)
    assert (refused.id, refused.failure_reason) == ("open", "expired")


def test_digest_tells_null_from_empty() -> None:
    headers = [("a", None), ("a", b""), ("b", b"x")]
    assert len({digest(key, value, headers) for key in (None, b"") for value in (None, b"")}) == 4
    assert digest(None, None, headers) != digest(None, None, headers[:2])
