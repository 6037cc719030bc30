"""Which records are read in bulk as a router's (B-30, B-33)."""

from __future__ import annotations

import pytest

from uow.processor.core.layout import Raw
from uow.processor.core.routed_rows import RoutedLayout
from uow.topics.headers import Reading

HEADS = ("uow-id", "uow-rule", "uow-input")


def is_routed(*inputs: bytes | None) -> bool:
    """True if records with these inputs are read in bulk."""
    layout = RoutedLayout.of(HEADS, Reading(), b"source")
    assert layout is not None
    count = len(inputs)
    raw = Raw(range(count), [1_700_000_000_000] * count, [b"UK/1"] * count, [b"v"] * count)
    rows = layout.read(raw, [[b"UK/1"] * count, [b"stock/UK@1"] * count, inputs])
    assert rows is None or [row[2] for row in rows.values()] == list(inputs)
    return rows is not None


def test_records_with_coordinates_are_read_in_bulk() -> None:
    assert is_routed(b"in/0/1", b"in/0/2", b"a.b_c-d/9999999999/9999999999999999999")


@pytest.mark.parametrize(
    "odd",
    [
        b"in/0/2\nin/0/3",
        b"in/0/2\n",
        b"\nin/0/2",
        b"\n",
        b"",
        b"in/0",
        b"in/0/2/",
        b"in/x/2",
        b"a" * 250 + b"/0/2",
        None,
    ],
)
def test_one_without_coordinates_makes_its_poll_be_looked_at_one_by_one(odd: bytes | None) -> None:
    """Also one that would be two records, were all joined to lines."""
    assert not is_routed(b"in/0/1", odd, b"in/0/4")
