"""Records of an input routed many at a time (aggregation, 6.3): the results of `RecordRouting.route`, with less work for each plain record.

A record is *plain* if the names of its headers, and the one routing name among them, are like those of a record that was routed before, and no rule
looks into it. Then all that differs is its place, its arrival and its value. Every other record is routed alone, and teaches what the plain ones of its kind
need; so both ways give the same results, which a test compares.

Belongs here: that short way. Does not belong here: any decision about a record (`routing.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from uow.processor.rules.routing import (
    APPEND_TIME,
    Choice,
    Fate,
    Headers,
    NoKey,
    RawRecord,
    RecordRouting,
    Routed,
    kept_key,
)
from uow.schemas.printable import printable
from uow.topics import headers as names
from uow.topics.output import Output
from uow.topics.rules import ResolvedRow

KINDS_KEPT = 100
"""Lists of header names that are remembered."""
NAMES_KEPT = 10_000
"""Routing names likewise."""
_MOST_NAMES, _MOST_BYTES = 16, 1_000
"""A list with more header names, or of more bytes, is not remembered."""


@dataclass(slots=True)
class RoutedRecords:
    """Results for records of an input, in their order.

    Attributes:
        outputs: The records to write.
        rows: The rows that components are stamped with, by name.
        counts: Number of records by rule and fate.
        warnings: Number of routing warnings by rule.
        keyless: Number of records without a routing name, by rule and cause.
        examples: The first of each kind of those, for people.
        may_set_aside: Asked before a record at which the code failed is added.
        stopped_at: Offset of one that must not be; nothing behind it is routed.
    """

    outputs: list[Output] = field(default_factory=list)
    rows: dict[str, ResolvedRow] = field(default_factory=dict)
    counts: Counter[tuple[str, Fate]] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    keyless: Counter[tuple[str, NoKey]] = field(default_factory=Counter)
    examples: dict[tuple[str, NoKey], str] = field(default_factory=dict)
    may_set_aside: Callable[[int, BaseException], bool] = lambda offset, fault: True
    stopped_at: int | None = None

    def take(self, routed: Routed, offset: int) -> bool:
        """Adds the result for the record at this offset; False if its partition must stop there instead."""
        if routed.fault is not None and not self.may_set_aside(offset, routed.fault):
            self.stopped_at = offset
            return False
        self.add(routed)
        return True

    def add(self, routed: Routed) -> None:
        """Takes the result for one record."""
        topic, key, value, headers = routed.sent
        self.outputs.append(Output(topic, -1, key, value, headers))
        if routed.command is not None:
            self.outputs.append(Output(routed.command.topic, -1, *routed.command[1:]))
        self.counts[routed.rule_id, routed.fate] += 1
        if routed.has_warning:
            self.warnings[routed.rule_id] += 1
        if routed.keyless is not None:
            kind = routed.rule_id, routed.keyless.cause
            self.keyless[kind] += 1
            if kind not in self.examples:
                where = (dict(headers).get(names.INPUT) or b"").decode(errors="replace")
                self.examples[kind] = f"was {routed.fate}, {where}: {printable(routed.keyless.error.text)}"
        if routed.row is not None:
            self.rows[routed.row.name] = routed.row


class ManyRecords:
    """Routes the records of one input. Not for two threads at once.

    Args:
        routing: Routes one record.
    """

    def __init__(self, routing: RecordRouting) -> None:
        self._routing = routing
        self._rule = routing.only_plain_rule
        self._places: dict[tuple[str, ...], int] = {}
        self._choices: dict[bytes | None, Choice] = {}

    @property
    def destinations(self) -> Sequence[str]:
        """Of the rules, in the order in which they are asked."""
        return self._routing.destinations

    def route(
        self,
        seen: Iterable[tuple[Headers | None, RawRecord]],
        place: bytes,
        now_ms: int,
        is_readable: Callable[[Any], bool],
        found: RoutedRecords,
    ) -> None:
        """Adds the results for some records of one partition.

        Args:
            seen: Headers and record.
            place: `<topic>/<partition>/`.
            now_ms: The wall clock, epoch ms.
            is_readable: False for a record whose headers cannot be read.
            found: Takes the results; it may stop before the last one (`RoutedRecords.stopped_at`).
        """
        rule = self._rule
        if rule is None:
            for headers, record in seen:
                if not found.take(self._routing.route(record, headers, now_ms, is_readable(record)), record.offset()):
                    return
            return
        add, before, used = found.outputs.append, len(found.outputs), set[Choice]()
        places, choices, room = self._places, self._choices, rule.small_bytes - _MOST_BYTES
        topic, alone = rule.target.topics.components, 0
        for headers, record in seen:
            heads = tuple([name for name, _ in headers]) if headers else ()
            if headers and heads in places:
                choice = choices.get(headers[places[heads]][1])
                kind, moment = record.timestamp()
                if choice is not None and kind == APPEND_TIME:
                    value, own_key = record.value(), record.key()
                    size = len(value or b"") + len(own_key or b"")
                    if len(headers) > 1:
                        size += sum([len(raw) for _, raw in headers if raw is not None])
                    if size < room:
                        used.add(choice)
                        stamps = (names.INPUT, place + b"%d" % record.offset()), (names.ARRIVED_AT, b"%d" % moment)
                        stamped = [*headers, *choice.headers, *stamps, *kept_key(own_key, choice.key)]
                        add(Output(topic, -1, choice.key, value, stamped))
                        continue
            if not found.take(self._routing.route(record, headers, now_ms, is_readable(record)), record.offset()):
                break
            alone += 1
            if headers:
                self._learn(heads, headers)
        if used:
            found.counts[rule.rule.rule_id, Fate.ROUTED] += len(found.outputs) - before - alone
            found.rows |= {row.name: row for row in {id(each.row): each.row for each in used}.values()}

    def _learn(self, heads: tuple[str, ...], headers: Headers) -> None:
        """Takes note of the kind of a record that was routed alone, if it is a plain one."""
        assert self._rule is not None
        at = self._rule.plain_place(heads)
        if at is None or len(heads) > _MOST_NAMES or sum(map(len, heads)) > _MOST_BYTES // 4:
            return
        choice = self._rule.plain_choice(headers[at][1])
        if choice is None:
            return
        if len(self._places) >= KINDS_KEPT:
            self._places.clear()
        if len(self._choices) >= NAMES_KEPT:
            self._choices.clear()
        self._places[heads] = at
        self._choices[headers[at][1]] = choice
