"""Planted defects that the simulator was once blind to, or nearly: each breaks one rule of the engine, a guarantee, or what a port promises.

They are registered beside those of `defects`, and caught like them. Those of the adapters, which the simulator replaces, are in
`tests/mock/test_adapter_rules.py` and `tests/broker/test_restore_barrier.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import confluent_kafka as ck

import uow.processor.engine.restore as restoring
import uow.processor.engine.task as running
import uow.processor.kafka.doubt as doubting
from tests.sim.defects import DEFECTS, defect
from uow.processor.core.changes import Closed
from uow.processor.core.gathered import NEVER
from uow.processor.core.group import Group
from uow.processor.engine.outputs import OutputWriter, WrittenOutputs
from uow.processor.engine.owned_partitions import OwnedPartitions
from uow.processor.engine.ports import Meanwhile, Output, Tp
from uow.processor.engine.quarantine import Quarantine
from uow.processor.engine.replay import Selection
from uow.processor.engine.replayable import ReplayableGroups
from uow.processor.engine.shapes import EnvelopeShape
from uow.processor.engine.task import PartitionTask
from uow.processor.engine.turn import TurnBatches
from uow.processor.kafka.doubt import Suspicion
from uow.processor.kafka.sink import KafkaSink
from uow.processor.sim.simulated_ports import SimSource
from uow.topics.policies import ExpirationPolicy

# -- the sink: fence on doubt (ER-11, ER-14, ER-19) -------------------------------------------------------------------


@defect(KafkaSink, "replace")
def producer_is_kept_after_a_clean_abort(original: Any) -> Any:
    """The abort was answered, so everything seems to be known: a request that timed out may still come (ER-11)."""

    def wrong(self: KafkaSink, meanwhile: Meanwhile) -> None:
        try:
            self._producer.abort(2.0)
            self._producer._doubt = ""
        except (ck.KafkaException, RuntimeError):
            self.open(meanwhile)

    return wrong


@defect(doubting, "DOUBTFUL")
def only_broken_connections_are_doubtful(original: Any) -> Any:
    return ("FAIL",)


@defect(Suspicion, "on_line")
def deaf_producer_is_used(original: Any) -> Any:
    """Connections broke while it began: the library holds back the line about the next one."""

    def wrong(self: Suspicion, line: str) -> None:
        original(self, line)
        self.is_deaf = False

    return wrong


@defect(KafkaSink, "_insist")
def full_send_buffer_drops_the_record(original: Any) -> Any:
    """ER-19: back-pressure waits, it loses nothing."""

    def wrong(self: KafkaSink, producer: Any, output: Output, on_delivery: Any = None) -> None:
        topic, partition, key, value, headers = output
        try:
            producer.produce(topic, value, key, partition, on_delivery, None, 0, headers)
        except BufferError:
            return

    return wrong


# -- the driver -------------------------------------------------------------------------------------------------------


@defect(OwnedPartitions, "restore_again")
def commands_are_not_sought_back(original: Any) -> Any:
    """After an abort the components are read again, and the commands between them are not."""

    def wrong(self: OwnedPartitions, tps: Sequence[Tp]) -> None:
        tasks = self._restored(tps)
        self.tasks.update(tasks)
        self._runner.assigned(tasks)
        self._source.seek({tp: task.position for tp, task in tasks.items()})

    return wrong


@defect(Quarantine, "take_due")
def blocked_partition_is_not_tried_again(original: Any) -> Any:
    """One error that passes, or a restore that lasts longer than tombstones, and it stands until the worker is restarted."""
    return lambda self, monotonic: []


@defect(OwnedPartitions, "revoke")
def restore_keeps_what_went_meanwhile(original: Any) -> Any:
    """A partition that went, and came back, is as it was read before: others may have committed there (ER-08)."""

    def wrong(self: OwnedPartitions, tps: list[Tp]) -> list[Tp]:
        gone = original(self, tps)
        self._assignment.revoked.clear()
        return gone  # type: ignore[no-any-return]

    return wrong


@defect(TurnBatches, "_batch")
def what_a_smaller_poll_leaves_is_not_read_again(original: Any) -> Any:
    def wrong(self: TurnBatches, *about: Any, **more: Any) -> Any:
        with patch.object(self._source, "seek", lambda positions: None):
            return original(self, *about, **more)

    return wrong


@defect(OwnedPartitions, "_running")
def restore_resumes_what_is_paused_for_want_of_memory(original: Any) -> Any:
    return lambda self: self._inputs.both(self.unblocked_tasks)


@defect(SimSource, "begin")
def partition_that_was_paused_when_it_went_is_never_read_again(original: Any) -> Any:
    """Found on a broker: a worker thrown out while it restored was given its partitions back, and read nothing from them."""
    return lambda self, positions: self.position.update(positions)


# -- task, rows and replayable groups ----------------------------------------------------------------------------------------


@defect(running, "promotion_rows")
def promoted_components_lose_what_their_headers_said(original: Any) -> Any:
    """`uow-expires-at`, `uow-deliver-at` and `uow-count` are in the attributes of a row, and nowhere else."""
    return lambda group, attributes: original(group, {})


@defect(running, "tombstone_key")
def component_that_a_command_took_out_keeps_its_row(original: Any) -> Any:
    return lambda group, seq: original(group, seq + 1_000_000)


@defect(PartitionTask, "_fail")
def unit_that_fits_no_record_is_remembered_as_delivered(original: Any) -> Any:
    """Its components are in `D.errors`, and the ledger says `complete` (W-115)."""

    def wrong(self: PartitionTask, outward: Any, closed: Any, written: WrittenOutputs) -> Any:
        original(self, outward, closed, written)
        return closed

    return wrong


@defect(ReplayableGroups, "overdue")
def replayable_groups_outlive_their_bounds_but_age(original: Any) -> Any:
    """Nobody keeps within `replay_limit_records` and `replay_limit_bytes` (W-119)."""
    return lambda self, position, fed_bytes, clock: original(self, 0, 0, clock)


@defect(ReplayableGroups, "due_at")
def idle_partition_keeps_its_replayable_groups(original: Any) -> Any:
    """`replay_limit_ms` is heeded when a record comes, and not by the clock."""
    return lambda self: NEVER


# -- restore and replay -------------------------------------------------------------------------------------------------


@defect(Selection, "_by_reading")
def replay_reads_under_the_newest_settings(original: Any) -> Any:
    """The ledger names the reading under which each stretch was read; aliases may have been accepted since, or before."""

    def wrong(self: Selection, records: Sequence[Any]) -> Iterator[tuple[int, Sequence[Any]]]:
        if records:
            yield self._codes[-1], records

    return wrong


@defect(PartitionTask, "replay")
def replay_forgets_what_was_left_in_the_input(original: Any) -> Any:
    """Values that stay (W-117) count to a group's size."""

    def wrong(self: PartitionTask, components: Iterable[Any]) -> None:
        before = set(self.partition.groups)
        original(self, components)
        for group_id in self.partition.groups.keys() - before:
            self.partition.groups[group_id].external_bytes = 0

    return wrong


