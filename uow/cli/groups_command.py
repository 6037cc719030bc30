"""`uow groups D`: open groups of a destination, the oldest first (W-201)."""

from __future__ import annotations

from typing import Any

import click

from uow.cli.main import FAILED
from uow.cli.options import config_option, json_option
from uow.config.loading import Settings
from uow.ops.destination_logs import log_reader, task_context
from uow.ops.group_audit import OVERDUE_MS, Report, audit
from uow.ops.inspect import Totals, totals, unfinished
from uow.processor.engine.context import TaskContext
from uow.processor.engine.group_view import OpenGroup
from uow.schemas.records import ranges_text
from uow.terminal.printing import (
    moment_text,
    print_json,
    print_table,
    span_text,
    wall_clock_ms,
)

COLUMNS = (
    "id",
    "partition",
    "generation",
    "held",
    "missing",
    "end",
    "age",
    "deadline in",
    "bytes",
    "rule",
    "waits for",
)

WHY_OVERDUE = (
    "the page /groups/ of the worker says whether it stands alone, and why, or whether its partition cannot go on"
)
"""Of groups that should have closed: a group stands alone for its worker only, and nothing of it is in Kafka."""


@click.command()
@click.argument("destination")
@config_option
@json_option
@click.option("--totals", "only_totals", is_flag=True, help="Show only how much is held and remembered, by partition.")
@click.option(
    "--audit", "is_audit", is_flag=True, help="Look for what should not be there instead; exit 1 if there is anything."
)
@click.option(
    "--repeat", "is_repeated", is_flag=True, help="With --audit: again each audit_every_ms of the rules, until Ctrl-C."
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="With --repeat: serve uow_orphans and uow_audit_findings for Prometheus.",
)
@click.pass_context
def command(
    ctx: click.Context,
    destination: str,
    settings: Settings,
    as_json: bool,
    only_totals: bool,
    is_audit: bool,
    is_repeated: bool,
    metrics_port: int | None,
) -> None:
    """List the open groups of DESTINATION, the oldest first: numbers held and missing, age, deadline.

    Everything is read from Kafka, so it works when no worker runs. `!` marks a group that has used up most of its time.

    With --audit: components without a group, groups without components, overdue groups, groups of rows that are not in the rules, units that
    wait for their topic, records of routers' inputs that are neither a component nor refused.
    """
    if (is_repeated and not is_audit) or (metrics_port is not None and not is_repeated):
        raise click.UsageError("--repeat goes with --audit, --metrics-port with --repeat")
    if is_repeated:
        from uow.cli.repeated_audit import repeat  # needs the extra `worker`

        if not repeat(settings, destination, metrics_port, as_json):
            ctx.exit(FAILED)
        return
    if is_audit:
        report = audit(settings, destination, wall_clock_ms())
        _print_report(report, as_json)
        if report.findings:
            ctx.exit(FAILED)
        return
    context = task_context(settings, destination)
    if only_totals:
        _print_totals(settings, context, as_json)
        return
    with log_reader(settings) as reader:
        now = wall_clock_ms()
        groups, waiting = unfinished(reader, context, now)
    if as_json:
        print_json({"groups": [group.row(now) for group in groups], "waiting_units": [each.row() for each in waiting]})
        return
    print_table(COLUMNS, [_cells(group, now) for group in groups])
    if not groups:
        click.echo("no open groups", err=True)
    if overdue := sum(each.deadline is not None and each.deadline + OVERDUE_MS < now for each in groups):
        click.echo(f"{overdue} overdue: {WHY_OVERDUE}", err=True)
    if waiting:
        click.echo()
        rows = [each.row() for each in waiting]
        print_table(("finished unit that waits", *[*rows[0]][1:]), [tuple(row.values()) for row in rows])
        click.echo("the worker's log says why they wait", err=True)


def _print_report(report: Report, as_json: bool) -> None:
    if as_json:
        print_json({"findings": [each.row() for each in report.findings], "left_out": report.left_out})
        return
    columns = ("finding", "id", "generation", "where", "component", "detail")
    cells = [
        (each.kind.value, each.id, each.generation or "", each.where, each.component, each.detail)
        for each in report.findings
    ]
    print_table(columns, cells)
    for sentence in report.left_out:
        click.echo(sentence, err=True)
    if not report.findings:
        click.echo("nothing found", err=True)


def _print_totals(settings: Settings, context: TaskContext, as_json: bool) -> None:
    with log_reader(settings) as reader:
        rows = [totals_row(each) for each in totals(reader, context)]
    if as_json:
        print_json(rows)
    else:
        print_table(tuple(rows[0]), [tuple(each.values()) for each in rows])


def totals_row(each: Totals) -> dict[str, Any]:
    """One partition as JSON."""
    return {
        "partition": each.partition,
        "position": each.position,
        "behind": each.behind,
        "groups": each.groups,
        "components": each.components,
        "bytes": each.bytes,
        "waiting": each.waiting,
        **{outcome.value: count for outcome, count in each.closed.items()},
    }


def _cells(group: OpenGroup, now_ms: int) -> tuple[object, ...]:
    held, missing = ranges_text(group.held), ranges_text(group.missing)
    end = "unknown" if group.end is None else group.end
    return (
        group.id,
        group.partition,
        group.generation,
        held,
        missing,
        end,
        span_text(now_ms - group.opened_at),
        left(group, now_ms),
        group.bytes,
        group.rule or "",
        group.waits_for,
    )


def left(group: OpenGroup, now_ms: int) -> str:
    """The time until a group's deadline, in words."""
    if group.deadline is None:
        return "never"
    return span_text(group.deadline - now_ms) + (" !" if group.is_at_risk(now_ms) else "")


def deadline_text(group: OpenGroup, now_ms: int) -> str:
    """A group's deadline, as a moment, as the time until then, and what it comes from."""
    if group.deadline is None:
        return "never"
    by = f", by {group.deadline_by}" if group.deadline_by else ""
    return f"{moment_text(group.deadline)}, in {left(group, now_ms)}{by}"
