"""Groups by rule survive a restart: equal groups, equal deadlines, equal outputs, whatever crashed on the way (L3, L4, W-124)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.core.rule_script import Table, r, row, sizes
from tests.core.script import TOPICS, Story, Told, c, clock, context_of, ms, policy_of, refused, story, told
from tests.core.streams import groups_of as all_of
from tests.engine.restored_logs import Logs
from tests.engine.test_replay import WIDE, draw_limits
from tests.fake_record import INPUT
from uow.ops.group_audit import group_findings
from uow.processor.engine.replayable import NO_REPLAY, ReplayLimits
from uow.processor.engine.restore import restore
from uow.processor.engine.rows import read_ledger
from uow.processor.engine.task import STALE_BYTES, PartitionTask
from uow.schemas.error_classes import DuplicateSequenceNumberError, StateCorruptedError
from uow.topics.policies import ExpirationPolicy, Fingerprints
from uow.topics.rules import AtMaxOpenGroups, BelowMin, DeliverOrder, Numbering, Release

ROWS = (
    row("UK", complete_count=5, age_ms=15_000),
    row("UK", version=2, complete_count=3, idle_ms=9_000),
    row("few", complete_count=4, age_ms=7_000, min_count=2, below_min=BelowMin.EXTEND),
    row("given", age_ms=20_000, rule={"rule_id": "numbered", "sequence": Numbering.GIVEN}),
    row("bytes", complete_bytes=30, age_ms=30_000),
    row("held", complete_count=2, age_ms=30_000, rule={"rule_id": "held", "release": Release.HOLD_FIRST}),
    row("kept", complete_count=2, destination={"fingerprints": Fingerprints.ALWAYS}),
)
HELD = {"rule_id": "held", "max_waiting": 1}
POLICY = policy_of(incomplete_expiration_ms=11_000)


def new_task(limits: ReplayLimits = NO_REPLAY, table: Table | None = None) -> PartitionTask:
    return PartitionTask(INPUT, context_of(POLICY, replay=limits, rules=table or Table(*ROWS)))


def restored(logs: Logs, limits: ReplayLimits = NO_REPLAY, table: Table | None = None) -> PartitionTask:
    context = context_of(POLICY, replay=limits, rules=table or Table(later=ROWS))
    return restore(logs, {TOPICS.components: context}, [INPUT])[INPUT]


def state_of(task: PartitionTask) -> Any:
    """The groups but for the number of rows they have, and their deadlines."""
    deadlines = {name: group.due_at(POLICY) for name, group in task.groups.items()}
    return {name: state[:-2] for name, state in all_of(task).items()}, deadlines


def draw_step(rnd: Random, now: float) -> Any:
    kind = rnd.random()
    if kind < 0.1:
        return clock(now)
    if kind < 0.2:
        return told(
            rnd.choice(["release", "extend", "expire", "remove", "cancel"]),
            id="low-stock/UK",
            seq=2,
            until=now + 20,
            at=now,
        )
    if kind < 0.24:
        said = [
            ("uow-command", b"release"),
            ("uow-command-id", b"%f" % rnd.random()),
            ("uow-rule", b"held"),
            ("uow-why", b"-"),
        ]
        return Told(said, b"held", now)
    if kind < 0.3:
        odd = rnd.choice([None, None, "held/held\0"])  # as another id, only longer
        return r("held", at=now, rule="held", id=odd, deliver_at=rnd.choice([None, None, ms(now + 5)]))
    if kind < 0.35:
        plain_id = rnd.choice(["a", "b", "c", "held/held", "low-stock/UK"])  # also where groups by rule are open
        return c(rnd.randint(1, 4), end=rnd.random() < 0.3, id=plain_id, at=now)
    if kind < 0.5:
        return r("given", at=now, rule="numbered", seq=rnd.randint(1, 4), end=rnd.random() < 0.2)
    arrived = now - rnd.choice([0, 0, 0, 2, 20])
    name, version = rnd.choice([("UK", 1), ("UK", 1), ("UK", 2), ("few", 1), ("bytes", 1)])
    copy = f"stock.events/0/{rnd.randint(0, 30)}" if rnd.random() < 0.2 else None
    delay = rnd.choice([None, None, 4.0])
    return r(name, at=now, arrived=arrived, version=version, input=copy, delay=delay, value="x" * rnd.randint(1, 14))


@pytest.mark.parametrize("seed", range(8))
def test_a_restart_anywhere_changes_nothing_about_groups_by_rule_b33_b38_b51_b68(seed: int) -> None:
    """A crash before the commit is taken again, a crash after it is not; both come to what would have been."""
    rnd = Random(seed)
    steady = Story(new_task())
    logs, other = Logs(INPUT), Story(new_task(draw_limits(rnd)))
    now, by_rule = 0.0, 0
    for _ in range(120):
        now += rnd.choice([0, 0.1, 1, 3])
        step = draw_step(rnd, now)
        steady.send(step)
        for attempt in range(2):
            first = len(other.plans)
            before = other.offset, other.command_offset
            other.send(step)
            if attempt == 0 and rnd.random() < 0.1 and logs.committed_offset is not None:
                other.task = restored(logs, draw_limits(rnd))  # the transaction failed
                (other.offset, other.command_offset), other.plans = before, other.plans[:first]
                continue
            break
        logs.take_input([record for _, record in sorted(other.lying.items())])
        for plan in other.plans[first:]:
            logs.add(plan)
        if rnd.random() < 0.15 and logs.committed_offset is not None:
            if rnd.random() < 0.3:
                logs.add(other.task.drain())
            if rnd.random() < 0.3:
                logs.compact()
            other.task = restored(logs, draw_limits(rnd))
            other.task.partition.counts.received = other.task.partition.counts.held
            findings = group_findings(logs, other.task.context, 0)
            assert (other.task.orphans, findings) == (0, []), "an audit finds nothing, whatever happened (B-71)"
            by_rule += sum(group.ruled is not None for group in other.task.groups.values())
        assert state_of(other.task) == state_of(steady.task)
    assert [each for each in other.outputs if each.topic != TOPICS.outcomes] == [
        each for each in steady.outputs if each.topic != TOPICS.outcomes
    ]
    assert by_rule, "no restart met a group by rule"


def write(*steps: Any, limits: ReplayLimits = NO_REPLAY, rows: Any = ROWS) -> tuple[Logs, Story]:
    logs, played = Logs(INPUT), Story(new_task(limits, Table(*rows)))
    played.send(*steps)
    logs.take_input([record for _, record in sorted(played.lying.items())])
    for plan in played.plans:
        logs.add(plan)
    return logs, played


def test_a_copy_of_what_was_delivered_before_the_restart_is_a_resend_b38() -> None:
    copies = [r("kept", input="stock.events/0/7", at=at) for at in (0, 2)]
    logs, _ = write(copies[0], r("kept", at=1))
    after = Story(restored(logs), offset=2)
    after.send(copies[1])
    assert after.seen == [refused(copies[1], DuplicateSequenceNumberError, "resend")]


def test_a_deadline_is_what_it_was_before_the_restart_b68() -> None:
    logs, _ = write(r(at=0), r(at=40, arrived=0.5), limits=WIDE)
    task = restored(logs)
    assert task.tick(ms(50), ms(15)) is None
    after = Story(task)
    after.send(clock(50))
    assert sizes(after) == [("partial", "age", 2)]
    assert after.units[0].closed_at == ms(15.001)


def test_groups_by_rule_are_written_and_never_replayed_b67() -> None:
    logs, played = write(r(at=0), limits=WIDE)
    assert [value is not None for _, value in played.plans[0].changelog] == [True, True]
    assert (restored(logs, WIDE).replayable.floor(9), len(restored(logs).groups)) == (9, 1)
    played.send(clock(16))
    assert [value for _, value in played.plans[-1].changelog] == [None, None]
    logs.add(played.plans[-1])
    logs.compact()
    assert restored(logs).groups == {}


def test_a_due_group_whose_transaction_fails_twice_is_one_unit_and_not_early_b51() -> None:
    logs, _ = write(r(at=0))
    plans = [restored(logs).tick(ms(20)) for _ in range(3)]
    assert all(plan is not None and plan.outputs == plans[0].outputs for plan in plans)  # type: ignore[union-attr]
    logs.add(plans[0])
    assert restored(logs).tick(ms(3_600)) is None


def test_a_group_whose_row_is_gone_is_told_and_not_guessed() -> None:
    logs, _ = write(r(at=0))
    with pytest.raises(StateCorruptedError, match="low-stock/UK@1"):
        restored(logs, table=Table())


CROWDED = (
    pytest.param({"release": Release.HOLD_ALL}, ["held/b"], id="hold-all"),
    pytest.param({"deliver_order": DeliverOrder.FIRST_ARRIVAL}, ["held/a", "held/b"], id="first-arrival"),
)


@pytest.mark.parametrize(("setting", "expected"), CROWDED)
def test_a_group_crowded_out_with_the_record_in_hand_does_not_come_back_b107(setting: Any, expected: list[str]) -> None:
    """It waits for a moment only: the first one may not leave yet, or lets it go as it leaves. Neither may be read again."""
    rows = [row(name, complete_count=2, age_ms=30_000, rule=HELD | setting) for name in "ab"]
    waits = [r("a", at=1, rule="held", deliver_at=ms(5 if len(expected) > 1 else 50)), r("a", at=1, rule="held")]
    logs, played = write(
        *[c(1, id="young", at=0), *waits, r("b", at=2, rule="held"), r("b", at=6, rule="held")], limits=WIDE, rows=rows
    )
    assert [made.id for made in played.units] == expected
    assert read_ledger(played.plans[-1].ledger or b"")[1][-1].before == played.offset
    assert state_of(restored(logs, WIDE, Table(*rows))) == state_of(played.task)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_oldest_group_is_the_one_that_arrived_first_whatever_restarts_b37(is_restarted: bool) -> None:
    """In memory it was the one that opened first, and `uow-arrived-at` may say another order than the log."""
    closing = {"max_open_groups": 3, "at_max_open_groups": AtMaxOpenGroups.CLOSE_OLDEST}
    partial = ExpirationPolicy.DELIVER_PARTIAL
    rows = [row(name, complete_count=2, age_ms=90_000, on_give_up=partial, rule=closing) for name in "ABCDEF"]
    logs, played = write(r("A", at=10), r("B", at=11, arrived=5), r("C", at=12), r("D", at=13), rows=rows)
    if is_restarted:
        played.task = restored(logs, table=Table(*rows))
    played.send(r("E", at=14, arrived=9), r("F", at=15))
    assert [(made.id[-1], made.reason) for made in played.units] == [("B", "limit"), ("A", "limit"), ("E", "limit")]


def test_the_order_of_open_groups_keeps_no_closed_ones_b37() -> None:
    """The limit was reached once, and one old group stays."""
    closing = {"max_open_groups": 2, "at_max_open_groups": AtMaxOpenGroups.CLOSE_OLDEST}
    rows = [row(name, complete_count=2, age_ms=90_000, rule=closing) for name in "ABCD"]
    played = story(r("A", at=1), r("B", at=2), r("C", at=3), r("B", at=4), rules=Table(*rows))
    for _ in range(20):
        played.send(*(r("D", at=5) for _ in range(200)))
    assert (len(played.task.groups), len(played.units)) == (1, 2_002)
    assert sum(map(len, played.task.partition.by_arrival.values())) < 1_500


def test_closed_groups_in_the_order_of_open_ones_count_as_memory_b37() -> None:
    closing = {"max_open_groups": 2, "at_max_open_groups": AtMaxOpenGroups.CLOSE_OLDEST}
    rows = [row(name, complete_count=2, age_ms=90_000, rule=closing) for name in "ABCD"]
    steps = [r("A", at=1), r("B", at=2), r("C", at=3), r("B", at=4), *(r("D", at=5) for _ in range(600))]
    played = story(*steps, rules=Table(*rows))
    counted, (line,) = played.task.memory_bytes, played.task.partition.by_arrival.values()
    assert (len(line), len(played.task.groups)) == (303, 1)
    played.task.partition.by_arrival.clear()
    assert counted - played.task.memory_bytes == STALE_BYTES * 302


def test_a_group_that_opens_and_closes_in_one_poll_is_never_written_b31() -> None:
    played = story(*(r(at=0) for _ in range(10)), rules=Table(*ROWS), incomplete_expiration_ms=11_000)
    assert [plan.changelog for plan in played.plans] == [[]]