@defect(restoring, "hints")
def rows_that_the_changelog_lost_are_not_missed(original: Any) -> Any:
    """F23: how many rows there must be stands beside the offset."""
    return lambda committed: original(committed)._replace(rows=None)


@defect(restoring, "_check_first_start")
def lost_offsets_are_taken_for_a_first_start(original: Any) -> Any:
    """ER-20: offsets that expired are no invitation to deliver everything again."""
    return lambda *about: None


# -- what comes out -----------------------------------------------------------------------------------------------------


@defect(OutputWriter, "_refuse")
def refused_records_lose_their_key(original: Any) -> Any:
    """W-37: with everything it came with."""

    def wrong(self: OutputWriter, record: Any, refusal: Any, written: WrittenOutputs) -> None:
        original(self, record, refusal, written)
        written.outputs[-1] = written.outputs[-1]._replace(key=None)

    return wrong


@defect(OutputWriter, "_to_errors")
def components_given_up_lose_the_headers_they_came_with(original: Any) -> Any:
    """W-80."""

    def wrong(self: OutputWriter, component: Any, *more: Any) -> None:
        written: WrittenOutputs = more[-1]
        original(self, component, *more)
        output = written.outputs[-1]
        written.outputs[-1] = output._replace(headers=output.headers[-6:])

    return wrong


@defect(OutputWriter, "_give_up")
def every_expired_group_goes_to_errors(original: Any) -> Any:
    """W-78: only by `expiration_policy = "redirect"`."""

    def wrong(self: OutputWriter, *about: Any) -> None:
        context = self.context
        self.context = replace(context, policy=replace(context.policy, expiration_policy=ExpirationPolicy.REDIRECT))
        original(self, *about)
        self.context = context

    return wrong


@defect(OutputWriter, "_outcome")
def outcome_of_a_group_that_never_opened_is_not_reported(original: Any) -> Any:
    """W-39."""
    return lambda self, group, *more: None if group is None else original(self, group, *more)


@defect(EnvelopeShape, "__call__")
def unit_goes_where_its_key_hashes(original: Any) -> Any:
    """A unit goes to the partition its components came from, which is another one under path routing."""

    def wrong(self: EnvelopeShape, group: Group, closed: Closed, outputs: list[Output]) -> None:
        before = len(outputs)
        original(self, group, closed, outputs)
        outputs[before:] = [output._replace(partition=-1) for output in outputs[before:]]

    return wrong


NAMES = frozenset(name for name, patches in DEFECTS.items() if patches[0][2].__module__ == __name__)
"""Those of this module."""
