"""Events of a round with their times, for the report's timeline.

Belongs here: events, and the log that threads write them to. Does not belong here: drawing (`page`).
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
    """One event.

    Attributes:
        at: Epoch seconds.
        lane: Whom it affected: a worker's name, `broker`, `network` or `group`.
        what: `start`, `ready`, `end`, or a fault's name.
        lasts_s: Duration; 0 for a moment.
        detail: Details, for people.
    """

    at: float
    lane: str
    what: str
    lasts_s: float = 0.0
    detail: str = ""


@dataclass
class EventLog:
    """Collects events from any thread, and the number of records sent at each time."""

    events: list[Event] = field(default_factory=list)
    sent: list[tuple[float, int]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, lane: str, what: str, lasts_s: float = 0.0, detail: str = "") -> None:
        """Adds an event that ends now."""
        with self._lock:
            self.events.append(Event(time.time() - lasts_s, lane, what, lasts_s, detail))

    def sample(self, sent: int) -> None:
        """Adds the number of records that the load has sent so far."""
        self.sent.append((time.time(), sent))
