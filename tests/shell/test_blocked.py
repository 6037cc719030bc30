"""A blocked partition is tried again by itself, and its groups get their upkeep meanwhile (EN-08; W-82)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

from tests.shell.memory_kafka import MemoryKafka, MemoryLogReader, MemorySink
from tests.shell.test_whole_worker import EXPIRING, P0, belongs_to, ids, position
from tests.shell.whole_worker import Poisonable, in_a_loop, rows, running, send, send_to, settings, until
from uow.processor.engine.ports import Refused, Tp
from uow.processor.engine.quarantine import RETRY_MS

FIRST, SECOND = RETRY_MS[:2]


def healthy() -> Any:
    """The cause of a poisoned record is mended."""
    return patch.object(Poisonable, "_look", staticmethod(lambda records: None))


@in_a_loop
async def test_restore_that_failed_is_done_again_by_itself() -> None:
    """A broker that mends its disk: nobody restarts the worker."""
    kafka = MemoryKafka()
    unit, other = belongs_to(kafka, 0, "u"), belongs_to(kafka, 1, "other")
    send(kafka, unit, (1, True))
    asked: Callable[..., Mapping[Tp, tuple[int, int]]] = MemoryLogReader.bounds
    fails = 2

    def bounds(self: MemoryLogReader, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        nonlocal fails
        if P0 in tps and fails:
            fails -= len(tps) < 6  # both partitions are asked for together first
            raise LookupError("the disk has failed")
        return asked(self, tps)

    with patch.object(MemoryLogReader, "bounds", bounds):
        async with running(kafka) as app:
            await until(lambda: "the disk has failed" in app.status.blocked.get(P0, ""))
            send(kafka, other, (1, True))
            await until(lambda: ids(kafka) == [other])
            kafka.clock.now += FIRST
            await until(lambda: app.status.blocks == 2)
            kafka.clock.now += SECOND
            await until(lambda: ids(kafka) == sorted([unit, other]))
            await until(lambda: not app.status.blocked)


@in_a_loop
async def test_record_whose_output_was_refused_is_tried_again_and_alone() -> None:
    """F20: somebody has raised the topic's limit."""
    kafka = MemoryKafka()
    bad, behind = belongs_to(kafka, 0, "bad"), belongs_to(kafka, 0, "behind")
    tried: list[int] = []

    class Picky(MemorySink):
        is_strict = True

        def write(self, plans: Any, token: Any) -> None:
            for plan in plans:
                keys = [output.key for output in plan.outputs]
                if bad.encode() in keys and self.is_strict:
                    tried.append(len(keys))
                    raise Refused("too large", plan.tp)
            super().write(plans, token)

    send(kafka, bad, (1, True))
    send(kafka, behind, (1, True))
    configured = settings()
    sink = Picky(kafka, configured.transactional_id)
    async with running(kafka, configured, sink=sink) as app:
        await until(lambda: P0 in app.status.blocked)
        tried.clear()
        kafka.clock.now += FIRST
        await until(lambda: app.status.blocks == 2)
        assert tried == [1]
        sink.is_strict = False
        kafka.clock.now += SECOND
        await until(lambda: ids(kafka) == sorted([bad, behind]))
        await until(lambda: not app.status.blocked)


def stands(kafka: MemoryKafka) -> tuple[str, str]:
    """An old group whose deadline passed before a record that blocks came, and a younger one whose last component lies behind that."""
    old, replayable = belongs_to(kafka, 0, "old"), belongs_to(kafka, 0, "young")
    send(kafka, old, (1, False))
    kafka.clock.now += 50
    send(kafka, replayable, (1, False))
    kafka.clock.now += 60
    send_to(kafka, 0, belongs_to(kafka, 0, "bad"), 1, end=True, value=b"boom")
    send(kafka, replayable, (2, True))
    kafka.clock.now += 1000
    return old, replayable


@in_a_loop
async def test_groups_of_a_blocked_partition_are_saved_and_expire_as_far_as_its_time_has_come() -> None:
    """W-82: what lies unread behind the record may have been in time for later deadlines, never for earlier ones."""
    kafka = MemoryKafka()
    old, replayable = stands(kafka)
    async with running(kafka, settings(policy=EXPIRING)) as app:
        await until(lambda: ids(kafka, "D.errors") == [old])
        assert len(rows(kafka)) == 1, "what is held does not depend on the input's retention any more"
        kafka.clock.now += FIRST
        await until(lambda: app.status.blocks == 2)
        assert ids(kafka, "D.errors") == [old]
        assert position(kafka, P0) == 2
        with healthy():
            kafka.clock.now += SECOND
            await until(lambda: replayable in ids(kafka))
    assert ids(kafka, "D.errors") == [old]


@in_a_loop
async def test_time_stands_still_in_a_blocked_partition_while_an_older_command_lies_unread() -> None:
    """W-82, W-203: it may be one that gives the group more time."""
    kafka = MemoryKafka()
    old, _ = stands(kafka)
    told = {"command": "extend", "command-id": "c1", "id": old, "until": str(kafka.clock.now + 10**9), "why": "late"}
    headers = [(f"uow-{name}", text.encode()) for name, text in told.items()]
    kafka.append("D.commands", old.encode(), None, headers, partition=0)
    async with running(kafka, settings(policy=EXPIRING)) as app:
        await until(lambda: len(rows(kafka)) == 2)
        kafka.clock.now += FIRST
        await until(lambda: app.status.blocks == 2)
        assert ids(kafka, "D.errors") == []
