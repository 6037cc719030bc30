"""What a worker shows: pages, metrics, and where they listen."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import Any

import aiohttp
import pytest

from tests.core.script import Story, c, context_of, ms, policy_of
from tests.fake_record import INPUT
from tests.shell.memory_kafka import MemoryKafka
from tests.shell.whole_worker import c as marks
from tests.shell.whole_worker import in_a_loop, running, send, until
from uow.processor.engine.ports import Headers, Tp
from uow.processor.engine.task import PartitionTask
from uow.processor.shell.monitor import METRICS, WorkerStatus, registry_for
from uow.processor.shell.page_server import web_address
from uow.processor.shell.pages import group_view, groups_view, health_view, is_known
from uow.topics.order_state import OrderState, PartitionOrder
from uow.topics.partitioner import partition_for


@in_a_loop
async def test_groups_page_and_metrics_tell_counts_open_groups_and_blocked_partitions() -> None:
    kafka = MemoryKafka(partitions=1)
    send(kafka, "u", (1, False))
    async with running(kafka, web=web_address("127.0.0.1:0")) as app:
        await until(lambda: len(app.tables["D"]) == 1)
        before = [*app.status.tasks.values()]
        send(kafka, "v", (1, False), value=b"boom")
        # It is blocked first, and restored then: until that is done it shows no groups.
        await until(lambda: app.status.blocked and [*app.status.tasks.values()] != before)
        base = f"http://127.0.0.1:{app.web.port}"
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{base}/groups/") as answer:
                page = await answer.json()
            async with session.get(f"{base}/metrics") as answer:
                text = await answer.text()
    partition = page["destinations"]["D"]["0"]
    assert partition["counts"]["open"] == 1
    assert partition["open_groups"] == 1
    assert [group["id"] for group in partition["groups"]] == ["u"]
    assert "poison at 1" in partition["blocked"]
    assert 'uow_open_groups{destination="D",partition="0"} 1.0' in text
    assert 'uow_blocked{destination="D",partition="0"} 1.0' in text
    assert 'uow_components_total{destination="D",fate="held",partition="0"}' in text


def test_a_state_that_is_let_go_while_a_page_looks_a_group_up_is_a_group_that_is_not_open() -> None:
    """The poll loop's thread lets go of it, the pages' thread looks."""
    played = Story(PartitionTask(INPUT, context_of(policy_of())))
    played.send(c(1, id="a"))

    class LetGoAtTheFirstLook:
        def __init__(self) -> None:
            self.seen = [played.task.groups, {}]

        @property
        def groups(self) -> Any:
            return self.seen.pop(0) if len(self.seen) > 1 else self.seen[0]

        context, groups_alone = played.task.context, played.task.groups_alone

    status = WorkerStatus("0", {INPUT.topic: "D"}, {INPUT: LetGoAtTheFirstLook()})  # type: ignore[dict-item]
    found = group_view(status, "D", "a", ms(9))
    assert found is None or found["id"] == "a"


def test_a_page_looks_for_the_groups_that_stand_alone_once_however_many_groups_it_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may be thousands, as where `D.errors` takes nothing; each look goes through all of them."""
    played = Story(PartitionTask(INPUT, context_of(policy_of())))
    played.send(*[c(1, id=f"g{number}") for number in range(30)])
    looks: list[Any] = []
    monkeypatch.setattr(PartitionTask, "groups_alone", property(lambda task: looks.append(task) or {}))
    page = groups_view(WorkerStatus("0", {INPUT.topic: "D"}, {INPUT: played.task}), ms(9))
    (partition,) = page["destinations"]["D"].values()
    assert (len(partition["groups"]), len(looks)) == (20, 1)


