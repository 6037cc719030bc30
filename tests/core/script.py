"""A small language for tests of groups: `play(c(1), c(3, end=True), c(2)) == [unit(1, 2, 3)]`.

What is sent: `c(number)` a component, `plain(value)` a record without id, `bare(headers)` any record, `clock(t)` the partition read to
its end at wall clock t, `latest(t)` the latest append time that is believed, `redelivered(...)` the same source offsets again, `told(verb)` a command. What is seen, in order: `unit(...)`, `plain(...)`,
`refused(...)`, `given_up(...)`, `sent_on(...)`. Times are seconds after `T0`, by the broker's append time. A script is played three times:
in one poll, in polls of one record, and row by row through the whole decision table (`Partition.on_record`); all three must agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tests.fake_record import T0, FakeRecord
from uow.processor.core.happened import Counts
from uow.processor.core.partition import Partition
from uow.processor.engine.context import TaskContext
from uow.processor.engine.external_values import whole_outputs
from uow.processor.engine.ports import (
    Headers,
    Output,
    Plan,
    Tp,
)
from uow.processor.engine.task import PartitionTask
from uow.schemas import codec, formats
from uow.schemas.error_classes import UowError
from uow.schemas.framing import single_object_header
from uow.schemas.records import (
    MAX_SEQ,
    Answer,
    ComponentRecord,
    DeadlineWarning,
    Outcome,
    Range,
    Source,
    Unit,
    ranges_text,
)
from uow.topics import runs
from uow.topics.catalogue import DestinationTopics
from uow.topics.policies import DestinationPolicy, HandlingPolicy
from uow.topics.runs import numbers_of, position_of

TOPICS = DestinationTopics("app", "D")
_T = TypeVar("_T", Outcome, Answer, DeadlineWarning)


def ms(seconds: float) -> int:
    """A script's time as epoch milliseconds."""
    return T0 + round(seconds * 1000)


# -- what is sent ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sent:
    """A record to be sent; offset and append time come from the script."""

    headers: Any
    value: bytes | None
    key: bytes | None
    at: float | None = None
    again: bool = False


@dataclass(frozen=True, slots=True)
class Clock:
    """The partition is read to its end, which was asked for at this wall clock."""

    t: float


@dataclass(frozen=True, slots=True)
class Told:
    """A record of `D.commands`; it is read before any component that was appended after it."""

    headers: Headers
    key: bytes
    at: float | None = None
    value: bytes | None = None


@dataclass(frozen=True, slots=True)
class Latest:
    """From here on no append time after this is believed."""

    t: float


Step = Sent | Clock | Told | Latest


def text(value: object) -> bytes | None:
    """A header's value: bytes as they are, anything else as its text."""
    if value is None or isinstance(value, bytes):
        return value
    return str(value).lower().encode() if isinstance(value, bool) else str(value).encode()


def c(
    seq: object,
    end: object = False,
    id: str | bytes = "a",
    value: object = "",
    at: float | None = None,
    key: bytes | None = None,
    user: Iterable[tuple[str, object]] = (),
    **properties: object,
) -> Sent:
    """A component. `count=3` is the header `uow-count`, `deliver_at=60` `uow-deliver-at` in script time; `user` are further headers."""
    headers: Headers = [("uow-id", text(id)), ("uow-seq", text(seq))]
    if end is not False:
        headers.append(("uow-end", text(end)))
    for name, said in properties.items():
        if name in ("expires_at", "deliver_at") and isinstance(said, (int, float)):
            said = ms(said)
        headers.append((f"uow-{name.replace('_', '-')}", text(said)))
    headers += [(name, text(said)) for name, said in user]
    return Sent(headers, text(value or f"value {text(seq)!r}"), text(id) if key is None else key, at)


def bare(headers: Any, value: bytes | None = b"value", key: bytes | None = b"key", at: float | None = None) -> Sent:
    """A record with just these headers."""
    return Sent(headers, value, key, at)


def clock(t: float) -> Clock:
    return Clock(t)


def latest(t: float) -> Latest:
    return Latest(t)


