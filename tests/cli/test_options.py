"""Spans and moments as options (P-04)."""

from __future__ import annotations

import click
import pytest

from uow.cli.options import DurationType, TimeType


def test_spans_and_moments_become_milliseconds() -> None:
    assert DurationType().convert("1.5 h", None, None) == 5_400_000
    assert TimeType().convert("1700000000000", None, None) == 1_700_000_000_000
    assert TimeType().convert("2026-03-27T16:58:00+01:00", None, None) == 1_774_627_080_000
    assert TimeType().convert("+2h", None, None) > TimeType().convert("+1h", None, None)


@pytest.mark.parametrize(
    "text", ["", "-1s", "1", "\u0661s", "²s", "9" * 400 + "d", "nan", "1e9s"], ids=lambda text: text[:9] or "empty"
)
def test_what_is_no_span_is_told(text: str) -> None:
    with pytest.raises(click.BadParameter, match="span of time"):
        DurationType().convert(text, None, None)


@pytest.mark.parametrize(
    "text",
    [
        "²" * 12,
        "\u0661" * 12,
        "253402300800000",
        "9" * 400,
        "+99999999999d",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-12:00",
        "1969-01-01",
        "now",
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_moment_is_told(text: str) -> None:
    with pytest.raises(click.BadParameter, match="moment from 1970 to 9999"):
        TimeType().convert(text, None, None)
