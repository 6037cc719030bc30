"""The server of the pages: as Faust's, with limits on what connections may take.

Whoever reaches the pages may connect and say nothing, say it byte by byte, or never read the answer. The server is on the event loop that hands
records over, and its sockets are the worker's; so a connection is for one request, is ended after some seconds whatever it does, and there are only so
many: a further one ends the oldest.

Belongs here: where the pages listen, and connections. Does not belong here: the pages (`uow.processor.shell.pages`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Final, NamedTuple

from aiohttp.web import Server
from aiohttp.web_protocol import RequestHandler
from faust.web.drivers.aiohttp import Web

log = logging.getLogger("uow.worker")

LONGEST_S: Final = 15.0
"""Longest life of a connection: a page of a million groups takes two seconds."""
MOST: Final = 64
"""Most connections at once."""
BACKLOG: Final = 16
"""Most connections that are accepted in one go, beyond which the system keeps them."""


class WebAddress(NamedTuple):
    """Where the pages are to be; port 0 is any free one."""

    host: str
    port: int


def web_address(setting: str) -> WebAddress | None:
    """The address of the pages by `[worker] web`; None for `off`."""
    if setting == "off":
        return None
    host, _, port = setting.rpartition(":")
    return WebAddress(host.strip("[]"), int(port))


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
    """Faust's web server, with these connections.

    A port is taken at the moment at which the server listens, since a port that was free before may be another program's by then. One that is taken
    (two workers on one machine with the same settings) costs the pages their port, never the worker its start: they get a free one, and the log says so.
    """

    address: WebAddress
    port: int
    """The port at which it listens."""

    _listening: asyncio.Server | None = None
    _watching: asyncio.Task[None] | None = None

    async def start_server(self) -> None:
        """Starts it.

        Raises:
            OSError: The host is no address of this machine.
        """
        await self._runner.setup()
        assert self._runner.server is not None
        connections, (host, port) = Connections(self._runner.server), self.address
        try:
            self._listening = await self._listen(connections, host, port)
        except OSError as taken:
            why = os.strerror(taken.errno or 0)
            log.warning("%s:%d is not available (%s); the pages are on another port", host, port, why)
            self._listening = await self._listen(connections, host, 0)
        self.port = self._listening.sockets[0].getsockname()[1]
        log.info("pages on http://%s:%d/groups/ and /metrics", host, self.port)
        self._watching = asyncio.create_task(connections.watch())

    async def _listen(self, connections: Connections, host: str, port: int) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        if not port:  # a name may have several addresses, each of which would get a port of its own
            host = str((await loop.getaddrinfo(host, 0, type=socket.SOCK_STREAM))[0][4][0])
        return await loop.create_server(connections.accept, host, port, backlog=BACKLOG)

    async def stop_server(self) -> None:
        """Stops it."""
        if self._listening is not None and self._watching is not None:
            self._listening.close()
            self._watching.cancel()
        await super().stop_server()
