"""The router: a poll of the inputs in, one transaction of components and positions out (aggregation, section 1, B-27).

It keeps nothing but positions, so it needs no restore: after any doubt it aborts, looks where the group stands, and reads on from there. The records
of an input partition are routed in their order, by one producer, so those of one group key stay in it. Source, sink and fencing are
the worker's own; to Kafka the routers of `A` are an application of its own, `A-router`.

| What went wrong | What the router does |
| --- | --- |
| a record: its transform, its routing name, its value | it goes to `D.rejected`, in the same transaction |
| the code itself, at a record | it goes to `D.rejected` as `InternalError`, with a log line; beyond so many a minute its partition is blocked there (`uow.processor.engine.set_aside`) |
| a record blocks, and a command says that it is to be set aside | it is tried once more, and goes to `D.rejected` if it fails again |
| `Doubt` | a new producer, back to the committed positions |
| `StaleGeneration` | the same with the same producer, after the rebalance had its chance |
| `Refused` | back; less at a time, until the record that is refused stands alone: its partition is blocked there, tried again later and later. The others go on |
| positions that retention took | that partition is blocked |
| a rule that cannot be obeyed | the inputs of the routers that ask it are blocked, until a version comes that can be |
| anything else | the worker ends |

Belongs here: the loop. Does not belong here: what becomes of a record (`uow.processor.rules.routing`), the thread's owner
(`uow.processor.shell.router_thread`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import confluent_kafka as ck

from uow.processor.core.columns import UnreadableRecord, look_at_headers
from uow.processor.engine.poll_loop import PollLoop
from uow.processor.engine.portions import Portions
from uow.processor.engine.ports import (
    Contents,
    Doubt,
    LogReader,
    Meanwhile,
    Output,
    Plan,
    Poll,
    RawRecord,
    RecordSource,
    Refused,
    Sink,
    StaleGeneration,
    Tp,
)
from uow.processor.engine.set_aside import SetAsideLimit, advice, by_command
from uow.processor.kafka.asked_log import AskedLog, AskedOf
from uow.processor.rules.routed_records import RoutedRecords
from uow.processor.rules.routing import Fate, NoKey
from uow.schemas.error_classes import UowError
from uow.topics.commands import RecordPlace
from uow.topics.rules import ResolvedRow

log = logging.getLogger("uow.router")

READ_TIMEOUT_S: Final = 0.2
"""Longest one read waits for a first record: how long a stop may go unseen."""
BACK_OFF_S: Final = 0.2
"""Wait after a doubt; doubles with each that follows at once."""
LONGEST_BACK_OFF_S: Final = 5.0
RETRY_S: Final = 1.0
"""Before a blocked partition is tried again; doubles as well."""
LONGEST_RETRY_S: Final = 60.0
SETTLE_S: Final = 0.2
"""Between two looks for markers, where records keep coming."""


class RoutedPlan(Plan):
    """All that a poll of one input partition writes; there is no changelog, and no command beside it."""

    def positions(self) -> tuple[tuple[Tp, int, str], ...]:
        """The input's own."""
        return ((self.tp, self.next_offset, ""),)


class _Standing(NamedTuple):
    """A record at which an input partition is blocked, or is about to be.

    Attributes:
        place: Its place.
        at: Its append time, epoch ms.
        cause: Why.
        fault: What the code raised at it; None if it is refused.
    """

    place: RecordPlace
    at: int
    cause: str
    fault: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Tried:
    """The records of a plan, as far as they are looked at once it is refused."""

    count: int
    first: RecordPlace
    at: int
    last: int


class _Work(NamedTuple):
    """The plan of one input partition: rows for `A-rules`, then the records."""

    plan: Plan
    rows: Sequence[Output]
    routed: RoutedRecords
    stopped: _Standing | None
    """The record behind the plan that is not routed; None if it is of all records."""