def told(
    verb: str,
    id: str = "a",
    seq: object = None,
    until: float | None = None,
    why: str | None = "because",
    command_id: str | None = None,
    dry_run: bool = False,
    by: str | None = None,
    at: float | None = None,
    generation: int = 0,
) -> Told:
    """A command; `until` in script time. Without a command id of its own it has one made of all the rest."""
    said: list[tuple[str, object]] = [
        ("uow-command", verb),
        ("uow-command-id", command_id or f"{verb} {id} {seq} {until} {dry_run} {at} {generation}"),
        ("uow-id", id),
        ("uow-seq", seq),
        ("uow-until", None if until is None else ms(until)),
        ("uow-why", why),
        ("uow-user-id", by),
        ("uow-dry-run", True if dry_run else None),
        ("uow-generation", generation or None),
    ]
    return Told([(name, text(value)) for name, value in said if value is not None], id.encode(), at)


def redelivered(*steps: Sent) -> list[Sent]:
    """The first records of the script once more, at their own source offsets."""
    return [replace(step, again=True) for step in steps]


# -- what is seen ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SeenUnit:
    numbers: tuple[int, ...]
    id: str = "a"
    outcome: str = "complete"
    missing: str = ""


@dataclass(frozen=True, slots=True)
class SeenPlain:
    value: bytes | None


@dataclass(frozen=True, slots=True)
class SeenRefusal:
    error: str
    case: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class SeenError:
    number: bytes | None
    failure: str
    case: str
    error: str
    missing: str


@dataclass(frozen=True, slots=True)
class SeenReroute:
    partition: int
    value: bytes | None


Seen = SeenUnit | SeenPlain | SeenRefusal | SeenError | SeenReroute


def unit(*numbers: int, id: str = "a", outcome: str = "complete", missing: str = "") -> SeenUnit:
    return SeenUnit(numbers, id, outcome, missing)


def plain(value: str = "plain", at: float | None = None) -> Any:
    return bare([], value.encode(), at=at)


def passed(value: str = "plain") -> SeenPlain:
    return SeenPlain(value.encode())


def refused(sent: Sent, error: type[UowError], case: str = "") -> SeenRefusal:
    """The component was refused with this class and case."""
    return SeenRefusal(error.__name__, case, sent.value)


def given_up(number: int, failure: str, case: str, missing: str = "", error: type[UowError] = UowError) -> SeenError:
    """A held component in `D.errors`."""
    return SeenError(b"%d" % number, failure, case, error.__name__, missing)


def sent_on(sent: Sent, partition: int) -> SeenReroute:
    return SeenReroute(partition, sent.value)


# -- the play -------------------------------------------------------------------------------------------------------


def policy_of(**settings: Any) -> DestinationPolicy:
    """A destination that forms units, with these settings."""
    settings.setdefault("handling_policy", HandlingPolicy.SINGLE_MESSAGE_DELIVERY)
    return DestinationPolicy(**settings)


def context_of(policy: DestinationPolicy, partitions: int = 1, **more: Any) -> TaskContext:
    return TaskContext(
        "D", TOPICS, policy, partitions, single_object_header("Unit"), single_object_header("Outcome"), **more
    )


class RowByRow(Partition):
    """The same partition without the fast path: every record goes through the whole table."""

    def on_records(self, records: Sequence[Any]) -> bool:
        for record in records:
            if self.is_full():
                self.is_cut = True
                return False
            if record.offset() < self.position:
                self.counts.received += 1
                self.counts.ignored += 1
            elif self.policy.handling_policy is HandlingPolicy.PASS_THROUGH:
                super().on_records([record])
            else:
                self.counts.received += 1
                self.on_record(record)
                if self.is_cut:
                    self.counts.received -= 1
                    return False
                self.position = record.offset() + 1
        return True


def row_by_row(task: PartitionTask) -> PartitionTask:
    """The task with its partition replaced by one that has no fast path."""
    before = task.partition
    task.partition = RowByRow(before.place, before.policy, before.plan_bytes, before.rules, before.roll_over_bytes)
    return task


