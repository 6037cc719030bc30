"""The checkpoint's own files say what a batch reads (W-127)."""

from __future__ import annotations

import json
from pathlib import Path

from uow.spark_sink.checkpoint import PlannedBatch, StreamCheckpoint

BATCH = PlannedBatch(
    {"u": {"0": 5, "1": 7}, "r": {"0": 3}}, {"u": {"0": 9, "1": 7}, "r": {"0": 3}, "new": {"0": 2}}, False
)


def test_topics_without_new_offsets_are_no_part_of_a_batch() -> None:
    assert BATCH.topics == {"u", "new"}


def test_bounds_are_those_of_all_offsets_or_of_the_ones_that_were_reached() -> None:
    assert BATCH.bounds(None) == (0, 8)
    assert BATCH.bounds({}) is None
    assert BATCH.bounds({"u": {"0": 6}}) == (5, 6)
    assert BATCH.bounds({"u": {"0": 100}, "r": {"0": 100}}) == (5, 8)
    assert BATCH.bounds({"u": {"0": 4, "1": 6}}) is None


def test_a_checkpoint_tells_planned_from_done(tmp_path: Path) -> None:
    checkpoint = StreamCheckpoint(tmp_path)
    assert (checkpoint.planned, checkpoint.offsets(checkpoint.planned)) == (-1, {})
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"abc"}')
    for number, end in enumerate((4, 9, 12)):
        (tmp_path / "offsets" / str(number)).write_text(
            f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps({"u": {"0": end}})}'
        )
        (tmp_path / "offsets" / f".{number}.crc").write_text("")
    assert (checkpoint.id, checkpoint.planned) == ("abc", 2)
    assert checkpoint.batch(1, is_repeated=True) == PlannedBatch({"u": {"0": 4}}, {"u": {"0": 9}}, True)
    assert checkpoint.batch(0, is_repeated=False).start == {}