class Desk(Protocol):
    """Decides about records by the rules in force, and knows which rows are in `A-rules`. Not for two threads at once."""

    def refresh(self) -> None:
        """Takes a newer version of the rules, if there is one. Called once a turn; does not wait long."""
        ...

    def obstacle(self, topic: str) -> str:
        """Why records of an input cannot be routed by the rules in force; empty if they can."""
        ...

    def route(self, tp: Tp, seen: Iterable[tuple[Any, RawRecord]], found: RoutedRecords) -> None:
        """Adds the records that become of some of one partition, or stops at one. An `UnreadableRecord` has headers that cannot be read."""
        ...

    def commanded_by(self, topic: str) -> Sequence[str]:
        """The destinations whose commands set records of an input aside; one at least."""
        ...

    def set_aside(
        self, headers: Any, record: RawRecord, why: UowError, asked: Sequence[AskedOf], found: RoutedRecords
    ) -> None:
        """Adds a record that commands set aside, and their answers."""
        ...

    def announcement(self, meanwhile: Meanwhile) -> Sequence[Output]:
        """The next records that make versions of live rules known (B-13), and the rows themselves; none if all are. May raise `Doubt`."""
        ...

    def unwritten(self, rows: Iterable[ResolvedRow]) -> Sequence[Output]:
        """The records of `A-rules` that are to be written with components of these rows."""
        ...

    def written(self, outputs: Iterable[Output]) -> None:
        """These are committed."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class RouterStatus:
    """A worker's router, as pages and metrics show it. Written by its thread alone, read by others.

    Attributes:
        owned: Position by input partition.
        ends: Returns the end offsets of inputs, as of the last statistics.
        blocked: Cause by input partition that cannot go on.
        counts: Records by rule and fate.
        warnings: Routing warnings by rule.
        keyless: Records without a routing name, by rule and cause.
        transactions: Number committed.
        doubts: Number by kind.
        is_ready: It has its partitions, or is a spare.
        rules_age_s: Returns the time since the rules were last compared with their store, seconds.
        rules_rejected: Returns how many versions of them were wrong.
        rules_errors: Returns how often they could not be looked at for a reason that nobody foresaw.
        rules_left_out: Returns how many records of `A-rules` are no rows.
    """

    owned: dict[Tp, int] = field(default_factory=dict)
    ends: Callable[[], Mapping[Tp, int]] = dict
    blocked: dict[Tp, str] = field(default_factory=dict)
    counts: Counter[tuple[str, Fate]] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    keyless: Counter[tuple[str, NoKey]] = field(default_factory=Counter)
    transactions: int = 0
    doubts: Counter[str] = field(default_factory=Counter)
    is_ready: bool = False
    rules_age_s: Callable[[], float] = lambda: 0.0
    rules_rejected: Callable[[], int] = lambda: 0
    rules_errors: Callable[[], int] = lambda: 0
    rules_left_out: Callable[[], int] = lambda: 0

    def lags(self) -> dict[Tp, int]:
        """Records that wait to be routed, by input partition."""
        ends = self.ends()
        return {tp: max(0, ends.get(tp, 0) - position) for tp, position in list(self.owned.items())}


@dataclass(frozen=True, slots=True)
class RouterPorts:
    """The ports of a router.

    Attributes:
        source: Reads the inputs, as a member of `A-router`.
        sink: Writes transactions.
        starts: Where to read on: the committed offset, the log's start where there is none.
        contents: Looks at records without headers again.
        desk: The rules.
        asked: Commands to set records aside.
    """

    source: RecordSource
    sink: Sink
    starts: Callable[[Sequence[Tp], Meanwhile], Mapping[Tp, int]]
    contents: Contents
    desk: Desk
    asked: AskedLog


def first_positions(reader: LogReader, tps: Sequence[Tp]) -> Mapping[Tp, int]:
    """Stable committed offsets (ER-06); the log's start where the group has none."""
    committed = {tp: at.offset for tp, at in reader.committed(tps).items()}
    new = [tp for tp, offset in committed.items() if offset is None]
    return {tp: offset for tp, offset in committed.items() if offset is not None} | {
        tp: start for tp, (start, _) in (reader.bounds(new) if new else {}).items()
    }


def _appended(record: RawRecord) -> int:
    """When it was appended, epoch ms; 0 where its producer gave the time, which may be any."""
    kind, at = record.timestamp()
    return at if kind == ck.TIMESTAMP_LOG_APPEND_TIME else 0


def _place(record: RawRecord) -> RecordPlace:
    return RecordPlace(record.topic(), record.partition(), record.offset())


