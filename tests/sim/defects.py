"""Planted defects: each a mistake that somebody could make in the worker, as a patch for the length of a `with`.

None of it is in the product. Every one must be caught by the simulator (`test_planted_defects.py`); one that is not says that the
simulator is blind there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import confluent_kafka as ck

import uow.processor.core.command as commanding
import uow.processor.engine.restore as restoring
import uow.processor.engine.routed_units as routed
import uow.processor.engine.rows as writing
import uow.processor.engine.task as running
from uow.processor.core.changes import Closed
from uow.processor.core.closed import CommandMemory
from uow.processor.core.command import CommandVerdict
from uow.processor.core.gathered import Called, Ruled
from uow.processor.core.group import Group
from uow.processor.core.happened import Outward
from uow.processor.core.partition_state import PartitionState
from uow.processor.engine.driver import Driver
from uow.processor.engine.group_storage import rows_of
from uow.processor.engine.outputs import WrittenOutputs
from uow.processor.engine.owned_partitions import OwnedPartitions
from uow.processor.engine.ports import (
    Committed,
    Doubt,
    EndQuestion,
    Plan,
    StaleGeneration,
    Tp,
)
from uow.processor.engine.replay import Selection, Window
from uow.processor.engine.replayable import ReplayableGroups
from uow.processor.engine.routed_units import RoutedWriter
from uow.processor.engine.rows import GROUP_ROW_KEY_END
from uow.processor.engine.task import PartitionTask
from uow.processor.engine.waiting_commands import WaitingCommands
from uow.processor.kafka.sink import KafkaSink
from uow.processor.kafka.transactional_producer import TransactionalProducer, TransactionFate
from uow.processor.kafka.worker_clock import WorkerClock
from uow.processor.sim import simulation as run
from uow.processor.sim.simulated_kafka import Broker
from uow.processor.sim.simulated_ports import (
    SimLogReader,
    SimPathLog,
    SimProducer,
    SimSource,
)
from uow.processor.sim.traffic import LANES
from uow.schemas.records import GroupRow
from uow.topics.commands import Verb
from uow.topics.partitioner import partition_for
from uow.topics.path_map import (
    NONCE_BYTES,
    PathMap,
    claim_key,
    claim_value,
)

Patch = Callable[[Any], Any]
DEFECTS: dict[str, list[tuple[Any, str, Patch]]] = {}


def defect(owner: Any, attribute: str, *, of: str = "") -> Callable[[Patch], Patch]:
    """Registers a patch: a function from the original attribute to the wrong one. Its name is the defect's."""

    def register(make: Patch) -> Patch:
        DEFECTS.setdefault(of or make.__name__, []).append((owner, attribute, make))
        return make

    return register


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The product with one defect."""
    patches = [
        patch.object(owner, attribute, make(owner.__dict__[attribute])) for owner, attribute, make in DEFECTS[name]
    ]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


# -- what a plan says -----------------------------------------------------------------------------------------------


def after_plan(change: Callable[[Plan], None]) -> Patch:
    def make(original: Any) -> Any:
        def wrong(self: PartitionTask, *args: Any) -> Plan:
            plan = original(self, *args)
            change(plan)
            return plan

        return wrong

    return make


@defect(PartitionTask, "_plan")
def changelog_is_not_written(original: Any) -> Any:
    def change(plan: Plan) -> None:
        plan.changelog[:] = [(key, value) for key, value in plan.changelog if value is None]

    return after_plan(change)(original)


@defect(PartitionTask, "_plan")
def tombstones_are_not_written(original: Any) -> Any:
    def change(plan: Plan) -> None:
        plan.changelog[:] = [(key, value) for key, value in plan.changelog if value is not None]

    return after_plan(change)(original)


@defect(PartitionTask, "_plan")
def tombstones_stand_behind_the_rows(original: Any) -> Any:
    def change(plan: Plan) -> None:
        plan.changelog.sort(key=lambda row: row[1] is None)

    return after_plan(change)(original)


@defect(PartitionTask, "_plan")
def position_is_one_too_far(original: Any) -> Any:
    def change(plan: Plan) -> None:
        plan.next_offset += 1

    return after_plan(change)(original)


@defect(PartitionTask, "_ledger")
def ledger_does_not_say_what_was_not_held(original: Any) -> Any:
    return lambda self, start, floor, not_held, *more: original(self, start, floor, (), *more)


@defect(PartitionTask, "_ledger")
def ledger_forgets_closed_groups(original: Any) -> Any:
    return lambda self, start, floor, not_held, closed, *more: original(self, start, floor, not_held, (), *more)


@defect(ReplayableGroups, "floor")
def replay_floor_is_too_high(original: Any) -> Any:
    return lambda self, position: min(position, original(self, position) + 1)


@defect(ReplayableGroups, "all")
def clean_stop_forgets_replayable_groups(original: Any) -> Any:
    """Promotes half of them, and says all are."""

    def wrong(self: ReplayableGroups) -> Iterator[Group]:
        for number, group in enumerate(list(original(self))):
            if number % 2 == 0:
                yield group

    return wrong


# -- the transaction ------------------------------------------------------------------------------------------------


@defect(SimProducer, "_lost")
def commit_does_not_wait_for_deliveries(original: Any) -> Any:
    """A failed delivery does not fail the transaction (EN-07)."""

    def wrong(self: SimProducer, tp: Tp, write: Any) -> None:
        original(self, tp, write)
        self._failed = False

    return wrong


@defect(KafkaSink, "_produce")
def positions_move_without_outputs(original: Any) -> Any:
    def wrong(self: KafkaSink, producer: Any, plan: Plan) -> None:
        outputs, plan.outputs = plan.outputs, []
        original(self, producer, plan)
        plan.outputs = outputs

    return wrong


@defect(KafkaSink, "_produce")
def outputs_go_outside_the_transaction(original: Any) -> Any:
    def wrong(self: KafkaSink, producer: Any, plan: Plan) -> None:
        broker = producer._broker
        for output in plan.outputs:
            partition = output.partition
            if partition < 0:
                partition = partition_for(output.key or b"", broker.settings.partitions)
            broker.log(Tp(output.topic, partition)).append((output.key, output.value, output.headers), broker.now_ms())
        outputs, plan.outputs = plan.outputs, []
        original(self, producer, plan)
        plan.outputs = outputs

    return wrong


@defect(Broker, "_current")
def nobody_is_fenced(original: Any) -> Any:
    """As on librdkafka's mock cluster: an old epoch is as good as a new one."""
    return lambda self, name, epoch: self.transactions[name]


