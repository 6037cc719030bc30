"""Fates, from records alone: no Spark and no broker."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.test_hostile import policies as hostile_policies
from tests.engine.test_hostile import records as hostile_records
from uow.processor.core.partition_state import PartitionAddress
from uow.processor.core.snapshot import restore, take
from uow.spark_sink.audit_state import JournalMark, PartitionMark, read_mark, write_mark
from uow.spark_sink.recompute import (
    COLUMNS,
    GROUP,
    RECORD,
    Arrived,
    Fate,
    Happening,
    Recomputation,
    Row,
    RowMaker,
    digest,
    empty_partition,
    recompute,
)
from uow.topics.policies import (
    DestinationPolicy,
    ExpirationPolicy,
    HandlingPolicy,
    LatePolicy,
    Oversize,
    Shape,
    ValueFormat,
)

PLACE = PartitionAddress("d", "d.components", 0, 1)


def arrived(
    offset: int,
    id: str | None,
    seq: int = 1,
    *,
    end: bool = False,
    at: int = 0,
    value: bytes = b"v",
    digest: str = "",
) -> Arrived:
    headers: list[tuple[str, bytes | None]] = [] if id is None else [("uow-id", id.encode()), ("uow-seq", b"%d" % seq)]
    if end:
        headers.append(("uow-end", b"true"))
    if digest:
        headers.append(("uow-digest", digest.encode()))
    return Arrived(offset, 1_000_000 + at, (id or "k").encode(), value, headers)


def rows(*records: Arrived, **policy: Any) -> list[Row]:
    """Rows of the records, whatever the batches they come in."""
    settings = DestinationPolicy(**{"handling_policy": HandlingPolicy.SINGLE_MESSAGE_DELIVERY, **policy})
    whole = list(recompute(PLACE, settings, [records]))
    single = list(recompute(PLACE, settings, [[record] for record in records]))
    assert sorted(whole, key=str) == sorted(single, key=str)
    return whole


def fates(found: list[Row]) -> dict[int | None, str]:
    assert len({row.offset for row in found if row.kind == RECORD}) == sum(row.kind == RECORD for row in found)
    return {row.offset: row.fate for row in found if row.kind == RECORD}


@pytest.mark.parametrize("seed", range(6))
def test_corrected_units_are_computed_again_also_from_a_file_b205(seed: int, tmp_path: Path) -> None:
    rnd = Random(seed)
    policy = DestinationPolicy(
        handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY,
        late_policy=LatePolicy.AMEND,
        expiration_policy=ExpirationPolicy.DELIVER_PARTIAL,
        incomplete_expiration_ms=100,
        closed_retention_ms=rnd.choice([400, 100_000]),
    )
    records = [arrived(n, rnd.choice("abc"), rnd.randint(1, 5), end=rnd.random() < 0.1, at=30 * n) for n in range(80)]
    whole = [*recompute(PLACE, policy, [records])]
    assert any(row.headers and "uow-supersedes" in dict(row.headers) for row in whole)

    def made(happenings: Iterable[Happening]) -> list[Row]:
        return [row for each in happenings for row in RowMaker(PLACE, policy).rows(each)]

    cut = rnd.randrange(80)
    first = Recomputation(PLACE, policy)
    rows = made(first.on_records(records[:cut]))
    write_mark(tmp_path / "0.avro", PartitionMark(take(first.partition), JournalMark(), 0, 0))
    state = empty_partition(PLACE, policy)
    restore(state, read_mark(tmp_path / "0.avro").snapshot)
    second = Recomputation(PLACE, policy, (), state)
    rows += made(second.on_records(records[cut:])) + made(second.finish())
    assert sorted(rows, key=str) == sorted(whole, key=str)


def in_pieces(offset: int, seq: int, at: int, value: bytes, last: bool = False) -> Arrived:
    record = arrived(offset, "a", seq, value=value)
    place = [("uow-segment-at", b"%d" % at), ("uow-segment-end", b"true" if last else b"false")]
    return Arrived(offset, 1_000_000, b"a", value, [*record.shown, *place])


def test_a_component_in_pieces_is_delivered_and_a_piece_that_waits_is_open_b124() -> None:
    whole = [in_pieces(0, 1, 0, b"ab"), in_pieces(1, 1, 2, b"cd", True)]
    assert fates(rows(*whole, in_pieces(2, 2, 1, b"x"))) == {1: Fate.OPEN, 2: Fate.OPEN}
    found = rows(*whole, arrived(2, "a", 2, end=True))
    assert {(row.offset, row.seq, row.fate) for row in found if row.kind == RECORD} == {
        (1, 1, Fate.DELIVERED),
        (2, 2, Fate.DELIVERED),
    }


def test_every_record_has_one_fate() -> None:
    """W-216."""
    found = rows(
        arrived(0, "a", 2, end=True),
        arrived(1, None),
        arrived(3, "a", 1),
        arrived(4, "a", 1),
        arrived(7, "b", 1),
        arrived(8, "c", 0),
    )
    assert fates(found) == {
        0: Fate.DELIVERED,
        1: Fate.PASSED,
        3: Fate.DELIVERED,
        4: Fate.REJECTED,
        7: Fate.OPEN,
        8: Fate.REJECTED,
    }
    assert [
        (row.offset, row.position, row.seq) for row in found if row.fate == Fate.DELIVERED and row.kind == RECORD
    ] == [
        (3, 1, 1),
        (0, 2, 2),
    ]
    assert [(row.id, row.outcome, row.size, row.due) for row in found if row.kind == GROUP] == [
        ("a", "complete", 2, None)
    ]
    assert [row.error_case for row in found if row.fate == Fate.REJECTED] == ["duplicate", "b"]


def test_what_time_closes_before_the_last_record_is_decided_by_the_log_alone() -> None:
    """W-84: an arriving record moves the clock first; what is due only after the last record is marked so."""
    found = rows(
        arrived(0, "a", 1),
        arrived(1, "b", 1, at=50),
        arrived(2, None, at=101),
        incomplete_expiration_ms=100,
        expiration_policy=ExpirationPolicy.REDIRECT,
    )
    groups = {row.id: row for row in found if row.kind == GROUP}
    assert {key: (row.fate, row.due, row.to_errors) for key, row in groups.items()} == {
        "a": (Fate.EXPIRED, None, True),
        "b": (Fate.EXPIRED, 1_000_151, True),
    }
    assert {row.offset: row.due for row in found if row.kind == RECORD} == {0: None, 1: 1_000_151, 2: None}


@pytest.mark.parametrize(
    ("policy", "to_errors"),
    [(ExpirationPolicy.DISCARD, False), (ExpirationPolicy.LOG, False), (ExpirationPolicy.REDIRECT, True)],
)
def test_only_redirect_leaves_components_of_expired_groups(policy: ExpirationPolicy, to_errors: bool) -> None:
    """W-78 to W-80."""
    found = rows(arrived(0, "a", 1), arrived(1, None, at=500), incomplete_expiration_ms=100, expiration_policy=policy)
    assert [row.to_errors for row in found if row.kind == GROUP] == [to_errors]


def test_a_unit_that_fits_no_record_fails() -> None:
    """W-115: later components of it are late, not duplicates."""
    large = b"x" * 1_000_000
    records = [arrived(n, "a", n + 1, end=n == 10, value=large) for n in range(11)]
    policy = DestinationPolicy(handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY)
    found = list(recompute(PLACE, policy, [records, [arrived(11, "a", 1)]]))
    [group] = [row for row in found if row.kind == GROUP]
    assert (group.fate, group.reason, group.error_class, group.to_errors) == (
        "failed",
        "limit",
        "UnitTooLargeError",
        True,
    )
    assert fates(found)[11] == Fate.REJECTED
    assert found[-1].error_class == "UnitClosedError"


@pytest.mark.parametrize(
    ("oversize", "value_format"),
    [
        (Oversize.CONSECUTIVE, ValueFormat.AVRO),
        (Oversize.REFERENCE, ValueFormat.AVRO),
        (Oversize.REFERENCE, ValueFormat.JSON),
    ],
)
def test_a_unit_that_fits_no_record_takes_another_shape(oversize: Oversize, value_format: ValueFormat) -> None:
    """W-208."""
    big = b"x" * 3_600_000
    large = [arrived(seq, "large", seq, end=seq == 3, value=big) for seq in (1, 2, 3)]
    found = rows(*large, arrived(9, "small", end=True), oversize=oversize, value_format=value_format)
    assert set(fates(found).values()) == {Fate.DELIVERED}
    groups = {row.id: row for row in found if row.kind == GROUP}
    assert groups["small"].opened_at is not None
    is_run = oversize is Oversize.CONSECUTIVE
    assert groups["large"].opened_at == 1_000_000
    assert ("uow-pos" in dict(groups["large"].headers or [])) == is_run
    parts = [row for row in found if row.kind == RECORD and row.id == "large"]
    assert [row.content for row in parts] == [digest(each.key(), each.value(), each.headers()) for each in large]
    assert {row.content_before is not None for row in parts} == {is_run}
    assert [(row.seq, row.position) for row in parts] == [(1, 1), (2, 2), (3, 3)]


def test_a_unit_that_fits_its_own_shape_in_no_way_fails() -> None:
    """W-115: a component that just fits a record, but not with its unit's headers."""
    end: list[tuple[str, bytes | None]] = [("uow-id", b"a"), ("uow-seq", b"2"), ("uow-end", b"true")]
    large = Arrived(1, 1, b"a", b"v", [*end, ("uow-type", b"t" * 100_000)])
    found = rows(arrived(0, "a", value=b"x" * 10_400_000), large, shape=Shape.CONSECUTIVE)
    assert {row.fate for row in found} == {Fate.FAILED}


