"""`uow show D ID`: one group with its components, in order of arrival (W-201)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from uow.cli import groups_command as groups
from uow.cli.main import FAILED
from uow.cli.options import config_option, json_option
from uow.config.loading import Settings
from uow.ops.destination_logs import log_reader, task_context
from uow.ops.group_story import MOST_READ, Owner, Story, owner, story
from uow.ops.inspect import ClosedGroupView, InspectedGroup, WaitingUnit, inspect_group
from uow.ops.recorded_rights import rights_complaint
from uow.processor.engine.awaited import SourceState
from uow.processor.engine.group_view import Inner, OpenGroup, arrival
from uow.processor.engine.ports import LogReader, Tp
from uow.schemas.records import ComponentRecord, ranges_text
from uow.schemas.registry import connect as connect_registry
from uow.terminal.printing import (
    moment_text,
    print_json,
    print_table,
    printable,
    say,
    span_text,
    wall_clock_ms,
)
from uow.topics.admin import admin_client, partition_counts


@click.command()
@click.argument("destination")
@click.argument("group_id", metavar="ID")
@click.option(
    "--generation",
    type=click.IntRange(1),
    default=None,
    metavar="N",
    help="Which of several open groups of this id. [default: the oldest]",
)
@config_option
@json_option
@click.pass_context
def command(
    ctx: click.Context, destination: str, group_id: str, generation: int | None, settings: Settings, as_json: bool
) -> None:
    """Show one group of DESTINATION: what it waits for, its components in order of arrival, or how it closed; and all that happened to it.

    Everything is read from Kafka, so it works when no worker runs. Exit 1 when the id is neither open nor remembered, and no unit of it waits.
    """
    context = task_context(settings, destination)
    client = admin_client(settings.bootstrap_servers, settings.kafka)
    registry = connect_registry(settings.registry_url) if settings.registry_url else None
    with log_reader(settings) as reader:
        now = wall_clock_ms()
        found = inspect_group(reader, context, group_id, generation or 0, now)
        is_known = found.is_known
        complaint = rights_complaint(reader, context.topics, [found.partition], context.policy) if is_known else None
        told = (
            story(reader, context, partition_counts(client), found, group_id, registry) if is_known else Story([], [])
        )
        inner = _inner(settings, reader, group_id, now)
    worker = owner(client, settings.application_id, Tp(context.topics.components, found.partition))
    if as_json:
        more = {
            "worker": worker.name,
            "worker_unknown": worker.unknown,
            "timeline": [each._asdict() for each in told.events],
            "inner": inner.row(now),
        }
        print_json(_json(found, now) | more)
    else:
        _print(found, worker, now)
        _print_inner(inner, now)
        _print_story(told)
    if complaint is not None:
        say(f"uow: commands may have been judged otherwise: {complaint}")
    if not is_known:
        say(f"uow: {group_id!r} is neither open nor remembered as closed in {destination}")
        ctx.exit(FAILED)


def _inner(settings: Settings, reader: LogReader, group_id: str, now_ms: int) -> Inner:
    """Only where there are routers can a unit come into a group of a rule."""
    if not settings.routers:
        return Inner()
    from uow.ops.inner_groups import inner_groups

    return inner_groups(settings, reader, group_id, now_ms)


def _print_inner(inner: Inner, now_ms: int) -> None:
    unsure = [each for each in _levels(inner) if not each.is_certain]
    if not inner.groups and not unsure:
        return
    click.echo()
    columns = ("inner group", "destination", "generation", "held", "missing", "waits for", "deadline")
    print_table(columns, _inner_rows(inner, now_ms))
    if unsure:
        others = sum(each.others for each in unsure)
        click.echo(
            f"as their units would be routed now; what is still to come may change that. Other open groups: {others}"
        )


def _levels(inner: Inner) -> Iterator[Inner]:
    yield inner
    for each in inner.groups:
        yield from _levels(each.inner)


def _inner_rows(inner: Inner, now_ms: int, indent: str = "") -> Iterator[tuple[object, ...]]:
    for destination, group, deeper in inner.groups:
        facts = ranges_text(group.missing), group.waits_for, groups.deadline_text(group, now_ms)
        yield f"{indent}{group.id}", destination, group.generation, group.count, *facts
        yield from _inner_rows(deeper, now_ms, f"{indent}  ")
    if inner.more:
        yield (f"{indent}and {inner.more} more",)


def _print_story(told: Story) -> None:
    if told.events:
        click.echo()
        columns = ("when", "what", "where", "")
        print_table(columns, [(moment_text(each.at), each.what, each.where, each.text) for each in told.events])
    for topic in told.shortened:
        say(f"uow: only the last {MOST_READ:,} offsets of {topic} were looked through")


def _json(found: InspectedGroup, now_ms: int) -> dict[str, Any]:
    opened = None
    if found.open is not None:
        opened = found.open.row(now_ms) | {"components": [arrival(each) for each in found.components]}
    closed = None if found.closed is None else _closed_row(found.closed)
    waiting = [each.row() for each in found.waiting]
    return {"open": opened, "closed": closed, "other_generations": list(found.others), "waiting_units": waiting}


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


def _print(found: InspectedGroup, worker: Owner, now_ms: int) -> None:
    if found.open is not None:
        _print_open(found, found.open, worker, now_ms)
    if found.closed is not None:
        _print_closed(found.closed, found.waiting)
    elif found.waiting:
        _print_facts(_waiting_facts(found.waiting))


def _print_open(found: InspectedGroup, group: OpenGroup, worker: Owner, now_ms: int) -> None:
    last = found.components[-1] if found.components else None
    facts = [
        ("group", group.id),
        ("state", "open" if group.waits_since is None else f"complete since {moment_text(group.waits_since)}"),
        ("waits for", group.waits_for),
        *([("rule", group.rule)] if group.rule is not None else []),
        ("partition", group.partition),
        ("generation", group.generation),
        ("held", ranges_text(group.held)),
        ("missing", ranges_text(group.missing) or "nothing"),
        *([("waived", ranges_text(group.waived))] if group.waived else []),
        ("end", "unknown" if group.end is None else group.end),
        ("opened", f"{moment_text(group.opened_at)}, {span_text(now_ms - group.opened_at)} ago"),
        ("deadline", groups.deadline_text(group, now_ms)),
        *[(f"source {each.name}", _source_text(each)) for each in group.sources],
        *([("last came", _last_text(last, now_ms))] if last is not None else []),
        ("worker", worker.name or (f"not known: {worker.unknown}" if worker.unknown else "none owns the partition")),
        *([("also open", f"generations {', '.join(map(str, found.others))}")] if found.others else []),
    ]
    _print_facts(facts)
    columns = ("number", "end", "arrived", "after", "source", "hops", "bytes", "component id")
    print_table(columns, [_cells(each, group.opened_at) for each in found.components])


def _source_text(each: SourceState) -> str:
    needed = "any number" if each.quantity is None else str(each.quantity)
    return f"{each.held} of {needed}{'' if each.is_satisfied else ', waited for'}"


def _last_text(component: ComponentRecord, now_ms: int) -> str:
    row = arrival(component)
    by = f" from {row['source_name']}" if row["source_name"] else ""
    return (
        f"number {component.seq}{by}, {span_text(now_ms - component.timestamp)} ago, at {row['input'] or row['source']}"
    )


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


def _print_closed(group: ClosedGroupView, waiting: Sequence[WaitingUnit]) -> None:
    closed = group.closed
    _print_facts(
        [
            ("group", group.id),
            ("state", f"closed: {closed.outcome}, reason {closed.reason}"),
            *_waiting_facts(waiting),
            ("partition", group.partition),
            ("generation", closed.generation),
            ("highest number", closed.highest),
            ("closed", moment_text(closed.at)),
        ]
    )


def _waiting_facts(waiting: Sequence[WaitingUnit]) -> list[tuple[str, object]]:
    text = "topic {}: the unit of generation {}, {}; the worker's log says why"
    return [("waits for", text.format(each.topic, each.generation, each.outcome)) for each in waiting]


def _print_facts(facts: list[tuple[str, object]]) -> None:
    for name, value in facts:
        click.echo(f"{name + ':':<16}{printable(str(value))}")
