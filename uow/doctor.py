"""Everything that a deployment can get wrong and that can be seen from outside: findings, each with its remedy.

Nothing is changed, nobody joins the group. A check that fails itself is a finding; what needs its answer is left out.

Belongs here: the checks. Does not belong here: printing (`uow.commands.doctor`), what topics must be like (`topics.catalogue`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from processor.engine.agreement import Agreement, differences, mark_in, recorded
from processor.engine.context import TaskContext
from processor.engine.ports import LogReader, Tp
from processor.engine.restore import restore
from processor.engine.task import PartitionTask
from processor.kafka.settings import CLOCK_LEAD_MS
from schemas.errors import UowError
from schemas.registry import connect
from topics import admin
from topics.catalogue import DEFAULT_PARTITIONS, DestinationTopics, expected
from topics.policies import DestinationPolicy
from uow.config import Settings
from uow.inspect import StableReader, waiting
from uow.logs import log_reader, task_context
from uow.printing import span_text, wall_clock_ms

ANSWER_S = 10.0


class Verdict(StrEnum):
    """How a check came out."""

    OK = "ok"
    LOOK = "look"
    """Legal, and perhaps not what is wanted."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        verdict: How it came out.
        what: What was looked at, and found.
        remedy: What to do; empty where nothing is to be done.
    """

    verdict: Verdict
    what: str
    remedy: str = ""


def _ok(what: str) -> Finding:
    return Finding(Verdict.OK, what)


def examine(settings: Settings) -> Iterator[Finding]:
    """All checks, in the order in which they depend on each other."""
    yield from _configuration(settings)
    client = admin.admin_client(settings.bootstrap_servers, settings.kafka)
    try:
        cluster = client.list_topics(timeout=ANSWER_S)
    except KafkaException as failure:
        remedy = "start a broker, or set application.bootstrap_servers; `uow config show` tells where it came from"
        yield Finding(Verdict.WRONG, f"no broker answers at {settings.bootstrap_servers}: {_text(failure)}", remedy)
        return
    yield _ok(f"{len(cluster.brokers)} broker{'s' if len(cluster.brokers) > 1 else ''} at {settings.bootstrap_servers}")
    yield from _registry(settings)
    for name, policy in settings.destinations.items():
        topics = list(_topics(settings, client, name, policy, cluster))
        yield from topics
        if all(finding.verdict is not Verdict.WRONG for finding in topics):
            yield from _state(settings, name)
    yield from _workers(settings, client)


def _configuration(settings: Settings) -> Iterator[Finding]:
    if not settings.destinations:
        yield Finding(
            Verdict.WRONG, "no destination is configured", "add [destinations.NAME] to uow.toml, or name the file by -c"
        )
    else:
        yield _ok(f"configuration of {settings.application_id}: {', '.join(settings.destinations)}")
    for warning in settings.warnings:
        yield Finding(Verdict.LOOK, warning, "docs/configuration.md says what the setting does")


def _registry(settings: Settings) -> Iterator[Finding]:
    if not settings.registry_url:
        return
    try:
        connect(settings.registry_url).schema(1)
    except UowError as error:
        if "knows no" not in str(error):
            yield Finding(Verdict.WRONG, str(error), "start it, or set schemas.registry_url")
            return
    yield _ok("the schema registry answers")


def _topics(
    settings: Settings, client: AdminClient, name: str, policy: DestinationPolicy, cluster: Any
) -> Iterator[Finding]:
    specs = expected(settings.application_id, name, policy, DEFAULT_PARTITIONS)
    deviations = admin.check(client, specs)
    for each in deviations:
        remedy = "`uow topics create` makes it" if each.what == "topic" else "change it: `uow topics check` lists all"
        verdict, must = (Verdict.LOOK, "should") if each.advised else (Verdict.WRONG, "must")
        yield Finding(
            verdict, f"{each.topic}: {each.what} is {each.actual or 'missing'}, {must} be {each.expected}", remedy
        )
    if not deviations:
        yield _ok(f"{name}: {len(specs)} topics are as they must be")
    there = [cluster.topics[spec.name] for spec in specs if spec.name in cluster.topics]
    single = [each.topic for each in there if any(len(part.replicas) < 2 for part in each.partitions.values())]
    if single:
        more = len(cluster.brokers) > 1
        yield Finding(
            Verdict.LOOK,
            f"{name}: {len(single)} of {len(there)} topics have one replica only: a lost disk is lost data",
            "raise the replication factor" if more else "fine for a try-out; in production run three brokers or more",
        )
    for each in there:
        headless = [number for number, part in each.partitions.items() if part.leader < 0]
        if headless:
            yield Finding(
                Verdict.WRONG, f"{each.topic}: partitions {headless} have no leader", "bring their brokers back"
            )


def _state(settings: Settings, name: str) -> Iterator[Finding]:
    """What a worker would find: whether offsets, ledger, changelog and input belong together, and what waits."""
    try:
        context = task_context(settings, name)
        with log_reader(settings) as reader:
            yield from _partitions(reader, name, context)
            yield from told_alike(reader, context)
    except (UowError, KafkaException) as error:
        yield Finding(
            Verdict.WRONG, f"{name}: its state cannot be read: {error}", "docs/operations.md, a partition is blocked"
        )


def _partitions(reader: StableReader, name: str, context: TaskContext) -> Iterator[Finding]:
    unread = undecided = opened = 0
    sound = True
    for number in range(context.partitions):
        tp, commands = Tp(context.topics.components, number), Tp(context.topics.commands, number)
        try:
            task = restore(reader, {tp.topic: context}, [tp])[tp]
        except UowError as error:
            sound = False
            yield Finding(
                Verdict.WRONG,
                f"{tp.topic}/{number} cannot be restored: {error}",
                "docs/operations.md, a partition is blocked",
            )
            continue
        if task.blocked is not None:
            sound = False
            yield Finding(Verdict.WRONG, task.blocked, "docs/operations.md, a partition is blocked")
        behind = waiting(reader, {tp: task.position, commands: task.command_position})
        unread += behind[tp]
        undecided += behind[commands]
        opened += len(task.groups)
        yield from clock_ahead(task)
        if task.forgets_until > (0 if behind[tp] else wall_clock_ms()):
            until = datetime.fromtimestamp(task.forgets_until / 1000, UTC).isoformat()
            what = f"{tp.topic}/{number}: a part of the ledger is gone; ids that closed in it may come back in what was appended before {until}"
            yield Finding(
                Verdict.LOOK, what, "keep the ledger longer than workers may be down: docs/operations.md, retention"
            )
    if sound:
        yield _ok(f"{name}: {context.partitions} partitions can be restored, {opened} groups are open")
    if unread:
        yield Finding(Verdict.LOOK, f"{name}: up to {unread} records wait to be read", "none while a worker keeps up")
    if undecided:
        yield Finding(
            Verdict.LOOK, f"{name}: up to {undecided} commands wait for their answer", "none while a worker runs"
        )


def clock_ahead(task: PartitionTask) -> Iterator[Finding]:
    """A clock that leapt is in the ledger, and never goes back (decision 17)."""
    lead_ms = task.clock - wall_clock_ms()
    if lead_ms > CLOCK_LEAD_MS:
        what = f"{task.tp.topic}/{task.tp.partition}: its clock is {span_text(lead_ms)} ahead: groups that open until then expire early"
        yield Finding(Verdict.LOOK, what, "docs/operations.md, a clock is wrong")


def told_alike(reader: LogReader, context: TaskContext) -> Iterator[Finding]:
    """Whether the workers were told what this configuration says (W-68)."""
    name = context.destination
    ours = Agreement.of(name, context.policy)
    inputs = [Tp(context.topics.components, number) for number in range(context.partitions)]
    marks = {mark_in(each.metadata): tp for tp, each in reader.committed(inputs).items()}
    for mark in marks.keys() - {None, ours.mark}:
        theirs = recorded(reader, Tp(context.topics.groups_changelog, marks[mark].partition))
        for each in differences(theirs, ours.row):
            yield Finding(
                Verdict.LOOK,
                f"{name}: {each.name} is {each.ours} here, and was {each.recorded} to the workers",
                "a worker with it is refused while another one runs: stop them all to change a setting",
            )


def _workers(settings: Settings, client: AdminClient) -> Iterator[Finding]:
    group = settings.application_id
    try:
        answer = client.describe_consumer_groups([group], request_timeout=ANSWER_S)[group].result()
    except KafkaException as failure:
        if failure.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            yield Finding(Verdict.LOOK, f"no worker of {group} has run", "`uow worker` starts one")
            return
        yield Finding(
            Verdict.WRONG, f"the consumer group {group} cannot be asked: {_text(failure)}", "grant DESCRIBE on it"
        )
        return
    inputs = {DestinationTopics(group, name).components for name in settings.destinations}
    members = len(answer.members)
    owned = {(tp.topic, tp.partition) for member in answer.members for tp in member.assignment.topic_partitions}
    if not members:
        yield Finding(Verdict.LOOK, f"no worker of {group} runs", "`uow worker` starts one")
        return
    yield _ok(f"{members} worker{'s' if members > 1 else ''} of {group}, {len(owned)} partitions of the input owned")
    strangers = sorted({topic for topic, _ in owned} - inputs)
    if strangers:
        remedy = "give every application an id of its own; workers of one application need one configuration"
        yield Finding(Verdict.WRONG, f"the group {group} also reads {', '.join(strangers)}", remedy)


def _text(failure: KafkaException) -> str:
    error = failure.args[0]
    return f"{error.name()}: {error.str()}".rstrip(": ")
