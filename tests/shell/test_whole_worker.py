"""A worker without a broker: real Faust agents, streams, tables and signals, the real driver and tasks, ports in memory."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from tests.shell.memory_kafka import (
    Faults,
    MemoryKafka,
    MemoryLogReader,
    MemorySink,
    MemorySource,
)
from tests.shell.whole_worker import (
    CHANGELOG,
    UNITS,
    answers,
    c,
    in_a_loop,
    rows,
    running,
    send,
    send_to,
    settings,
    tell,
    until,
)
from uow.ops import doctor
from uow.ops.findings import CheckResult
from uow.processor.engine import memory_limit
from uow.processor.engine.batch import SLICE, Batch
from uow.processor.engine.ports import (
    Doubt,
    EndQuestion,
    Refused,
    StaleGeneration,
    Tp,
)
from uow.processor.engine.settings_record import RecordedSettings
from uow.processor.engine.task import PartitionTask
from uow.processor.kafka.sink import STEPS
from uow.processor.shell import app as app_module
from uow.processor.shell.monitor import FATES
from uow.processor.sim.simulated_kafka import State
from uow.schemas.error_classes import ConfigError, FencedError
from uow.schemas.records import SETTINGS_KEY
from uow.topics.commands import Verb
from uow.topics.policies import DestinationPolicy, ExpirationPolicy, HandlingPolicy

P0, P1 = Tp("D.components", 0), Tp("D.components", 1)
EXPIRING = DestinationPolicy(
    handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY,
    incomplete_expiration_ms=100,
    expiration_policy=ExpirationPolicy.REDIRECT,
)


def ids(kafka: MemoryKafka, topic: str = "D.units") -> list[str]:
    return sorted((record.key() or b"").decode() for record in kafka.topic(topic))


def belongs_to(kafka: MemoryKafka, partition: int, name: str) -> str:
    """An id that murmur2 sends to this partition."""
    from uow.topics.partitioner import partition_for

    return next(
        text
        for text in (f"{name}{n}" for n in range(99))
        if partition_for(text.encode(), kafka.partitions) == partition
    )


def position(kafka: MemoryKafka, tp: Tp) -> int | None:
    return kafka.committed[tp].offset if tp in kafka.committed else None


@in_a_loop
async def test_components_become_a_unit_and_positions_move_with_it() -> None:
    kafka = MemoryKafka()
    send(kafka, "u", (1, False), (3, True), (2, False))
    send(kafka, "v", (1, False))
    async with running(kafka) as app:
        await until(lambda: ids(kafka) == ["u"])
        await until(lambda: list(app.tables["D"]) == [b"v"])
        assert sum(committed.offset or 0 for committed in kafka.committed.values()) == 4
    assert app.crash_reason is None
    assert len(rows(kafka)) == 1, "the group that opened and closed inside a poll left no row"


@in_a_loop
async def test_next_worker_restores_open_groups() -> None:
    """W-124."""
    kafka = MemoryKafka()
    send(kafka, "u", (1, False))
    async with running(kafka, settings(replay_limit_records=0)):
        await until(lambda: rows(kafka))
    send(kafka, "u", (2, True))
    async with running(kafka):
        await until(lambda: ids(kafka) == ["u"])
    assert rows(kafka) == []


@in_a_loop
async def test_worker_that_finds_the_settings_of_another_in_its_partition_ends_with_a_config_error_w68() -> None:
    kafka, faults = MemoryKafka(partitions=1), Faults()
    async with running(kafka, faults=faults) as app:
        await until(lambda: kafka.compact(CHANGELOG))
        other = RecordedSettings.of("D", EXPIRING)
        kafka.append(CHANGELOG, SETTINGS_KEY, other.value, partition=0)
        faults.plan("begin", Doubt("planned, so that the partition is restored"))
        send(kafka, "u", (1, True))
        await until(lambda: app.crashed)
        assert isinstance(app.crash_reason, ConfigError)


@in_a_loop
async def test_partitions_move_to_a_second_worker_and_back_with_their_state() -> None:
    kafka = MemoryKafka()
    first, second = belongs_to(kafka, 0, "a"), belongs_to(kafka, 1, "b")
    send(kafka, first, (1, False))
    send(kafka, second, (1, False))
    async with running(kafka) as one:
        await until(lambda: len(one.tables["D"]) == 2)
        async with running(kafka, settings("1")) as two:
            await until(lambda: list(two.tables["D"]) == [second.encode()])
            await until(lambda: list(one.tables["D"]) == [first.encode()])
            send(kafka, second, (2, True))
            await until(lambda: ids(kafka) == [second])
        await until(lambda: set(one.status.tasks) == {P0, P1})
        send(kafka, first, (2, True))
        await until(lambda: ids(kafka) == sorted([first, second]))


@in_a_loop
async def test_spare_worker_is_ready_without_partitions() -> None:
    kafka = MemoryKafka(partitions=1)
    async with running(kafka), running(kafka, settings("1")) as spare:
        assert spare.status.tasks == {}


@pytest.mark.parametrize("step", STEPS[:-1])
def test_doubt_at_a_commit_step_is_undone_and_done_again_once(step: str) -> None:
    """ER-05, ER-11: the producer is replaced, state and position are those of the last commit."""

    @in_a_loop
    async def test() -> None:
        kafka, faults = MemoryKafka(), Faults()
        faults.plan(step, Doubt("planned"), Doubt("planned again"))
        send(kafka, "u", (1, False), (2, True))
        async with running(kafka, faults=faults) as app:
            await until(lambda: ids(kafka) == ["u"])
            await until(lambda: app.status.doubts["Doubt"] == 2)
            assert kafka.epoch("A-worker-0") == 3

    test()


@in_a_loop
async def test_stale_generation_keeps_the_producer_and_redoes_the_poll_once() -> None:
    """ER-14."""
    kafka, faults = MemoryKafka(), Faults()
    faults.plan("offsets", StaleGeneration("planned"))
    send(kafka, "u", (1, False), (2, True))
    async with running(kafka, faults=faults) as app:
        await until(lambda: ids(kafka) == ["u"])
        assert kafka.epoch("A-worker-0") == 1
        assert app.status.doubts == {"StaleGeneration": 1}


@pytest.mark.parametrize("step", STEPS)
def test_crash_at_a_commit_step_loses_and_doubles_nothing(step: str) -> None:
    """ER-01: the next worker of that name sees all of a poll, or nothing of it."""

    @in_a_loop
    async def test() -> None:
        kafka, faults = MemoryKafka(), Faults()
        faults.plan(step, RuntimeError("crash"))
        send(kafka, "u", (1, False), (2, True))
        send(kafka, "v", (1, False))
        async with running(kafka, faults=faults) as app:
            await until(lambda: app.crashed)
        send(kafka, "v", (2, True))
        async with running(kafka):
            await until(lambda: ids(kafka) == ["u", "v"])
        assert kafka.topic("D.rejected") == []

    test()


@in_a_loop
async def test_task_that_raises_blocks_its_partition_at_the_very_record_and_no_other() -> None:
    """ER-03, and W-16 for the others."""
    kafka = MemoryKafka()
    for number in range(40):
        send_to(kafka, 0, belongs_to(kafka, 0, f"good{number}-"), 1, end=True)
    send_to(kafka, 0, belongs_to(kafka, 0, "bad"), 1, value=b"boom")
    send_to(kafka, 0, belongs_to(kafka, 0, "behind"), 1, end=True)
    other = belongs_to(kafka, 1, "other")
    async with running(kafka) as app:
        await until(lambda: P0 in app.status.blocked)
        send(kafka, other, (1, True))
        await until(lambda: other in ids(kafka))
        assert "poison at 40" in app.status.blocked[P0]
        assert position(kafka, P0) == 40
        assert len(ids(kafka)) == 41
    assert app.crash_reason is None
    assert position(kafka, P0) == 40


@in_a_loop
async def test_records_at_which_a_task_raises_are_set_aside_and_the_others_go_on() -> None:
    """Also where they belong to open groups, which are as if they had not come: what half of it changed is rolled back."""
    kafka = MemoryKafka()
    unit = belongs_to(kafka, 0, "unit")
    for number in range(40):
        send_to(kafka, 0, belongs_to(kafka, 0, f"good{number}-"), 1, end=True)
        if number in (3, 4, 20):
            send_to(kafka, 0, unit, number, value=b"boom")
    send(kafka, unit, (1, False), (2, True))
    async with running(kafka, settings(set_aside_per_minute=10)) as app:
        await until(lambda: len(ids(kafka)) == 41)
        assert unit in ids(kafka)
        assert app.status.blocked == {}
        aside = kafka.topic("D.rejected")
        assert [dict(each.headers() or [])["uow-source"] for each in aside] == [
            b"D.components/0/4",
            b"D.components/0/6",
            b"D.components/0/23",
        ]
        said = dict(aside[0].headers() or [])
        assert (said["uow-error-class"], said["uow-error-case"]) == (b"InternalError", b"LookupError")
        assert (aside[0].value(), aside[0].key()) == (b"boom", unit.encode())
        assert said["uow-id"] == unit.encode()
        (finding,) = doctor.set_aside(MemoryLogReader(kafka), "D.rejected", kafka.partitions)
        assert finding.verdict is CheckResult.LOOK
        assert "3 of the last records were set aside" in finding.what
        assert "D.components/0/" in finding.what
    async with running(kafka) as app:  # nothing of it is read again
        await until(lambda: P0 in app.status.tasks)
        assert len(kafka.topic("D.rejected")) == 3


@in_a_loop
async def test_beyond_so_many_a_minute_a_partition_blocks_and_no_other() -> None:
    kafka = MemoryKafka()
    for _ in range(4):
        send_to(kafka, 0, belongs_to(kafka, 0, "bad"), 1, value=b"boom")
    other = belongs_to(kafka, 1, "other")
    send_to(kafka, 1, other, 1, value=b"boom")
    send_to(kafka, 1, other, 1, end=True)
    async with running(kafka, settings(set_aside_per_minute=2)) as app:
        await until(lambda: P0 in app.status.blocked)
        assert "set_aside_per_minute = 2" in app.status.blocked[P0]
        assert position(kafka, P0) == 2
        await until(lambda: ids(kafka) == [other])
        assert len(kafka.topic("D.rejected")) == 3
        kafka.clock.now += 61_000
        await until(lambda: position(kafka, P0) == 4)
        await until(lambda: not app.status.blocked)
    assert len(kafka.topic("D.rejected")) == 5


@in_a_loop
async def test_in_strict_order_nothing_is_set_aside() -> None:
    kafka = MemoryKafka()
    send_to(kafka, 0, belongs_to(kafka, 0, "bad"), 1, value=b"boom")
    policy = replace(UNITS, strict_order=True)
    async with running(kafka, settings(policy=policy, set_aside_per_minute=10)) as app:
        await until(lambda: P0 in app.status.blocked)
        assert kafka.topic("D.rejected") == []


@in_a_loop
async def test_a_cause_that_somebody_repairs_is_no_defect_and_blocks_at_once() -> None:
    kafka = MemoryKafka()
    send_to(kafka, 0, belongs_to(kafka, 0, "bad"), 1, value=b"block")
    async with running(kafka, settings(set_aside_per_minute=10)) as app:
        await until(lambda: P0 in app.status.blocked)
        assert kafka.topic("D.rejected") == []


@in_a_loop
async def test_malformed_component_is_rejected_and_stops_nothing() -> None:
    kafka = MemoryKafka()
    kafka.append("D.components", b"u", b"x", [("uow-id", b"u"), ("uow-seq", b"zero")])
    kafka.append("D.components", None, None, [("uow-id", b"\xff"), ("uow-seq", None)], partition=0)
    kafka.append("D.components", b"plain", b"x", [])
    async with running(kafka) as app:
        await until(lambda: len(kafka.topic("D.rejected")) == 2)
        await until(lambda: ids(kafka) == ["plain"])
        assert app.status.blocked == {}
    assert not [*doctor.set_aside(MemoryLogReader(kafka), "D.rejected", kafka.partitions)]


@in_a_loop
async def test_slot_taken_over_crashes_the_older_worker() -> None:
    """ER-13."""
    kafka = MemoryKafka(partitions=1)
    async with running(kafka) as older:
        newer = MemorySink(kafka, "A-worker-0")
        newer.open()
        send(kafka, "u", (1, True))
        await until(lambda: older.crashed)
        assert isinstance(older.crash_reason, FencedError)
    assert ids(kafka) == []


@in_a_loop
async def test_zombie_writes_nothing_and_works_on_with_what_it_is_given() -> None:
    """R-72, ER-16: thrown out by the group with a transaction in hand, it is refused."""
    kafka, faults = MemoryKafka(partitions=1), Faults()
    step = faults.step

    def thrown_out(name: str) -> None:
        if name == "produced" and name not in faults.visited:
            kafka.expire("0")
        step(name)

    faults.step = thrown_out  # type: ignore[method-assign]
    async with running(kafka, faults=faults) as app:
        await until(lambda: app.status.tasks)
        send(kafka, "u", (1, False), (2, True))
        await until(lambda: ids(kafka) == ["u"])
        await until(lambda: kafka.members)
        assert app.status.doubts == {"StaleGeneration": 1}, "the condition: its transaction was refused"


@in_a_loop
async def test_group_expires_without_traffic_once_the_wall_clock_has_passed_its_deadline() -> None:
    """W-82, W-83, ER-02."""
    kafka = MemoryKafka()
    send(kafka, "u", (1, False))
    async with running(kafka, settings(policy=EXPIRING)) as app:
        await until(lambda: len(app.tables["D"]) == 1)
        kafka.clock.now += 100
        send(kafka, "w", (1, True))  # something to wait for: exactly at the deadline nothing is due
        await until(lambda: ids(kafka) == ["w"])
        assert ids(kafka, "D.errors") == []
        kafka.clock.now += 1
        await until(lambda: ids(kafka, "D.errors") == ["u"])
        await until(lambda: len(app.tables["D"]) == 0)
    assert rows(kafka) == []


@in_a_loop
async def test_clock_that_is_put_right_stalls_no_expiry() -> None:
    """W-83: an hour ahead, the worker asks whether the partition is read to its end, and is to ask again a moment later."""
    kafka = MemoryKafka(partitions=1)
    asked: list[int] = []
    end = MemorySource.end

    def noted(self: MemorySource, tp: Tp) -> EndQuestion:
        asked.append(kafka.clock.shift)
        return end(self, tp)

    send(kafka, "u", (1, False))
    async with AsyncExitStack() as stack:
        stack.enter_context(patch.object(MemorySource, "end", noted))
        app = await stack.enter_async_context(running(kafka, settings(policy=EXPIRING)))
        await until(lambda: len(app.tables["D"]) == 1)
        with kafka.lock:
            kafka.produce("someone", P0, b"plain", b"x", [])
        kafka.clock.shift = 3_600_000
        await until(lambda: kafka.clock.shift in asked)
        kafka.clock.shift = 0
        kafka.clock.now += 101
        with kafka.lock:
            kafka.end("someone", State.COMMITTED)
        await until(lambda: ids(kafka, "D.errors") == ["u"])


@in_a_loop
async def test_open_transaction_in_the_input_delays_expiry_until_it_ends() -> None:
    """W-82: the end offset is the one of a read_uncommitted reader."""
    kafka = MemoryKafka(partitions=1)
    asked: list[int] = []
    end = MemorySource.end

    def noted(self: MemorySource, tp: Tp) -> EndQuestion:
        asked.append(kafka.clock.now)
        return end(self, tp)

    send(kafka, "u", (1, False))
    async with AsyncExitStack() as stack:
        stack.enter_context(patch.object(MemorySource, "end", noted))
        app = await stack.enter_async_context(running(kafka, settings(policy=EXPIRING)))
        await until(lambda: len(app.tables["D"]) == 1)
        with kafka.lock:
            kafka.produce("someone", P0, b"u", b"x", [("uow-id", b"u"), ("uow-seq", b"2"), ("uow-end", b"true")])
        kafka.clock.now += 1000
        polls = app.status.polls
        await until(lambda: kafka.clock.now in asked)  # the condition: overdue, and asked while it is open
        assert ids(kafka, "D.errors") == []
        with kafka.lock:
            kafka.end("someone", State.COMMITTED)
        await until(lambda: ids(kafka) == ["u"])
        assert ids(kafka, "D.errors") == []
        assert app.status.polls > polls


@in_a_loop
async def test_memory_limit_pauses_the_fullest_partition_and_all_go_on_when_it_is_over() -> None:
    """ER-19. What is held would fit, but for the rows of rules that the worker has."""
    kafka = MemoryKafka()
    full, other = belongs_to(kafka, 0, "full"), belongs_to(kafka, 1, "other")
    async with running(kafka, settings(memory_limit_bytes=50_000), rules_bytes=20_000) as app:
        send(kafka, other, (1, False), value=b"y" * 14_000)
        await until(lambda: len(app.tables["D"]) == 1)
        send(kafka, full, (1, False), value=b"x" * 15_000)
        await until(lambda: app.status.paused == {P0})
        send(kafka, full, (2, True))
        send(kafka, other, (2, True))
        await until(lambda: ids(kafka) == sorted([full, other]))
        await until(lambda: app.status.paused == frozenset())


@in_a_loop
async def test_closed_ids_beyond_their_share_are_forgotten_oldest_first_w19() -> None:
    """ER-19. A late component of one opens a new group, as after `closed_retention_ms`."""
    kafka = MemoryKafka()
    names = [f"u{number}" for number in range(30)]
    with patch.object(memory_limit, "LEAST_REMEMBERED_BYTES", 4_000):
        async with running(kafka, settings(memory_limit_bytes=10_000)) as app:
            for name in names:
                send(kafka, name, (1, True))
            await until(lambda: ids(kafka) == sorted(names))
            await until(lambda: sum(task.forgotten for task in app.status.tasks.values()) > 0)
            # the driver's thread forgets step by step
            await until(lambda: 3_000 < sum(task.remembered_bytes for task in app.status.tasks.values()) <= 4_000)
            send(kafka, names[0], (1, True))
            send(kafka, names[-1], (1, True))
            await until(lambda: sorted(ids(kafka)) == sorted([*names, names[0]]))
            await until(lambda: ids(kafka, "D.rejected") == [names[-1]])


@in_a_loop
async def test_input_that_retention_deleted_blocks_its_partition_and_skips_nothing() -> None:
    """W-120."""
    kafka = MemoryKafka()
    send(kafka, belongs_to(kafka, 0, "a"), (1, False))
    async with running(kafka):
        await until(lambda: position(kafka, P0) == 1)
    for _ in range(3):
        send(kafka, belongs_to(kafka, 0, "a"), (2, True))
    kafka.cut(P0, 3)
    other = belongs_to(kafka, 1, "other")
    send(kafka, other, (1, True))
    async with running(kafka) as app:
        await until(lambda: ids(kafka) == [other])
        assert "were deleted before they were read" in app.status.blocked[P0]
    assert position(kafka, P0) == 1


@pytest.mark.parametrize("told", [True, False], ids=["partition known", "partition unknown"])
def test_record_that_cannot_be_written_blocks_its_partition_only(told: bool) -> None:
    """F20: no commit, the partition stops; the others go on."""

    @in_a_loop
    async def test() -> None:
        kafka = MemoryKafka()
        bad, good = belongs_to(kafka, 0, "bad"), belongs_to(kafka, 1, "good")

        class Picky(MemorySink):
            def write(self, plans: Any, token: Any) -> None:
                for plan in plans:
                    if any(output.key == bad.encode() for output in plan.outputs):
                        raise Refused("too large", plan.tp if told else None)
                super().write(plans, token)

        send(kafka, good, (1, True))
        send(kafka, belongs_to(kafka, 0, "before"), (1, True))
        send(kafka, bad, (1, True))
        configured = settings()
        async with running(kafka, configured, sink=Picky(kafka, configured.transactional_id)) as app:
            await until(lambda: P0 in app.status.blocked)
            assert position(kafka, P0) == 1
            send(kafka, belongs_to(kafka, 1, "more"), (1, True))
            await until(lambda: len(ids(kafka)) == 3)
            assert bad not in ids(kafka)
        assert app.crash_reason is None

    test()


@in_a_loop
async def test_table_is_written_by_its_tasks_only() -> None:
    async with running(MemoryKafka()) as app:
        with pytest.raises(TypeError, match="partition tasks"):
            app.tables["D"][b"x"] = b"y"


@in_a_loop
async def test_stop_does_not_wait_for_a_hanging_commit_and_does_not_pretend() -> None:
    """R-68: a stop that could not drain is no clean stop."""
    kafka, release = MemoryKafka(), threading.Event()
    reached = threading.Event()

    class Hanging(MemorySink):
        def write(self, plans: Any, token: Any) -> None:
            reached.set()
            release.wait(10)
            raise Doubt("released")

    send(kafka, "u", (1, True))
    configured = settings(drain_timeout_ms=50)
    async with running(kafka, configured, sink=Hanging(kafka, "A-worker-0")) as app:
        await until(reached.is_set)
    assert isinstance(app.crash_reason, TimeoutError)
    release.set()


@in_a_loop
async def test_agent_that_dies_outside_its_with_block_does_not_hang_the_driver() -> None:
    def enter(batch: Batch) -> Batch:
        raise LookupError("outside")

    kafka = MemoryKafka()
    send(kafka, "u", (1, True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batch, "__enter__", enter)
        async with running(kafka) as app:
            await until(lambda: app.crashed)
    assert kafka.committed == {}


@in_a_loop
async def test_pages_have_their_turn_between_slices_of_a_batch_that_takes_long() -> None:
    turns = 0
    seen: list[int] = []

    async def pages() -> None:
        nonlocal turns
        while len(seen) < 4:
            turns += 1
            await asyncio.sleep(0)

    def on_records(task: PartitionTask, records: Any) -> None:
        seen.append(turns)

    kafka = MemoryKafka(partitions=1)
    send(kafka, "u", *[(number, False) for number in range(1, 4 * SLICE + 1)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app_module, "TURN_S", -1)
        patch.setattr(PartitionTask, "on_records", on_records)
        async with running(kafka):
            await pages()
    assert seen[:4] == sorted(set(seen[:4]))


@in_a_loop
async def test_signals_and_sensors_of_faust_work_and_nothing_leaks_in_the_monitor() -> None:
    kafka = MemoryKafka()
    assigned = []
    async with running(kafka) as app:
        app.on_partitions_assigned.connect(lambda sender, tps, **kwargs: assigned.append(tps), weak=False)
        for number in range(30):
            send(kafka, f"u{number}", (1, True))
            await until(lambda count=number + 1: len(ids(kafka)) == count)
        async with running(kafka, settings("1")):
            await until(lambda: len(app.status.tasks) == 1)
        await until(lambda: assigned)
        monitor = app.monitor
        await until(lambda: monitor.messages_active == 0)
        assert monitor.events_active == 0
        assert monitor.messages_received_total == monitor.events_total
        assert monitor.rebalances >= 1
        assert not app.consumer.unacked


@in_a_loop
async def test_counts_of_a_partition_add_up() -> None:
    """EN-10."""
    kafka = MemoryKafka(partitions=1)
    send(kafka, "u", (1, False), (1, False), (2, True), (2, True))
    send(kafka, "v", (1, False))
    kafka.append("D.components", b"k", b"plain", [])
    async with running(kafka) as app:
        await until(lambda: P0 in app.status.tasks and app.status.tasks[P0].position == 6)
        counts = app.status.counts(P0)
    assert set(counts) == set(FATES)
    assert (
        counts["received"] == 6 == sum(counts[fate] for fate in ("held", "duplicate", "rejected", "passed", "ignored"))
    )
    assert counts["held"] == sum(counts[fate] for fate in ("delivered", "expired", "cancelled", "failed", "open"))


@in_a_loop
async def test_a_command_waits_for_a_transaction_whose_components_came_before_it_w62_w203() -> None:
    """Held back by an open transaction a command is late, not lost; what comes behind it waits with it, and no other partition does."""
    kafka = MemoryKafka()
    held, behind, elsewhere = belongs_to(kafka, 0, "u"), belongs_to(kafka, 0, "v"), belongs_to(kafka, 1, "w")
    async with running(kafka) as app:
        await until(lambda: len(app.status.tasks) == 2)
        with kafka.lock:
            kafka.produce("hop", P0, held.encode(), b"x", c(1, id=held))
            tell(kafka, Verb.CANCEL, held)
            tell(kafka, Verb.RELEASE, behind)
            send(kafka, elsewhere, (1, False))
            tell(kafka, Verb.RELEASE, elsewhere)
        await until(lambda: [answer.id for answer in answers(kafka)] == [elsewhere])
        with kafka.lock:
            kafka.end("hop", State.COMMITTED)
        await until(lambda: len(answers(kafka)) == 3)
    told = {answer.id: answer.text for answer in answers(kafka)}
    assert told[held].startswith("closes the group as cancelled: 1 component")
    assert told[behind] == "no open group of this id"
    assert [dict(record.headers() or [])["uow-failure-reason"] for record in kafka.topic("D.errors")] == [b"cancelled"]
    assert position(kafka, Tp("D.commands", 0)) == 2


@in_a_loop
async def test_a_restart_reads_commands_again_that_waited_w62_w203() -> None:
    kafka = MemoryKafka(partitions=1)
    with kafka.lock:
        kafka.produce("hop", P0, b"u", b"x", c(1))
    send(kafka, "v", (1, True))
    tell(kafka, Verb.CANCEL, "u")
    async with running(kafka) as app:
        await until(lambda: app.status.tasks)
    assert not answers(kafka)
    with kafka.lock:
        kafka.end("hop", State.COMMITTED)
    async with running(kafka):
        await until(lambda: answers(kafka))
    assert answers(kafka)[0].done
    assert [record.key() for record in kafka.topic("D.errors")] == [b"u"]
