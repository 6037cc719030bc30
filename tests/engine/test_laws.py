"""The laws of a unit as a state machine: any records, commands, time and restarts, against the plainest model that has them.

Hypothesis chooses the steps. After each, what one partition put out and what it holds is what the model says: the decision table for
components, W-203 for commands, W-70 to W-84 for deadlines, W-124 for restarts. The model keeps dictionaries and sets, and looks at one group
and one record at a time; it shares no code with the worker.

Belongs here: plain components, as anybody sends them. Other headers and policies: `tests/core/streams.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.core.script import (
    TOPICS,
    Seen,
    SeenError,
    SeenRefusal,
    SeenUnit,
    Sent,
    Story,
    c,
    check_counts,
    context_of,
    ms,
    passed,
    plain,
    policy_of,
    see,
    told,
)
from tests.engine.restored_logs import Logs
from tests.fake_record import INPUT
from uow.processor.engine.ports import Plan
from uow.processor.engine.replayable import ReplayLimits
from uow.processor.engine.restore import restore
from uow.processor.engine.task import PartitionTask
from uow.topics.policies import ExpirationPolicy

AGE = 60
IDS, NUMBERS = st.sampled_from("abc"), st.integers(1, 5)


@dataclass
class ModelGroup:
    """What the model knows of an open group; times in seconds."""

    opened: float
    held: dict[int, str] = field(default_factory=dict)
    end: int | None = None
    is_end_held: bool = False
    waived: set[int] = field(default_factory=set)
    extended: float = 0.0

    @property
    def deadline(self) -> float:
        return max(self.opened + AGE, self.extended)

    @property
    def is_whole(self) -> bool:
        return self.end is not None and set(range(1, self.end + 1)) <= self.held.keys() | self.waived

    @property
    def missing(self) -> str:
        """As ranges; open at the top while the end is not known."""
        last = self.end or max(self.held, default=0)
        lacking = [number for number in range(1, last + 1) if number not in self.held]
        ranges: list[list[int]] = []
        for number in lacking:
            if ranges and ranges[-1][1] == number - 1:
                ranges[-1][1] = number
            else:
                ranges.append([number, number])
        texts = [str(first) if first == to else f"{first}-{to}" for first, to in ranges]
        return ",".join(texts if self.end else [*texts, f"{last + 1}-"])


@dataclass
class Model:
    """One destination with an age limit; what it gives up is redirected."""

    now: float = 0.0
    groups: dict[str, ModelGroup] = field(default_factory=dict)
    closed: dict[str, tuple[str, dict[int, str]]] = field(default_factory=dict)

    def pass_time(self, now: float) -> list[Seen]:
        self.now = max(self.now, now)
        overdue = [(group.deadline, name) for name, group in self.groups.items() if group.deadline < self.now]
        return [seen for _, name in sorted(overdue) for seen in self.give_up(name, "expired", "age")]

    def give_up(self, name: str, outcome: str, reason: str) -> list[Seen]:
        group = self.groups.pop(name)
        self.closed[name] = outcome, group.held
        return [SeenError(b"%d" % number, outcome, reason, "UowError", group.missing) for number in sorted(group.held)]

    def deliver(self, name: str) -> list[Seen]:
        group = self.groups.pop(name)
        outcome = "partial" if group.missing else "complete"
        self.closed[name] = outcome, group.held
        return [SeenUnit(tuple(sorted(group.held)), name, outcome, group.missing)]

    def deliver_if_whole(self, name: str) -> list[Seen]:
        return self.deliver(name) if self.groups[name].is_whole else []

    def component(self, name: str, seq: int, end: bool, value: str) -> list[Seen]:
        refusal = self.refusal(name, seq, end, value)
        if refusal is not None:
            return [SeenRefusal(*refusal, value.encode())]
        group = self.groups.setdefault(name, ModelGroup(self.now))
        group.held[seq] = value
        group.waived.discard(seq)
        if end:
            group.end, group.is_end_held = seq, True
        return self.deliver_if_whole(name)

    def refusal(self, name: str, seq: int, end: bool, value: str) -> tuple[str, str] | None:
        """Lines 8 to 12."""
        if name in self.closed:
            outcome, held = self.closed[name]
            if outcome != "complete":
                return "UnitClosedError", outcome
            if seq not in held:
                return "OutOfSequenceRangeError", "a"
            return "DuplicateSequenceNumberError", "duplicate"  # its values are forgotten under `reject`
        group = self.groups.get(name)
        if group is None:
            return None
        if seq in group.held:
            return "DuplicateSequenceNumberError", "duplicate" if group.held[seq] == value else "conflict"
        if group.end is not None and seq > group.end:
            return "OutOfSequenceRangeError", "a"
        if end and (seq < max(group.held) or group.end not in (None, seq)):
            return "OutOfSequenceRangeError", "b"
        return None

    def command(self, verb: str, name: str, seq: int, until: float) -> list[Seen]:
        """W-203; what cannot be done changes nothing."""
        group = self.groups.get(name)
        if group is None:
            if verb == "cancel":
                self.closed.setdefault(name, ("cancelled", {}))
            return []
        match verb:
            case "release":
                return self.deliver(name)
            case "cancel":
                return self.give_up(name, "cancelled", "command")
            case "extend" if until > group.deadline:
                group.extended = until
            case "declare-end" if seq >= max(group.held) and not group.is_end_held:
                group.end = seq
                return self.deliver_if_whole(name)
            case "waive" if seq not in group.held and (group.end is None or seq <= group.end):
                group.waived.add(seq)
                return self.deliver_if_whole(name)
        return []


class Laws(RuleBasedStateMachine):
    """The partition's task beside the model."""

    @initialize(replayable=st.booleans())
    def begin(self, replayable: bool) -> None:
        policy = policy_of(incomplete_expiration_ms=AGE * 1000, expiration_policy=ExpirationPolicy.REDIRECT)
        self.context = context_of(
            policy, replay=ReplayLimits(1 << 20, 1 << 30, 1 << 40) if replayable else ReplayLimits()
        )
        self.story = Story(PartitionTask(INPUT, self.context))
        self.model, self.logs, self.commands = Model(), Logs(INPUT), 0

    def sent(self, record: Sent) -> list[Seen]:
        """What came of a record."""
        records = self.story.records([record])
        self.logs.take_input(records)
        return self.seen(self.story.task.process(records))

    def seen(self, plan: Plan | None) -> list[Seen]:
        """What a plan lets the world see; it is committed."""
        self.logs.add(plan)
        check_counts(self.story.counts, self.story.task.groups)
        return [seen for output in (plan.outputs if plan else []) if (seen := see(output)) is not None]

    @rule(name=IDS, seq=NUMBERS, end=st.booleans(), value=st.sampled_from(["x", "y"]), after=st.integers(0, 20))
    def send(self, name: str, seq: int, end: bool, value: str, after: int) -> None:
        now = self.model.now + after
        expected = self.model.pass_time(now) + self.model.component(name, seq, end, value)
        assert self.sent(c(seq, end, name, value, at=now)) == expected

    @rule()
    def send_plain(self) -> None:
        assert self.sent(plain(at=self.model.now)) == [passed()]

    @rule(after=st.integers(0, 90))
    def read_to_the_end(self, after: int) -> None:
        expected = self.model.pass_time(self.model.now + after)
        assert self.seen(self.story.task.tick(ms(self.model.now))) == expected

    @rule(
        verb=st.sampled_from(["release", "cancel", "extend", "declare-end", "waive"]),
        name=IDS,
        seq=NUMBERS,
        later=st.integers(1, 120),
    )
    def tell(self, verb: str, name: str, seq: int, later: int) -> None:
        until = self.model.now + later
        said = {"extend": {"until": until}, "declare-end": {"seq": seq}, "waive": {"seq": seq}}.get(verb, {})
        self.commands += 1
        command = self.story.command(told(verb, name, command_id=str(self.commands), at=self.model.now, **said))
        assert self.seen(self.story.task.process([], [command])) == self.model.command(verb, name, seq, until)

    @rule()
    def restart(self) -> None:
        if self.logs.committed_offset is None:
            return
        self.logs.compact()
        task = restore(self.logs, {TOPICS.components: self.context}, [INPUT])[INPUT]
        story = self.story
        self.story = Story(task, [], story.offset, story.now, story.command_offset)

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "story"):
            return
        task = self.story.task
        assert {name.decode(): sorted(group.held) for name, group in task.groups.items()} == {
            name: sorted(group.held) for name, group in self.model.groups.items()
        }
        assert task.held_bytes == sum(group.bytes for group in task.groups.values())


TestLaws = Laws.TestCase
TestLaws.settings = settings(max_examples=120, stateful_step_count=40)
