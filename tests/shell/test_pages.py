"""What a worker shows: pages, metrics, and where they listen."""

from __future__ import annotations

import socket
from contextlib import closing

import aiohttp

from processor.shell.monitor import METRICS, WorkerStatus, registry_for
from processor.shell.pages import web_address
from processor.sim.memory import MemoryKafka
from tests.shell.whole_worker import in_a_loop, running, send, until


@in_a_loop
async def test_groups_page_and_metrics_tell_counts_open_groups_and_blocked_partitions() -> None:
    kafka = MemoryKafka(partitions=1)
    send(kafka, "u", (1, False))
    async with running(kafka, web=web_address("127.0.0.1:0")) as app:
        await until(lambda: len(app.tables["D"]) == 1)
        send(kafka, "v", (1, False), value=b"boom")
        await until(lambda: app.status.blocked)
        base = f"http://127.0.0.1:{app.conf.web_port}"
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


def test_every_metric_is_declared_with_a_text_and_scraped_under_its_name() -> None:
    scraped = {family.name for family in registry_for(WorkerStatus("0"), lambda: 0).collect()}
    assert all(spec.text.endswith(".") for spec in METRICS)
    assert {spec.name for spec in METRICS} <= scraped


def test_taken_port_costs_the_pages_their_port_and_not_the_worker_its_start() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        address = web_address(f"127.0.0.1:{port}")
    assert address is not None
    assert address.port != port
    assert str(port) in address.note


def test_pages_can_be_switched_off() -> None:
    assert web_address("off") is None
