"""Reads everything in a destination's topics and compares it with what was sent. Shares no code with the product.

It imports confluent_kafka, fastavro, the published `.avsc` files and the standard library; a test reads its imports. The decision table,
the partitioner and the headers are written here a second time, from the contract, in the plainest way: one record after the other.

Three looks, each of which would do for most defects:

1. **Account**: every offset of `D.components` is in exactly one place: in a unit, rejected, in `D.errors`, passed through, sent on to its
   right partition, or still held (a live row of the groups changelog). Nothing comes from elsewhere.
2. **Sequence**: per partition, the records in offset order are judged again; `D.units` and `D.errors` must hold exactly that, in that
   order, byte for byte. Only *when* a group expired is not a function of the input: the moment is taken from the ledger, and then it
   must have been legitimate (W-82): no component appended in time lay unread, none that should have expired lived on.
3. **Agreement**: changelog, ledger, outcomes and committed offset say the same as the units do (W-125), and nothing is left unread.
"""

from __future__ import annotations

import heapq
import json
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka as ck
import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

DEFINITIONS = Path(__file__).resolve().parents[2] / "schemas" / "definitions"
READ_TIMEOUT_S = 120.0
AT_MOST = 20
"""Anomalies told of each kind; the count is kept in full."""

Headers = tuple[tuple[str, bytes | None], ...]
Identity = tuple[bytes | None, bytes | None, Headers]
Place = tuple[int, int]
"""Partition and offset in `D.components`."""


