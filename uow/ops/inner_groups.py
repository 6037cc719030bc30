"""Open groups whose units would be components of another group, through all levels: what the outer one lacks is missing in them (B-109). Reads only.

A rule reads topics. Where units go to one of them, an open group there may be on its way into a group of that rule. Its unit is made as if
it closed now, by the production code, and routed, by the production code: the group key says which group it would come to. That is certain where the rule asks
for nothing but what a group has from its opening to its close; else what is still to come may change it, which is said.

Belongs here: following topics and rules from a group inwards. Does not belong here: views of one group (`uow.ops.inspect`), and printing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from typing import Final

from uow.config.loading import Settings
from uow.ops.destination_logs import NoAnswerError, task_context
from uow.ops.destination_rules import rules_in_force
from uow.ops.inspect import open_in, restored_tasks
from uow.processor.core.changes import Closed, Delivered
from uow.processor.engine.context import TaskContext
from uow.processor.engine.group_view import Inner, InnerGroup, OpenGroup, seen
from uow.processor.engine.outputs import WrittenOutputs
from uow.processor.engine.ports import LogReader, Output
from uow.processor.engine.routed_units import writer_of
from uow.processor.engine.shapes import UnitTooLargeForRecordError
from uow.processor.kafka.rule_log import open_rule_log
from uow.processor.rules.group_keys import JOINED_BY
from uow.processor.rules.routing import APPEND_TIME, Fate, RouteTarget, routings_of
from uow.processor.rules.rule_set import RuleSet
from uow.schemas.records import Reason, UnitOutcome
from uow.topics import headers as names
from uow.topics.catalogue import DestinationTopics
from uow.topics.headers import MAX_DEPTH
from uow.topics.record_size import INPUT_LIMIT_BYTES, RecordLimit
from uow.topics.routers import RouterSettings
from uow.topics.routes import unit_topics
from uow.topics.rules import Rule

MOST_SHOWN: Final = 20
"""Inner groups of a group that are shown, the oldest; the rest is counted."""
_LASTING: Final = frozenset(f"header:{name}" for name in (names.ID, names.KIND, names.GENERATION, names.COLLECTION))
"""Places that a rule may ask for and an open group does not change any more, besides its key."""


class _Unit:
    """The unit of an open group, as a record of a router's input."""

    def __init__(self, output: Output, at: int) -> None:
        self._output, self._at = output, at

    def topic(self) -> str:
        return self._output.topic

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 0

    def key(self) -> bytes | None:
        return self._output.key

    def value(self) -> bytes | None:
        return self._output.value

    def timestamp(self) -> tuple[int, int]:
        return APPEND_TIME, self._at


