"""Groups at which the code failed, in the life of a process."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.script import Story, c, ms, story, told
from uow.processor.core.faulty_groups import GroupFault, Treatment
from uow.processor.core.group import Group
from uow.processor.engine.group_faults import MOST_NAMED, SAME_FAILURE_MS
from uow.processor.engine.outputs import OutputWriter
from uow.processor.engine.ports import Blocked, Output, Refused
from uow.processor.engine.set_aside import SetAsideLimit
from uow.processor.engine.task import PartitionTask
from uow.schemas.error_classes import InternalError
from uow.topics.headers import ID
from uow.topics.policies import ExpirationPolicy

HOUR_MS = 3_600_000


def fail(task: PartitionTask, group: Group, now_ms: int = 0) -> Blocked | None:
    """The task raises at the group."""
    faults = task.context.faults
    faults.of(task.tp).begin().at = group
    cause = Blocked("a defect")
    cause.__cause__ = ArithmeticError("a defect")
    return faults.why_not_without(task.tp, cause, now_ms, SetAsideLimit())


@pytest.mark.parametrize("treatment", [Treatment.AS_BEFORE, Treatment.CLOSED])
def test_a_group_that_is_not_here_yet_is_not_forgotten_by_another_plan(treatment: Treatment) -> None:
    """It opens and is complete within the poll that was restored; meanwhile others are due, and nobody looks for it."""
    played, group = story(closed_max_groups=1), Group(b"a", 1, 0)
    task = played.task
    faults, noted = task.context.faults, task.context.faults.of(task.tp)
    while (b"a", 1) not in noted or noted[b"a", 1].treatment is not treatment:
        assert fail(task, group) is None
    played.send(c(1, id="b"))
    faults.written(task.tp, 0)
    assert noted[b"a", 1].treatment is treatment
    assert task.next_deadline() != 0
    played.send(c(1, id="a", end=True), c(1, id="c", end=True), c(1, id="d", end=True))
    assert len(task.partition.closed) < 3
    faults.written(task.tp, 0)
    assert not noted, "it has closed, though it is not remembered"


def test_a_failure_long_after_another_one_that_passed_is_the_first_of_its_kind() -> None:
    played, group = story(), Group(b"a", 1, 0)
    task = played.task
    faults, noted = task.context.faults, task.context.faults.of(task.tp)
    for now, treatment in ((0, Treatment.AS_BEFORE), (10 * SAME_FAILURE_MS, Treatment.CLOSED)):
        assert fail(task, group, now) is None  # it was restored for so long: that is the second try
        assert noted[b"a", 1].treatment is treatment
    noted.clear()
    for time in range(2):
        assert fail(task, group, time * 2 * SAME_FAILURE_MS) is None
        assert noted[b"a", 1].treatment is Treatment.AS_BEFORE
        faults.written(task.tp, time * 2 * SAME_FAILURE_MS)
        faults.written(task.tp, (2 * time + 1) * SAME_FAILURE_MS)
    assert fail(task, group, 3 * SAME_FAILURE_MS) is None
    assert noted[b"a", 1].treatment is Treatment.CLOSED


def test_what_fails_a_third_time_closes_its_group_however_seldom_it_is_tried() -> None:
    """Its deadline may be looked at every minute, while records are read: it would fail for ever, and no deadline behind it would be met."""
    played, group = story(), Group(b"a", 1, 0)
    task = played.task
    faults, noted = task.context.faults, task.context.faults.of(task.tp)
    for time, treatment in enumerate([Treatment.AS_BEFORE, Treatment.AS_BEFORE, Treatment.CLOSED]):
        assert fail(task, group, time * 2 * SAME_FAILURE_MS) is None
        assert noted[b"a", 1].treatment is treatment
        faults.written(task.tp, time * 2 * SAME_FAILURE_MS)


def test_failures_that_are_far_apart_are_not_counted_together() -> None:
    """Each had passed when the group was tried again: in weeks of a group's life there may be many."""
    group, task, now = Group(b"a", 1, 0), story().task, 0
    faults, noted = task.context.faults, task.context.faults.of(task.tp)
    for wait in [HOUR_MS + 1] * 4 + [HOUR_MS]:
        now += wait
        assert fail(task, group, now) is None
        assert noted[b"a", 1].treatment is Treatment.AS_BEFORE
        faults.written(task.tp, now)
    assert fail(task, group, now + HOUR_MS) is None
    assert noted[b"a", 1].treatment is Treatment.CLOSED


