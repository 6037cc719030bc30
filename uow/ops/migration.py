"""A destination moves to another cluster, or to other topics: open groups, memory, unread input, unread outputs, and its consumers' positions.

Theory of operation. Each step may be cut off at any point; the next run of the command goes on there. Marks in committed offsets say how far
the move has come, and keep workers out on both sides (`uow.processor.engine.restore.Hints.moved`).

1. `begun`: this process is alone in the workers' group of the source. The state is restored, as by a worker. On the target topics are made, the
   workers' group there gets offsets with the mark `from`, and the mirror its first positions (`uow.ops.mirror`).
2. `fenced`: the source's offsets get the mark `to`. From here on the source's state and outputs do not change. Whatever was written
   before is written again by a run that finds no such mark.
3. `outputs`: records that some consumer group has not read are copied. `consumers`: its offsets are set on the target, each once.
4. `input`: unread components and commands are copied, up to the end of now, and the path map from its beginning: every id keeps its partition. The
   target's input takes the source's append times meanwhile, since deadlines, and the order of components and commands, go by them.
5. `state`: the target's topics have append times of their own from here on. What workers know is written by their own sink, in one transaction
   with positions at the beginning of the copied input, and without the mark: from here on workers may start there, and not before.
6. What producers still send to the source is copied behind it, by this run or by later ones.

Rules move with all of their application's: `A-rules` as the path map does, target topics as outputs, inputs of routers as outputs that `A-router` reads,
and under other names, since a component is known by the coordinates of its input record.

Belongs here: the order of these steps, and what cannot be moved. Does not belong here: copying (`uow.ops.mirror`), consumers' offsets
(`uow.ops.consumer_groups`), what workers know (`uow.processor.engine.moved_groups`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace

import confluent_kafka as ck
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType  # type: ignore[attr-defined]

from uow.config.loading import Settings
from uow.ops.consumer_groups import GroupOffsets, Offsets, reading_groups, translated, wanted
from uow.ops.mirror import Mirror, Progress
from uow.ops.repartition import restored, rule_table
from uow.ops.sole_member import (
    MoveError,
    alone_in_the_group,
    live_members,
    patient_worker,
    ready_to_write,
    refuse_while_workers_live,
)
from uow.processor.engine.context import TaskContext
from uow.processor.engine.moved_groups import Moved, Rows, carry
from uow.processor.engine.ports import Committed, LogReader, Stretch, Tp
from uow.processor.engine.restore import Hints, fenced, hints, unfenced
from uow.processor.engine.settings_record import RecordedSettings, differences, row_of
from uow.processor.engine.task import PartitionTask
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.log_reader import KafkaLogReader
from uow.processor.kafka.rule_log import open_rule_log
from uow.schemas.error_classes import Complaint, ConfigError
from uow.schemas.masking import masked_value
from uow.topics import admin
from uow.topics.catalogue import DestinationTopics, TopicSpec, expected, expected_of_routers, rules_topic
from uow.topics.routes import unit_topics
from uow.topics.rules import ResolvedRow

STEPS = ("begun", "fenced", "copying", "outputs", "consumers", "input", "state")
"""Names of the steps, told when they are done; `copying` before each commit of copies."""

State = tuple[dict[int, PartitionTask], dict[int, Rows]]


@dataclass(frozen=True, slots=True)
class MovedConsumer:
    """A consumer group on one topic of the target.

    Attributes:
        group: Its name.
        topic: The target's topic.
        unread: How many records it has not read: there, as on the source.
    """

    group: str
    topic: str
    unread: int


@dataclass(slots=True)
class MigrationReport:
    """The result of a run, or of its dry run.

    Attributes:
        source: Brokers, application and destination.
        target: The same.
        state_moved: False if an earlier run has moved the state already, and workers may work on the target.
        moved: Open groups, components, closed ids; of this run.
        copied: Number of records by topic of the target, of all runs so far; in a dry run those that would be.
        left: Records that no client can send again, by topic of the source.
        unread_by_nobody: Topics of outputs that no consumer group reads: their records stay where they are.
        consumers: Consumer groups whose offsets were moved.
    """

    source: str
    target: str
    state_moved: bool = False
    moved: Moved = field(default_factory=Moved)
    copied: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    unread_by_nobody: list[str] = field(default_factory=list)
    consumers: list[MovedConsumer] = field(default_factory=list)


class _Side:
    """A destination on a cluster."""

    def __init__(self, settings: Settings, destination: str) -> None:
        self.settings, self.destination = settings, destination
        self.policy = settings.policy(destination)
        self.application = settings.application_id
        self.topics = DestinationTopics(self.application, destination)
        self.worker = patient_worker(settings, f"migrate-{destination}")
        self.clients = Clients(self.worker)
        self.client = admin.admin_client(settings.bootstrap_servers, settings.kafka)
        self.timed = [self.topics.components, self.topics.commands]
        self.claims = [self.topics.path_map] if self.policy.has_paths else []
        self.routed: list[str] = []
        self.targets: list[str] = []
        names = self.topics
        self.outputs = [*unit_topics(self.policy.routes, names.units), names.rejected, names.errors, names.outcomes]
        self.counts = admin.partition_counts(self.client)

    @property
    def inputs(self) -> list[str]:
        return [*self.timed, *self.claims]

    def take_rules(self, targets: Sequence[str]) -> None:
        """Adds the topics of rules to those that move: these targets, `A-rules`, and the inputs of routers."""
        self.claims.append(rules_topic(self.application))
        self.routed = [topic for _, router in sorted(self.settings.routers.items()) for topic in router.inputs]
        self.targets = [topic for topic in targets if topic not in self.outputs]
        self.outputs += [*self.targets, *self.routed]

    @property
    def text(self) -> str:
        """For people, and part of a mark: short enough for the metadata of an offset, and without what ends a mark."""
        return f"{self.destination} of {self.application} at {self.settings.bootstrap_servers}"[:1000].replace(";", ",")

    @property
    def partitions(self) -> int:
        return self.counts.get(self.topics.components, 0)

    def specs(self, partitions: int, replication: int = 1) -> list[TopicSpec]:
        replay_ms = self.worker.replay_ms
        targets = dict.fromkeys(self.targets, False)
        specs = expected(self.application, self.destination, self.policy, partitions, replication, replay_ms, targets)
        return specs + (
            expected_of_routers(self.application, self.routed, partitions, replication) if self.routed else []
        )

    def tps(self, topic: str) -> list[Tp]:
        return [Tp(topic, number) for number in range(self.counts.get(topic, 0))]

    def topic_ids(self, names: Sequence[str] = ()) -> dict[str, str]:
        """Kafka's ids of the topics that are there: these, or those of the destination."""
        there = [name for name in names or (*self.inputs, *self.outputs) if name in self.counts]
        if not there:
            return {}
        answers = self.client.describe_topics(ck.TopicCollection(there), request_timeout=admin.TIMEOUT_S)
        return {name: str(answer.result().topic_id) for name, answer in answers.items()}

    def committed(self) -> Offsets:
        """Offsets of the workers' group on `D.components`."""
        with closing(KafkaLogReader(self.clients)) as reader:
            return reader.committed(self.tps(self.topics.components))

    def rules(self) -> tuple[list[ResolvedRow], bytes | None]:
        """Every row by which components of the application were ever grouped, and the mirror of its rules."""
        if rules_topic(self.application) not in self.counts:
            return [], None
        with closing(open_rule_log(self.worker)) as rule_log:
            rule_log.catch_up(lambda: None)
            return [*rule_log.rows.values()], rule_log.mirror

    def context(self, partitions: int) -> TaskContext:
        return TaskContext(self.destination, self.topics, self.policy, partitions, b"", b"")


