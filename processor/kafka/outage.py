"""What is said again and again while a broker is gone, said now and then, with how often.

Every handle tries every broker several times a second, and says so each time. Belongs here: which lines are alike, and when one is due again.
Does not belong here: what a line means (`processor.kafka.doubt` sees each of them).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

AGAIN_S = 30.0
"""A line like one that was said is said again after so long."""

KINDS = 1_000
"""Kinds of lines that are told apart at most."""

_NUMBERS = re.compile(r"\d+")


class Outage:
    """Lines that differ in numbers alone are alike.

    Args:
        monotonic: Seconds, from anywhere.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._said: dict[str, tuple[float, int]] = {}

    def line(self, text: str) -> str | None:
        """What to say of it now, with how many like it were left out since the last one; None: nothing."""
        kind, now = _NUMBERS.sub("#", text), self._monotonic()
        said, left_out = self._said.get(kind, (now - AGAIN_S, 0))
        if now - said < AGAIN_S:
            self._said[kind] = said, left_out + 1
            return None
        if len(self._said) >= KINDS:
            self._said.clear()
        self._said[kind] = now, 0
        return f"{text} ({left_out} more like it in {now - said:.0f} s)" if left_out else text
