"""Deadlines by the calendar: the text of the condition `at(...)` (B-206). Pure, but for time zones, which Python reads from this machine once.

    at(17:00, Europe/Berlin)                                        # daily
    at(17:00, Europe/Berlin, mon-fri, 2026-12-25, 2026-12-26)       # but not on these days
    at(09:30:15, UTC, mon wed fri)

The deadline of a group is the first such moment that is not before the group opened. Where clocks are put forward over that time of day, it is as
long after midnight as if they were not yet; where they are put back, so that it comes twice, it is the first of both (as in RFC 5545).

Belongs here: reading the text, and the moment. Does not belong here: asking the condition (`uow.processor.core.conditions`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from uow.processor.rules.paths import ExpressionError

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_TIME: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?", re.ASCII)
_ZONE: Final = re.compile(r"[A-Za-z0-9_+-]{1,32}(?:/[A-Za-z0-9_+-]{1,32}){0,2}", re.ASCII)
_LAST_MS: Final = 253_370_764_800_000
"""The year 9999, behind which Python has no calendar: who opens then is due at once."""


@dataclass(frozen=True, slots=True)
class Calendar:
    """An `uow.topics.grouping.Calendar`. Two are equal when their texts are.

    Attributes:
        source: What stands between the brackets of `at(...)`.

    Raises:
        ExpressionError: It is no time of day, time zone of this machine, days of the week, and days of the year.
    """

    source: str
    _time: time = field(init=False, repr=False, compare=False)
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)
    _days: frozenset[int] = field(init=False, repr=False, compare=False)
    _holidays: frozenset[date] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        at, zone, *rest = [*(part.strip() for part in self.source.split(",")), ""]
        days = rest[0] if rest and not rest[0][:1].isdigit() else ""
        holidays = [part for part in (rest[1:] if days else rest) if part]
        object.__setattr__(self, "_time", _time(at))
        object.__setattr__(self, "_zone", _zone(zone))
        object.__setattr__(self, "_days", _days(days) if days else frozenset(range(7)))
        object.__setattr__(self, "_holidays", frozenset(map(_date, holidays)))

    def deadline(self, opened_at: int) -> int:
        """The deadline of a group that opened then, both epoch ms: the first such moment that is not before it."""
        if opened_at >= _LAST_MS:
            return opened_at
        day = datetime.fromtimestamp(opened_at / 1000, self._zone).date()
        while True:
            if day.weekday() in self._days and day not in self._holidays:
                moment = datetime.combine(day, self._time, self._zone).astimezone(UTC)
                if (found := int(moment.timestamp()) * 1000) >= opened_at:
                    return found
            day += timedelta(days=1)


def _time(text: str) -> time:
    found = _TIME.fullmatch(text)
    if found is None:
        raise ExpressionError(f"at() needs a time of day, HH:MM or HH:MM:SS, not {text[:50]!r}")
    hour, minute, second = (int(part or 0) for part in found.groups())
    return time(hour, minute, second)


def _zone(text: str) -> ZoneInfo:
    if not _ZONE.fullmatch(text):
        raise ExpressionError(f"at() needs a time zone such as Europe/Berlin, not {text[:50]!r}")
    try:
        return ZoneInfo(text)
    except (OSError, ValueError, LookupError):
        raise ExpressionError(f"there is no time zone {text} on this machine") from None


def _days(text: str) -> frozenset[int]:
    """Days of the week: names with spaces between them, and ranges of names, which may go over the weekend."""
    found: set[int] = set()
    for part in text.split():
        first, dash, last = part.partition("-")
        if first not in _DAYS or (dash and last not in _DAYS):
            raise ExpressionError(f"at() needs days of the week, {' '.join(_DAYS)} or mon-fri, not {part[:50]!r}")
        start = _DAYS.index(first)
        length = (_DAYS.index(last) - start) % 7 if dash else 0
        found.update((start + step) % 7 for step in range(length + 1))
    return frozenset(found)


def _date(text: str) -> date:
    try:
        if len(text) != 10:
            raise ValueError
        return date.fromisoformat(text)
    except ValueError:
        raise ExpressionError(f"at() needs holidays as 2026-12-25, not {text[:50]!r}") from None
