"""Path routing in a worker: ids are placed before their records are judged, and no longer when nobody knows them any more (W-105, W-106)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from tests.core.script import T0, TOPICS, Sent, bare, c, context_of, is_unit, policy_of, told
from tests.fake_record import FakeRecord
from uow.processor.engine.batch import Batch, Work
from uow.processor.engine.placement import Placement, Placements
from uow.processor.engine.ports import (
    Doubt,
    Output,
    Plan,
    Tp,
)
from uow.processor.engine.task import LEAVE_EVERY_MS, PartitionTask
from uow.schemas import codec
from uow.schemas.error_classes import StateCorruptedError
from uow.schemas.records import Answer
from uow.topics.command_keys import CommandKey, CommandSigner
from uow.topics.commands import CommandReader
from uow.topics.headers import Reading
from uow.topics.partitioner import partition_for
from uow.topics.path_map import (
    NONCE_BYTES,
    PathMap,
    claim_key,
    claim_value,
)
from uow.topics.policies import AliasFamily, Routing

COUNT = 4
PATH_RETENTION_MS = 60_000


class ClaimLog:
    """The path map's log, shared by all workers."""

    def __init__(self) -> None:
        self.rows: list[tuple[bytes, bytes | None]] = []
        self.before_claim: list[Callable[[], object]] = []
        """What others do while a worker's claim is under way."""
        self.doubts = 0

    def claim(self, group_id: bytes, partition: int) -> None:
        self.rows.append((claim_key(group_id, len(self.rows).to_bytes(NONCE_BYTES, "big")), claim_value(partition)))

    def end(self, group_id: bytes) -> None:
        ended = [key for key, _ in self.rows if key[1 : -NONCE_BYTES - 1] == group_id]
        self.rows += [(key, None) for key in ended]

    @property
    def claimed(self) -> list[tuple[bytes, int]]:
        return [(key[1 : -NONCE_BYTES - 1], int(value)) for key, value in self.rows if value is not None]


class ClaimReader:
    """Port `PathLog` of one worker, which reads no more than it must."""

    def __init__(self, log: ClaimLog, paths: PathMap) -> None:
        self.log, self.paths = log, paths
        self.next = 0

    def catch_up(self) -> None:
        """Nothing has come in yet."""

    def read_all(self, meanwhile: object = None) -> None:
        for key, value in self.log.rows[self.next :]:
            self.paths.read(key, value, T0)
        self.next = len(self.log.rows)

    def claim(self, wanted: Mapping[bytes, int]) -> None:
        if self.log.doubts:
            self.log.doubts -= 1
            raise Doubt("by script")
        others, self.log.before_claim = self.log.before_claim, []
        for act in others:
            act()
        for group_id, partition in wanted.items():
            self.log.claim(group_id, partition)
        self.read_all()

    def close(self) -> None:
        """Nothing is open."""


class PlacingWorker:
    """One that owns all partitions."""

    def __init__(self, log: ClaimLog, aliases: Sequence[AliasFamily] = (), keys: tuple[CommandKey, ...] = ()) -> None:
        policy = policy_of(
            routing=Routing.PATH,
            closed_retention_ms=PATH_RETENTION_MS,
            accept_aliases=frozenset(aliases),
            command_keys=keys,
        )
        self.paths = PathMap()
        self.log, self.reader = log, ClaimReader(log, self.paths)
        self.placement = Placement(self.paths, self.reader, Reading.of(policy), CommandReader("D", policy))
        self.all = Placements({TOPICS.components: self.placement})
        context = context_of(policy, COUNT, paths=self.paths)
        self.tasks = {
            Tp(TOPICS.components, number): PartitionTask(Tp(TOPICS.components, number), context)
            for number in range(2 * COUNT)
        }
        self.at = T0

    def read(self, *arrived: tuple[int, Sent]) -> dict[int, Plan]:
        """One poll: records by partition."""
        self.at += 1
        batches = {}
        for partition, sent in arrived:
            tp = Tp(TOPICS.components, partition)
            batch = batches.setdefault(partition, Batch(tp, records=[]))
            offset = self.tasks[tp].position + len(batch.records)
            record = FakeRecord(offset, sent.headers, sent.value, sent.key, self.at, tp)
            batch.records = [*batch.records, record]
        self.all.ensure_placed([*batches.values()])
        return {number: self.tasks[batch.tp].process(batch.records) for number, batch in batches.items()}

    def tick(self, partition: int, later_ms: int) -> list[Output]:
        """The partition is read to its end, which was asked for then."""
        self.at += later_ms
        tp = Tp(TOPICS.components, partition)
        self.all.ensure_placed([Batch(tp, Work.TICK)])
        plan = self.tasks[tp].tick(self.at)
        outputs = [] if plan is None else [each for each in plan.outputs if each.topic == TOPICS.path_map]
        for output in outputs:
            assert output.key is not None
            self.log.rows.append((output.key, output.value))  # committed
        return outputs

    def groups(self, partition: int) -> set[bytes]:
        return set(self.tasks[Tp(TOPICS.components, partition)].groups)


