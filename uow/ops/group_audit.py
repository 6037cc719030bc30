"""The stored state of a destination, looked over for what should not be there (B-69). Reads only.

Theory of operation. A worker may commit meanwhile, so what is read first is a little older than what is read after it, and a part of a transaction
may be seen. So what one look finds is a suspicion, and a finding is what a second look finds in the same place.

Belongs here: what is looked for. Does not belong here: bringing components back (a command, `uow.processor.core.partition`), and printing.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from uow.config.loading import Settings
from uow.ops.destination_logs import PATIENCE_S, log_reader, task_context
from uow.ops.inspect import open_in, restored_tasks, waiting_units
from uow.processor.core.columns import read_headers
from uow.processor.core.gathered import NEVER
from uow.processor.core.strays import Stray
from uow.processor.engine.context import TaskContext
from uow.processor.engine.ports import LogReader, RawRecord, Tp
from uow.processor.engine.rows import RULED_KEY, read_group_row, read_ledger, read_row, stray_of
from uow.processor.kafka.clients import Clients
from uow.processor.kafka.log_reader import KafkaLogReader
from uow.schemas.error_classes import DecodeError, StateCorruptedError
from uow.schemas.records import GROUP_ROW, SETTINGS_KEY
from uow.topics.admin import admin_client, partition_counts
from uow.topics.catalogue import DestinationTopics
from uow.topics.headers import ARRIVED_AT, INPUT, decimal

OVERDUE_MS: Final = 5_000
"""A group is overdue once its deadline is so long ago: a worker looks each second, and waits for the routers."""
LOOK_AGAIN_S: Final = 2.0
MOST_INPUT: Final = 2_000_000
"""Offsets of all inputs that are looked at; more are left out, and it is said."""
_GROUP_ROW_TAIL: Final = GROUP_ROW.to_bytes(4, "big")
_RULED: Final = bytes([RULED_KEY])
_UNRULED: Final = b"\1"


class Kind(StrEnum):
    """Kinds of findings."""

    COMPONENT_WITHOUT_GROUP = "component without group"
    GROUP_WITHOUT_COMPONENTS = "group without components"
    OVERDUE = "overdue group"
    UNKNOWN_RULE = "group of an unknown rule"
    WAITING_UNIT = "unit that waits for its topic"
    LOST_INPUT = "input record without a trace"
    STATE = "state that does not agree"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that should not be there.

    Attributes:
        kind: What it is.
        where: Its coordinates: of a row in the changelog, or of a record of an input; of an overdue group its partition of `D.components`.
        id: Group id; empty of an input record.
        generation: Of the group; 0 of an input record.
        component: Coordinates in `D.components` of a component without group.
        arrived_at: When that component arrived, epoch ms.
        detail: A sentence.
    """

    kind: Kind
    where: str
    id: str = ""
    generation: int = 0
    component: str = ""
    arrived_at: int | None = None
    detail: str = ""

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self) | {"kind": self.kind.value}


class Report(NamedTuple):
    """The result of an audit: what was found, and sentences about what was not looked at."""

    findings: list[Finding]
    left_out: list[str]


def audit(settings: Settings, destination: str, now_ms: int) -> Report:
    """Looks over the groups of a destination, and the inputs that its rules read; twice, if the first look finds something.

    Raises:
        ConfigError: No such destination is configured.
        NoAnswerError: Its topics do not exist, or Kafka does not answer in time.
    """
    context = task_context(settings, destination)
    first = _look(settings, context, now_ms)
    if not first.findings:
        return first
    time.sleep(LOOK_AGAIN_S)
    second = _look(settings, context, now_ms + int(LOOK_AGAIN_S * 1000))
    again = {(each.kind, each.where, each.id, each.generation) for each in first.findings}
    return second._replace(
        findings=[each for each in second.findings if (each.kind, each.where, each.id, each.generation) in again]
    )


def _look(settings: Settings, context: TaskContext, now_ms: int) -> Report:
    with log_reader(settings, PATIENCE_S * 10) as reader:
        findings = group_findings(reader, context, now_ms)
        lost, left_out = _input_findings(settings, context.destination, reader)
    return Report(findings + lost, left_out)


# -- the changelog


