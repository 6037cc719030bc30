"""`uow groups D`: open groups of a destination, the oldest first (W-201)."""

from __future__ import annotations

from typing import Any

import click

from uow.cli.options import config_option, json_option
from uow.config.loading import Settings
from uow.ops.destination_logs import log_reader, task_context
from uow.ops.inspect import Totals, open_groups, totals
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


@click.command()
@click.argument("destination")
@config_option
@json_option
@click.option("--totals", "only_totals", is_flag=True, help="Show only how much is held and remembered, by partition.")
def command(destination: str, settings: Settings, as_json: bool, only_totals: bool) -> None:
    """List the open groups of DESTINATION, the oldest first: numbers held and missing, age, deadline.

    Everything is read from Kafka, so it works when no worker runs. `!` marks a group that has used up most of its time.
    """
    context = task_context(settings, destination)
    if only_totals:
        _print_totals(settings, context, as_json)
        return
    with log_reader(settings) as reader:
        groups = open_groups(reader, context)
    now = wall_clock_ms()
    if as_json:
        print_json([group.row(now) for group in groups])
        return
    columns = ("id", "partition", "held", "missing", "end", "age", "deadline in", "bytes")
    print_table(columns, [_cells(group, now) for group in groups])
    if not groups:
        click.echo("no open groups", err=True)


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
        **{outcome.value: count for outcome, count in each.closed.items()},
    }


def _cells(group: OpenGroup, now_ms: int) -> tuple[object, ...]:
    held, missing = ranges_text(group.held), ranges_text(group.missing)
    end = "unknown" if group.end is None else group.end
    return (
        group.id,
        group.partition,
        held,
        missing,
        end,
        span_text(now_ms - group.opened_at),
        left(group, now_ms),
        group.bytes,
    )


def left(group: OpenGroup, now_ms: int) -> str:
    """The time until a group's deadline, in words."""
    if group.deadline is None:
        return "never"
    return span_text(group.deadline - now_ms) + (" !" if group.is_at_risk(now_ms) else "")


def deadline_text(group: OpenGroup, now_ms: int) -> str:
    """A group's deadline, as a moment and as the time until then."""
    if group.deadline is None:
        return "never"
    return f"{moment_text(group.deadline)}, in {left(group, now_ms)}"
