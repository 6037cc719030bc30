"""`uow release|cancel|expire|extend|declare-end|waive|remove D ID --why TEXT`: commands to the workers, answered with what they did.

Belongs here: the verbs as commands, and which groups are meant (W-76, W-203). Does not belong here: sending and waiting (`uow.repair`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from getpass import getuser
from hashlib import sha256
from typing import Any
from uuid import uuid4

import click

from schemas.errors import DecodeError
from schemas.records import MAX_SEQ, Answer, Range, parse_ranges
from topics.commands import DRY_RUN_WOULD, Command, Verb
from topics.headers import MAX_ID_BYTES
from uow.cli import FAILED
from uow.config import Settings
from uow.inspect import open_groups
from uow.logs import log_reader, task_context
from uow.options import Moment, Span, config_option, json_option
from uow.printing import Progress, print_json_line, printable, say, wall_clock_ms
from uow.repair import UnansweredError, desk

TEXTS = {
    Verb.RELEASE: "Deliver now what the group holds; `partial` if numbers are missing.",
    Verb.CANCEL: "Close the group as `cancelled`; its components go to the errors topic.",
    Verb.EXPIRE: "Close the group now, by the destination's `expiration_policy`.",
    Verb.EXTEND: "Move the group's age or idle deadline later. A component's own expiry stays where it is.",
    Verb.DECLARE_END: "Say which number is the group's last; what is held may be complete by it.",
    Verb.WAIVE: "Say which numbers the group does not need; the unit is then `partial`.",
    Verb.REMOVE: "Take one component out of the group, to the errors topic; its number may be sent again.",
}
_REST = """

    A worker of DESTINATION decides and answers. Exit 0 when it is done (or would be, with --dry-run), else 1."""
_MANY = """ Several IDs, or a
    filter in place of them, make a command for each group; those that open after the filter was asked for are left alone.
