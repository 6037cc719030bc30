"""Commands to a destination's workers, and their answers (W-203).

Theory of operation. A command is a record of `D.commands` under the group id as key; whoever owns that partition decides it, and writes the
answer to the same partition number of `D.outcomes`, in the transaction that did it. So the end of that partition is asked for first, then
the command is sent, then everything behind that end is read until the answer comes.

Belongs here: asking and waiting. Does not belong here: what a command does (`processor.core.command`), and printing (`uow.commands`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from processor.engine.ports import LogReader, Tp
from schemas import codec
from schemas.errors import DecodeError, UowError
from schemas.records import Answer
from schemas.registry import connect as connect_registry
from topics.admin import admin_client, partition_counts
from topics.catalogue import DestinationTopics
from topics.commands import COMMAND_ID, Command
from topics.partitioner import partition_for
from uow.client import Connection, connect
from uow.config import Settings
from uow.logs import PATIENCE_S, NoAnswerError, log_reader

LOOK_AGAIN_S = 0.05
ANSWERS_PER_S = 100
"""No worker answers more slowly that answers at all."""


class Desk:
    """Where commands are handed in and answers come out.

    Args:
        settings: Where Kafka is.
        destination: Whose workers are asked.
        connection: Sends.
        reader: Reads answers.
    """

    def __init__(self, settings: Settings, destination: str, connection: Connection, reader: LogReader) -> None:
        self._destination, self._connection, self._reader = destination, connection, reader
        self._registry = connect_registry(settings.registry_url) if settings.registry_url else None
        topics = DestinationTopics(settings.application_id, destination)
        counts = partition_counts(admin_client(settings.bootstrap_servers, settings.kafka))
        for topic in (topics.commands, topics.outcomes):
            if topic not in counts:
                raise NoAnswerError(f"topic {topic} does not exist; `uow topics create` makes it")
        self._topics, self._partitions = topics, counts[topics.commands]
        self._has_paths = settings.policy(destination).has_paths

    def ask(self, commands: Sequence[Command], timeout_s: float) -> Iterator[Answer]:
        """Sends commands, and hands out their answers as they come.

        Args:
            commands: At least one.
            timeout_s: How long to wait for the next answer.

        Raises:
            UnansweredError: Not all were answered in time.
        """
        waiting = {command.id: command for command in commands}
        partitions = {home for command in commands for home in self._homes(command)}
        outcomes = [Tp(self._topics.outcomes, number) for number in sorted(partitions)]
        positions = {tp: end for tp, (_, end) in self._reader.bounds(outcomes).items()}
        for command in commands:
            self._connection.command(self._destination, command)
        until = time.monotonic() + timeout_s
        while True:
            answered = len(waiting)
            ends = {tp: end for tp, (_, end) in self._reader.bounds(outcomes).items()}
            for _, records in self._reader.read({tp: (positions[tp], ends[tp]) for tp in outcomes}):
                for record in records:
                    command_id = dict(record.headers() or ()).get(COMMAND_ID)
                    if command_id is not None and waiting.pop(command_id, None) is not None:
                        yield self._answer(record.value() or b"")
            positions = ends
            if not waiting:
                return
            if len(waiting) < answered:
                until = time.monotonic() + timeout_s
            if time.monotonic() > until:
                raise UnansweredError(list(waiting.values()), self._destination, timeout_s)
            time.sleep(LOOK_AGAIN_S)

    def _homes(self, command: Command) -> Iterable[int]:
        """Where the answer may come: where the command goes. Under path routing only the path map knows, and may know better meanwhile."""
        return range(self._partitions) if self._has_paths else [partition_for(command.group_id, self._partitions)]

    def _answer(self, value: bytes) -> Answer:
        try:
            return codec.decode_as(Answer, value, registry=self._registry)
        except DecodeError as error:
            raise NoAnswerError(f"the command was answered, and the answer cannot be read: {error}") from error


class UnansweredError(UowError):
    """No worker answered in time. The commands lie in `D.commands` and are decided as soon as a worker reads them.

    Attributes:
        commands: Those without an answer.
    """

    def __init__(self, commands: Sequence[Command], destination: str, timeout_s: float) -> None:
        self.commands = tuple(commands)
        ids = ", ".join(command.group_id.decode("utf-8", "backslashreplace") for command in commands[:3])
        more = f" and {len(commands) - 3} more" if len(commands) > 3 else ""
        super().__init__(
            f"no answer about {ids}{more} in {timeout_s:g} s. Does a worker of {destination} run, and is the partition "
            "blocked (its page, `uow_blocked`)? Nothing is lost: the command is decided as soon as a worker reads it."
        )


@contextmanager
def desk(settings: Settings, destination: str, count: int, timeout_s: float) -> Iterator[Desk]:
    """Opens a desk for as long as answers are waited for; closed on exit.

    Args:
        settings: Where Kafka is.
        destination: Whose workers are asked.
        count: How many commands will be handed in.
        timeout_s: Longest wait for an answer.

    Raises:
        ConfigError: No such destination is configured.
        NoAnswerError: Its topics do not exist, or Kafka does not answer.
    """
    settings.policy(destination)
    servers, kafka, registry_url = settings.bootstrap_servers, settings.kafka, settings.registry_url
    with (
        connect(servers, kafka=kafka, registry_url=registry_url, application=settings.application_id) as connection,
        log_reader(settings, PATIENCE_S + timeout_s + count / ANSWERS_PER_S) as reader,
    ):
        yield Desk(settings, destination, connection, reader)