def test_failures_that_are_far_apart_are_not_counted_together_where_nothing_was_written_in_between() -> None:
    """A partition without traffic writes no plan for weeks, and is restored now and then."""
    group, task = Group(b"a", 1, 0), story().task
    noted = task.context.faults.of(task.tp)
    for now in (0, 100 * HOUR_MS, 200 * HOUR_MS):
        assert fail(task, group, now) is None
        assert noted[b"a", 1].treatment is Treatment.AS_BEFORE
    assert fail(task, group, 200 * HOUR_MS + 1) is None
    assert noted[b"a", 1].treatment is Treatment.CLOSED


@pytest.mark.parametrize("is_open_again", [False, True])
def test_a_restore_that_finds_a_group_closed_is_done_with_its_fault_unless_it_is_open(is_open_again: bool) -> None:
    """Nobody was told that the plan was committed. An id may be open under the same generation once it was forgotten."""
    played, group = story(c(1, id="a")), Group(b"a", 1, 0)
    task = played.task
    noted = task.context.faults.of(task.tp)
    for each in (group, group, Group(b"not here yet", 1, 0)):
        assert fail(task, each) is None
    played.send(c(1, id="b"))
    assert len(noted) == 2
    assert task.closed_groups == 1
    again = PartitionTask(task.tp, task.context)
    again.restore(task.position, task.clock, task.partition.closed.order, 0)
    if is_open_again:
        again.restore_group(b"a", 1, 0)
    again.restored()
    assert [*noted] == [(b"a", 1)] * is_open_again + [(b"not here yet", 1)]


