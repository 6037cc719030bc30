"""Losses of a partition while all workers are down, each with the words in which a restore must refuse it (ER-20).

Belongs here: damage to logs and offsets. Does not belong here: its time (`simulation`), deletions that do no harm (`checks`).
"""

from __future__ import annotations

from random import Random

from uow.processor.engine.ports import Committed, Tp
from uow.processor.engine.restore import hints
from uow.processor.engine.rows import read_ledger
from uow.processor.sim.checks import Checker
from uow.processor.sim.simulated_kafka import Broker, Log


class Losses:
    """Destroys parts of logs and offsets.

    Args:
        broker: The simulated brokers.
        checker: Knows which parts a restore needs.
        rnd: Random numbers.
    """

    def __init__(self, broker: Broker, checker: Checker, rnd: Random) -> None:
        self._broker, self._checker, self._rnd = broker, checker, rnd

    def draw(self, tps: list[Tp]) -> tuple[Tp, str] | None:
        """Chooses a partition of the input, and the part of it to destroy; None if there is nothing to destroy."""
        losses = [(tp, what) for tp in tps if tp in self._checker.positions for what in self._possible(tp)]
        if not losses:
            return None
        kind = self._rnd.choice(sorted({what for _, what in losses}))
        return self._rnd.choice([loss for loss in losses if loss[1] == kind])

    def _possible(self, tp: Tp) -> list[str]:
        floor, position = self._checker.floor(tp), self._checker.positions[tp]
        end = position.offset or 0
        possible = ["reset", "offset", "offset and ledger"]
        if hints(position).rows:
            possible.append("rows")
        if end < self._broker.log(tp).stable_end:
            possible.append("unread input")
        if floor < end:
            possible += ["replayable input", "ledger", "whole ledger"]
        return possible

    def inflict(self, tp: Tp, what: str) -> str:
        """Destroys it; returns the words that the refusal of a restore must contain."""
        broker, rnd, log = self._broker, self._rnd, self._broker.log(tp)
        floor, end = self._checker.floor(tp), self._checker.positions[tp].offset or 0
        topics = self._checker.topics
        rows = broker.log(Tp(topics.groups_changelog, tp.partition))
        ledger = broker.log(Tp(topics.closed_changelog, tp.partition))
        match what:
            case "reset":
                broker.committed[tp] = Committed(max(0, end + rnd.choice([-3, -1, 2])) if end else 1, "")
                return "the ledger ends at"
            case "offset" | "offset and ledger":
                for each in (tp, Tp(topics.commands, tp.partition)):
                    del broker.committed[each]
                if what != "offset":
                    ledger.cut(ledger.end)
                return "the group has no committed offset, but"
            case "rows":
                rows.cut(rows.end)
                return "it was cut, emptied or deleted"
            case "unread input":
                log.cut(rnd.randint(end + 1, log.stable_end))
                return "above the replay floor" if floor < end else "deleted before they were read"
            case "replayable input":
                log.cut(rnd.randint(floor + 1, end))
                return "above the replay floor"
            case "ledger":
                self._cut_ledger(ledger, floor)
                return "the ledger"
            case _:
                ledger.cut(ledger.end)
                return "has no record left"

    def _cut_ledger(self, ledger: Log, floor: int) -> None:
        """Deletes at least one record that a replay needs."""
        needed = [row for row in ledger.visible(0, ledger.end) if read_ledger(row.value() or b"")[0].to_offset > floor]
        ledger.cut(needed[self._rnd.randrange(len(needed))].offset() + 1)
