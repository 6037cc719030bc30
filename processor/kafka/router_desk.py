"""The desk of a router: rules in force, and the log of rows, put together; and the same log as the assembler's table of rows.

Belongs here: which rules each input is routed by, which rows are to be written to `A-rules`, policies by name. Does not belong here: decisions about
a record (`uow.processor.rules.routing`), reading rules (`uow.processor.rules`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from uow.processor.core.changes import Answered
from uow.processor.core.columns import UnreadableRecord
from uow.processor.engine.outputs import answer_record
from uow.processor.engine.ports import Meanwhile, Output, RawRecord, Tp
from uow.processor.kafka.asked_log import AskedOf
from uow.processor.kafka.rule_log import KafkaRuleLog
from uow.processor.rules.mirror import mirrored, version_alone
from uow.processor.rules.routed_records import ManyRecords, RoutedRecords
from uow.processor.rules.routing import Headers, RecordRouting, RouteTarget, RuleRouting, set_aside_by_command
from uow.processor.rules.row_table import RowTable
from uow.processor.rules.rule_set import RuleSet
from uow.processor.rules.trusted_rows import TrustedRows
from uow.schemas.error_classes import UowError
from uow.topics.catalogue import RULES_PARTITION
from uow.topics.commands import Command, Verb
from uow.topics.policies import DestinationPolicy
from uow.topics.record_size import RecordLimit
from uow.topics.routers import RouterSettings
from uow.topics.rules import RULES_KEY, OnRuleChange, ResolvedRow, Rule

log = logging.getLogger("uow.rules")

NEVER_BEGINS: Final = 1 << 62
"""Later than every clock."""


class RouterDesk:
    """Port `Desk` of a router.

    Args:
        in_force: Returns the rules that are in force now: the same object until there is another version.
        routers: Their settings by name.
        targets: Destinations by name.
        rule_log: The rows that are in `A-rules`.
        topic: `A-rules`.
        now_ms: The wall clock, epoch ms.
        held: Returns the routers that cannot go on by some rules, with the reason (`uow.processor.rules.deployment`).
    """

    def __init__(
        self,
        in_force: Callable[[], RuleSet],
        routers: Mapping[str, RouterSettings],
        targets: Mapping[str, RouteTarget],
        rule_log: KafkaRuleLog,
        topic: str,
        now_ms: Callable[[], int],
        held: Callable[[RuleSet], Mapping[str, str]] = lambda rules: {},
    ) -> None:
        self._in_force, self._routers, self._targets, self._held = in_force, routers, targets, held
        self._log, self._topic, self._now_ms = rule_log, topic, now_ms
        self._now = now_ms()
        self._written: set[str] = set()
        self._begins_at, self._is_caught_up = NEVER_BEGINS, False
        self._rules = in_force()
        self._mirror = self._mirror_of(self._rules)
        self._mirrored: tuple[bytes | None, int] = None, 0  # nothing yet
        self._obstacles: dict[str, str] = {}
        self._routings = self._routings_of(self._rules)
        self._unannounced = self._live_rows()

    def refresh(self) -> None:
        """Follows `A-rules`, and takes the rules that are in force now."""
        self._log.follow()
        self._now = self._now_ms()
        rules = self._in_force()
        if rules is not self._rules:
            self._rules, self._mirror = rules, self._mirror_of(rules)
            self._routings = self._routings_of(rules)
            self._unannounced = self._live_rows()
            log.info("rules: version %d is in force", rules.version)
        elif self._begins_at <= self._now:
            self._unannounced = self._live_rows()

    def _live_rows(self) -> list[ResolvedRow]:
        """Rows in force whose open groups take them (B-13); also notes when the next planned one begins or ends."""
        rules, now, found = self._rules, self._now, dict[str, ResolvedRow]()
        live = {rule.rule_id: rule for rule in rules.rules if rule.on_rule_change is OnRuleChange.LIVE}
        moments = [NEVER_BEGINS]
        for each in rules.row_versions() if live else ():
            rule = live.get(each.row.rule_id)
            if rule is None:
                continue
            moments += [at for at in (each.row.valid_from_ms, each.row.valid_to_ms) if at is not None and at > now]
            row = rules.resolve(rule, each.row.routing_name, now)
            if row is not None and row.row.routing_name == each.row.routing_name and rule.destination in self._targets:
                found[row.name] = row
        self._begins_at = min(moments)
        self._is_caught_up = False
        return [*found.values()]

    def announcement(self, meanwhile: Meanwhile) -> Sequence[Output]:
        """The next row in force that open groups are to take: the row, and the command to all partitions (B-13)."""
        if self._unannounced and not self._is_caught_up:
            self._log.catch_up(meanwhile)
            self._is_caught_up = True
        while self._unannounced:
            row = self._unannounced[0]
            if self._log.rows.get(row.name) != row and row.name not in self._written:
                return self._announced(row)
            self._unannounced.pop(0)  # another router was faster, or it is written
        return ()

    def _announced(self, row: ResolvedRow) -> Sequence[Output]:
        target, name = self._targets[row.rule.destination], row.name.encode()
        why = f"version {row.version} of the rules"
        command = Command(b"rule-change:" + name, Verb.RULE_CHANGE, b"", why, rule=row.name)
        headers = target.command_headers(command, name, self._now_ms())
        commands = [Output(target.topics.commands, part, name, None, headers) for part in range(target.partitions)]
        told = Output(self._topic, RULES_PARTITION, name, row.encode(), [])
        return [*self._unwritten_mirror(), told, *commands]

    def _routings_of(self, rules: RuleSet) -> dict[str, ManyRecords]:
        """The routing of each input; also notes why one has none."""
        found, held = dict[str, ManyRecords](), self._held(rules)
        self._obstacles = {}
        for name, router in self._routers.items():
            asked = [] if name in held else rules_of(router, rules)
            routings = [RuleRouting(rule, rules, self._targets[rule.destination]) for rule in asked]
            if routings:
                found.update(dict.fromkeys(router.inputs, ManyRecords(RecordRouting(routings))))
            else:
                why = f"router {name} holds its inputs: {held.get(name, 'none of its rules is in force')}"
                self._obstacles |= dict.fromkeys(router.inputs, why)
                log.error("rules: version %d: %s", rules.version, why)
        return found

    def obstacle(self, topic: str) -> str:
        """Why records of this input are not routed now; empty if they are."""
        return self._obstacles.get(topic, "")

    def _mirror_of(self, rules: RuleSet) -> bytes:
        """All rules as a record; their version alone if they do not fit into one."""
        data = mirrored(rules)
        if RecordLimit().fits_single(RULES_KEY, data, []):
            return data
        log.warning("rules: version %d is too large to be kept in %s: no start from there", rules.version, self._topic)
        return version_alone(rules.version)

    def route(self, tp: Tp, seen: Iterable[tuple[Headers | None, RawRecord]], found: RoutedRecords) -> None:
        """Adds the records that become of some of one partition."""
        self._routings[tp.topic].route(
            seen, b"%s/%d/" % (tp.topic.encode(), tp.partition), self._now, _is_readable, found
        )

    def commanded_by(self, topic: str) -> Sequence[str]:
        """The destinations whose commands set its records aside: those of an input's rules, in the order in which these are asked; of these the ones with keys, if there are any."""
        names = self._routings[topic].destinations
        return [name for name in names if self._targets[name].policy.command_keys] or names

    def set_aside(
        self, headers: Headers | None, record: RawRecord, why: UowError, asked: Sequence[AskedOf], found: RoutedRecords
    ) -> None:
        """Adds a record that commands set aside, and their answers: the first one did it."""
        target = self._targets[asked[0].destination]
        readable = headers or [] if _is_readable(record) else []
        found.add(set_aside_by_command(target, record, readable, why))
        for count, (destination, partition, (command, at, offset)) in enumerate(asked):
            text = (
                "a repeated command does nothing more"
                if count
                else f"sets {command.source} aside, to {target.topics.rejected}"
            )
            answered = Answered(command, not count, text, at, offset)
            of = self._targets[destination]
            found.outputs.append(answer_record(answered, of.topics, partition, of.answer_framing))

    def unwritten(self, rows: Iterable[ResolvedRow]) -> Sequence[Output]:
        """Those of these rows that are not in `A-rules`, as far as it was read; also where another stands under its name."""
        outputs = [
            Output(self._topic, RULES_PARTITION, name.encode(), row.encode(), [])
            for name, row in {row.name: row for row in rows}.items()
            if name not in self._written and self._log.rows.get(name) != row
        ]
        return [*self._unwritten_mirror(), *outputs]  # a row is believed once its version is there

    def _unwritten_mirror(self) -> Sequence[Output]:
        """The rules of the latest version, those in force or others, unless they are the last record of their key."""
        latest = self._log.latest
        mirror = latest.record if latest.version > self._rules.version else self._mirror
        is_there = (mirror == latest.record and not latest.is_spoilt) or (mirror, latest.others) == self._mirrored
        return () if is_there else (Output(self._topic, RULES_PARTITION, RULES_KEY, mirror, []),)

    def written(self, outputs: Iterable[Output]) -> None:
        """These are committed."""
        for output in outputs:
            if output.topic == self._topic and output.key == RULES_KEY:
                self._mirrored = output.value, self._log.latest.others
            elif output.topic == self._topic and output.key is not None:
                self._written.add(output.key.decode())

    def close(self) -> None:
        """Closes the reader of `A-rules`."""
        self._log.close()


def _is_readable(record: RawRecord) -> bool:
    return not isinstance(record, UnreadableRecord)


def rules_of(router: RouterSettings, rules: RuleSet) -> Sequence[Rule]:
    """The rules that a router asks, in their order."""
    return rules.rules_for(router.rules) if router.rules else rules.rules


class LoggedRules(RowTable):
    """Port `RuleTable` of one destination: policies by the rows of `A-rules`.

    Args:
        rule_log: The rows.
        destination: Name of the destination.
        policy: Its settings.
        trusted: Tells which rows are to be believed; None believes all.
    """

    def __init__(
        self, rule_log: KafkaRuleLog, destination: str, policy: DestinationPolicy, trusted: TrustedRows | None = None
    ) -> None:
        super().__init__(rule_log.rows, destination, policy, trusted)
        self._log = rule_log

    def catch_up(self, meanwhile: Meanwhile) -> None:
        """Reads to the end offset of now; then the source, if a row that was asked for may be of a version that this worker has not read yet."""
        self._log.catch_up(meanwhile)
        super().catch_up(meanwhile)
