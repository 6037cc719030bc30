"""When the group's coordinator was last heard of, so that work stops before the partitions may be given away (ER-18, S-29).

Belongs here: reading that from librdkafka's statistics, the only source. Does not belong here: the reaction (`source`, and of readers
`uow.client.consumption`).

A worker that is cut off from the coordinator alone can still read, and write: the broker refuses its offsets once the group has moved on
(ER-02), so nothing doubles. But what it does from then on is for nothing, and what it prepared is thrown away. Answers to the handshake of
a new connection do not count: a process that accepts connections need not be a coordinator that works.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

MARGIN = 0.2
"""Share of the session time-out that is left when work stops: the coordinator counts from when a heartbeat came, we from its answer."""

_NO_CONTACT = ("ApiVersion", "SaslHandshake", "SaslAuthenticate", "Metadata", "FindCoordinator")


class CoordinatorLiveness:
    """The last sign of life of the coordinator, by the statistics of a group's member; asked before each poll.

    Args:
        session_timeout_ms: Of the member.
        monotonic: Seconds, from anywhere.
    """

    def __init__(self, session_timeout_ms: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = session_timeout_ms / 1000 * (1 - MARGIN)
        self._monotonic = monotonic
        self._heard = math.inf  # not a member yet: there is nothing to lose
        self._shift = math.inf
        self._answers = self._others = 0

    @property
    def silent_s(self) -> float:
        """Seconds since the coordinator's last answer."""
        return self._monotonic() - self._heard

    @property
    def complaint(self) -> str | None:
        """The reason why nothing can be done just now; None while the coordinator is heard."""
        if self._heard == math.inf:
            return "not a member of the consumer group yet"
        return f"nothing heard of the group's coordinator for {self.silent_s:.1f} s" if self.is_lost else None

    @property
    def is_lost(self) -> bool:
        """The coordinator has been silent for the session time-out less a margin."""
        return self.silent_s > self._limit_s

    def renew(self) -> None:
        """Partitions were assigned just now, hence the coordinator was heard."""
        self._heard = self._monotonic()

    def on_statistics(self, statistics: Mapping[str, Any]) -> None:
        """Takes the statistics of librdkafka's `stats_cb`. They may have waited while we worked, so their own clock dates them."""
        made = statistics["ts"] / 1e6
        self._shift = min(self._shift, self._monotonic() - made)
        coordinator = statistics["brokers"].get("GroupCoordinator")
        if coordinator is None or self._heard == math.inf:
            return
        answers, others = coordinator["rx"], sum(coordinator["req"].get(name, 0) for name in _NO_CONTACT)
        if answers - self._answers > max(0, others - self._others) and coordinator["rxidle"] >= 0:
            self._heard = max(self._heard, made + self._shift - coordinator["rxidle"] / 1e6)
        self._answers, self._others = answers, others
