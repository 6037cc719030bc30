"""`uow show D ID`: one group with its components, in order of arrival (W-201)."""

from __future__ import annotations

from typing import Any

import click

from uow.cli import groups_command as groups
from uow.cli.main import FAILED
from uow.cli.options import config_option, json_option
from uow.config.loading import Settings
from uow.ops.destination_logs import log_reader, task_context
from uow.ops.inspect import ClosedGroupView, InspectedGroup, inspect_group
from uow.processor.engine.group_view import OpenGroup, arrival
from uow.schemas.records import ComponentRecord, ranges_text
from uow.terminal.printing import (
    moment_text,
    print_json,
    print_table,
    printable,
    say,
    span_text,
    wall_clock_ms,
)


@click.command()
@click.argument("destination")
@click.argument("group_id", metavar="ID")
@config_option
@json_option
@click.pass_context
def command(ctx: click.Context, destination: str, group_id: str, settings: Settings, as_json: bool) -> None:
    """Show one group of DESTINATION: its components in order of arrival, or how it closed.

    Everything is read from Kafka, so it works when no worker runs. Exit 1 when the id is neither open nor remembered.
    """
    context = task_context(settings, destination)
    with log_reader(settings) as reader:
        found = inspect_group(reader, context, group_id)
    now = wall_clock_ms()
    if as_json:
        print_json(_json(found, now))
    else:
        _print(found, now)
    if found.open is None and found.closed is None:
        say(f"uow: {group_id!r} is neither open nor remembered as closed in {destination}")
        ctx.exit(FAILED)


def _json(found: InspectedGroup, now_ms: int) -> dict[str, Any]:
    opened = None
    if found.open is not None:
        opened = found.open.row(now_ms) | {"components": [arrival(each) for each in found.components]}
    return {"open": opened, "closed": None if found.closed is None else _closed_row(found.closed)}


def _closed_row(group: ClosedGroupView) -> dict[str, Any]:
    closed = group.closed
    return {
        "id": group.id,
        "partition": group.partition,
        "generation": closed.generation,
        "outcome": str(closed.outcome),
        "reason": str(closed.reason),
        "highest": closed.highest,
        "closed_at": closed.at,
    }


def _print(found: InspectedGroup, now_ms: int) -> None:
    if found.open is not None:
        _print_open(found.open, found.components, now_ms)
    if found.closed is not None:
        _print_closed(found.closed)


def _print_open(group: OpenGroup, components: tuple[ComponentRecord, ...], now_ms: int) -> None:
    facts = [
        ("group", group.id),
        ("state", "open"),
        ("partition", group.partition),
        ("generation", group.generation),
        ("held", ranges_text(group.held)),
        ("missing", ranges_text(group.missing) or "nothing"),
        *([("waived", ranges_text(group.waived))] if group.waived else []),
        ("end", "unknown" if group.end is None else group.end),
        ("opened", f"{moment_text(group.opened_at)}, {span_text(now_ms - group.opened_at)} ago"),
        ("deadline", groups.deadline_text(group, now_ms)),
    ]
    _print_facts(facts)
    columns = ("number", "end", "arrived", "after", "source", "hops", "bytes", "component id")
    print_table(columns, [_cells(each, group.opened_at) for each in components])


def _cells(component: ComponentRecord, opened_at: int) -> tuple[object, ...]:
    row = arrival(component)
    return (
        component.seq,
        "end" if component.end else "",
        moment_text(component.timestamp),
        span_text(component.timestamp - opened_at),
        row["source"],
        " > ".join(row["hops"]),
        row["bytes"],
        component.component_id,
    )


def _print_closed(group: ClosedGroupView) -> None:
    closed = group.closed
    _print_facts(
        [
            ("group", group.id),
            ("state", f"closed: {closed.outcome}, reason {closed.reason}"),
            ("partition", group.partition),
            ("generation", closed.generation),
            ("highest number", closed.highest),
            ("closed", moment_text(closed.at)),
        ]
    )


def _print_facts(facts: list[tuple[str, object]]) -> None:
    for name, value in facts:
        click.echo(f"{name + ':':<16}{printable(str(value))}")
