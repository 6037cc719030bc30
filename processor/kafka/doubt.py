"""Signs in the log of a transactional librdkafka handle that a request may have been cut, repeated or lost (ER-11, R-75).

Belongs here: which lines mean doubt, and when a handle could hide one. Does not belong here: replacing the handle
(`uow.processor.kafka.transactional_producer`).

Every break of a connection goes through the library's `rd_kafka_broker_fail`, which writes a `FAIL` line, with two exceptions:

- `log.connection.close=false`, and a `log_level` below 6, hide lines for good: settings that contain them are refused.
- A text that equals the one before it, of the same broker, is held back for 30 s (the second time at the earliest). Such a pair can be
  complete before the first transaction: connections break while a handle is initialised. So a handle on which an established connection
  has broken by then is `is_deaf`, and is not used: another one takes its place. On all others the first break is written.

A connection that was never established has other texts, and one of a bootstrap address carries no request of a transaction: a producer
that counted those could not begin while one of many addresses is dead.
"""

from __future__ import annotations

import re

DOUBTFUL = ("FAIL", "REQTMOUT", "TXNERR", "FATAL")
"""Beginnings of the log lines which say that a request may have been cut, repeated or lost."""

LOG_LEVEL = 6
"""The lowest `log_level` at which librdkafka logs broken connections."""

_NEVER_UP = re.compile(r"/bootstrap: |\(after \d+ms in state (INIT|DOWN|TRY_CONNECT|CONNECT|SSL_HANDSHAKE)\b")


class Suspicion:
    """The log of one handle. Each handle has its own, so late lines of a replaced one are ignored.

    Attributes:
        line: The first doubtful line; empty: none.
        is_deaf: An established connection has broken, and the next time it may do so without a line.
    """

    __slots__ = ("is_deaf", "line")

    def __init__(self) -> None:
        self.line = ""
        self.is_deaf = False

    def on_line(self, line: str) -> None:
        """Takes a log line of the handle."""
        if not line.startswith(DOUBTFUL):
            return
        self.line = self.line or line
        self.is_deaf = self.is_deaf or (line.startswith("FAIL") and _NEVER_UP.search(line) is None)

    def has_begun(self) -> None:
        """The handle is initialised: its epoch is new, so nothing that was under way before counts."""
        self.line = ""
