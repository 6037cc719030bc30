"""The state of a strict partition: every transition (S-32)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from uow.topics.order_state import HANGING_MS, TOLERATED_MS, OrderState, Seen, hangs, order_of

FLOWS = Seen(position=5, stable=9, end=9, now=100_000)
WAITS = replace(FLOWS, position=9, end=12, stable_since=100_000 - TOLERATED_MS - 1)


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        (FLOWS, OrderState.OK),
        (replace(FLOWS, position=9), OrderState.OK),  # empty
        (WAITS, OrderState.BLOCKED_TRANSACTION),
        (replace(WAITS, stable_since=100_000 - TOLERATED_MS), OrderState.OK),  # every commit takes a moment
        (replace(WAITS, stable_since=0), OrderState.OK),  # it moves
        (replace(WAITS, position=8), OrderState.OK),  # there is something to read before
        (replace(WAITS, stable=12), OrderState.OK),  # it has ended
        (replace(FLOWS, failed_since=1), OrderState.BLOCKED_HANDLER),
        (replace(WAITS, failed_since=1), OrderState.BLOCKED_HANDLER),
        (replace(FLOWS, failed_since=1, is_stopped=True), OrderState.STOPPED),
        (replace(WAITS, is_stopped=True), OrderState.STOPPED),
    ],
)
def test_state_follows_from_what_is_seen(seen: Seen, state: OrderState) -> None:
    found = order_of(seen)
    assert found.state is state
    assert found.position == seen.position
    assert (state is OrderState.OK) == (not found.cause and not found.since) or not seen.cause


def test_cause_and_moment_come_along() -> None:
    assert order_of(replace(FLOWS, failed_since=7, cause="boom")).cause == "boom"
    assert "began at offset 9 is open, 3 offsets wait" in order_of(WAITS).cause
    assert order_of(WAITS).since == WAITS.stable_since


def test_a_transaction_hangs_once_it_is_older_than_it_can_be() -> None:
    """S-09: the coordinator looks every ten seconds."""
    assert not hangs(0, 10**12, 10_000)
    assert not hangs(1_000, 1_000 + 10_000 + HANGING_MS, 10_000)
    assert hangs(1_000, 1_001 + 10_000 + HANGING_MS, 10_000)