class Router(PollLoop):
    """Routes until `request_stop`, or until something cannot be repaired.

    Args:
        ports: Its outside.
        inputs: Topics.
        poll_records: Most records of one poll.
        status: Kept up to date.
        stop: Set when asked to stop; ports that wait for brokers look at it.
        on_ready: Called once, when it has its partitions or is a spare.
        on_finished: Called at the end, with the error if it was not asked to end.
        monotonic: Seconds, from anywhere.
        set_aside: How many records at which the code fails are set aside.
    """

    def __init__(
        self,
        ports: RouterPorts,
        inputs: Collection[str],
        poll_records: int,
        status: RouterStatus,
        stop: threading.Event,
        on_ready: Callable[[], None] = lambda: None,
        on_finished: Callable[[BaseException | None], None] = lambda error: None,
        monotonic: Callable[[], float] = time.monotonic,
        set_aside: SetAsideLimit | None = None,
    ) -> None:
        super().__init__("uow-router", ports.source, ports.sink, stop, (ports.contents, ports.desk, ports.asked))
        self._ports, self._inputs, self._poll_records = ports, sorted(inputs), poll_records
        self._desk, self.status = ports.desk, status
        self._on_ready, self._on_finished, self._monotonic = on_ready, on_finished, monotonic
        self._set_aside = set_aside or SetAsideLimit()
        self._assigned: set[Tp] = set()
        self._again: set[Tp] = set()
        self._settled_at = 0.0
        self._revoked: set[Tp] = set()
        self._is_member = False
        self._retries: dict[Tp, tuple[float, float]] = {}
        self._portions = Portions()
        self._tried: dict[Tp, _Tried] = {}
        self._standing: dict[Tp, _Standing] = {}
        self._asides: dict[Tp, Sequence[AskedOf]] = {}
        self._hurried: dict[Tp, RecordPlace] = {}
        self._told: dict[Tp, str] = {}
        self._held: Collection[Tp] = ()
        self._one_by_one = False
        self._doubts = 0

    def _topics(self) -> Sequence[str]:
        return self._inputs

    def _finished(self, error: BaseException | None) -> None:
        self._on_finished(error)

    # -- the group

    def _on_assign(self, tps: list[Tp]) -> None:
        self._is_member = True
        self._assigned.update(tps)

    def _on_revoke(self, tps: list[Tp]) -> list[Tp]:
        """Nothing is in flight: each turn ends with its transaction."""
        self._revoked.update(tps)
        for tp in tps:
            for those in (self._assigned, self._again):
                those.discard(tp)
            self._forget_trouble(tp)
            self._portions.forget(tp)
            self._set_aside.forget(tp)
            self.status.owned.pop(tp, None)
            self.status.blocked.pop(tp, None)
        return tps

    def _begin_assigned(self) -> None:
        """Reads partitions from their committed positions: those that came, and those of which it is not certain what was committed."""
        owned = self.status.owned
        new = sorted(self._assigned - owned.keys())
        if new or self._again:
            self._revoked.clear()
            starts = self._ports.starts([*new, *sorted(self._again)], self._serve)
            # one that went and came back meanwhile may be elsewhere by now: it is asked for again
            begun = {tp: starts[tp] for tp in new if tp in self._assigned and tp not in self._revoked}
            self._source.begin(begun)
            owned.update(begun)
            sought = {tp: starts[tp] for tp in self._again if tp in owned}
            self._source.seek(sought)
            owned.update(sought)
            self._again.clear()
        if self._is_member and not self.status.is_ready:
            self.status.is_ready = True
            self._on_ready()

    # -- a turn

    def _turn(self) -> None:
        # Nothing is in flight.
        self._tried.clear()
        self._source.control(0.0)
        self._hear()
        self._retry_blocked()
        self._begin_assigned()
        self._desk.refresh()
        self._hold()
        while self._again:  # what is read again goes back before anything more of it is read
            self._begin_assigned()
            self._hold()
        self._announce()
        poll = self._source.read(self._poll_records, READ_TIMEOUT_S)
        if poll is not None:
            for tp, cause in poll.trouble.items():
                self._block(tp, str(cause))
            self._route(poll)
        if poll is None or self._monotonic() - self._settled_at >= SETTLE_S:
            self._settle()

    def _announce(self) -> None:
        """Makes versions of live rules known, before a record is routed by them."""
        owned = self.status.owned
        while owned:
            outputs = self._desk.announcement(self._serve)
            if not (outputs and owned):  # all of them may be revoked while `A-rules` is read
                return
            token, (tp, position) = self._source.token(), next(iter(owned.items()))
            self._sink.write([RoutedPlan(tp, "", "", position, "", 0, outputs=[*outputs])], token)
            self._desk.written(outputs)

    def _settle(self) -> None:
        """Commits positions past the markers that end transactions of the inputs: so that others see that nothing waits here (B-218).

        Also while records keep coming to other partitions. Rules that are not in `A-rules` yet are written there: a call is made by them before any
        record comes (B-77).
        """
        self._settled_at = self._monotonic()
        token, owned = self._source.token(), self.status.owned
        reached = {tp: self._source.reached(tp, at) for tp, at in owned.items() if tp not in self.status.blocked}
        plans = [RoutedPlan(tp, "", "", end, "", 0) for tp, end in reached.items() if end > owned[tp]]
        rules = self._desk.unwritten(())
        if rules and not plans:
            plans = [RoutedPlan(tp, "", "", at, "", 0) for tp, at in owned.items() if tp not in self.status.blocked][:1]
        if plans:
            plans[0].outputs += rules
            self._sink.write(plans, token)
            self._desk.written(rules)
            owned.update({plan.tp: plan.next_offset for plan in plans})

    def _route(self, poll: Poll) -> None:
        owned, blocked = self.status.owned, self.status.blocked
        batches = {
            tp: self._portion(tp, records) for tp, records in poll.records.items() if tp in owned and tp not in blocked
        }
        work = [self._plan(tp, records) for tp, records in batches.items()]
        for some in [[each] for each in work] if self._one_by_one else [work] if work else []:
            plans = [each.plan for each in some]
            try:
                self._sink.write(plans, poll.token)
            except Refused as refused:
                if refused.tp is None and len(plans) == 1:
                    refused.tp = plans[0].tp
                raise
            self._on_committed(some)
        self._one_by_one = False
        self._doubts = 0

    def _portion(self, tp: Tp, records: list[RawRecord]) -> list[RawRecord]:
        """As many of them as are tried at once; the others are read again."""
        size = 1 if tp in self._asides else self._portions.size(tp, len(records))
        if len(records) > size:
            self._source.seek({tp: records[size].offset()})
            records = records[:size]
        self._tried[tp] = _Tried(len(records), _place(records[0]), _appended(records[0]), records[-1].offset())
        return records

    def _plan(self, tp: Tp, records: Sequence[RawRecord]) -> _Work:
        stopped: _Standing | None = None

        def may_set_aside(offset: int, fault: BaseException) -> bool:
            nonlocal stopped
            if why := self._set_aside.take(tp, offset, fault, int(self._monotonic() * 1000)):
                record = next(each for each in records if each.offset() == offset)
                stopped = _Standing(_place(record), _appended(record), why, fault)
            return not why

        routed, end = RoutedRecords(may_set_aside=may_set_aside), records[-1].offset() + 1
        standing, asked = self._standing.get(tp), self._asides.get(tp)
        for headers, seen in look_at_headers(records):
            if asked and standing is not None and standing.place == _place(records[0]):
                why = by_command(asked[0].asked, standing.fault, standing.cause)
                first: Any = seen[0]
                self._desk.set_aside(headers[0], first, why, asked, routed)
                break
            self._desk.route(tp, zip(headers, self._without_hidden(tp, headers, seen), strict=True), routed)
            if routed.stopped_at is not None:
                end = routed.stopped_at
                break
        plan = RoutedPlan(tp, "", "", end, "", 0)
        rows = self._desk.unwritten(routed.rows.values())
        plan.outputs = [*rows, *routed.outputs]
        return _Work(plan, rows, routed, stopped)

    def _without_hidden(self, tp: Tp, headers: Sequence[Any], seen: Sequence[Any]) -> Sequence[Any]:
        """The records, with a stand-in for each whose headers the client does not show (decision 18)."""
        if all(headers):
            return seen
        bare = [record for pairs, record in zip(headers, seen, strict=True) if not pairs]
        offsets = [record.offset() for record in bare if not isinstance(record, UnreadableRecord)]
        hidden = self._ports.contents.hidden(tp, offsets) if offsets else ()
        return [UnreadableRecord(each) if each.offset() in hidden else each for each in seen] if hidden else seen

    def _on_committed(self, some: Sequence[_Work]) -> None:
        status = self.status
        status.transactions += 1
        for plan, rows, routed, stopped in some:
            self._desk.written(rows)
            if plan.next_offset > status.owned[plan.tp]:
                self._forget_trouble(plan.tp)
                self._portions.passed(plan.tp, plan.next_offset)
            status.owned[plan.tp] = plan.next_offset
            status.counts.update(routed.counts)
            status.warnings.update(routed.warnings)
            self._log_keyless(routed)
            status.keyless.update(routed.keyless)
            if stopped is not None:
                self._stand(plan.tp, stopped)

    def _log_keyless(self, found: RoutedRecords) -> None:
        """Names the first record without a routing name, once for each rule and cause: a wrong key looks like this."""
        for kind, example in found.examples.items():
            if kind not in self.status.keyless:
                text = "rule %s: a record without a key %s; the next ones are counted in uow_records_without_key_total"
                log.warning(text, kind[0], example)

    # -- trouble

    def _start_over(self, doubt: Doubt) -> None:
        """Back to the committed positions of everything owned."""
        self.status.doubts[type(doubt).__name__] += 1
        if not isinstance(doubt, StaleGeneration):
            self._sink.replace(self._serve)
        self._again.update(self.status.owned)
        if isinstance(doubt, Refused):
            if doubt.tp is None:
                self._one_by_one = True
            elif doubt.tp in self.status.owned and self._on_refused(
                doubt.tp, f"a record made of it is refused: {doubt}"
            ):
                return  # less is tried at once: the other inputs do not wait for the search
        wait = min(LONGEST_BACK_OFF_S, BACK_OFF_S * 2**self._doubts)
        self._doubts += 1
        until = self._monotonic() + wait
        while self._monotonic() < until and not self._stopping.is_set():
            self._source.control(0.05)

    def _on_refused(self, tp: Tp, cause: str) -> bool:
        """True if less of it is tried at the next time."""
        tried = self._tried.get(tp)
        if tried is None:  # it was no record of an input
            self._block(tp, cause)
        elif tried.count > 1:
            self._portions.halve(tp, tried.last, tried.count)
            return True
        else:
            self._stand(tp, _Standing(tried.first, tried.at, cause))
        return False

    def _forget_trouble(self, tp: Tp) -> None:
        """It goes on, or was taken away."""
        for of in (self._retries, self._standing, self._asides, self._hurried, self._told):
            of.pop(tp, None)

    def _stand(self, tp: Tp, standing: _Standing) -> None:
        """A partition cannot go on at a record: it is blocked, unless commands say that the record is to be set aside, which is then tried once."""
        was_tried = self._asides.pop(tp, None) is not None
        self._standing[tp] = standing
        destinations = self._desk.commanded_by(tp.topic)
        heard = self._ports.asked.look(self._places()).get(standing.place, ())
        asked = [each for each in heard if each.destination in destinations]
        if asked and not was_tried:
            self._asides[tp] = asked
            self._again.add(tp)
            return
        self._block(tp, f"{standing.cause}; {advice(destinations[0], standing.place)}")

    def _places(self) -> dict[RecordPlace, int]:
        return {each.place: each.at for each in self._standing.values()}

    def _hear(self) -> None:
        """A blocked partition is tried at once when a command about its record comes: if it fails again, the record is set aside."""
        heard = self._ports.asked.look(self._places())
        for tp, (place, *_) in self._standing.items():
            names = self._desk.commanded_by(tp.topic)
            is_asked = any(each.destination in names for each in heard.get(place, ()))
            if tp in self.status.blocked and is_asked and self._hurried.get(tp) != place:
                self._hurried[tp] = place
                self._retries[tp] = self._monotonic(), self._retries[tp][1]

    def _block(self, tp: Tp, cause: str) -> None:
        """Reads it no further for a while; each time for longer."""
        if tp not in self.status.owned:
            return
        _, wait = self._retries.get(tp, (0.0, RETRY_S / 2))
        wait = min(LONGEST_RETRY_S, 2 * wait)
        self._retries[tp] = self._monotonic() + wait, wait
        self.status.blocked[tp] = cause
        self._source.pause([tp])
        if self._told.get(tp) != cause:
            self._told[tp] = cause
            log.error("input blocked: %s/%d: %s", *tp, cause)

    def _hold(self) -> None:
        """Reads no input whose router cannot go on by the rules in force, and those again whose router can."""
        owned, blocked = self.status.owned, self.status.blocked
        held = {tp: why for tp in owned if (why := self._desk.obstacle(tp.topic))}
        new = [tp for tp in held if tp not in blocked]
        if new:
            self._source.pause(new)
        self._resume([tp for tp in self._held if tp in blocked and tp not in held])
        blocked.update(held)
        self._held = held.keys()

    def _retry_blocked(self) -> None:
        now = self._monotonic()
        self._resume([tp for tp in self.status.blocked if tp not in self._held and self._retries[tp][0] <= now])

    def _resume(self, due: Sequence[Tp]) -> None:
        """Reads blocked partitions again, from their committed positions."""
        if due:
            self._again.update(due)
            for tp in due:
                del self.status.blocked[tp]
            self._source.resume(due)
