"""Deadlines by the calendar: texts, days, and the hours that come twice or never (B-206)."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pytest

from uow.processor.rules.calendars import Calendar
from uow.processor.rules.paths import ExpressionError


def ms(moment: str) -> int:
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def deadline(text: str, opened: str) -> str:
    return datetime.fromtimestamp(Calendar(text).deadline(ms(opened)) / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


@pytest.mark.parametrize(
    ("text", "opened", "expected"),
    [
        ("17:00, UTC", "2026-11-20T16:59:59.999Z", "2026-11-20 17:00:00"),
        ("17:00, UTC", "2026-11-20T17:00:00Z", "2026-11-20 17:00:00"),
        ("17:00, UTC", "2026-11-20T17:00:00.001Z", "2026-11-21 17:00:00"),
        ("17:00:30, UTC", "2026-11-20T17:00:00Z", "2026-11-20 17:00:30"),
        ("17:00, Europe/Berlin", "2026-11-20T10:00:00Z", "2026-11-20 16:00:00"),
        ("17:00, Europe/Berlin", "2026-07-20T10:00:00Z", "2026-07-20 15:00:00"),
        ("01:00, Pacific/Auckland", "2026-11-20T11:30:00Z", "2026-11-20 12:00:00"),
        ("17:00, America/New_York", "2026-11-21T02:00:00Z", "2026-11-21 22:00:00"),
        ("17:00, UTC, mon-fri", "2026-11-20T18:00:00Z", "2026-11-23 17:00:00"),
        ("17:00, UTC, mon wed", "2026-11-20T18:00:00Z", "2026-11-23 17:00:00"),
        ("17:00, UTC, fri-mon", "2026-11-24T10:00:00Z", "2026-11-27 17:00:00"),
        ("17:00, UTC, sun", "2026-11-20T18:00:00Z", "2026-11-22 17:00:00"),
        ("17:00, UTC, mon-fri, 2026-12-25, 2026-12-28", "2026-12-24T18:00:00Z", "2026-12-29 17:00:00"),
        ("17:00, UTC, 2026-12-25", "2026-12-24T18:00:00Z", "2026-12-26 17:00:00"),
    ],
)
def test_a_deadline_is_the_first_such_moment_that_is_not_before_the_opening(
    text: str, opened: str, expected: str
) -> None:
    assert deadline(text, opened) == expected


@pytest.mark.parametrize(
    ("opened", "expected"),
    [
        ("2026-03-29T00:00:00Z", "2026-03-29 01:30:00"),  # 02:30 is not there: 03:30 in summer time
        ("2026-03-29T01:30:00.001Z", "2026-03-30 00:30:00"),
        ("2026-10-25T00:00:00Z", "2026-10-25 00:30:00"),  # 02:30 comes twice: the first one
        ("2026-10-25T00:30:00.001Z", "2026-10-26 01:30:00"),
        ("2026-10-25T01:10:00Z", "2026-10-26 01:30:00"),
    ],
)
def test_an_hour_that_is_not_there_or_comes_twice_has_one_moment(opened: str, expected: str) -> None:
    assert deadline("02:30, Europe/Berlin", opened) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "17:00",
        "24:00, UTC",
        "7:00, UTC",
        "17:60, UTC",
        "17:00, Europe/Nowhere",
        "17:00, ../../etc/passwd",
        "17:00, /etc/localtime",
        "17:00, UTC, weekdays",
        "17:00, UTC, mon-",
        "17:00, UTC, mon-fri, christmas",
        "17:00, UTC, mon-fri, 2026-02-30",
        "17:00, UTC, mon-fri, 20261225",
        "17:00, UTC, 2026-12-25, mon-fri",
    ],
)
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        Calendar(text)


def test_two_of_one_text_are_equal_and_can_be_sent_to_other_processes() -> None:
    one = Calendar("17:00, Europe/Berlin, mon-fri")
    assert pickle.loads(pickle.dumps(one)) == one == Calendar("17:00, Europe/Berlin, mon-fri")  # noqa: S301


def test_a_moment_behind_all_calendars_is_due_at_once() -> None:
    for opened in (253_370_764_800_000, 1 << 62):
        assert Calendar("17:00, UTC").deadline(opened) == opened
    assert Calendar("17:00, Pacific/Auckland").deadline(0) == 5 * 3_600_000
