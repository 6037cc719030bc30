"""Groups of one partition at which the code itself failed in work that no record asked for: a deadline, a release, a change of a row, an output. Pure.

Such a group is closed as failed, at the next opportunity and without a look at what had failed. Where its unit could not be made, that opportunity comes as
it came before: whatever makes the unit whole belongs to the group that fails. If that fails as well it stands alone: time, commands about its rule and
changes of its row pass it over, until it is tried again.

Belongs here: which these groups are. Does not belong here: closing one (`partition`), when it is tried again (`uow.processor.engine.group_faults`).
"""

from __future__ import annotations

from dataclasses import dataclass

from uow.processor.core.group import Group
from uow.schemas.error_classes import InternalError

GroupKey = tuple[bytes, int]
"""Id and generation."""


@dataclass(slots=True)
class GroupFault:
    """The failure of the code at one group.

    Attributes:
        error: The failure.
        is_of_output: True if its unit could not be made, so that it goes on until a unit of it is to be made again, which fails.
        is_of_restore: True if it could not be restored, so that it is here without what is of its rule: it is closed, or its partition blocks.
        stands_alone: True while nothing is tried with the group.
    """

    error: InternalError
    is_of_output: bool = False
    is_of_restore: bool = False
    stands_alone: bool = False


class FaultyGroups(dict[GroupKey, GroupFault]):
    """Those of one partition, which a restore does not forget.

    Attributes:
        at: The group that is worked on without a record of its own; None: there is none. Where something raises, it is at fault.
        makes_unit: True if that work is its unit.
    """

    __slots__ = ("at", "makes_unit")

    def __init__(self) -> None:
        super().__init__()
        self.at: Group | None = None
        self.makes_unit = False

    def has(self, group: Group) -> bool:
        """True if the code failed at it, and time and commands pass it over."""
        fault = self.get((group.id, group.generation))
        return fault is not None and not fault.is_of_output

    def lacks_rule(self, group: Group) -> bool:
        """True if it is restored without what is of its rule."""
        fault = self.get((group.id, group.generation))
        return fault is not None and fault.is_of_restore

    def failure_of(self, group: Group) -> InternalError | None:
        """The failure for which it is to be closed; None: the code did not fail at it, or it stands alone."""
        fault = self.get((group.id, group.generation))
        return None if fault is None or fault.stands_alone else fault.error

    @property
    def to_be_closed(self) -> list[tuple[GroupKey, InternalError]]:
        """The groups that are to be closed as failed, at once."""
        return [(key, fault.error) for key, fault in self.items() if not (fault.stands_alone or fault.is_of_output)]