@pytest.fixture
def log() -> ClaimLog:
    return ClaimLog()


@pytest.fixture
def worker(log: ClaimLog) -> PlacingWorker:
    return PlacingWorker(log)


def sent_on(plan: Plan) -> list[int]:
    return [output.partition for output in plan.outputs if output.topic == TOPICS.components]


def test_id_is_claimed_for_the_partition_that_it_came_to_and_assembled_there_w105(
    log: ClaimLog, worker: PlacingWorker
) -> None:
    plans = worker.read((3, c(1, id="a")), (3, c(2, True, id="a")), (0, c(1, id="b")))
    assert log.claimed == [(b"a", 3), (b"b", 0)]
    assert [output.partition for output in plans[3].outputs if is_unit(output)] == [3]
    assert worker.groups(0) == {b"b"}


def test_component_elsewhere_is_sent_on_to_where_its_id_was_claimed_w105(log: ClaimLog, worker: PlacingWorker) -> None:
    """By a sender that hashes: line 6, with the map in place of the hash."""
    log.claim(b"a", 1)
    plans = worker.read((3, c(1, id="a")))
    assert sent_on(plans[3]) == [1]
    assert worker.groups(3) == set()
    assert log.claimed == [(b"a", 1), (b"a", 3)], "the claim was too late, and says so to nobody"


def test_of_two_workers_that_claim_at_once_the_first_in_the_log_wins_for_both_w105(
    log: ClaimLog, worker: PlacingWorker
) -> None:
    other = PlacingWorker(log)
    log.before_claim = [lambda: log.claim(b"z", 0), lambda: other.read((2, c(1, id="a")))]
    plans = worker.read((3, c(2, id="a")))
    assert sent_on(plans[3]) == [2]
    assert other.groups(2) == {b"a"}


def test_placement_holds_while_the_group_is_open_whatever_is_claimed_meanwhile_w106(
    log: ClaimLog, worker: PlacingWorker
) -> None:
    worker.read((0, c(1, id="a")))
    for number in range(50):
        log.claim(b"g%d" % number, 0)
        log.claim(b"a", 2)
    plans = worker.read((2, c(2, id="a")))
    assert sent_on(plans[2]) == [0]
    assert worker.tick(0, 100 * PATH_RETENTION_MS) == [], (
        "open for a hundred times as long as closed ids are remembered"
    )
    plans = worker.read((0, c(2, True, id="a")))
    assert any(map(is_unit, plans[0].outputs))


def test_placement_ends_when_the_closed_id_is_forgotten_also_on_an_idle_partition_w106(
    log: ClaimLog, worker: PlacingWorker
) -> None:
    worker.read((0, c(1, True, id="a")), (0, c(1, id="b")))
    task = worker.tasks[Tp(TOPICS.components, 0)]
    assert task.next_deadline() == T0 + PATH_RETENTION_MS
    assert worker.tick(0, PATH_RETENTION_MS - 10) == []
    late = worker.read((3, c(2, id="a")))
    assert sent_on(late[3]) == [0], "a late component is refused where its group was"
    (ended,) = worker.tick(0, PATH_RETENTION_MS)
    assert (ended.partition, ended.value, ended.key) == (0, None, log.rows[0][0])
    worker.read((3, c(1, id="a")))
    assert worker.groups(3) == {b"a"}, "a new claim, wherever it comes to"
    assert worker.groups(0) == {b"b"}


