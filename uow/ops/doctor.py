"""Checks of a deployment, as far as it can be seen from outside: findings, each with its remedy.

Nothing is changed, and no consumer joins the group. A check that cannot be made is a finding too; checks that need its result are left out.

Belongs here: the checks. Does not belong here: printing (`uow.cli.doctor_command`), the expected settings of topics (`uow.topics.catalogue`).
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from uow.config.loading import Settings
from uow.ops.access import commands_text
from uow.ops.consumer_groups import committed_rows
from uow.ops.destination_logs import log_reader, task_context
from uow.ops.findings import CheckResult, Finding, ok
from uow.ops.inspect import StableReader, waiting, waiting_units
from uow.ops.order_checks import order_findings
from uow.processor.core.columns import read_headers
from uow.processor.engine.context import TaskContext
from uow.processor.engine.ports import Doubt, LogReader, Tp
from uow.processor.engine.restore import restore
from uow.processor.engine.settings_record import (
    RecordedSettings,
    differences,
    mark_in,
    recorded,
)
from uow.processor.engine.task import PartitionTask
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.leader_epochs import CUT_OFF
from uow.processor.kafka.log_offsets import LogOffsets, offset_of
from uow.processor.kafka.log_reader import KafkaLogReader
from uow.processor.kafka.rule_log import open_rule_log
from uow.processor.kafka.worker_settings import CLOCK_LEAD_MS
from uow.schemas.error_classes import ConfigError, InternalError, UowError
from uow.schemas.registry import connect
from uow.terminal.printing import span_text, wall_clock_ms
from uow.topics import admin
from uow.topics.access import REMEDIES, explained
from uow.topics.catalogue import DEFAULT_PARTITIONS, DestinationTopics, expected, expected_of_routers
from uow.topics.headers import ERROR_CASE, ERROR_CLASS, ERROR_TEXT, KIND, KIND_UNIT, SOURCE, probably_meant
from uow.topics.policies import AliasFamily, DestinationPolicy, HandlingPolicy
from uow.topics.temporary import host_text, owner_of

ANSWER_S = 10.0
LONG_MS = 86_400_000
"""Age at which a temporary destination of another host is worth a look."""
LAST_REFUSED: Final = 1_000
"""Records at the end of each partition of `D.rejected` that are looked at."""
SET_ASIDE_GUIDE = 'a defect of ours: see "A record is set aside" in the operations guide'
TOLD_GUIDE = "once the cause is removed, `uow resubmit` sends them again"
BY_COMMAND: Final = ((ERROR_CLASS, UowError.__name__.encode()), (ERROR_CASE, b"command"))
"""Headers of a record that a command set aside, where the code did not fail at it."""
BLOCKED_GUIDE = 'see "A partition is blocked" in the operations guide'
WAITING_GUIDE: Final = "the worker's log says why: the topic cannot be written to, and they go out once it can be; or it refuses them for what they are (too large, for example), and they are tried again when a worker starts"


def examine(settings: Settings) -> Iterator[Finding]:
    """All checks, in the order in which they depend on each other."""
    yield from _configuration(settings)
    client = admin.admin_client(settings.bootstrap_servers, settings.kafka)
    try:
        cluster = client.list_topics(timeout=ANSWER_S)
    except KafkaException as failure:
        where, refused = settings.bootstrap_servers, REMEDIES.get(failure.args[0].name())
        remedy = (
            "start a broker, or set application.bootstrap_servers; `uow config show` prints where its value comes from"
        )
        what = "the brokers refuse this client at" if refused else "no broker answers at"
        yield Finding(CheckResult.WRONG, f"{what} {where}: {_text(failure)}", refused or remedy)
        return
    yield ok(f"{len(cluster.brokers)} broker{'s' if len(cluster.brokers) > 1 else ''} at {settings.bootstrap_servers}")
    yield from _registry(settings)
    yield from _routers(settings, client)
    yield from _rules(settings, cluster.topics)
    for name, policy in settings.destinations.items():
        topics = list(_topics(settings, client, name, policy, cluster))
        yield from topics
        if all(finding.verdict is not CheckResult.WRONG for finding in topics):
            yield from _state(settings, name)
            named = DestinationTopics(settings.application_id, name)
            for topic in (named.rejected, named.errors):
                yield from _set_aside(settings, topic, len(cluster.topics[topic].partitions))
            if policy.handling_policy is HandlingPolicy.SINGLE_MESSAGE_DELIVERY:
                counts = {topic: len(found.partitions) for topic, found in cluster.topics.items()}
                yield from _misread(settings, name, counts)
            yield from _order(settings, client, name)
    yield from _workers(settings, client)
    yield from left_temporary(cluster.topics, wall_clock_ms())


def left_temporary(topics: Iterable[str], now_ms: int) -> Iterator[Finding]:
    """Temporary destinations whose owner is dead, or made so long ago that it may be (R-10).

    Args:
        topics: Names of all topics of the cluster.
        now_ms: Epoch ms.
    """
    here = host_text(socket.gethostname())
    for name in sorted(topics):
        owner = owner_of(name)
        if owner is None:
            continue
        made, process = f"made {span_text(now_ms - owner.made_at)} ago", f"process {owner.pid} of {owner.host}"
        remedy = f"`kafka-topics --delete --topic {name}`"
        if owner.host == here and not _is_alive(owner.pid):
            yield Finding(CheckResult.LOOK, f"{name}, {made}: its owner, {process}, is gone", remedy)
        elif owner.host != here and now_ms - owner.made_at > LONG_MS:
            yield Finding(CheckResult.LOOK, f"{name}, {made}, may be left by {process}", f"if that is gone, {remedy}")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _configuration(settings: Settings) -> Iterator[Finding]:
    if not settings.destinations:
        yield Finding(
            CheckResult.WRONG,
            "no destination is configured",
            "add [destinations.NAME] with its handling_policy to uow.toml, or name the file with -c",
        )
    else:
        yield ok(f"configuration of {settings.application_id}: {', '.join(settings.destinations)}")
    for name, policy in settings.destinations.items():
        yield ok(f"{name}: {commands_text(name, policy)}")
    for warning in settings.warnings:
        yield Finding(CheckResult.LOOK, warning, "see this setting in the configuration reference")


def _registry(settings: Settings) -> Iterator[Finding]:
    if not settings.registry_url:
        return
    try:
        connect(settings.registry_url).schema(1)
    except UowError as error:
        if "knows no" not in str(error):
            yield Finding(CheckResult.WRONG, str(error), "start it, or set schemas.registry_url")
            return
    yield ok("the schema registry answers")


def _routers(settings: Settings, client: AdminClient) -> Iterator[Finding]:
    """`A-rules` and the inputs; an input that is no `LogAppendTime` counts its limits from elsewhere."""
    if not settings.routers:
        return
    specs = expected_of_routers(settings.application_id, settings.worker("").inputs)
    deviations = admin.check(client, specs)
    yield from _deviations(deviations)
    if not deviations:
        yield ok(f"routers: {len(specs)} topics are right")
    yield from _held_inputs(settings, client)


def _held_inputs(settings: Settings, client: AdminClient) -> Iterator[Finding]:
    """Inputs of which all is routed that can be read, while an open transaction holds back the rest: limits of time go on without it after a while."""
    routers = settings.worker("").of_routers
    offsets = LogOffsets(Clients(routers))
    topics = client.list_topics(timeout=ANSWER_S).topics
    there = [name for name in routers.inputs if name in topics]
    tps = [Tp(name, number) for name in there for number in topics[name].partitions]
    try:
        # the ends first: what comes meanwhile is no open transaction
        ends = {tp: offset_of(tp.topic, answer) for tp, answer in offsets.ends(tps, ANSWER_S).items()}
        stable = {tp: offset_of(tp.topic, answer) for tp, answer in offsets.stable_ends(tps, ANSWER_S).items()}
        rows = committed_rows(client, routers.application_id)
    except KafkaException as failure:
        yield Finding(
            CheckResult.WRONG, f"routers: how far they are is not known: {_text(failure)}", "look at the brokers"
        )
        return
    positions = {Tp(row.topic, row.partition): row.offset for row in rows}
    for tp, at in stable.items():
        if at < ends[tp] and positions.get(tp, 0) >= at:
            held = (
                f"{tp.topic}/{tp.partition}: a transaction that began at offset {at} holds back {ends[tp] - at} records"
            )
            remedy = "it ends with its time-out, at the latest; limits of time of groups by rule go on without it after input_stall_ms"
            yield Finding(CheckResult.LOOK, held, remedy)


def _rules(settings: Settings, topics: Collection[str]) -> Iterator[Finding]:
    """The version of the rules that workers have in force or would start with, and what of it waits."""
    if not settings.routers:
        return
    from uow.ops.rules import RuleDesk
    from uow.processor.rules.changes import RulesUnavailable
    from uow.processor.rules.deployment import missing_targets

    desk = RuleDesk(settings)
    try:
        everything = desk.read()
        rules = desk.in_force(everything)
    except (RulesUnavailable, ConfigError) as error:
        remedy = "workers go on with the last version that they read; put the source right"
        yield Finding(CheckResult.WRONG, f"the rules cannot be read: {error}", remedy)
        return
    faults = [str(each) for each in desk.faults(everything)]
    if faults:
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        what = f"version {everything.version} of the rules has faults: {faults[0]}{more}"
        yield Finding(CheckResult.WRONG, what, "`uow rules check` lists all of them; put a version without")
    for router, why in desk.held(rules).items():
        what = f"router {router} holds its inputs: {why}"
        yield Finding(
            CheckResult.WRONG, what, "put a version of the rules with which it can go on, or change the router"
        )
    later = _later_mirror(settings, everything.version)
    if later:
        what = f"the rules are at version {everything.version}, and version {later} was in force: workers keep the later one"
        yield Finding(
            CheckResult.LOOK, what, "was a file or database replaced by an older one? the next version must be above"
        )
    for topic in missing_targets(rules, settings.destinations, topics):
        yield Finding(
            CheckResult.LOOK, f"target topic {topic} does not exist: its units wait", "`uow topics create` makes it"
        )
    if faults:
        return
    yield ok(f"version {rules.version} of the rules can be started with")
    for (rule, why), count in sorted(desk.keyless(rules).items()):
        what = f"rule {rule}: {count} of the last records of its inputs have no key: {why}"
        yield Finding(CheckResult.LOOK, what, "is group_key right? on_no_key says what becomes of them")


def _later_mirror(settings: Settings, version: int) -> int:
    """The version of the rules in `A-rules`, if that is a later one; else 0, also where it cannot be read."""
    try:
        with closing(open_rule_log(settings.worker("rules"))) as rule_log:
            rule_log.catch_up(lambda: None)
    except (Doubt, KafkaException):
        return 0
    is_kept = rule_log.mirror is not None and rule_log.mirror_version > version
    return rule_log.mirror_version if is_kept else 0


def _deviations(deviations: Iterable[admin.Deviation]) -> Iterator[Finding]:
    for each in deviations:
        remedy = each.reason if each.what == "topic" else "change it; `uow topics check` lists all"
        verdict, must = (CheckResult.LOOK, "should") if each.advised else (CheckResult.WRONG, "must")
        what = f"{each.topic}: {each.what} is {each.actual or 'missing'}, {must} be {each.expected}"
        yield Finding(verdict, f"{what}: {each.reason}" if each.advised else what, remedy)


def _topics(
    settings: Settings, client: AdminClient, name: str, policy: DestinationPolicy, cluster: Any
) -> Iterator[Finding]:
    specs = expected(settings.application_id, name, policy, DEFAULT_PARTITIONS, is_trial=settings.is_trial)
    deviations = admin.check(client, specs)
    yield from _deviations(deviations)
    if not deviations:
        yield ok(f"{name}: {len(specs)} topics are right")
    there = [cluster.topics[spec.name] for spec in specs if spec.name in cluster.topics]
    single = [each.topic for each in there if any(len(part.replicas) < 2 for part in each.partitions.values())]
    if single:
        more = len(cluster.brokers) > 1
        yield Finding(
            CheckResult.LOOK,
            f"{name}: {len(single)} of {len(there)} topics have one replica only: a lost disk is lost data",
            "raise the replication factor" if more else "fine for a trial; in production run at least three brokers",
        )
    for each in there:
        headless = [number for number, part in each.partitions.items() if part.leader < 0]
        if headless:
            yield Finding(
                CheckResult.WRONG, f"{each.topic}: partitions {headless} have no leader", "bring their brokers back"
            )


def _state(settings: Settings, name: str) -> Iterator[Finding]:
    """Checks the stored state as a worker would restore it: offsets, ledger, changelog and input must fit together; counts waiting records."""
    try:
        context = task_context(settings, name)
        with log_reader(settings) as reader:
            yield from _partitions(reader, name, context)
            yield from _cut_off(reader, context)
            yield from settings_differences(reader, context)
    except (UowError, KafkaException) as error:
        yield Finding(
            CheckResult.WRONG,
            f"{name}: its state cannot be read: {error}",
            BLOCKED_GUIDE,
        )


def _set_aside(settings: Settings, topic: str, partitions: int) -> Iterator[Finding]:
    try:
        with log_reader(settings) as reader:
            yield from set_aside(reader, topic, partitions)
    except (UowError, KafkaException) as error:
        yield Finding(CheckResult.WRONG, f"{topic} cannot be read: {error}", "grant READ on it")


def set_aside(reader: StableReader, topic: str, partitions: int) -> Iterator[Finding]:
    """Records at which the code itself failed, or at whose group, or that somebody set aside by a command, among the last ones that were refused or given up.

    Args:
        reader: Reads Kafka.
        topic: `D.rejected`, or `D.errors`.
        partitions: How many it has.
    """
    headers = _last(reader, topic, partitions)
    failed = [dict(each) for each in headers if (ERROR_CLASS, InternalError.__name__.encode()) in each]
    told = [] if topic.endswith(".errors") else [dict(each) for each in headers if {*BY_COMMAND} <= {*each}]
    for found, why, remedy in (
        (failed, "since the code failed at them", SET_ASIDE_GUIDE),
        (told, "by a command", TOLD_GUIDE),
    ):
        if found:
            where, text = ((found[-1].get(name) or b"").decode(errors="replace") for name in (SOURCE, ERROR_TEXT))
            several = f"{len(found)} of the last records were set aside, {why}"
            yield Finding(CheckResult.LOOK, f"{topic}: {several}; one is {where}: {text}", remedy)


def _last(reader: StableReader, topic: str, partitions: int) -> list[Sequence[tuple[str, bytes | None]]]:
    """Headers of the last records of a topic that can be read now: nobody waits for an open transaction."""
    bounds = reader.stable_bounds([Tp(topic, number) for number in range(partitions)])
    last = {tp: (max(start, end - LAST_REFUSED), end) for tp, (start, end) in bounds.items()}
    return [read_headers(record) or () for _, records in reader.read(last) for record in records]


def _misread(settings: Settings, name: str, partitions: Mapping[str, int]) -> Iterator[Finding]:
    topics = DestinationTopics(settings.application_id, name)
    try:
        with log_reader(settings) as reader:
            yield from misread(reader, topics, settings.destinations[name].accept_aliases, partitions)
    except (UowError, KafkaException) as error:
        yield Finding(CheckResult.WRONG, f"{name}: its records cannot be read: {error}", "grant READ on its topics")


def misread(
    reader: StableReader, topics: DestinationTopics, families: Collection[AliasFamily], partitions: Mapping[str, int]
) -> Iterator[Finding]:
    """Records among the last ones that were refused, or passed, and have the headers of a system whose aliases are not accepted (W-17).

    Args:
        reader: Reads Kafka.
        topics: Of the destination.
        families: Aliases that it accepts.
        partitions: Their number by topic.
    """
    for topic, what in ((topics.rejected, "refused"), (topics.units, "passed through")):
        last = _last(reader, topic, partitions[topic])
        found = [probably_meant(headers, families) for headers in last if (KIND, KIND_UNIT) not in headers]
        for meant, count in Counter(filter(None, found)).most_common():
            system, _, remedy = meant.rpartition(": ")
            yield Finding(CheckResult.LOOK, f"{topic}: {count} of the last records {what} look like {system}", remedy)


def _cut_off(reader: KafkaLogReader, context: TaskContext) -> Iterator[Finding]:
    tps = [Tp(context.topics.components, number) for number in range(context.partitions)]
    for tp, position in reader.cut_off(tps).items():
        yield Finding(CheckResult.WRONG, f"{tp.topic}/{tp.partition}: {CUT_OFF.format(position)}", BLOCKED_GUIDE)


def _order(settings: Settings, client: AdminClient, name: str) -> Iterator[Finding]:
    try:
        yield from order_findings(settings, client, name)
    except (UowError, KafkaException) as error:
        yield Finding(
            CheckResult.WRONG,
            f"{name}: its order cannot be checked: {error}",
            "run it again once all brokers answer; if it may not, grant READ on its topics and DESCRIBE on groups",
        )


def _partitions(reader: StableReader, name: str, context: TaskContext) -> Iterator[Finding]:
    unread = undecided = opened = 0
    units: Counter[str] = Counter()
    sound = True
    for number in range(context.partitions):
        tp, commands = Tp(context.topics.components, number), Tp(context.topics.commands, number)
        try:
            task = restore(reader, {tp.topic: context}, [tp])[tp]
        except UowError as error:
            sound = False
            yield Finding(
                CheckResult.WRONG,
                f"{tp.topic}/{number} cannot be restored: {error}",
                BLOCKED_GUIDE,
            )
            continue
        if task.blocked is not None:
            sound = False
            yield Finding(CheckResult.WRONG, task.blocked, BLOCKED_GUIDE)
        behind = waiting(reader, {tp: task.position, commands: task.command_position})
        unread += behind[tp]
        undecided += behind[commands]
        opened += len(task.groups)
        units.update(each.topic for each in waiting_units(task))
        yield from clock_ahead(task)
        if task.forgets_until > (0 if behind[tp] else wall_clock_ms()):
            until = datetime.fromtimestamp(task.forgets_until / 1000, UTC).isoformat()
            what = f"{tp.topic}/{number}: the oldest part of the ledger was deleted; components appended before {until} may open groups again that had closed"
            yield Finding(
                CheckResult.LOOK,
                what,
                "raise the retention of the closed-changelog topic above the longest time that workers may be down",
            )
    if sound:
        yield ok(f"{name}: {context.partitions} partitions can be restored, {opened} groups are open")
    for topic, count in sorted(units.items()):
        what = f"{name}: {count} finished units wait for topic {topic}"
        yield Finding(CheckResult.WRONG, what, WAITING_GUIDE)
    if unread:
        yield Finding(
            CheckResult.LOOK,
            f"{name}: up to {unread} records wait to be read",
            "a running worker should bring this to 0",
        )
    if undecided:
        yield Finding(
            CheckResult.LOOK,
            f"{name}: up to {undecided} commands wait for their answer",
            "a running worker should bring this to 0",
        )


def clock_ahead(task: PartitionTask) -> Iterator[Finding]:
    """Finds a partition whose clock jumped ahead; the ledger keeps it, and it never goes back (decision 17)."""
    lead_ms = task.clock - wall_clock_ms()
    if lead_ms > CLOCK_LEAD_MS:
        what = f"{task.tp.topic}/{task.tp.partition}: its clock is {span_text(lead_ms)} ahead: groups that open until then expire early"
        yield Finding(CheckResult.LOOK, what, 'see "A clock is wrong" in the operations guide')


def settings_differences(reader: LogReader, context: TaskContext) -> Iterator[Finding]:
    """Compares this configuration with the settings that the workers recorded (W-68)."""
    name = context.destination
    ours = RecordedSettings.of(name, context.policy)
    inputs = [Tp(context.topics.components, number) for number in range(context.partitions)]
    marks = {mark_in(each.metadata): tp for tp, each in reader.committed(inputs).items()}
    for mark in marks.keys() - {None, ours.mark}:
        theirs = recorded(reader, Tp(context.topics.groups_changelog, marks[mark].partition))
        for each in differences(theirs, ours.row):
            yield Finding(
                CheckResult.LOOK,
                f"{name}: {each.name} is {each.ours} here, but {each.recorded} for the workers",
                "a worker with another value is refused while others run: stop all workers to change a setting",
            )


def _workers(settings: Settings, client: AdminClient) -> Iterator[Finding]:
    group = settings.application_id
    try:
        answer = admin.described_group(client, group, ANSWER_S)
    except KafkaException as failure:
        if failure.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
            yield Finding(CheckResult.LOOK, f"no worker of {group} has run yet", "start one with `uow worker`")
            return
        yield Finding(
            CheckResult.WRONG,
            f"the consumer group {group} cannot be described: {_text(failure)}",
            REMEDIES.get(failure.args[0].name(), "ask again once its coordinator answers"),
        )
        return
    inputs = {DestinationTopics(group, name).components for name in settings.destinations}
    members = len(answer.members)
    owned = {(tp.topic, tp.partition) for member in answer.members for tp in member.assignment.topic_partitions}
    if not members:
        yield Finding(CheckResult.LOOK, f"no worker of {group} runs", "start one with `uow worker`")
        return
    yield ok(f"{members} worker{'s' if members > 1 else ''} of {group}, {len(owned)} partitions of the input owned")
    strangers = sorted({topic for topic, _ in owned} - inputs)
    if strangers:
        remedy = "give every application an id of its own; workers of one application need one configuration"
        yield Finding(CheckResult.WRONG, f"the group {group} also reads {', '.join(strangers)}", remedy)


def _text(failure: KafkaException) -> str:
    error = failure.args[0]
    return f"{error.name()}: {explained(error.name(), error.str())}".rstrip(": ")
