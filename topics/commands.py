"""Control records of `D.commands` (`docs/wire-format.md#commands`): what their headers say, read and written. Pure.

Belongs here: verbs, header names, reading and refusing. Does not belong here: effects of commands (`uow.processor.core.command`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, Self

from uow.schemas.error_classes import DecodeError
from uow.schemas.records import (
    MAX_SEQ,
    Answer,
    Range,
    parse_ranges,
    ranges_text,
)
from uow.topics.command_keys import MAX_NAME_CHARS, SIGNED_AT, CommandRights, is_moment
from uow.topics.headers import (
    ENDS,
    GENERATION,
    ID,
    MAX_ID_BYTES,
    MAX_RULE_BYTES,
    SEQ,
    SOURCE,
    USER_ID,
    decimal,
    is_text,
)
from uow.topics.manifests import Manifest, read_manifest
from uow.topics.policies import DestinationPolicy
from uow.topics.rules import RuleName

COMMAND: Final = "uow-command"
COMMAND_ID: Final = "uow-command-id"
RULE: Final = "uow-rule"
UNTIL: Final = "uow-until"
WHY: Final = "uow-why"
DRY_RUN: Final = "uow-dry-run"
USER_VERIFIED: Final = "uow-user-verified"
"""Of an answer whose command has a name: `true` if a signature proves it. Else `false`, since no broker tells a reader who wrote a record."""
KIND_ANSWER: Final = b"answer"
KIND_WARNING: Final = b"warning"

DRY_RUN_WOULD: Final = "dry run, nothing is changed: "
"""Prefix of the answer to a dry run that would have changed something."""
MAX_WHY_BYTES: Final = 4_096
"""Longest `uow-why` and `uow-user-id`: both are part of every answer, and the reason of each component given up."""
_LAST_MOMENT: Final = 253_402_300_799_999
"""The year 9999, the largest timestamp that a table can hold."""

Headers = list[tuple[str, bytes | None]]


class Verb(StrEnum):
    """Verbs of commands (W-203)."""

    RELEASE = "release"
    CANCEL = "cancel"
    EXPIRE = "expire"
    EXTEND = "extend"
    DECLARE_END = "declare-end"
    WAIVE = "waive"
    REMOVE = "remove"
    ERASE = "erase"
    RECYCLE = "recycle"
    MANIFEST = "manifest"
    RULE_CHANGE = "rule-change"
    FAIL = "fail"
    SET_ASIDE = "set-aside"


BY_HAND: Final = tuple(
    verb for verb in Verb if verb not in (Verb.MANIFEST, Verb.RECYCLE, Verb.RULE_CHANGE, Verb.FAIL, Verb.SET_ASIDE)
)
"""Verbs that repair an open group."""
_OF_NO_GROUP: Final = frozenset({Verb.RULE_CHANGE, Verb.SET_ASIDE})
_OF_A_RECORD: Final = frozenset({Verb.RECYCLE, Verb.SET_ASIDE})


class Command(NamedTuple):
    """A command that was read.

    Attributes:
        id: `uow-command-id`, which makes a repeated command harmless.
        verb: Its verb.
        group_id: The id of the group it is about.
        why: The sender's reason.
        by: `uow-user-id`, or None.
        numbers: `uow-seq`: the end to declare, the numbers to waive, or the one to remove or to erase.
        until: `uow-until`, epoch ms; 0 where the verb needs none.
        dry_run: True to change nothing and only describe the effect.
        rule: Id of the rule whose waiting groups it is about, instead of one group (B-104); the group id is empty then. Of a manifest the name of
            the row (`uow-rule`) that the group is of unless a reply has opened it, of a
            `rule-change` that of the row which open groups take (B-13).
        source: Of a `recycle`: the coordinates of the component in `D.components`, `topic/partition/offset`. Of a `set-aside`: those of the
            record at which a partition is blocked, of `D.components` or of a router's input.
        generation: Of the group, where no other one of the id is meant; 0: whichever is open.
        manifest: Of a manifest what its value says (B-78).
        is_verified: True if a signature proves that `by` sent it (`uow.topics.command_keys`).
        nameless_before: Of a verified one: one that was appended before this moment may be the same, and is remembered by its id alone.
        is_anonymous: True if signatures are asked for, this verb needs none, and none proves who sent it.
        signed_at: `uow-signed-at`, which only the signature proves; empty: it has none.
    """

    id: bytes
    verb: Verb
    group_id: bytes
    why: str
    by: str | None = None
    numbers: tuple[Range, ...] = ()
    until: int = 0
    dry_run: bool = False
    rule: str = ""
    generation: int = 0
    source: str = ""
    manifest: Manifest | None = None
    is_verified: bool = False
    nameless_before: int = 0
    is_anonymous: bool = False
    signed_at: bytes = b""

    @property
    def known_as(self) -> bytes:
        """The bytes by which it is remembered."""
        return known_as(self.id, self.by if self.is_verified else None)


def known_as(command_id: bytes, signer: str | None) -> bytes:
    """The bytes by which a command is remembered: its id, and of a signed one its key's name before it. Ids may be guessed: nobody can use up the id of another's command.

    Args:
        command_id: `uow-command-id`.
        signer: Name of the key; None: it is not signed. Neither it nor an id can have a byte `FF`, since both are UTF-8.
    """
    return command_id if signer is None else b"\xff%s\xff%s" % (signer.encode(), command_id)


_DEFECT: Final = "the code failed at it, which is a defect of uow"
_REFUSED: Final = "a record that it leads to is refused"


def refused_as(known: bytes, signed_at: bytes) -> bytes:
    """The bytes by which a command is remembered that was answered as failed and changed nothing: a copy does nothing either, and an audit does not carry it out. Signed newly under the same id it is obeyed."""
    return b"%s\xff%s" % (known, signed_at)


def signer_of(known: bytes) -> bytes:
    """The name of the key in what a command is remembered by (`known_as`); empty: it is not signed."""
    parts = known.split(b"\xff", 2)
    return parts[1] if len(parts) == 3 else b""


def is_verified(said: Mapping[str, bytes | None]) -> bool:
    """True if the headers of an answer say that a signature proves the name in it."""
    return said.get(USER_VERIFIED) == b"true"


def is_answer_to(answer: Answer, command: Command, signer: str | None) -> bool:
    """True if an answer is one to this command. Ids can be guessed, so somebody may have sent another command under the same one.

    A worker does no command under the name of a key that did not sign it, unless its verb needs no signature.

    Args:
        answer: The answer.
        command: The command.
        signer: Name of the key that signed it; None: none did.
    """
    said = answer.command_id, answer.verb, answer.id
    if said != (_shown(command.id), command.verb.value, _shown(command.group_id)):
        return False
    sent = command.by if signer is None else signer
    # a worker shortens a name that is too long for a command, or for its answer
    return answer.by in (sent, shortened_name(sent), sent and _shown(sent.encode()))


def failed_text(why: str, *, is_defect: bool) -> str:
    """The text of the answer to a command at which the code failed, or else of which a broker refuses what it asks for."""
    return f"{_DEFECT if is_defect else _REFUSED}, so nothing is changed: {why}"


def has_failed(answer: Answer) -> bool:
    """True if that is the answer: the command might have been done, and was not."""
    return not answer.done and answer.text.startswith((_DEFECT, _REFUSED))


def shortened_name(name: str | None) -> str | None:
    """The name in an answer that a broker refuses for its length: that of a key is always whole."""
    return name and name[:MAX_NAME_CHARS]


def claimed(name: str | None, is_verified: bool = False) -> str:
    """The name in a command, for people: unless a signature proves it, it is what the sender said, and whoever may write the topic may have said it."""
    return "no name" if name is None else name if is_verified else f"{name} (unverified)"


class RecordPlace(NamedTuple):
    """Coordinates of a record."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The place that a text names, `topic/partition/offset`; None if it names none."""
        found = _PLACE.fullmatch(text)
        return None if found is None else cls(found[1], int(found[2]), int(found[3]))

    @property
    def key(self) -> bytes:
        """Key of the command that sets it aside, where it is of a router's input: that it is found again without reading all commands."""
        return f"{self.topic}/{self.partition}".encode()


