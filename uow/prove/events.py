"""What happened when: the raw material of the report's timeline.

Belongs here: events, and the notebook that threads write them into. Does not belong here: drawing (`page`).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

BROKER = "broker"
GROUP = "group"
NETWORK = "network"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        at: Epoch seconds.
        lane: Who it befell: a worker's slot, `broker`, `network` or `group`.
        what: `start`, `ready`, `end`, or a fault's name.
        lasts_s: For how long; 0: a moment.
        detail: More, for people.
    """

    at: float
    lane: str
    what: str
    lasts_s: float = 0.0
    detail: str = ""


@dataclass
class Notebook:
    """Takes events from any thread, and how much the load had sent when."""

    events: list[Event] = field(default_factory=list)
    sent: list[tuple[float, int]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, lane: str, what: str, lasts_s: float = 0.0, detail: str = "") -> None:
        """An event that ends now."""
        with self._lock:
            self.events.append(Event(time.time() - lasts_s, lane, what, lasts_s, detail))

    def sample(self, sent: int) -> None:
        """The load has sent so much by now."""
        self.sent.append((time.time(), sent))
