"""One sink for each output of a strict destination: a lease in `D.registry`, since a Spark query is no member of a consumer group (S-03, S-34).

Theory of operation. Whoever starts writes a lease of its own and then reads all of them: another one that is not over means that somebody was there
before, or starts at this moment, and the newcomer withdraws. So of two that start at once one at most goes on. A lease is renewed three times before it is over; one that
could not be renewed is lost, and its holder stops. Clocks of machines that differ by more than `TERM_MS` would break this.

Belongs here: taking, renewing and giving back. Does not belong here: the record (`uow.topics.strict_registry`).
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final
from uuid import uuid4

from confluent_kafka import KafkaException

from uow.client.connection import connect
from uow.client.outgoing import OutgoingRecord
from uow.client.strict_log import record_of
from uow.config.loading import Settings
from uow.errors import AlreadyAttachedError
from uow.ops.eras import registry_of
from uow.schemas.error_classes import FencedError, UowError
from uow.terminal.printing import wall_clock_ms
from uow.topics.strict_registry import Lease, StrictRegistry

log = logging.getLogger(__name__)

TERM_MS: Final = 60_000
"""So long after its holder was killed an output has to wait."""
RENEW_S: Final = 15.0


class Leases:
    """The leases of one program.

    Args:
        outputs: Where it writes to.
        read: Reads `D.registry`.
        write: Writes a record there, for certain.
        wall: Epoch ms.
    """

    def __init__(
        self,
        outputs: Iterable[str],
        read: Callable[[str], StrictRegistry],
        write: Callable[[OutgoingRecord], object],
        wall: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._outputs, self._read, self._write, self._wall = tuple(outputs), read, write, wall
        self._token = uuid4().hex
        self._by = f"{getpass.getuser()} on {socket.gethostname()}, process {os.getpid()}"
        self._held: list[tuple[str, Lease]] = []
        self._is_over = False

    def take(self, destination: str) -> None:
        """Takes a lease for each output; nothing for a destination that is not strict.

        Raises:
            AlreadyAttachedError: Another program has it; nothing is left behind.
            UowError: `D.registry` cannot be read, or written.
        """
        registry = self._read(destination)
        if not registry.is_strict:
            return
        self._require_free(registry)
        for output in self._outputs:
            lease = Lease(output, self._token, self._wall() + TERM_MS, self._by)
            self._held.append((destination, lease))
            self._write(record_of(destination, lease))
        try:
            self._require_free(self._read(destination))
        except AlreadyAttachedError:
            self.give_back()
            raise

    def _require_free(self, registry: StrictRegistry) -> None:
        for lease in registry.leases.values():
            if lease.output in self._outputs and lease.token != self._token and lease.until > self._wall():
                left_s = (lease.until - self._wall()) / 1000
                raise AlreadyAttachedError(
                    f"{registry.destination} is strict, and is written to {lease.output} by {lease.by} already; "
                    f"if that has died, its lease ends in {left_s:.0f} s"
                )

    def renew(self) -> None:
        """Renews what is held.

        Raises:
            FencedError: One is over, be it because this process stood still, or another program has it: they are lost for good.
            UowError: Not renewed, or not for certain.
        """
        if self.is_lost:
            self._is_over = True
            raise FencedError("a lease is over: another program may have it")
        for place, (destination, lease) in enumerate(self._held):
            renewed = replace(lease, until=self._wall() + TERM_MS)
            self._write(record_of(destination, renewed))
            self._held[place] = destination, renewed
        for destination, _ in self._held:
            try:
                self._require_free(self._read(destination))  # it may have been over while the record was written
            except AlreadyAttachedError as other:
                self._is_over = True
                self.give_back()  # else it would stop the other one
                raise FencedError(str(other)) from other

    @property
    def are_held(self) -> bool:
        """True if any destination is strict."""
        return bool(self._held)

    @property
    def is_lost(self) -> bool:
        """True if one could not be renewed in time, or another program has it."""
        return self._is_over or any(lease.until <= self._wall() for _, lease in self._held)

    def give_back(self) -> None:
        """Raises UowError: not given back; it ends by itself."""
        while self._held:
            destination, lease = self._held.pop()
            record = record_of(destination, lease)
            record.value = None
            self._write(record)


@contextmanager
def leased(
    settings: Settings, destinations: Iterable[str], outputs: Iterable[str], stop: threading.Event
) -> Iterator[None]:
    """Holds the leases of the strict ones among these destinations, be they so by these settings or not; sets `stop` if one is lost.

    Raises:
        FencedError: At the end of a block that ends without an error: a lease was lost meanwhile.
        UowError: At its beginning, as `Leases.take`.
    """

    def write(record: OutgoingRecord) -> None:
        with connect(settings.bootstrap_servers, kafka=settings.kafka) as connection:
            connection.send_again(f"{record.topic} {record.key!r}", record)

    leases = Leases(outputs, lambda destination: registry_of(settings, destination), write)
    ended, lost = threading.Event(), threading.Event()

    def keep() -> None:
        while not ended.wait(RENEW_S):
            try:
                leases.renew()
            except (UowError, KafkaException) as failure:
                log.warning("leases are not renewed: %s", failure)
            if leases.is_lost:
                log.error("a lease is lost: the sink stops, for another one may have begun")
                lost.set()
                stop.set()
                return

    keeper = threading.Thread(target=keep, name="uow-leases", daemon=True)
    try:
        for each in destinations:
            leases.take(each)
        if leases.are_held:
            keeper.start()
        yield
        if lost.is_set():
            raise FencedError(
                "the lease of a strict destination could not be renewed in time: this sink has stopped, for another one may have begun"
            )
    finally:
        ended.set()
        if keeper.ident is not None:
            keeper.join(RENEW_S)
        try:
            leases.give_back()
        except (UowError, KafkaException) as failure:
            log.warning("leases are not given back, and end by themselves: %s", failure)
