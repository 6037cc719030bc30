"""A destination whose input is carried to another cluster by a plain copier: what holds there, and what does not (W-111).

The copier keeps key, value, headers and partition number, as MirrorMaker does. Offsets are the copy's own, since transaction markers stay
behind, append times are the other broker's, and a record may come twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from random import Random
from uuid import uuid4

import pytest

from tests.core.script import T0, TOPICS, context_of, is_unit, policy_of, unit_of
from tests.fake_record import FakeRecord
from uow.processor.engine.ports import Output, Tp
from uow.processor.engine.task import PartitionTask
from uow.topics import admin
from uow.topics.partitioner import partition_for
from uow.topics.policies import DuplicatePolicy

PARTITIONS, LATER_MS = 3, 40_000
Logs = dict[int, list[FakeRecord]]


@pytest.fixture
def original() -> Logs:
    """Forty units of three, shuffled, among plain records. Every other offset is a marker's."""
    rnd = Random(5)
    logs: Logs = defaultdict(list)
    components = [(b"order-%d" % number, seq) for number in range(40) for seq in (1, 2, 3)]
    rnd.shuffle(components)
    for key, seq in components:
        headers: list[tuple[str, bytes | None]] = [("uow-id", key), ("uow-seq", b"%d" % seq), ("colour", b"blue")]
        headers += [("uow-end", b"true")] * (seq == 3) + [("uow-component-id", uuid4().hex.encode())]
        log = logs[partition_for(key, PARTITIONS)]
        log.append(FakeRecord(2 * len(log), headers, b"%b/%d" % (key, seq), key, T0 + len(log)))
        if rnd.random() < 0.2:
            log.append(FakeRecord(2 * len(log), [], b"newsletter", b"reader", T0 + len(log)))
    return logs


def carried(logs: Logs, partition_of: dict[int, int] | None = None, repeat_every: int = 0) -> Logs:
    """What the copier writes."""
    copies: Logs = defaultdict(list)
    for partition, records in logs.items():
        target = copies[partition if partition_of is None else partition_of[partition]]
        for number, record in enumerate(records):
            for _ in range(2 if repeat_every and number % repeat_every == 0 else 1):
                at = record.at + LATER_MS
                target.append(FakeRecord(len(target), record.headers_, record.value_, record.key_, at))
    return copies


def assembled(logs: Logs, partitions: int = PARTITIONS, **policy: object) -> list[Output]:
    """All outputs of the destination, by partition and in order."""
    outputs = []
    for partition, records in sorted(logs.items()):
        task = PartitionTask(Tp(TOPICS.components, partition), context_of(policy_of(**policy), partitions))
        outputs += task.process(records).outputs
    return outputs


def content(outputs: Iterable[Output]) -> Sequence[object]:
    """Where each output goes and what it says, without times and source coordinates."""
    said: list[object] = []
    for output in outputs:
        told: object = (output.value, output.headers)
        if is_unit(output):
            told = (
                [(each.seq, each.key, each.value, each.headers) for each in unit_of(output).components],
                output.headers,
            )
        said.append((output.topic, output.partition, output.key, told))
    return said


def test_copied_components_make_the_same_units_under_the_same_unit_ids_w111(original: Logs) -> None:
    """W-90: a unit's id hangs on the end component's id, not on where it lies; so whoever reads from both sides can tell."""
    here, there = assembled(original), assembled(carried(original))
    assert sum(map(is_unit, here)) == 40
    assert content(here) == content(there)


def test_a_copier_that_repeats_records_changes_nothing_w111(original: Logs) -> None:
    """W-44; plain records are not known again, so they do come twice."""
    here = [each for each in assembled(original) if is_unit(each)]
    again = assembled(carried(original, repeat_every=4), duplicate_policy=DuplicatePolicy.DROP_IDENTICAL)
    assert content(here) == content(each for each in again if is_unit(each))


def test_times_and_coordinates_are_those_of_the_copy_w111(original: Logs) -> None:
    """Deadlines count from the append time there: a mirror that lags gives a group that much more time."""
    here_and_there = (
        [unit_of(each) for each in assembled(log) if is_unit(each)] for log in (original, carried(original))
    )
    for here, there in zip(*here_and_there, strict=True):
        assert there.opened_at == here.opened_at + LATER_MS
        assert [each.source.offset for each in there.components] != [each.source.offset for each in here.components]


def test_with_another_partition_count_components_are_out_of_place_w111(original: Logs) -> None:
    """Nothing is mixed: line 6 sends each to where its id belongs there. But order per key is no longer the original's."""
    outputs = assembled(carried(original, {0: 0, 1: 1, 2: 3}), partitions=4)
    assert any(output.topic == TOPICS.components for output in outputs)


@pytest.mark.parametrize("count", [3, 4])
def test_a_mirror_with_another_partition_count_is_a_deviation_w111(count: int) -> None:
    counts = {"megazon.components": 3, "west.megazon.components": count, "west.other": 9, "east.megazon.components": 7}
    found = admin.check_mirrors(counts, "megazon.components", ("west.", "north."))
    assert [(each.topic, each.expected, each.actual) for each in found] == [("west.megazon.components", "3", "4")] * (
        count != 3
    )
