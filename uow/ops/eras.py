"""Strictness and eras of destinations, written to `D.registry`: by `uow topics create`, and by `uow adopt` (S-13, S-15, S-21).

Theory of operation. An era says which topics (by id) and how many partitions are read and written in order, and where each partition begins. The first one is
written together with the topics. Another partition count, a topic that was made again, or strictness that was off for a while, is not the same order any more:
clients stop until an operator adopts what is there now. Consumer groups that read before an era are not moved by themselves either; adopting one begins it
at the start of the era, and what it had not read is lost to it, which has to be confirmed.

Belongs here: writing. Does not belong here: the records (`uow.topics.strict_registry`), and what clients make of them (`uow.client.strict_order`).
"""

from __future__ import annotations

import getpass
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from uow.client.connection import connect
from uow.client.kafka_port import Librdkafka, LogWatch, consumer_properties
from uow.client.references import END_EVENTS
from uow.client.strict_log import read_registry, record_of
from uow.config.loading import Settings
from uow.errors import OrderConfigError
from uow.ops.consumer_groups import committed_rows
from uow.ops.destination_logs import log_reader
from uow.ops.sole_member import live_members
from uow.processor.engine.ports import Tp
from uow.processor.kafka.log_offsets import offset_of
from uow.schemas.error_classes import ConfigError
from uow.terminal.printing import wall_clock_ms
from uow.topics import admin
from uow.topics.catalogue import DestinationTopics
from uow.topics.routes import unit_topics
from uow.topics.strict_registry import Era, EraTopic, OrderGap, StrictRegistry, StrictRules, Subscription

Entry = StrictRules | Era | Subscription | OrderGap
COUNTED: Final = 10_000
"""Most records of a partition that are read to be counted."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """The result of `uow adopt`, or of its dry run.

    Attributes:
        destination: Its name.
        era: The era that holds now, or would.
        group: The consumer group that was begun at its start; empty where the era itself was adopted.
        differences: What was adopted: topics made again, other partition counts.
        starts: Where partitions begin, by topic.
        backlog: Records that the group had not read, and loses.
        done: True if anything was written.
    """

    destination: str
    era: int
    group: str = ""
    differences: tuple[str, ...] = ()
    starts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    backlog: int = 0
    done: bool = False


def registry_of(settings: Settings, destination: str) -> StrictRegistry:
    """The content of `D.registry`. Raises as `uow.client.strict_log.read_registry`."""
    properties = consumer_properties(
        settings.bootstrap_servers, "uow", f"{settings.application_id}-look", {**END_EVENTS, **settings.kafka}
    )
    with closing(Librdkafka().consumer(properties, LogWatch().logger)) as consumer:
        return read_registry(consumer, destination)


def record_strictness(settings: Settings, client: AdminClient, destination: str) -> list[str]:
    """Writes the rules of a destination, and its first era, if they are not there; its topics exist.

    Returns:
        A line for each thing written, and for each difference that has to be adopted.
    """
    policy = settings.policy(destination)
    names = DestinationTopics(settings.application_id, destination)
    if not policy.strict_order and names.registry not in admin.partition_counts(client):
        return []
    registry, ours = registry_of(settings, destination), StrictRules.of(policy)
    entries: list[Entry] = []
    lines: list[str] = []
    if ours != registry.rules and (registry.rules is not None or ours.strict_order):
        entries.append(ours)
        lines.append(
            f"{destination}: strict order is {'on' if ours.strict_order else 'off'}, recorded in {names.registry}"
        )
    if ours.strict_order:
        there = _present(settings, client, destination)
        if registry.era is None or not registry.is_strict:
            number = registry.era.number + 1 if registry.era is not None else 1
            entries.append(Era(number, there, wall_clock_ms(), "strict order is switched on", _who()))
            lines.append(f"{destination}: era {number} begins")
        else:
            lines += [
                f"{destination}: {each}; `uow adopt {destination} --why ...` begins a new era"
                for each in _differences(registry.era, there)
            ]
    _write(settings, destination, entries)
    return lines


def disagreement(settings: Settings, registry: StrictRegistry) -> str:
    """The difference between the configuration and what clients find in `D.registry`; empty if there is none."""
    ours = StrictRules.of(settings.policy(registry.destination))
    theirs = registry.rules or StrictRules(strict_order=False)
    if not ours.strict_order and not theirs.strict_order:
        return ""
    names = [name for name in StrictRules.__slots__ if getattr(ours, name) != getattr(theirs, name)]
    return ", ".join(f"{name} is {getattr(ours, name)} here, but {getattr(theirs, name)} for clients" for name in names)


def differences(settings: Settings, client: AdminClient, registry: StrictRegistry) -> list[str]:
    """The differences between a destination's era and its topics."""
    era = registry.era
    return [] if era is None else [*_differences(era, _present(settings, client, registry.destination))]


