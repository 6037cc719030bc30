"""What the tasks of one destination share.

Belongs here: that one value. Does not belong here: what a task does with it (`task`, `outputs`, `shapes`, `restore`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from processor.core.partition import Place
from processor.core.room import PLAN_BYTES
from processor.engine.agreement import Agreement
from processor.engine.young import NO_REPLAY, ReplayLimits
from schemas.framing import single_object_header
from topics.catalogue import RECORD_LIMIT_BYTES, DestinationTopics
from topics.partitioner import partition_for
from topics.paths import PathMap
from topics.policies import DestinationPolicy

INPUT_LIMIT_BYTES = 1_048_588
"""The broker's default record limit."""


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What the tasks of one destination share.

    Attributes:
        destination: Its name.
        topics: Names of its topics.
        policy: Its settings.
        partitions: Partitions of `D.components`.
        unit_header: Framing that goes before a unit's Avro body.
        outcome_header: The same for an `Outcome`.
        answer_header: The same for an `Answer`.
        record_limit_bytes: Largest record that producer and topics take (W-114).
        input_limit_bytes: Largest record that `D.components` takes; what is sent on must fit it again.
        partition_for: Which partition of how many a key belongs to (line 6).
        replay: How much input a restore may read again.
        agreement: What all workers of the destination are told alike; None where nothing is recorded: for who looks, and in tests.
        paths: The path map, under path routing.
        remembered_bytes: What closed ids may take in a restore; a running worker keeps those of all partitions within it.
        plan_bytes: What the groups that one plan closes may weigh (`processor.core.room`).
    """

    destination: str
    topics: DestinationTopics
    policy: DestinationPolicy
    partitions: int
    unit_header: bytes
    outcome_header: bytes
    answer_header: bytes = single_object_header("Answer")
    record_limit_bytes: int = RECORD_LIMIT_BYTES
    input_limit_bytes: int = INPUT_LIMIT_BYTES
    partition_for: Callable[[bytes, int], int] = partition_for
    replay: ReplayLimits = NO_REPLAY
    agreement: Agreement | None = None
    paths: PathMap | None = None
    remembered_bytes: int = sys.maxsize
    plan_bytes: int = PLAN_BYTES

    def place(self, partition: int) -> Place:
        """The place of one of its partitions."""
        partition_for = self.partition_for if self.paths is None else self.paths.partition_for(partition)
        return Place(self.destination, self.topics.components, partition, self.partitions, partition_for)