def test_placements_end_in_few_transactions_w106(worker: PlacingWorker) -> None:
    """One that ends some holds back whoever reads the map until it is over."""
    worker.read((0, c(1, True, id="a")))
    assert len(worker.tick(0, PATH_RETENTION_MS + 10)) == 1
    worker.read((0, c(1, True, id="b")))
    worker.at += PATH_RETENTION_MS
    plan = worker.read((0, c(1, True, id="c")))[0]
    assert [output.topic for output in plan.outputs].count(TOPICS.path_map) == 1
    deadline = worker.tasks[Tp(TOPICS.components, 0)].next_deadline()
    assert deadline is not None
    assert deadline >= worker.at + LEAVE_EVERY_MS - 1


def test_claim_that_nobody_used_ends_as_well_w106(log: ClaimLog, worker: PlacingWorker) -> None:
    """Of a sender that claimed and then rolled back."""
    log.claim(b"a", 1)
    worker.reader.read_all()
    assert len(worker.tick(1, PATH_RETENTION_MS + 1)) == 1


def test_plain_and_unreadable_records_claim_nothing_and_pass_as_ever(log: ClaimLog, worker: PlacingWorker) -> None:
    broken = bare(UnicodeDecodeError("utf-8", b"", 0, 1, "by script"))
    plan = worker.read((2, bare([], key=b"reader-1")), (2, broken), (2, bare(None)), (2, c(1, id="")))[2]
    assert log.claimed == []
    assert [output.topic for output in plan.outputs] == [TOPICS.units, TOPICS.rejected, TOPICS.units, TOPICS.rejected]


def test_id_is_read_as_the_worker_reads_it(log: ClaimLog) -> None:
    """Under an alias, and from a component that is refused: it opens nothing, but line 6 asks for its id."""
    worker = PlacingWorker(log, [AliasFamily.JMS])
    worker.read((1, bare([("JMSXGroupID", b"a"), ("JMSXGroupSeq", b"1")])), (2, c(0, id="b")))
    assert log.claimed == [(b"a", 1), (b"b", 2)]


def test_headers_of_a_record_are_asked_for_once(worker: PlacingWorker) -> None:
    """The library's own list may kill the process when it is asked for again (`look_at_headers`)."""
    asked = 0

    class Once(FakeRecord):
        def headers(self) -> object:
            nonlocal asked
            asked += 1
            return super().headers()

    batch = Batch(Tp(TOPICS.components, 1), records=[Once(0, [("uow-id", b"a"), ("uow-seq", b"x")], b"v", b"a", T0)])
    worker.all.ensure_placed([batch])
    (record,) = batch.records
    worker.tasks[batch.tp].process(batch.records)
    assert asked == 1
    assert (record.topic(), record.partition(), record.key()) == (TOPICS.components, 0, b"a")


def test_what_is_read_up_to_a_claim_may_end_other_placements_of_the_poll_w105(
    log: ClaimLog, worker: PlacingWorker
) -> None:
    """Found by simulation: the id whose placement had ended meanwhile was assembled without one."""
    log.claim(b"a", 2)
    worker.reader.read_all()
    log.end(b"a")
    worker.read((1, c(1, id="a")), (1, c(1, id="b")))
    assert worker.groups(1) == {b"a", b"b"}
    assert log.claimed == [(b"a", 2), (b"b", 1), (b"a", 1)]


def test_log_that_does_not_answer_is_a_doubt_and_no_task_was_touched(log: ClaimLog, worker: PlacingWorker) -> None:
    log.doubts = 1
    with pytest.raises(Doubt):
        worker.read((1, c(1, id="a")))
    assert worker.tasks[Tp(TOPICS.components, 1)].position == 0


def test_ticks_and_other_destinations_are_left_alone(worker: PlacingWorker) -> None:
    other = Batch(Tp("other.components", 0), records=[FakeRecord(0, [])])
    before = other.records
    worker.all.ensure_placed([other, Batch(Tp(TOPICS.components, 0))])
    assert other.records is before
    assert not Placements({})


# -- restore


def restored(worker: PlacingWorker, partition: int) -> None:
    tps = [Tp(TOPICS.components, partition), Tp("other.components", 0)]
    worker.all.restoring(lambda tps, wanted: {tp: worker.tasks[tp] for tp in tps})(tps, lambda: tps)


