"""Commands to a destination's workers, and their answers (W-203).

Theory of operation. A command is a record of `D.commands` with the group id as key; one about a whole rule is in every partition. The worker that owns that partition decides it, and writes
the answer to the same partition number of `D.outcomes`, in the same transaction as the change. So this module asks for the end offset of
that partition of `D.outcomes` first, then sends the command, then reads from that offset until the answer comes.

Belongs here: asking and waiting. Does not belong here: effects of commands (`uow.processor.core.command`), and printing (`uow.cli`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from uow.client.connection import Connection, connect
from uow.config.loading import Settings
from uow.ops.destination_logs import PATIENCE_S, NoAnswerError, counts_with, log_reader
from uow.processor.engine.ports import LogReader, Tp
from uow.schemas import codec
from uow.schemas.error_classes import DecodeError, UowError
from uow.schemas.records import Answer
from uow.schemas.registry import connect as connect_registry
from uow.topics.catalogue import DestinationTopics
from uow.topics.commands import COMMAND_ID, KIND_ANSWER, Command, Verb, is_answer_to, is_verified
from uow.topics.headers import KIND
from uow.topics.partitioner import partition_for

LOOK_AGAIN_S = 0.05
ANSWERS_PER_S = 100
"""Seconds after which no answer is expected any more: a worker that answers at all is faster."""

_Waiting = dict[tuple[bytes, int | None], Command]
"""Commands by id and partition, as long as they are not answered; None: whichever partition it is."""


class Reply(NamedTuple):
    """An answer.

    Attributes:
        answer: The answer.
        is_verified: True if a signature proves who sent the command.
    """

    answer: Answer
    is_verified: bool


class CommandClient:
    """Sends commands and reads their answers.

    Args:
        settings: Configuration.
        destination: Name of the destination.
        connection: Sends the commands.
        reader: Reads the answers.
    """

    def __init__(self, settings: Settings, destination: str, connection: Connection, reader: LogReader) -> None:
        self._destination, self._connection, self._reader = destination, connection, reader
        self._registry = connect_registry(settings.registry_url) if settings.registry_url else None
        topics = DestinationTopics(settings.application_id, destination)
        counts = counts_with(settings, topics.commands, topics.outcomes)
        self._topics, self._partitions = topics, counts[topics.commands]
        self._has_paths = settings.policy(destination).has_paths
        signer = settings.command_signer()
        self._signer = None if signer is None else signer.name

    def ask(self, commands: Sequence[Command], timeout_s: float) -> Iterator[Reply]:
        """Sends commands, and yields their answers as they come.

        Args:
            commands: At least one.
            timeout_s: How long to wait for the next answer.

        Raises:
            UnansweredError: Not all were answered in time.
        """
        homes = {home for command in commands for home in self._homes(command)}

        def send() -> None:
            for command in commands:
                self._connection.command(self._destination, command)

        waiting: _Waiting = {(command.id, None): command for command in commands}
        for _, reply in self._answers(waiting, homes, send, timeout_s):
            yield reply

    def ask_everywhere(self, command: Command, timeout_s: float) -> Iterator[tuple[int, Reply]]:
        """Sends a command about a whole rule to every partition, and yields the number of each partition with its answer (B-104).

        Args:
            command: The command.
            timeout_s: How long to wait for the next answer.

        Raises:
            UnansweredError: Not all partitions answered in time.
        """
        homes = range(self._partitions)

        def send() -> None:
            self._connection.command_everywhere(self._destination, command, self._partitions)

        yield from self._answers({(command.id, home): command for home in homes}, homes, send, timeout_s)

    def ask_aside(self, command: Command, partition: int | None, key: bytes, timeout_s: float) -> Reply:
        """Sends a command to set a record aside, and waits for its answer.

        Args:
            command: The command.
            partition: Of `D.components`, where the record is of it; None: the record is of a router's input.
            key: Of the record's partition.
            timeout_s: How long to wait.

        Raises:
            UnansweredError: It was not answered in time.
        """
        home = partition_for(key, self._partitions) if partition is None else partition
        if home >= self._partitions:
            raise NoAnswerError(f"{self._topics.components} has {self._partitions} partitions, from 0 on")

        def send() -> None:
            self._connection.command_to(self._destination, command, home, key)

        return next(reply for _, reply in self._answers({(command.id, home): command}, [home], send, timeout_s))

    def _answers(
        self, waiting: _Waiting, homes: Iterable[int], send: Callable[[], None], timeout_s: float
    ) -> Iterator[tuple[int, Reply]]:
        """Partitions of these with their answers, until nothing waits."""
        outcomes = [Tp(self._topics.outcomes, number) for number in sorted(homes)]
        positions = {tp: end for tp, (_, end) in self._reader.bounds(outcomes).items()}
        send()
        until = time.monotonic() + timeout_s
        while True:
            answered = len(waiting)
            ends = {tp: end for tp, (_, end) in self._reader.bounds(outcomes).items()}
            for tp, records in self._reader.read({tp: (positions[tp], ends[tp]) for tp in outcomes}):
                for record in records:
                    said = dict(record.headers() or ())
                    command_id = said.get(COMMAND_ID)
                    if command_id is None or said.get(KIND) != KIND_ANSWER:
                        continue
                    known = ((command_id, home) for home in (tp.partition, None))
                    asked = next((each for each in known if each in waiting), None)
                    if asked is None:
                        continue
                    answer = self._answer(record.value() or b"")
                    if is_answer_to(answer, waiting[asked], self._signer):
                        del waiting[asked]
                        yield tp.partition, Reply(answer, is_verified(said))
            positions = ends
            if not waiting:
                return
            if len(waiting) < answered:
                until = time.monotonic() + timeout_s
            if time.monotonic() > until:
                raise UnansweredError([*waiting.values()], self._destination, timeout_s)
            time.sleep(LOOK_AGAIN_S)

    def _homes(self, command: Command) -> Iterable[int]:
        """Partitions where the answer may come: the command's own one; under path routing all, as only the path map knows the id's partition."""
        return range(self._partitions) if self._has_paths else [partition_for(command.group_id, self._partitions)]

    def _answer(self, value: bytes) -> Answer:
        try:
            return codec.decode_as(Answer, value, registry=self._registry)
        except DecodeError as error:
            raise NoAnswerError(f"the command was answered, but the answer cannot be read: {error}") from error


class UnansweredError(UowError):
    """No worker answered in time. The commands are in `D.commands` and are executed as soon as a worker reads them.

    Attributes:
        commands: The commands without an answer.
    """

    def __init__(self, commands: Sequence[Command], destination: str, timeout_s: float) -> None:
        self.commands = tuple(commands)
        ids = ", ".join(_about(command) for command in commands[:3])
        more = f" and {len(commands) - 3} more" if len(commands) > 3 else ""
        super().__init__(
            f"no answer about {ids}{more} in {timeout_s:g} s. Check that a worker of {destination} runs and that the partition is "
            "not blocked (metric `uow_blocked`). Nothing is lost: the command is executed as soon as a worker reads it."
        )


def _about(command: Command) -> str:
    if command.rule:
        return f"rule {command.rule}"
    return command.source if command.verb is Verb.SET_ASIDE else command.group_id.decode("utf-8", "backslashreplace")


@contextmanager
def command_client(settings: Settings, destination: str, count: int, timeout_s: float) -> Iterator[CommandClient]:
    """Opens a `CommandClient` that waits long enough for this many answers; closed on exit.

    Args:
        settings: Configuration.
        destination: Name of the destination.
        count: The number of commands that will be sent.
        timeout_s: Longest wait for an answer.

    Raises:
        ConfigError: No such destination is configured.
        NoAnswerError: Its topics do not exist, or Kafka does not answer.
    """
    settings.policy(destination)
    servers, kafka, registry_url = settings.bootstrap_servers, settings.kafka, settings.registry_url
    with (
        connect(
            servers,
            kafka=kafka,
            registry_url=registry_url,
            application=settings.application_id,
            command_key=settings.value("application.command_key"),
            reconnect_policy="none",
        ) as connection,
        log_reader(settings, PATIENCE_S + timeout_s + count / ANSWERS_PER_S) as reader,
    ):
        yield CommandClient(settings, destination, connection, reader)