class Rec(NamedTuple):
    """A record as a consumer sees it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int

    @property
    def place(self) -> Place:
        return self.partition, self.offset

    @property
    def identity(self) -> Identity:
        return self.key, self.value, self.headers

    def first(self, name: str) -> bytes | None:
        return next((value for each, value in self.headers if each == name), None)


Log = dict[int, list[Rec]]


@dataclass
class Logs:
    """All records of a destination's topics, `read_committed`, by partition in offset order, and the group's committed offsets."""

    components: Log = field(default_factory=dict)
    units: Log = field(default_factory=dict)
    rejected: Log = field(default_factory=dict)
    errors: Log = field(default_factory=dict)
    outcomes: Log = field(default_factory=dict)
    changelog: Log = field(default_factory=dict)
    ledger: Log = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)


@dataclass
class Report:
    """What was found. `anomalies` is empty when all is well."""

    anomalies: Counter[str] = field(default_factory=Counter)
    texts: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def say(self, kind: str, text: str) -> None:
        self.anomalies[kind] += 1
        if self.anomalies[kind] <= AT_MOST:
            self.texts.append(f"{kind}: {text}")

    def as_json(self) -> dict[str, Any]:
        return {"counts": dict(self.counts), "anomalies": dict(self.anomalies), "texts": self.texts}


# -- what is expected: the contract's decision table again, without the product


def murmur2(data: bytes) -> int:
    """As in Java's `Utils.murmur2`, masked to a positive number."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(data)) & mask
    for at in range(0, len(data) - len(data) % 4, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    rest = data[len(data) - len(data) % 4 :]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF


@dataclass
class Group:
    """An open group."""

    id: bytes
    opened: int
    held: dict[int, Rec] = field(default_factory=dict)
    end: int | None = None

    def in_order(self) -> list[tuple[int, Rec]]:
        return sorted(self.held.items())


class Closing(NamedTuple):
    """A closed entry of the ledger."""

    id: bytes
    generation: int
    outcome: str
    reason: str
    highest: int
    before: int
    at: int


@dataclass
class Expected:
    """What one partition's input comes to."""

    units: list[Group | Rec] = field(default_factory=list)
    expired: list[Group] = field(default_factory=list)
    rejected: dict[Place, tuple[str, str]] = field(default_factory=dict)
    rerouted: list[tuple[int, Rec]] = field(default_factory=list)
    closings: list[tuple[bytes, str, int]] = field(default_factory=list)
    open: dict[bytes, Group] = field(default_factory=dict)
    not_held: set[int] = field(default_factory=set)


class Partition:
    """Judges one partition's records in offset order."""

    def __init__(
        self,
        number: int,
        count: int,
        kinds: Mapping[Identity, tuple[str, tuple[str, str]]],
        expiries: Iterable[Closing],
        expiration_ms: int,
        report: Report,
    ) -> None:
        self.number, self.count, self.kinds, self.limit, self.report = number, count, kinds, expiration_ms, report
        self.expiries = deque(expiries)
        self.expected = Expected()
        self.groups = self.expected.open
        self.closed: dict[bytes, tuple[str, int]] = {}
        self.expired_by: dict[bytes, int] = {}
        self.due: list[tuple[int, bytes, int]] = []
        self.clock = 0

    def judge(self, records: Iterable[Rec]) -> Expected:
        for rec in records:
            self.clock = max(self.clock, rec.timestamp)
            self._expire(rec.offset)
            self._overdue()
            self._arrive(rec)
        self._expire(sys.maxsize)
        return self.expected

    def _expire(self, position: int) -> None:
        """What the ledger says expired before this position."""
        while self.expiries and self.expiries[0].before <= position:
            closing = self.expiries.popleft()
            group = self.groups.pop(closing.id, None)
            if group is None:
                self.report.say("expiry", f"{closing.id!r} expired before {position}, but no such group is open")
                continue
            deadline = group.opened + self.limit
            if self.limit < 0 or closing.at != deadline + 1 or closing.reason != "age":
                self.report.say(
                    "expiry", f"{closing.id!r} opened at {group.opened}, closed as {closing.reason} at {closing.at}"
                )
            self.expired_by[closing.id] = deadline
            self.expected.expired.append(group)
            self._close(group, "expired", max(group.held), closing.before)

    def _overdue(self) -> None:
        while self.due and self.due[0][0] < self.clock:
            deadline, group_id, opened = heapq.heappop(self.due)
            group = self.groups.get(group_id)
            if group is not None and group.opened == opened:
                self.report.say("overdue", f"{group_id!r} is open at {self.clock}, its deadline was {deadline}")

    def _close(self, group: Group, outcome: str, highest: int, before: int) -> None:
        self.closed[group.id] = outcome, highest
        self.expected.closings.append((group.id, outcome, before))

    def _arrive(self, rec: Rec) -> None:
        known = self.kinds.get(rec.identity) or self.kinds.get((rec.key, rec.value, _unrerouted(rec.headers)))
        kind, refusal = known or ("", ("", ""))
        if kind == "plain":
            self.expected.units.append(rec)
        elif kind == "bad":
            self.expected.rejected[rec.place] = refusal
        elif kind == "component":
            if self._hold(rec):
                return
        else:
            return  # nobody sent it: told by the account of the input
        self.expected.not_held.add(rec.offset)

    def _hold(self, rec: Rec) -> bool:
        """Lines 6 and 8 to 15; whether it was held."""
        group_id, seq = rec.first("uow-id") or b"", int(rec.first("uow-seq") or b"0")
        is_end = (rec.first("uow-end") or b"").lower() == b"true"
        count = rec.first("uow-count")
        group, closed = self.groups.get(group_id), self.closed.get(group_id)
        home = murmur2(group_id) % self.count
        if home != self.number and group is None and closed is None:
            if rec.first("uow-rerouted") is None:
                self.expected.rerouted.append((home, rec))
            else:
                self.expected.rejected[rec.place] = "MisroutedComponentError", ""
            return False
        refusal = self._refusal(group, closed, seq, is_end, None if count is None else int(count), rec)
        if refusal is not None:
            self.expected.rejected[rec.place] = refusal
            return False
        if group is None:
            if group_id in self.expired_by:
                self.report.say("expiry", f"{group_id!r} opened again")
            group = self.groups[group_id] = Group(group_id, rec.timestamp)
            if self.limit >= 0:
                heapq.heappush(self.due, (rec.timestamp + self.limit, group_id, rec.timestamp))
        group.held[seq] = rec
        group.end = seq if is_end else int(count) if count is not None else group.end
        if group.end == len(group.held):
            del self.groups[group_id]
            self.expected.units.append(group)
            self._close(group, "complete", group.end, rec.offset + 1)
        return True

    def _refusal(
        self,
        group: Group | None,
        closed: tuple[str, int] | None,
        seq: int,
        is_end: bool,
        count: int | None,
        rec: Rec,
    ) -> tuple[str, str] | None:
        if group is None and closed is not None:
            outcome, highest = closed
            if outcome != "complete":
                if rec.timestamp <= self.expired_by[rec.first("uow-id") or b""]:
                    self.report.say("expiry", f"{rec.place} was appended in time, its group had expired before it")
                return "UnitClosedError", outcome
            return ("OutOfSequenceRangeError", "a") if seq > highest else ("DuplicateSequenceNumberError", "duplicate")
        known, highest = None, seq
        if group is not None:
            known, highest = group.end, max(seq, *group.held)
            if seq in group.held:
                first, component_id = group.held[seq], rec.first("uow-component-id")
                if component_id is not None and first.first("uow-component-id") == component_id:
                    return "DuplicateSequenceNumberError", "resend"
                same = first.value == rec.value
                return "DuplicateSequenceNumberError", "duplicate" if same else "conflict"
            if known is not None and seq > known:
                return "OutOfSequenceRangeError", "a"
        for said in (seq if is_end else None, count):
            if said is None:
                continue
            if said < highest or known not in (None, said):
                return "OutOfSequenceRangeError", "b"
            known = said
        return None


def _unrerouted(headers: Headers) -> Headers:
    """The headers as the producer gave them: the worker adds its mark at the end."""
    return headers[:-1] if headers and headers[-1] == ("uow-rerouted", b"1") else headers


# -- Avro, by the published definitions


class Avro:
    """Single-object encoded records of one published definition."""

    def __init__(self, name: str) -> None:
        text = (DEFINITIONS / f"{name}.avsc").read_text(encoding="utf-8")
        schema = json.loads(text, object_hook=_without_logical_types)
        self.name = name
        self.schema = fastavro.parse_schema(schema)
        self.header = b"\xc3\x01" + bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))

    def decode(self, data: bytes | None) -> Any:
        """Raises ValueError where it is none."""
        if data is None or not data.startswith(self.header):
            raise ValueError(f"no {self.name} of a known version")
        stream = BytesIO(data[len(self.header) :])
        record = fastavro.schemaless_reader(stream, self.schema, None)
        if stream.read(1):
            raise ValueError("bytes follow the record")
        return record