_PLACE: Final = re.compile(r"([A-Za-z0-9._-]{1,249})/([0-9]{1,9})/([0-9]{1,18})", re.ASCII)


class BadCommand(NamedTuple):
    """A record of `D.commands` that is not a valid command, or whose sender has no right to it: its readable fields, as texts, and the error.

    Attributes:
        refused: Why its sender has no right to it, as `uow.topics.command_keys.Refused`; empty: it cannot be read.
        is_verified: As of a command.
    """

    id: str
    verb: str
    group_id: str
    why: str
    by: str | None
    complaint: str
    refused: str = ""
    is_verified: bool = False

    @property
    def answer(self) -> str:
        """The text of its answer."""
        return f"{'refused' if self.refused else 'cannot be read'}: {self.complaint}"


class Asked(NamedTuple):
    """A command to set a record aside that was read before it was its turn: the partition is blocked.

    Attributes:
        command: The command.
        at: Its append time, epoch ms.
        offset: Its offset in `D.commands`.
    """

    command: Command
    at: int
    offset: int


class AskedInVain(NamedTuple):
    """The same of a sender who has no right to it."""

    command: BadCommand
    at: int
    offset: int


class _Bad(Exception):
    """A value that cannot be read; the message says why."""


def command_headers(command: Command) -> Headers:
    """The headers of a command's record; its key is the group id, its value that of `command_value`."""
    headers: Headers = [(COMMAND, command.verb.encode()), (COMMAND_ID, command.id)]
    headers += [(ID, command.group_id)] if command.group_id else []
    headers += [(RULE, command.rule.encode())] if command.rule else []
    headers.append((WHY, command.why.encode()))
    if command.by is not None:
        headers.append((USER_ID, command.by.encode()))
    if command.numbers:
        headers.append((SEQ, ranges_text(command.numbers).encode()))
    if command.until:
        headers.append((UNTIL, b"%d" % command.until))
    if command.source:
        headers.append((SOURCE, command.source.encode()))
    if command.generation:
        headers.append((GENERATION, b"%d" % command.generation))
    if command.dry_run:
        headers.append((DRY_RUN, b"true"))
    return headers


