"""`uow release|cancel|expire|extend|declare-end|waive|remove|erase D ID --why TEXT`, `uow release D --rule NAME`: commands to the workers, and their answers.

Belongs here: the verbs as commands, and the choice of groups (W-76, W-203). Does not belong here: sending and waiting (`uow.ops.group_commands`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any
from uuid import uuid4

import click

from uow.cli.main import FAILED
from uow.cli.options import (
    DurationType,
    TimeType,
    by_option,
    command_id_option,
    config_option,
    json_option,
)
from uow.config.loading import Settings
from uow.ops.destination_logs import log_reader, task_context
from uow.ops.group_commands import Reply, UnansweredError, command_client
from uow.ops.inspect import open_groups
from uow.schemas.error_classes import DecodeError
from uow.schemas.records import (
    MAX_SEQ,
    Answer,
    Range,
    parse_ranges,
)
from uow.terminal.printing import (
    Progress,
    print_json_line,
    printable,
    say,
    wall_clock_ms,
)
from uow.topics.commands import DRY_RUN_WOULD, Command, Verb
from uow.topics.headers import MAX_ID_BYTES

TEXTS = {
    Verb.RELEASE: "Deliver the components that the group holds; the unit is `partial` if numbers are missing.",
    Verb.CANCEL: "Close the group as `cancelled`; its components go to the errors topic.",
    Verb.EXPIRE: "Close the group now, following the destination's `expiration_policy`.",
    Verb.EXTEND: "Move the group's age or idle deadline later. The expiry of a single component stays as it is.",
    Verb.DECLARE_END: "Declare which number is the group's last; the group may become complete by it.",
    Verb.WAIVE: "Declare numbers that the group does not need; the unit is then `partial`.",
    Verb.REMOVE: "Move one component from the group to the errors topic; its number may be sent again.",
    Verb.ERASE: "Remove the payload of one component from the group: its value and the headers of the application. The unit says so.",
}
_REST = """

    A worker of DESTINATION executes the command and answers. Exit 0 when it is done (with --dry-run: would be done), else 1."""
_MANY = """ With several IDs, or
    a filter in place of them, each group gets a command of its own; groups that open after the filter was applied are left alone.
