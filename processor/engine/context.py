"""The settings and names that all tasks of one destination share.

Belongs here: that one value. Does not belong here: its use (`task`, `outputs`, `shapes`, `restore`).
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from uow.processor.core.partition_state import PartitionAddress
from uow.processor.core.plan_size import PLAN_BYTES
from uow.processor.engine.group_faults import GroupFaults
from uow.processor.engine.replayable import NO_REPLAY, ReplayLimits
from uow.processor.engine.rule_figures import RuleFigures
from uow.processor.engine.settings_record import RecordedSettings
from uow.processor.engine.target_topics import TargetTopics, no_targets
from uow.schemas.framing import single_object_header
from uow.topics.catalogue import RECORD_LIMIT_BYTES, DestinationTopics
from uow.topics.commands import CommandReader
from uow.topics.grouping import NoRules, RuleTable
from uow.topics.partitioner import partition_for
from uow.topics.path_map import PathMap
from uow.topics.policies import DestinationPolicy
from uow.topics.record_size import INPUT_LIMIT_BYTES


@dataclass(frozen=True, slots=True)
class TaskContext:
    """The settings and names that all tasks of one destination share.

    Attributes:
        destination: Its name.
        topics: Names of its topics.
        policy: Its settings.
        partitions: Partitions of `D.components`.
        unit_header: Framing that goes before a unit's Avro body.
        outcome_header: The same for an `Outcome`.
        answer_header: The same for an `Answer`.
        warning_header: The same for a `DeadlineWarning`.
        record_limit_bytes: Largest record that producer and topics take (W-114).
        input_limit_bytes: Largest record that `D.components` takes; a component that is sent on must fit it again.
        partition_for: Returns the partition of a key, of so many (line 6).
        replay: Bounds on the input that a restore may read again.
        recorded_settings: The settings that all workers must share; None where nothing is recorded: in a reader, and in tests.
        paths: The path map, under path routing.
        remembered_bytes: Memory that closed ids may take in a restore; a running worker keeps those of all partitions together within it.
        rules: The rows of its rules.
        targets: Which of their target topics are away, and what is refused; one for all tasks of a worker.
        faults: Groups at which the code failed; one for all tasks of a worker.
        figures: Of its groups by rule that closed, for metrics.
        refused_commands: How many commands were refused since their senders have no right to them, by reason; one for all tasks of a worker.
        refused_early: Offsets of refused commands that were answered before their turn, by partition; a restore of one keeps them.
        plan_bytes: Most bytes of the groups that one plan closes (`uow.processor.core.plan_size`).
    """

    destination: str
    topics: DestinationTopics
    policy: DestinationPolicy
    partitions: int
    unit_header: bytes
    outcome_header: bytes
    answer_header: bytes = single_object_header("Answer")
    warning_header: bytes = single_object_header("DeadlineWarning")
    record_limit_bytes: int = RECORD_LIMIT_BYTES
    input_limit_bytes: int = INPUT_LIMIT_BYTES
    partition_for: Callable[[bytes, int], int] = partition_for
    replay: ReplayLimits = NO_REPLAY
    recorded_settings: RecordedSettings | None = None
    paths: PathMap | None = None
    remembered_bytes: int = sys.maxsize
    plan_bytes: int = PLAN_BYTES
    rules: RuleTable = field(default_factory=NoRules)
    targets: TargetTopics = field(default_factory=no_targets)
    faults: GroupFaults = field(default_factory=GroupFaults)
    figures: RuleFigures = field(default_factory=RuleFigures)
    refused_commands: Counter[str] = field(default_factory=Counter)
    refused_early: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    @property
    def roll_over_bytes(self) -> int:
        """Bytes, encoded, that the components of a group may have whose numbers are assigned: its unit fits a record then (B-59)."""
        return self.record_limit_bytes * 9 // 10

    @property
    def command_reader(self) -> CommandReader:
        """Reads its commands."""
        return CommandReader(self.destination, self.policy)

    def place(self, partition: int) -> PartitionAddress:
        """The address of one of its partitions."""
        partition_for = self.partition_for if self.paths is None else self.paths.partition_for(partition)
        return PartitionAddress(self.destination, self.topics.components, partition, self.partitions, partition_for)
