"""Chains of programs over one strict destination. Producers that commit write down what the client said of each attempt, to be compared with the log.

Belongs here: the programs, what they do about errors, and the log as a plain consumer sees it. Does not belong here: faults.
"""

from __future__ import annotations

import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from confluent_kafka import Message
from strict_places import StrictPlace

import uow
from tests.broker.client_places import Topics, headers_of
from tests.drill import order_programs
from tests.kafka_broker import Kafka
from tests.processes import Process
from uow import errors
from uow.embedded.broker import EmbeddedBroker

ATTEMPT: Final = "attempt"
"""Header with the number of the attempt that sent a record."""
COMMITTED, ROLLED_BACK = "committed", "rolled back"
PARTS: Final = 3
"""Components of a unit."""
AGAIN_S: Final = 0.2


class Chain:
    """A producer, a worker, a reader and a forwarder of one strict destination: what is sent is the numbers from 1."""

    POLICY: ClassVar[Mapping[str, str]] = {"strict_producers": "plain", "handling_policy": "pass_through"}

    def __init__(self, broker: Kafka, name: str, folder: Path, spawn: Callable[..., Process]) -> None:
        self.broker, self.spawn, self.onward = broker, spawn, f"{name}-onward"
        self.place = StrictPlace(broker.bootstrap, name, folder)
        self.place.create(**self.POLICY)
        Topics(broker.bootstrap).make(self.onward, partitions=1)
        self.seen = folder / "seen"
        self.seen.touch()
        worker = spawn("uow", "worker", "-c", self.place.file, "--name", "0", env={"UOW_WORKER__WEB": "off"})
        worker.wait_output("worker 0 ready")
        self.reader, self.forwarder = self.program("read", str(self.seen)), self.program("forward", self.onward)

    def program(self, what: str, out: str) -> Process:
        return self.spawn(sys.executable, order_programs.__file__, what, self.broker.bootstrap, self.place.name, out)

    def send(self, count: int, progress: Callable[[int], None] = lambda number: None) -> None:
        """Numbers from 1, one after the other; a send that was not answered is waited for with the same component."""
        with uow.connect(self.broker.bootstrap) as connection:
            for number in range(1, count + 1):
                component = uow.Component(str(number))
                while True:
                    try:
                        connection.send(self.place.name, component)
                        break
                    except errors.ReconnectTimeoutError:
                        continue
                progress(number)

    def check_sent(self) -> None:
        """Nothing: what is read and forwarded shows it."""

    def number(self, record: Message) -> int:
        """Of a forwarded record."""
        return int(record.value() or b"0")

    def numbers(self) -> list[int]:
        """All that the reader has written down."""
        return [int(line) for line in self.seen.read_text().splitlines() if line]

    def kill_reader(self) -> None:
        self.reader.kill()
        self.reader = self.program("read", str(self.seen))

    def kill_forwarder(self) -> None:
        self.forwarder.kill()
        self.forwarder = self.program("forward", self.onward)

    def kill_broker(self) -> None:
        assert isinstance(self.broker, EmbeddedBroker)
        self.broker.kill()
        self.broker.start()


class Attempt(NamedTuple):
    """A transaction, and what the client said of it.

    Attributes:
        sent: The values of its records.
        fate: `COMMITTED` or `ROLLED_BACK`.
        doubts: Names of the errors by which a doubt was reported before the fate was known.
    """

    sent: list[str]
    fate: str
    doubts: list[str]