def test_sizes_are_those_of_whole_components_though_a_worker_does_not_hold_them() -> None:
    """W-117: what a unit of shape `reference` says of its size is what an envelope would say."""
    records = [arrived(0, "a", 1, value=b"x" * 5_000), arrived(1, "a", 2, value=b"y", end=True)]
    sizes = [
        [(row.kind, row.seq, row.held_bytes) for row in rows(*records, shape=shape)]
        for shape in (Shape.REFERENCE, Shape.ENVELOPE)
    ]
    assert sizes[0] == sizes[1]
    assert (sizes[0][0][2] or 0) > 5_000


def test_a_unit_that_disagrees_with_its_digest_fails() -> None:
    """W-212."""
    [group] = [row for row in rows(arrived(0, "a", 1, end=True, digest="sha256:" + 64 * "0")) if row.kind == GROUP]
    assert (group.fate, group.reason, group.error_class, group.to_errors) == ("failed", "digest", "UowError", True)


def test_headers_that_the_client_cannot_read_are_refused_as_the_worker_refuses_them() -> None:
    [row] = rows(Arrived(0, 1, b"k", b"v", None))
    assert (row.fate, row.error_class, row.error_case) == (Fate.REJECTED, "DecodeError", "headers")
    assert (row.header_count, row.content) == (0, digest(b"k", b"v", []))


