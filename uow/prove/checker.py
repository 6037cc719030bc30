"""Compares the records that were sent with all records in the destination's topics. Shares no code with the worker.

It imports confluent_kafka (through `reading`), fastavro (through `definitions`), the published `.avsc` files and the standard library; an
import contract and a test enforce that. It makes three checks, each of which alone would find most defects:

1. **Account**: every offset of `D.components` is in exactly one place: in a unit, rejected, in `D.errors`, passed through, sent on to its
   right partition, or still held (a live row of the groups changelog). No record comes from elsewhere.
2. **Sequence**: the records of each partition are judged again (`judge`); `D.units` and `D.errors` must contain exactly the results, in that
   order, byte for byte.
3. **Agreement**: changelog, ledger, outcomes and committed offset agree with the units (W-125), no record is left unread, and
   where groups expire no component is held in the end.

Belongs here: comparing. Does not belong here: the expected results (`judge`), and reading topics (`reading`).
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from uow.prove.definitions import COMPONENT, LEDGER, OUTCOME, ROW, SETTINGS_KEY, UNIT, Avro
from uow.prove.ground_truth import GroundTruth
from uow.prove.judge import REROUTED, Expected, Judge, JudgedClosing, JudgedGroup, Refusal, as_sent
from uow.prove.seen_records import (
    Findings,
    Identity,
    Logs,
    Place,
    Rec,
)


def check(logs: Logs, truth: GroundTruth, destination: str, expiration_ms: int = -1) -> Findings:
    """Compares everything.

    Args:
        logs: The content of the topics, read after all work is done.
        truth: The records that were sent.
        destination: Name of the destination.
        expiration_ms: `incomplete_expiration_ms`; the policy is `redirect`, outcomes are `all`.
    """
    return _Check(logs, truth, destination, expiration_ms).run()


class _Check:
    """One comparison; `actual` collects every place where an input record was found."""

    def __init__(self, logs: Logs, truth: GroundTruth, destination: str, expiration_ms: int) -> None:
        self.logs, self.truth, self.limit = logs, truth, expiration_ms
        self.components_topic = f"{destination}.components"
        self.findings = Findings()
        self.kinds: dict[Identity, tuple[str, Refusal]] = {
            (each.key, each.value, each.headers): (each.kind, each.refusal) for each in truth.sent
        }
        self.input = {rec.place: rec for records in logs.components.values() for rec in records}
        self.expected: dict[int, Expected] = {}
        self.actual: defaultdict[Place, list[str]] = defaultdict(list)
        self.units: list[tuple[Rec, list[Place]]] = []
        self.delivered: Counter[bytes] = Counter()
        self.given_up: Counter[bytes] = Counter()

    def run(self) -> Findings:
        """Makes all three checks."""
        closings = {}
        for number in self.logs.components:
            ledger = list(self._decoded(LEDGER, self.logs.ledger.get(number, []), "ledger"))
            closings[number] = [closing for _, record in ledger for closing in _closings(record)]
            expiries = [each for each in closings[number] if each.outcome == "expired"]
            judge = Judge(number, len(self.logs.components), self.kinds, expiries, self.limit, self.findings)
            self.expected[number] = judge.judge(self.logs.components[number])
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
        self._lag()
        self._count()
        return self.findings

    def _decoded(self, avro: Avro, records: Iterable[Rec], what: str) -> Iterator[tuple[Rec, Any]]:
        for rec in records:
            try:
                yield rec, avro.decode(rec.value)
            except ValueError as error:
                self.findings.say("undecodable", f"{what} {rec.partition}/{rec.offset}: {error}")

    def _sent_and_read(self) -> None:
        """The input contains the records that were sent and committed, those that a worker sent on, and no others."""
        sent = Counter((each.key, each.value, each.headers) for each in self.truth.sent if each.committed)
        read: Counter[Identity] = Counter()
        for rec in self.input.values():
            identity = rec.identity if rec.identity in sent else (rec.key, rec.value, as_sent(rec.headers))
            read[identity] += identity == rec.identity
            if identity not in sent:
                self.findings.say("invented", f"input {rec.place} was never sent, or in an aborted transaction")
        for identity, count in (sent - read).items():
            self.findings.say("input", f"{count} of {identity[0]!r} sent and acknowledged, but not there")

    def _units(self, number: int, expected: Expected) -> None:
        """Check 2 of `D.units`: the exact sequence, and the content of each unit."""
        found: list[object] = []
        for rec in self.logs.units.get(number, []):
            if rec.first("uow-kind") == b"unit" and rec.first("uow-seq") is None and (rec.first("uow-unit-id")):
                found.append(self._unit(rec))
            else:
                found.append(rec.identity)
        wanted: list[object] = [
            [part.place for part in each.in_order()] if isinstance(each, JudgedGroup) else each.passed
            for each in expected.units
        ]
        self._passed(number, expected, found)
        if found != wanted:
            at = next((i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), "the end")
            text = f"units of partition {number}: {len(found)} found, {len(wanted)} expected, first difference at {at}"
            self.findings.say("sequence", text)

    def _passed(self, number: int, expected: Expected, found: list[object]) -> None:
        """Finds the input offset of each passed-through record of this partition; of equal records the earliest is taken first."""
        waiting: defaultdict[object, deque[Place]] = defaultdict(deque)
        for rec in self.logs.components[number]:
            waiting[rec.passed].append(rec.place)
        for identity in found:
            if isinstance(identity, tuple):
                if waiting[identity]:
                    self.actual[waiting[identity].popleft()].append("passed")
                else:
                    self.findings.say(
                        "invented", f"units, partition {number}: a record nobody sent, key {identity[0]!r}"
                    )

    def _unit(self, rec: Rec) -> list[Place]:
        """Checks one unit, and returns the places of its components in the input."""
        say, name = self.findings.say, f"unit {rec.partition}/{rec.offset} {rec.key!r}"
        try:
            unit = UNIT.decode(rec.value)
        except ValueError as error:
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
            self.findings.say("invented", f"{name}: number {part['seq']} comes from {part['source']}")
            return
        if origin.first("uow-id") != unit["id"].encode():
            self.findings.say("mixed", f"{name}: number {part['seq']} belongs to {origin.first('uow-id')!r}")
        headers = tuple((each["name"], each["value"]) for each in part["headers"])
        same = (part["key"], part["value"], headers) == origin.identity and part["timestamp"] == origin.timestamp
        seq = int(origin.first("uow-seq") or b"0")
        if not same or part["seq"] != seq or part["reference"] is not None:
            self.findings.say("bytes", f"{name}: number {part['seq']} is not what lies at {place}")

    def _errors(self, number: int, expected: Expected) -> None:
        """Check 2 of `D.errors`: the components of expired groups, one record each, in order and unchanged."""
        found = []
        for rec in self.logs.errors.get(number, []):
            place = self._source(rec, "errors")
            found.append(place)
            self.actual[place].append("errors")
            headers = dict(rec.headers)
            if headers.get("uow-failure-reason") != b"expired" or headers.get("uow-error-case") != b"age":
                self.findings.say(
                    "headers", f"errors {rec.partition}/{rec.offset}: {headers.get('uow-failure-reason')!r}"
                )
            self.given_up[rec.first("uow-id") or b""] += 1
        if found != [part.place for group in expected.expired for part in group.in_order()]:
            self.findings.say("sequence", f"errors of partition {number} differ from what expired")

    def _source(self, rec: Rec, what: str) -> Place:
        """The place that `uow-source` of a record names. The record must be unchanged but for headers added at the end."""
        topic, _, rest = (rec.first("uow-source") or b"").decode().partition("/")
        partition, _, offset = rest.partition("/")
        if topic != self.components_topic or not (partition.isdigit() and offset.isdigit()):
            self.findings.say("headers", f"{what} {rec.partition}/{rec.offset}: uow-source {topic}/{rest}")
            return -1, -1
        place = int(partition), int(offset)
        origin = self.input.get(place)
        if origin is None:
            self.findings.say("invented", f"{what} {rec.partition}/{rec.offset} comes from {place}")
        elif (rec.key, rec.value, rec.headers[: len(origin.headers)]) != origin.identity:
            self.findings.say("bytes", f"{what} {rec.partition}/{rec.offset} is not what lies at {place}")
        return place

    def _rejected(self) -> None:
        wanted = {place: why for expected in self.expected.values() for place, why in expected.rejected.items()}
        for records in self.logs.rejected.values():
            for rec in records:
                place = self._source(rec, "rejected")
                self.actual[place].append("rejected")
                why = tuple((rec.first(f"uow-error-{name}") or b"").decode() for name in ("class", "case"))
                if wanted.get(place, why) != why:
                    self.findings.say("reason", f"{place} is rejected as {why}, should be {wanted[place]}")
                if not rec.first("uow-error-text"):
                    self.findings.say("headers", f"the rejected {place} has no text")

    def _rerouted(self) -> None:
        """Every record that was sent on is in its right partition, once, with the mark."""
        arrived: Counter[tuple[int, Identity]] = Counter()
        own = Counter((each.key, each.value, each.headers) for each in self.truth.sent)
        for rec in self.input.values():
            if rec.headers and rec.headers[-1] == REROUTED and rec.identity not in own:
                arrived[rec.partition, rec.identity] += 1
        for expected in self.expected.values():
            for home, rec in expected.rerouted:
                key = home, (rec.key, rec.value, (*rec.headers, REROUTED))
                if arrived[key] > 0:
                    arrived[key] -= 1
                    self.actual[rec.place].append("rerouted")
        for (number, identity), count in arrived.items():
            if count:
                self.findings.say("doubled", f"{count} sent on to partition {number} too often, key {identity[0]!r}")

    def _held(self, number: int, expected: Expected) -> None:
        """Check 3 of the changelog: its live rows are the open groups' components."""
        live: dict[bytes, Rec] = {}
        for rec in self.logs.changelog.get(number, []):
            if rec.key is None:
                self.findings.say("changelog", f"a row without key at {rec.partition}/{rec.offset}")
            elif rec.value is None:
                live.pop(rec.key, None)
            elif rec.key != SETTINGS_KEY:
                live[rec.key] = rec
        wanted = {
            b"\x01" + group.id + b"\x00" + seq.to_bytes(4, "big"): (part.offset, part.value)
            for group in expected.open.values()
            for seq, part in group.held.items()
        }
        found = {}
        for rec, row in self._decoded(ROW, live.values(), "changelog"):
            self.actual[number, row["source_offset"]].append("held")
            part = COMPONENT.decode_bare(row["payload"])
            found[rec.key] = row["source_offset"], part["value"]
        if found != wanted:
            wrong = len(found.items() ^ wanted.items())
            text = f"partition {number}: {len(found)} rows, {len(wanted)} components are held; {wrong} differ"
            self.findings.say("changelog", text)
        if found and self.limit >= 0:
            self.findings.say(
                "held", f"partition {number}: {len(found)} components are still held, all should have expired"
            )

    def _ledger(self, number: int, records: list[Any], closings: list[JudgedClosing]) -> None:
        """Check 3 of the ledger: an unbroken chain up to the committed offset, with exactly the expected closed groups and skipped offsets."""
        say, expected = self.findings.say, self.expected[number]
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
        """Check 1: each input record is in exactly one place, and in the right one."""
        wanted: dict[Place, str] = {}
        for expected in self.expected.values():
            for each in expected.units:
                wanted |= dict.fromkeys(_places(each), "unit" if isinstance(each, JudgedGroup) else "passed")
            for group in expected.expired:
                wanted |= dict.fromkeys(_places(group), "errors")
            for group in expected.open.values():
                wanted |= dict.fromkeys(_places(group), "held")
            wanted |= dict.fromkeys(expected.rejected, "rejected")
            wanted |= {rec.place: "rerouted" for _, rec in expected.rerouted}
        for place in self.input:
            found, word = self.actual.get(place, []), wanted.get(place, "nowhere: nobody sent it")
            if not found:
                kind = "missing" if word in ("unit", "passed") else "unaccounted"
                self.findings.say(kind, f"{place} should be in {word}")
            elif len(found) > 1:
                self.findings.say("doubled" if len(set(found)) == 1 else "both", f"{place} is in {', '.join(found)}")
            elif found[0] != word:
                self.findings.say("misplaced", f"{place} is in {found[0]}, should be in {word}")
        for place in self.actual.keys() - self.input.keys():
            self.findings.say("invented", f"{place} is in {self.actual[place]}, but there is no such record")

    def _whole(self) -> None:
        """Directly from the records that were sent: each complete unit was delivered once."""
        expired = {group.id for expected in self.expected.values() for group in expected.expired}
        for group_id, size in self.truth.whole.items():
            count = self.delivered[group_id]
            if count != 1 and not (count == 0 and group_id in expired):
                kind = "missing" if count == 0 else "doubled"
                self.findings.say(kind, f"the whole unit {group_id!r} of {size} was delivered {count} times")
        for group_id in self.delivered.keys() & self.given_up.keys():
            self.findings.say("both", f"{group_id!r} was delivered and expired")
        ids = Counter(rec.first("uow-unit-id") for rec, _ in self.units)
        for unit_id, count in ids.items():
            if count > 1:
                self.findings.say("doubled", f"unit id {unit_id!r} came {count} times")

    def _outcomes(self, closings: Mapping[int, list[JudgedClosing]]) -> None:
        for number, closed in closings.items():
            told = []
            for _, record in self._decoded(OUTCOME, self.logs.outcomes.get(number, []), "outcomes"):
                told.append((record["id"].encode(), record["generation"], record["outcome"], record["reason"]))
            if Counter(told) != Counter((each.id, each.generation, each.outcome, each.reason) for each in closed):
                text = f"partition {number}: {len(told)} outcomes, the ledger closed {len(closed)} groups"
                self.findings.say("outcomes", text)

    def _lag(self) -> None:
        """No record is left unread."""
        for number, records in self.logs.components.items():
            left = sum(rec.offset >= self.logs.committed.get(number, 0) for rec in records)
            if left:
                self.findings.say("lag", f"partition {number}: {left} records lie at or after the committed offset")

    def _count(self) -> None:
        self.findings.counts.update(
            {
                "records": len(self.input),
                "units": len(self.units),
                "expired": sum(len(expected.expired) for expected in self.expected.values()),
                "open": sum(len(expected.open) for expected in self.expected.values()),
                "aborted": sum(not each.committed for each in self.truth.sent),
            }
        )
        self.findings.counts.update(word for words in self.actual.values() for word in words)


def _places(each: JudgedGroup | Rec) -> list[Place]:
    """The places of a group's records, or of a passed-through record."""
    return [rec.place for rec in each.held.values()] if isinstance(each, JudgedGroup) else [each.place]


def _closings(record: Any) -> Iterator[JudgedClosing]:
    """The groups that one record of the ledger closed."""
    for each in record["closed"]:
        id_and_fate = each["id"], each["generation"], each["outcome"], each["reason"]
        yield JudgedClosing(*id_and_fate, each["highest"], each["closed_before"], each["closed_at"])
