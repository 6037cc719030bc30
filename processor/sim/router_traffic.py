"""The routers' part of the traffic of a run: records of an input, rules that change on the way, commands for the groups that come of them.

Belongs here: what is drawn. Does not belong here: sending it (`simulated_routers`).
"""

from __future__ import annotations

from random import Random

from uow.processor.engine.ports import Headers
from uow.processor.rules.rule_set import RuleSet, RuleTables
from uow.processor.sim.simulated_kafka import EPOCH_MS, Row
from uow.topics.commands import Command, Verb, command_headers
from uow.topics.routers import RouterSettings
from uow.topics.rules import DEFAULT_ROW, Change, DefaultGroup, OnNoKey, OnRuleChange, Release, ResolvedRow, Rule
from uow.topics.rules import Row as RuleRow

INPUT = "events"
ROUTERS = {"events": RouterSettings((INPUT,))}
SHARE = 0.1
"""Share of the runs with routers."""
SALT = "routers 3"
"""Of their dice: none of the seeds that are recorded for other findings has routers."""
RULE_ID = "routed"
NAME = "to"
"""The header that has the routing name."""
_NAMES = ("a", "b", "c")


class RouterTraffic:
    """Inputs and rules of one run.

    Args:
        seed: Of the run.

    Attributes:
        is_on: The run has routers.
        rules: The rules in force now.
        rows: Every row that ever was in force, by name.
        on_no_key: What becomes of a record without a name.
        default_group: Whether names without a row of their own share a group.
    """

    def __init__(self, seed: int) -> None:
        self._rnd = rnd = Random(f"{seed} {SALT}")
        self.is_on = rnd.random() < SHARE
        self.on_no_key = rnd.choice([*OnNoKey])
        self.default_group = Random(f"{seed} {SALT} groups").choice([*DefaultGroup])  # so all else is drawn as before
        self._rule = Rule(
            RULE_ID,
            1,
            "D",
            group_key=f"header:{NAME}",
            default_group=self.default_group,
            on_no_key=self.on_no_key,
            on_rule_change=rnd.choice([*OnRuleChange]),
            release=rnd.choice([Release.AUTO, Release.AUTO, Release.HOLD_FIRST]),
        )
        self._tables = RuleTables(rules=(self._rule,))
        self.rows: dict[str, ResolvedRow] = {}
        self._commands = self._units = 0
        self.change(*_NAMES[:2], DEFAULT_ROW)

    def change(self, *names: str) -> None:
        """The next version of the rules is in force, with new rows of these names, or of one that is drawn."""
        rnd = self._rnd
        version = self._tables.version + 1
        new = tuple([self._row(name, version) for name in names or [rnd.choice([*_NAMES, DEFAULT_ROW])]])
        change = Change(version, "sim", "drawn", EPOCH_MS)
        self._tables = self._tables.with_rows_of(RuleTables(changes=(change,), rows=new))
        self.rules = RuleSet(self._tables)
        self.rows |= {each.resolved.name: each.resolved for each in self.rules.row_versions() if each.resolved}

    def _row(self, name: str, version: int) -> RuleRow:
        rnd = self._rnd
        return RuleRow(
            RULE_ID,
            name,
            version,
            complete_count=rnd.choice([1, 2, 3, 5]),
            age_ms=rnd.choice([300, 2_000, 20_000]),
            idle_ms=rnd.choice([None, None, 400]),
        )

    def record(self) -> Row:
        """A record of the input: most have a routing name, some are units of another destination, too deep ones among them."""
        rnd = self._rnd
        headers: Headers = [("x", b"%d" % rnd.randrange(3))]
        if rnd.random() < 0.95:
            headers.append((NAME, rnd.choice(_NAMES).encode()))
        if rnd.random() < 0.1:
            self._units += 1
            headers += [("uow-id", b"unit-%d" % self._units), ("uow-kind", b"unit")]
            headers += [("uow-depth", depth) for depth in rnd.choice([(), (b"2",), (b"3",), (b"x",)])]
        return rnd.choice([None, b"k"]), rnd.choice([b"x", None, b"long" * 30]), headers

    def command(self, now_ms: int) -> Row:
        """A command for a group of the rule, or for the rule."""
        rnd = self._rnd
        self._commands += 1
        group_id = f"{RULE_ID}/{rnd.choice(_NAMES)}".encode()
        verb = rnd.choice([Verb.RELEASE, Verb.EXPIRE, Verb.EXTEND])
        command = Command(b"q%d" % self._commands, verb, group_id, "drawn", until=now_ms + rnd.randrange(0, 5_000))
        if rnd.random() < 0.5:
            command = Command(command.id, Verb.RELEASE, b"", "drawn", rule=RULE_ID)
        return group_id, None, command_headers(command)
