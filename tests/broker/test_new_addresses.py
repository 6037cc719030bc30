"""The brokers of a client move to addresses that it does not know (R-15)."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import uow
from tests.conftest import QUIET
from tests.processes import PATIENCE_S
from uow.embedded.broker import EmbeddedBroker

pytestmark = pytest.mark.broker


class Door:
    """An address that stays, before a broker whose own one changes: bytes go through as they are."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = {self._listener}
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        """Nobody is let in any more, and nobody is left inside."""
        for each in [*self._open]:
            self._end(each)

    def _end(self, one: socket.socket) -> None:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
        self._open.discard(one)

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                came, _ = self._listener.accept()
                try:
                    goes = socket.create_connection(("127.0.0.1", self.port))
                except OSError:  # the broker is gone for now
                    came.close()
                    continue
                self._open |= {came, goes}
                for one, other in ((came, goes), (goes, came)):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        self._end(one)
        self._end(other)


@pytest.mark.timeout(300)
def test_a_broker_under_a_new_address_is_found_through_the_bootstrap_address_that_is_left_r15(tmp_path: Path) -> None:
    """Bootstrap addresses A and B; A goes, and with it the only address that metadata told. The same objects go on through B."""
    folder = tmp_path / "broker"
    with EmbeddedBroker(folder, heap="384m") as before, contextlib.closing(Door(before.port)) as door:
        admin = AdminClient({"bootstrap.servers": before.bootstrap}, logger=QUIET)
        for created in admin.create_topics([NewTopic("shop.components", 1, 1)]).values():
            created.result(PATIENCE_S)
        with (
            uow.connect(f"{before.bootstrap},{door.address}", reconnect_policy="all") as connection,
            connection.session() as session,
        ):
            reader = session.messages("shop.components", group="looks")
            assert connection.send("shop", "first", id="a", seq=1).offset == 0
            message = reader.receive(PATIENCE_S)
            assert message is not None
            message.acknowledge()
            before.stop()
            with EmbeddedBroker(folder, heap="384m") as after:
                assert after.port != before.port
                door.port = after.port
                assert connection.send("shop", "second", id="a", seq=2, end=True).offset == 1
                message = reader.receive(PATIENCE_S)
                assert message is not None
                assert message.value == b"second"