"""
Decorator = Callable[[Any], Any]


def _numbers(ctx: click.Context, param: click.Parameter, value: str) -> tuple[Range, ...]:
    try:
        ranges = parse_ranges(value)
    except DecodeError:
        ranges = ()
    if not ranges or (ranges[-1].last == MAX_SEQ and ranges[-1].first != MAX_SEQ):
        raise click.BadParameter(f"{value!r}: must be numbers and ranges in rising order, such as 3,5-7")
    return ranges


def _end(ctx: click.Context, param: click.Parameter, value: int) -> tuple[Range, ...]:
    return (Range(value, value),)


def _one(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    return (value,)


_SAYS: dict[Verb, Decorator] = {
    Verb.RELEASE: click.option(
        "--rule",
        metavar="RULE",
        help="The groups of this rule that are complete and wait for a release, in every partition; no IDs then.",
    ),
    Verb.EXTEND: click.option(
        "--until",
        type=TimeType(),
        required=True,
        metavar="MOMENT",
        help="The new deadline: ISO 8601, epoch ms, or +2h.",
    ),
    Verb.DECLARE_END: click.option(
        "--seq", "numbers", type=click.IntRange(1, MAX_SEQ), callback=_end, required=True, help="The last number."
    ),
    Verb.WAIVE: click.option(
        "--seq",
        "numbers",
        callback=_numbers,
        required=True,
        metavar="NUMBERS",
        help="Numbers that are not needed: 3,5-7.",
    ),
    **dict.fromkeys(
        (Verb.REMOVE, Verb.ERASE),
        click.argument("numbers", metavar="SEQ", type=click.IntRange(1, MAX_SEQ), callback=_end),
    ),
}
_WHICH_ONE: tuple[Decorator, ...] = (click.argument("ids", metavar="ID", callback=_one),)
_WHICH: tuple[Decorator, ...] = (
    click.argument("ids", nargs=-1, metavar="[ID]..."),
    click.option("--match", metavar="PATTERN", help="Every open group whose id matches: `order-*`."),
    click.option(
        "--older-than",
        type=DurationType(),
        metavar="SPAN",
        help="Every open group (that matches) at least this old: 2h.",
    ),
    click.option(
        "--before", type=TimeType(), metavar="MOMENT", help="Every open group (that matches) opened before this moment."
    ),
    click.option("--all", "everything", is_flag=True, help="Every open group."),
)
_HOW: tuple[Decorator, ...] = (
    click.option("--why", required=True, metavar="TEXT", help="The reason; it is kept in the audit trail."),
    click.option("--dry-run", is_flag=True, help="Change nothing; only say what the command would do."),
    by_option,
    command_id_option,
    click.option(
        "--timeout",
        type=DurationType(),
        default="30s",
        show_default=True,
        metavar="SPAN",
        help="How long to wait for the next answer.",
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
        rule: str | None = None,
    ) -> None:
        filters = everything or any(each is not None for each in (match, older_than, before))
        if rule is not None:
            if ids or filters or not 1 <= len(rule.encode("utf-8", "surrogateescape")) <= MAX_ID_BYTES:
                raise click.UsageError(
                    f"--rule takes the id of a rule, 1 to {MAX_ID_BYTES} bytes, and no groups besides"
                )
            base = command_id or str(uuid4())
            command = Command(base.encode(), verb, b"", why, by, dry_run=dry_run, rule=rule)
            _ask_everywhere(ctx, settings, destination, command, timeout / 1000, as_json)
            return
        if bool(ids) == filters:
            raise click.UsageError("give either IDs, or --all, or some of --match, --older-than and --before")
        chosen: Sequence[tuple[str, int]]
        if ids:
            if any(not 1 <= len(each.encode("utf-8", "surrogateescape")) <= MAX_ID_BYTES for each in ids):
                raise click.UsageError(f"an ID must have 1 to {MAX_ID_BYTES} bytes")
            chosen = [(each, 0) for each in dict.fromkeys(ids)]
        else:
            oldest = [wall_clock_ms(), *([before] if before is not None else [])]
            chosen = _matching(settings, destination, match or "*", min(oldest) - (older_than or 0))
        if not chosen:
            say(f"uow: no open group of {destination} matches")
            return
        base = command_id or str(uuid4())
        commands = [
            Command(
                id_of_command(base, each, generation, alone=len(ids) == 1),
                verb,
                each.encode(),
                why,
                by,
                numbers,
                until,
                dry_run,
                generation=generation,
            )
            for each, generation in chosen
        ]
        ask(ctx, settings, destination, commands, base, timeout / 1000, as_json)

    is_of_one = verb in (Verb.REMOVE, Verb.ERASE)
    run.__doc__ = TEXTS[verb] + _REST + ("\n" if is_of_one else _MANY)
    shared = (*(_WHICH_ONE if is_of_one else _WHICH), *([_SAYS[verb]] if verb in _SAYS else ()), *_HOW)
    for decorate in reversed((click.argument("destination"), *shared)):
        run = decorate(run)
    return click.command(verb.value)(run)


def id_of_command(base: str, group_id: str, generation: int, *, alone: bool) -> bytes:
    """The command id of one group; the same base and group always give the same id."""
    if alone:
        return base.encode()
    if generation > 1:
        base = f"{base}:{generation}"
    whole = f"{base}:{group_id}".encode()
    return whole if len(whole) <= MAX_ID_BYTES else f"{base}:{sha256(group_id.encode()).hexdigest()}".encode()


def _matching(settings: Settings, destination: str, pattern: str, before_ms: int) -> list[tuple[str, int]]:
    """Ids of open groups, with their generations: groups that open after this are left alone."""
    with log_reader(settings) as reader:
        groups = open_groups(reader, task_context(settings, destination))
    return [
        (each.id, each.generation) for each in groups if each.opened_at <= before_ms and fnmatchcase(each.id, pattern)
    ]


def ask(
    ctx: click.Context,
    settings: Settings,
    destination: str,
    commands: Sequence[Command],
    base: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Sends commands about one group each, and prints the answers; exit 1 unless all of them were obeyed."""
    dry_run, failed = commands[0].dry_run, False
    with (
        command_client(settings, destination, len(commands), timeout_s) as client,
        Progress(f"0 of {len(commands)} answered") as progress,
    ):
        try:
            for count, reply in enumerate(client.ask(commands, timeout_s), 1):
                obeyed = _is_obeyed(reply.answer, dry_run)
                failed |= not obeyed
                _print(reply, obeyed, as_json)
                progress.say(f"{count} of {len(commands)} answered")
        except UnansweredError as error:
            say(f"uow: {error} To ask again without executing it twice, add --command-id {base}")
            failed = True
    if failed:
        ctx.exit(FAILED)


def _ask_everywhere(
    ctx: click.Context, settings: Settings, destination: str, command: Command, timeout_s: float, as_json: bool
) -> None:
    """Each partition answers for its own groups. It is done if one of them did something."""
    is_done, is_unanswered = False, False
    with command_client(settings, destination, 1, timeout_s) as client:
        try:
            for partition, reply in client.ask_everywhere(command, timeout_s):
                obeyed = _is_obeyed(reply.answer, command.dry_run)
                is_done |= obeyed
                if as_json:
                    print_json_line(as_data(reply) | {"rule": command.rule, "partition": partition})
                else:
                    click.echo(_line(reply.answer, f"{printable(command.rule)}, partition {partition}", obeyed))
        except UnansweredError as error:
            say(f"uow: {error} To ask again without executing it twice, add --command-id {command.id.decode()}")
            is_unanswered = True
    if is_unanswered or not is_done:
        ctx.exit(FAILED)


def as_data(reply: Reply) -> dict[str, Any]:
    """An answer for JSON."""
    return asdict(reply.answer) | {"by_verified": reply.is_verified}


def _is_obeyed(answer: Answer, dry_run: bool) -> bool:
    return answer.done or (dry_run and answer.text.startswith(DRY_RUN_WOULD))


def _print(reply: Reply, obeyed: bool, as_json: bool) -> None:
    if as_json:
        print_json_line(as_data(reply))
    else:
        click.echo(_line(reply.answer, printable(reply.answer.id), obeyed))


def _line(answer: Answer, about: str, obeyed: bool) -> str:
    mark = "done" if answer.done else "would be done" if obeyed else "not done"
    return f"{answer.verb} {about}: {mark}: {printable(answer.text.removeprefix(DRY_RUN_WOULD))}"


commands = {verb.value: _command(verb) for verb in TEXTS}
"""The click commands by name."""
