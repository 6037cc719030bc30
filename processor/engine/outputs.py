"""Effects on the wire: records for `D.units`, `D.rejected`, `D.errors`, `D.outcomes`, and reroutes (`docs/wire-format.md`).

Belongs here: topics, partitions, keys, headers and values of outputs. Does not belong here: whether something is put out (`uow.processor.core`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, assert_never

from uow.processor.core.changes import (
    Answered,
    Closed,
    DeadlineWarning,
    Delivered,
    Dropped,
    Passed,
    Rejected,
    Rerouted,
    Tail,
    TakenOut,
    Undelivered,
)
from uow.processor.core.columns import Record, read_headers
from uow.processor.core.decide import DELIVERED
from uow.processor.core.faulty_groups import GroupKey
from uow.processor.core.gathered import NEVER
from uow.processor.core.group import Group
from uow.processor.core.happened import Outward
from uow.processor.core.virtual_message import UnitMaker, target_of
from uow.processor.engine.context import TaskContext
from uow.processor.engine.ports import Headers, Output
from uow.processor.engine.shapes import (
    ReferenceShape,
    UnitWriter,
    unit_writer,
)
from uow.schemas import codec, records
from uow.schemas.component import decode_component, outcome_body
from uow.schemas.error_classes import InternalError, MisroutedComponentError, UnitTooLargeError, UowError
from uow.schemas.records import (
    MAX_SEQ,
    Answer,
    ComponentRecord,
    Range,
    Reason,
    UnitOutcome,
    bounded_ranges,
    ranges_text,
)
from uow.topics import headers as names
from uow.topics.catalogue import DestinationTopics
from uow.topics.commands import (
    COMMAND,
    COMMAND_ID,
    KIND_ANSWER,
    KIND_WARNING,
    USER_VERIFIED,
    BadCommand,
    Command,
    claimed,
    shortened_name,
)
from uow.topics.grouping import GroupPolicy
from uow.topics.headers import Reading, Refusal
from uow.topics.manifests import KIND_NOTICE, cancel_notice, read_manifest, request_id
from uow.topics.output import CancelNotice
from uow.topics.policies import ExpirationPolicy, FieldSource, OutcomesPolicy
from uow.topics.record_size import RecordLimit, record_size

log = logging.getLogger("uow.commands")

_FAILURES = {
    UnitOutcome.EXPIRED: b"expired",
    UnitOutcome.CANCELLED: b"cancelled",
    UnitOutcome.FAILED: b"failed",
}


_MOST_ROW_WRITERS = 10_000
_STAYED = "(left out: a broker refuses the answer with it)"
_SHORT = 200
_WHY_FAILED: dict[type[UowError], str] = {
    UnitTooLargeError: "its unit fits no record",
    InternalError: "the code failed at its unit, which is a defect of uow",
    UowError: "its unit cannot be written",
}


@dataclass(slots=True)
class WrittenOutputs:
    """Records and log lines of the effects of a poll.

    Attributes:
        mixed: How many units have components that are not uniform (W-133).
        refused_late: How many records were to be passed or sent on and are too large for it.
        notices: How many cancel notices were made.
        dropped_notices: How many were not, since their topic refuses them.
        failed: By what the command is remembered by (`Command.known_as`): the error for which its unit failed.
        external: By index in `outputs`: the component whose value is to be read back for it (W-117).
        bare: By index in `outputs`: the source offset of what passes without headers.
        of_faults: By id and generation: the outputs of a group that is closed because the code failed at it.
    """

    outputs: list[Output] = field(default_factory=list)
    log_lines: list[dict[str, Any]] = field(default_factory=list)
    refused_late: int = 0
    mixed: int = 0
    notices: int = 0
    dropped_notices: int = 0
    failed: dict[bytes, type[UowError]] = field(default_factory=dict)
    external: dict[int, ComponentRecord] = field(default_factory=dict)
    bare: dict[int, int] = field(default_factory=dict)
    of_faults: dict[GroupKey, list[Output]] = field(default_factory=dict)


def answer_record(answered: Answered, topics: DestinationTopics, partition: int, framing: bytes) -> Output:
    """The record of `D.outcomes` that answers a command.

    Args:
        answered: The command and its answer.
        topics: Of the destination.
        partition: Of `D.commands`, where it lies, and of `D.outcomes`.
        framing: Header of the value.
    """
    command, done, text, at, offset = answered
    if isinstance(command, Command):
        command_id, verb, group_id = command.id.decode(), command.verb.value, command.group_id.decode()
    else:
        command_id, verb, group_id = command.id, command.verb, command.group_id
    answer = Answer(command_id, verb, group_id, topics.destination, done, text, command.why, command.by, at)
    headers: Headers = [
        (names.ID, group_id.encode()),
        (names.KIND, KIND_ANSWER),
        (COMMAND, verb.encode()),
        (COMMAND_ID, command_id.encode()),
        (names.SOURCE, f"{topics.commands}/{partition}/{offset}".encode()),
    ]
    if command.by is not None:
        headers.append((USER_VERIFIED, b"true" if command.is_verified else b"false"))
    return Output(topics.outcomes, partition, group_id.encode(), framing + codec.encode(answer), headers)


class OutputWriter:
    """Makes the outputs of one partition.

    Args:
        context: Of the destination.
        partition: The partition.
        reading: How headers are read.
    """

    def __init__(self, context: TaskContext, partition: int, reading: Reading) -> None:
        self.context = context
        self.partition = partition
        self.maker = UnitMaker(context.destination, context.topics.components, partition, reading)
        topics = context.topics
        self.components, self.units, self.rejected, self.errors, self.outcomes = (
            topics.components,
            topics.units,
            topics.rejected,
            topics.errors,
            topics.outcomes,
        )
        self._source = f"{topics.components}/{partition}/".encode()
        self._deliver = unit_writer(context, partition, self.maker)
        self._of_rows: dict[str, UnitWriter] = {}
        self._refer = ReferenceShape(context, partition, self.maker)
        self._limit, self._input_limit = RecordLimit(context.record_limit_bytes), RecordLimit(context.input_limit_bytes)
        self._refusals, self._is_given_up = context.targets.refusals, context.targets.is_given_up
        self._reports_complete = context.policy.outcomes is OutcomesPolicy.ALL

    def write(self, outward: Outward, written: WrittenOutputs) -> None:
        """Adds the records of one effect.

        Raises:
            UnitTooLargeForRecordError: Nothing was added.
        """
        effect, record, group = outward
        match effect:
            case Delivered():
                assert group is not None
                self._write_unit(group, effect, written)
            case Undelivered(closed, _, command, decided_at):
                before = len(written.outputs)
                if group is not None:
                    self._give_up(group, effect, written)
                self._outcome(group, closed, written, command, decided_at, effect.detail)
                if effect.fault is not None:
                    written.of_faults[closed.id, closed.generation] = written.outputs[before:]
            case TakenOut(body, lacking, why, outcome, reason):
                missing, text = ranges_text(bounded_ranges(lacking)), f"removed: {why}"
                self._to_errors(decode_component(body), UowError, outcome, reason.value, text, missing, written)
            case DeadlineWarning():
                assert group is not None
                self._warn(group, effect, written)
            case Answered():
                self._answer(effect, written)
            case Rejected(refusal):
                assert record is not None
                self._refuse(record, refusal, written)
            case Passed():
                assert record is not None
                self._pass(record, written)
            case Rerouted(partition):
                assert record is not None
                self._send_on(record, partition, written)
            case Dropped():
                pass
            case _:
                assert_never(effect)

    def _write_unit(self, group: Group, effect: Delivered, written: WrittenOutputs) -> None:
        closed, command, decided_at = effect
        if group.ruled is not None:
            self._row_writer(group.ruled.policy)(group, closed, written.outputs)
        else:  # what was held without values keeps its shape, whatever the setting is by now
            (self._refer if group.external_bytes else self._deliver)(group, closed, written.outputs)
        if not group.is_uniform and self.maker.is_mixed(group):
            written.mixed += 1
        if self._reports_complete or closed.outcome is not UnitOutcome.COMPLETE or group.supersedes:
            self._outcome(group, closed, written, command, decided_at)

    def notify(self, group: Group, closed: Closed, written: WrittenOutputs) -> None:
        """Adds the cancel notices of a group that closes: who was asked and has not replied need not (B-209). Those that their topic refuses are left out: they decide nothing."""
        called = group.ruled.called if group.ruled is not None else None
        if called is None or not called.has_notices:
            return
        requests = read_manifest(called.text).requests
        for number in group.unanswered():
            request = requests[number - 1]
            if request.notice_topic is None:
                continue
            asked = request_id(group.id.decode(), number)
            headers: Headers = [
                (names.KIND, KIND_NOTICE),
                (names.REQUEST_ID, asked.encode()),
                (names.OUTCOME, closed.outcome.encode()),
                (names.REASON, closed.reason.encode()),
            ]
            value = cancel_notice(asked, request, closed.outcome, closed.reason)
            notice = CancelNotice(request.notice_topic, -1, asked.encode(), value, headers)
            if self.context.targets.takes_notices(request.notice_topic):
                written.outputs.append(notice)
                written.notices += 1
            else:
                written.dropped_notices += 1

    def _row_writer(self, row: GroupPolicy) -> UnitWriter:
        """Who writes the units of this row; made once for each row in use."""
        writer = self._of_rows.get(row.rule)
        if writer is None:
            if len(self._of_rows) >= _MOST_ROW_WRITERS:
                self._of_rows.clear()
            writer = self._of_rows[row.rule] = unit_writer(self.context, self.partition, self.maker, row)
        return writer

    def _send_on(self, record: Record, partition: int, written: WrittenOutputs) -> None:
        """To the right partition, once (line 6); with its new header a record at the input's limit would be refused for ever."""
        headers = [*(read_headers(record) or []), (names.REROUTED, b"1")]
        key, value = record.key(), record.value()
        output = Output(self.components, partition, key, value, headers)
        if self._input_limit.fits(key, value, headers) and not self._is_given_up([output]):
            written.outputs.append(output)
            return
        self._refuse(
            record,
            Refusal(MisroutedComponentError, "", f"belongs to partition {partition}, and is too large to be sent on"),
            written,
        )
        written.refused_late += 1

    def _pass(self, record: Record, written: WrittenOutputs) -> None:
        """As it came, but for what only units carry (line 2). What was small enough only while it was compressed is refused."""
        headers = read_headers(record) or []
        if self.context.policy.forms_units:
            headers = names.as_origin(headers)
        output = Output(self.units, self.partition, record.key(), record.value(), headers)
        if self._limit.fits_single(output.key, output.value, output.headers) and not (
            self._refusals and self._is_given_up([output])
        ):
            if not headers and self.context.policy.field_source is FieldSource.HEADERS:  # else it was asked about
                written.bare[len(written.outputs)] = record.offset()
            written.outputs.append(output)
            return
        self._refuse(
            record,
            Refusal(
                UnitTooLargeError,
                "bytes",
                "a plain record that fits no record of the terminal topic, or that a broker refuses",
            ),
            written,
        )
        written.refused_late += 1

    def _refuse(self, record: Record, refusal: Refusal, written: WrittenOutputs) -> None:
        """To `D.rejected`, with everything it came with (W-37)."""
        error = refusal.error(detail=refusal.detail, case=refusal.case, id=refusal.id)
        error.seq = refusal.seq
        why = self._error_headers(refusal.error, refusal.case, error.text, self._source + b"%d" % record.offset())
        self._put(
            Output(self.rejected, -1, record.key(), record.value(), (read_headers(record) or []) + why), why, written
        )

    def _put(
        self, output: Output, why: Headers, written: WrittenOutputs, external: ComponentRecord | None = None
    ) -> None:
        """Adds a record with the reasons for it; of one that fits no record only the reasons are written, and where the rest stayed.

        The value of `external` is read back while the plan is written (W-117).
        """
        value_bytes = 0 if external is None or external.reference is None else external.reference.length
        fits = self._limit.fits_single(output.key, output.value, output.headers, value_bytes)
        if not fits or self._is_given_up([output]):
            size = record_size(output.key, output.value, output.headers) + value_bytes
            why_not = "are refused by a broker" if fits else "fit no record"
            elsewhere = f"; {size} bytes and {len(output.headers)} headers {why_not}: key, value and headers stayed at {names.SOURCE}".encode()
            kept: Headers = [
                (name, raw + elsewhere if name == names.ERROR_TEXT and raw is not None else raw) for name, raw in why
            ]
            output = Output(output.topic, output.partition, None, None, kept)
        elif external is not None:
            written.external[len(written.outputs)] = external
        written.outputs.append(output)

    def _error_headers(self, error: type[UowError], case: str, text: str, source: bytes) -> Headers:
        return [
            (names.ERROR_CLASS, error.__name__.encode()),
            (names.ERROR_CASE, case.encode()),
            (names.ERROR_TEXT, text.encode("utf-8", "backslashreplace")),
            (names.SOURCE, source),
        ]

    def _answer(self, answered: Answered, written: WrittenOutputs) -> None:
        """Every command has its answer, whatever `outcomes` says (W-203)."""
        command = answered.command
        error = written.failed.get(command.known_as) if isinstance(command, Command) else None
        if error is not None and answered.done:  # else it is a repetition in the same plan, which did nothing
            answered = answered._replace(done=error is not InternalError, text=f"fails the group: {_WHY_FAILED[error]}")
        if isinstance(command, BadCommand) and command.refused:
            self._tell_refused(command)
        context = self.context
        output = answer_record(answered, context.topics, self.partition, context.answer_header)
        if self._is_given_up([output]):  # the sender's reason and name can be long
            command = answered.command._replace(why=_STAYED, by=shortened_name(answered.command.by))
            answered = answered._replace(command=command, text=answered.text[:_SHORT])
            output = answer_record(answered, context.topics, self.partition, context.answer_header)
        written.outputs.append(output)

    def _tell_refused(self, command: BadCommand) -> None:
        """Counts a command to which its sender has no right, and logs the first one of each kind."""
        counts = self.context.refused_commands
        counts[command.refused] += 1
        if counts[command.refused] == 1:
            log.warning(
                "%s: a command is refused, %s by %s: %s; further ones are counted in uow_refused_commands_total",
                self.context.destination,
                command.verb,
                claimed(command.by, command.is_verified),
                command.complaint,
            )

    def _warn(self, group: Group, told: DeadlineWarning, written: WrittenOutputs) -> None:
        """To `D.outcomes`, whatever `outcomes` says: who asks for warnings wants them (B-202)."""
        rule = None if group.ruled is None else group.ruled.policy.rule
        warning = records.DeadlineWarning(
            group.id.decode(), self.context.destination, group.generation, group.opened_at, *told, rule
        )
        headers: Headers = [
            (names.ID, group.id),
            (names.KIND, KIND_WARNING),
            (names.GENERATION, b"%d" % group.generation),
            (names.REASON, told.reason.encode()),
            (names.MISSING, ranges_text(bounded_ranges(told.missing)).encode()),
        ]
        value = self.context.warning_header + codec.encode(warning)
        written.outputs.append(Output(self.outcomes, self.partition, group.id, value, headers))

    def _give_up(self, group: Group, effect: Undelivered, written: WrittenOutputs) -> None:
        closed, error, command = effect.closed, effect.error, effect.command
        settings = group.policy(self.context.policy)
        policy = settings.expiration_policy
        if isinstance(settings, GroupPolicy) and (
            len(group.held) < settings.min_count or closed.reason is Reason.MANIFEST
        ):
            policy = ExpirationPolicy.REDIRECT  # (B-50, B-81)
        if closed.outcome is UnitOutcome.EXPIRED and policy is ExpirationPolicy.DISCARD:
            return
        missing = ranges_text(bounded_ranges(group.missing()))
        components = [decode_component(group.held[seq]) for seq in sorted(group.held)]
        if closed.outcome is UnitOutcome.EXPIRED and policy is ExpirationPolicy.LOG:
            written.log_lines += [self._log_line(component, group, closed, missing) for component in components]
            return
        text = f"the group {closed.outcome.value}: {closed.reason.value}"
        case = closed.reason.value
        if effect.fault is not None:
            case, text = effect.fault.case, f"the code failed at the group: {effect.fault.text}"
        elif command is not None:
            text += f": {command.why}"
        if effect.detail:
            text += f": {effect.detail}"
        for component in components:
            self._to_errors(component, error, closed.outcome, case, text, missing, written)

    def _to_errors(
        self,
        component: ComponentRecord,
        error: type[UowError],
        outcome: UnitOutcome,
        case: str,
        text: str,
        missing: str,
        written: WrittenOutputs,
    ) -> None:
        why = self._error_headers(error, case, text, str(component.source).encode())
        why += [(names.FAILURE_REASON, _FAILURES[outcome]), (names.MISSING, missing.encode())]
        headers = [*names.as_origin(component.headers), *why]
        external = component if component.reference is not None else None
        value = component.value if external is None else None
        self._put(Output(self.errors, self.partition, component.key, value, headers), why, written, external)

    def _log_line(self, component: ComponentRecord, group: Group, closed: Closed, missing: str) -> dict[str, Any]:
        wanted = self.context.policy.expiration_log_headers
        return {
            "destination": self.context.destination,
            "id": group.id.decode(),
            "generation": group.generation,
            "seq": component.seq,
            "component_id": component.component_id,
            "source": str(component.source),
            "reason": closed.reason.value,
            "missing": missing,
            "headers": {
                name: None if raw is None else raw.decode("utf-8", "backslashreplace")
                for name, raw in component.headers
                if name in wanted
            },
        }

    def _outcome(
        self,
        group: Group | None,
        closed: Closed,
        written: WrittenOutputs,
        command: Command | None = None,
        decided_at: int = 0,
        detail: str = "",
    ) -> None:
        if self.context.policy.outcomes is OutcomesPolicy.NONE:
            return
        maker = self.maker
        tail = maker.tail(group) if group is not None else Tail(None, closed.before - 1)
        unit_id = maker.unit_id(closed.id, closed.generation, tail)
        missing: tuple[Range, ...] = group.missing() if group is not None else (Range(1, MAX_SEQ),)
        body = outcome_body(
            closed.id,
            unit_id,
            maker.destination,
            closed.generation,
            closed.outcome,
            closed.reason,
            group.opened_at if group is not None else closed.at,
            decided_at or closed.at,
            len(group.held) if group is not None else 0,
            group.bytes if group is not None else 0,
            missing,
            None if command is None else command.id,
            group.last_arrived() if group is not None else None,
            *self._told_by_rule(group, closed),
            (group.supersedes if group is not None else b"") or None,
        )
        headers: Headers = [
            (names.ID, closed.id),
            (names.KIND, b"outcome"),
            (names.UNIT_ID, unit_id),
            (names.OUTCOME, closed.outcome.encode()),
            (names.REASON, closed.reason.encode()),
        ]
        if detail:
            headers.append((names.ERROR_TEXT, detail.encode()))
        written.outputs.append(
            Output(
                self.outcomes,
                self.partition,
                closed.id,
                self.context.outcome_header + body,
                headers,
            )
        )

    def _told_by_rule(
        self, group: Group | None, closed: Closed
    ) -> tuple[bytes | None, int | None, tuple[tuple[bytes, int], ...], bytes | None]:
        """Of a group by rule: its row, its deadline, the components of each source, and the target."""
        if group is None or group.ruled is None:
            return None, None, (), None
        policy = group.ruled.policy
        give_up_at = group.give_up_at(policy)
        target = target_of(group, self.units)[0].encode() if closed.outcome in DELIVERED else None
        sources = tuple([(each.name.encode(), each.components) for each in group.ruled.gathered.sources])
        return policy.rule.encode(), None if give_up_at >= NEVER else give_up_at - 1, sources, target


def too_large(closed: Closed) -> Closed:
    """The close of a unit that turned out to be over the record limit."""
    return closed._replace(outcome=UnitOutcome.FAILED, reason=Reason.LIMIT, prints=b"")


__all__ = [
    "OutputWriter",
    "Record",
    "WrittenOutputs",
    "too_large",
]
