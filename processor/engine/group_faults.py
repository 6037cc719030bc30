"""Groups at which the code itself failed, of all partitions of a worker: how many are closed as failed, and when one that cannot be closed is tried again. No I/O but the log.

Work that time, a rule or a restore asks for is done for one group after the other, and no record is at fault if it raises. The partition is restored, as
after every such failure, and the group is tried once more. If it fails again it is closed as failed: its components go to `D.errors` as `InternalError`. So many a minute, together with the records
that are set aside; then the partition blocks, since a defect that every group meets must not empty it. A group that cannot even be closed stands alone.

Belongs here: these decisions, for the life of a process. Does not belong here: what such a group still gets (`uow.processor.core.faulty_groups`), restoring
(`uow.processor.engine.driver`).
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Sequence

from uow.processor.core.faulty_groups import FaultyGroups, GroupFault, GroupKey, Treatment
from uow.processor.engine.ports import Blocked, Output, RawRecord, Refused, Tp
from uow.processor.engine.set_aside import SetAsideLimit, asks_of, fault_of, named, with_reason
from uow.processor.engine.target_topics import identity
from uow.schemas.error_classes import InternalError

log = logging.getLogger("uow.group_faults")

TRY_AGAIN_MS = (60_000, 300_000)
"""Wait before a group that could not be closed is tried again, by the number of tries that failed: each costs a restore of its partition."""
SAME_FAILURE_MS = 30_000
"""Once its partition has gone on for longer than this, a failure at a group is a new one: what failed had passed."""
MOST_FAILURES = 3
"""This one closes the group however long the partition has gone on: that shows that other work was done, not that what fails was tried."""
MOST_NAMED = 4
"""After so many groups of one plan a broker has refused one after the other, the rest is left alone with the last: each costs two more restores."""
TOGETHER_MS = 3_600_000
"""A failure that comes later than this after the last one is the first again. What fails for good is tried much sooner: a deadline is looked at each minute."""

_PASSING = (MemoryError, OSError)
"""Failures of the machine, for which no group is closed."""


class GroupFaults:
    """The faulty groups of all partitions. Times are monotonic milliseconds."""

    def __init__(self) -> None:
        self._groups: defaultdict[Tp, FaultyGroups] = defaultdict(FaultyGroups)
        self._searched: set[Tp] = set()
        self._named: Counter[Tp] = Counter()
        """Groups whose records were refused since a plan was written, by partition."""

    def of(self, tp: Tp) -> FaultyGroups:
        """Those of one partition."""
        return self._groups[tp]

    def is_of_command(self, tp: Tp, commands: Sequence[RawRecord]) -> bool:
        """True if one of these asked for the work at which the code failed: then that command is at fault, and the group stays as it is."""
        groups = self._groups[tp]
        if any(map(groups.is_closed_at_once, groups.closing)):  # their plan does no more than that
            return False
        if groups.at is None or not any(asks_of(each, groups.at) for each in commands):
            return False
        groups.at, groups.makes_unit = None, False
        return True

    def why_not_without(
        self, tp: Tp, cause: Blocked, now_ms: int, limit: SetAsideLimit, *, is_restore: bool = False
    ) -> Blocked | None:
        """None if the code failed at a group that no record in hand is of: once the partition is restored it goes on without the group.

        Args:
            tp: The partition.
            cause: What was raised.
            now_ms: The time.
            limit: How many records and groups are set aside.
            is_restore: True if it was raised while the partition was restored.

        Returns:
            Why the partition cannot go on, else.
        """
        groups, error = self._groups[tp], fault_of(cause)
        group, groups.at = groups.at, None
        makes_unit, groups.makes_unit, groups.closing = groups.makes_unit, False, []
        if group is None or error is None or isinstance(error, _PASSING):
            return cause
        key = group.id, group.generation
        fault = groups.get(key)
        failures = 0 if fault is None else fault.failures
        if fault is not None and fault.treatment is Treatment.AS_BEFORE:
            is_late = now_ms - fault.failed_at > TOGETHER_MS
            failures = 0 if is_late else failures
            has_gone_on = fault.went_on_at is not None and now_ms - fault.went_on_at > SAME_FAILURE_MS
            fault = None if is_late or (has_gone_on and failures < MOST_FAILURES - 1) else fault
        if fault is None:  # it need not fail again
            groups[key] = GroupFault(InternalError.of(error), failures=failures + 1, failed_at=now_ms)
            log.warning(
                "%s/%d: the code failed at %s, which is tried once more: %s", *tp, named(key), type(error).__name__
            )
            return None
        if fault.treatment is Treatment.AS_BEFORE and (why := limit.take(tp, key, error, now_ms)):
            return with_reason(cause, f": {why}")
        # of one without its rule neither components nor commands may find out; where one stands alone a record has come for it, which is at fault as any other
        if fault.treatment is Treatment.CLOSED_WITHOUT_RULE or (fault.treatment is Treatment.ALONE and not is_restore):
            return cause
        fault.error = InternalError.of(error)
        if is_restore:
            fault.treatment = Treatment.CLOSED_WITHOUT_RULE
        elif fault.treatment is Treatment.AS_BEFORE:
            fault.treatment = Treatment.FAILS_AS_UNIT if makes_unit else Treatment.CLOSED
        elif fault.treatment is Treatment.FAILS_AS_UNIT and not makes_unit:  # it does not come as far any more
            fault.treatment = Treatment.CLOSED
        else:
            self._leave_alone(tp, key, fault, now_ms, f"the code fails: {type(error).__name__}")
        return None

    def _leave_alone(
        self, tp: Tp, key: GroupKey, fault: GroupFault, now_ms: int, why: str, refused: Output | None = None
    ) -> None:
        wait_ms = TRY_AGAIN_MS[min(fault.tries, len(TRY_AGAIN_MS) - 1)]
        fault.tries, fault.try_again_at = fault.tries + 1, now_ms + wait_ms
        fault.alone_since = fault.alone_since or now_ms
        fault.why_alone, fault.refusing = why, refused.topic if refused is not None else ""
        fault.treatment = Treatment.ALONE  # at last: from then on pages, which another thread makes, say the rest
        log.error(
            "%s/%d: %s cannot be closed either: it stays open and is tried again in %d s; the others go on. Cause: %s",
            *tp,
            named(key),
            wait_ms // 1000,
            why,
        )

    def closes(self, tp: Tp, *, is_single: bool, refused: Output | None) -> bool:
        """True if what a broker refuses is of such groups: in a plan of their own, or with the unit of one and `is_single`, one record at most.

        Args:
            tp: The partition.
            is_single: True if the plan is of one record at most.
            refused: The refused record; None: it is not known, and may be theirs.
        """
        groups = self._groups[tp]
        is_own = all(map(groups.is_closed_at_once, groups.closing))
        return (is_own or is_single) and bool(_closed_with(groups, refused))

    def leave_alone(self, tp: Tp, now_ms: int, refusal: Refused) -> bool:
        """The groups of that plan of which a record is refused stand alone, if they have their rules. False if none has.

        Where the record is not known the plan is tried once more: for a while the sink finds out which one it is. If it does not, none of their records is taken.
        Where several are refused in a row the others do not wait for their turn, but are tried again before those: they may not be at fault.
        """
        groups, refused, why = self._groups[tp], refusal.output, f"a broker refuses it: {refusal}"
        if refused is None and tp not in self._searched:
            self._searched.add(tp)
            return True
        self._searched.discard(tp)
        closing, groups.closing = _closed_with(groups, refused), []
        self._named[tp] += refused is not None
        able = [key for key in closing if groups[key].treatment is not Treatment.CLOSED_WITHOUT_RULE]
        for key in able:
            self._leave_alone(tp, key, groups[key], now_ms, why, refused)
        if able and self._named[tp] >= MOST_NAMED:
            for key, fault in groups.items():
                if fault.treatment is Treatment.CLOSED:
                    self._leave_alone(tp, key, fault, now_ms, f"a broker refuses records of others: {refusal}", refused)
                    fault.tries -= 1
        return bool(able)

    def try_again(self, now_ms: int) -> None:
        """Groups whose time has come are to be closed once more."""
        for groups in self._groups.values():
            for fault in groups.values():
                if fault.treatment is Treatment.ALONE and fault.try_again_at <= now_ms:
                    fault.treatment = Treatment.CLOSED

    def written(self, tp: Tp, now_ms: int) -> None:
        """A plan of the partition was written: those that it closed are done with."""
        groups = self._groups[tp]
        for key in groups.closed:
            groups.pop(key, None)
        groups.begin()
        self._searched.discard(tp)
        self._named.pop(tp, None)
        for fault in groups.values():
            fault.went_on_at = now_ms if fault.went_on_at is None else fault.went_on_at

    def forget(self, tp: Tp) -> None:
        """It was taken away."""
        self._groups.pop(tp, None)
        self._searched.discard(tp)
        self._named.pop(tp, None)


def _closed_with(groups: FaultyGroups, refused: Output | None) -> list[GroupKey]:
    """Of the groups that a plan closes those of which it has the refused record; all, if no record is known."""
    if refused is None:
        return groups.closing
    what = identity(refused)
    return [key for key in groups.closing if any(identity(each) == what for each in groups.written.get(key, ()))]