def group_findings(reader: LogReader, context: TaskContext, now_ms: int) -> list[Finding]:
    """Findings in the changelog and among the open groups, by partition."""
    context.rules.catch_up(tuple)
    findings: list[Finding] = []
    for partition in range(context.partitions):
        findings += _of_partition(reader, context, partition)
    breaks = {Kind.GROUP_WITHOUT_COMPONENTS, Kind.UNKNOWN_RULE, Kind.STATE}
    if any(each.kind in breaks for each in findings):
        return findings  # no worker can restore that partition either
    try:
        return findings + _in_state(reader, context, now_ms)
    except StateCorruptedError as error:
        return [*findings, Finding(Kind.STATE, context.topics.groups_changelog, detail=str(error))]


def stranded(reader: LogReader, context: TaskContext) -> list[Finding]:
    """Components without a group."""
    found = []
    for partition in range(context.partitions):
        of_rows = _of_partition(reader, context, partition)
        found += [each for each in of_rows if each.kind is Kind.COMPONENT_WITHOUT_GROUP and each.component]
    return found


def _of_partition(reader: LogReader, context: TaskContext, partition: int) -> list[Finding]:
    changelog, ledger = (
        Tp(topic, partition) for topic in (context.topics.groups_changelog, context.topics.closed_changelog)
    )
    rows: dict[bytes, tuple[int, bytes]] = {}
    for record in _records(reader, [changelog]):
        key, value = record.key() or b"", record.value()
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = record.offset(), value
    ids = {_id_in(key) for key in rows if _is_of_group(key)}
    closed: set[tuple[bytes, int]] = set()
    findings: list[Finding] = []
    for record in _records(reader, [ledger]):
        try:
            found = read_ledger(record.value() or b"")[1]
        except (DecodeError, LookupError, ValueError) as error:
            where = f"{ledger.topic}/{partition}/{record.offset()}"
            findings.append(Finding(Kind.STATE, where, detail=f"a record that cannot be read: {error}"))
        else:
            closed |= {(one.id, one.generation) for one in found if one.id in ids}
    groups = {key[:-4] for key in rows if key[-4:] == _GROUP_ROW_TAIL and _is_of_group(key)}
    components = {key[:-4] for key in rows if key[-4:] != _GROUP_ROW_TAIL and _is_of_group(key)}
    for key, (offset, value) in rows.items():
        if not _is_of_group(key):
            continue
        where = f"{changelog.topic}/{partition}/{offset}"
        try:
            if key[-4:] == _GROUP_ROW_TAIL:
                findings += _of_group_row(context, key, value, where, key[:-4] in components)
            else:
                findings += _of_component(key, value, where, key[:-4] in groups, closed)
        except (DecodeError, LookupError) as error:
            findings.append(Finding(Kind.STATE, where, detail=f"a row that cannot be read: {error}"))
    return findings


def _id_in(key: bytes) -> bytes:
    return key[1:-13] if key[:1] == _RULED else key[1:-5]


def _is_of_group(key: bytes) -> bool:
    return key != SETTINGS_KEY and key[:1] in (_UNRULED, _RULED)


def _of_group_row(
    context: TaskContext, key: bytes, value: bytes, where: str, has_components: bool
) -> Iterator[Finding]:
    row = read_group_row(value)
    group_id = _text(_id_in(key))
    if not has_components and row.manifest is None:  # a manifest may be all that is there yet
        yield Finding(
            Kind.GROUP_WITHOUT_COMPONENTS, where, group_id, row.generation, detail="nothing is held under this row"
        )
    if row.rule is not None and context.rules.policy(row.rule) is None:
        yield Finding(Kind.UNKNOWN_RULE, where, group_id, row.generation, detail=f"{row.rule} is not in the rules")


def _of_component(
    key: bytes, value: bytes, where: str, has_group: bool, closed: Collection[tuple[bytes, int]]
) -> Iterator[Finding]:
    if key[:1] == _RULED and not has_group:
        stray = stray_of(key, value)
        text = "its group has no row of its own"
        yield Finding(
            Kind.COMPONENT_WITHOUT_GROUP, where, _text(stray.id), stray.generation, stray.source, arrival(stray), text
        )
        return
    group_id, generation = _id_in(key), read_row(value).generation
    if (group_id, generation) in closed:
        yield Finding(
            Kind.COMPONENT_WITHOUT_GROUP, where, _text(group_id), generation, detail="its group closed long ago"
        )


def arrival(stray: Stray) -> int:
    """When a component arrived, epoch ms: at its router's input, else in `D.components`."""
    said = decimal(dict(stray.component.headers).get(ARRIVED_AT) or b"")
    return min(said, stray.component.timestamp) if said is not None else stray.component.timestamp