@in_a_loop
async def test_pages_show_ranges_deadline_end_and_the_timeline_of_a_group_as_the_command_line_does_w201() -> None:
    """Held and missing numbers, whether the end is known, sources and hops in order of arrival; 404 for a group that is not open."""
    kafka = MemoryKafka(partitions=1)
    came: Headers = [*marks(4), ("uow-hops", b"gadget-planet,widget-world")]
    kafka.append("D.components", b"u", b"x", came)
    send(kafka, "u", (1, False), (7, True))
    async with running(kafka, web=web_address("127.0.0.1:0")) as app:
        await until(lambda: app.status.tasks and app.status.counts(Tp("D.components", 0))["open"] == 3)
        base = f"http://127.0.0.1:{app.web.port}"
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{base}/groups/") as answer:
                (listed,) = (await answer.json())["destinations"]["D"]["0"]["groups"]
            async with session.get(f"{base}/group/?destination=D&id=u") as answer:
                shown = (await answer.json())["open"]
            async with session.get(f"{base}/group/?destination=D&id=v") as answer:
                assert answer.status == 404
    assert (listed["id"], listed["held"], listed["missing"]) == ("u", "1,4,7", "2-3,5-6")
    assert (listed["end"], listed["end_known"], listed["deadline"], listed["at_risk"]) == (7, True, None, False)
    assert listed["age_ms"] >= 0
    timeline = shown.pop("components")
    assert shown.keys() == listed.keys()
    assert [(each["seq"], each["source"], each["hops"]) for each in timeline] == [
        (4, "D.components/0/0", ["gadget-planet", "widget-world"]),
        (1, "D.components/0/1", []),
        (7, "D.components/0/2", []),
    ]


def test_metrics_tell_groups_at_risk_components_sent_on_mixed_units_and_open_transactions_w50_w110_w133_w211() -> None:
    limit = 100
    story = Story(PartitionTask(INPUT, context_of(policy_of(incomplete_expiration_ms=limit * 1000), 4)))
    home = next(name for name in map(str, range(99)) if partition_for(name.encode(), 4) == INPUT.partition)
    away = next(name for name in map(str, range(99)) if partition_for(name.encode(), 4) != INPUT.partition)
    story.send(c(1, id=home, at=0), c(1, id=away, at=0))
    tp, status = Tp("D.components", INPUT.partition), WorkerStatus("0", {"D.components": "D"})
    status.tasks = {tp: story.task}
    status.read_stable_lags = lambda: {tp: 17}

    def told(name: str, at: float) -> float:
        labels = {"destination": "D", "partition": str(tp.partition)}
        value = registry_for(status, lambda: ms(at)).get_sample_value(name, labels)
        assert value is not None
        return value

    assert [told("uow_groups_at_risk", at) for at in (79, 80)] == [0, 1]
    assert told("uow_rerouted_components_total", 1) == 1
    assert told("uow_last_stable_offset_lag", 1) == 17
    assert told("uow_mixed_units_total", 1) == 0
    status.read_held_back = lambda: {tp: (2, ms(1))}
    assert status.order(tp, ms(9)).state == "blocked-transaction"
    status.blocked, status.blocked_since = {tp: "no disk"}, {tp: ms(3)}
    assert status.order(tp, ms(9)) == PartitionOrder(OrderState.BLOCKED_HANDLER, 2, ms(3), "no disk")
    status.unblock(tp)
    status.read_held_back = dict
    assert status.order(tp, ms(9)) == PartitionOrder(OrderState.OK, 2)
    story.send(c(2, id=home, end=True, at=1, priority=7))
    assert told("uow_mixed_units_total", 1) == 1


@in_a_loop
async def test_the_page_for_probes_says_when_no_broker_is_heard_and_what_is_blocked() -> None:
    """Faust's own says OK whatever happens."""
    kafka, silent = MemoryKafka(partitions=1), "nothing heard of the group's coordinator for 9.0 s"
    async with running(kafka, web=web_address("127.0.0.1:0")) as app, aiohttp.ClientSession() as session:
        await until(lambda: app.status.tasks)

        async def health() -> tuple[int, object]:
            async with session.get(f"http://127.0.0.1:{app.web.port}/") as answer:
                return answer.status, await answer.json()

        assert await health() == (200, {"status": "OK"})
        app.status.read_complaint = lambda: silent
        assert await health() == (503, {"status": "cut off", "why": silent})
        app.status.read_complaint = lambda: None
        send(kafka, "v", (1, False), value=b"boom")
        await until(lambda: app.status.blocked)
        status, told = await health()
        assert (status, told["status"]) == (200, "blocked")  # type: ignore[index]
        assert "poison" in told["why"]["D.components/0"]  # type: ignore[index]


