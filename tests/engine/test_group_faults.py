"""Groups at which the code failed, in the life of a process."""

from __future__ import annotations

import pytest

from tests.core.script import c, story
from uow.processor.core.faulty_groups import Treatment
from uow.processor.core.group import Group
from uow.processor.engine.group_faults import GroupFaults
from uow.processor.engine.ports import Blocked, Tp
from uow.processor.engine.set_aside import SetAsideLimit

TP = Tp("D.components", 0)


def fail(faults: GroupFaults, group: Group) -> Blocked | None:
    """A task raises at the group."""
    faults.of(TP).begin().at = group
    cause = Blocked("a defect")
    cause.__cause__ = ArithmeticError("a defect")
    return faults.why_not_without(TP, cause, 0, SetAsideLimit())


@pytest.mark.parametrize("treatment", [Treatment.AS_BEFORE, Treatment.CLOSED])
def test_a_group_that_is_not_here_yet_is_not_forgotten_by_another_plan(treatment: Treatment) -> None:
    """It opens and is complete within the poll that was restored; meanwhile others are due."""
    faults, group = GroupFaults(), Group(b"a", 1, 0)
    played = story()
    while (b"a", 1) not in faults.of(TP) or faults.of(TP)[b"a", 1].treatment is not treatment:
        assert fail(faults, group) is None
    played.send(c(1, id="b"))
    faults.written(TP, played.task.has_closed)
    assert faults.of(TP)[b"a", 1].treatment is treatment
    played.send(c(1, id="a"))
    faults.written(TP, played.task.has_closed)
    assert faults.of(TP)[b"a", 1].treatment is treatment
    played.send(c(2, id="a", end=True))
    faults.written(TP, played.task.has_closed)
    assert not faults.of(TP)