CLAIMS: list[tuple[str, bytes | None]] = [("uow-kind", b"unit"), ("uow-unit-id", b"x")]
RENAMED: list[tuple[str, bytes | None]] = [("uow-origin-kind", b"unit"), ("uow-origin-unit-id", b"x")]


def test_what_claims_to_be_a_unit_is_expected_under_other_names_w96() -> None:
    """Where it passes and where it is given up; not where it is part of a unit, and not where it is refused."""
    marks: list[tuple[str, bytes | None]] = [("uow-id", b"a"), ("uow-seq", b"1")]
    passes = Arrived(0, 1, b"k", b"v", CLAIMS)
    held = Arrived(1, 1, b"a", b"v", [*marks, *CLAIMS])
    refused = Arrived(2, 1, b"a", b"v", [*marks, *CLAIMS])
    later = Arrived(3, 99_999, b"k", b"v", [])
    found = rows(
        passes,
        held,
        refused,
        later,
        expiration_policy=ExpirationPolicy.REDIRECT,
        incomplete_expiration_ms=10_000,
    )
    content = {row.offset: row.content for row in found if row.kind == RECORD}
    assert content == {
        0: digest(b"k", b"v", RENAMED),
        1: digest(b"a", b"v", [*marks, *RENAMED]),
        2: digest(b"a", b"v", [*marks, *CLAIMS]),
        3: digest(b"k", b"v", []),
    }
    whole = Arrived(0, 1, b"a", b"v", [*marks, ("uow-end", b"true"), *CLAIMS])
    assert [row.content for row in rows(whole) if row.kind == RECORD] == [digest(b"a", b"v", whole.headers())]
    unchanged = rows(passes, handling_policy=HandlingPolicy.PASS_THROUGH)
    assert [row.content for row in unchanged] == [digest(b"k", b"v", CLAIMS)]


def as_read(offset: int, headers: Any, key: bytes | None, value: bytes | None, at: int) -> Arrived:
    """A record as the client gives it."""
    return Arrived(offset, at, key, value, None if isinstance(headers, UnicodeDecodeError) else headers or [])


LONGS = {name for part in COLUMNS.split(", ") for name, kind in [part.split()[-2:]] if kind == "BIGINT"}


@settings(max_examples=80)
@given(st.lists(hostile_records, min_size=1, max_size=10), hostile_policies)
def test_no_record_gets_an_exception_out_of_the_audit_and_each_has_a_fate_that_fits_its_columns_w216(
    sent: list[Any], policy: DestinationPolicy
) -> None:
    arrivals = [as_read(offset, *record) for offset, record in enumerate(sent)]
    found = list(recompute(PLACE, policy, [arrivals]))
    assert sorted(row.offset for row in found if row.kind == RECORD) == list(range(len(sent)))
    for row in found:
        for name, value in row._asdict().items():
            if isinstance(value, str):
                value.encode()
            if isinstance(value, int):
                assert abs(value) < (2**63 if name in LONGS else 2**31), name