def command_value(command: Command) -> bytes | None:
    """The value of a command's record: only a manifest has one."""
    return None if command.manifest is None else command.manifest.encode()


def read_command(headers: Sequence[tuple[str, bytes | None]], value: bytes | None = None) -> Command | BadCommand:
    """The command in a record's headers, and, of a manifest, in its value. A header that repeats with different values, or is not UTF-8, is refused."""
    values: dict[str, list[bytes]] = {}
    for name, raw in headers:
        values.setdefault(name, []).append(raw or b"")
    try:
        return _read(values, value)
    except _Bad as bad:
        return _bad_command(values, str(bad))


class CommandRecord(Protocol):
    """The parts of a record of `D.commands`."""

    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def timestamp(self) -> tuple[int, int]: ...


class CommandReader:
    """Reads the commands of one destination, and refuses those to which their senders have no right. Everything that decides commands asks it.

    Args:
        destination: Name of the destination.
        policy: Its settings.
    """

    def __init__(self, destination: str, policy: DestinationPolicy) -> None:
        self._rights = CommandRights(
            destination, policy.command_keys, policy.unsigned_commands, policy.command_window_ms
        )

    def read(self, headers: Sequence[tuple[str, bytes | None]], record: CommandRecord) -> Command | BadCommand:
        """The command in a record, of which the headers could be read."""
        command, (kind, at) = read_command(headers, record.value()), record.timestamp()
        if not self._rights.are_asked(kind, at):
            return command
        found = self._rights.judge(command.verb, record.key(), record.value(), headers, at)
        is_verified = found.is_verified
        if isinstance(command, BadCommand):
            return command._replace(is_verified=is_verified)
        if found.refused is None:
            before = found.nameless_before
            return command._replace(is_verified=is_verified, nameless_before=before, is_anonymous=not is_verified)
        bad = failed_command(headers, found.text)
        return bad._replace(refused=found.refused.value, is_verified=is_verified)


def failed_command(headers: Sequence[tuple[str, bytes | None]], complaint: str) -> BadCommand:
    """As much of a command as its headers tell by themselves, where the code failed at it."""
    return _bad_command({name: [raw or b""] for name, raw in reversed(headers)}, complaint)


def _bad_command(values: dict[str, list[bytes]], complaint: str) -> BadCommand:
    told = {name: _shown(values[name][0]) for name in (COMMAND_ID, COMMAND, ID, WHY, USER_ID) if name in values}
    return BadCommand(
        told.get(COMMAND_ID, ""),
        told.get(COMMAND, ""),
        told.get(ID, ""),
        told.get(WHY, ""),
        told.get(USER_ID),
        complaint,
    )


