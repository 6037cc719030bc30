"""Groups by rule are computed again from input, commands and ledger: no Spark and no broker (B-14, B-203)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from tests.core import streams
from tests.core.script import T0, TOPICS, policy_of
from tests.core.streams import TP, World, call, new_task
from tests.engine.test_commands_restored import draw_commands
from tests.fake_record import FakeRecord
from tests.spark.test_recomputed_commands import as_arrived, assert_fates, place_of
from uow.processor.core.snapshot import restore, take
from uow.processor.engine.ports import Tp
from uow.processor.engine.rows import read_ledger
from uow.processor.engine.task import PartitionTask
from uow.processor.rules.row_table import RowTable
from uow.spark_sink import expectations, journal
from uow.spark_sink.audit_state import JournalMark, PartitionMark, read_mark, write_mark
from uow.spark_sink.destination_rules import DestinationRules
from uow.spark_sink.expectations import Expectations
from uow.spark_sink.kafka import Cluster, OffsetSpan
from uow.spark_sink.recompute import (
    GROUP,
    RECORD,
    Arrived,
    Decided,
    Fate,
    Happening,
    Order,
    Recomputation,
    Row,
    RowMaker,
    Tick,
    empty_partition,
    orders_of,
    recompute,
)
from uow.topics import headers as names
from uow.topics.commands import Command, CommandReader, Verb, command_headers
from uow.topics.manifests import Manifest, ReplyContext, RequestEntry
from uow.topics.policies import DestinationPolicy, Fingerprints, OutcomesPolicy, ValueFormat
from uow.topics.rules import (
    AtMaxOpenGroups,
    AtWaitingLimit,
    BelowMin,
    Cardinality,
    DeliverOrder,
    LateJoin,
    Numbering,
    Parameter,
    Release,
    ResolvedRow,
    Rule,
    Source,
    WaitFrom,
)
from uow.topics.rules import Row as RuleRow

Step = Order | Tick


def draw_rows(rnd: Random) -> list[ResolvedRow]:
    """Four rules with a row each, whose limits are small enough to matter."""
    found = []
    for number in range(4):
        rule = Rule(
            f"rule-{number}",
            1,
            "D",
            release=rnd.choice([Release.AUTO, Release.AUTO, *Release]),
            release_every_ms=rnd.choice([None, 50]),
            max_waiting=rnd.choice([None, 2]),
            waiting_age_ms=rnd.choice([None, 70]),
            at_waiting_limit=rnd.choice(list(AtWaitingLimit)),
            cardinality=rnd.choice([Cardinality.ONE, Cardinality.ONE, Cardinality.MANY]),
            max_open_groups=rnd.choice([None, None, 1, 2]),
            at_max_open_groups=rnd.choice(list(AtMaxOpenGroups)),
        )
        row = RuleRow(
            rule.rule_id,
            "x",
            1,
            target_topic=rnd.choice([None, "target"]),
            complete_count=rnd.choice([None, 1, 3, 5]),
            complete_bytes=rnd.choice([None, None, 40]),
            age_ms=rnd.choice([30, 60, 120]),
            idle_ms=rnd.choice([None, 25]),
            min_count=rnd.choice([1, 1, 2]),
            below_min=rnd.choice(list(BelowMin)),
            late_join=rnd.choice(list(LateJoin)),
            on_give_up=rnd.choice(list(type(policy_of().expiration_policy))),
            value_format=rnd.choice(list(ValueFormat)),
        )
        sources = (Source(rule.rule_id, "a", 1, quantity=2), Source(rule.rule_id, "b", 1, wait_ms=40))
        if rnd.random() < 0.3:
            row = replace(row, complete_when="per_source")
        else:
            sources = ()
        found.append(ResolvedRow(rule, row, sources))
    calls = Rule("calls", 1, "D", group_key="request", sequence=Numbering.GIVEN)
    when = rnd.choice(["manifest", "manifest(2)"])
    row = RuleRow(
        "calls",
        "x",
        1,
        complete_when=when,
        age_ms=rnd.choice([None, 60]),
        value_format=rnd.choice(list(ValueFormat)),
        on_give_up=rnd.choice(list(type(policy_of().expiration_policy))),
    )
    found.append(
        ResolvedRow(
            calls,
            row,
            (),
            (
                Parameter("reply_hold_ms", 1, rnd.choice(["0", "40"])),
                Parameter("reply_topics", 1, "answers"),
                Parameter("notice_topics", 1, "stop"),
            ),
        )
    )
    return found


class Life(NamedTuple):
    """What a worker did: its task and outputs, its input, the rows of its rules, what its logs tell in order, and these logs by topic."""

    task: PartitionTask
    world: World
    arrived: list[Arrived]
    rows: dict[str, ResolvedRow]
    steps: list[tuple[int, list[Step]]]
    logs: dict[str, list[FakeRecord]]


def lived(seed: int, *, with_commands: bool = True) -> Life:
    rnd = Random(seed)
    rows = {row.name: row for row in draw_rows(rnd)}
    fingerprints = [*Fingerprints][seed // 2 % 2]
    policy: DestinationPolicy = policy_of(
        outcomes=OutcomesPolicy.ALL, incomplete_expiration_ms=80, fingerprints=fingerprints
    )
    task, world = new_task(policy, rules=RowTable(rows, "D", policy)), World()
    ids = [each.rule.rule_id for each in rows.values()]
    arrived, told, decided, ticks = [], [], [], []
    logs: dict[str, list[FakeRecord]] = defaultdict(list)
    now, written_clock = T0, 0
    for _ in range(rnd.choice([40, 120])):
        now += rnd.choice([0, 1, 5, 20, 60])
        if rnd.random() < 0.3:
            plan = call(task, streams.Tick(now))
        else:
            batch = []
            for _ in range(rnd.randrange(1, 6)):
                now += rnd.choice([0, 1, 3])
                batch.append(component(rnd, rnd.choice([*ids, ""]), len(arrived), now))
                arrived.append(as_arrived(batch[-1]))
            logs[TOPICS.components] += batch
            commands = some_commands(rnd, task, ids, len(told), now) if with_commands else []
            told.extend((TP.partition, as_arrived(each)) for each in commands)
            logs[TOPICS.commands] += commands
            plan = task.process(batch, commands)
        world.add(plan)
        if plan is None:
            continue
        reports = [each.value for each in plan.outputs if each.topic == TOPICS.outcomes]
        for topic, values in ((TOPICS.closed_changelog, [plan.ledger]), (TOPICS.outcomes, reports)):
            own = logs[topic]
            own += [
                FakeRecord(len(own) + n, [], value, b"", now, Tp(topic, TP.partition)) for n, value in enumerate(values)
            ]
        ledger, found = read_ledger(plan.ledger or b"")
        known = [(each.id, each.at) for each in ledger.commands]
        decided.append(Decided(TP.partition, ledger.from_offset, ledger.to_offset, written_clock, known))
        is_tick = ledger.from_offset == ledger.to_offset and not ledger.commands
        closed = frozenset((each.id, each.generation) for each in found)
        ticks.append([Tick(ledger.to_offset, min(ledger.clock, now), closed)] if is_tick else [])
        written_clock = ledger.clock
    orders = orders_of(decided, told, CommandReader("D", DestinationPolicy()))
    steps = [
        (one.stop, [*(orders[(one.partition, *each)] for each in one.commands), *tick])
        for one, tick in zip(decided, ticks, strict=True)
    ]
    return Life(task, world, arrived, rows, steps, logs)


def executed(life: Life, patch: pytest.MonkeyPatch) -> list[Row]:
    """The rows of the task that Spark runs for the partition. What time closed counts where a log tells of it."""

    class Log:
        def __init__(
            self, cluster: object, topic: str, partition: int, start: int | None = None, **more: object
        ) -> None:
            self._records = iter([each for each in life.logs[topic] if each.offset() >= (start or 0)])

        def until(self, end: int) -> Iterator[list[FakeRecord]]:
            while batch := [*islice(self._records, 7)]:
                yield batch

        def rest(self) -> Iterator[list[FakeRecord]]:
            return self.until(0)

        def hidden(self, offsets: object) -> set[int]:
            return set()

        def close(self) -> None:
            pass

    patch.setattr(expectations, "PartitionLog", Log)
    patch.setattr(journal, "PartitionLog", Log)
    span = OffsetSpan({0: 0, 1: 0}, {0: life.task.position, 1: 0})
    rules = DestinationRules(rows=life.rows)
    wanted = Expectations(Cluster(""), TOPICS, life.task.context.policy, span, rules=rules)
    found = []
    for each in expectations._PartitionTask(wanted, TP.partition).rows(None):
        row, recorded = Row(*each[: len(Row._fields)]), each[len(Row._fields)]
        found.append(row._replace(fate=Fate.OPEN) if row.due is not None and recorded is None else row)
    return found


def component(rnd: Random, rule: str, offset: int, now: int) -> FakeRecord:
    """A component of one of two groups of a rule; of a unit of work without one."""
    if not rule:
        own = rnd.choice([b"p", b"q"])
        end = [("uow-end", b"true")] if rnd.random() < 0.3 else []
        return FakeRecord(offset, [("uow-id", own), ("uow-seq", b"%d" % rnd.randrange(1, 4)), *end], b"v", own, now)
    key = f"{rule}/{rnd.choice('xy')}".encode()
    headers: list[tuple[str, Any]] = [("uow-id", key), ("uow-rule", f"{rule}/x@1".encode())]
    headers.append(("uow-input", f"in/0/{offset - rnd.choice([0] * 9 + [1])}".encode()))
    headers.append(("uow-source-name", rnd.choice([b"a", b"b"])))
    if rule == "calls":
        key = b"calls/x/%d" % (offset // 25)
        headers[0] = ("uow-id", key)
        headers.append(("uow-seq", b"%d" % rnd.randrange(1, 5)))
    if rnd.random() < 0.3:
        headers.append(("uow-arrived-at", b"%d" % (now - rnd.choice([0, 2, 40]))))
    if rnd.random() < 0.1:
        headers.append(("uow-delay-ms", b"10"))
    return FakeRecord(offset, headers, rnd.choice([b"<a/>", b"text", b"{}" * 10]), key, now)


def some_commands(rnd: Random, task: PartitionTask, rules: Iterable[str], offset: int, now: int) -> list[FakeRecord]:
    found = draw_commands(rnd, task, offset, now)
    if rnd.random() < 0.3:
        release = Command(b"r%d" % offset, Verb.RELEASE, b"", "now", None, rule=rnd.choice([*rules]))
        where = Tp(TOPICS.commands, TP.partition)
        found.append(FakeRecord(offset + len(found), command_headers(release), None, b"", now, where))
    if rnd.random() < 0.5:
        key = b"calls/x/%d" % (task.position // 25)
        weights = Random(offset).choices([1, 1, 2], k=rnd.randrange(1, 4))
        listed = tuple([RequestEntry("f", "t", weight, "stop") for weight in weights])
        context = rnd.choice([ReplyContext(), ReplyContext("answers", "place", "mark", (("user", "said"),))])
        manifest = Manifest("x", listed, rnd.choice([None, 0, 50]), context)
        called = Command(b"m%d" % offset, Verb.MANIFEST, key, "call", rule="calls/x@1", manifest=manifest)
        where = Tp(TOPICS.commands, TP.partition)
        found.append(FakeRecord(offset + len(found), command_headers(called), manifest.encode(), key, now, where))
    return found


def all_steps(life: Life) -> list[Step]:
    return [step for _, several in life.steps for step in several]


@pytest.mark.parametrize("seed", range(24))
def test_every_record_and_unit_by_rule_comes_out_as_the_worker_had_it_b203(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = lived(seed, with_commands=bool(seed % 2))
    task, world = life.task, life.world
    rows = executed(life, monkeypatch)
    assert_fates(rows, task, len(life.arrived))
    units = {
        dict(each.headers)[names.UNIT_ID]: (each.topic, each.key, each.headers)
        for each, _ in world.outputs
        if dict(each.headers).get(names.KIND) == names.KIND_UNIT
    }
    found = [row for row in rows if row.kind == GROUP and row.fate == Fate.DELIVERED]
    assert {(row.unit_id or "").encode(): ((row.topics or [""])[0], row.key, row.headers) for row in found} == units
    documents = {
        dict(each.headers)[names.UNIT_ID]: sha256(each.value).digest()
        for each, _ in world.outputs
        if names.RULE in dict(each.headers)
        and (each.value or b"")[:1] in (b"<", b"{")
        and each.topic != TOPICS.rejected
        if dict(each.headers).get(names.KIND) == names.KIND_UNIT
    }
    assert {(row.unit_id or "").encode(): row.document for row in found if row.document} == documents
    given_up = {
        (place_of(row.offset), (row.error_case or "").encode())
        for row in rows
        if row.kind == RECORD and row.to_errors and row.fate != Fate.OPEN
    }
    assert given_up == {
        (said[names.SOURCE], said[names.ERROR_CASE])
        for said in (dict(each.headers) for each, _ in world.outputs if each.topic == TOPICS.errors)
    }


@pytest.mark.parametrize("seed", range(8))
def test_a_recomputation_of_groups_by_rule_goes_on_from_a_file_b203(seed: int, tmp_path: Path) -> None:
    life = lived(seed)
    place, policy = life.task.context.place(TP.partition), life.task.context.policy
    at = Random(seed).randrange(len(life.steps))
    cut = life.steps[at][0]

    def made(happenings: Iterable[Happening]) -> list[Row]:
        return [row for each in happenings for row in RowMaker(place, policy).rows(each)]

    early = [step for _, several in life.steps[: at + 1] for step in several]
    first = Recomputation(place, policy, early, empty_partition(place, policy, life.rows))
    rows = made(first.on_records([each for each in life.arrived if each.offset() < cut]))
    rows += made(first.settle())
    write_mark(tmp_path / "0.avro", PartitionMark(take(first.partition), JournalMark(), 3, 4))
    state = empty_partition(place, policy, life.rows)
    restore(state, read_mark(tmp_path / "0.avro").snapshot)
    later = [step for _, several in life.steps[at + 1 :] for step in several]
    second = Recomputation(place, policy, later, state)
    rows += made(second.on_records([each for each in life.arrived if each.offset() >= cut]))
    rows += made(second.finish())
    whole = recompute(place, policy, [life.arrived], all_steps(life), life.rows)
    assert sorted(rows, key=str) == sorted(whole, key=str)


@pytest.mark.parametrize("plan_bytes", [0, 1_000_000])
@pytest.mark.parametrize("is_ticked", [False, True])
def test_a_plan_that_only_delivers_what_a_full_one_left_is_no_time_for_other_groups_b118_b203(
    plan_bytes: int, is_ticked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record of the ledger has no input either; a group that was complete by time alone was said to wait since then, and took no more."""
    in_order = ResolvedRow(
        Rule("order", 1, "D", deliver_order=DeliverOrder.FIRST_ARRIVAL), RuleRow("order", "x", 1, complete_count=2)
    )
    sources = (
        Source("hold", "a", 1, quantity=1),
        Source("hold", "b", 1, quantity=5, wait_ms=2_000, wait_from=WaitFrom.GROUP),
    )
    held = RuleRow("hold", "x", 1, complete_when="per_source", late_join=LateJoin.LENIENT)
    hold = ResolvedRow(Rule("hold", 1, "D", release=Release.HOLD_ALL), held, sources)
    rows = {each.name: replace(each, row=replace(each.row, age_ms=900_000)) for each in (in_order, hold)}
    policy: DestinationPolicy = policy_of(outcomes=OutcomesPolicy.ALL)
    task, world = new_task(policy, rules=RowTable(rows, "D", policy), plan_bytes=plan_bytes), World()
    logs: dict[str, list[FakeRecord]] = defaultdict(list)

    def routed(offset: int, key: str, at: int, source: bytes = b"a") -> FakeRecord:
        rule, own = key.partition("/")[0], key.encode()
        said = [("uow-id", own), ("uow-rule", f"{rule}/x@1".encode()), ("uow-input", b"in/0/%d" % offset)]
        return FakeRecord(offset, [*said, ("uow-source-name", source)], b"text", own, T0 + at)

    def work_off(records: list[FakeRecord], now: int) -> None:
        logs[TOPICS.components] += records
        while True:
            left = [each for each in records if each.offset() >= task.position]
            plan = task.process(left) if left or not is_ticked else task.tick(T0 + now, T0)
            if plan is not None:
                world.add(plan)
                own = logs[TOPICS.closed_changelog]
                own.append(FakeRecord(len(own), [], plan.ledger, b"", T0 + now, Tp(TOPICS.closed_changelog, 0)))
            if task.position > records[-1].offset() and not task.partition.freed:
                return

    early = [("hold/g", 1_000), ("order/x", 1_500), ("order/y", 1_600), ("order/y", 1_700), ("order/x", 5_000)]
    work_off([routed(offset, *each) for offset, each in enumerate(early)], 5_000)
    work_off([routed(5, "hold/g", 6_000, b"b"), routed(6, "hold/g", 6_100, b"b")], 6_100)
    found = executed(Life(task, world, [], rows, [], logs), monkeypatch)
    of_group = [(row.generation, row.fate) for row in found if row.kind == RECORD and row.id == "hold/g"]
    assert of_group == [(1, Fate.OPEN)] * 3
