"""The timeline of a group, from the record of an input to the unit on its target, as `uow show` tells it (aggregation, B-201)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException

from tests.shell.memory_kafka import MemoryKafka, MemoryLogReader
from tests.shell.test_routed_worker import ROUTERS, held, rule_log, running, send, units, until_as_time_goes_by
from tests.shell.whole_worker import answers, in_a_loop, settings, until
from uow.cli import show_command
from uow.cli.main import main
from uow.ops import group_story
from uow.ops.group_story import Event, Owner, owner, story
from uow.ops.inspect import inspect_group
from uow.processor.engine.context import TaskContext
from uow.processor.engine.ports import Committed, Tp
from uow.processor.kafka.router_desk import LoggedRules
from uow.processor.shell.app import task_contexts
from uow.topics.commands import Command, Verb, command_headers
from uow.topics.partitioner import partition_for

UK = "low-stock/UK"


def context_of(kafka: MemoryKafka) -> TaskContext:
    (context,) = task_contexts(replace(settings(), routers=ROUTERS), {"D.components": kafka.partitions}).values()
    return replace(context, rules=LoggedRules(rule_log(kafka), "D", context.policy))


def told_of(kafka: MemoryKafka, group_id: str = UK) -> list[Event]:
    context, reader = context_of(kafka), MemoryLogReader(kafka)
    found = inspect_group(reader, context, group_id, now_ms=kafka.clock.now_ms())
    topics = ("D.components", "D.commands", "D.outcomes", "D.rejected", "D.units", "orders.uk")
    return story(reader, context, dict.fromkeys(topics, kafka.partitions), found, group_id).events


def command(kafka: MemoryKafka, verb: Verb, **more: Any) -> None:
    said = {
        "id": f"{verb} {UK}".encode(),
        "verb": verb,
        "group_id": UK.encode(),
        "why": "the depot asked",
        "by": "Jill",
    }
    headers = command_headers(Command(**said | more))
    kafka.append("D.commands", UK.encode(), None, headers)


@in_a_loop
async def test_a_group_is_told_from_its_input_records_to_its_unit_b201() -> None:
    kafka = MemoryKafka()
    send(kafka, "UK", 2)
    send(kafka, "Spain", 1)
    async with running(kafka) as app:
        await until(lambda: held(app) == 3)
        kafka.clock.now += 1000
        command(kafka, Verb.EXTEND, until=kafka.clock.now_ms() + 40_000)
        await until(lambda: answers(kafka))
        opened = told_of(kafka)
        assert [each.what for each in opened] == ["input", "input", "component", "component", "command", "answer"]
        assert [each.where for each in opened[:2]] == ["stock.events/0/0", "stock.events/1/0"]
        assert [each.text for each in opened[:4]] == [
            "routed by low-stock/UK@1",
            "routed by low-stock/UK@1",
            "number 1, rule low-stock/UK@1",
            "number 2, rule low-stock/UK@1",
        ]
        assert opened[4].text == "extend, by Jill (unverified): the depot asked"
        assert opened[5].text.startswith("moves the age deadline from")
        home = partition_for(UK.encode(), kafka.partitions)
        assert [each.where.rpartition("/")[0] for each in opened[2:]] == [
            f"{topic}/{home}" for topic in ("D.components", "D.components", "D.commands", "D.outcomes")
        ]
        kafka.clock.now += 50_000
        await until_as_time_goes_by(kafka, lambda: units(kafka, "orders.uk"))
        closed = told_of(kafka)
        assert [each.what for each in closed] == [*(each.what for each in opened), "close", "unit"]
        (close,) = [each for each in closed if each.what == "close"]
        assert close.text == "generation 1: partial, reason age, 2 components, rule low-stock/UK@1"
        (unit,) = [each for each in closed if each.what == "unit"]
        assert (unit.where.partition("/")[0], unit.text) == ("orders.uk", "generation 1: partial, 2 components")
        kafka.clock.now += 1
        send(kafka, "UK", 1)
        # the next generation has its own story, once its transaction is committed
        await until(lambda: [each.what for each in told_of(kafka)] == ["input", "component"])
        command(kafka, Verb.RELEASE)
        await until(lambda: len(answers(kafka)) == 2)
        kafka.clock.now += 10
        command(kafka, Verb.EXTEND, until=kafka.clock.now_ms() + 90_000, id=b"later")
        await until(lambda: len(answers(kafka)) == 3)
        released = [each.what for each in told_of(kafka)]
        assert released[:3] == ["input", "component", "command"]
        assert sorted(released[3:]) == ["answer", "close", "unit"], "and nothing of the command that came too late"


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs `uow show` on topics in memory."""

    def run(kafka: MemoryKafka, *arguments: str) -> Any:
        topics = ("D.components", "D.commands", "D.outcomes", "D.rejected", "D.units", "orders.uk")
        for name, value in {
            "task_context": lambda *_: context_of(kafka),
            "admin_client": lambda *_: None,
            "log_reader": lambda _: nullcontext(MemoryLogReader(kafka)),
            "partition_counts": lambda _: dict.fromkeys(topics, kafka.partitions),
            "owner": lambda *_: Owner("A-worker-0 at 127.0.0.1"),
            "wall_clock_ms": kafka.clock.now_ms,
        }.items():
            monkeypatch.setattr(show_command, name, value)
        return CliRunner().invoke(main, ["show", "D", *arguments], catch_exceptions=False)

    return run