@dataclass(slots=True)
class Story:
    """One play of a script against one task, with all it did."""

    task: PartitionTask
    plans: list[Plan] = field(default_factory=list)
    offset: int = 0
    now: float = 0.0
    command_offset: int = 0
    lying: dict[int, FakeRecord] = field(default_factory=dict)

    @property
    def outputs(self) -> list[Output]:
        return [output for plan in self.plans for output in whole_outputs(plan, self)]

    def read(self, components: Sequence[ComponentRecord]) -> list[FakeRecord]:
        """Port `Contents`, on what was sent."""
        return [self.lying[each.source.offset] for each in components if each.source.offset in self.lying]

    def hidden(self, tp: Tp, offsets: Sequence[int]) -> list[int]:
        """Port `Contents`: records whose headers are to look at like none."""
        return [offset for offset in offsets if offset in self.lying and self.lying[offset].is_hidden]

    def close(self) -> None:
        """Nothing is open."""

    @property
    def seen(self) -> list[Seen]:
        return [seen for output in self.outputs if (seen := see(output)) is not None]

    @property
    def units(self) -> list[Unit]:
        return [unit_of(output) for output in self.outputs if is_unit(output)]

    @property
    def unit_headers(self) -> list[dict[str, bytes | None]]:
        return [dict(output.headers) for output in self.outputs if is_unit(output)]

    @property
    def outcomes(self) -> list[Outcome]:
        return self._reported(Outcome, b"outcome")

    @property
    def answers(self) -> list[Answer]:
        return self._reported(Answer, b"answer")

    @property
    def warnings(self) -> list[DeadlineWarning]:
        return self._reported(DeadlineWarning, b"warning")

    def _reported(self, record: type[_T], kind: bytes) -> list[_T]:
        return [
            codec.decode_as(record, output.value or b"")
            for output in self.outputs
            if output.topic == "D.outcomes" and ("uow-kind", kind) in output.headers
        ]

    @property
    def log_lines(self) -> list[dict[str, Any]]:
        return [line for plan in self.plans for line in plan.log_lines]

    @property
    def counts(self) -> Counts:
        return self.task.counts

    @property
    def open(self) -> dict[str, str]:
        """Open groups: the numbers held of each, as ranges."""
        return {name.decode(): ranges_text(group.held_ranges()) for name, group in self.task.groups.items()}

    def records(self, steps: Iterable[Sent], base: int = 0) -> list[FakeRecord]:
        """Gives offsets and append times."""
        records = []
        replayed = base
        for step in steps:
            self.now = self.now if step.at is None else step.at
            if step.again:
                records.append(FakeRecord(replayed, step.headers, step.value, step.key, ms(self.now)))
                replayed += 1
            else:
                records.append(FakeRecord(self.offset, step.headers, step.value, step.key, ms(self.now), self.task.tp))
                self.lying[self.offset] = records[-1]
                self.offset += 1
        return records

    def send(self, *steps: Step | list[Sent], poll: int = MAX_SEQ) -> list[Seen]:
        """Plays steps, at most `poll` records at once; returns what they brought about."""
        before = len(self.outputs)
        batch: list[Sent] = []
        flat = [step for one in steps for step in (one if isinstance(one, list) else [one])]
        for step in flat:
            if isinstance(step, Clock):
                self._flush(batch, poll)
                batch = []
                self.now = max(self.now, step.t)
                plan = self.task.tick(ms(step.t))
                if plan is not None:
                    self._take(plan)
            elif isinstance(step, Latest):
                self._flush(batch, poll)
                batch = []
                self.task.believe(ms(step.t))
            elif isinstance(step, Told):
                self._flush(batch, poll)
                batch = []
                command = self.command(step)
                self._take(plan := self.task.process([], [command]))
                if plan.awaits_rule is not None:
                    self.task.read_rules(0, tuple)
                    self._take(self.task.process([], [command]))
            else:
                if step.again and batch and not batch[-1].again:  # offsets go back only from one poll to the next
                    self._flush(batch, poll)
                    batch = []
                batch.append(step)
        self._flush(batch, poll)
        return [seen for output in self.outputs[before:] if (seen := see(output)) is not None]

    def command(self, step: Told) -> FakeRecord:
        """Gives offset and append time."""
        self.now = self.now if step.at is None else step.at
        where = Tp(TOPICS.commands, self.task.tp.partition)
        self.command_offset += 1
        return FakeRecord(self.command_offset - 1, step.headers, step.value, step.key, ms(self.now), where)

    def _flush(self, batch: list[Sent], poll: int) -> None:
        records = self.records(batch)
        for first in range(0, len(records), min(poll, len(records)) or 1):
            some = records[first : first + poll]
            while some:
                plan = self.task.process(some)
                self._take(plan)
                if plan.awaits_rule is None:
                    break
                self.task.read_rules(some[-1].offset() + 1, tuple)
                some = [record for record in some if record.offset() >= plan.next_offset]

    def _take(self, plan: Plan) -> None:
        self.plans.append(plan)
        check_counts(self.task.counts, self.task.groups)