def test_next_deadline_is_that_of_an_open_group_or_empty() -> None:
    task = PartitionTask(INPUT, context_of(policy_of(incomplete_expiration_ms=100_000)))
    status = WorkerStatus("0", {INPUT.topic: "D"}, {INPUT: task})

    def next_deadline() -> int | None:
        return groups_view(status, ms(0))["destinations"]["D"]["0"]["next_deadline"]  # type: ignore[no-any-return]

    played = Story(task)
    assert next_deadline() is None
    played.send(c(1, id="a", at=0), c(1, id="b", at=5))
    assert next_deadline() == ms(100)
    played.send(c(2, end=True, id="a", at=6))
    assert next_deadline() == ms(105)
    played.send(c(2, end=True, id="b", at=7))
    assert next_deadline() is None
    assert task.tick(ms(500)) is None


def test_every_metric_is_declared_with_a_text_and_scraped_under_its_name() -> None:
    scraped = {family.name for family in registry_for(WorkerStatus("0"), lambda: 0).collect()}
    assert all(spec.text.endswith(".") for spec in METRICS)
    assert {spec.name for spec in METRICS} <= scraped


@in_a_loop
async def test_a_port_taken_after_the_worker_began_costs_the_pages_their_port_and_not_the_worker_its_start() -> None:
    """On a busy machine another program may get a port between the choice of a free one and the moment at which the pages listen."""
    for host in ("127.0.0.1", "localhost"):
        with closing(socket.socket()) as other:
            other.bind(("127.0.0.1", 0))
            taken = other.getsockname()[1]
            web = web_address(f"{host}:{taken}")
            other.listen()
            async with running(MemoryKafka(partitions=1), web=web) as app, aiohttp.ClientSession() as session:
                assert app.web.port != taken
                async with session.get(f"http://127.0.0.1:{app.web.port}/") as answer:
                    assert answer.status == 200


def test_pages_can_be_switched_off() -> None:
    assert web_address("off") is None


@in_a_loop
async def test_no_page_answers_under_a_strange_host_name() -> None:
    """A page of somebody else that a browser here shows may have its name point here: the name is what gives it away."""
    kafka = MemoryKafka(partitions=1)
    async with running(kafka, web=web_address("127.0.0.1:0")) as app, aiohttp.ClientSession() as session:
        base = f"http://127.0.0.1:{app.web.port}"
        for path in ("/", "/groups/", "/group/?destination=D&id=u", "/metrics", "/none"):
            async with session.get(base + path, headers={"Host": "pages.example:80"}) as answer:
                assert answer.status == 421
                assert "uow_" not in await answer.text()
        async with session.get(f"{base}/", headers={"Host": "localhost"}) as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:6066",
        "[::1]:6066",
        "[::1]",
        "10.1.2.3:80",
        "localhost",
        "LOCALHOST:1",
        "Worker-a.svc:6066",
    ],
)
def test_addresses_this_machine_and_given_names_are_known(host: str) -> None:
    assert is_known(host, ["worker-a.svc"])
    assert is_known(f"{socket.gethostname()}:6066", [])


@pytest.mark.parametrize(
    "host", ["example", "localhost.example:6066", "127.0.0.1.example", "worker-a", "a:b:c", "", ":80", "127.1@x"]
)
def test_any_other_name_is_strange(host: str) -> None:
    assert not is_known(host, ["worker-a.svc"])


def test_health_tells_of_partitions_that_wait_for_their_restore_and_of_inputs_that_stand_b218() -> None:
    status = WorkerStatus("0")
    assert health_view(status) == {"status": "OK"}
    status.read_stalled = lambda: {Tp("events", 1): 61_000, Tp("gone", -1): 90_000}
    told = health_view(status)
    assert (told["status"], [*told["why"]]) == ("stalled", ["events/1", "gone"])
    status.read_unrestored = lambda: 217
    assert health_view(status) == {"status": "restoring", "why": "217 partitions are not restored yet"}