def _without_logical_types(node: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in node.items() if name != "logicalType"}


UNIT, COMPONENT, OUTCOME, LEDGER, ROW = map(Avro, ("unit", "component", "outcome", "ledger", "changelog_component"))


# -- comparing


def check(logs: Logs, truth: Any, application: str, destination: str, expiration_ms: int = -1) -> Report:
    """Compares everything.

    Args:
        logs: What the topics hold, when all is quiet.
        truth: What was sent, `tests.drill.truth.Truth`.
        application: Its id.
        destination: Its name.
        expiration_ms: `incomplete_expiration_ms`; the policy is `redirect`, outcomes are `all`.
    """
    return _Check(logs, truth, application, destination, expiration_ms).run()


class _Check:
    def __init__(self, logs: Logs, truth: Any, application: str, destination: str, expiration_ms: int) -> None:
        self.logs, self.truth, self.limit = logs, truth, expiration_ms
        self.components_topic = f"{destination}.components"
        self.report = Report()
        self.kinds: dict[Identity, tuple[str, tuple[str, str]]] = {
            (each.key, each.value, each.headers): (each.kind, each.refusal) for each in truth.sent
        }
        self.input = {rec.place: rec for records in logs.components.values() for rec in records}
        self.expected: dict[int, Expected] = {}
        self.actual: defaultdict[Place, list[str]] = defaultdict(list)
        self.units: list[tuple[Rec, list[Place]]] = []
        self.delivered: Counter[bytes] = Counter()
        self.given_up: Counter[bytes] = Counter()

    def run(self) -> Report:
        say = self.report.say
        closings = {}
        for number in self.logs.components:
            ledger = list(self._decoded(LEDGER, self.logs.ledger.get(number, []), "ledger"))
            closings[number] = [closing for _, record in ledger for closing in _closings(record)]
            expiries = [each for each in closings[number] if each.outcome == "expired"]
            partition = Partition(number, len(self.logs.components), self.kinds, expiries, self.limit, self.report)
            self.expected[number] = partition.judge(self.logs.components[number])
            self._ledger(number, [record for _, record in ledger], closings[number])
        self._sent_and_read()
        for number, expected in self.expected.items():
            self._units(number, expected)
            self._errors(number, expected)
            self._held(number, expected)
        self._rejected()
        self._rerouted()
        self._account()
        self._whole()
        self._outcomes(closings)
        for number, records in self.logs.components.items():
            left = sum(rec.offset >= self.logs.committed.get(number, 0) for rec in records)
            if left:
                say("lag", f"partition {number}: {left} records lie at or after the committed offset")
        self._count()
        return self.report

    def _decoded(self, avro: Avro, records: Iterable[Rec], what: str) -> Iterator[tuple[Rec, Any]]:
        for rec in records:
            try:
                yield rec, avro.decode(rec.value)
            except (ValueError, EOFError, IndexError, TypeError) as error:
                self.report.say("undecodable", f"{what} {rec.partition}/{rec.offset}: {error}")

    def _sent_and_read(self) -> None:
        """The input holds what was sent and committed, and what the worker sent on: nothing else."""
        sent = Counter((each.key, each.value, each.headers) for each in self.truth.sent if each.committed)
        read: Counter[Identity] = Counter()
        for rec in self.input.values():
            identity = rec.identity if rec.identity in sent else (rec.key, rec.value, _unrerouted(rec.headers))
            read[identity] += identity == rec.identity
            if identity not in sent:
                self.report.say("invented", f"input {rec.place} was never sent, or in an aborted transaction")
        for identity, count in (sent - read).items():
            self.report.say("input", f"{count} of {identity[0]!r} sent and acknowledged, but not there")

    def _units(self, number: int, expected: Expected) -> None:
        """Look 2 at `D.units`: the exact sequence, and each unit inside."""
        found: list[object] = []
        for rec in self.logs.units.get(number, []):
            if rec.first("uow-kind") == b"unit" and rec.first("uow-seq") is None and (rec.first("uow-unit-id")):
                found.append(self._unit(rec))
            else:
                found.append(rec.identity)
        wanted: list[object] = [
            [part.place for _, part in each.in_order()] if isinstance(each, Group) else each.identity
            for each in expected.units
        ]
        self._passed(number, expected, found)
        if found != wanted:
            at = next((i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), "the end")
            text = f"units of partition {number}: {len(found)} found, {len(wanted)} expected, first difference at {at}"
            self.report.say("sequence", text)

    def _passed(self, number: int, expected: Expected, found: list[object]) -> None:
        """Which input offsets the passed-through records of this partition are, the earliest first."""
        waiting: defaultdict[object, deque[Place]] = defaultdict(deque)
        for rec in self.logs.components[number]:
            waiting[rec.identity].append(rec.place)
        for identity in found:
            if isinstance(identity, tuple):
                if waiting[identity]:
                    self.actual[waiting[identity].popleft()].append("passed")
                else:
                    self.report.say("invented", f"units, partition {number}: a record nobody sent, key {identity[0]!r}")

    def _unit(self, rec: Rec) -> list[Place]:
        """One unit: its parts, and whether they are what they must be."""
        say, name = self.report.say, f"unit {rec.partition}/{rec.offset} {rec.key!r}"
        try:
            unit = UNIT.decode(rec.value)
        except (ValueError, EOFError, IndexError, TypeError) as error:
            say("undecodable", f"{name}: {error}")
            return []
        parts = unit["components"]
        numbers = [part["seq"] for part in parts]
        if numbers != sorted(numbers):
            say("order", f"{name}: {numbers}")
        if sorted(numbers) != list(range(1, len(parts) + 1)) or [p["end"] for p in parts].count(True) > 1:
            say("incomplete", f"{name}: {numbers}")
        places = []
        for part in parts:
            source = part["source"]
            place = source["partition"], source["offset"]
            places.append(place)
            self.actual[place].append("unit")
            self._part(name, unit, part, place)
        headers = dict(rec.headers)
        said = {
            "uow-id": unit["id"].encode(),
            "uow-unit-id": unit["unit_id"].encode(),
            "uow-outcome": unit["outcome"].encode(),
            "uow-reason": unit["reason"].encode(),
            "uow-size": b"%d" % len(parts),
            "uow-generation": b"%d" % unit["generation"],
        }
        wrong = [key for key, value in said.items() if headers.get(key) != value]
        if wrong or unit["outcome"] != "complete" or unit["missing"] or rec.key != headers.get("uow-id"):
            say("headers", f"{name}: {wrong or unit['outcome']}")
        if "uow-seq" in headers or "uow-end" in headers:
            say("headers", f"{name} carries a number or an end mark")
        self.units.append((rec, places))
        self.delivered[unit["id"].encode()] += 1
        return places

    def _part(self, name: str, unit: Any, part: Any, place: Place) -> None:
        origin = self.input.get(place)
        if origin is None or part["source"]["topic"] != self.components_topic:
            self.report.say("invented", f"{name}: number {part['seq']} comes from {part['source']}")
            return
        if origin.first("uow-id") != unit["id"].encode():
            self.report.say("mixed", f"{name}: number {part['seq']} belongs to {origin.first('uow-id')!r}")
        headers = tuple((each["name"], each["value"]) for each in part["headers"])
        same = (part["key"], part["value"], headers) == origin.identity and part["timestamp"] == origin.timestamp
        seq = int(origin.first("uow-seq") or b"0")
        if not same or part["seq"] != seq or part["reference"] is not None:
            self.report.say("bytes", f"{name}: number {part['seq']} is not what lies at {place}")

    def _errors(self, number: int, expected: Expected) -> None:
        """Look 2 at `D.errors`: expired groups, each component singly, in order, as it was."""
        found = []
        for rec in self.logs.errors.get(number, []):
            place = self._source(rec, "errors")
            found.append(place)
            self.actual[place].append("errors")
            headers = dict(rec.headers)
            if headers.get("uow-failure-reason") != b"expired" or headers.get("uow-error-case") != b"age":
                self.report.say(
                    "headers", f"errors {rec.partition}/{rec.offset}: {headers.get('uow-failure-reason')!r}"
                )
            self.given_up[rec.first("uow-id") or b""] += 1
        if found != [part.place for group in expected.expired for _, part in group.in_order()]:
            self.report.say("sequence", f"errors of partition {number} differ from what expired")

    def _source(self, rec: Rec, what: str) -> Place:
        """The `uow-source` of a record, which must be otherwise as it was, with headers added behind."""
        topic, _, rest = (rec.first("uow-source") or b"").decode().partition("/")
        partition, _, offset = rest.partition("/")
        if topic != self.components_topic or not (partition.isdigit() and offset.isdigit()):
            self.report.say("headers", f"{what} {rec.partition}/{rec.offset}: uow-source {topic}/{rest}")
            return -1, -1
        place = int(partition), int(offset)
        origin = self.input.get(place)
        if origin is None:
            self.report.say("invented", f"{what} {rec.partition}/{rec.offset} comes from {place}")
        elif (rec.key, rec.value, rec.headers[: len(origin.headers)]) != origin.identity:
            self.report.say("bytes", f"{what} {rec.partition}/{rec.offset} is not what lies at {place}")
        return place

    def _rejected(self) -> None:
        wanted = {place: why for expected in self.expected.values() for place, why in expected.rejected.items()}
        for records in self.logs.rejected.values():
            for rec in records:
                place = self._source(rec, "rejected")
                self.actual[place].append("rejected")
                why = tuple((rec.first(f"uow-error-{name}") or b"").decode() for name in ("class", "case"))
                if wanted.get(place, why) != why:
                    self.report.say("reason", f"{place} is rejected as {why}, should be {wanted[place]}")
                if not rec.first("uow-error-text"):
                    self.report.say("headers", f"the rejected {place} has no text")

    def _rerouted(self) -> None:
        """What was sent on lies at its right partition, once, with the mark."""
        arrived: Counter[tuple[int, Identity]] = Counter()
        own = Counter((each.key, each.value, each.headers) for each in self.truth.sent)
        for rec in self.input.values():
            if rec.headers and rec.headers[-1] == ("uow-rerouted", b"1") and rec.identity not in own:
                arrived[rec.partition, rec.identity] += 1
        for expected in self.expected.values():
            for home, rec in expected.rerouted:
                key = home, (rec.key, rec.value, (*rec.headers, ("uow-rerouted", b"1")))
                if arrived[key] > 0:
                    arrived[key] -= 1
                    self.actual[rec.place].append("rerouted")
        for (number, identity), count in arrived.items():
            if count:
                self.report.say("doubled", f"{count} sent on to partition {number} too often, key {identity[0]!r}")

    def _held(self, number: int, expected: Expected) -> None:
        """Look 3 at the changelog: its live rows are the open groups' components."""
        live: dict[bytes, Rec] = {}
        for rec in self.logs.changelog.get(number, []):
            if rec.key is None:
                self.report.say("changelog", f"a row without key at {rec.partition}/{rec.offset}")
            elif rec.value is None:
                live.pop(rec.key, None)
            else:
                live[rec.key] = rec
        wanted = {
            b"\x01" + group.id + b"\x00" + seq.to_bytes(4, "big"): (part.offset, part.value)
            for group in expected.open.values()
            for seq, part in group.held.items()
        }
        found = {}
        for rec, row in self._decoded(ROW, live.values(), "changelog"):
            self.actual[number, row["source_offset"]].append("held")
            part = fastavro.schemaless_reader(BytesIO(row["payload"]), COMPONENT.schema, None)
            found[rec.key] = row["source_offset"], part["value"]
        if found != wanted:
            wrong = len(found.items() ^ wanted.items())
            text = f"partition {number}: {len(found)} rows, {len(wanted)} components are held; {wrong} differ"
            self.report.say("changelog", text)

    def _ledger(self, number: int, records: list[Any], closings: list[Closing]) -> None:
        """Look 3 at the ledger: an unbroken chain up to the committed offset, that closed and skipped what was closed and skipped."""
        say, expected = self.report.say, self.expected[number]
        position: int | None = None
        skipped: set[int] = set()
        offsets = {rec.offset for rec in self.logs.components[number]}
        for record in records:
            if position not in (None, record["from_offset"]):
                say("ledger", f"partition {number}: from {record['from_offset']} follows {position}")
            position = record["to_offset"]
            for each in record["not_held"]:
                skipped.update(range(each["first"], each["last"] + 1))
        committed = self.logs.committed.get(number, 0)
        if (position or 0) != committed and (records or offsets):
            say("ledger", f"partition {number}: ends at {position}, the committed offset is {committed}")
        if skipped & offsets != expected.not_held:
            say("ledger", f"partition {number}: {len(skipped & offsets ^ expected.not_held)} skipped offsets differ")
        if [(each.id, each.outcome, each.before) for each in closings] != expected.closings:
            say("ledger", f"partition {number}: {len(closings)} closed groups, {len(expected.closings)} expected")

    def _account(self) -> None:
        """Look 1."""
        wanted: dict[Place, str] = {}
        for expected in self.expected.values():
            for each in expected.units:
                parts = each.held.values() if isinstance(each, Group) else ()
                wanted |= {part.place: "unit" for part in parts} if parts else {}
                if isinstance(each, Rec):
                    wanted[each.place] = "passed"
            for group, word in (
                *((g, "errors") for g in expected.expired),
                *((g, "held") for g in expected.open.values()),
            ):
                wanted |= {part.place: word for part in group.held.values()}
            wanted |= dict.fromkeys(expected.rejected, "rejected")
            wanted |= {rec.place: "rerouted" for _, rec in expected.rerouted}
        for place in self.input:
            found, word = self.actual.get(place, []), wanted.get(place, "nowhere: nobody sent it")
            if not found:
                self.report.say(
                    "missing" if word in ("unit", "passed") else "unaccounted", f"{place} should be in {word}"
                )
            elif len(found) > 1:
                self.report.say("doubled" if len(set(found)) == 1 else "both", f"{place} is in {', '.join(found)}")
            elif found[0] != word:
                self.report.say("misplaced", f"{place} is in {found[0]}, should be in {word}")
        for place in self.actual.keys() - self.input.keys():
            self.report.say("invented", f"{place} is in {self.actual[place]}, but there is no such record")

    def _whole(self) -> None:
        """The plain question, straight from what was sent: is each whole unit there once?"""
        expired = {group.id for expected in self.expected.values() for group in expected.expired}
        for group_id, size in self.truth.whole.items():
            count = self.delivered[group_id]
            if count != 1 and not (count == 0 and group_id in expired):
                kind = "missing" if count == 0 else "doubled"
                self.report.say(kind, f"the whole unit {group_id!r} of {size} was delivered {count} times")
        for group_id in self.delivered.keys() & self.given_up.keys():
            self.report.say("both", f"{group_id!r} was delivered and expired")
        ids = Counter(rec.first("uow-unit-id") for rec, _ in self.units)
        for unit_id, count in ids.items():
            if count > 1:
                self.report.say("doubled", f"unit id {unit_id!r} came {count} times")

    def _outcomes(self, closings: Mapping[int, list[Closing]]) -> None:
        for number, closed in closings.items():
            told = []
            for _, record in self._decoded(OUTCOME, self.logs.outcomes.get(number, []), "outcomes"):
                told.append((record["id"].encode(), record["generation"], record["outcome"], record["reason"]))
            if Counter(told) != Counter((each.id, each.generation, each.outcome, each.reason) for each in closed):
                text = f"partition {number}: {len(told)} outcomes, the ledger closed {len(closed)} groups"
                self.report.say("outcomes", text)

    def _count(self) -> None:
        self.report.counts.update(
            {
                "records": len(self.input),
                "units": len(self.units),
                "expired": sum(len(expected.expired) for expected in self.expected.values()),
                "open": sum(len(expected.open) for expected in self.expected.values()),
                "aborted": sum(not each.committed for each in self.truth.sent),
            }
        )
        self.report.counts.update(word for words in self.actual.values() for word in words)


