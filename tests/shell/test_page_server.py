"""Connections to the pages that say nothing, say it byte by byte, or never read: others are answered, the worker goes on, and its sockets are its own."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.shell.memory_kafka import MemoryKafka
from tests.shell.test_whole_worker import ids
from tests.shell.whole_worker import in_a_loop, running, send, until
from uow.processor.shell import page_server, pages
from uow.processor.shell.page_server import web_address

COUNT = 300


def sockets() -> int:
    return sum(
        each.readlink().name.startswith("socket:") for each in Path("/proc/self/fd").iterdir() if each.is_symlink()
    )


def says_nothing(client: socket.socket, step: int) -> None:
    """A half-open connection."""


def drips(client: socket.socket, step: int) -> None:
    """A header, a byte at a time."""
    text = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 1_000
    client.send(text[step : step + 1])


def never_reads(client: socket.socket, step: int) -> None:
    if step == 0:
        client.send(b"GET /groups/ HTTP/1.1\r\nHost: localhost\r\n\r\n")


def drips_a_body(client: socket.socket, step: int) -> None:
    head = b"GET /groups/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
    client.send(head if step == 0 else b"x")


def page(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as answer:
        return int(answer.status)


@pytest.mark.parametrize("behaviour", [says_nothing, drips, never_reads, drips_a_body])
def test_hundreds_of_slow_connections_take_nothing_from_others_and_are_ended(
    behaviour: Callable[[socket.socket, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_server.Connections.__init__, "__defaults__", (1.0, page_server.MOST))
    large: dict[str, Any] = {"text": "x" * 5_000_000}  # more than the buffers of two sockets
    monkeypatch.setattr(pages, "groups_view", lambda status, now_ms: large)

    @in_a_loop
    async def test() -> None:
        kafka = MemoryKafka(partitions=1)
        async with running(kafka, web=web_address("127.0.0.1:0")) as app:
            port, before = app.web.port, sockets()
            with ExitStack() as stack:
                clients = []
                for number in range(COUNT):
                    client = stack.enter_context(socket.socket())
                    client.setblocking(False)
                    with suppress(BlockingIOError):
                        client.connect(("127.0.0.1", port))
                    clients.append(client)
                    if number % 10 == 0:
                        await asyncio.sleep(0.005)
                for step in range(30):
                    for client in clients:
                        with suppress(OSError):
                            behaviour(client, step)
                    await asyncio.sleep(0.01)
                    server = app.web._runner.server
                    assert server is not None
                    assert (
                        sum(each.transport is not None for each in server.connections)
                        <= page_server.MOST + page_server.BACKLOG
                    )
                assert await asyncio.to_thread(page, port) == 200
                send(kafka, "u", (1, True))
                await until(lambda: ids(kafka) == ["u"])
                await until(
                    lambda: not app.web._runner.server.connections, "all are ended, though no client has closed"
                )
                await until(lambda: sockets() <= before + COUNT)
                assert await asyncio.to_thread(page, port) == 200

    test()


@in_a_loop
async def test_a_connection_is_for_one_request() -> None:
    async with running(MemoryKafka(partitions=1), web=web_address("127.0.0.1:0")) as app:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.web.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = await reader.read()  # to the end, which the server makes
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"Connection: close" in answer
        writer.close()
