"""`python defective_client.py DEFECT ROLE NUMBER NAME BOOTSTRAP FOLDER`: a program of a client proof, on a client with a planted defect."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from confluent_kafka import TopicPartition

from uow.client.client_session import ClientSession
from uow.client.consumption import Consumption
from uow.client.forwarding import Hop
from uow.client.ownership import Ownership
from uow.client.redelivery import HandedOut
from uow.client.transaction import Transaction
from uow.prove import client_programs


def positions_apart() -> None:
    """A forwarder commits its positions after what it sends, and not with it."""
    commit, settle = Transaction.commit, Hop._settle

    def without(self: Transaction, positions: Sequence[TopicPartition] = (), *rest: Any) -> None:
        commit(self, (), *rest)

    def late(self: Hop) -> Any:
        rows = self._rows or []
        outcome = settle(self)
        if rows and rows[0][1].offset % 20 == 0:
            self._reader._handle.commit(offsets=[row for _, row in rows], asynchronous=False)  # type: ignore[attr-defined]
        return outcome

    Transaction.commit, Hop._settle = without, late  # type: ignore[method-assign]


def ahead() -> None:
    """An acknowledgement takes along records that were not handed out yet."""
    acknowledge = Consumption.acknowledge

    def more(self: Consumption, ownership: Ownership, offset: int) -> None:
        acknowledge(self, ownership, offset + 5)

    Consumption.acknowledge = more  # type: ignore[method-assign]


def rollback_commits() -> None:
    """What is rolled back is visible."""
    ClientSession.rollback = ClientSession.commit  # type: ignore[method-assign]


def always_new() -> None:
    """Nothing is said to come again."""
    mark = HandedOut.mark

    def new(self: HandedOut, offset: int) -> bool | None:
        mark(self, offset)
        return False

    HandedOut.mark = new  # type: ignore[method-assign]


def not_committed() -> None:
    """An acknowledgement is said to have succeeded, and only now and then does."""
    commit = Consumption._commit_offsets

    def seldom(self: Consumption, rows: list[TopicPartition]) -> None:
        if rows[0].offset % 25 == 0:
            commit(self, rows)

    Consumption._commit_offsets = seldom  # type: ignore[method-assign]


DEFECTS = {
    each.__name__.replace("_", "-"): each
    for each in (positions_apart, ahead, rollback_commits, always_new, not_committed)
}

if __name__ == "__main__":
    DEFECTS[sys.argv.pop(1)]()
    client_programs.main()
