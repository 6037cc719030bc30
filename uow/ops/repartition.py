"""More partitions for a destination (W-107): topics grow, and groups whose ids then belong to another partition move, in one transaction.

Theory of operation. The steps below are safe: the command may end after any of them, and the next run goes on from there.

1. Make sure that no worker runs: the group's coordinator is asked.
2. The two changelogs get more partitions. They may have more than the input: after a failure here the workers can be started as before.
3. Where topics have not grown yet, what lies unread is read and assembled as by a worker (`uow.ops.unread_input`): sent on to another partition it
   would come too late for a limit of time. Once they have grown, senders that know it send to other partitions than those of the groups, so nothing is
   read any more before the move.
4. Rehearsal: this process joins the workers' group and owns every partition of the input; the old partitions are restored as by a worker, the
   plans of the move are made (`uow.processor.engine.moved_groups`), written by the worker's own sink in one transaction, and aborted. It fails
   wherever the move would fail: too large, not allowed, too slow, or a worker has joined. Then step 3 once more, for what has come meanwhile.
5. The other topics get more partitions, the input last. The partition count in the metadata of each committed offset is still the old one, so
   from here on no worker starts.
6. The move, as in the rehearsal, but committed: rows, ledgers, positions of all partitions. A worker that joins now raises the group's
   generation, and then the commit fails.

Under path routing ids keep their partitions whatever the count is (W-215): topics grow, internal ones first, and workers may run.

Belongs here: the order of these steps. Does not belong here: the choice of groups that move (`uow.processor.engine.moved_groups`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Final

from uow.config.loading import Settings
from uow.ops.sole_member import MoveError, patient_worker, ready_to_write, refuse_while_workers_live
from uow.processor.engine.context import TaskContext
from uow.processor.engine.moved_groups import Moved, Rows, move
from uow.processor.engine.ports import LogReader, Plan, Tp
from uow.processor.engine.restore import live_rows, restore
from uow.processor.engine.task import PartitionTask
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.log_reader import KafkaLogReader, recorded_counts, recorded_hints
from uow.processor.kafka.rule_log import open_rule_log
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.schemas.error_classes import ConfigError, UowError
from uow.topics import admin
from uow.topics.catalogue import DestinationTopics, expected, rules_topic
from uow.topics.grouping import NoRules, RuleTable

NOTHING_MOVED: Final = "nothing has moved, and workers may be started as before"


@dataclass(frozen=True, slots=True)
class RepartitionReport:
    """The result of adding partitions, or of its dry run.

    Attributes:
        before: Number of partitions before.
        after: Number of partitions from now on.
        grown: Topics that got more partitions.
        moved: Counts of what moved.
        unread: True if components or commands lay unread, and were assembled before; in a dry run they are not among what moves, and would be read.
        left: True if something lay unread, and is left to the workers.
    """

    before: int
    after: int
    grown: tuple[str, ...]
    moved: Moved
    unread: bool = False
    left: bool = False


def repartition(
    settings: Settings, destination: str, partitions: int | None, *, dry_run: bool, leave_unread: bool = False
) -> RepartitionReport:
    """Gives a destination more partitions.

    Args:
        settings: Configuration.
        destination: Its name.
        partitions: The new count; None takes that of `D.components`, which may have been given more partitions already.
        dry_run: True to change nothing.
        leave_unread: True to leave what lies unread to the workers, who send it on to its new partition, where it may be late.

    Raises:
        ConfigError: No such destination, or an impossible count.
        MoveError: A worker runs, or joined meanwhile; or something that lies unread cannot be read, or not with these settings.
        StateCorruptedError: The state cannot be restored.
    """
    policy = settings.policy(destination)
    client = admin.admin_client(settings.bootstrap_servers, settings.kafka)
    specs = [spec for spec in expected(settings.application_id, destination, policy) if spec.counted]
    names = [spec.name for spec in specs]
    counts = admin.partition_counts(client)
    if any(name not in counts for name in names):
        raise ConfigError("topics", destination, "some are missing: create them with `uow topics create`")
    logs = [spec.name for spec in specs if spec.may_exceed]
    most = max(counts[name] for name in names if name not in logs)
    after = most if partitions is None else partitions
    if after < most:
        raise ConfigError("partitions", after, f"must be at least {most}: partitions cannot be removed")
    growing = [name for name in names if counts[name] < after]
    growing = [name for name in growing if name in logs] + [name for name in reversed(growing) if name not in logs]
    if not policy.is_bound_to_count:
        if not dry_run:
            admin.grow(client, growing, after)
        return RepartitionReport(counts[names[0]], after, tuple(growing), Moved())
    worker = patient_worker(settings, "repartition")
    clients = Clients(worker)
    refuse_while_workers_live(client, worker.application_id)
    recorded = next(iter(recorded_counts(recorded_hints(clients, names[0], counts[names[0]]))), None)
    before = counts[names[0]] if recorded is None else recorded
    topics = DestinationTopics(settings.application_id, destination)
    context = TaskContext(destination, topics, policy, before, b"", b"")

    is_in_time = counts[topics.components] == counts[topics.commands] == before and not leave_unread
    unread = _UnreadInput(settings, clients, topics, before, counts)
    lies = before < after and unread.lies()
    assembled, left = lies and is_in_time, lies and not is_in_time
    if not dry_run and (before == after or (recorded is None and not assembled)):
        admin.grow(client, growing, after)
        return RepartitionReport(before, after, tuple(growing), Moved(), left=left)
    with rule_table(worker, context, counts) as rules:
        context = replace(context, rules=rules)
        if dry_run:
            with closing(KafkaLogReader(clients)) as reader:
                moved = _plans(reader, context, after, {})[1]
            return RepartitionReport(before, after, tuple(growing), moved, assembled, left)
        admin.grow(client, [name for name in growing if name in logs], after)
        if assembled:
            unread.assemble()
        there, failed = counts[topics.components], NOTHING_MOVED
        with ready_to_write(clients, worker, topics.components, there, failed) as (reader, sink, token):
            sink.rehearse(_plans(reader, context, after, {})[0], token, before)
        if is_in_time and unread.lies():
            assembled = True
            unread.assemble()
        admin.grow(client, [name for name in growing if name not in logs], after)
        failed = "it is not known if the move was written; run the command again, it will find out"
        with ready_to_write(clients, worker, topics.components, after, failed) as (reader, sink, token):
            starts = reader.bounds([Tp(topics.components, number) for number in range(before, after)])
            plans, moved = _plans(reader, context, after, {tp.partition: start for tp, (start, _) in starts.items()})
            sink.write(plans, token)
    return RepartitionReport(before, after, tuple(growing), moved, assembled, left)


@dataclass(frozen=True, slots=True)
class _UnreadInput:
    """Components and commands beyond the workers' positions.

    Attributes:
        settings: Configuration.
        clients: Makes clients.
        topics: Of the destination.
        partitions: The count under which groups were assembled so far.
        counts: Partition count of every topic.
    """

    settings: Settings
    clients: Clients
    topics: DestinationTopics
    partitions: int
    counts: Mapping[str, int]

    def lies(self) -> bool:
        """True if there is something, or a transaction is open, which may bring something."""
        names = (self.topics.components, self.topics.commands)
        tps = [Tp(name, number) for name in names for number in range(self.partitions)]
        with closing(KafkaLogReader(self.clients)) as reader:
            # Not the stable ones: a run that was killed may have left a transaction open, which is ended later.
            positions = reader.committed(tps, "read_uncommitted")
            bounds, stable = reader.bounds(tps), reader.stable_bounds(tps)

            def is_unread(tp: Tp) -> bool:
                start, end = bounds[tp]
                position = max(start, positions[tp].offset or 0)
                if position >= end or stable[tp][1] < end:
                    return position < end
                records = reader.read({tp: (position, end)})  # markers of transactions are none
                return next(records, None) is not None

            return any(map(is_unread, tps))

    def assemble(self) -> None:
        """Makes of it what a worker would. Raises `MoveError`."""
        from uow.ops.unread_input import assemble_unread  # needs the extra `worker`, and takes a second

        try:
            assemble_unread(self.settings, self.topics.destination, self.counts)
        except UowError as error:
            way = "or leave it to the workers with `--leave-unread`: some of it may be late then, or be refused if it was sent to a wrong partition"
            raise MoveError(f"{NOTHING_MOVED}: {error}; {way}") from error


@contextmanager
def rule_table(worker: WorkerSettings, context: TaskContext, counts: Mapping[str, int]) -> Iterator[RuleTable]:
    """The rows of the destination's rules; none where no router has ever written `A-rules`."""
    if rules_topic(worker.application_id) not in counts:
        yield NoRules()
        return
    from uow.processor.kafka.router_desk import LoggedRules  # needs the extra `rules`

    with closing(open_rule_log(worker)) as rule_log:
        yield LoggedRules(rule_log, context.destination, context.policy)


def _plans(reader: LogReader, context: TaskContext, after: int, starts: Mapping[int, int]) -> tuple[list[Plan], Moved]:
    tasks, rows = restored(reader, context)
    return move(replace(context, partitions=after), tasks, rows, starts)


def restored(reader: LogReader, context: TaskContext) -> tuple[dict[int, PartitionTask], dict[int, Rows]]:
    """Every partition of a destination as a worker would restore it, and its changelog.

    Raises:
        MoveError: One of them stands still: its input was deleted before it was read.
        StateCorruptedError: The state cannot be restored.
    """
    topics = context.topics
    inputs = [Tp(topics.components, number) for number in range(context.partitions)]
    tasks = {tp.partition: task for tp, task in restore(reader, {topics.components: context}, inputs).items()}
    gone = [task.blocked for task in tasks.values() if task.blocked is not None]
    if gone:
        raise MoveError("; ".join(gone))
    logs = [Tp(topics.groups_changelog, number) for number in tasks]
    return tasks, {log.partition: found for log, found in live_rows(reader, logs).items()}
