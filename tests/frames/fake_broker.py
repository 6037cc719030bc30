"""A server that answers every request with its correlation id and notes what came, and a client that speaks frames.

Its port may have belonged to a broker of another test a moment ago, whose Kafka clients still try to connect. So it notes only what is
from `NAME`, and cuts everybody else.
"""

from __future__ import annotations

import socket
import struct
import threading
from types import TracebackType
from typing import Self

NAME = "frames-test"
"""Client id of what counts, or the beginning of it."""


def request(api: int, correlation: int, client: str = NAME, body: bytes = b"") -> bytes:
    name = client.encode()
    return struct.pack(">hhih", api, 0, correlation, len(name)) + name + body


def _read(stream: socket.socket) -> bytes:
    def exactly(size: int) -> bytes:
        got = b""
        while len(got) < size:
            more = stream.recv(size - len(got))
            if not more:
                raise EOFError
            got += more
        return got

    return exactly(struct.unpack(">i", exactly(4))[0])


class FakeBroker:
    """Frames in the order in which they were read are in `came`."""

    def __init__(self) -> None:
        self.came: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(stream)
            self._threads.append(threading.Thread(target=self._serve, args=(stream,), daemon=True))
            self._threads[-1].start()

    def _serve(self, stream: socket.socket) -> None:
        try:
            while True:
                frame = _read(stream)
                if not frame[10:].startswith(NAME.encode()):
                    raise EOFError
                self.came.append(frame)
                stream.sendall(struct.pack(">i", 8) + frame[4:8] + b"done")
        except (EOFError, OSError):
            stream.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for stream in self._open:
            try:
                stream.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join()


class Client:
    """One connection."""

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._stream = socket.create_connection((host, int(port)), 10)

    def send(self, frame: bytes) -> None:
        self._stream.sendall(struct.pack(">i", len(frame)) + frame)

    def answer(self) -> int | None:
        """The next answer's correlation id; None when the connection was cut."""
        try:
            frame = _read(self._stream)
        except (EOFError, ConnectionError):
            return None
        assert frame[4:] == b"done"
        return int(struct.unpack(">i", frame[:4])[0])

    def ask(self, frame: bytes) -> int | None:
        self.send(frame)
        return self.answer()

    def hears_nothing(self, seconds: float = 0.05) -> bool:
        self._stream.settimeout(seconds)
        try:
            return not self._stream.recv(1)
        except TimeoutError:
            return True
        finally:
            self._stream.settimeout(10)

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