class _Unmarked:
    """A `LogReader` that does not see marks in committed offsets: the command itself may read where no worker may."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    def committed(self, tps: Sequence[Tp]) -> Mapping[Tp, Committed]:
        found = self._reader.committed(tps)
        return {tp: each._replace(metadata=unfenced(each.metadata)) for tp, each in found.items()}

    def bounds(self, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        return self._reader.bounds(tps)

    def read(self, ranges: Mapping[Tp, tuple[int, int]]) -> Iterator[Stretch]:
        return self._reader.read(ranges)


class Migration:
    """One move. Made anew for every run.

    Args:
        source: Configuration of the destination where it is.
        destination: Its name there.
        target: Configuration of the other cluster, or of the other topics.
        to: Its name there.
        groups: Consumer groups to move; empty: all that have offsets on its outputs.
        all_outputs: True to copy outputs from their beginning, read or not.
        on_step: Called with each of `STEPS`; drills end the process there.

    Raises:
        ConfigError: Something cannot be moved, or not so; nothing was written.
        KafkaException: No broker answers.
    """

    def __init__(
        self,
        source: Settings,
        destination: str,
        target: Settings,
        to: str,
        *,
        groups: Sequence[str] = (),
        all_outputs: bool = False,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> None:
        self.here, self.there = _Side(source, destination), _Side(target, to)
        self._rules, mirror = self.here.rules()
        self._has_rules = any(row.rule.destination == destination for row in self._rules)
        if self._has_rules:
            targets = {topic for row in self._rules for topic in row.targets if topic in self.here.counts}
            self.here.take_rules(sorted(targets))
            self.there.take_rules(sorted(targets))
        self._named, self._all, self._on_step = groups, all_outputs, on_step
        self._here_ids, self._there_ids = self.here.topic_ids(), self.there.topic_ids()
        self._refuse_what_cannot_move(mirror)
        self._group = f"{self.there.application}-{to}-migration"
        self._not_groups = {self.here.application, self.there.application, self._group}
        self._pairs = dict(zip(self.here.inputs, self.there.inputs, strict=True))
        for one, other in zip(self.here.outputs, self.there.outputs, strict=True):
            if not self._is_same(one, other):
                self._pairs[one] = other
        self._outputs = [name for name in self._pairs if name not in self.here.inputs]
        self._routers, theirs = (side.worker.of_routers.application_id for side in (self.here, self.there))
        self._there_groups = {self._routers: theirs}

    def _is_same(self, one: str, other: str) -> bool:
        """True if a route of both leads to one topic of one cluster: nothing moves there."""
        return one in self._here_ids and self._here_ids[one] == self._there_ids.get(other)

    def _refuse_what_cannot_move(self, mirror: bytes | None) -> None:
        here, there = self.here, self.there
        where = f"destinations.{there.destination}"
        complaints = [
            Complaint(f"{where}.{each.name}", each.ours, f"must be {each.recorded!r}, as where the destination is now")
            for each in differences(row_of(here.policy), row_of(there.policy))
        ]
        if here.policy.strict_order:
            rule = (
                "eras of strict order do not move: set it to false, move, and set it to true there, which begins an era"
            )
            complaints.append(Complaint(f"{where}.strict_order", here.policy.strict_order, rule))
        if here.policy.refers:
            rule = "units refer to offsets of D.components, which are others there: set shape = envelope, and oversize = fail, first; when consumers have read all units by reference, move"
            complaints.append(Complaint(f"{where}.shape", here.policy.shape.value, rule))
        complaints += self._wrong_rules(mirror) if self._has_rules else ()
        if here.settings.registry_url != there.settings.registry_url:
            rule = f"must be {masked_value(here.settings.registry_url)!r}: units that are copied carry the schema ids of that registry"
            complaints.append(Complaint("schemas.registry_url", masked_value(there.settings.registry_url), rule))
        missing = [spec.name for spec in here.specs(0) if spec.name not in here.counts]
        complaints += [Complaint(f"topic {name}", "missing", "must be there to be moved") for name in missing]
        if self._is_same(here.topics.components, there.topics.components):
            rule = "is the topic that the destination has now: give the other cluster, or another name (`--as`)"
            complaints.append(Complaint(f"topic {there.topics.components}", there.settings.bootstrap_servers, rule))
        elif not missing and len(here.outputs) == len(there.outputs):
            complaints += self._wrong_topics()
        if complaints:
            raise ConfigError.many(complaints)

    def _wrong_rules(self, mirror: bytes | None) -> Iterator[Complaint]:
        """Rules, and routers, that cannot move."""
        from uow.processor.rules.columns import WrongRows  # these need the extra `rules`
        from uow.processor.rules.mirror import read_mirror

        here, there = self.here, self.there
        rules = [row.rule for row in self._rules]
        with suppress(WrongRows):  # then no router works by it
            rules += [] if mirror is None else read_mirror(mirror).rules
        others = sorted({rule.destination for rule in rules} - {here.destination})
        if others:
            rule = f"there are rules for {', '.join(others)} too, in the same topic and with the same routers, which move as a whole or not at all"
            yield Complaint(f"destination {here.destination}, rules", here.application, rule)
        if there.destination != here.destination:
            yield Complaint("--as", there.destination, f"must be {here.destination}: the rules say so")
        if not here.routed or len(here.routed) != len(there.routed) or set(here.routed) & set(there.routed):
            rule = (
                f"must be as many as where the destination is now, {', '.join(here.routed) or 'which are none'}, in the same order and each under another "
                "name: a component is known by the coordinates of its input record, and those of this cluster are not those of the other one"
            )
            yield Complaint("routers, inputs", ", ".join(there.routed), rule)
        for name in sorted({*here.targets} & {*here.routed}):
            yield Complaint(f"target topic {name}", name, "is an input as well, which gets another name")
        for name in sorted({each.source_name for row in self._rules for each in row.sources} & set(here.routed)):
            yield Complaint(
                f"source {name}", name, "is the name of an input, which changes: have senders set uow-source-name"
            )

    def _wrong_topics(self) -> Iterator[Complaint]:
        """Topics of the target that cannot take what is to be copied."""
        here, there = self.here, self.there
        logs = [there.topics.groups_changelog, there.topics.closed_changelog]
        pairs = zip([*here.inputs, *here.outputs], [*there.inputs, *there.outputs], strict=True)
        for one, other in (*pairs, *((here.topics.components, log) for log in logs)):
            count = there.counts.get(other)
            if count not in (None, here.counts[one]):
                rule = f"must be {here.counts[one]}, as of {one}: delete the topic, and the command makes it anew"
                yield Complaint(f"topic {other}, partitions", count, rule)
        for name, most in self._limits().items():
            if name in there.counts and (found := self._limit(there, name)) < most:
                yield Complaint(f"topic {name}, max.message.bytes", found, f"must be at least {most}, as on the source")

    def _limits(self) -> dict[str, int]:
        """The source's limit for records of each topic, by name on the target."""
        pairs = zip([*self.here.inputs, *self.here.outputs], [*self.there.inputs, *self.there.outputs], strict=True)
        return {other: self._limit(self.here, one) for one, other in pairs}

    @staticmethod
    def _limit(side: _Side, topic: str) -> int:
        return int(admin.topic_settings(side.client, [topic])[topic].get("max.message.bytes", "0"))

    # -- how far the move has come

    def _marks(self, side: _Side) -> list[Hints | None]:
        """The texts beside the workers' offsets; None where there is no offset."""
        return [None if each.offset is None else hints(each) for each in side.committed().values()]

    def _fence(self) -> str:
        """The mark on the source; empty if there is none.

        Raises:
            MoveError: It is for another target.
        """
        marks = {each.moved for each in self._marks(self.here) if each is not None and each.moved is not None}
        for mark in marks:
            if not (self._is_for_topics(mark) or mark.startswith(f"to {self.there.text} (")):
                raise MoveError(f"{self.here.text} has moved {mark} already, which is not {self.there.text}")
        return next(iter(marks), "")

    def _is_for_topics(self, mark: str) -> bool:
        """True if the target's topic is the one for which the mark was set, and was not deleted since."""
        return f"({self._there_ids.get(self._components)})" in mark

    @property
    def _components(self) -> str:
        return self.there.topics.components

    def _has_arrived(self) -> bool:
        """True if the target has the state, and workers may work there.

        Raises:
            MoveError: Something else is on its way there.
        """
        found = [each for each in self._marks(self.there) if each is not None]
        mine = f"({self._here_ids[self.here.topics.components]})"
        wrong = [each.moved for each in found if each.moved is not None and mine not in each.moved]
        if wrong:
            raise MoveError(f"groups are on their way to {self.there.text} already, {wrong[0]}")
        return any(each.moved is None for each in found)

    # -- runs

    def dry_run(self) -> MigrationReport:
        """All that `run` would do, and nothing written."""
        report = self._report()
        if self._has_arrived():
            self._refuse_a_used_target(self._fence())
            return report
        self._fence()
        report.state_moved = True
        groups = self._consumers()
        with closing(KafkaLogReader(self.here.clients)) as reader:
            unmarked = _Unmarked(reader)
            state = self._state(unmarked)
            report.moved = carry(self.there.context(self.here.partitions), *state, dict.fromkeys(state[0], (0, 0)))[1]
            first = self._first_offsets(unmarked, state[0], groups)
            report.unread_by_nobody = self._unread_by_nobody(groups)
            for tp, records in reader.read({tp: (at, end) for tp, (at, end) in first.items()}):
                name = self._pairs[tp.topic]
                report.copied[name] = report.copied.get(name, 0) + len(records)
            starts = {tp: start for tp, (start, _) in reader.bounds(self._tps()).items()}
            for group, offsets in groups.items():
                positions = self._positions(offsets, starts)
                unread = Counter({tp.topic: 0 for tp in positions})
                for tp, records in reader.read({tp: (at, first[tp][1]) for tp, at in positions.items()}):
                    unread[tp.topic] += len(records)
                there = self._there_groups.get(group, group)
                report.consumers += [MovedConsumer(there, self._pairs[name], n) for name, n in sorted(unread.items())]
        return report

    def run(self, keep_on: Callable[[], bool] = lambda: False) -> MigrationReport:
        """Moves the destination, or goes on where an earlier run was cut off.

        Args:
            keep_on: Waits a little, and returns True as long as records that arrive on the source are to be copied.

        Raises:
            MoveError: It was cut off.
        """
        report = self._report()
        fence, has_arrived = self._fence(), self._has_arrived()
        if has_arrived:
            self._refuse_a_used_target(fence)
        with self._mirror() as mirror:
            if not fence:
                self._begin(mirror)
            else:
                self._resume(mirror, fence)
            if not has_arrived:
                groups = self._stopped_consumers()
                report.unread_by_nobody = self._unread_by_nobody(groups)
                self._use_append_times(of_the_source=True)
                mirror.copy(self._ends(mirror, self._outputs))
                self._on_step("outputs")
                report.consumers = list(self._move_consumers(mirror, groups))
                self._on_step("consumers")
                mirror.copy(self._ends(mirror, self.here.inputs))
                self._on_step("input")
                self._use_append_times(of_the_source=False)
                report.moved = self._move_state(mirror)
                report.state_moved = True
                self._on_step("state")
            self._copy_input(mirror)
            while keep_on():
                self._copy_input(mirror)
            for tp, done in mirror.progress.items():
                name = self._pairs[tp.topic]
                report.copied[name] = report.copied.get(name, 0) + done.copied
                if done.left:
                    report.left[tp.topic] = report.left.get(tp.topic, 0) + done.left
        return report

    def undo(self) -> None:
        """Takes the mark from the source, so that workers may work there again.

        Raises:
            MoveError: There is none, or workers may work on the target already.
        """
        if not self._fence():
            raise MoveError(f"{self.here.text} has not moved")
        if self._has_arrived():
            raise MoveError(
                f"{self.there.text} has the state, and workers may have begun there: delete its topics and offsets first, if they have not"
            )
        offsets = self.here.committed()
        _commit(self.here, {tp: each._replace(metadata=unfenced(each.metadata)) for tp, each in offsets.items()})

    def _report(self) -> MigrationReport:
        return MigrationReport(self.here.text, self.there.text)

    @contextmanager
    def _mirror(self) -> Iterator[Mirror]:
        target = replace(self.there.worker, application_id=self._group)
        with closing(Mirror(self.here.clients, target, self._pairs, self._on_step)) as mirror:
            mirror.open()
            yield mirror

    def _refuse_a_used_target(self, fence: str) -> None:
        if not fence:
            raise MoveError(f"workers have worked at {self.there.text} before: move to topics that are new")

    # -- the steps

    def _begin(self, mirror: Mirror) -> None:
        """From nothing to the mark on the source."""
        here, there = self.here, self.there
        refuse_while_workers_live(here.client, here.application)
        refuse_while_workers_live(there.client, there.application)
        with alone_in_the_group(here.clients, here.topics.components, here.partitions) as member:
            with closing(KafkaLogReader(here.clients)) as reader:
                tasks, _ = self._state(reader)
                groups = self._stopped_consumers()
                self._make_topics()
                first = self._first_offsets(reader, tasks, groups)
                committed = reader.committed(here.tps(here.topics.components))
            self._refuse_records(mirror)
            self._refuse_offsets(groups)
            ends = {tp: end for tp, (_, end) in mirror.target.bounds(self._target_tps()).items()}
            mark = f"from {here.text} ({self._here_ids[here.topics.components]})"
            marked = {tp: Committed(ends[tp], fenced("", ends[tp], mark)) for tp in there.tps(there.topics.components)}
            _commit(there, marked, member if self._is_one_group() else None)
            mirror.begin(
                {
                    tp: Progress(self._here_ids[tp.topic], at, at, ends[Tp(self._pairs[tp.topic], tp.partition)])
                    for tp, (at, _) in first.items()
                }
            )
            self._on_step("begun")
            mark = f"to {there.text} ({self._there_ids[self._components]})"
            positions = {tp: tasks[tp.partition].position for tp in committed}
            marked = {tp: Committed(at, fenced(committed[tp].metadata, at, mark)) for tp, at in positions.items()}
            _commit(here, marked, member)
        self._on_step("fenced")

    def _resume(self, mirror: Mirror, fence: str) -> None:
        """Takes up the positions of an earlier run.

        Raises:
            MoveError: Topics or offsets on one of the sides are not those of that run any more.
        """
        found = mirror.resume(self._tps())
        ids = {tp: each.topic_id for tp, each in found.items()}
        if not self._is_for_topics(fence) or ids != {tp: self._here_ids[tp.topic] for tp in self._tps()}:
            raise MoveError(
                f"{self.here.text} has moved, and what {self.there.text} knows of it does not fit: topics or offsets were deleted on one of the "
                "sides; take the move back (`--undo`), and begin anew"
            )

    def _is_one_group(self) -> bool:
        """True if the same group of the same cluster works before and after: this process is a member of it."""
        here, there = self.here, self.there
        if here.application != there.application:
            return False
        here.counts = admin.partition_counts(here.client)
        return here.topic_ids([self._components]).get(self._components) == self._there_ids[self._components]

    def _make_topics(self) -> None:
        there = self.there
        counts = dict(zip(there.outputs, map(self.here.counts.__getitem__, self.here.outputs), strict=True))
        specs = [
            replace(spec, partitions=counts.get(spec.name, spec.partitions))
            for spec in there.specs(self.here.partitions, admin.default_replication(there.client))
        ]
        limits = self._limits()
        made = admin.create_missing(there.client, specs)
        for name in set(made.created) & set(limits):
            if self._limit(there, name) < limits[name]:
                self._alter(name, "max.message.bytes", str(limits[name]))
        there.counts = admin.partition_counts(there.client)
        self._there_ids = there.topic_ids()

    def _alter(self, topic: str, setting: str, value: str) -> None:
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        for done in self.there.client.incremental_alter_configs([resource], request_timeout=admin.TIMEOUT_S).values():
            done.result()

    def _use_append_times(self, *, of_the_source: bool) -> None:
        setting = "message.timestamp.type"
        for one in (*self.here.timed, *self.here.routed):
            own = admin.topic_settings(self.here.client, [one])[one][setting]
            self._alter(self._pairs[one], setting, "CreateTime" if of_the_source else own)

    def _state(self, reader: LogReader) -> State:
        """All that workers know on the source.

        Raises:
            MoveError: It cannot be moved.
        """
        here = self.here
        context = here.context(here.partitions)
        with rule_table(here.worker, context, here.counts if self._has_rules else {}) as rules:
            state = restored(reader, replace(context, rules=rules))
        if any(group.external_bytes for task in state[0].values() for group in task.groups.values()):
            raise MoveError(
                "values of held components stay in D.components (shape = reference): wait until these groups are closed, or close them"
            )
        return state

    def _move_state(self, mirror: Mirror) -> Moved:
        here, there = self.here, self.there
        with closing(KafkaLogReader(here.clients)) as reader:
            state = self._state(_Unmarked(reader))
        starts = {
            number: (
                mirror.progress[Tp(here.topics.components, number)].begin,
                mirror.progress[Tp(here.topics.commands, number)].begin,
            )
            for number in state[0]
        }
        recorded = RecordedSettings.of(there.destination, there.policy)
        context = replace(there.context(here.partitions), recorded_settings=recorded)
        failed = "it is not known if the state was written; run the command again, it will find out"
        with ready_to_write(there.clients, there.worker, self._components, here.partitions, failed) as (_, sink, token):
            plans, moved = carry(context, *state, starts)
            sink.write(plans, token)
        return moved

    # -- input and outputs

    def _tps(self) -> list[Tp]:
        return [tp for topic in self._pairs for tp in self.here.tps(topic)]

    def _target_tps(self) -> list[Tp]:
        return [Tp(self._pairs[tp.topic], tp.partition) for tp in self._tps()]

    def _ends(self, mirror: Mirror, topics: Sequence[str]) -> dict[Tp, int]:
        """The end offsets of now, open transactions included: copying waits for their end."""
        bounds = mirror.source.bounds([tp for topic in topics for tp in self.here.tps(topic)])
        return {tp: end for tp, (_, end) in bounds.items()}

    def _copy_input(self, mirror: Mirror) -> None:
        """Copies all that is committed now. A command comes behind all components that were appended before it, and these behind their claims."""
        commands, components, *others = (
            {tp: end for tp, (_, end) in mirror.source.stable_bounds(self.here.tps(topic)).items()}
            for topic in (
                self.here.topics.commands,
                self.here.topics.components,
                *self.here.claims,
                *self.here.routed,
            )
        )
        for ends in (*others, components, commands):
            mirror.copy(ends)

    def _first_offsets(
        self, reader: LogReader, tasks: Mapping[int, PartitionTask], groups: Mapping[str, Offsets]
    ) -> dict[Tp, tuple[int, int]]:
        """Where copying of each partition begins, and the end offset of now."""
        bounds, first = reader.bounds(self._tps()), {}
        starts = {tp: start for tp, (start, _) in bounds.items()}
        for tp, (start, end) in bounds.items():
            if tp.topic == self.here.topics.components:
                at = tasks[tp.partition].position
            elif tp.topic == self.here.topics.commands:
                at = tasks[tp.partition].command_position
            elif self._all or tp.topic in self.here.claims:
                at = start
            else:
                found = [self._positions(offsets, starts) for offsets in groups.values()]
                at = min((each[tp] for each in found if tp in each), default=end)
            first[tp] = (min(max(at, start), end), end)
        return first

    # -- consumers

    def _consumers(self) -> dict[str, Offsets]:
        """The groups to move, with their offsets on the source.

        Raises:
            ConfigError: A group was named that does not read these topics.
        """
        named = [*self._named, *([self._routers] if self.here.routed else [])] if self._named else []
        found = reading_groups(self.here.client, self._outputs, named, self._not_groups)
        if strangers := set(self._named) - set(found):
            rule = f"has no committed offset on an output of {self.here.destination}"
            raise ConfigError.many(Complaint("--group", name, rule) for name in sorted(strangers))
        return found

    def _stopped_consumers(self) -> dict[str, Offsets]:
        """The same; none of them has members.

        Raises:
            MoveError: One has.
        """
        found = self._consumers()
        for group in found:
            for side, name in ((self.here, group), (self.there, self._there_groups.get(group, group))):
                if count := live_members(side.client, name):
                    where = side.settings.bootstrap_servers
                    raise MoveError(f"consumer group {name} has {count} members at {where}: stop them first")
        return found

    def _unread_by_nobody(self, groups: Mapping[str, Offsets]) -> list[str]:
        read = {tp.topic for offsets in groups.values() for tp in offsets}
        return [] if self._all else [name for name in self._outputs if name not in read]

    def _refuse_records(self, mirror: Mirror) -> None:
        """A topic of the target that has records is not the copy of anything."""
        names = self.there.topics
        logs = [tp for topic in (names.groups_changelog, names.closed_changelog) for tp in self.there.tps(topic)]
        used = {
            tp.topic for tp, (start, end) in mirror.target.bounds([*self._target_tps(), *logs]).items() if start != end
        }
        if used:
            raise MoveError(
                f"there are records in {', '.join(sorted(used))} of {self.there.text}: delete these topics, or move to others"
            )

    def _refuse_offsets(self, groups: Mapping[str, Offsets]) -> None:
        there = [Tp(self._pairs[name], number) for name in self._outputs for number in range(self.here.counts[name])]
        for group in (self._there_groups.get(each, each) for each in groups):
            if GroupOffsets(self.there.worker, group).read(there):
                raise MoveError(
                    f"consumer group {group} has read at {self.there.text} before: delete its offsets there"
                )

    def _positions(self, offsets: Offsets, starts: Mapping[Tp, int]) -> dict[Tp, int]:
        """Where a group stands in every partition of the topics that it reads; where it has no offset it has read nothing."""
        topics = {tp.topic for tp in offsets}
        return {
            tp: max(offsets[tp].offset or 0 if tp in offsets else 0, starts[tp])
            for topic in topics
            for tp in self.here.tps(topic)
        }

    def _move_consumers(self, mirror: Mirror, groups: Mapping[str, Offsets]) -> Iterator[MovedConsumer]:
        """Sets the offsets of each group on the target, in one commit; those that are set already stay as they are."""
        starts = {tp: start for tp, (start, _) in mirror.source.bounds(self._tps()).items()}
        positions = {group: self._positions(offsets, starts) for group, offsets in groups.items()}
        asked: dict[Tp, list[int]] = {}
        for group, offsets in groups.items():
            for tp, at in positions[group].items():
                if at < mirror.progress[tp].first:
                    raise MoveError(
                        f"consumer group {group} stands at {at} of {tp.topic}/{tp.partition}, and copying began at {mirror.progress[tp].first}: "
                        "it was not there, or not named, when the move began; take it back (`--undo`), and begin anew"
                    )
                asked.setdefault(tp, []).extend((at, *(wanted(offsets[tp]) if tp in offsets else ())))
        places = {tp: mirror.match(tp, found) for tp, found in asked.items()}
        for of_the_source, offsets in groups.items():
            group = self._there_groups.get(of_the_source, of_the_source)
            self._set_offsets(group, {tp: translated(each, places[tp]) for tp, each in offsets.items()})
            unread: Counter[str] = Counter()
            for tp, at in positions[of_the_source].items():
                unread[tp.topic] += places[tp][at].unread
            for topic, count in sorted(unread.items()):
                yield MovedConsumer(group, self._pairs[topic], count)

    def _set_offsets(self, group: str, offsets: Offsets) -> None:
        there = {Tp(self._pairs[tp.topic], tp.partition): each for tp, each in offsets.items()}
        target = GroupOffsets(self.there.worker, group)
        found = target.read(list(there))
        for tp, each in there.items():
            if tp in found and (found[tp].offset or 0) < (each.offset or 0):
                raise MoveError(
                    f"consumer group {group} has read on at the source since its offsets were moved: set it to {each.offset} on "
                    f"{tp.topic}/{tp.partition} of the target"
                )
        if missing := {tp: each for tp, each in there.items() if tp not in found}:
            target.write(missing)


def _commit(side: _Side, offsets: Offsets, member: ck.Consumer | None = None) -> None:
    """Commits offsets of the workers' group: by this member, whom a worker that joins invalidates; else only while it has none."""
    if member is None:
        GroupOffsets(side.worker, side.application).write(offsets)
        return
    rows = [ck.TopicPartition(*tp, each.offset or 0, each.metadata) for tp, each in offsets.items()]
    member.commit(offsets=rows, asynchronous=False)