class TransactedChain(Chain):
    """Its producer sends one to four numbers in each transaction of a client session, and repeats what was rolled back."""

    POLICY: ClassVar[Mapping[str, str]] = {"strict_producers": "transacted", "handling_policy": "pass_through"}

    @property
    def client_id(self) -> str:
        """Of the producer."""
        return f"{self.place.name}-sends"

    def send(self, count: int, progress: Callable[[int], None] = lambda number: None) -> None:
        self.attempts: list[Attempt] = []
        rng, first = random.Random(count), 1
        with uow.connect(self.broker.bootstrap, client_id=self.client_id, reconnect_policy="all") as connection:
            while first <= count:
                numbers = self.drawn(rng, range(first, count + 1))
                while self.attempt(connection, numbers).fate != COMMITTED:
                    pass
                first = numbers.stop
                for number in numbers:
                    progress(number)

    def drawn(self, rng: random.Random, left: range) -> range:
        """The numbers of the next transaction."""
        return left[: rng.randrange(1, 5)]

    def attempt(self, connection: uow.Connection, numbers: range) -> Attempt:
        """One transaction."""
        with connection.session(transacted=True) as session:
            producer, values = session.producer(self.place.name), [str(number) for number in numbers]

            def send() -> None:
                for value in values:
                    producer.send(value, headers={**self.mark, "uow-component-id": f"{value}/{len(self.attempts)}"})
                session.commit()

            return self.told(values, fate(connection, send, session.commit))

    @property
    def mark(self) -> dict[str, str]:
        """Headers that tell the attempt."""
        return {ATTEMPT: str(len(self.attempts))}

    def told(self, values: list[str], fate: tuple[str, list[str]]) -> Attempt:
        """Writes an attempt down."""
        self.attempts.append(Attempt(values, *fate))
        return self.attempts[-1]

    def check_sent(self) -> None:
        """Of each attempt a plain consumer finds what the client said: all of it, in order and once, or nothing."""
        there: dict[int, list[str]] = defaultdict(list)
        for record in Topics(self.broker.bootstrap).read(self.place.components):
            there[int(headers_of(record)[ATTEMPT])].append((record.value() or b"").decode())
        said = {at: each.sent for at, each in enumerate(self.attempts) if each.fate == COMMITTED}
        assert there == said
        doubts = [(each.fate, *each.doubts) for each in self.attempts if each.doubts or each.fate == ROLLED_BACK]
        print(f"{len(self.attempts)} transactions, of which were in doubt or rolled back: {doubts}")


class UnitChain(TransactedChain):
    """Its producer sends units, with numbers for ids."""

    POLICY: ClassVar[Mapping[str, str]] = {
        "strict_producers": "transacted",
        "handling_policy": "single_message_delivery",
    }

    def drawn(self, rng: random.Random, left: range) -> range:
        return left[:1]

    def attempt(self, connection: uow.Connection, numbers: range) -> Attempt:
        unit = connection.unit(self.place.name, id=str(numbers[0]))
        values = [f"{numbers[0]}-{part}" for part in range(1, PARTS + 1)]

        def send() -> None:
            with unit:
                for value in values:
                    unit.send(value, headers=self.mark)

        return self.told(values, fate(connection, send, unit.commit))

    def check_sent(self) -> None:
        super().check_sent()
        assert not Topics(self.broker.bootstrap).read(f"{self.place.name}.rejected")

    def number(self, record: Message) -> int:
        return int(headers_of(record)["uow-id"])


def fate(connection: uow.Connection, send: Callable[[], None], commit: Callable[[], None]) -> tuple[str, list[str]]:
    """What became of a transaction: its fate, and the errors by which a doubt was reported; asked for until somebody knows.

    Args:
        connection: That of the producer.
        send: Sends and commits.
        commit: Asks again for a commit that is pending.
    """
    doubts: list[str] = []
    step: Callable[[], object] = send
    while True:
        try:
            return str(step() or COMMITTED), doubts
        except errors.CommitPendingError as doubt:
            doubts.append(type(doubt).__name__)
            step = commit
        except errors.CommitOutcomeUnknownError as doubt:
            doubts.append(type(doubt).__name__)
            step = partial(connection.recover, doubt)
        except (errors.TransactionRolledBackError, errors.SendRejectedError):
            return ROLLED_BACK, doubts
        except (errors.ReconnectTimeoutError, errors.DestinationUnavailableError):
            if step is send:
                return ROLLED_BACK, doubts
            time.sleep(AGAIN_S)
