"""Records at which the code itself fails: how many are set aside before their partition blocks, and what the log says of them; and commands to set one aside. No I/O but the log.

A bug that one record meets concerns that record alone: it goes to `D.rejected` as `InternalError`, and its partition goes on. A bug that every
record meets must not empty an input into `D.rejected`: so a partition sets so many aside within a minute, and blocks at the next one.

An operator who knows that a partition can go on without the record at which it is blocked says so by a command (`set-aside`). It names the record, so it
does nothing to any other one, whenever and by whichever worker it is read. It is heard before those that came before it, which wait until
the partition goes on.

Belongs here: that limit, telling each kind of failure with its lines of code once, and those commands. Does not belong here: writing the records
(`uow.processor.rules.routing`), blocking (`uow.processor.engine.owned_partitions`, `uow.processor.kafka.router`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from traceback import extract_tb, format_tb
from typing import Final, NamedTuple, TypeVar

from uow.processor.core.columns import read_headers
from uow.processor.core.faulty_groups import GroupKey
from uow.processor.core.group import Group
from uow.processor.engine.ports import Blocked, RawRecord, Tp
from uow.schemas.error_classes import ConfigError, InternalError, StateCorruptedError, UowError
from uow.topics.commands import BY_HAND, COMMAND, Asked, AskedInVain, Command, CommandReader, RecordPlace, Verb, claimed
from uow.topics.headers import ID, RULE, SOURCE

log = logging.getLogger("uow.set_aside")

_T = TypeVar("_T")

PER_MINUTE: Final = 10
"""Default of `worker.set_aside_per_minute`."""
_MINUTE_MS: Final = 60_000


def fault_of(cause: Blocked) -> BaseException | None:
    """The exception that nobody foresaw, behind the cause of a partition that cannot go on; None where the cause is a state of things that somebody repairs."""
    error = cause.__cause__
    return None if isinstance(error, _FORESEEN) else error


def with_reason(cause: Blocked, why: str) -> Blocked:
    """The same cause, with more to tell."""
    told = Blocked(f"{cause}{why}")
    told.__cause__ = cause.__cause__
    return told


_FORESEEN: Final = (Blocked, ConfigError, StateCorruptedError)


class SetAsideLimit:
    """Says whether one more record may be set aside. Times are monotonic milliseconds.

    Args:
        per_minute: Most records of a partition within a minute; 0: none, the partition blocks at the first.
    """

    def __init__(self, per_minute: int = PER_MINUTE) -> None:
        self.per_minute = per_minute
        self._moments: dict[Tp, dict[int | GroupKey, int]] = {}
        self._told: set[tuple[str, str, int]] = set()

    def take(self, tp: Tp, one: int | GroupKey, error: BaseException, now_ms: int) -> str:
        """Counts a record (by its offset), or a group, at which the code failed, once however often it comes, and tells of it.

        Returns why its partition must block; empty if it is set aside.
        """
        moments = self._last_minute(tp, now_ms)
        if one in moments:  # it comes again, since what it was planned in was not written
            return ""
        is_full = len(moments) >= self.per_minute
        self._tell(tp, one, error, "its partition blocks" if is_full else "it is set aside")
        if is_full:
            return (
                f"the code fails at {named(one)} ({type(error).__name__}), and set_aside_per_minute = "
                f"{self.per_minute} records and groups were set aside within a minute"
            )
        moments[one] = now_ms
        return ""

    def take_refused(self, tp: Tp, offset: int, now_ms: int) -> str:
        """The same for a command of which a broker refuses what it asks for: each costs a producer, and a restore of every partition. One may be, in any case: no code is at fault."""
        moments = self._last_minute(tp, now_ms)
        if offset not in moments and len(moments) >= max(1, self.per_minute):
            return f"set_aside_per_minute = {self.per_minute} commands were refused within a minute"
        moments.setdefault(offset, now_ms)
        return ""

    def _last_minute(self, tp: Tp, now_ms: int) -> dict[int | GroupKey, int]:
        moments = self._moments.setdefault(tp, {})
        while moments and moments[first := next(iter(moments))] <= now_ms - _MINUTE_MS:
            del moments[first]
        return moments

    def forget(self, tp: Tp) -> None:
        """It was taken away."""
        self._moments.pop(tp, None)

    def _tell(self, tp: Tp, one: int | GroupKey, error: BaseException, so: str) -> None:
        last = extract_tb(error.__traceback__, -1)
        kind = (type(error).__name__, *((last[0].filename, last[0].lineno or 0) if last else ("", 0)))
        is_new = kind not in self._told
        self._told.add(kind)
        log.error(
            "%s/%d%s, so %s. It is a defect of uow%s",
            *tp,
            f"/{one}: the code failed at this record" if isinstance(one, int) else f": the code failed at {named(one)}",
            f"{so}: {type(error).__name__}",
            f": please report it with what follows\n{frames(error)}" if is_new else ", told before",
        )


def named(one: int | GroupKey) -> str:
    """A record, by its offset, or a group, for people."""
    if isinstance(one, int):
        return f"offset {one}"
    return f"group {one[0].decode(errors='replace')!r} (generation {one[1]})"


def frames(error: BaseException | None) -> str:
    """Where an exception comes from: lines of code and classes of it and of its causes, and no message: that may have values of the record in it."""
    found: list[str] = []
    for _ in range(_CAUSES):
        if error is None:
            break
        found = [*format_tb(error.__traceback__, -_FRAMES), f"{type(error).__name__}\n", *found]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "".join(found).rstrip()


_FRAMES: Final = 30
"""Most lines of code that are told of an exception; the last ones."""
_CAUSES: Final = 5


# -- by a command


class Aside(NamedTuple):
    """A record, or a command, that is refused at the next try, without a look at it.

    Attributes:
        offset: Its offset.
        why: The refusal.
        asked: The command that asked for it; None: the code failed at it.
        is_of_command: True if it is a command.
    """

    offset: int
    why: UowError
    asked: Asked | None = None
    is_of_command: bool = False


class AskedAsides:
    """The commands to set a record aside that were read and not answered yet, by partition of `D.components`."""

    def __init__(self) -> None:
        self._asked: dict[Tp, dict[int, tuple[RecordPlace, Asked]]] = {}
        self._in_vain: dict[Tp, dict[int, AskedInVain]] = {}

    def __bool__(self) -> bool:
        return bool(self._asked or self._in_vain)

    def take(
        self,
        tp: Tp,
        commands: Sequence[RawRecord],
        reader: CommandReader,
        is_answered: Callable[[Asked | AskedInVain], bool],
    ) -> set[int]:
        """Notes those among some records of the partition of `D.commands`; they may come again, also answered ones. Returns the offsets that new ones name."""
        named = set()
        for record in commands:
            asked = asked_aside(record, reader)
            if asked is None or asked[0][:2] != tp or is_answered(asked[1]):
                continue
            place, command = asked
            if isinstance(command, AskedInVain):
                self._in_vain.setdefault(tp, {})[command.offset] = command
                continue
            known = self._asked.setdefault(tp, {})
            if record.offset() not in known:
                known[record.offset()] = place, command
                named.add(place.offset)
        return named

    def of(self, tp: Tp, offset: int) -> Asked | None:
        """The first command about the record at this offset."""
        return next((asked for place, asked in self._of(tp) if place.offset == offset), None)

    def others(self, tp: Tp, offset: int) -> list[Asked]:
        """The commands about other records."""
        return [asked for place, asked in self._of(tp) if place.offset != offset]

    def in_vain(self, tp: Tp) -> list[AskedInVain]:
        """Those whose senders have no right to them, about whichever record."""
        return [*self._in_vain.get(tp, {}).values()]

    def _of(self, tp: Tp) -> list[tuple[RecordPlace, Asked]]:
        return [*self._asked.get(tp, {}).values()]

    def answered(self, tp: Tp, asked: Sequence[Asked | AskedInVain]) -> None:
        """These have their answers."""
        for each in asked:
            for known in (self._asked, self._in_vain):
                known.get(tp, {}).pop(each.offset, None)

    def passed(self, tp: Tp, command_position: int) -> None:
        """So far commands are decided."""
        _pass(self._asked, tp, command_position)
        _pass(self._in_vain, tp, command_position)

    def forget(self, tp: Tp) -> None:
        """It was taken away."""
        self._asked.pop(tp, None)
        self._in_vain.pop(tp, None)


def _pass(known: dict[Tp, dict[int, _T]], tp: Tp, position: int) -> None:
    if tp in known:
        known[tp] = {offset: each for offset, each in known[tp].items() if offset >= position}
        if not known[tp]:
            del known[tp]


def asked_aside(record: RawRecord, reader: CommandReader) -> tuple[RecordPlace, Asked | AskedInVain] | None:
    """The command to set a record aside in a record of `D.commands`, and the place of the one it names; None if it is no such command."""
    headers = read_headers(record) or []
    if (COMMAND, Verb.SET_ASIDE.encode()) not in headers:
        return None
    command = reader.read(headers, record)
    at, offset = record.timestamp()[1], record.offset()
    if isinstance(command, Command):
        place = RecordPlace.parse(command.source)
        return None if place is None else (place, Asked(command, at, offset))
    place = RecordPlace.parse((dict(headers).get(SOURCE) or b"").decode("utf-8", "replace"))
    return None if place is None or not command.refused else (place, AskedInVain(command, at, offset))


def is_by_hand(record: RawRecord) -> bool:
    """True of a command that only people send: they read the answer. One of a program (a manifest, a failure, a version) must not be passed over."""
    headers = read_headers(record) or []
    return any((COMMAND, verb.encode()) in headers for verb in (*BY_HAND, Verb.SET_ASIDE))


def asks_of(record: RawRecord, group: Group) -> bool:
    """True if a command is one by hand about this group, or about the groups of its rule."""
    headers = read_headers(record) or []
    of_rule = group.ruled is not None and (RULE, group.ruled.policy.rule_id.encode()) in headers
    return is_by_hand(record) and (of_rule or (ID, group.id) in headers)


def by_command(asked: Asked, fault: BaseException | None, cause: str) -> UowError:
    """The refusal of a record that a command sets aside.

    Args:
        asked: The command.
        fault: What the code raised at the record; None if it is blocked for another reason.
        cause: Why it is blocked, for people.
    """
    name, why, command_id = (
        claimed(asked.command.by, asked.command.is_verified),
        asked.command.why,
        asked.command.id.decode(),
    )
    text = f"set aside by {name}: {why} (command {command_id}); it was blocked: {cause}"
    return UowError(text, case="command") if fault is None else InternalError(text, case=type(fault).__name__)


def advice(destination: str, place: RecordPlace) -> str:
    """How an operator lets a blocked partition go on."""
    return f"to go on without this record: uow set-aside {destination} {place} --why ..."
