"""Repeated log lines while a broker is gone, thinned out: each kind now and then, with the number left out.

Every handle tries every broker several times a second and logs each try. Belongs here: which lines are alike, and when one is due again.
Does not belong here: the meaning of a line (`uow.processor.kafka.doubt` gets each of them).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

AGAIN_S = 30.0
"""After so many seconds a similar line is logged again."""

KINDS = 1_000
"""Most kinds of lines that are counted separately."""

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
        """The text to log for this line, with the number of similar lines left out since the last one; None: log nothing."""
        kind, now = _NUMBERS.sub("#", text), self._monotonic()
        said, left_out = self._said.get(kind, (now - AGAIN_S, 0))
        if now - said < AGAIN_S:
            self._said[kind] = said, left_out + 1
            return None
        if len(self._said) >= KINDS:
            self._said.clear()
        self._said[kind] = now, 0
        return f"{text} ({left_out} more like it in {now - said:.0f} s)" if left_out else text
