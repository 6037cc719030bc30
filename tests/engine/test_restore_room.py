"""A restore for which there is no room ends early, and says how much it needs (R-73)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import pytest

from tests.core.script import context_of, policy_of
from tests.engine.restored_logs import Logs
from tests.fake_record import INPUT, FakeRecord
from uow.processor.engine.memory_limit import RestoreRoom, memory_of_rows
from uow.processor.engine.ports import Blocked, Stretch, Tp
from uow.processor.engine.replayable import NO_REPLAY
from uow.processor.engine.restore import live_rows, restore
from uow.processor.engine.task import PartitionTask

CONTEXT = context_of(policy_of(), replay=NO_REPLAY)
OTHER = Tp(INPUT.topic, INPUT.partition + 1)


def filled(groups: int, size: int = 200, closed: int = 0) -> tuple[Logs, PartitionTask]:
    """Open groups of two components each, and the rows and tombstones of others, which have closed since."""
    task, logs = PartitionTask(INPUT, CONTEXT), Logs(INPUT)
    names = [b"%06d" % number for number in range(closed + groups)]
    firsts, rest = names[:closed], names[closed:]
    said = [(name, 1, False) for name in firsts]
    said += [(name, seq, False) for name in rest for seq in (1, 2)]
    said += [(name, 2, True) for name in firsts]
    for offset, (name, seq, is_end) in enumerate(said):
        headers = [("uow-id", name), ("uow-seq", b"%d" % seq), ("uow-end", b"true" if is_end else b"false")]
        record = FakeRecord(offset, headers, b"v" * size, name)
        logs.take_input([record])
        logs.add(task.process([record]))
    return logs, task


def room(limit_bytes: int) -> RestoreRoom:
    """So many bytes are left."""
    found = RestoreRoom(1_000_000)
    found.taken[OTHER] = found.bytes_for([INPUT]) - limit_bytes
    return found


def restored(logs: Logs, room: RestoreRoom) -> PartitionTask:
    return restore(logs, {INPUT.topic: CONTEXT}, [INPUT], room=room)[INPUT]


@pytest.mark.parametrize("size", [0, 10, 200, 5_000])
def test_rows_tell_what_their_groups_will_take(size: int) -> None:
    logs, task = filled(30, size)
    log = Tp(CONTEXT.topics.groups_changelog, INPUT.partition)
    assert memory_of_rows(live_rows(logs, [log])[log]) == pytest.approx(task.memory_bytes, rel=0.1)


def test_what_does_not_fit_is_refused_with_rows_bytes_and_the_limit_that_would_do_r73() -> None:
    logs, task = filled(30)
    with pytest.raises(Blocked) as raised:
        restored(logs, room(task.memory_bytes * 2 // 3))
    rows, needed, held, limit, enough = (
        int(each.replace(",", "")) for each in re.findall(r"\b\d[\d,]*", str(raised.value))
    )
    assert rows == 60
    assert needed == pytest.approx(task.memory_bytes, rel=0.1)
    assert limit == 1_000_000
    assert enough * 0.9 == pytest.approx(needed + held, rel=0.01)  # nothing is paused below nine tenths


def test_the_limit_that_would_do_is_one_for_all_that_do_not_fit_r73() -> None:
    logs, task = filled(30)
    small = room(task.memory_bytes * 2 // 3)
    small.refused = {Tp(INPUT.topic, 9): 500_000, OTHER: 1}
    with pytest.raises(Blocked, match="those that do not fit either need 500,000, and") as raised:
        restored(logs, small)
    (enough,) = (int(each.replace(",", "")) for each in re.findall(r"raise it to ([\d,]+)", str(raised.value)))
    assert enough * 0.9 == pytest.approx(task.memory_bytes + small.taken[OTHER] + 500_000, rel=0.01)
    assert small.refused[INPUT] == pytest.approx(task.memory_bytes, rel=0.1)


class Counting(Logs):
    """Counts the records that are read."""

    count = 0

    def read(self, ranges: Mapping[Tp, tuple[int, int]]) -> Iterator[Stretch]:
        for stretch in super().read(ranges):
            self.count += len(stretch[1])
            yield stretch


def test_it_ends_before_all_is_read() -> None:
    logs, task = filled(300)
    counting = Counting(INPUT)
    counting.__dict__.update(logs.__dict__)
    with pytest.raises(Blocked, match="600 rows"):
        restored(counting, room(task.memory_bytes // 4))
    assert counting.count < 250


def test_what_fits_is_restored() -> None:
    logs, task = filled(30)
    assert restored(logs, room(task.memory_bytes * 11 // 10)).groups.keys() == task.groups.keys()


def test_rows_of_groups_that_have_closed_count_as_nothing() -> None:
    logs, task = filled(30, closed=300)
    assert restored(logs, room(2 * task.memory_bytes)).groups.keys() == task.groups.keys()


def test_a_partition_that_is_restored_anew_is_not_counted_twice() -> None:
    logs, task = filled(30)
    small = room(task.memory_bytes * 11 // 10)
    small.taken[INPUT] = task.memory_bytes
    assert restored(logs, small).memory_bytes == task.memory_bytes
