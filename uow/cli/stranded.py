"""`uow resubmit D --stranded`: components without a group, brought back by commands (B-70, B-72 to B-74).

Belongs here: which of them are meant, and asking. Does not belong here: finding them (`uow.ops.group_audit`), deciding (`uow.processor.core`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from getpass import getuser
from typing import Any, NamedTuple
from uuid import uuid4

import click

from uow.cli.main import FAILED, WRONG_USAGE
from uow.cli.options import DurationType
from uow.cli.repair_command import ask, id_of_command
from uow.config.loading import Settings
from uow.ops.destination_logs import log_reader, task_context
from uow.ops.group_audit import Finding, stranded
from uow.terminal.printing import say, span_text, wall_clock_ms
from uow.topics.commands import Command, Verb


class Stranded(NamedTuple):
    """Which components without a group are meant.

    Attributes:
        everything: Whichever match the other options.
        components: Coordinates: of the component, or of its row in the changelog.
        older_than: Arrived so long ago, ms.
        why: The reason.
        command_id: Of a command sent before.
        timeout_s: Longest wait for an answer.
    """

    everything: bool
    components: tuple[str, ...]
    older_than: int | None
    why: str
    command_id: str | None
    timeout_s: float

    @property
    def is_meant(self) -> bool:
        """True if the command is about components without a group."""
        return self.everything or bool(self.components) or self.older_than is not None


_OPTIONS = (
    click.option("--stranded", "everything_stranded", is_flag=True, help="Components that are held without a group."),
    click.option("--component", "components", multiple=True, metavar="COORDINATES", help="One of them."),
    click.option(
        "--older-than", type=DurationType(), metavar="SPAN", help="Those of them that arrived so long ago: 2h."
    ),
    click.option("--why", default="found without a group", show_default=True, metavar="TEXT", help="The reason."),
    click.option("--command-id", metavar="ID", help="The id of a command sent before, so that nothing is done twice."),
    click.option(
        "--timeout", type=DurationType(), default="30s", show_default=True, help="How long to wait for an answer."
    ),
)


def stranded_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options pass one `stranded` to the command."""

    def run(
        *arguments: Any,
        everything_stranded: bool,
        components: tuple[str, ...],
        older_than: int | None,
        why: str,
        command_id: str | None,
        timeout: int,
        **others: Any,
    ) -> Any:
        meant = Stranded(everything_stranded, components, older_than, why, command_id, timeout / 1000)
        return command(*arguments, stranded=meant, **others)

    run.__doc__, run.__name__ = command.__doc__, command.__name__
    run.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in reversed(_OPTIONS):
        run = option(run)
    return run


def recycle(
    ctx: click.Context,
    settings: Settings,
    destination: str,
    meant: Stranded,
    pattern: str | None,
    limit: int,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Finds the components and sends a command for each; only the worker that owns the partition changes state."""
    if meant.older_than is not None:
        _check_age(ctx, settings, meant.older_than)
    with log_reader(settings) as reader:
        found = stranded(reader, task_context(settings, destination))
    chosen = _chosen(found, meant, pattern)
    missing = {*meant.components} - {name for each in chosen for name in (each.component, each.where)}
    if missing:
        say(f"uow: no component without a group is at {', '.join(sorted(missing))}")
        ctx.exit(FAILED)
    if len(chosen) > limit:
        say(f"uow: {len(chosen)} components match, more than --limit {limit}; nothing was done")
        ctx.exit(FAILED)
    if not chosen:
        say(f"uow: {destination} holds no component without a group that matches")
        return
    base = meant.command_id or str(uuid4())
    commands = [
        Command(
            id_of_command(base, each.component, 0, alone=False),
            Verb.RECYCLE,
            each.id.encode(),
            meant.why,
            getuser(),
            dry_run=dry_run,
            source=each.component,
        )
        for each in chosen
    ]
    ask(ctx, settings, destination, commands, base, meant.timeout_s, as_json)


def _chosen(found: Sequence[Finding], meant: Stranded, pattern: str | None) -> list[Finding]:
    before = wall_clock_ms() - (meant.older_than or 0)
    return [
        each
        for each in found
        if (not meant.components or {each.component, each.where} & {*meant.components})
        and (pattern is None or fnmatchcase(each.id, pattern))
        and (each.arrived_at is None or each.arrived_at <= before)
    ]


def _check_age(ctx: click.Context, settings: Settings, older_than: int) -> None:
    """Age alone says that a component is stranded only where no group of the rules can be so old (B-70)."""
    from uow.ops.rules import RuleDesk  # needs the extra `rules`

    rules = RuleDesk(settings).read()  # the latest version, in force or not: one with such values never is
    stranded_after = rules.parameter("stranded_after_ms")
    ages = [each.row.age_ms for each in rules.row_versions() if each.resolved is not None and each.row.age_ms]
    longest = max(ages, default=0)
    complaint = ""
    if stranded_after is None:
        complaint = "the parameter stranded_after_ms is not set in the rules: name components by --component or --id"
    elif stranded_after <= longest:
        complaint = (
            f"stranded_after_ms is {stranded_after}, and the longest age_ms in force is {longest}: it must be longer"
        )
    elif older_than < stranded_after:
        complaint = f"--older-than {span_text(older_than)} is less than stranded_after_ms, which is {stranded_after}"
    if complaint:
        say(f"uow: {complaint}")
        ctx.exit(WRONG_USAGE)
