"""The worker's own records of one partition's groups and commands: the ledger, `D.commands` and `D.outcomes`.

The three are read in step with the input, so that only what the recomputation has not come to yet is in memory.

Belongs here: finding the recorded closing of a group, and the commands with the positions at which they were decided. Does not belong here: judging
them (`uow.spark_sink.expectations`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from confluent_kafka import Message

from uow.processor.core.columns import UnreadableRecord, looked_at
from uow.processor.core.partition import Partition
from uow.schemas.codec import decode
from uow.schemas.error_classes import DecodeError
from uow.schemas.records import Answer, LedgerRecord, Outcome
from uow.schemas.registry import connect
from uow.spark_sink.audit_state import JournalMark
from uow.spark_sink.kafka import Cluster
from uow.spark_sink.partition_log import PartitionLog, offset_of
from uow.spark_sink.recompute import Arrived, Decided, Order, Tick
from uow.spark_sink.told_placement import ToldPlacement
from uow.topics.catalogue import DestinationTopics
from uow.topics.commands import Command, CommandReader, Verb, is_verified, known_as

_EVERYTHING: Final = 2**63


class Recorded(NamedTuple):
    """A closing as it was recorded.

    Attributes:
        outcome: Of the group.
        at: When it was recorded, epoch ms.
        topic: Where.
    """

    outcome: str
    at: int
    topic: str


def arrivals(messages: list[Message], hidden: Callable[[Sequence[int]], set[int]] | None = None) -> list[Arrived]:
    """Messages as the core reads them. Nobody else may ask them for their headers (`uow.processor.core.columns.look_at_headers`).

    Args:
        messages: Of one partition, in offset order.
        hidden: Says of which of these offsets the client hides the headers, and is asked about messages without headers; None where such a
            message says nothing in either case.
    """
    found: list[tuple[Any, Any]] = [*looked_at(messages)]  # type: ignore[arg-type]
    bare = [record.offset() for headers, record in found if not headers and not isinstance(record, UnreadableRecord)]
    unshown = hidden(bare) if bare and hidden is not None else set()

    read = []
    for headers, record in found:
        shown = None if isinstance(record, UnreadableRecord) or record.offset() in unshown else headers or ()
        kind, at = record.timestamp()
        read.append(Arrived(record.offset(), at, record.key(), record.value(), shown, kind))
    return read


class Journal:
    """The records of one partition. Close it after use.

    Args:
        cluster: The cluster.
        topics: Names of the topics.
        partition: Number of the partition, the same in all of these topics.
        start: First offset of the input that is looked at; what closed before is of no interest.
        end: The one after the last; later commands are none of ours.
        commands: Reads commands.
        mark: Where to go on; by default at the beginning of the logs.
        placement: Gets all ledger records.
        has_rules: True if the destination has units by rule: time closes them where the ledger says so.
    """

    def __init__(
        self,
        cluster: Cluster,
        topics: DestinationTopics,
        partition: int,
        start: int,
        end: int,
        commands: CommandReader,
        mark: JournalMark = JournalMark(),  # noqa: B008
        placement: ToldPlacement | None = None,
        *,
        has_rules: bool = False,
    ) -> None:
        self._placement, self._has_rules, self._command_reader = placement, has_rules, commands
        self._topics, self._partition, self._start, self._end = topics, partition, start, end
        self._registry = connect(cluster.registry_url) if cluster.registry_url else None
        names = topics.closed_changelog, topics.outcomes, topics.commands
        begins = mark.ledger, mark.outcomes, mark.commands
        self._logs = [
            PartitionLog(cluster, name, partition, begin, may_be_cut=True)
            for name, begin in zip(names, begins, strict=True)
        ]
        self._ledger, self._outcomes, self._commands = map(_messages, self._logs)
        self._next_of_ledger, self._next_of_outcomes, self._next_of_commands = begins
        self._position = mark.position
        self._clock = mark.clock
        self._next_outcome: tuple[Outcome | Answer, bytes, int] | None = None
        self._closings: dict[tuple[bytes, int], list[Recorded]] = {}
        for group_id, generation, outcome, at, topic in mark.closings:
            self._note(group_id, generation, Recorded(outcome, at, topic))
        self._said: dict[tuple[bytes, int], Arrived] = {}
        self._said_until = -1
        self._orders: deque[Order | Tick] = deque()
        self._ordered = set(mark.ordered)
        self._done = [(group_id, (command_id, at)) for group_id, command_id, at in mark.done]
        self.unreadable: list[tuple[str, str]] = []
        """Place and reason of each record that cannot be read."""

    def orders(self, position: int = _EVERYTHING) -> list[Order | Tick]:
        """The further commands that were decided by the time when the input had been read to a position; with rules also ticks until then."""
        while self._position < position and (message := next(self._ledger, None)) is not None:
            self._on_ledger(message)
        if self._position < position:
            self._position = position
        found = [*self._orders]
        self._orders.clear()
        return found

    def _on_ledger(self, message: Message) -> None:
        at = message.timestamp()[1]
        self._next_of_ledger = offset_of(message) + 1
        try:
            record = decode(message.value() or b"")
        except DecodeError as error:
            self._complain(message, error)
            return
        if not isinstance(record, LedgerRecord):
            return
        if self._placement is not None:
            self._placement.on_ledger(record)
        for one in record.closed:
            if one.closed_before > self._start:
                self._note(one.id, one.generation, Recorded(one.outcome.value, at, self._topics.closed_changelog))
        before, self._clock, self._position = self._clock, record.clock, record.to_offset
        if before is not None and record.to_offset <= self._end:
            commands = [(each.id, each.at) for each in record.commands]
            decided = Decided(self._partition, record.from_offset, record.to_offset, before, commands)
            self._orders.extend(self._known(decided))
        is_tick = record.from_offset == record.to_offset and not record.commands
        if self._has_rules and is_tick and record.to_offset <= self._end:
            closed = frozenset((one.id, one.generation) for one in record.closed)
            self._orders.append(Tick(record.to_offset, min(record.clock, at), closed))

    def _known(self, decided: Decided) -> Iterator[Order]:
        """The commands that can still be read."""
        for known in decided.commands:
            self._read_commands(known[1])
            said = self._said.pop(known, None)
            if said is not None:
                self._ordered.add(known)
                self._next_of_commands = said.offset() + 1  # commands are decided in their order
                yield Order(decided.start, decided.stop, decided.clock, said)

    def _read_commands(self, at: int) -> None:
        while self._said_until <= at and (message := next(self._commands, None)) is not None:
            [record] = arrivals([message])
            command = self._command_reader.read(record.shown, record)
            if isinstance(command, Command) and not command.dry_run and command.verb is not Verb.SET_ASIDE:
                self._said.setdefault((command.known_as, record.timestamp()[1]), record)
            self._said_until = record.timestamp()[1]

    def closings(self, group_id: bytes, generation: int, clock: int = _EVERYTHING) -> list[Recorded]:
        """The recorded closings of a group, none if there is no record of it any more; they are forgotten here.

        Args:
            group_id: Of the group.
            generation: Of the group.
            clock: The clock of the recomputation, epoch ms; `orders` was called before.
        """
        self._read_outcomes(clock)
        return self._closings.pop((group_id, generation), [])

    def _read_outcomes(self, clock: int) -> None:
        while True:
            if self._next_outcome is None:
                message = next(self._outcomes, None)
                if message is None:
                    return
                self._on_outcome(message)
                continue
            record, command, at = self._next_outcome
            if isinstance(record, Outcome):
                if record.closed_at > clock:
                    return
                self._note(
                    record.id.encode(), record.generation, Recorded(record.outcome.value, at, self._topics.outcomes)
                )
            elif record.done and record.verb != Verb.SET_ASIDE:  # that one changes no group
                self._done.append((record.id, (command, record.at)))
            self._next_outcome = None

    def _on_outcome(self, message: Message) -> None:
        self._next_of_outcomes = offset_of(message) + 1
        try:
            record = decode(message.value() or b"", registry=self._registry)
        except DecodeError as error:
            self._complain(message, error)
            return
        if isinstance(record, Outcome | Answer):
            command = _remembered_as(record, message) if isinstance(record, Answer) else b""
            self._next_outcome = record, command, message.timestamp()[1]

    def changed_by_lost_commands(self) -> set[str]:
        """Ids changed by a command that cannot be computed again. Everything is read then."""
        self.orders()
        self._read_outcomes(_EVERYTHING)
        return {group_id for group_id, known in self._done if known not in self._ordered}

    def mark(self, partition: Partition) -> JournalMark:
        """Where another journal goes on, once every order was carried out.

        Args:
            partition: The recomputation's. What concerns neither its open groups nor what it remembers is left out.
        """
        groups, closed, commands = partition.groups, partition.closed, partition.commands
        opened = {(group.id, group.generation) for group in groups.values()}
        done = {known for _, known in self._done}
        outcomes = self._next_of_outcomes
        if outcomes is not None and self._next_outcome is not None:
            outcomes -= 1
        return JournalMark(
            self._next_of_ledger,
            outcomes,
            self._next_of_commands,
            self._position,
            self._clock,
            [
                (group_id, generation, *each)
                for (group_id, generation), found in self._closings.items()
                if (group_id, generation) in opened
                for each in found
            ],
            [
                (group_id, *known)
                for group_id, known in self._done
                if known not in self._ordered
                and (group_id.encode() in groups or closed.get(group_id.encode()) is not None)
            ],
            [known for known in self._ordered if known not in done and known[0] in commands],
        )

    def _note(self, group_id: bytes, generation: int, recorded: Recorded) -> None:
        self._closings.setdefault((group_id, generation), []).append(recorded)

    def _complain(self, message: Message, error: DecodeError) -> None:
        self.unreadable.append((f"{message.topic()}/{message.partition()}/{message.offset()}", str(error)))

    def close(self) -> None:
        """Closes the consumers."""
        for log in self._logs:
            log.close()


def _remembered_as(answer: Answer, message: Message) -> bytes:
    """The bytes by which the command of an answer is remembered."""
    [record] = arrivals([message])
    return known_as(answer.command_id.encode(), answer.by if is_verified(dict(record.shown)) else None)


def _messages(log: PartitionLog) -> Iterator[Message]:
    return (message for batch in log.rest() for message in batch)
