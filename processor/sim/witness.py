"""Compares outputs with inputs, by no rule of the engine, and so finds mistakes that worker and oracle share.

Every output names its sources. The witness looks them up in the log of the input, which here keeps everything in spite of retention, and
compares. It compares the number of closed groups in the ledger with units and outcomes, and the input that a restore would read again with the
bounds of the worker that wrote the plan.

Belongs here: comparisons of bytes, partitions and counts. Does not belong here: the outputs that a rule demands (the oracle, `checks`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from uow.processor.core.changes import Closed
from uow.processor.engine.ports import Headers, Tp
from uow.processor.engine.replayable import ReplayLimits
from uow.processor.sim.simulated_kafka import Broker, StoredRecord
from uow.schemas import codec
from uow.schemas.records import (
    ComponentRecord,
    LedgerRecord,
    Outcome,
    Reason,
    Unit,
    UnitOutcome,
)
from uow.topics import headers as names
from uow.topics.catalogue import DestinationTopics
from uow.topics.commands import COMMAND, COMMAND_ID, Verb
from uow.topics.headers import Reading
from uow.topics.policies import AliasFamily, DestinationPolicy, ExpirationPolicy, OutcomesPolicy
from uow.topics.runs import position_of

Rows = Sequence[tuple[bytes | None, bytes | None, Headers]]

_EVERY_SPELLING = Reading(AliasFamily)
_DELIVERED = (UnitOutcome.COMPLETE, UnitOutcome.PARTIAL)


class Violation(Exception):
    """The run has broken a promise."""


def require(holds: bool, what: str) -> None:
    """Raises `Violation` with `what` if it does not hold."""
    if not holds:
        raise Violation(what)


class Witness:
    """Checks transactions.

    Args:
        broker: The simulated brokers.
        topics: Topics of the destination.
    """

    def __init__(self, broker: Broker, topics: DestinationTopics) -> None:
        self._broker, self._topics = broker, topics

    def look(self, where: Tp, rows: Rows, policy: DestinationPolicy) -> None:
        """Checks the outputs of one transaction in one partition; `policy` is that of the worker that owns the partition of the same number."""
        for key, value, headers in rows:
            said = dict(headers)
            if names.ERROR_CLASS in said:
                self._look_at_error(where, key, value, headers, policy)
            elif said.get(names.KIND) == names.KIND_UNIT and names.UNIT_ID in said:
                self._look_at_unit(where, value, said)

    def count(self, tp: Tp, closed: Sequence[Closed], written: Mapping[Tp, Rows], policy: DestinationPolicy) -> None:
        """For each group that the ledger closes there is a unit if it was delivered, and an outcome as far as `outcomes` says (W-214)."""
        there = [row for where, rows in written.items() if where.partition == tp.partition for row in rows]
        units = Counter(
            (key, int(dict(headers)[names.GENERATION] or 0))
            for key, _, headers in there
            if (said := dict(headers)).get(names.KIND) == names.KIND_UNIT
            and names.UNIT_ID in said
            and (position_of(headers) or (1, 1))[0] == 1
        )
        corrected = {
            (said[names.ID], int(said[names.GENERATION] or 0))
            for said in (dict(headers) for _, _, headers in there)
            if names.SUPERSEDES in said
        }
        delivered = Counter((one.id, one.generation) for one in closed if one.outcome in _DELIVERED)
        require(units == delivered, f"{tp.partition}: units {units}, and the ledger says {delivered}")
        reported = Counter(
            (outcome.id.encode(), outcome.generation, outcome.outcome, outcome.reason)
            for _, value, headers in there
            if dict(headers).get(names.KIND) == b"outcome"
            for outcome in [codec.decode_as(Outcome, value or b"")]
        )
        due = Counter(
            (one.id, one.generation, one.outcome, one.reason)
            for one in closed
            if policy.outcomes is OutcomesPolicy.ALL
            or (
                policy.outcomes is OutcomesPolicy.EXCEPTIONS
                and (one.outcome is not UnitOutcome.COMPLETE or (one.id, one.generation) in corrected)
            )
        )
        require(reported == due, f"{tp.partition}: outcomes {reported}, and the ledger says {due} (W-214)")

    @staticmethod
    def bound(tp: Tp, said: LedgerRecord, limits: ReplayLimits) -> None:
        """No restore reads more input again than the replay bounds of the worker that wrote the plan allow (W-119)."""
        again = said.to_offset - said.floor
        require(
            again <= (limits.records if limits.allow_replay else 0),
            f"{tp.partition}: a restore would read {again} records again, and {limits} bound it (W-119)",
        )

    def _sent(self, source: str) -> StoredRecord:
        topic, partition, offset = source.rsplit("/", 2)
        return self._broker.log(Tp(topic, int(partition))).everything[int(offset)]

    def _left(
        self, source: str, where: Tp, erased: bytes | None, out: Sequence[tuple[str, bytes | None]] = ()
    ) -> tuple[bytes | None, Headers]:
        """Value and headers that a component must have: as it was sent, or, erased by this command, what that leaves (B-216).

        The headers of another system, of those that came out, stay if its spelling was accepted when it was erased.
        """
        sent = self._sent(source)
        came = sent.headers() or []
        if erased is None:
            return sent.value(), came
        commands = [
            each
            for partition in range(self._broker.settings.partitions)
            for each in self._broker.log(Tp(self._topics.commands, partition)).everything
        ]
        asked = (COMMAND, Verb.ERASE.encode()), (COMMAND_ID, erased)
        require(
            any(all(pair in (each.headers() or []) for pair in asked) for each in commands),
            f"{source} came out in {where} as erased by {erased!r}, which asked for nothing of the kind",
        )
        gone = names.DIGEST, names.ORIGIN_KEY
        known = [pair for pair in came if not _EVERY_SPELLING.is_user_header(pair[0]) and pair[0] not in gone]
        return None, [pair for pair in known if pair[0].startswith(("uow-", "uoo-")) or pair in out]

    def _look_at_error(
        self, where: Tp, key: bytes | None, value: bytes | None, headers: Headers, policy: DestinationPolicy
    ) -> None:
        """A record refused or given up has all of its content (W-37, W-80), unless that fits no record."""
        said = dict(headers)
        source = (said[names.SOURCE] or b"").decode()
        if (
            names.RULE not in said
            and said.get(names.FAILURE_REASON) == b"expired"
            and said[names.ERROR_CASE] != Reason.COMPONENT_EXPIRED.encode()
        ):
            require(
                policy.expiration_policy is ExpirationPolicy.REDIRECT,
                f"{source} expired, and came out in {where} by {policy.expiration_policy} (W-78)",
            )
        if b"fit no record" in (said[names.ERROR_TEXT] or b""):
            return
        sent = self._sent(source)
        content, came = self._left(source, where, said.get(f"{names.ORIGIN}erased"), headers)
        if where.topic == self._topics.errors:
            came = names.as_origin(came)
        require(key == sent.key(), f"{source} came out in {where} with key {key!r}, and was sent with {sent.key()!r}")
        require(headers[: len(came)] == came, f"{source} came out in {where} with {headers}, and was sent with {came}")
        spare = {name for name, _ in headers[len(came) :]} - names.ERROR_ONLY - {names.MISSING, f"{names.ORIGIN}erased"}
        require(not spare, f"{source} came out in {where} with {spare} besides")
        if names.ERROR_VALUE not in said:
            require(value == content, f"{source} came out in {where} with another value")

    def _look_at_unit(self, where: Tp, value: bytes | None, said: Mapping[str, Any]) -> None:
        if names.POS in said:
            source = said[names.SOURCE].decode()
            content, _ = self._left(source, where, said.get(names.OWN + names.ERASED))
            require(value == content, f"{source} came out in {where} with another value")
            self._check_place(where, source)
            return
        for component in codec.decode_as(Unit, value or b"").components:
            self._check_place(where, str(component.source))
            if component.reference is None:
                self._check_component(where, component)

    def _check_place(self, where: Tp, source: str) -> None:
        """A unit goes to the partition number its components came from."""
        _, partition, _ = source.rsplit("/", 2)
        require(int(partition) == where.partition, f"{source} came out in {where}")

    def _check_component(self, where: Tp, component: ComponentRecord) -> None:
        """Key, value, headers and time as they were sent (W-95)."""
        sent, erased = self._sent(str(component.source)), dict(component.headers).get(names.ERASED)
        value, headers = self._left(str(component.source), where, erased, component.headers)
        one = (component.key, component.value, [*component.headers], component.timestamp)
        said = [(names.ERASED, erased)] if erased is not None else []
        other = (sent.key(), value, [*headers, *said], sent.timestamp()[1])
        require(one == other, f"{component.source} came out in {where} as {one}, and was sent as {other}")