def _read(values: dict[str, list[bytes]], value: bytes | None) -> Command:
    command_id = _text(values, COMMAND_ID, MAX_ID_BYTES)
    said = _text(values, COMMAND, MAX_ID_BYTES).decode()
    try:
        verb = Verb(said)
    except ValueError:
        raise _Bad(f"{COMMAND} {said!r} is none of {', '.join(Verb)}") from None
    is_manifest = verb is Verb.MANIFEST
    rule = _text(values, RULE, MAX_RULE_BYTES).decode() if RULE in values or is_manifest else ""
    if rule and verb not in (Verb.RELEASE, Verb.RULE_CHANGE) and not is_manifest:
        raise _Bad(f"{RULE}: {verb} is no command for a whole rule; name the group by {ID}")
    if verb is Verb.RULE_CHANGE:
        try:
            RuleName.parse(rule)
        except DecodeError as error:
            raise _Bad(str(error)) from error
    is_of_group = is_manifest or not (rule or verb in _OF_NO_GROUP)
    group_id = _text(values, ID, MAX_ID_BYTES) if is_of_group else b""
    why = _text(values, WHY, MAX_WHY_BYTES).decode()
    by = _text(values, USER_ID, MAX_WHY_BYTES).decode() if USER_ID in values else None
    numbers = _numbers(verb, _text(values, SEQ, MAX_WHY_BYTES)) if verb in _NEEDS_NUMBERS else ()
    until = _moment(_text(values, UNTIL, MAX_ID_BYTES)) if verb is Verb.EXTEND else 0
    dry_run = ENDS.get(_text(values, DRY_RUN, MAX_ID_BYTES).lower()) if DRY_RUN in values else False
    if dry_run is None:
        raise _Bad(f"{DRY_RUN} is neither true nor false")
    generation = _generation(_text(values, GENERATION, MAX_ID_BYTES)) if GENERATION in values else 0
    source = _text(values, SOURCE, MAX_WHY_BYTES).decode() if verb in _OF_A_RECORD else ""
    if verb is Verb.SET_ASIDE and RecordPlace.parse(source) is None:
        raise _Bad(f"{SOURCE} {_shown(source.encode())!r} is no place of a record: topic/partition/offset")
    if verb is Verb.SET_ASIDE and dry_run:
        raise _Bad(f"{DRY_RUN}: {verb} cannot be tried")
    manifest = _manifest(value) if is_manifest else None
    command = Command(command_id, verb, group_id, why, by, numbers, until, dry_run, rule, generation, source, manifest)
    signed_at = values.get(SIGNED_AT, [b""])[0]
    return command._replace(signed_at=signed_at) if is_moment(signed_at) else command


def _manifest(value: bytes | None) -> Manifest:
    try:
        return read_manifest(value)
    except DecodeError as error:
        raise _Bad(f"manifest: {error.detail}") from None


_NEEDS_NUMBERS: Final = frozenset({Verb.DECLARE_END, Verb.WAIVE, Verb.REMOVE, Verb.ERASE})


def _text(values: dict[str, list[bytes]], name: str, longest: int) -> bytes:
    raws = values.get(name, [b""])
    if not raws[0]:
        raise _Bad(f"{name} is missing or empty")
    if len(set(raws)) > 1:
        raise _Bad(f"{name} is repeated with different values")
    if len(raws[0]) > longest:
        raise _Bad(f"{name} is longer than {longest} bytes")
    if not is_text(raws[0]):
        raise _Bad(f"{name} is no UTF-8")
    return raws[0]


def _numbers(verb: Verb, raw: bytes) -> tuple[Range, ...]:
    """`uow-seq` of a command: one number for `declare-end`, `remove` and `erase`, numbers and ranges (`3,5-7`) for `waive`."""
    try:
        ranges = parse_ranges(raw.decode())
    except DecodeError as error:
        raise _Bad(f"{SEQ}: {error}") from error
    if verb is not Verb.WAIVE and (len(ranges) > 1 or ranges[0].first != ranges[0].last):
        raise _Bad(f"{SEQ}: {verb} takes one number")
    if ranges[-1].last == MAX_SEQ and ranges[-1].first != MAX_SEQ:
        raise _Bad(f"{SEQ}: an open end cannot be waived; `{Verb.DECLARE_END}` says where the unit ends")
    return ranges


def _moment(raw: bytes) -> int:
    moment = decimal(raw)
    if not moment or moment > _LAST_MOMENT:
        raise _Bad(f"{UNTIL} {_shown(raw)!r} is no time in epoch milliseconds")
    return moment


def _generation(raw: bytes) -> int:
    generation = decimal(raw)
    if not generation or generation > MAX_SEQ:
        raise _Bad(f"{GENERATION} {_shown(raw)!r} is no generation: 1 to {MAX_SEQ}")
    return generation


def _shown(raw: bytes) -> str:
    text = raw.decode("utf-8", "backslashreplace")
    return text if len(text) <= MAX_WHY_BYTES else f"{text[:MAX_WHY_BYTES]}..."
