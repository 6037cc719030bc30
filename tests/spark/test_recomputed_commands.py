"""What commands did is computed again from input, commands and ledger: no Spark and no broker (W-203, W-216)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.core.script import TOPICS
from tests.core.streams import TP, Tick, World, call, draw_policy, draw_stream, new_task, polls
from tests.engine.test_commands_restored import draw_commands
from tests.fake_record import FakeRecord
from uow.processor.core.partition import Partition
from uow.processor.core.snapshot import restore, take
from uow.processor.engine.ports import Plan
from uow.processor.engine.rows import read_ledger
from uow.processor.engine.task import PartitionTask
from uow.schemas.codec import decode_as
from uow.schemas.records import LedgerRecord
from uow.spark_sink.audit_state import JournalMark, PartitionMark, read_mark, write_mark
from uow.spark_sink.recompute import (
    GROUP,
    RECORD,
    Arrived,
    Decided,
    Fate,
    Happening,
    Recomputation,
    Row,
    RowMaker,
    held_policy,
    orders_of,
    recompute,
)
from uow.spark_sink.told_placement import ToldPlacement
from uow.topics import headers as names
from uow.topics.commands import CommandReader
from uow.topics.headers import Reading
from uow.topics.policies import DestinationPolicy


def as_arrived(record: FakeRecord) -> Arrived:
    headers = None if isinstance(record.headers_, Exception) else record.headers_ or []
    return Arrived(record.offset_, record.at, record.key_, record.value_, headers)


def in_time(events: list[Any]) -> list[Any]:
    """The same with append times that never go back, as a broker gives them, and nothing redelivered."""
    kept, now = [], 0
    for each in events:
        if isinstance(each, FakeRecord):
            now = max(now, each.at)
            kept.append(replace(each, at=now))
        elif isinstance(each, Tick):
            now = max(now, each.now_ms)
            kept.append(Tick(now))
    return kept


def lived(
    seed: int,
) -> tuple[PartitionTask, World, list[Arrived], list[tuple[int, Arrived]], list[Decided], list[LedgerRecord]]:
    """A worker's life under commands: its task, what it wrote, its input, its commands, what its ledger tells of them, and its ledger."""
    rnd = Random(seed)
    policy = draw_policy(rnd)
    kept_ms = max(
        policy.closed_retention_ms, 1000
    )  # so that no command is forgotten, and done again in the same moment
    policy = replace(policy, closed_retention_ms=kept_ms, closed_max_groups=1_000_000)
    task, world = new_task(policy), World()
    events = in_time(draw_stream(rnd, rnd.choice([60, 300]), rnd.choice([3, 12, 60])))
    told: list[tuple[int, Arrived]] = []

    def work(records: list[FakeRecord], at: int) -> Plan:
        """Commands are read late, at once, or before components that were appended earlier."""
        commands = draw_commands(rnd, task, len(told), at + rnd.choice([-60, 0, 0, 60]))
        told.extend((TP.partition, as_arrived(each)) for each in commands)
        return task.process(records, commands)

    def plans() -> Iterator[Plan | None]:
        for one in polls(rnd, events, rnd.choice([4, 20])):
            if isinstance(one, Tick):
                yield call(task, one)
                yield work([], one.now_ms)
            else:
                yield work(one, rnd.choice(one).at)

    decided, clock, ledgers = [], 0, []
    for plan in plans():
        world.add(plan)
        if plan is not None:
            ledgers.append(decode_as(LedgerRecord, plan.ledger or b""))
            ledger = read_ledger(plan.ledger or b"")[0]
            commands = [(each.id, each.at) for each in ledger.commands]
            decided.append(Decided(TP.partition, ledger.from_offset, ledger.to_offset, clock, commands))
            clock = ledger.clock
    return task, world, [as_arrived(each) for each in events if isinstance(each, FakeRecord)], told, decided, ledgers


def settled(rows: list[Row], world: World) -> list[Row]:
    """What time alone closes counts where the ledger tells of it, as in the audit."""
    closed = {(each.id.decode(), each.generation, each.at) for each in world.closed}

    def is_open(row: Row) -> bool:
        return row.due is not None and (row.id, row.generation, row.due) not in closed

    return [row._replace(fate=Fate.OPEN) if is_open(row) else row for row in rows]


def place_of(offset: int | None) -> bytes:
    return f"{TOPICS.components}/{TP.partition}/{offset}".encode()


def assert_fates(rows: Iterable[Row], task: PartitionTask, received: int) -> None:
    """Each record that was received has one fate, and as many have it as the worker counted."""
    fates = Counter(row.fate for row in rows if row.kind == RECORD)
    counts = task.counts
    expected = {
        Fate.DELIVERED: counts.delivered,
        Fate.EXPIRED: counts.expired,
        Fate.CANCELLED: counts.cancelled,
        Fate.FAILED: counts.failed,
        Fate.OPEN: counts.open,
    }
    assert {fate: fates[fate] for fate in expected} == expected
    assert sum(fates.values()) + counts.joined == counts.received == received


