"""Counts of records, and the list of changes and effects since the last plan, from which the next one is made.

Belongs here: the values. Does not belong here: who fills them (`partition_state`, `fast_path`), and plans (`uow.processor.engine.task`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from uow.processor.core.changes import Closed, Effect
from uow.processor.core.columns import Record
from uow.processor.core.group import Group
from uow.processor.core.strays import Stray
from uow.schemas.records import Attributes, UnitOutcome


@dataclass(slots=True)
class Counts:
    """Where records went (EN-10).

    received = held + joined + duplicate + rejected + passed + ignored, and held = delivered + expired + cancelled + failed + open. Counted since the
    partition was assigned; what a restore found counts as received and held.

    Attributes:
        held: Components, and pieces of those that are not whole yet.
        joined: Pieces that are in a component of which another piece counts as held (B-124).
        rerouted: Of those passed: sent on to their right partition (W-110).
        set_aside: Of those rejected: records at which the code itself failed.
        faulty_groups: Groups closed as failed because the code itself failed at them.
        warned: Groups of which it was told what they lack (B-202).
        mixed: Units delivered whose components are not uniform (W-133).
        notices: Cancel notices made (B-209).
        dropped_notices: Those that were not written: their topic refuses them, or too many wait for it.
        corrected: Units made once more with a component that came late (B-205); of those delivered, that component alone.
    """

    received: int = 0
    held: int = 0
    joined: int = 0
    duplicate: int = 0
    rejected: int = 0
    passed: int = 0
    ignored: int = 0
    delivered: int = 0
    expired: int = 0
    cancelled: int = 0
    failed: int = 0
    rerouted: int = 0
    set_aside: int = 0
    faulty_groups: int = 0
    warned: int = 0
    mixed: int = 0
    notices: int = 0
    dropped_notices: int = 0
    corrected: int = 0

    @property
    def open(self) -> int:
        """Components held in open groups, and pieces of those that are not whole yet."""
        return self.held - self.delivered - self.expired - self.cancelled - self.failed

    def count_closed(self, outcome: UnitOutcome, count: int) -> None:
        """Adds so many components of a group that closed."""
        match outcome:
            case UnitOutcome.COMPLETE | UnitOutcome.PARTIAL:
                self.delivered += count
            case UnitOutcome.EXPIRED:
                self.expired += count
            case UnitOutcome.CANCELLED:
                self.cancelled += count
            case UnitOutcome.FAILED:
                self.failed += count
            case _:
                assert_never(outcome)


HeldRow = tuple[Group, int, bool, int, Attributes | None]
"""A component held: its group, number, end mark, source offset, and attributes (None for a plain one). Its body is in the group."""
Outward = tuple[Effect, Record | None, Group | None]
"""An effect with what it is about: the record in hand, or the group."""


@dataclass(slots=True)
class Happened:
    """Changes and effects of a stretch of events, in order.

    Attributes:
        held: Components held, but not plain ones of groups that do not list them (`Group.lists_plain`).
        closed: Groups closed, in order, with what is remembered of them; the group is None where nothing was held.
        not_held: Source offsets that were not held: passed, refused, dropped, rerouted.
        effects: For the world, in order.
        amended: Groups that a command or a warning changed and left open then.
        removed: Components that a command took out of groups, in order: group, number, and how many of the group were held before it came.
        pieces: Pieces of components held, in order: group and slot.
        joined: Pieces whose component is held now, in order: group and slots.
        erased: Groups of which a component lost its payload: all of their rows are written anew.
        recycled: Components without a group that joined one, or were refused: their rows go.
        commands: Ids of commands decided, with their append times: what the ledger must remember.
        kept: Groups whose components are kept for corrections of their units from now on (B-205).
        let_go: Groups whose components are kept no longer.
        credits: Rules whose next complete group need not wait (True), or of which one did not (False).
        live: Rows that open groups have taken, by rule and routing name.
    """

    held: list[HeldRow] = field(default_factory=list)
    closed: list[tuple[Group | None, Closed]] = field(default_factory=list)
    not_held: list[int] = field(default_factory=list)
    effects: list[Outward] = field(default_factory=list)
    amended: list[Group] = field(default_factory=list)
    removed: list[tuple[Group, int, int]] = field(default_factory=list)
    pieces: list[tuple[Group, int]] = field(default_factory=list)
    joined: list[tuple[Group, list[int]]] = field(default_factory=list)
    erased: list[Group] = field(default_factory=list)
    recycled: list[Stray] = field(default_factory=list)
    commands: list[tuple[bytes, int]] = field(default_factory=list)
    kept: list[Group] = field(default_factory=list)
    let_go: list[Group] = field(default_factory=list)
    credits: dict[str, bool] = field(default_factory=dict)
    live: dict[str, str] = field(default_factory=dict)