def _closings(record: Any) -> Iterator[Closing]:
    for each in record["closed"]:
        yield Closing(
            each["id"],
            each["generation"],
            each["outcome"],
            each["reason"],
            each["highest"],
            each["closed_before"],
            each["closed_at"],
        )


# -- reading


def read_logs(bootstrap: str, application: str, destination: str) -> Logs:
    """Everything the topics hold now."""
    names = {name: f"{destination}.{name}" for name in ("components", "units", "rejected", "errors", "outcomes")}
    names["changelog"] = f"{application}-{destination}-groups-changelog"
    names["ledger"] = f"{application}-{destination}-closed-changelog"
    logs = Logs(**{attribute: read_topic(bootstrap, topic) for attribute, topic in names.items()})
    logs.committed = committed(bootstrap, application, names["components"])
    return logs


def _consumer(bootstrap: str, group: str) -> ck.Consumer:
    return ck.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "log_level": 2,
        }
    )


def read_topic(bootstrap: str, topic: str) -> Log:
    """All records of a topic, `read_committed`, up to the end offsets of now as a `read_uncommitted` reader sees them."""
    ends = _ends(bootstrap, topic)
    consumer = _consumer(bootstrap, "drill-checker")
    log: Log = {number: [] for number in ends}
    left = {number for number, end in ends.items() if end > 0}
    consumer.assign([ck.TopicPartition(topic, number, 0) for number in left])
    until = time.monotonic() + READ_TIMEOUT_S
    try:
        while left:
            for message in consumer.consume(10_000, 0.1):
                if message.error() is None:
                    log[message.partition()].append(_record(message))
                elif message.error().code() != ck.KafkaError._PARTITION_EOF:
                    raise ck.KafkaException(message.error())
                elif message.offset() >= ends[message.partition()]:
                    left.discard(message.partition())
            if time.monotonic() > until:
                raise TimeoutError(f"{topic}: partitions {sorted(left)} cannot be read to their end: {ends}")
    finally:
        consumer.close()
    return log


