"""Groups of one partition at which the code itself failed in work that no record asked for: a deadline, a release, a change of a row, an output. Pure.

Such a group is tried once more, and closed as failed if it fails again, at the next opportunity and without a look at what had failed. Where its unit could not be made, that opportunity comes as
it came before: whatever makes the unit whole belongs to the group that fails. If that fails as well it stands alone: time, commands about its rule and
changes of its row pass it over, until it is tried again.

Belongs here: which these groups are. Does not belong here: closing one (`partition`), when it is tried again (`uow.processor.engine.group_faults`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Self

from uow.processor.core.group import Group
from uow.schemas.error_classes import InternalError
from uow.topics.output import Output

GroupKey = tuple[bytes, int]
"""Id and generation."""


class Treatment(Enum):
    """How a group is treated at which the code failed."""

    AS_BEFORE = "as before"
    """It failed once, which may pass."""
    FAILS_AS_UNIT = "fails as unit"
    """Its unit could not be made: it goes on until a unit of it is to be made again, which fails."""
    CLOSED = "closed"
    CLOSED_WITHOUT_RULE = "closed without rule"
    """It could not be restored, and is here without what is of its rule: it is closed, or its partition blocks."""
    ALONE = "alone"
    """Nothing is tried with it."""


_CLOSED = (Treatment.CLOSED, Treatment.CLOSED_WITHOUT_RULE)


@dataclass(slots=True)
class GroupFault:
    """The failure of the code at one group, and what follows.

    Attributes:
        error: The failure.
        treatment: How the group is treated.
        failures: How often the code failed while it was treated as before, this time included, each time soon enough after the last one.
        failed_at: When it failed while it was treated as before, the last time (monotonic ms).
        went_on_at: When its partition wrote a plan for the first time since then (monotonic ms); None: it has not.
        tries: How many tries to close it have failed.
        try_again_at: When it is tried again, where it stands alone (monotonic ms).
        alone_since: When it stood alone for the first time (monotonic ms); 0: it never did.
        why_alone: Why it could not be closed, for people.
        refusing: The topic for which a broker refused a record of its close; empty if none is known to.
    """

    error: InternalError
    treatment: Treatment = Treatment.AS_BEFORE
    failures: int = 1
    failed_at: int = 0
    went_on_at: int | None = None
    tries: int = 0
    try_again_at: int = 0
    alone_since: int = 0
    why_alone: str = ""
    refusing: str = ""


class FaultyGroups(dict[GroupKey, GroupFault]):
    """Those of one partition, which a restore does not forget.

    Attributes:
        at: The group that is worked on without a record of its own; None: there is none. Where something raises, it is at fault.
        makes_unit: True if that work is its unit.
        closing: Those that the plan closes as failed that is made, or was made last, until it is written.
        closed: Those that it closes at all.
        written: The records in it by which those are closed as failed.
    """

    __slots__ = ("at", "closed", "closing", "makes_unit", "written")

    def __init__(self) -> None:
        super().__init__()
        self.at: Group | None = None
        self.makes_unit = False
        self.closing: list[GroupKey] = []
        self.closed: list[GroupKey] = []
        self.written: Mapping[GroupKey, list[Output]] = {}

    def begin(self) -> Self:
        """The partition is to be restored, or its plan was written: nothing is worked on."""
        self.at, self.makes_unit, self.closing, self.closed, self.written = None, False, [], [], {}
        return self

    def meet(self, group: Group) -> Group:
        """The same group, which is worked on from now on."""
        self.at = group
        return group

    def of(self, group: Group) -> GroupFault | None:
        """The failure at a group; None: there was none."""
        return self.get((group.id, group.generation))

    def has(self, group: Group) -> bool:
        """True if the code failed at it, and time and commands pass it over."""
        fault = self.of(group)
        return fault is not None and fault.treatment in (*_CLOSED, Treatment.ALONE)

    def is_closed_at_once(self, key: GroupKey) -> bool:
        """True if it is closed without a look at what failed, and not when its unit is to be made."""
        fault = self.get(key)
        return fault is not None and fault.treatment in _CLOSED

    def lacks_rule(self, group: Group) -> bool:
        """True if it is restored without what is of its rule."""
        fault = self.of(group)
        return fault is not None and fault.treatment is Treatment.CLOSED_WITHOUT_RULE

    def failure_of(self, group: Group) -> InternalError | None:
        """The failure for which it is to be closed; None: it is not."""
        fault = self.of(group)
        return None if fault is None or fault.treatment not in (*_CLOSED, Treatment.FAILS_AS_UNIT) else fault.error

    @property
    def alone(self) -> dict[GroupKey, GroupFault]:
        """Those that stand alone. Any thread may ask."""
        return {key: fault for key, fault in [*self.items()] if fault.treatment is Treatment.ALONE}