@defect(TransactionalProducer, "_fenced")
def every_fence_is_taken_for_a_time_out(original: Any) -> Any:
    """Two workers of one name fence each other for ever (ER-13)."""
    return lambda self: TransactionFate.TIMED_OUT


@defect(Driver, "_write")
def group_metadata_is_refreshed_for_an_old_batch(original: Any) -> Any:
    """A stale generation is answered by joining again and writing the same plans under the new one (ER-14)."""

    def wrong(self: Driver, plans: Sequence[Plan], token: object) -> None:
        try:
            original(self, plans, token)
        except StaleGeneration:
            for _ in range(50):
                self._source.control(0.2)
            original(self, plans, self._source.token())

    return wrong


@defect(KafkaSink, "write")
def transaction_in_doubt_is_written_again(original: Any) -> Any:
    """A commit that timed out is taken for one that failed: the same plans once more (ER-12)."""

    def wrong(self: KafkaSink, plans: Sequence[Plan], token: Any) -> None:
        try:
            original(self, plans, token)
        except StaleGeneration:
            raise
        except Doubt:
            self.replace()
            original(self, plans, token)

    return wrong


@defect(SimProducer, "send_offsets_to_transaction")
def ticks_are_written_without_positions(original: Any) -> Any:
    """A transaction without records read sends no positions: nothing refuses a zombie's deadlines (ER-02)."""

    def wrong(self: SimProducer, offsets: Any, token: Any, timeout: float) -> None:
        committed = self._broker.committed
        if any((at := committed.get(Tp(o.topic, o.partition))) is None or at.offset != o.offset for o in offsets):
            original(self, offsets, token, timeout)

    return wrong


