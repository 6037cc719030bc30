"""Checks of strict order for `uow doctor`: eras, subscriptions and what they stand at, order gaps; and of every destination: transactions that hang.

Belongs here: the checks. Does not belong here: the list of all checks (`uow.ops.doctor`), states (`uow.topics.order_state`), writing (`uow.ops.eras`).
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

from confluent_kafka import (
    ConsumerGroupType,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from uow.client.blocking import Block, read_block
from uow.client.kafka_port import Librdkafka, LogWatch, consumer_properties
from uow.config.loading import Settings
from uow.ops.consumer_groups import committed_rows, listed_groups
from uow.ops.eras import differences, disagreement, end_offsets, registry_of
from uow.ops.findings import CheckResult, Finding, ok
from uow.ops.open_transactions import OpenTransaction, is_hanging, open_transactions
from uow.schemas.error_classes import DecodeError, UowError
from uow.terminal.printing import span_text, wall_clock_ms
from uow.topics import admin
from uow.topics.catalogue import DestinationTopics
from uow.topics.order_state import OrderState, PartitionOrder, Seen, order_of
from uow.topics.policies import NEVER_MS
from uow.topics.routes import unit_topics
from uow.topics.strict_registry import StrictRegistry

ANSWER_S = 10.0
GAPS_SHOWN = 5
CLOCKS_MS = 20_000
"""By so much the clocks of a producer and of a coordinator may differ."""
_CLASSIC: Final = (ConsumerGroupType.CLASSIC, ConsumerGroupType.CONSUMER, ConsumerGroupType.UNKNOWN)
_DELETED: Final = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
GONE: Final = 0
"""In place of the time of a record that was deleted."""
Place = tuple[str, int]


class Ends(NamedTuple):
    """The end of a partition.

    Attributes:
        stable: Last stable offset.
        end: End offset.
        since: Since when a transaction is open there, epoch ms: its first record says so; 0: none is.
    """

    stable: int
    end: int
    since: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """A consumer group at a partition.

    Attributes:
        group: The group.
        place: Topic and partition.
        order: State, position, since, cause.
        behind: Offsets that it has not read.
    """

    group: str
    place: Place
    order: PartitionOrder
    behind: int

    @property
    def where(self) -> str:
        """The place, as people read it."""
        topic, partition = self.place
        return f"{topic}/{partition}"


def order_findings(settings: Settings, client: AdminClient, destination: str) -> Iterator[Finding]:
    """All checks of one destination whose topics are there."""
    topics = _topics(settings, client, destination)
    ends = look_at_ends(settings, client, topics)
    yield from _hanging(settings, ends)
    names = DestinationTopics(settings.application_id, destination)
    is_strict = settings.policy(destination).strict_order
    if not is_strict and names.registry not in admin.partition_counts(client):
        return
    try:
        registry = registry_of(settings, destination)
    except DecodeError as unreadable:
        remedy = "take that record away (a null value under its key), and run `uow topics create`: no client can use the destination"
        yield Finding(CheckResult.WRONG, str(unreadable), remedy)
        return
    disagrees = disagreement(settings, registry)
    if disagrees:
        yield Finding(
            CheckResult.WRONG, f"{destination}: {disagrees}", "`uow topics create` records what is configured"
        )
    if not registry.is_strict or registry.era is None:
        return
    changed = differences(settings, client, registry)
    for each in changed:
        remedy = f"if that is intended, `uow adopt {destination} --why ...`; clients have stopped until then"
        yield Finding(CheckResult.WRONG, f"{destination}: {each}", remedy)
    if changed:
        return
    yield ok(f"{destination}: era {registry.era.number} of strict order holds")
    yield from _gaps(registry)
    yield from _subscriptions(settings, client, registry, ends, topics)


def _topics(settings: Settings, client: AdminClient, destination: str) -> dict[str, int]:
    """Partition count of input and outputs that are there."""
    names = DestinationTopics(settings.application_id, destination)
    counts = admin.partition_counts(client)
    wanted = [names.components, *unit_topics(settings.policy(destination).routes, names.units)]
    return {name: counts[name] for name in wanted if name in counts}


def look_at_ends(settings: Settings, client: AdminClient, topics: dict[str, int]) -> dict[Place, Ends]:
    """The ends of all partitions of topics; where a transaction is open, since when."""
    stable = end_offsets(client, topics, IsolationLevel.READ_COMMITTED)
    end = end_offsets(client, topics)
    found = {
        (topic, number): Ends(stable[topic][number], end[topic][number], 0)
        for topic, count in topics.items()
        for number in range(count)
    }
    waiting = {place: each for place, each in found.items() if each.stable < each.end}
    began = append_times(settings, {place: each.stable for place, each in waiting.items()})
    return found | {place: each._replace(since=began.get(place, 0)) for place, each in waiting.items()}


def append_times(
    settings: Settings, places: Mapping[Place, int], isolation: str = "read_uncommitted"
) -> dict[Place, int]:
    """Timestamps of the first records from these offsets on, those of open transactions too; none where nothing lies, `GONE` where they were deleted.

    Raises:
        KafkaException: A partition cannot be read, or nothing came in time.
    """
    if not places:
        return {}
    own = {**settings.kafka, "isolation.level": isolation, "enable.partition.eof": True}
    properties = consumer_properties(settings.bootstrap_servers, "uow", f"{settings.application_id}-look", own)
    found: dict[Place, int] = {}
    with closing(Librdkafka().consumer(properties, LogWatch().logger)) as handle:
        handle.assign([TopicPartition(*place, offset) for place, offset in places.items()])
        open_places, until = {*places}, time.monotonic() + ANSWER_S
        while open_places:
            record = handle.poll(max(0.0, until - time.monotonic()))
            if record is None or time.monotonic() > until:
                topic, partition = min(open_places)
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{topic}/{partition} cannot be read"))
            place, error = (record.topic() or "", record.partition() or 0), record.error()
            if place not in open_places:  # also what concerns no partition: a connection that is made again
                continue
            if error is None:
                found[place] = record.timestamp()[1]
            elif error.code() in _DELETED:
                found[place] = GONE
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            open_places.remove(place)
            handle.pause([TopicPartition(*place)])  # what lies behind would come before the others
            until = time.monotonic() + ANSWER_S
    return found


def _is_readable(settings: Settings, place: Place, offset: int) -> bool:
    """True if a committed record lies at an offset or behind it."""
    return bool(append_times(settings, {place: offset}, "read_committed"))


def _hanging(settings: Settings, ends: Mapping[Place, Ends]) -> Iterator[Finding]:
    """Transactions that the coordinator would have ended by now, if they were ours (S-09)."""
    hanging = {place: each for place, each in ends.items() if is_hanging(settings, each.since)}
    known, unknown = _open_now(settings) if hanging else ([], "")
    for (topic, partition), each in hanging.items():
        at = datetime.fromtimestamp(each.since / 1000, UTC).isoformat(timespec="seconds")
        what = (
            f"{topic}/{partition}: a transaction has been open since {at}, longer than transaction_timeout_ms and 20 s: no reader gets past "
            f"offset {each.stable}, {each.end - each.stable} offsets wait"
        )
        tool = f"kafka-transactions.sh --bootstrap-server {settings.bootstrap_servers}"
        place = f"--topic {topic} --partition {partition}"
        whose = f"see whose it is with `{tool} describe-producers {place}`; end it with `{tool} abort {place} --start-offset {each.stable}`"
        holders = [
            one
            for one in known
            if (topic, partition) in one.places
            and is_hanging(settings, one.since)
            and one.since <= each.since + CLOCKS_MS
        ]
        if len(holders) != 1:  # a healthy one that is there as well must not be taken for it
            yield Finding(CheckResult.WRONG, what + (unknown or "; whose it is, is unknown"), whose)
            continue
        (holder,) = holders
        since = datetime.fromtimestamp(holder.since / 1000, UTC).isoformat(timespec="seconds")
        who = (
            f"; it is that of transactional id {holder.transactional_id}, producer {holder.producer_id}, since {since}"
        )
        remedy = f"let its program end it or restart that; or, once that is stopped, `uow doctor --end-transaction {shlex.quote(holder.transactional_id)}`"
        yield Finding(CheckResult.WRONG, what + who, remedy)


def _open_now(settings: Settings) -> tuple[list[OpenTransaction], str]:
    """Open transactions, as far as coordinators know them; and why that is not known."""
    try:
        return open_transactions(settings), ""
    except (UowError, KafkaException) as error:
        return [], f"; whose it is cannot be read: {error}"


def _gaps(registry: StrictRegistry) -> Iterator[Finding]:
    """Order gaps are decisions of people: shown, the newest first."""
    newest = sorted(registry.gaps.values(), key=lambda gap: gap.at, reverse=True)
    if newest:
        shown = "; ".join(map(str, newest[:GAPS_SHOWN]))
        yield Finding(CheckResult.LOOK, f"{registry.destination}: {len(newest)} order gaps are recorded: {shown}", "")


def _subscriptions(
    settings: Settings,
    client: AdminClient,
    registry: StrictRegistry,
    ends: Mapping[Place, Ends],
    topics: Mapping[str, int],
) -> Iterator[Finding]:
    destination, outputs = registry.destination, {name for name in topics if not name.endswith(".components")}
    assert registry.era is not None
    known = {group for (group, _, _), each in registry.subscriptions.items() if each.era == registry.era.number}
    waiting: list[Waiting] = []
    committed = committed_by_groups(client, known)
    for cause in committed.unknown:
        remedy = "run `uow doctor` again once all brokers answer; if it may not, grant DESCRIBE on groups"
        yield Finding(CheckResult.WRONG, f"{destination}: {cause}", remedy)
    for group, offsets in committed.offsets.items():
        if group in known:
            waiting += waiting_at(settings, group, offsets, outputs, ends)
        elif read := sorted({topic for topic, _ in offsets} & outputs):
            remedy = f"adopt it with `uow adopt {destination} --group {group} --why ...`; if it is no client of uow, its order is its own affair"
            yield Finding(
                CheckResult.LOOK, f"{destination}: the group {group} reads {read[0]} and is no subscription", remedy
            )
    for each in waiting:
        if each.order.state is not OrderState.OK:
            yield _blocked(each)
    stood = sum(each.order.state is not OrderState.OK for each in waiting)
    if known and not stood and not committed.unknown:
        yield ok(f"{destination}: {len(known)} subscriptions, none stands still")
    yield from _too_old(settings, client, registry, waiting)


def waiting_at(
    settings: Settings,
    group: str,
    offsets: Mapping[Place, tuple[int, str]],
    outputs: set[str],
    ends: Mapping[Place, Ends],
) -> Iterator[Waiting]:
    """The group at each partition that it has read: a stuck transaction, a failing handler and an empty topic are told apart (S-32)."""
    now = wall_clock_ms()
    for place, (offset, metadata) in sorted(offsets.items()):
        if place[0] in outputs and place in ends and offset >= 0:
            block: Block | None = read_block(metadata.partition("|")[2], offset)
            position = offset
            if ends[place].since and position < ends[place].stable and not _is_readable(settings, place, offset):
                position = ends[place].stable  # what lies between are markers of transactions
            seen = Seen(position, ends[place].stable, ends[place].end, now, ends[place].since)
            if block is not None:
                seen = Seen(offset, *ends[place][:2], now, 0, block.since, block.is_stopped, block.cause)
            yield Waiting(group, place, order_of(seen), ends[place].end - offset)


def _blocked(each: Waiting) -> Finding:
    since = span_text(max(0, wall_clock_ms() - each.order.since)) if each.order.since else "an unknown time"
    what = f"{each.where}: group {each.group} is {each.order.state} at {each.order.position} for {since}: {each.order.cause}"
    if each.order.state is OrderState.BLOCKED_TRANSACTION:
        return Finding(CheckResult.LOOK, what, "it ends with the transaction; one that hangs is told above")
    remedy = "mend the cause: it is tried again by itself; or give the record up, with seek(..., break_order=WHY)"
    return Finding(CheckResult.WRONG, what, remedy)


def _too_old(
    settings: Settings, client: AdminClient, registry: StrictRegistry, waiting: list[Waiting]
) -> Iterator[Finding]:
    """First unread records that retention takes soon: after `strict_block_limit_ms`, or half of the retention where that is not stated (S-22)."""
    assert registry.rules is not None
    behind = [each for each in waiting if each.behind > 0]
    topics = sorted({each.place[0] for each in behind})
    retention = {
        name: int(found.get("retention.ms", "-1")) for name, found in admin.topic_settings(client, topics).items()
    }
    ages = append_times(settings, {each.place: each.order.position for each in behind})
    limit = registry.rules.strict_block_limit_ms
    for each in behind:
        kept = retention[each.place[0]]
        longest = limit if limit != NEVER_MS else kept // 2
        at = ages.get(each.place, wall_clock_ms())
        age = wall_clock_ms() - at
        if at == GONE:
            what = f"{each.where}: records that group {each.group} has not read, from offset {each.order.position} on, are deleted"
            remedy = "they are lost; see what deleted them: retention.ms, retention.bytes or DeleteRecords"
            yield Finding(CheckResult.WRONG, what, remedy)
        elif kept != NEVER_MS and age > longest:
            what = f"{each.where}: the first record that group {each.group} has not read is {span_text(age)} old"
            remedy = f"the topic keeps records for {span_text(kept)}: after that it is lost; raise retention.ms, or mend the reader"
            yield Finding(CheckResult.WRONG, what, remedy)


class CommittedByGroups(NamedTuple):
    """Committed offsets of consumer groups.

    Attributes:
        offsets: Committed offset and the text beside it, by group and place.
        unknown: The reasons why those of others are not known.
    """

    offsets: dict[str, dict[Place, tuple[int, str]]]
    unknown: list[str]


def committed_by_groups(client: AdminClient, known: Collection[str]) -> CommittedByGroups:
    """The committed offsets of every classic consumer group, and of these, whether they are listed or not."""
    listed = listed_groups(client)
    found = CommittedByGroups({}, [f"a broker does not list its groups: {each}" for each in listed.failures])
    others = {each.group_id for each in listed.groups if each.type in _CLASSIC} - {*known}
    for group in [*sorted(known), *sorted(others)]:
        try:
            rows = committed_rows(client, group)
        except KafkaException as failure:
            code = failure.args[0].code()
            if code != KafkaError.GROUP_ID_NOT_FOUND and (
                group in known or code != KafkaError.GROUP_AUTHORIZATION_FAILED
            ):
                found.unknown.append(f"the offsets of group {group} are not known: {failure}")
            continue  # else it has none, or is not ours to see
        found.offsets[group] = {(row.topic, row.partition): (row.offset, row.metadata or "") for row in rows}
    return found