"""
Decorator = Callable[[Any], Any]


def _numbers(ctx: click.Context, param: click.Parameter, value: str) -> tuple[Range, ...]:
    try:
        ranges = parse_ranges(value)
    except DecodeError:
        ranges = ()
    if not ranges or (ranges[-1].last == MAX_SEQ and ranges[-1].first != MAX_SEQ):
        raise click.BadParameter(f"{value!r}: numbers and ranges that rise, such as 3,5-7")
    return ranges


def _end(ctx: click.Context, param: click.Parameter, value: int) -> tuple[Range, ...]:
    return (Range(value, value),)


def _one(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    return (value,)


_SAYS: dict[Verb, Decorator] = {
    Verb.EXTEND: click.option(
        "--until", type=Moment(), required=True, metavar="MOMENT", help="The new deadline: ISO 8601, epoch ms, or +2h."
    ),
    Verb.DECLARE_END: click.option(
        "--seq", "numbers", type=click.IntRange(1, MAX_SEQ), callback=_end, required=True, help="The last number."
    ),
    Verb.WAIVE: click.option(
        "--seq", "numbers", callback=_numbers, required=True, metavar="NUMBERS", help="Numbers not needed: 3,5-7."
    ),
    Verb.REMOVE: click.argument("numbers", metavar="SEQ", type=click.IntRange(1, MAX_SEQ), callback=_end),
}
_WHICH_ONE: tuple[Decorator, ...] = (click.argument("ids", metavar="ID", callback=_one),)
_WHICH: tuple[Decorator, ...] = (
    click.argument("ids", nargs=-1, metavar="[ID]..."),
    click.option("--match", metavar="PATTERN", help="Every open group whose id matches: `order-*`."),
    click.option("--older-than", type=Span(), metavar="SPAN", help="Every open group (that matches) of this age: 2h."),
    click.option("--before", type=Moment(), metavar="MOMENT", help="Every open group (that matches) opened before."),
    click.option("--all", "everything", is_flag=True, help="Every open group."),
)
_HOW: tuple[Decorator, ...] = (
    click.option("--why", required=True, metavar="TEXT", help="The reason; it stays in the audit trail."),
    click.option("--dry-run", is_flag=True, help="Only say what it would do."),
    click.option("--by", default=getuser, metavar="NAME", help="Who asks for it.  [default: the user]"),
    click.option("--command-id", metavar="ID", help="Of a command sent before: it is not done twice."),
    click.option(
        "--timeout", type=Span(), default="30s", show_default=True, metavar="SPAN", help="Wait for the next answer."
    ),
    config_option,
    json_option,
    click.pass_context,
)


def _command(verb: Verb) -> click.Command:
    def run(
        ctx: click.Context,
        destination: str,
        ids: tuple[str, ...],
        why: str,
        dry_run: bool,
        by: str,
        command_id: str | None,
        timeout: int,
        settings: Settings,
        as_json: bool,
        match: str | None = None,
        older_than: int | None = None,
        before: int | None = None,
        everything: bool = False,
        numbers: tuple[Range, ...] = (),
        until: int = 0,
    ) -> None:
        if bool(ids) == (everything or any(each is not None for each in (match, older_than, before))):
            raise click.UsageError("name either IDs, or --all, or some of --match, --older-than and --before")
        if ids:
            if any(not 1 <= len(each.encode("utf-8", "surrogateescape")) <= MAX_ID_BYTES for each in ids):
                raise click.UsageError(f"an ID has 1 to {MAX_ID_BYTES} bytes")
            chosen: Sequence[str] = list(dict.fromkeys(ids))
        else:
            oldest = [wall_clock_ms(), *([before] if before is not None else [])]
            chosen = _matching(settings, destination, match or "*", min(oldest) - (older_than or 0))
        if not chosen:
            say(f"uow: no open group of {destination} matches")
            return
        base = command_id or str(uuid4())
        commands = [
            Command(_command_id(base, each, alone=len(ids) == 1), verb, each.encode(), why, by, numbers, until, dry_run)
            for each in chosen
        ]
        _ask(ctx, settings, destination, commands, base, timeout / 1000, as_json)

    run.__doc__ = TEXTS[verb] + _REST + ("\n" if verb is Verb.REMOVE else _MANY)
    shared = (*(_WHICH_ONE if verb is Verb.REMOVE else _WHICH), *([_SAYS[verb]] if verb in _SAYS else ()), *_HOW)
    for decorate in reversed((click.argument("destination"), *shared)):
        run = decorate(run)
    return click.command(verb.value)(run)


def _command_id(base: str, group_id: str, *, alone: bool) -> bytes:
    """One for each group, the same ones again when the same is asked for under the same base."""
    if alone:
        return base.encode()
    whole = f"{base}:{group_id}".encode()
    return whole if len(whole) <= MAX_ID_BYTES else f"{base}:{sha256(group_id.encode()).hexdigest()}".encode()


def _matching(settings: Settings, destination: str, pattern: str, before_ms: int) -> list[str]:
    with log_reader(settings) as reader:
        groups = open_groups(reader, task_context(settings, destination))
    return [each.id for each in groups if each.opened_at <= before_ms and fnmatchcase(each.id, pattern)]


def _ask(
    ctx: click.Context,
    settings: Settings,
    destination: str,
    commands: Sequence[Command],
    base: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    dry_run, failed = commands[0].dry_run, False
    with (
        desk(settings, destination, len(commands), timeout_s) as open_desk,
        Progress(f"0 of {len(commands)} answered") as progress,
    ):
        try:
            for count, answer in enumerate(open_desk.ask(commands, timeout_s), 1):
                obeyed = answer.done or (dry_run and answer.text.startswith(DRY_RUN_WOULD))
                failed |= not obeyed
                _print(answer, obeyed, as_json)
                progress.say(f"{count} of {len(commands)} answered")
        except UnansweredError as error:
            say(f"uow: {error} To ask again without doing it twice: --command-id {base}")
            failed = True
    if failed:
        ctx.exit(FAILED)


def _print(answer: Answer, obeyed: bool, as_json: bool) -> None:
    if as_json:
        print_json_line(asdict(answer))
        return
    mark = "done" if answer.done else "would be done" if obeyed else "not done"
    text = answer.text.removeprefix(DRY_RUN_WOULD)
    click.echo(f"{answer.verb} {printable(answer.id)}: {mark}: {printable(text)}")


commands = {verb.value: _command(verb) for verb in Verb}
"""The click commands by name."""
