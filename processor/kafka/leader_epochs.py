"""Leader epochs beside committed offsets: a log that was cut off behind a position, and has grown past it since, is told from the one that was read.

After an unclean election a log lacks records that were acknowledged. A consumer whose position lies behind its end is told (`_LOG_TRUNCATION`), and so
is one that runs while the leader changes. One that starts later, at a committed offset that is in the log again, would go on there, past records
that nobody has read. The epoch of the leader that wrote the records before that offset is committed with it (KIP-320), but librdkafka 2.16 compares
it only when it hears of a new leader. So it is compared here: where the first record after a start has a later epoch, the one before it is looked at.

An epoch later than that of the last record before a position does no harm, an earlier one would: of what was read the latest counts, and none where
records were passed over.

Belongs here: keeping epochs, and that look. Does not belong here: what follows for the reader.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

import confluent_kafka as ck

from uow.processor.engine.ports import Tp
from uow.processor.kafka.error_table import is_passing

LOOK_BACK: Final = 50
"""Offsets before a position among which its last record is looked for: markers of transactions and removed records are none."""
PATIENCE_S: Final = 10.0
STEP_S: Final = 0.1
UNKNOWN: Final = -1
CUT_OFF: Final = (
    "the log was cut off before position {}, by an unclean election: records that were acknowledged are gone, and what was appended in their place is "
    "not read"
)
TRUNCATED: Final = ck.KafkaError(ck.KafkaError._LOG_TRUNCATION).str()
"""In the text of an error with another code."""


def was_cut(make: Callable[[], Any], place: tuple[str, int], position: int, epoch: int) -> bool:
    """True if the last record before a position was written by a later leader than any that had written there when it was read.

    Args:
        make: Makes the consumer that looks, which is told of the ends of partitions.
        place: Topic and partition.
        position: The committed offset.
        epoch: Committed with it.

    Raises:
        KafkaException: No answer.
    """
    with closing(make()) as consumer:
        start, _ = consumer.get_watermark_offsets(ck.TopicPartition(*place), PATIENCE_S)
        consumer.assign([ck.TopicPartition(*place, max(start, position - LOOK_BACK, 0))])
        last, until = UNKNOWN, time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            record = consumer.poll(STEP_S)
            if record is None:
                continue
            error = record.error()
            if error is None and record.offset() < position:
                last = known(record.leader_epoch())
            elif error is None or not is_passing(error):  # its end, or records that nobody can read
                return last > epoch
    raise ck.KafkaException(ck.KafkaError(ck.KafkaError._TIMED_OUT, f"{place} is not read up to {position}"))


def known(epoch: int | None) -> int:
    """As a number; -1 where the broker told none."""
    return UNKNOWN if epoch is None else epoch


class LeaderEpochs:
    """The latest epochs of the partitions that one worker reads, each with the offset up to which it counts; of one thread."""

    def __init__(self) -> None:
        self._latest: dict[Tp, tuple[int, int]] = {}

    def committed(self, tp: Tp, offset: int, epoch: int | None) -> None:
        """As the broker has it beside the committed offset."""
        self._latest[tp] = offset, known(epoch)

    def see(self, tp: Tp, offset: int, epoch: int | None) -> None:
        """Of the last record that is taken."""
        before, latest = self._latest.get(tp, (0, UNKNOWN))
        self._latest[tp] = max(before, offset + 1), max(latest, known(epoch))

    def before(self, tp: Tp, offset: int) -> int:
        """The latest, of what lies before an offset; -1: unknown."""
        upto, latest = self._latest.get(tp, (0, UNKNOWN))
        return latest if offset <= upto else UNKNOWN

    def place(self, tp: Tp, offset: int, metadata: str = "") -> ck.TopicPartition:
        """A position, with its epoch."""
        return ck.TopicPartition(tp.topic, tp.partition, offset, metadata, self.before(tp, offset))
