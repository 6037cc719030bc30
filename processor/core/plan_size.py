"""How much of a partition's groups one plan may close, so that a transaction, its ledger record and a turn of the poll loop stay bounded.

What is over waits for the next plan, a moment later: nothing is lost or decided in another way by it. A million groups that expire at once
are closed in some hundred transactions, and other partitions are served between them.

Belongs here: what a close, and a header, weighs in bytes. Does not belong here: where a plan is cut (`partition`, `group.hold_rows`).
"""

from __future__ import annotations

import sys
from typing import Final

from uow.topics.headers import MAX_ID_BYTES

PLAN_BYTES: Final = 64 * 1024 * 1024
"""Most that the groups which one plan closes may weigh."""
UNBOUNDED: Final = sys.maxsize
"""For who makes no plans, as the audit."""

LEDGER_SHARE: Final = 8
"""An entry of the ledger counts so many times its bytes: a plan's ledger record stays below an eighth of `PLAN_BYTES`, which its topic takes."""
ENTRY_BYTES: Final = MAX_ID_BYTES + 45
"""At most, and without fingerprints."""
CLOSE_BYTES: Final = 6_400
"""Beside its bytes, for a group and for each of its components that leaves by time or command: some ten thousand a plan, a second of work."""
HEADER_BYTES: Final = 600
"""For each header of a record with many: four times what it takes until the plan is written, though it is five bytes on the wire. A hundred
thousand a plan, half a second of work."""