def check_counts(counts: Counts, groups: Any) -> None:
    """Nothing vanishes (W-216): both sums, and what is open is really there."""
    left = counts.duplicate + counts.rejected + counts.passed + counts.ignored
    assert counts.received == counts.held + counts.joined + left
    assert counts.open == sum(group.record_count for group in groups.values())


def is_unit(output: Output) -> bool:
    """Whether it is a unit; of one of shape `consecutive`, its last record."""
    if output.topic in (TOPICS.errors, TOPICS.rejected, TOPICS.outcomes) or ("uow-kind", b"unit") not in output.headers:
        return False
    place, count = position_of(output.headers) or (1, 1)
    return place == count


def unit_of(output: Output) -> Unit:
    """The unit; of one of shape `consecutive`, as its last record tells it: of its components the numbers alone."""
    if position_of(output.headers) is not None:
        told = runs.unit_of(output.headers, "D", 0)
        numbers = zip(range(told.count), numbers_of(told.missing), strict=False)
        return replace(told, components=tuple(bare_component(number) for _, number in numbers))
    value = output.value or b""
    if value.startswith(b"{"):
        return formats.from_json(value)
    return formats.from_xml(value) if value.startswith(b"<") else codec.decode_as(Unit, value)


def bare_component(number: int) -> ComponentRecord:
    return ComponentRecord(number, False, None, None, None, (), 0, Source(TOPICS.components, 0, 0))


def see(output: Output) -> Seen | None:
    """What one output means, in the words of a script; None for outcomes, which stories show apart, and inside a run."""
    said = dict(output.headers)

    def told(name: str) -> str:
        return (said.get(name) or b"").decode()

    if output.topic == TOPICS.rejected:
        return SeenRefusal(told("uow-error-class"), told("uow-error-case"), output.value)
    if output.topic == TOPICS.errors:
        return SeenError(
            said.get("uow-seq"),
            told("uow-failure-reason"),
            told("uow-error-case"),
            told("uow-error-class"),
            told("uow-missing"),
        )
    if output.topic == TOPICS.components:
        return SeenReroute(output.partition, output.value)
    if output.topic == TOPICS.outcomes or said.get("uow-kind") == b"notice":
        return None
    if "uow-unit-id" not in said:
        assert output.topic == TOPICS.units
        return SeenPlain(output.value)
    if not is_unit(output):
        return None
    if (output.value or b"").startswith(b'<?xml version="1.0" encoding="UTF-8"?>\n'):
        numbers = tuple(range(1, int(told("uow-size")) + 1))
        return SeenUnit(numbers, told("uow-id"), told("uow-outcome"), told("uow-missing"))
    made = unit_of(output)
    return SeenUnit(
        tuple(component.seq for component in made.components), made.id, told("uow-outcome"), told("uow-missing")
    )


def story(*steps: Step | list[Sent], poll: int = MAX_SEQ, whole_table: bool = False, **settings: Any) -> Story:
    """Plays a script once. `settings` are those of the destination."""
    partition, partitions = settings.pop("partition", 0), settings.pop("partitions", 1)
    more = {name: settings.pop(name) for name in ("record_limit_bytes", "plan_bytes", "rules") if name in settings}
    task = PartitionTask(Tp(TOPICS.components, partition), context_of(policy_of(**settings), partitions, **more))
    played = Story(row_by_row(task) if whole_table else task)
    played.send(*steps, poll=poll)
    return played


def play(*steps: Step | list[Sent], **settings: Any) -> list[Seen]:
    """Plays a script in one poll, in polls of one, and without the fast path; returns what all three let the world see."""
    whole = story(*steps, **settings)
    for other in (story(*steps, poll=1, **settings), story(*steps, whole_table=True, **settings)):
        assert other.seen == whole.seen
        assert other.open == whole.open
        assert other.counts == whole.counts
    return whole.seen


def missing_of(*numbers: int, end: int | None = None) -> str:
    """The `uow-missing` text of a group that holds these numbers."""
    gaps, after = [], 0
    for number in sorted(numbers):
        if number > after + 1:
            gaps.append(Range(after + 1, number - 1))
        after = number
    if after < (end or MAX_SEQ):
        gaps.append(Range(after + 1, end or MAX_SEQ))
    return ranges_text(gaps)