class InnerGroups:
    """Follows groups inwards. Each destination is read once, and only if its units may be what was asked about.

    Args:
        rules: The rules in force.
        topics: Of each destination every topic that its units may go to.
        targets: The destinations by name.
        routers: Settings of the routers by name.
        context_of: Returns the context of a destination; None if it has no topics.
        reader: Where to read from.
        now_ms: The wall clock, epoch ms.
    """

    def __init__(
        self,
        rules: RuleSet,
        topics: Mapping[str, Collection[str]],
        targets: Mapping[str, RouteTarget],
        routers: Mapping[str, RouterSettings],
        context_of: Callable[[str], TaskContext | None],
        reader: LogReader,
        now_ms: int,
    ) -> None:
        self._rules, self._topics, self._targets, self._routers = rules, topics, targets, routers
        self._context_of, self._reader, self._now = context_of, reader, now_ms
        self._routings = routings_of(rules, routers, targets)
        self._open: dict[str, list[tuple[OpenGroup, list[Output]]]] = {}

    def of(self, group_id: str, levels: int = MAX_DEPTH - 1) -> Inner:
        """The open groups on their way into the group of a rule, whether it is open or not.

        Args:
            group_id: Its id; that of a unit of work gives nothing.
            levels: How far to go.

        Raises:
            StateCorruptedError: The logs of a destination do not agree.
        """
        rule = next((each for each in self._rules.rules if each.rule_id == group_id.partition("/")[0]), None)
        if rule is None or not levels:
            return Inner()
        routers = [each for each in self._routers.values() if rule in self._rules.rules_for(each.rules)]
        inputs = {topic for router in routers for topic in router.inputs}
        sources = [name for name, topics in sorted(self._topics.items()) if inputs.intersection(topics)]
        found: list[tuple[str, OpenGroup]] = []
        others = 0
        for name in sources:
            for group, unit in self._open_of(name):
                if any(self._comes_to(group_id, output) for output in unit if output.topic in inputs):
                    found.append((name, group))
                else:
                    others += 1
        found.sort(key=lambda each: (each[1].opened_at, each[1].id))
        groups = [InnerGroup(name, group, self.of(group.id, levels - 1)) for name, group in found[:MOST_SHOWN]]
        asked = {each for router in routers for each in self._rules.rules_for(router.rules)}
        is_certain = not any(self._targets[name].policy.routes for name in sources) and all(
            map(self._is_lasting, asked)
        )
        return Inner(tuple(groups), len(found) - len(groups), others, is_certain or not (found or others))

    def _is_lasting(self, rule: Rule) -> bool:
        """True if a rule asks a unit for nothing that its group may still change."""
        if rule.accept or rule.transform or any(each.correlation_path for each in self._rules.sources_of(rule)):
            return False
        parts = [part.partition(" pattern:")[0] for part in rule.group_key.split(JOINED_BY)]
        return all(part == "key" or part.startswith("constant:") or part in _LASTING for part in parts)

    def _comes_to(self, group_id: str, output: Output) -> bool:
        routed = self._routings[output.topic].route(_Unit(output, self._now), output.headers, self._now)
        return routed.fate is Fate.ROUTED and routed.sent.key == group_id.encode("utf-8", "surrogateescape")

    def _open_of(self, name: str) -> list[tuple[OpenGroup, list[Output]]]:
        """The open groups of a destination, each with its unit as if it closed now."""
        if name not in self._open:
            context = self._context_of(name)
            self._open[name] = [] if context is None else [*self._read(context)]
        return self._open[name]

    def _read(self, context: TaskContext) -> Iterator[tuple[OpenGroup, list[Output]]]:
        for task in restored_tasks(self._reader, context, range(context.partitions)):
            writer = writer_of(context, task.tp.partition, task.partition.reading)
            for group in open_in(task):
                written = WrittenOutputs()
                closed = Closed(
                    group.id, group.generation, UnitOutcome.COMPLETE, Reason.END, group.highest, 0, self._now
                )
                if group.has_unit:
                    try:
                        writer.write((Delivered(closed), None, group), written)
                    except UnitTooLargeForRecordError:
                        pass  # it fails, and comes to nothing
                yield seen(group, task.tp.partition, context.policy, self._now), written.outputs


def inner_groups(settings: Settings, reader: LogReader, group_id: str, now_ms: int) -> Inner:
    """The open groups on their way into a group of a rule, by the rules in force and the logs of the other destinations.

    Args:
        settings: The configuration, with routers.
        reader: Where to read from.
        group_id: The id.
        now_ms: The wall clock, epoch ms.

    Raises:
        StateCorruptedError: The logs of a destination do not agree.
        Doubt: `A-rules` was not read to its end in time.
        KafkaException: No broker answers.
    """
    with closing(open_rule_log(settings.worker("look"))) as rule_log:
        rule_log.catch_up(lambda: None)
    rules = rules_in_force(settings, rule_log.mirror)
    rows = [*rule_log.rows.values(), *(each.resolved for each in rules.row_versions() if each.resolved is not None)]
    targets = {
        name: RouteTarget(DestinationTopics(settings.application_id, name), policy, RecordLimit(INPUT_LIMIT_BYTES))
        for name, policy in settings.destinations.items()
    }
    topics = {
        name: unit_topics(
            target.policy.routes,
            target.topics.units,
            [topic for row in rows if row.rule.destination == name for topic in row.targets],
        )
        for name, target in targets.items()
    }

    def context_of(name: str) -> TaskContext | None:
        try:
            return task_context(settings, name)
        except NoAnswerError:  # its topics are not there
            return None

    return InnerGroups(rules, topics, targets, settings.routers, context_of, reader, now_ms).of(group_id)