@pytest.mark.parametrize("seed", range(12))
def test_every_record_and_unit_comes_out_as_the_worker_had_it_w203_w216(seed: int) -> None:
    task, world, arrived, told, decided, _ = lived(seed)
    orders = orders_of(decided, told, CommandReader("D", DestinationPolicy()))
    assert len(orders) == sum(len(each.commands) for each in decided)
    place, policy = task.context.place(TP.partition), task.context.policy
    rows = settled(list(recompute(place, policy, [arrived], orders.values())), world)
    singly = recompute(place, policy, [[each] for each in arrived], orders.values())
    assert sorted(settled(list(singly), world), key=str) == sorted(rows, key=str)

    assert_fates(rows, task, len(arrived))

    units = {
        dict(each.headers)[names.UNIT_ID]: each.headers
        for each, _ in world.outputs
        if dict(each.headers).get(names.KIND) == names.KIND_UNIT and names.GENERATION in dict(each.headers)
    }
    assert {
        (row.unit_id or "").encode(): row.headers for row in rows if row.kind == GROUP and row.fate == Fate.DELIVERED
    } == units

    given_up = {
        (place_of(row.offset), (row.error_class or "").encode(), (row.error_case or "").encode(), row.missing)
        for row in rows
        if row.kind == RECORD and row.to_errors and row.fate != Fate.OPEN
    }
    assert given_up == {
        (said[names.SOURCE], said[names.ERROR_CLASS], said[names.ERROR_CASE], (said[names.MISSING] or b"").decode())
        for said in (dict(each.headers) for each, _ in world.outputs if each.topic == TOPICS.errors)
    }


@pytest.mark.parametrize("seed", range(8))
def test_a_recomputation_that_goes_on_from_a_file_gives_the_same_rows_w216(seed: int, tmp_path: Path) -> None:
    task, _, arrived, told, decided, _ = lived(seed)
    orders = orders_of(decided, told, CommandReader("D", DestinationPolicy()))
    place, policy = task.context.place(TP.partition), task.context.policy
    at = Random(seed).randrange(len(decided))
    cut = decided[at].stop
    early = orders_of(decided[: at + 1], told, CommandReader("D", DestinationPolicy()))

    def made(happenings: Iterable[Happening]) -> list[Row]:
        return [row for each in happenings for row in RowMaker(place, policy).rows(each)]

    first = Recomputation(place, policy, early.values())
    rows = made(first.on_records([each for each in arrived if each.offset() < cut]))
    rows += made(first.settle())
    mark = PartitionMark(
        take(first.partition),
        JournalMark(1, None, 2, 3, 4, [(b"x", 1, "expired", 5, "t")], [("g", b"c", 1)], [(b"d", 2)]),
        3,
        4,
    )
    write_mark(tmp_path / "0.avro", mark)
    found = read_mark(tmp_path / "0.avro")
    assert found[1:] == mark[1:]
    state = Partition(place, held_policy(policy))
    restore(state, found.snapshot)
    later = [order for known, order in orders.items() if known not in early]
    second = Recomputation(place, policy, later, state)
    rows += made(second.on_records([each for each in arrived if each.offset() >= cut]))
    rows += made(second.finish())
    assert sorted(rows, key=str) == sorted(recompute(place, policy, [arrived], orders.values()), key=str)


@pytest.mark.parametrize("seed", range(12))
def test_the_ledger_tells_where_ids_belonged_as_well_as_the_rule_by_which_the_worker_placed_them_w105(
    seed: int,
) -> None:
    """A worker that goes by a hash: so the rule is known, and the audit without it must come to the same."""
    task, _, arrived, told, decided, ledgers = lived(seed)
    place, policy = task.context.place(TP.partition), task.context.policy
    placement = ToldPlacement(TP.partition, Reading.of(policy))
    state = Partition(place._replace(partition_for=placement), held_policy(policy))
    placement.follow(state.closed)
    recomputation, maker = Recomputation(state.place, policy, (), state, placement), RowMaker(place, policy)
    happenings: list[Happening] = []
    orders = orders_of(decided, told, CommandReader("D", DestinationPolicy()))
    for ledger, each in zip(ledgers, decided, strict=True):
        placement.on_ledger(ledger)
        recomputation.obey(orders[(each.partition, *known)] for known in each.commands)
        here = [record for record in arrived if ledger.from_offset <= record.offset() < ledger.to_offset]
        happenings += recomputation.on_records(here)
    happenings += recomputation.finish()
    rows = [row for each in happenings for row in maker.rows(each)]
    expected = list(recompute(place, policy, [arrived], orders.values()))
    left_out = {group_id.decode() for group_id in placement.doubtful}
    places = {row.offset for row in rows + expected if row.id in left_out}
    assert len(places) < len(arrived) / 2

    def judged(found: list[Row]) -> list[Row]:
        return sorted((row for row in found if row.id not in left_out and row.offset not in places), key=str)

    assert judged(rows) == judged(expected)