def adopt(settings: Settings, destination: str, why: str, *, dry_run: bool) -> Adopted:
    """Begins a new era with the topics as they are now, if they are not those of the present one.

    Raises:
        OrderConfigError: The destination is not strict.
        KafkaException: No broker answers.
    """
    client = admin.admin_client(settings.bootstrap_servers, settings.kafka)
    admin.partition_counts(client)  # it tells a refused login; the reader of the registry says only that nobody answers
    era = _era_of(registry_of(settings, destination))
    there = _present(settings, client, destination)
    found = tuple(_differences(era, there))
    if not found:
        return Adopted(destination, era.number)
    begun = Era(era.number + 1, there, wall_clock_ms(), why, _who())
    if not dry_run:
        _write(settings, destination, [begun])
    starts = {name: topic.starts for name, topic in there.items()}
    return Adopted(destination, begun.number, "", found, starts, done=not dry_run)


def adopt_group(
    settings: Settings, destination: str, group: str, why: str, *, discard_backlog: bool, dry_run: bool
) -> Adopted:
    """Begins a consumer group at the start of the present era. No reader of it may run.

    Raises:
        OrderConfigError: The destination is not strict, a reader of the group runs, or a backlog would be lost and `discard_backlog` does not say so.
        KafkaException: No broker answers.
    """
    client = admin.admin_client(settings.bootstrap_servers, settings.kafka)
    admin.partition_counts(client)
    registry = registry_of(settings, destination)
    era = _era_of(registry)
    found = [*_differences(era, _present(settings, client, destination))]
    if found:
        rule = f"{found[0]}: adopt that first, with `uow adopt {destination} --why ...`"
        raise OrderConfigError("destination", destination, rule)
    if readers := live_members(client, group):
        rule = f"{readers} of its readers run: close them first; one that was killed counts until its session times out"
        raise OrderConfigError("group", group, rule)
    rows = _rows(client, era, group, DestinationTopics("", destination).units)
    old = [
        row
        for row in rows
        if (known := registry.subscriptions.get((group, row.topic, row.partition))) is None or known.era != era.number
    ]
    begun = {row: era.topics[row.topic].starts[row.partition] for row in old}
    passed = {row: start for row, start in begun.items() if 0 <= row.offset < start}
    backlog = _records_between(settings, passed)
    if backlog and not discard_backlog:
        rule = f"the group has not read {backlog} records of before era {era.number}: read them before, or lose them with --discard-backlog"
        raise OrderConfigError("group", group, rule)
    starts = {name: era.topics[name].starts for name in sorted({row.topic for row in old})}
    if old and not dry_run:
        at, who = wall_clock_ms(), _who()
        gaps = [
            OrderGap(group, row.topic, row.partition, row.offset, start - 1, why, who, at)
            for row, start in passed.items()
        ]
        # first: positions that moved tell nobody where they were
        _write(settings, destination, gaps if backlog else [])
        places = [TopicPartition(row.topic, row.partition, start) for row, start in begun.items()]
        client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)])[group].result()
        adopted = [Subscription(group, row.topic, row.partition, era.number, who, at) for row in old]
        _write(settings, destination, adopted)
    return Adopted(destination, era.number, group, (), starts, backlog, bool(old) and not dry_run)