def test_open_groups_that_are_not_placed_are_claimed_when_they_are_restored_w106(
    log: ClaimLog, worker: PlacingWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """Routing was hash until now, or the map was lost. Inside a rebalance nobody gives up."""
    worker.tasks[Tp("other.components", 0)] = worker.tasks[Tp(TOPICS.components, 3)]
    worker.read((0, c(1, id="a")), (0, c(1, id="b")))
    log.rows.clear()
    worker.paths.clear()
    worker.reader.next, log.doubts = 0, 2
    restored(worker, 0)
    assert sorted(log.claimed) == [(b"a", 0), (b"b", 0)]
    assert caplog.text.count("waiting for the path map: by script") == 2


def test_restore_of_another_destination_places_nothing(log: ClaimLog, worker: PlacingWorker) -> None:
    other = Tp("other.components", 0)
    log.claim(b"a", 2)
    assert worker.all.restoring(lambda tps, wanted: {})([other], lambda: [other]) == {}
    assert worker.reader.next == 0


def test_restored_group_whose_id_was_claimed_elsewhere_is_refused_w106(log: ClaimLog, worker: PlacingWorker) -> None:
    worker.tasks[Tp("other.components", 0)] = worker.tasks[Tp(TOPICS.components, 3)]
    worker.read((0, c(1, id="a")))
    log.rows.clear()
    worker.paths.clear()
    worker.reader.next = 0
    log.claim(b"a", 2)
    with pytest.raises(StateCorruptedError, match="group 'a' is open here, but the path map places it on partition 2"):
        restored(worker, 0)


# -- commands, partitions that are added


def test_command_goes_to_the_placement_and_the_answer_elsewhere_names_it_w203(
    log: ClaimLog, worker: PlacingWorker
) -> None:
    worker.read((0, c(1, id="a")))
    order = told("cancel", "a")
    answers = {}
    for partition in (0, 1):
        command = FakeRecord(0, order.headers, None, order.key, worker.at)
        plan = worker.tasks[Tp(TOPICS.components, partition)].process([], [command])
        (answer,) = [each for each in plan.outputs if ("uow-kind", b"answer") in each.headers]
        answers[partition] = codec.decode_as(Answer, answer.value or b"")
    assert (answers[0].done, answers[1].done) == (True, False)
    assert answers[1].text.startswith("the id belongs to partition 0")


def test_an_id_that_was_cancelled_before_its_components_came_is_placed_there_w62_w105(
    log: ClaimLog, worker: PlacingWorker
) -> None:
    """Else they would go elsewhere, where nobody knows of the cancel; a dry run claims nothing."""
    order, dry = told("cancel", "a"), told("cancel", "b", dry_run=True)
    tp = Tp(TOPICS.components, 2)
    commands: list[Any] = [
        FakeRecord(n, each.headers, None, each.key, worker.at) for n, each in enumerate((order, dry))
    ]
    batch = Batch(tp, commands=commands)
    worker.all.ensure_placed([batch])
    assert log.claimed == [(b"a", 2)]
    worker.tasks[tp].process([], batch.commands)
    assert sent_on(worker.read((0, c(1, id="a")))[0]) == [2]
    plan = worker.read((2, c(1, id="a")))[2]
    assert [output.topic for output in plan.outputs] == [TOPICS.rejected]


def test_a_cancel_to_which_its_sender_has_no_right_places_no_id(log: ClaimLog) -> None:
    """Else anybody could decide where the components of somebody else go."""
    signer = CommandSigner("ops", bytes(32))
    worker = PlacingWorker(log, keys=(CommandKey("ops", signer.public, frozenset({"cancel"})),))
    forged, signed = told("cancel", "a"), told("cancel", "b")
    headers = signer.signed("D", b"b", None, signed.headers, worker.at)
    commands: list[Any] = [
        FakeRecord(0, forged.headers, None, b"a", worker.at),
        FakeRecord(1, headers, None, b"b", worker.at),
    ]
    worker.all.ensure_placed([Batch(Tp(TOPICS.components, 2), commands=commands)])
    assert log.claimed == [(b"b", 2)]


def test_partitions_are_added_while_groups_are_open_w215(log: ClaimLog, worker: PlacingWorker) -> None:
    """Old groups keep theirs, whatever the hash says under the new count; new ids use the new ones."""
    ids = [f"g{number}" for number in range(40)]
    for name in ids:
        worker.read((partition_for(name.encode(), COUNT), c(1, id=name)))
    before = {number: worker.groups(number) for number in range(COUNT)}
    for name in ids:
        hashed = partition_for(name.encode(), 2 * COUNT)
        home = partition_for(name.encode(), COUNT)
        plans = worker.read((hashed, c(2, True, id=name)))
        assert sent_on(plans[hashed]) == ([] if hashed == home else [home])
    assert all(worker.groups(number) <= before[number] for number in range(COUNT))
    new = [name for number in range(40) if partition_for((name := f"n{number}").encode(), 2 * COUNT) >= COUNT]
    for name in new:
        home = partition_for(name.encode(), 2 * COUNT)
        (plan,) = worker.read((home, c(1, True, id=name))).values()
        assert [output.partition for output in plan.outputs if is_unit(output)] == [home]


# -- order keys


def test_groups_of_one_order_key_have_one_placement_wherever_they_come_to_w210(
    log: ClaimLog, worker: PlacingWorker
) -> None:
    other = PlacingWorker(log)
    log.before_claim = [lambda: other.read((2, c(1, id="a", order_key="k")))]
    plans = worker.read((3, c(1, id="b", order_key="k")), (1, c(1, id="c", order_key="k")))
    assert (sent_on(plans[3]), sent_on(plans[1])) == ([2], [2])
    assert log.claimed[0] == (b"\xffk", 2)
    assert {worker.paths.get(name) for name in (b"a", b"b", b"c")} == {2}


def test_placement_of_an_order_key_lasts_as_long_as_a_group_of_it_is_open_w210(worker: PlacingWorker) -> None:
    worker.read((2, c(1, id="a", order_key="k")))
    assert worker.tick(2, 3 * PATH_RETENTION_MS) == []
    worker.read((2, c(2, True, id="a", order_key="k")))
    ended = {(output.key or b"")[1:-17] for output in worker.tick(2, 3 * PATH_RETENTION_MS)}
    assert ended == {b"a", b"\xffk"}


def test_placements_that_nobody_uses_end_early_when_the_map_is_full_and_those_in_use_stay_w106(
    log: ClaimLog, worker: PlacingWorker
) -> None:
    """Else whoever claims ids that never come decides how much memory a worker takes. One that comes after all is claimed for anew."""
    worker.read((1, c(1, id="open")), (1, c(1, True, id="closed")))
    for number in range(100):
        log.claim(b"never-%d" % number, 1)
    worker.reader.read_all()
    assert worker.tick(1, LEAVE_EVERY_MS + 1) == []
    worker.paths.limit_bytes = 10_000
    assert worker.paths.is_full
    ended = {output.key[1 : -NONCE_BYTES - 1] for output in worker.tick(1, LEAVE_EVERY_MS + 1) if output.key}
    assert ended == {b"never-%d" % number for number in range(100)}
    worker.reader.catch_up = worker.reader.read_all  # type: ignore[method-assign]
    assert worker.tick(1, LEAVE_EVERY_MS + 1) == [], (
        "they are out of the map though nothing arrives, and not ended again"
    )
    assert not worker.paths.is_full
    assert (worker.paths.get(b"open"), worker.paths.get(b"closed")) == (1, 1)
    plans = worker.read((2, c(1, True, id="never-7")))
    assert [output.partition for output in plans[2].outputs if is_unit(output)] == [2]


def test_records_with_many_headers_among_others_are_read_as_ever(worker: PlacingWorker) -> None:
    """They are packed from the first look to the second."""
    user = [(f"h{number}", b"%d" % number if number % 2 else None) for number in range(200)]
    many = bare([("uow-id", b"b"), ("uow-seq", b"1"), ("uow-end", b"true"), *user], b"v", b"b")
    heavy = bare([("uow-id", b"d"), ("uow-seq", b"1"), *[("x", b"")] * 5_000], b"v", b"d")
    plans = worker.read((1, c(1, True, id="a")), (1, many), (1, heavy), (1, c(1, True, id="c")))
    units = [output for output in plans[1].outputs if is_unit(output)]
    assert [output.key for output in units] == [b"a", b"b", b"c"]
    assert [pair for pair in units[1].headers if pair[0].startswith("h")] == user
    (refused,) = [output for output in plans[1].outputs if output.topic == TOPICS.rejected]
    assert refused.headers[2:5_002] == [("x", b"")] * 5_000
