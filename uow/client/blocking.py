"""A partition that stands still at one record, and when it is tried again (S-12, S-14). Pure.

The reason may pass, so the record is tried again by itself, first soon, then seldom; nothing behind it is handed out meanwhile. That it stands, and
why, is written beside the committed offset, where `uow doctor` reads it.

Belongs here: the block, and its text. Does not belong here: pausing and trying (`uow.client.consumption`), and what a block means for a
partition's state (`uow.topics.order_state`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

RETRY_S: Final = (1.0, 5.0, 15.0, 60.0, 300.0)
"""Wait before a record that failed is tried again, by the number of tries that failed."""
CAUSE_CHARS: Final = 300
"""Most that is kept of a cause."""
CAUSE_BYTES: Final = 600
"""Most of it in the text, each as three characters at most: a broker takes 4096 beside an offset, and half are for deliveries."""
_TEXT: Final = re.compile(r"b1;([0-9]{1,19});([0-9]{1,19});([01]);([0-9]{1,9});([A-Za-z0-9_.~%-]*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Block:
    """A partition stands at a record that failed.

    Attributes:
        position: Offset of that record.
        since: When it failed first, epoch ms.
        failures: How many times in a row.
        is_stopped: True if it counts as stopped (`auto_stop_on_failure`).
        cause: The last failure.
        retry_at: When it is tried again, monotonic seconds; does not outlive the process.
    """

    position: int
    since: int
    failures: int
    is_stopped: bool
    cause: str
    retry_at: float = 0.0


class OrderBlocked(NamedTuple):
    """A partition began to stand still at a record: what a listener gets (S-12).

    Attributes:
        topic: Where.
        partition: Its partition.
        position: Offset of the record.
        cause: Why.
        is_stopped: True if it counts as stopped (`auto_stop_on_failure`).
    """

    topic: str
    partition: int
    position: int
    cause: str
    is_stopped: bool

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} is {'stopped' if self.is_stopped else 'blocked'} at {self.position}: {self.cause}"


def blocked_again(
    before: Block | None, position: int, cause: str, is_stopped: bool, now_ms: int, monotonic: float
) -> Block:
    """The block after one more failure at a position."""
    failures, since = 0, now_ms
    if before is not None and before.position == position:
        failures, since = before.failures, before.since
    wait_s = RETRY_S[min(failures, len(RETRY_S) - 1)]
    return Block(position, since, failures + 1, is_stopped, cause[:CAUSE_CHARS], monotonic + wait_s)


def write_block(block: Block | None) -> str:
    """The block as text for the metadata of a committed offset; empty for none."""
    if block is None:
        return ""
    cause = quote(block.cause.encode(errors="replace")[:CAUSE_BYTES], safe="")
    return f"b1;{block.position};{block.since};{int(block.is_stopped)};{block.failures};{cause}"


def read_block(text: str, committed: int) -> Block | None:
    """The block that `write_block` wrote; None for any other text, and for one that the committed offset has passed.

    Args:
        text: Any program that may commit for the group may have written it.
        committed: The offset it stands beside.
    """
    found = _TEXT.fullmatch(text)
    if found is None or int(found[1]) < committed:
        return None
    position, since, is_stopped, failures, cause = found.groups()
    return Block(int(position), int(since), int(failures), is_stopped == "1", unquote(cause, errors="replace"))