def _ends(bootstrap: str, topic: str) -> dict[int, int]:
    # get_watermark_offsets answers the last stable offset to a reader that is read_committed
    consumer = ck.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "drill-checker",
            "isolation.level": "read_uncommitted",
            "log_level": 2,
        }
    )
    try:
        numbers = consumer.list_topics(topic, timeout=20).topics[topic].partitions
        return {n: consumer.get_watermark_offsets(ck.TopicPartition(topic, n), timeout=20)[1] for n in sorted(numbers)}
    finally:
        consumer.close()


def _record(message: ck.Message) -> Rec:
    headers = tuple((name, value) for name, value in message.headers() or ())
    stamp = message.timestamp()[1]
    return Rec(message.partition(), message.offset(), message.key(), message.value(), headers, stamp)


def committed(bootstrap: str, application: str, topic: str) -> dict[int, int]:
    """Stable committed offsets of the group; 0 for none."""
    numbers = _ends(bootstrap, topic)
    consumer = _consumer(bootstrap, application)
    try:
        rows = consumer.committed([ck.TopicPartition(topic, number) for number in numbers], timeout=30)
        return {row.partition: max(row.offset, 0) for row in rows}
    finally:
        consumer.close()


def unread(bootstrap: str, application: str, topic: str) -> int:
    """How many partitions have a committed record at or after the committed offset; markers are none, an open transaction counts as one."""
    positions, ends = committed(bootstrap, application, topic), _ends(bootstrap, topic)
    behind = {number: offset for number, offset in positions.items() if offset < ends[number]}
    consumer = _consumer(bootstrap, "drill-checker")
    consumer.assign([ck.TopicPartition(topic, number, offset) for number, offset in behind.items()])
    until, lagging = time.monotonic() + 10, set(behind)
    try:
        while behind and time.monotonic() < until:
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is None:
                break
            if message.error().code() == ck.KafkaError._PARTITION_EOF and message.offset() >= ends[message.partition()]:
                behind.pop(message.partition(), None)
                lagging.discard(message.partition())
        return len(lagging)
    finally:
        consumer.close()


def still_held(bootstrap: str, application: str, destination: str) -> int:
    """Live rows of the groups changelog."""
    log = read_topic(bootstrap, f"{application}-{destination}-groups-changelog")
    return sum(
        len({rec.key: rec.value for rec in rows if rec.value is not None}.keys() - _dead(rows)) for rows in log.values()
    )


def _dead(rows: list[Rec]) -> set[bytes | None]:
    last = {rec.key: rec.value for rec in rows}
    return {key for key, value in last.items() if value is None}