@pytest.fixture
def two_held() -> MemoryKafka:
    """Two components were routed to a group, and no worker runs any more."""
    kafka = MemoryKafka()
    send(kafka, "UK", 2)

    @in_a_loop
    async def route() -> None:
        async with running(kafka) as app:
            await until(lambda: held(app) == 2)

    route()
    return kafka


def test_show_says_where_the_workers_judge_commands_by_other_keys_and_asks_for_no_other_partition(
    two_held: MemoryKafka, shown: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka, asked = two_held, list[Tp]()

    def committed(
        self: MemoryLogReader, tps: Sequence[Tp], isolation: str = "read_committed"
    ) -> Mapping[Tp, Committed]:
        if isolation == "read_uncommitted":
            asked.extend(tps)
        return {tp: Committed(2, f"1;F=0;R=1;C=5;S={'a' * 16}{rights}") for tp in tps}

    monkeypatch.setattr(MemoryLogReader, "committed", committed)
    for rights in ("", "b" * 16):
        said = shown(kafka, UK)
        assert said.exit_code == 0, said.output
        assert ("the workers judge commands by other keys" in said.stderr) is (rights != "")
    assert {*asked} == {Tp("D.components", partition_for(UK.encode(), kafka.partitions))}


def test_show_says_why_a_group_is_not_out_yet_b201(
    two_held: MemoryKafka, shown: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = two_held
    said = shown(kafka, UK)
    assert said.exit_code == 0, said.output
    for line in (
        "waits for:      3 more components",
        "rule:           low-stock/UK@1",
        "worker:         A-worker-0 at 127.0.0.1",
        "last came:      number 2 from stock.events, 0 ms ago, at stock.events/1/0",
    ):
        assert line in said.stdout, said.stdout
    assert shown(kafka, UK, "--generation", "2").exit_code == 1
    monkeypatch.setattr(group_story, "MOST_READ", 1)
    command(kafka, Verb.RELEASE)
    command(kafka, Verb.CANCEL)
    told = shown(kafka, UK)
    assert ("cancel, by Jill" in told.stdout, "release, by Jill" in told.stdout) == (True, False)
    assert "offsets of D.commands were looked through" in told.stderr


@pytest.mark.parametrize(
    ("code", "is_known"),
    [
        (KafkaError.GROUP_ID_NOT_FOUND, True),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, False),
        (KafkaError._TIMED_OUT, False),
    ],
)
def test_whose_a_partition_is_is_said_to_be_unknown_where_nobody_tells(code: int, is_known: bool) -> None:
    asked: Future[Any] = Future()
    asked.set_exception(KafkaException(KafkaError(code, "why not")))
    client: Any = SimpleNamespace(describe_consumer_groups=lambda groups, **_: {groups[0]: asked})
    assert owner(client, "uow", Tp("supply.components", 0)) == (Owner() if is_known else Owner(unknown="why not"))
