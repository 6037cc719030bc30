"""The server of the pages: as Faust's, with limits on what connections may take.

Whoever reaches the pages may connect and say nothing, say it byte by byte, or never read the answer. The server is on the event loop that hands
records over, and its sockets are the worker's; so a connection is for one request, is ended after some seconds whatever it does, and there are only so
many: a further one ends the oldest.

Belongs here: connections. Does not belong here: the pages (`uow.processor.shell.pages`).
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp.web import Server
from aiohttp.web_protocol import RequestHandler
from faust.web.drivers.aiohttp import Web

LONGEST_S: Final = 15.0
"""Longest life of a connection: a page of a million groups takes two seconds."""
MOST: Final = 64
"""Most connections at once."""
BACKLOG: Final = 16
"""Most connections that are accepted in one go, beyond which the system keeps them."""


class Connections:
    """Makes the handlers of connections, and ends them.

    Args:
        server: aiohttp's.
        longest_s: Longest life of a connection.
        most: Most connections at once.
    """

    def __init__(self, server: Server, longest_s: float = LONGEST_S, most: int = MOST) -> None:
        self._server, self._longest_s, self._most = server, longest_s, most
        self._since: dict[RequestHandler, float] = {}

    def accept(self) -> RequestHandler:
        """The handler of a new connection."""
        opened = [each for each in self._server.connections if each.transport is not None]
        for oldest in opened[: max(0, len(opened) - self._most + 1)]:
            _end(oldest)
        return self._server()

    async def watch(self) -> None:
        """Ends those that are too old, until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._longest_s / 10)
            now = loop.time()
            self._since = {each: self._since.get(each, now) for each in self._server.connections}
            for handler, since in self._since.items():
                if now - since > self._longest_s:
                    _end(handler)


def _end(handler: RequestHandler) -> None:
    if handler.transport is not None:
        handler.transport.abort()  # what it did not read is not waited for


class PageServer(Web):
    """Faust's web server, with these connections."""

    _listening: asyncio.Server | None = None
    _watching: asyncio.Task[None] | None = None

    async def start_server(self) -> None:
        """Starts it."""
        await self._runner.setup()
        assert self._runner.server is not None
        connections, conf = Connections(self._runner.server), self.app.conf
        self._listening = await asyncio.get_running_loop().create_server(
            connections.accept, conf.web_bind, conf.web_port, backlog=BACKLOG
        )
        self._watching = asyncio.create_task(connections.watch())

    async def stop_server(self) -> None:
        """Stops it."""
        if self._listening is not None and self._watching is not None:
            self._listening.close()
            self._watching.cancel()
        await super().stop_server()