def _records_between(settings: Settings, passed: Mapping[TopicPartition, int]) -> int:
    """The number of records that readers would see between committed offsets and where the era begins: markers of transactions are none.

    Records beyond the first `COUNTED` of a partition, and behind an open transaction, are not read: their offsets are counted.
    """
    ends = {Tp(row.topic, row.partition): (row.offset, end) for row, end in passed.items()}
    if not ends:
        return 0
    with log_reader(settings) as reader:
        ranges = {}
        for tp, (first, stable) in reader.stable_bounds([*ends]).items():
            start, end = max(first, ends[tp][0]), ends[tp][1]
            ranges[tp] = start, max(start, min(end, stable, start + COUNTED))
        seen = sum(len(records) for _, records in reader.read(ranges))
    return seen + sum(max(0, ends[tp][1] - read_to) for tp, (_, read_to) in ranges.items())


def _era_of(registry: StrictRegistry) -> Era:
    if registry.era is None or not registry.is_strict:
        rule = "no strict order is recorded for it: set strict_order = true, and run `uow topics create`"
        raise OrderConfigError("destination", registry.destination, rule)
    return registry.era


def _rows(client: AdminClient, era: Era, group: str, units: str) -> list[TopicPartition]:
    """The group's committed offsets for the topics of the era that it reads; -1 and less for none."""
    try:
        committed = {(row.topic, row.partition): row.offset for row in committed_rows(client, group)}
    except KafkaException as failure:
        if failure.args[0].code() != failure.args[0].GROUP_ID_NOT_FOUND:
            raise
        committed = {}
    read = {topic for topic, _ in committed} & era.topics.keys() or {units}
    return [
        TopicPartition(topic, number, committed.get((topic, number), -1))
        for topic in sorted(read)
        for number in range(len(era.topics[topic].starts))
    ]


def _present(settings: Settings, client: AdminClient, destination: str) -> dict[str, EraTopic]:
    """The ordered topics of a destination as they are now, with their end offsets."""
    names = DestinationTopics(settings.application_id, destination)
    ordered = [names.components, *unit_topics(settings.policy(destination).routes, names.units)]
    counts = admin.partition_counts(client)
    missing = [name for name in ordered if name not in counts]
    if missing:
        raise ConfigError("topics", ", ".join(missing), "create them with `uow topics create`")
    ids, ends = admin.topic_ids(client, ordered), end_offsets(client, {name: counts[name] for name in ordered})
    return {name: EraTopic(ids[name], ends[name]) for name in ordered}


def _has_no_leader_yet(failure: BaseException) -> bool:
    """True while brokers do not know yet who leads a partition of a topic that was made a moment ago."""
    codes = (
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError._NOENT,
    )  # the last is the library's own word
    return isinstance(failure, KafkaException) and failure.args[0].code() in codes


@retry(
    retry=retry_if_exception(_has_no_leader_yet),
    stop=stop_after_delay(admin.TIMEOUT_S),
    wait=wait_fixed(0.1),
    reraise=True,
)
def end_offsets(
    client: AdminClient, counts: dict[str, int], isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
) -> dict[str, tuple[int, ...]]:
    """The end offsets of all partitions of topics; with `READ_COMMITTED` the last stable offsets."""
    asked = {
        TopicPartition(name, number): OffsetSpec.latest()  # type: ignore[no-untyped-call]
        for name, count in counts.items()
        for number in range(count)
    }
    answers = client.list_offsets(asked, isolation_level=isolation, request_timeout=admin.TIMEOUT_S)
    found = {(row.topic, row.partition): offset_of(row.topic, answer) for row, answer in answers.items()}
    return {name: tuple(found[name, number] for number in range(count)) for name, count in counts.items()}


def _differences(era: Era, there: dict[str, EraTopic]) -> Iterator[str]:
    for name, now in there.items():
        was = era.topics.get(name)
        if was is None:
            yield f"topic {name} is no part of era {era.number}"
        elif was.id != now.id:
            yield f"topic {name} was made again since era {era.number} began"
        elif len(was.starts) != len(now.starts):
            yield f"topic {name} has {len(now.starts)} partitions, and had {len(was.starts)} when era {era.number} began"


def _write(settings: Settings, destination: str, entries: Sequence[Entry]) -> None:
    """Raises UowError: not written, or not for certain; to be repeated."""
    if not entries:
        return
    with connect(settings.bootstrap_servers, kafka=settings.kafka) as connection:
        for entry in entries:
            record = record_of(destination, entry)
            connection.send_again(f"{record.topic} {entry.key()!r}", record)


def _who() -> str:
    return getpass.getuser()
