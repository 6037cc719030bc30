"""Programs of a client proof: producers, forwarders and readers, on the public names alone, each with a journal of what the client told it.

    python -m uow.prove.client_programs ROLE NUMBER NAME BOOTSTRAP FOLDER

Each goes on until it is ended, and does what an application of that kind should: it repeats what may be repeated, and connects again under its
client id where it was told to. A line of its journal is one JSON object, written before the next call; `at` is the machine's steady clock.

Belongs here: these programs. Does not belong here: judging (`uow.prove.client_judge`), which shares no code with them or with the client.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import uow
from uow import errors
from uow.topics.headers import COMPONENT_ID

SHORT: Final = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
MARK: Final = {"source": "uow prove"}
"""Of a record without headers, a reader looks a second time if they are hidden."""
PAUSE_S: Final = 0.02
"""Between two records or transactions, on average."""


FENCED: Final = 3
"""Exit status of a program that somebody newer of its name has fenced."""


class Journal:
    """Writes what happened, line by line; a kill may cut off the last one.

    Args:
        path: The file; an earlier run of the program may have begun it.
    """

    def __init__(self, path: Path) -> None:
        self.last = -1
        if path.exists():
            lines = path.read_text().splitlines()
            self.last = max((json.loads(line).get("n", -1) for line in lines if line.endswith("}")), default=-1)
        self._file = path.open("ab", buffering=0)
        if path.stat().st_size:
            self._file.write(b"\n")  # a line that was cut off ends here
        self.write("begins", pid=os.getpid())

    def write(self, what: str, **more: Any) -> None:
        """One line, in one call."""
        self._file.write(json.dumps({"what": what, "at": time.monotonic_ns(), **more}).encode() + b"\n")


def key_of(who: str, number: int) -> str:
    """Some keys for each program, so that all partitions have records."""
    return f"{who}/{number % 4}"


def produce(connection: uow.Connection, name: str, journal: Journal, rng: random.Random, who: str) -> None:
    """Sends numbers one by one; one that is in doubt is asked for, and sent again with the same `Component`."""
    while True:
        journal.last += 1
        number = journal.last
        component = uow.Component(f"{who}:{number}")
        journal.write("asked", n=number)
        while True:
            try:
                sent = connection.send(name, component, key=key_of(who, number), headers=MARK)
                journal.write("sent", n=number, partition=sent.partition, offset=sent.offset)
                break
            except errors.ReconnectGivenUpError:
                raise
            except errors.ReconnectTimeoutError as failure:
                journal.write("waits", n=number, error=type(failure).__name__)
            except errors.AmbiguousSendError as failure:
                found = _asked(partial(connection.probe, failure))
                journal.write("ambiguous", n=number, found=found is not None)
                if found is not None:
                    break
            except (errors.DestinationUnavailableError, errors.SendRejectedError) as failure:
                journal.write("refused", n=number, error=type(failure).__name__)
                break
        time.sleep(rng.random() * 2 * PAUSE_S)


def transact(connection: uow.Connection, name: str, journal: Journal, rng: random.Random, who: str) -> None:
    """Sends some numbers in each transaction, and rolls one in eight back on purpose."""
    with connection.session(transacted=True) as session:
        producer = session.producer(name)
        while True:
            numbers = [*range(journal.last + 1, journal.last + 1 + rng.randrange(1, 6))]
            journal.last = numbers[-1]
            journal.write("begins transaction", n=numbers[-1], first=numbers[0])
            for number in numbers:
                named = MARK | {
                    COMPONENT_ID: f"{who}-{number}"
                }  # else nobody could find it to tell the fate of its transaction
                producer.send(f"{who}:{number}", key=key_of(who, number), headers=named)
            if rng.random() < 1 / 8:
                session.rollback()
                journal.write("rolled back", n=numbers[-1])
                continue
            journal.write(_fate(connection, session), n=numbers[-1])
            time.sleep(rng.random() * 8 * PAUSE_S)


def _fate(connection: uow.Connection, session: uow.ClientSession) -> str:
    while True:
        try:
            session.commit()
            return "committed"
        except errors.CommitPendingError:
            continue
        except errors.CommitOutcomeUnknownError as failure:
            found = _asked(partial(connection.recover, failure))
            return "committed" if found is uow.Recovered.COMMITTED else "rolled back"
        except (errors.TransactionRolledBackError, errors.DestinationUnavailableError, errors.SendRejectedError):
            return "rolled back"


def _asked(ask: Callable[[], Any]) -> Any:
    """An answer, however long the brokers are away."""
    while True:
        try:
            return ask()
        except errors.ReconnectGivenUpError:
            raise
        except (errors.ReconnectTimeoutError, errors.DestinationUnavailableError):
            time.sleep(0.2)


def forward(connection: uow.Connection, name: str, journal: Journal, rng: random.Random, who: str) -> None:
    """Sends each record on, in order."""
    with connection.messages(f"{name}.components", group=f"{name}-forward", order="preserve", kafka=SHORT) as reader:
        while True:
            try:
                message = reader.receive(1.0)
                if message is not None:
                    _forward(connection, message, f"{name}.onward", journal)
            except errors.ReconnectGivenUpError:
                raise
            except (errors.ReconnectTimeoutError, errors.CommitPendingError) as failure:
                journal.write("waits", error=type(failure).__name__)
            except errors.TransactionRolledBackError as failure:  # of messages before: they come again
                journal.write("waits", error=type(failure).__name__)


def _forward(connection: uow.Connection, message: uow.Message, to: str, journal: Journal) -> None:
    try:
        fate = connection.forward(message, to=to)
        journal.write(str(fate), partition=message.partition, offset=message.offset)
    except (errors.TransactionRolledBackError, errors.CommitOutcomeUnknownError) as failure:
        journal.write("comes again", offset=message.offset, partition=message.partition, error=type(failure).__name__)


def read(connection: uow.Connection, name: str, journal: Journal, rng: random.Random, who: str) -> None:
    """Writes each record down before it is acknowledged."""
    with connection.messages(f"{name}.onward", group=f"{name}-read", kafka=SHORT) as reader:
        held: dict[int, uow.Message] = {}
        while True:
            try:
                message = reader.receive(1.0)
            except errors.ReconnectGivenUpError:
                raise
            except errors.ReconnectTimeoutError as failure:
                journal.write("waits", error=type(failure).__name__)
                continue
            if message is not None:
                place = {"partition": message.partition, "offset": message.offset}
                journal.write("got", **place, redelivered=message.redelivered)
                held[message.partition] = message
                if rng.random() < 1 / 3:
                    continue  # acknowledged with a later one
            for each in [message] if message is not None else [*held.values()]:
                _acknowledge(each, journal)
                held.pop(each.partition)


def _acknowledge(message: uow.Message, journal: Journal) -> None:
    place = {"partition": message.partition, "offset": message.offset, "begun": time.monotonic_ns()}
    try:
        message.acknowledge()
        journal.write("acknowledged", **place)
    except errors.ReconnectGivenUpError:
        raise
    except (errors.LostServerError, errors.ReconnectTimeoutError) as failure:
        journal.write("not acknowledged", **place, error=type(failure).__name__)


ROLES: Final = {"plain": produce, "transacted": transact, "forwarder": forward, "reader": read}
"""The work of each program."""


def main() -> None:
    """One program, until it is ended."""
    role, number, name, bootstrap, folder = sys.argv[1:]
    who = f"{role}-{number}"
    journal = Journal(Path(folder) / f"{who}.jsonl")
    faulthandler.enable()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        _work(role, name, bootstrap, journal, who)


def _work(role: str, name: str, bootstrap: str, journal: Journal, who: str) -> None:
    rng = random.Random(f"{who}/{time.monotonic_ns()}")
    while True:
        try:
            with uow.connect(bootstrap, client_id=f"{name}-{who}", reconnect_policy="all") as connection:
                ROLES[role](connection, name, journal, rng, who)
        except (errors.StaleConnectionError, errors.CommitOutcomeUnknownError, errors.LostServerError) as failure:
            journal.write("connects again", error=f"{type(failure).__name__}: {failure}")
            time.sleep(0.2)
        except errors.FencedError as failure:
            journal.write("fenced", error=str(failure))
            sys.exit(FENCED)


if __name__ == "__main__":
    main()