@pytest.mark.parametrize("is_at_fault", [True, False])
def test_a_command_is_not_to_blame_where_the_close_of_a_group_at_fault_fails_before_it(
    is_at_fault: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That comes first, in a plan of its own. Else the command itself is."""
    played = story(c(1, id="a"))
    task = played.task
    faults = task.context.faults
    for _ in range(2 * is_at_fault):
        assert fail(task, Group(b"a", 1, 0)) is None
    command = played.command(told("cancel", "a", by="somebody"))

    def failing(*_: Any) -> None:
        raise ArithmeticError("a defect in outputs")

    monkeypatch.setattr(OutputWriter, "_give_up", failing)
    with pytest.raises(ArithmeticError):
        task.process([], [command])
    assert faults.is_of_command(task.tp, [command]) is not is_at_fault


def test_a_group_is_not_left_alone_where_the_record_of_another_one_is_refused() -> None:
    """Several are due in one tick; the unit of one of them cannot be made."""
    played = story(
        c(1, id="a"), c(1, id="b"), incomplete_expiration_ms=1_000, expiration_policy=ExpirationPolicy.DELIVER_PARTIAL
    )
    task = played.task
    faults, noted = task.context.faults, task.context.faults.of(task.tp)
    noted[b"a", 1] = GroupFault(InternalError("a defect"), Treatment.FAILS_AS_UNIT)
    plan = task.tick(ms(10))
    assert plan is not None
    assert noted.closing == [(b"a", 1)]
    refused = {name: [each for each in plan.outputs if (ID, name) in each.headers] for name in (b"a", b"b")}
    assert all(refused.values())
    for name, some in refused.items():
        for each in some:
            assert faults.closes(task.tp, is_single=True, refused=each) is (name == b"a")
    assert faults.closes(task.tp, is_single=True, refused=None), "nobody knows whose it is"


@pytest.mark.parametrize("place", ["D.errors", "D.outcomes"])
@pytest.mark.parametrize("has_reasons_alone", [False, True])
def test_of_several_groups_that_are_closed_only_the_one_whose_record_is_refused_is_left_alone(
    place: str, has_reasons_alone: bool
) -> None:
    """The close of the others is taken: they would wait for it at each try, and be refused with it. What else the plan has is of none of them."""
    task = story(c(1, id="a"), c(1, id="b")).task
    faults, tp = task.context.faults, task.tp
    for name in (b"a", b"b"):
        faults.of(tp)[name, 1] = GroupFault(InternalError("why"), Treatment.CLOSED)
    if has_reasons_alone:
        plan = task.tick(ms(1))
        assert plan is not None
        for each in plan.outputs:
            assert task.context.targets.refuse(each)
        task = again(task)
    plan = task.tick(ms(1))
    assert plan is not None
    assert faults.of(tp).closing == [(b"a", 1), (b"b", 1)]
    refused = next(each for each in plan.outputs if each.topic == place and is_of_first(each))
    assert (refused.key is None) is (has_reasons_alone and place == "D.errors")
    assert faults.closes(tp, is_single=False, refused=refused)
    other = Output("A-D-path-map", 0, b"a", None, [])
    assert not faults.closes(tp, is_single=True, refused=other)
    assert faults.leave_alone(tp, 0, Refused("INVALID_RECORD", tp, refused))
    assert {key: fault.treatment for key, fault in faults.of(tp).items()} == {
        (b"a", 1): Treatment.ALONE,
        (b"b", 1): Treatment.CLOSED,
    }


def is_of_first(output: Output) -> bool:
    """True of a record about group `a`, whose component came first."""
    return (ID, b"a") in output.headers or ("uow-source", b"D.components/0/0") in output.headers


def again(task: PartitionTask) -> PartitionTask:
    """Another task in its place, which holds the same."""
    played = Story(PartitionTask(task.tp, task.context))
    played.send(c(1, id="a"), c(1, id="b"))
    return played.task


def test_where_nobody_knows_which_record_is_refused_it_is_looked_for_once() -> None:
    """The next try writes one record after the other. Where it does not tell either, no record of the groups is taken."""
    task = story(c(1, id="a")).task
    faults, tp = task.context.faults, task.tp
    for treatment in (Treatment.CLOSED, Treatment.ALONE):
        faults.of(tp)[b"a", 1] = GroupFault(InternalError("why"), Treatment.CLOSED)
        faults.of(tp).closing = [(b"a", 1)]
        assert faults.leave_alone(tp, 0, Refused("INVALID_RECORD", tp))
        assert faults.of(tp)[b"a", 1].treatment is treatment


def test_whoever_sees_that_a_group_stands_alone_sees_since_when_and_why_too() -> None:
    """Pages look from another thread, at any moment."""
    seen: list[tuple[str, int, str, int]] = []

    class Watched(GroupFault):
        __slots__ = ()

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "treatment" and value is Treatment.ALONE:
                seen.append((self.why_alone, self.alone_since, self.refusing, self.try_again_at))

    task = story(c(1, id="a")).task
    faults, tp = task.context.faults, task.tp
    output = Output("D.errors", 0, b"a", None, [])
    for now in (7, 100_000):
        faults.of(tp)[b"a", 1] = Watched(InternalError("why"), Treatment.CLOSED)
        faults.of(tp).closing, faults.of(tp).written = [(b"a", 1)], {(b"a", 1): [output]}
        assert faults.leave_alone(tp, now, Refused("INVALID_RECORD", tp, output))
    why = "a broker refuses it: INVALID_RECORD"
    assert seen == [(why, now, "D.errors", now + 60_000) for now in (7, 100_000)]


def test_a_group_that_stands_alone_with_others_that_are_refused_says_that_it_was_not_its_own_record() -> None:
    task = story(c(1, id="a")).task
    faults, tp = task.context.faults, task.tp
    keys = [(b"%d" % number, 1) for number in range(MOST_NAMED + 1)]
    faults.of(tp).update({key: GroupFault(InternalError("why"), Treatment.CLOSED) for key in keys})
    *refused, other = keys
    for number, key in enumerate(refused):
        output = Output("D.errors", 0, b"%d" % number, None, [])
        faults.of(tp).closing, faults.of(tp).written = [key], {key: [output]}
        assert faults.leave_alone(tp, 7, Refused("INVALID_RECORD", tp, output))
    assert {key: (fault.why_alone, fault.tries) for key, fault in faults.of(tp).alone.items()} == {
        **dict.fromkeys(refused, ("a broker refuses it: INVALID_RECORD", 1)),
        other: ("a broker refuses records of others: INVALID_RECORD", 0),
    }


def test_reasons_alone_that_are_refused_are_of_no_group_at_fault_where_none_is_closed() -> None:
    """They are of a group that time gave up; its partition blocks as it does where no group is at fault."""
    task = story(c(1, id="a")).task
    reasons = Output("D.errors", 0, None, None, [("uow-source", b"D.components/0/0")])
    assert not task.context.faults.closes(task.tp, is_single=True, refused=reasons)
