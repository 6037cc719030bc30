"""The timeline of one group id, from the record of an input to the unit on its target, and the worker that owns it (B-201). Reads only.

Belongs here: collecting events from the topics of a destination. Does not belong here: the state of a group (`uow.ops.inspect`), and printing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

from uow.ops.inspect import InspectedGroup
from uow.processor.core.columns import read_headers
from uow.processor.engine.context import TaskContext
from uow.processor.engine.group_view import arrival
from uow.processor.engine.ports import LogReader, RawRecord, Tp
from uow.schemas import codec
from uow.schemas.error_classes import DecodeError
from uow.schemas.records import Answer, ComponentRecord, DeadlineWarning, Outcome, Source, ranges_text
from uow.schemas.registry import Registry
from uow.topics import headers as names
from uow.topics.admin import described_group
from uow.topics.commands import COMMAND_ID, KIND_WARNING, BadCommand, Command, claimed
from uow.topics.headers import ENDS, decimal

MOST_READ: Final = 500_000
"""Offsets of one topic that are looked through for one id; of a longer one only the last ones."""
_ORDER: Final = ("input", "component", "refused", "command", "answer", "warning", "close", "unit")


class Event(NamedTuple):
    """Something that happened to a group.

    Attributes:
        at: When, epoch ms.
        what: `input`, `component`, `refused`, `command`, `answer`, `close` or `unit`.
        where: Coordinates of the record that says so: `topic/partition/offset`.
        text: What it says.
    """

    at: int
    what: str
    where: str
    text: str


class Story(NamedTuple):
    """Events in order of time, and topics of which only the last offsets were looked through."""

    events: list[Event]
    shortened: list[str]


def story(
    reader: LogReader,
    context: TaskContext,
    counts: Mapping[str, int],
    found: InspectedGroup,
    group_id: str,
    registry: Registry | None = None,
) -> Story:
    """All that happened to the open group that was found, or to the closed one.

    Args:
        reader: Where to read from.
        context: Of the destination.
        counts: Number of partitions by topic.
        found: The group.
        group_id: Its id.
        registry: Where answers and outcomes are framed by its ids.
    """
    return _Collector(reader, context, counts, found, group_id.encode("utf-8", "surrogateescape"), registry).story()


class _Collector:
    def __init__(
        self,
        reader: LogReader,
        context: TaskContext,
        counts: Mapping[str, int],
        found: InspectedGroup,
        group_id: bytes,
        registry: Registry | None,
    ) -> None:
        self._reader, self._context, self._counts = reader, context, counts
        self._found, self._id, self._registry = found, group_id, registry
        self._shortened: list[str] = []
        self._rules: set[str] = set()

    def story(self) -> Story:
        found, topics = self._found, self._context.topics
        partition = found.partition
        closes = [*self._closes(partition)]
        if found.open is not None:
            since, until = found.open.opened_at, None
            components: Iterable[ComponentRecord] = found.components
        else:
            own = [each for each in closes if found.closed and each[1].generation == found.closed.closed.generation]
            since, until = (own[-1][1].opened_at, own[-1][2]) if own else (0, None)
            components = self._components(partition)
        events = [event for each in components for event in self._came(each)]
        events += self._refused()
        events += self._commands(partition, until)
        events += self._warnings(partition)
        events += [event for event, *_ in closes]
        for target in sorted({topics.units, *self._targets()}):
            events += self._units(target)
        inside = [
            each
            for each in events
            if since <= each.at and (until is None or each.at <= until or each.what in ("answer", "unit"))
        ]
        return Story(sorted(inside, key=lambda each: (each.at, _ORDER.index(each.what))), self._shortened)

    def _came(self, component: ComponentRecord) -> Iterator[Event]:
        row, said = arrival(component), dict(component.headers)
        rule = (said.get(names.RULE) or b"").decode("utf-8", "backslashreplace")
        if rule:
            self._rules.add(rule)
        if row["input"] is not None:
            yield Event(row["arrived_at"], "input", row["input"], f"routed by {rule}")
        text = f"number {component.seq}" if component.seq else "a number of the worker's"
        if component.end:
            text += ", the end"
        if rule:
            text += f", rule {rule}"
        if row["source_name"] and row["input"] is None:
            text += f", source {row['source_name']}"
        if names.RECYCLED in said:
            text += ", brought back by a command"
        yield Event(component.timestamp, "component", row["source"], text)

    def _components(self, partition: int) -> Iterator[ComponentRecord]:
        """Of a closed group: what is left of it in `D.components`."""
        for record, said in self._of_id(self._context.topics.components, [partition]):
            seq = decimal(said.get(names.SEQ) or b"") or 0
            end = ENDS.get((said.get(names.END) or b"").lower()) is True
            where = Source(self._context.topics.components, record.partition(), record.offset())
            headers = tuple(read_headers(record) or ())
            yield ComponentRecord(seq, end, None, record.key(), record.value(), headers, record.timestamp()[1], where)

    def _refused(self) -> Iterator[Event]:
        topic = self._context.topics.rejected
        for record, said in self._of_id(topic, range(self._counts.get(topic, 0))):
            text = (
                f"{_text(said, names.ERROR_CLASS)}, case {_text(said, names.ERROR_CASE)}: {_text(said, names.SOURCE)}"
            )
            yield _event(record, "refused", text)

    def _commands(self, partition: int, until: int | None) -> Iterator[Event]:
        """Those up to a moment, and their answers, which come a little later."""
        ids: set[bytes] = set()
        rule = (self._found.open.rule or "").partition("/")[0] if self._found.open is not None else ""
        for record in self._records(self._context.topics.commands, [partition]):
            if until is not None and record.timestamp()[1] > until:
                continue
            command = self._context.command_reader.read(read_headers(record) or (), record)
            if isinstance(command, BadCommand) and command.refused and command.group_id.encode() == self._id:
                ids.add(command.id.encode())
                yield _event(record, "command", f"{command.verb}{_by(command)}, refused: {command.why}")
            if isinstance(command, Command) and (command.group_id == self._id or (rule and command.rule == rule)):
                ids.add(command.id)
                about = f" of rule {command.rule}" if command.rule else ""
                yield _event(record, "command", f"{command.verb}{about}{_by(command)}: {command.why}")
        for record in self._records(self._context.topics.outcomes, [partition]):
            if dict(read_headers(record) or ()).get(COMMAND_ID) in ids:
                answer = self._decoded(record)
                text = answer.text if isinstance(answer, Answer) else "an answer that cannot be read"
                yield _event(record, "answer", text)

    def _closes(self, partition: int) -> Iterator[tuple[Event, Outcome, int]]:
        """Outcomes, with the append times of their records: a group may be closed as of an earlier moment."""
        for record, said in self._of_id(self._context.topics.outcomes, [partition]):
            outcome = self._decoded(record) if said.get(names.KIND) == b"outcome" else None
            if isinstance(outcome, Outcome):
                rule = f", rule {outcome.rule}" if outcome.rule else ""
                text = f"generation {outcome.generation}: {outcome.outcome}, reason {outcome.reason}, {outcome.count} components{rule}"
                if outcome.supersedes:
                    text += f", corrects unit {outcome.supersedes}"
                if names.ERROR_TEXT in said:
                    text += f": {_text(said, names.ERROR_TEXT)}"
                yield Event(outcome.closed_at, "close", _where(record), text), outcome, record.timestamp()[1]

    def _warnings(self, partition: int) -> Iterator[Event]:
        for record, said in self._of_id(self._context.topics.outcomes, [partition]):
            warning = self._decoded(record) if said.get(names.KIND) == KIND_WARNING else None
            if isinstance(warning, DeadlineWarning):
                lacks = ", ".join([*warning.sources, *filter(None, [ranges_text(warning.missing)])])
                yield Event(warning.at, "warning", _where(record), f"generation {warning.generation}: lacks {lacks}")

    def _targets(self) -> set[str]:
        policies = (self._context.rules.policy(rule) for rule in self._rules)
        return {each.target_topic for each in policies if each is not None and each.target_topic is not None}

    def _units(self, target: str) -> Iterator[Event]:
        for record, said in self._of_id(target, range(self._counts.get(target, 0))):
            if names.UNIT_ID in said and _text(said, names.POS) in ("", "1"):
                size = f", {_text(said, names.SIZE)} components"
                if names.SUPERSEDES in said:
                    size += f", corrects unit {_text(said, names.SUPERSEDES)}"
                yield _event(
                    record, "unit", f"generation {_text(said, names.GENERATION)}: {_text(said, names.OUTCOME)}{size}"
                )

    def _of_id(self, topic: str, partitions: Iterable[int]) -> Iterator[tuple[RawRecord, dict[str, bytes | None]]]:
        for record in self._records(topic, partitions):
            said = dict(read_headers(record) or ())
            if said.get(names.ID) == self._id:
                yield record, said

    def _records(self, topic: str, partitions: Iterable[int]) -> Iterator[RawRecord]:
        tps = [Tp(topic, number) for number in partitions if number < self._counts.get(topic, 0)]
        if not tps:
            return
        ranges = {}
        for tp, (start, end) in self._reader.bounds(tps).items():
            if end - start > MOST_READ and topic not in self._shortened:
                self._shortened.append(topic)
            ranges[tp] = max(start, end - MOST_READ), end
        for _, records in self._reader.read(ranges):
            yield from records

    def _decoded(self, record: RawRecord) -> Any:
        try:
            return codec.decode(record.value() or b"", registry=self._registry)
        except DecodeError:
            return None


def _by(command: Command | BadCommand) -> str:
    return f", by {claimed(command.by, command.is_verified)}" if command.by else ""


def _event(record: RawRecord, what: str, text: str) -> Event:
    return Event(record.timestamp()[1], what, _where(record), text)


def _where(record: RawRecord) -> str:
    return f"{record.topic()}/{record.partition()}/{record.offset()}"


def _text(said: Mapping[str, bytes | None], name: str) -> str:
    return (said.get(name) or b"").decode("utf-8", "backslashreplace")


class Owner(NamedTuple):
    """The worker that owns a partition.

    Attributes:
        name: `CLIENT at HOST`; None if there is none, or it is not known.
        unknown: The reason why it is not known; None if it is.
    """

    name: str | None = None
    unknown: str | None = None


def owner(client: AdminClient, group: str, tp: Tp) -> Owner:
    """The worker that owns a partition, as its consumer group tells."""
    try:
        answer = described_group(client, group)
    except ck.KafkaException as failure:
        error: ck.KafkaError = failure.args[0]
        return Owner() if error.code() == ck.KafkaError.GROUP_ID_NOT_FOUND else Owner(unknown=error.str())
    for member in answer.members:
        if any((each.topic, each.partition) == tuple(tp) for each in member.assignment.topic_partitions):
            return Owner(f"{member.client_id} at {member.host.lstrip('/')}")
    return Owner()
