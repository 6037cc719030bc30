"""A log that was cut off before a committed offset, and has grown past it, is told by the leader epochs of its records (S-33, F27)."""

from __future__ import annotations

from collections.abc import Sequence

import confluent_kafka as ck
import pytest

from tests.fake_record import INPUT, FakeRecord
from uow.client.ownership import Ownership
from uow.processor.kafka import leader_epochs
from uow.processor.kafka.leader_epochs import LOOK_BACK, UNKNOWN, LeaderEpochs, was_cut


class Log:
    """A consumer of one partition; `records` are (offset, epoch), the others are markers."""

    def __init__(self, start: int, end: int, records: Sequence[tuple[int, int]], *, error: int | None = None) -> None:
        self.start, self.end, self.records, self.error = start, end, records, error
        self.waiting: list[FakeRecord] = []
        self.begun, self.is_closed = -1, False

    def get_watermark_offsets(self, tp: ck.TopicPartition, timeout: float) -> tuple[int, int]:
        return self.start, self.end

    def assign(self, tps: Sequence[ck.TopicPartition]) -> None:
        self.begun = tps[0].offset
        self.waiting = [FakeRecord(offset, None, epoch=epoch) for offset, epoch in self.records if offset >= self.begun]
        if self.error is not None:
            self.waiting.insert(0, self.told(self.error))
        self.waiting.append(self.told(ck.KafkaError._PARTITION_EOF))

    def told(self, code: int) -> FakeRecord:
        return FakeRecord(self.end, None, error_=ck.KafkaError(code))

    def poll(self, timeout: float) -> FakeRecord | None:
        return self.waiting.pop(0) if self.waiting else None

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    ("log", "cut"),
    [
        pytest.param(Log(0, 12, [(8, 0), (9, 0), (10, 4)]), False, id="the next leader went on behind it"),
        pytest.param(Log(0, 12, [(4, 0), (5, 4), (9, 4), (10, 4)]), True, id="it wrote before it as well"),
        pytest.param(Log(0, 10, [(4, 0), (5, 4)]), True, id="and there is nothing more"),
        pytest.param(Log(0, 12, [(4, 0), (5, 4), (10, 4)]), True, id="markers lie before it"),
        pytest.param(Log(0, 12, [(4, 0), (10, 4)]), False, id="markers alone tell nothing"),
        pytest.param(Log(10, 12, [(10, 4)]), False, id="retention took what was before it"),
        pytest.param(Log(0, 12, [(9, 4), (10, 4)], error=ck.KafkaError._BAD_MSG), False, id="nobody can read it"),
        pytest.param(Log(0, 12, [(9, 4)], error=ck.KafkaError._TRANSPORT), True, id="a connection broke"),
    ],
)
def test_the_record_before_the_position_tells(log: Log, cut: bool) -> None:
    assert was_cut(lambda: log, INPUT, 10, epoch=3) is cut
    assert log.is_closed


def test_it_looks_at_few_offsets_and_says_so_where_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(0, 1_000, [])
    assert not was_cut(lambda: log, INPUT, 1_000, 0)
    assert log.begun == 1_000 - LOOK_BACK
    monkeypatch.setattr(leader_epochs, "PATIENCE_S", 0.0)
    with pytest.raises(ck.KafkaException):
        was_cut(lambda: log, INPUT, 1_000, 0)


def test_the_latest_counts_up_to_where_it_was_read_until_the_broker_is_asked() -> None:
    epochs = LeaderEpochs()
    assert epochs.place(INPUT, 7).leader_epoch is None
    for offset, epoch in ((6, 3), (4, 2), (5, None)):
        epochs.see(INPUT, offset, epoch)
    assert [epochs.before(INPUT, offset) for offset in (0, 7, 8)] == [3, 3, UNKNOWN]
    place = epochs.place(INPUT, 7, "text")
    assert (place.offset, place.metadata, place.leader_epoch) == (7, "text", 3)
    epochs.committed(INPUT, 5, 1)
    assert [epochs.before(INPUT, offset) for offset in (5, 6)] == [1, UNKNOWN]
    epochs.committed(INPUT, 5, None)
    assert epochs.before(INPUT, 5) == UNKNOWN


def test_a_reader_that_goes_forward_takes_no_epoch_along() -> None:
    """That of the record before is later, or unknown: it would look like a log that was cut off."""
    ownership = Ownership(("t", 0), 5, next=8)
    ownership.see_epoch(3)
    ownership.see_epoch(2)
    assert ownership.row(8).leader_epoch == 3
    assert [ownership.place(offset).leader_epoch for offset in (4, 8, 9)] == [3, 3, None]
    assert ownership.begun_again().epoch == 3
