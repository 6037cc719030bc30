"""Components of groups by rule among the traffic of a run, and the rows they name, which workers read from a log of their own.

Rows appear while a run goes on: a worker that meets the name of a new one reads the rows to their end first. Some names are of no row at all.

Belongs here: rows and components, drawn. Does not belong here: sending them (`simulation`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from random import Random

from uow.processor.engine.ports import Headers
from uow.processor.sim.simulated_kafka import Row
from uow.topics.commands import Command, Verb, command_headers
from uow.topics.conditions import At, Behind, Condition, Manifest, Urgent
from uow.topics.grouping import Choice, GroupPolicy, Measure, Tally, policy_of
from uow.topics.grouping import Headers as Said
from uow.topics.policies import DestinationPolicy
from uow.topics.rules import Cardinality, Numbering, OnRuleChange, Release, ResolvedRow, Rule, Source, WaitFrom
from uow.topics.rules import Row as RuleRow

SHARE = 0.4
"""Share of the runs with rules."""
_NAMES = (b"r0", b"r1", b"r2", b"r4")
"""Group keys; in none of the other ids of a run."""


class _Urgent:
    """Every component with the value `y` is urgent (`Measure`)."""

    def measure(self, _headers: Said, value: bytes | None) -> tuple[Decimal, ...]:
        return (Decimal(value == b"y"),)

    def holds(self, tallies: Sequence[Tally]) -> bool:
        return tallies[0].most > 0


class _EveryTwoSeconds:
    """A calendar of short days."""

    @staticmethod
    def deadline(opened_at: int) -> int:
        return -(-opened_at // 2_000) * 2_000


_CONDITIONS: Mapping[str, Condition] = {
    "urgent(y)": Urgent("y"),
    "manifest": Manifest(),
    "manifest(2)": Manifest(2),
    "urgent(y, alone)": Urgent("y", alone=True),
    "at(2s)": At("2s"),
    "behind(50)": Behind(50),
}


def policy_of_row(row: ResolvedRow, policy: DestinationPolicy) -> GroupPolicy:
    """The policy of a row that was drawn."""
    complete, give_up = (
        None if text is None else _CONDITIONS[text] for text in (row.row.complete_when, row.row.give_up_when)
    )
    measures: list[tuple[str, Measure]] = []
    alone: Choice | None = None
    if isinstance(complete, Urgent):
        measures = [(complete.name, _Urgent())]
        alone = (lambda _, value: value == b"y") if complete.alone else None
    calendars = [(give_up.text, _EveryTwoSeconds())] if isinstance(give_up, At) else []
    return policy_of(row, policy, complete, give_up, measures, None, None, calendars, alone)


class SimRules:
    """A worker's table of rules (`RuleTable`).

    Args:
        rows: All rows that were ever written, in order; more come.
        policy: Of the worker's destination.
        is_whole: True if it knows each row at once.
    """

    def __init__(self, rows: list[ResolvedRow], policy: DestinationPolicy, *, is_whole: bool) -> None:
        self._rows, self._policy, self._is_whole = rows, policy, is_whole
        self._known: dict[str, GroupPolicy] = {}
        self._read = 0

    def whole(self) -> SimRules:
        """The same table as somebody has it who knows each row at once."""
        return SimRules(self._rows, self._policy, is_whole=True)

    def policy(self, name: str) -> GroupPolicy | None:
        """As far as it was read."""
        if self._is_whole:
            self.catch_up(tuple)
        return self._known.get(name)

    kept = policy

    def catch_up(self, meanwhile: Callable[[], object]) -> None:
        """Reads the rows that came since."""
        for row in self._rows[self._read :]:
            self._known[row.name] = policy_of_row(row, self._policy)
        self._read = len(self._rows)


class RuleTraffic:
    """The rules of one run.

    Args:
        rnd: Dice of its own.
        is_on: False if there must be none.

    Attributes:
        rows: All that were ever written, in order.
    """

    def __init__(self, rnd: Random, *, is_on: bool) -> None:
        self._rnd = rnd
        self._live = Random(rnd.getstate()[1][0])  # of its own, so that recorded seeds play what they played
        self._limits = Random(rnd.getstate()[1][1])  # the same
        self._is_on = is_on and rnd.random() < SHARE
        self.rows: list[ResolvedRow] = []
        self._inputs = 0
        self._commands = 0

    def table(self, policy: DestinationPolicy, *, is_whole: bool = False) -> SimRules:
        """The table of a worker that starts, or of the oracle."""
        return SimRules(self.rows, policy, is_whole=is_whole)

    def next(self, topic: str, now_ms: int) -> Row | None:
        """A component, or a command where `topic` is that of commands; None where another sender's turn is."""
        rnd = self._rnd
        if not self._is_on or rnd.random() < 0.5:
            return None
        group_id = rnd.choice(_NAMES)
        if topic.endswith(".commands"):
            return self._command(group_id, now_ms)
        if not self.rows or rnd.random() < 0.1:
            self.rows.append(self._drawn(len(self.rows) + 1))
        name = rnd.choice(self.rows[-3:]).name if rnd.random() < 0.97 else f"shop/none@{rnd.randrange(1, 9)}"
        self._inputs += 1
        number = rnd.randrange(1, self._inputs + 1) if rnd.random() < 0.1 else self._inputs
        headers: Headers = [
            ("uow-id", group_id),
            ("uow-rule", name.encode()),
            ("uow-input", b"orders/0/%d" % number),
        ]
        if rnd.random() < 0.7:
            headers.append(("uow-arrived-at", b"%d" % (now_ms - rnd.choice([0, 0, 1, 50, 2_000]))))
        if rnd.random() < 0.3:
            headers.append(("uow-source-name", b"web"))
        if rnd.random() < 0.2:
            headers.append(("uow-delay-ms", b"%d" % rnd.choice([10, 500, 5_000])))
        if rnd.random() < 0.1:
            headers.append(("uow-deliver-at", b"%d" % (now_ms + rnd.randrange(-50, 3_000))))
        if rnd.random() < 0.5:
            headers += [("uow-seq", b"%d" % rnd.randrange(1, 4)), ("uow-end", rnd.choice([b"true", b"false"]))]
        return (group_id, rnd.choice([b"x", b"y", None, b"long" * 30]), headers)

    def _command(self, group_id: bytes, now_ms: int) -> Row:
        rnd = self._rnd
        self._commands += 1
        verb = rnd.choice([Verb.RELEASE, Verb.CANCEL, Verb.EXPIRE, Verb.EXTEND])
        command = Command(b"r%d" % self._commands, verb, group_id, "drawn", until=now_ms + rnd.randrange(0, 5_000))
        if rnd.random() < 0.4:
            command = Command(command.id, Verb.RELEASE, b"", "drawn", rule="shop")
        elif self.rows and self._live.random() < 0.5:
            rows, unknown = self.rows[-3:], f"shop/a@{self._live.randrange(900, 909)}"
            name = self._live.choice(rows).name if self._live.random() < 0.95 else unknown
            command = Command(command.id, Verb.RULE_CHANGE, b"", "drawn", rule=name)
        return (group_id, None, command_headers(command))

    def _drawn(self, version: int) -> ResolvedRow:
        """A row with conditions that matter within some simulated seconds."""
        rnd = self._rnd
        numbering = rnd.choice([Numbering.ASSIGNED, Numbering.ASSIGNED, Numbering.GIVEN])
        row = RuleRow(
            "shop",
            rnd.choice(["a", "b"]),
            version,
            complete_count=rnd.choice([None, 1, 2, 3, 5]),
            complete_bytes=rnd.choice([None, None, 50]),
            age_ms=rnd.choice([300, 2_000, 20_000]),
            idle_ms=rnd.choice([None, None, 400]),
            min_count=rnd.choice([1, 1, 2]),
        )
        rule = Rule(
            "shop",
            version,
            "D",
            sequence=numbering,
            max_open_groups=rnd.choice([None, None, 4]),
            release=rnd.choice([Release.AUTO, *Release]),
            cardinality=rnd.choice([Cardinality.ONE, Cardinality.ONE, Cardinality.MANY]),
            release_every_ms=rnd.choice([None, None, 1_000]),
            max_waiting=rnd.choice([None, 2]),
            on_rule_change=self._live.choice([*OnRuleChange]),
        )
        sources: tuple[Source, ...] = ()
        if rnd.random() < 0.3:
            waits = rnd.choice([None, 500]), rnd.choice([None, 2_000])
            sources = (
                Source("shop", "orders", version, quantity=rnd.choice([1, 2]), wait_ms=waits[0]),
                Source("shop", "web", version, quantity=1, wait_ms=waits[1], wait_from=rnd.choice(list(WaitFrom))),
            )
        row = replace(row, give_up_when=self._limits.choice([None, None, "at(2s)", "behind(50)"]))
        urgent = self._limits.choice([None, None, "urgent(y)", "urgent(y, alone)"])
        if not sources and (rule.sequence is Numbering.ASSIGNED or urgent != "urgent(y, alone)"):
            row = replace(row, complete_when=urgent)
        return ResolvedRow(rule, row, sources)