def _in_state(reader: LogReader, context: TaskContext, now_ms: int) -> list[Finding]:
    """Groups that are overdue, and units that wait for a topic (B-57), as a worker would restore them."""
    found = []
    for task in restored_tasks(reader, context, range(context.partitions)):
        where = f"{task.tp.topic}/{task.tp.partition}"
        for unit in waiting_units(task):
            detail = f"waits for topic {unit.topic}"
            found.append(Finding(Kind.WAITING_UNIT, where, unit.id, unit.generation, detail=detail))
        for group in open_in(task):
            due = group.closes_at(context.policy)
            if due < NEVER and due + OVERDUE_MS < now_ms:
                late = f"should have closed or left {(now_ms - due) / 1000:.1f} s ago"
                found.append(Finding(Kind.OVERDUE, where, _text(group.id), group.generation, detail=late))
    return found


# -- inputs


def _input_findings(settings: Settings, destination: str, reader: LogReader) -> tuple[list[Finding], list[str]]:
    """Records of inputs below the routers' positions that are neither a component nor refused."""
    if not settings.routers:
        return [], []
    from uow.ops.rules import RuleDesk
    from uow.processor.kafka.router_desk import rules_of
    from uow.processor.rules.changes import RulesUnavailable
    from uow.schemas.error_classes import ConfigError

    desk, inputs = RuleDesk(settings), set[str]()
    try:
        rules = desk.in_force(desk.read())
    except (ConfigError, RulesUnavailable) as error:
        return [], [f"inputs were not looked at: the rules cannot be read: {error}"]
    for router in settings.routers.values():
        if any(rule.destination == destination for rule in rules_of(router, rules)):
            inputs |= {*router.inputs}
    counts = partition_counts(admin_client(settings.bootstrap_servers, settings.kafka))
    tps = [Tp(topic, number) for topic in sorted(inputs) for number in range(counts.get(topic, 0))]
    names = [DestinationTopics(settings.application_id, name) for name in settings.destinations]
    traces = [
        Tp(topic, number)
        for each in names
        for topic in (each.components, each.rejected)
        for number in range(counts.get(topic, 0))
    ]
    with closing(KafkaLogReader(Clients(settings.worker("look").of_routers), lambda: None)) as of_routers:
        read_to = {tp: at.offset or 0 for tp, at in of_routers.committed(tps).items()} if tps else {}
    starts = {tp: start for tp, (start, _) in reader.bounds(tps).items()} if tps else {}
    if sum(max(0, read_to[tp] - start) for tp, start in starts.items()) > MOST_INPUT:
        return [], [f"inputs were not looked at: they have more than {MOST_INPUT:,} records"]
    return lost_inputs(reader, {tp: (starts[tp], read_to[tp]) for tp in tps}, traces), []


def lost_inputs(reader: LogReader, inputs: Mapping[Tp, tuple[int, int]], traces: Sequence[Tp]) -> list[Finding]:
    """Records of inputs that left no trace.

    Args:
        reader: Where to read from.
        inputs: First offset, and the routers' position, by partition.
        traces: Partitions of the topics to which routers write. What was appended to an input before the first record that retention left
            there is not looked for.
    """
    appended: dict[Tp, dict[int, int]] = {tp: {} for tp in inputs}
    for tp, records in reader.read(dict(inputs)):
        appended[tp] |= {record.offset(): record.timestamp()[1] for record in records}
    since, bounds = 0, reader.bounds(traces)
    began: set[Tp] = set()
    for tp, records in reader.read(bounds):
        if tp not in began:
            began.add(tp)
            if bounds[tp][0] > 0:
                since = max(since, records[0].timestamp()[1])
        for record in records:
            topic, _, rest = (
                (dict(read_headers(record) or ()).get(INPUT) or b"").decode(errors="replace").partition("/")
            )
            number, _, offset = rest.partition("/")
            if number.isdecimal() and offset.isdecimal():
                appended.get(Tp(topic, int(number)), {}).pop(int(offset), None)
    if any(start > 0 and tp not in began for tp, (start, _) in bounds.items()):
        return []  # retention left nothing there to judge by
    return [
        Finding(Kind.LOST_INPUT, f"{tp.topic}/{tp.partition}/{offset}", detail="neither a component nor refused")
        for tp, offsets in sorted(appended.items())
        for offset, at in sorted(offsets.items())
        if at >= since
    ]


def _records(reader: LogReader, tps: Sequence[Tp]) -> Iterator[RawRecord]:
    for _, records in reader.read(reader.bounds(tps)):
        yield from records


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")