@defect(KafkaSink, "replace")
def no_new_epoch_after_doubt(original: Any) -> Any:
    """Aborts and goes on with the same producer (ER-11)."""

    def wrong(self: KafkaSink, meanwhile: Any) -> None:
        producer: Any = self._producer.handle
        try:
            producer._committing = False
            producer.abort_transaction()
        except ck.KafkaException:
            producer._open = producer._committing = producer._failed = False
            producer._added.clear()
        self._producer._suspicion.line = self._producer._doubt = ""

    return wrong


@defect(TransactionalProducer, "_renew_in_doubt")
def suspicion_is_not_heeded(original: Any) -> Any:
    """librdkafka's own repeats go unnoticed: a late frame hits the next transaction (ER-11)."""
    return lambda self, patience: None


# -- restore --------------------------------------------------------------------------------------------------------


@defect(SimLogReader, "bounds")
def restore_is_bounded_by_the_last_stable_offset(original: Any) -> Any:
    def wrong(self: SimLogReader, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        original(self, tps)
        return {tp: (self.broker.log(tp).start, self.broker.log(tp).stable_end) for tp in tps}

    return wrong


@defect(SimLogReader, "committed")
def committed_offsets_are_not_stable(original: Any) -> Any:
    """The committed offset is asked while a transaction that moves it is still being finished (ER-06)."""

    def wrong(self: SimLogReader, tps: Sequence[Tp]) -> Mapping[Tp, Committed]:
        self.process.actor.wait()
        return {tp: self.broker.committed.get(tp, Committed(None, "")) for tp in tps}

    return wrong


@defect(SimLogReader, "committed")
def end_offsets_are_asked_first(original: Any) -> Any:
    def wrong(self: SimLogReader, tps: Sequence[Tp]) -> Mapping[Tp, Committed]:
        self.__dict__["ends"] = {tp: (log.start, log.end) for tp, log in list(self.broker.logs.items())}
        return original(self, tps)

    return wrong


@defect(SimLogReader, "bounds", of="end_offsets_are_asked_first")
def _remembered_ends(original: Any) -> Any:
    return lambda self, tps: {tp: self.__dict__["ends"].get(tp, (0, 0)) for tp in tps}


@defect(SimLogReader, "_read")
def restore_ends_at_the_last_record_seen(original: Any) -> Any:
    """Waits for a record at the end offset less one; a marker or a hole stands there (ER-07)."""

    def wrong(self: SimLogReader, tp: Tp, start: int, end: int) -> Iterator[Any]:
        last = start - 1
        for stretch in original(self, tp, start, end):
            last = stretch[1][-1].offset()
            yield stretch
        if start < end and last < end - 1:
            self.process.actor.wait(lambda: False, None)

    return wrong


@defect(SimLogReader, "_read")
def restore_reads_uncommitted(original: Any) -> Any:
    def wrong(self: SimLogReader, tp: Tp, start: int, end: int) -> Iterator[Any]:
        self.process.actor.wait()
        for record in list(self.broker.log(tp).records):
            if start <= record.offset() < end and record.state.value != "marker":
                yield tp, [record]

    return wrong


@defect(PartitionTask, "restore_group")
def age_begins_anew_with_a_restore(original: Any) -> Any:
    """A restart moves a deadline later (W-82, W-124)."""
    return lambda self, name, generation, opened_at: original(self, name, generation, opened_at + 50)


@defect(PartitionTask, "restore_group")
def generation_is_not_restored(original: Any) -> Any:
    return lambda self, name, generation, opened_at: original(self, name, 1, opened_at)


@defect(PartitionTask, "restore")
def memory_of_closed_groups_is_not_restored(original: Any) -> Any:
    return lambda self, position, clock, closed, rows: original(self, position, clock, (), rows)


@defect(PartitionTask, "restore")
def clock_is_not_restored(original: Any) -> Any:
    return lambda self, position, clock, closed, rows: original(self, position, 0, closed, rows)


@defect(PartitionTask, "restored")
def deadlines_are_not_scheduled_after_a_restore(original: Any) -> Any:
    return lambda self: self.partition.closed.trim(self.partition.clock)


@defect(run, "restore")
def restore_that_is_overtaken_blames_the_logs(original: Any) -> Any:
    """Found by the simulator: see `test_found_by_simulation.py`."""

    def wrong(reader: SimLogReader, contexts: Any, tps: Sequence[Tp], wanted: Any) -> Any:
        commands = {tp: Tp(contexts[tp.topic].topics.commands, tp.partition) for tp in tps}
        return restoring._restore(reader, contexts, commands, reader.committed([*tps, *commands.values()]))

    return wrong


# -- replay ---------------------------------------------------------------------------------------------------------


@defect(Selection, "__init__")
def replay_ignores_closed_groups(original: Any) -> Any:
    def wrong(self: Selection, *args: Any) -> None:
        original(self, *args)
        self._before = {}

    return wrong


@defect(Selection, "_held")
def replay_ignores_what_was_not_held(original: Any) -> Any:
    """Refused, passed on, sent on, dropped: held now."""
    return lambda self, records: [record for record in records if record.headers()]


@defect(Selection, "__init__")
def replay_remembers_no_more_closed_groups_than_the_worker(original: Any) -> Any:
    """What `closed_max_groups` lets the worker forget comes back to life."""

    def wrong(self: Selection, *args: Any) -> None:
        original(self, *args)
        self._before = dict(list(self._before.items())[-3:])

    return wrong


@defect(Selection, "__init__")
def replay_knows_closed_groups_by_id_without_position(original: Any) -> Any:
    def wrong(self: Selection, *args: Any) -> None:
        original(self, *args)
        self._before = dict.fromkeys(self._before, 1 << 60)

    return wrong


@defect(Window, "add")
def replay_window_is_cut_too_early(original: Any) -> Any:
    def wrong(self: Window, record: Any, closed: list[Closed]) -> None:
        original(self, record, closed)
        while len(self._records) > 2:
            self._records.popleft()

    return wrong


@defect(PartitionTask, "_promote")
def reopened_groups_stay_replayable(original: Any) -> Any:
    """A replay cannot tell a group's generation from the input."""

    def wrong(self: PartitionTask, held: Any, promoted: Any, rows: Any) -> None:
        generations = {row[0]: row[0].generation for row in held}
        for group in generations:
            group.generation = 1
        original(self, held, promoted, rows)
        for group, generation in generations.items():
            group.generation = generation

    return wrong


# -- what retention and administrators take away --------------------------------------------------------------------


@defect(restoring, "hints")
def emptied_ledger_is_taken_for_a_new_one(original: Any) -> Any:
    """Found by the simulator: see `test_found_by_simulation.py`."""
    return lambda committed: restoring.Hints(committed.offset)


@defect(restoring, "_position")
def offset_that_was_reset_is_believed(original: Any) -> Any:
    def wrong(tp: Tp, found: Any, committed: Committed, bounds: tuple[int, int]) -> int:
        return bounds[0] if committed.offset is None else committed.offset

    return wrong


@defect(Window, "check")
def replay_does_not_look_where_the_input_begins(original: Any) -> Any:
    return lambda self, position, log_start: original(self, position, 0)


@defect(Window, "check")
def hole_in_the_ledger_is_not_seen(original: Any) -> Any:
    return lambda self, position, log_start: self.last.floor if self.last is not None else position


@defect(SimSource, "resume")
def paused_partitions_are_never_resumed(original: Any) -> Any:
    return lambda self, tps: None


@defect(Driver, "_keep_within_memory")
def memory_limit_is_not_heeded(original: Any) -> Any:
    return lambda self: None


# -- the driver -----------------------------------------------------------------------------------------------------


@defect(OwnedPartitions, "restore_again")
def no_restore_after_an_abort(original: Any) -> Any:
    """Sets the position back, keeps the memory."""

    def wrong(self: OwnedPartitions, tps: Sequence[Tp]) -> None:
        for tp, task in self._restored(tps).items():
            self.tasks[tp].partition.position = self.tasks[tp]._planned = task.position  # type: ignore[attr-defined]
            self._source.seek({tp: task.position})

    return wrong


@defect(OwnedPartitions, "restore_again")
def no_seek_after_an_abort(original: Any) -> Any:
    def wrong(self: OwnedPartitions, tps: Sequence[Tp]) -> None:
        tasks = self._restored(tps)
        self.tasks.update(tasks)
        self._runner.assigned(tasks)

    return wrong


@defect(Driver, "_on_failed")
def half_applied_batch_is_kept(original: Any) -> Any:
    """A task that raised goes on with the memory it has."""
    return lambda self, batch, cause: None


@defect(OwnedPartitions, "_restored")
def revoked_partitions_keep_their_state(original: Any) -> Any:
    """A partition that comes back goes on with the memory of its last time here."""

    def wrong(self: OwnedPartitions, tps: Sequence[Tp]) -> Any:
        kept = self.__dict__.setdefault("kept", {})
        tasks = original(self, [tp for tp in tps if tp not in kept])
        tasks.update({tp: kept[tp] for tp in tps if tp in kept})
        kept.update(tasks)
        return tasks

    return wrong


@defect(SimSource, "end")
def expiry_by_the_wall_clock_during_backlog(original: Any) -> Any:
    return lambda self, tp: EndQuestion(self.ask(tp), lambda: 0)


@defect(SimSource, "end")
def end_offset_is_asked_before_the_clock(original: Any) -> Any:
    """The wall clock is taken after the end offset: what arrived between the two is not seen (W-82)."""

    def wrong(self: SimSource, tp: Tp) -> EndQuestion:
        question = original(self, tp)
        self.process.actor.wait(timeout_ms=50)
        return EndQuestion(self.ask(tp), question.answer)

    return wrong


@defect(Driver, "_tick")
def asking_again_waits_for_the_wall_clock(original: Any) -> Any:
    """A clock that is put right stalls expiry until it is where it was (W-83)."""

    def wrong(self: Driver) -> None:
        kind = type(self._clock)
        with patch.object(kind, "monotonic_ms", kind.now_ms):
            original(self)

    return wrong


@defect(PartitionTask, "believe")
def every_append_time_is_believed(original: Any) -> Any:
    """One broker whose clock leaps expires what is open, and all that comes until the others are there as well."""
    return lambda self, latest_ms: None


@defect(WorkerClock, "see")
def append_time_that_leaps_tells_the_time(original: Any) -> Any:
    """The clock of the partition is right, and the next tick moves it to where the broker was."""

    def wrong(self: WorkerClock, tp: Tp, append_ms: int) -> None:
        with patch.object(self, "_lead_ms", 1 << 50):
            original(self, tp, append_ms)

    return wrong


# -- commands ---------------------------------------------------------------------------------------------------------


@defect(PartitionTask, "_plan")
def what_a_command_changed_is_not_written(original: Any) -> Any:
    def change(plan: Plan) -> None:
        plan.changelog[:] = [row for row in plan.changelog if row[1] is None or not row[0].endswith(GROUP_ROW_KEY_END)]

    return after_plan(change)(original)


@defect(running, "tombstone_keys")
def group_row_stays_where_all_other_rows_went_before(original: Any) -> Any:
    return lambda group: original(group) if rows_of(group) else []


@defect(CommandMemory, "add")
def commands_are_forgotten_by_the_newest_append_time_ever_seen(original: Any) -> Any:
    newest: WeakKeyDictionary[CommandMemory, int] = WeakKeyDictionary()

    def wrong(self: CommandMemory, command_id: bytes, at: int) -> None:
        original(self, command_id, at)
        newest[self] = max(newest.get(self, 0), at)
        for known, then in list(self.at_by_id.items()):
            if then >= newest[self] - self.retention_ms:
                return
            self._forget(known)

    return wrong


@defect(PartitionTask, "_no_longer_replayable")
def group_that_a_command_changed_stays_replayable(original: Any) -> Any:
    return lambda self, amended: []


@defect(PartitionTask, "_ledger")
def ledger_forgets_commands(original: Any) -> Any:
    return lambda self, *all_but_commands: original(self, *all_but_commands[:-1], ())


@defect(Plan, "positions")
def position_of_commands_is_not_committed(original: Any) -> Any:
    return lambda self: original(self)[:1]


@defect(restoring, "_command_position")
def commands_are_read_from_the_start_after_every_restore(original: Any) -> Any:
    return lambda committed, bounds: bounds[0]


@defect(PartitionTask, "restore_group_row")
def waived_number_that_came_all_the_same_is_waived_again(original: Any) -> Any:
    def wrong(self: PartitionTask, key: bytes, group: Any, row: GroupRow) -> None:
        original(self, key, group, row)
        group.waived_held = 0

    return wrong


@defect(PartitionTask, "restore_group_row")
def row_of_a_rule_is_lost_in_a_restore(original: Any) -> Any:
    """The group goes on as a unit of work, which nothing completes."""
    return lambda self, key, group, row: original(self, key, group, replace(row, rule=None))


@defect(writing, "_manifest")
def manifest_is_not_written(original: Any) -> Any:
    """B-88: after a restart nobody knows how many replies there are, nor until when they are waited for."""
    return lambda called: original(None)


@defect(PartitionTask, "restore_group_row")
def group_without_a_reply_is_lost_in_a_restore(original: Any) -> Any:
    """B-84: its manifest is all that there is of it."""
    return lambda self, key, group, row: None if group is None else original(self, key, group, row)


@defect(Called, "read")
def weights_of_replies_are_forgotten_in_a_restore(original: Any) -> Any:
    """B-209: the quorum would be another one."""
    return staticmethod(lambda command_id, at, text: original(command_id, at, text)._replace(weights=()))


@defect(Group, "unanswered")
def who_has_replied_is_told_to_stop(original: Any) -> Any:
    """B-209: a cancel notice for each request that has one."""
    return lambda self: [] if self.ruled.called is None else list(range(1, self.ruled.called.requests + 1))


@defect(PartitionTask, "restore_live")
def rows_that_open_groups_took_are_lost_in_a_restore(original: Any) -> Any:
    """B-13: the version of a row that was made known holds for groups that open later, too."""
    return lambda self, rows: original(self, {})


@defect(PartitionTask, "read_rules")
def unknown_rows_are_refused_without_reading_the_rules(original: Any) -> Any:
    def wrong(self: PartitionTask, before: int, meanwhile: Any) -> None:
        self.partition.rules_read_before = before
        self.partition.commands_known_before = self.partition.commands_read_before

    return wrong


@defect(Ruled, "read_again")
def component_ids_are_forgotten_in_a_restore(original: Any) -> Any:
    def wrong(self: Ruled, bodies: Any) -> None:
        original(self, bodies)
        self.component_ids.clear()

    return wrong


@defect(SimSource, "end")
def tick_does_not_wait_for_commands(original: Any) -> Any:
    """A partition whose commands lie unread counts as read to its end: an `extend` that came in time is too late."""

    def wrong(self: SimSource, tp: Tp) -> EndQuestion:
        if tp.topic == run.TOPICS.commands:
            return EndQuestion(self.process.clock.at(tp), lambda: 0)
        return original(self, tp)  # type: ignore[no-any-return]

    return wrong


@defect(WaitingCommands, "ready")
def commands_do_not_wait_for_what_came_before_them(original: Any) -> Any:
    return lambda self, tp, position, records, latest: self.all(tp)


@defect(WaitingCommands, "forget")
def commands_that_waited_are_kept_when_their_partition_goes(original: Any) -> Any:
    return lambda self, tps: None


@defect(commanding, "_cancelled_unopened")
def cancel_of_an_id_that_is_not_open_is_answered_and_forgotten(original: Any) -> Any:
    return lambda *known: CommandVerdict(False, "nothing to cancel")


@defect(Group, "closes_at")
def partial_unit_comes_out_before_its_components_are_available(original: Any) -> Any:
    def wrong(self: Group, policy: Any) -> int:
        due, given_up = original(self, policy), self.give_up_at(policy)
        return due if self.complete or self.waits else min(due, given_up)

    return wrong


@defect(commanding, "VERBS")
def release_does_not_wait_until_what_it_delivers_is_available(original: Any) -> Any:
    return {**original, Verb.RELEASE: lambda case: commanding._delivered(case)}


# -- path routing (W-105, W-106)


@defect(PathMap, "_take")
def the_last_claim_counts(original: Any) -> Any:
    def wrong(self: PathMap, group_id: bytes, key: bytes, partition: int, at: int) -> None:
        original(self, group_id, key, partition, at)
        claims = self._claims[group_id]
        claims.by_key = dict(reversed(claims.by_key.items()))
        self._place(group_id, claims, at)

    return wrong


@defect(PathMap, "leave")
def a_placement_ends_while_its_group_is_open(original: Any) -> Any:
    return lambda self, partition, before, now, is_in_use: original(
        self, partition, before, now, lambda group_id: False
    )


@defect(SimPathLog, "claim")
def claims_are_not_read_back(original: Any) -> Any:
    def wrong(self: SimPathLog, wanted: Mapping[bytes, int]) -> None:
        with patch.object(self, "_wait_for"), suppress(Doubt):
            original(self, wanted)
        for group_id, partition in wanted.items():
            self.paths.read(claim_key(group_id, bytes(NONCE_BYTES)), claim_value(partition), 0)

    return wrong


@defect(PartitionState, "line_up")
def ordered_units_do_not_wait(original: Any) -> Any:
    def wrong(self: PartitionState, group: Group, order_key: bytes) -> None:
        original(self, group, order_key)
        group.waits = False

    return wrong


@defect(PathMap, "leave")
def only_the_first_claim_of_an_id_is_known_to_end(original: Any) -> Any:
    def wrong(self: PathMap, *args: Any) -> list[bytes]:
        keys: list[bytes] = original(self, *args)
        self._leaving = {claims.first for claims in self._claims.values() if claims.first in self._leaving}
        return keys

    return wrong


@defect(PartitionState, "line_up_again")
def lines_of_ordered_units_are_not_restored(original: Any) -> Any:
    return lambda self, groups: None


@defect(PartitionState, "line_up_again")
def lines_of_ordered_units_are_restored_by_append_times(original: Any) -> Any:
    def wrong(self: PartitionState, groups: Iterable[Group]) -> None:
        for group in sorted(groups, key=lambda each: each.opened_at):
            original(self, [group])

    return wrong


# -- routes ---------------------------------------------------------------------------------------------------------


@defect(RoutedWriter, "write")
def unit_of_a_route_stays_in_the_default_topic_too(original: Any) -> Any:
    def wrong(self: RoutedWriter, outward: Outward, written: WrittenOutputs) -> None:
        before = len(written.outputs)
        original(self, outward, written)
        unit = [output for output in written.outputs[before:] if output.topic in LANES.values()]
        written.outputs += [output._replace(topic=self.units) for output in unit]

    return wrong


@defect(routed, "topics_of")
def last_route_that_accepts_a_unit_wins(original: Any) -> Any:
    return lambda routes, *more: original(routes[::-1], *more)
