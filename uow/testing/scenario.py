"""The line language of the test kit, and its play: the production router and assembler on one partition, and a virtual clock.

| Line | Meaning |
| --- | --- |
| `at 3s send UK` | a record with `uow-destination` UK arrives; `x5`: so many; `header:NAME=TEXT`, `key=TEXT`, `from=TOPIC` as they say; the rest of the line behind `value` is its value |
| `at 15s expect partial 3` | since the `expect` before exactly this came out: outcome and size; `by REASON` and `on TOPIC` are compared if they stand there |
| `at 15s expect complete 5, complete 5` | several, in this order |
| `at 15s expect nothing` | nothing did |
| `at 15s expect rejected 2` | so many records were refused, by router or assembler |
| `at 20s restart` | the worker ends without a word, and another one restores its state |
| `at 20s release RULE` | the waiting groups of a rule are released |
| `at 15s expect notices 1` | so many cancel notices went out |
| `at 0s call trip c1 hotel flight` | a call `c1` with the routing name `trip` asks a service for each of these folders; `timeout=5s` is its own; `flight*2`: that reply weighs 2; `notice=TOPIC`: its services are told there |
| `at 1s reply c1 2` | the reply to the second of them arrives; the rest of the line behind `value` is its value |
| `start 2026-03-27T16:58:00+01:00` | the first line: what moment 0 is by the calendar, without it 2023-11-14T22:14:00Z |
| `# text` | a remark |

A moment is a number with `ms`, `s`, `m` or `h`; moments do not go back. An `expect` looks one millisecond after its moment, when a limit of just
that long has passed.

Belongs here: reading lines, playing, comparing. Does not belong here: any decision about records or groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from uow.processor.engine.context import TaskContext
from uow.processor.engine.ports import Committed, Output, Plan, Stretch, Tp
from uow.processor.engine.restore import restore
from uow.processor.engine.task import PartitionTask
from uow.processor.rules.checks import complaints_about
from uow.processor.rules.columns import WrongRows
from uow.processor.rules.conditions import group_policy
from uow.processor.rules.group_keys import GroupKey
from uow.processor.rules.routing import Fate, RecordRouting, RouteTarget, RuleRouting
from uow.processor.rules.rule_file import read_rules
from uow.processor.rules.rule_set import RuleSet
from uow.schemas import codec
from uow.schemas.error_classes import ConfigError, UowError
from uow.schemas.framing import single_object_header
from uow.schemas.records import Outcome, UnitOutcome
from uow.topics import headers as names
from uow.topics.catalogue import DestinationTopics
from uow.topics.commands import Command, Verb, command_headers, command_value
from uow.topics.grouping import GroupPolicy
from uow.topics.manifests import KIND_NOTICE, Manifest, RequestEntry, request_id
from uow.topics.policies import DestinationPolicy, HandlingPolicy, OutcomesPolicy
from uow.topics.record_size import INPUT_LIMIT_BYTES, RecordLimit
from uow.topics.rules import ResolvedRow

START_MS: Final = 1_700_000_040_000
"""Moment 0 of a scenario that does not say, a full minute in epoch milliseconds."""
_INPUT: Final = "input"
_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_SPAN: Final = r"([0-9]{1,12}(?:\.[0-9]{1,12})?)(ms|s|m|h)"
_LINE: Final = re.compile(rf"at\s+{_SPAN}\s+(\w+)\s*(.*)", re.ASCII)
_LIMIT: Final = re.compile(rf"timeout={_SPAN}", re.ASCII)
_REQUEST: Final = re.compile(r"(.+?)(?:\*([0-9]{1,7}))?")
_OUTCOMES: Final = ("complete", "partial", "expired", "cancelled", "failed")


class ScenarioError(UowError, AssertionError):
    """A line of a scenario cannot be read, or something else came out than it says. The message has the line and its number."""


class Came(NamedTuple):
    """Something that came out: a unit, or a group that ended without one. `topic` is empty for the latter."""

    outcome: str
    size: int
    reason: str
    topic: str

    def __str__(self) -> str:
        return f"{self.outcome} {self.size} by {self.reason}" + (f" on {self.topic}" if self.topic else "")


@dataclass(slots=True)
class Played:
    """The result of a scenario.

    Attributes:
        units: Records of units, as they would be written, in order.
        open: Components held in groups that are still open, by group key.
    """

    units: list[Output] = field(default_factory=list)
    open: dict[str, int] = field(default_factory=dict)


class _Record:
    """A record of a log in memory."""

    __slots__ = ("_headers", "_key", "_offset", "_time", "_topic", "_value")

    def __init__(self, topic: str, offset: int, key: bytes | None, value: bytes | None, headers: Any, at: int) -> None:
        self._topic, self._offset, self._key, self._value, self._headers = topic, offset, key, value, headers
        self._time = (2, at)

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Any:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return self._time


class _Logs:
    """Everything that a worker writes for its own restart (`LogReader`)."""

    def __init__(self) -> None:
        self._logs: dict[str, list[_Record]] = {}
        self._committed: dict[Tp, Committed] = {}

    def write(self, plan: Plan) -> None:
        """Takes a plan, as a transaction would."""
        for key, value in plan.changelog:
            self._append(plan.changelog_topic, key, value)
        if plan.ledger is not None:
            self._append(plan.ledger_topic, None, plan.ledger)
        for tp, offset, metadata in plan.positions():
            self._committed[tp] = Committed(offset, metadata)

    def _append(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        log = self._logs.setdefault(topic, [])
        log.append(_Record(topic, len(log), key, value, None, 0))

    def committed(self, tps: Sequence[Tp]) -> Mapping[Tp, Committed]:
        return {tp: self._committed.get(tp, Committed(None, "")) for tp in tps}

    def bounds(self, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        inputs = {tp: (0, committed.offset or 0) for tp, committed in self._committed.items()}
        return {tp: inputs.get(tp, (0, len(self._logs.get(tp.topic, ())))) for tp in tps}

    def read(self, ranges: Mapping[Tp, tuple[int, int]]) -> Iterator[Stretch]:
        for tp, (start, end) in ranges.items():
            if records := self._logs.get(tp.topic, [])[start:end]:
                yield tp, records


class _Worker:
    """One destination with one partition; also its table of rows (`RuleTable`)."""

    def __init__(self, name: str, policy: DestinationPolicy) -> None:
        self.topics, self._policy = DestinationTopics("test", name), policy
        self._rows: dict[str, GroupPolicy] = {}
        framing = single_object_header("Unit"), single_object_header("Outcome")
        self._context = TaskContext(name, self.topics, policy, 1, *framing, rules=self)
        self._logs = _Logs()
        self.task = PartitionTask(Tp(self.topics.components, 0), self._context)
        self._offset = self._commands = 0
        self.plans: list[Plan] = []

    def policy(self, name: str) -> GroupPolicy | None:
        return self._rows.get(name)

    kept = policy

    def catch_up(self, meanwhile: Any) -> None:
        """Every row is known before its first component."""

    def take(self, routed: Any, at: int) -> None:
        """Takes one component."""
        if routed.row is not None:
            self._rows.setdefault(routed.row.name, group_policy(routed.row, self._policy))
        sent = routed.sent
        record = _Record(self.topics.components, self._offset, sent.key, sent.value, sent.headers, at)
        self._planned(self.task.process([record]))
        self._offset += 1

    def look(self, at: int) -> None:
        """The partition is read to its end."""
        while (plan := self.task.tick(at)) is not None:
            self._planned(plan)
            if not plan.is_cut:
                return

    def release(self, rule: str, at: int) -> None:
        """Releases the waiting groups of a rule."""
        command = Command(b"%d" % self._commands, Verb.RELEASE, b"", "scenario", rule=rule)
        record = _Record(self.topics.commands, self._commands, rule.encode(), None, command_headers(command), at)
        self._commands += 1
        self._planned(self.task.process([], [record]))

    def call(self, command: Command, row: ResolvedRow, at: int) -> None:
        """Takes the manifest of a call."""
        self._rows.setdefault(row.name, group_policy(row, self._policy))
        headers, value = command_headers(command), command_value(command)
        record = _Record(self.topics.commands, self._commands, command.group_id, value, headers, at)
        self._commands += 1
        self._planned(self.task.process([], [record]))

    def restart(self) -> None:
        """A new worker has the state of the old one."""
        if self.plans:
            self.task = restore(self._logs, {self.topics.components: self._context}, [self.task.tp])[self.task.tp]

    def _planned(self, plan: Plan) -> None:
        self._logs.write(plan)
        self.plans.append(plan)


class _Play:
    """One play of a scenario."""

    def __init__(self, rules: RuleSet) -> None:
        asked = rules.rules_for(())
        found = {each.destination for each in asked}
        self.workers = {name: _Worker(name, _POLICY) for name in sorted(found)}
        limit = RecordLimit(INPUT_LIMIT_BYTES)
        targets = {name: RouteTarget(self.workers[name].topics, _POLICY, limit) for name in found}
        self._routing = RecordRouting([RuleRouting(each, rules, targets[each.destination]) for each in asked])
        self._by_topic = {worker.topics.components: worker for worker in self.workers.values()}
        self._rules, self._calls = rules, dict[str, str]()
        self._offset = self._rejected = self.notices = 0
        self._seen: dict[str, int] = dict.fromkeys(found, 0)
        self.units: list[Output] = []

    def send(self, rest: str, at: int) -> None:
        """A line `send`."""
        before, _, value = f" {rest} ".partition(" value ")
        key: bytes | None = None
        topic, times, headers = _INPUT, 1, list[tuple[str, bytes | None]]()
        for word in before.split():
            name, equals, said = word.partition("=")
            if equals and name == "key":
                key = said.encode()
            elif equals and name == "from":
                topic = said
            elif equals and name.startswith("header:"):
                headers.append((name.removeprefix("header:"), said.encode()))
            elif re.fullmatch(r"x[0-9]{1,6}", word):
                times = int(word[1:])
            else:
                headers.append((names.DESTINATION, word.encode()))
        for worker in self.workers.values():
            worker.look(at)
        for _ in range(times):
            record = _Record(topic, self._offset, key, (value.strip() or "<Test/>").encode(), headers, at)
            self._offset += 1
            routed = self._routing.route(record, headers, at)
            self._rejected += routed.fate in (Fate.REJECTED, Fate.SET_ASIDE)
            if routed.fate is Fate.ROUTED:
                self._by_topic[routed.sent.topic].take(routed, at)

    def call(self, rest: str, at: int, where: str) -> None:
        """A line `call`."""
        name, mark, *words = rest.split() if len(rest.split()) > 1 else ("", "")
        limits = [_LIMIT.fullmatch(word) for word in words if word.startswith("timeout=")]
        notices = [word.removeprefix("notice=") for word in words if word.startswith("notice=")]
        folders = [word for word in words if not word.startswith(("timeout=", "notice="))]
        asking = [rule for rule in self._rules.rules if GroupKey(rule.group_key).is_request]
        row = self._rules.resolve(asking[0], name, at) if asking and name else None
        if row is None or not mark or not folders or None in limits:
            raise ScenarioError(
                f"{where} is not `call NAME MARK FOLDER[*WEIGHT] ... [timeout=5s] [notice=TOPIC]`, or no rule gathers its replies"
            )
        timeout_ms = next((_ms(limit[1], limit[2]) for limit in limits if limit is not None), None)
        group_id = f"{row.rule.rule_id}/{name}/{mark}"
        self._calls[mark] = group_id
        requests = [match for match in map(_REQUEST.fullmatch, folders) if match is not None]
        listed = [RequestEntry(each[1], each[1], int(each[2] or 1), next(iter(notices), None)) for each in requests]
        manifest = Manifest(name, tuple(listed), timeout_ms)
        command = Command(mark.encode(), Verb.MANIFEST, group_id.encode(), "scenario", rule=row.name, manifest=manifest)
        self.workers[row.rule.destination].call(command, row, at)

    def reply(self, rest: str, at: int, where: str) -> None:
        """A line `reply`."""
        before, _, value = f"{rest} ".partition(" value ")
        mark, _, number = before.strip().partition(" ")
        if mark not in self._calls or not number.strip().isdecimal():
            raise ScenarioError(f"{where} is not `reply MARK NUMBER [value ...]` of a call before it")
        said = f"header:{names.CORRELATION_ID}={request_id(self._calls[mark], int(number))}"
        self.send(f"{said} value {value}", at)

    def came(self, at: int) -> tuple[list[Came], int]:
        """All that came out since the last call, and how many records were refused; `notices` counts the cancel notices."""
        found: list[Came] = []
        self.notices = 0
        rejected, self._rejected = self._rejected, 0
        for name, worker in self.workers.items():
            worker.look(at)
            outputs = [output for plan in worker.plans[self._seen[name] :] for output in plan.outputs]
            self._seen[name] = len(worker.plans)
            rejected += sum(output.topic == worker.topics.rejected for output in outputs)
            self.notices += sum((names.KIND, KIND_NOTICE) in output.headers for output in outputs)
            for output in outputs:
                said = {each: (raw or b"").decode() for each, raw in output.headers}
                is_unit = said.get(names.KIND) == "unit" and names.UNIT_ID in said
                if is_unit and said.get(names.POS, "1/1").split("/")[0] == "1":
                    self.units.append(output)
                    found.append(Came(said[names.OUTCOME], int(said[names.SIZE]), said[names.REASON], output.topic))
            found += _ended(outputs, worker.topics)
        return found, rejected


def _ended(outputs: Sequence[Output], topics: DestinationTopics) -> Iterator[Came]:
    """Groups that ended without a unit, as `D.outcomes` tells of them."""
    for output in outputs:
        if output.topic == topics.outcomes and (names.KIND, b"outcome") in output.headers:
            one = codec.decode_as(Outcome, output.value or b"")
            if one.outcome not in (UnitOutcome.COMPLETE, UnitOutcome.PARTIAL):
                yield Came(one.outcome, one.count, one.reason, "")


_POLICY: Final = DestinationPolicy(handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY, outcomes=OutcomesPolicy.ALL)


def play(rules: str, lines: str) -> Played:
    """Plays a scenario. Destinations have the default settings of one that forms units.

    Args:
        rules: The text of a file of rules (TOML); all of its rules are asked, for records of every topic.
        lines: The scenario, see this module's text.

    Raises:
        ScenarioError: A line cannot be read, or something else came out than it says.
        ConfigError: The rules are not valid.
    """
    played = _Play(_valid(rules))
    start, now = START_MS, 0
    for number, line in enumerate(map(str.strip, lines.splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        if line.startswith("start ") and not now:
            start = _moment(line.removeprefix("start "), f"line {number}: {line!r}")
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ScenarioError(
                f"line {number}: {line!r} is not `at MOMENT send|expect|release|call|reply|restart ...`"
            )
        moment = start + _ms(match[1], match[2])
        if moment < now:
            raise ScenarioError(f"line {number}: {line!r} goes back in time")
        now = moment
        _do(played, match[3], match[4].strip(), now, f"line {number}: {line!r}")
    groups = [group for worker in played.workers.values() for group in worker.task.groups.values()]
    left: dict[str, int] = {}
    for group in groups:
        left[group.id.decode()] = left.get(group.id.decode(), 0) + len(group.held)
    return Played(played.units, left)


def _valid(text: str) -> RuleSet:
    try:
        rules = RuleSet(read_rules(text, START_MS))
    except WrongRows as error:
        raise ConfigError.many(error.complaints) from None
    if found := complaints_about(rules):
        raise ConfigError.many(found)
    return rules


def _do(played: _Play, verb: str, rest: str, now: int, where: str) -> None:
    """Does what a line says."""
    match verb:
        case "send":
            played.send(rest, now)
        case "expect":
            _expect(played, rest, now, where)
        case "call":
            played.call(rest, now, where)
        case "reply":
            played.reply(rest, now, where)
        case "release":
            for worker in played.workers.values():
                worker.release(rest, now)
        case "restart":
            for worker in played.workers.values():
                worker.restart()
        case _:
            raise ScenarioError(f"{where}: {verb!r} is none of send, expect, release, call, reply, restart")


def _moment(text: str, where: str) -> int:
    try:
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is None or moment.year < 1971:
            raise ValueError
        return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ScenarioError(f"{where} is not `start 2026-03-27T16:58:00+01:00`, with its offset from UTC") from None


def _ms(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])


def _expect(played: _Play, rest: str, now: int, where: str) -> None:
    came, rejected = played.came(now + 1)
    wanted = [] if rest == "nothing" else [each.split() for each in rest.split(",")]
    for words in wanted:
        is_count = words[:1] in (["rejected"], ["notices"]) and len(words) == 2
        is_unit = words[:1] and words[0] in _OUTCOMES and len(words) % 2 == 0
        if not (is_count or is_unit) or not words[1].isdecimal():
            raise ScenarioError(f"{where}: {' '.join(words)!r} is not `OUTCOME SIZE [by REASON] [on TOPIC]`")
    counts = {"rejected": rejected, "notices": played.notices}
    units = [words for words in wanted if words[0] not in counts]
    is_so = len(units) == len(came) and all(map(_is, units, came))
    for what, count in counts.items():
        is_so = is_so and count == sum(int(words[1]) for words in wanted if words[0] == what)
    if not is_so:
        told = [*map(str, came), *(f"{what} {count}" for what, count in counts.items() if count)]
        raise ScenarioError(f"{where}: came {', '.join(told) or 'nothing'}")


def _is(words: Sequence[str], one: Came) -> bool:
    said = dict(zip(words[2::2], words[3::2], strict=True))
    return (
        (words[0], int(words[1])) == (one.outcome, one.size)
        and said.get("by", one.reason) == one.reason
        and said.get("on", one.topic) == one.topic
        and said.keys() <= {"by", "on"}
    )
