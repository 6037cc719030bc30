"""`uow rebuild D`: units of a past interval built again from their components, to write them elsewhere or to compare them (W-209)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from uow.cli.main import FAILED
from uow.cli.options import TimeType, config_file_option, json_option
from uow.config.loading import (
    DELIMITER,
    PREFIX,
    Settings,
    load,
)
from uow.ops.destination_logs import counts_with, log_reader, task_context
from uow.ops.destination_rules import destination_rules
from uow.ops.rebuild import (
    RebuildDifference,
    RebuiltUnit,
    delivered,
    differences,
    rebuilt,
    whose_topic,
)
from uow.ops.recorded_rights import require_rights_of_workers
from uow.processor.kafka.clients import Clients
from uow.schemas.registry import connect as connect_registry
from uow.schemas.registry import framer_for
from uow.spark_sink.destination_rules import NO_RULES
from uow.terminal.printing import (
    moment_text,
    print_json,
    print_table,
    wall_clock_ms,
)

PATIENCE_S = 3600.0
AT_ONCE = 500
"""Units written in one transaction."""


def _pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    if any("=" not in each for each in values):
        raise click.BadParameter("must be KEY=VALUE, such as shape=consecutive")
    return {key: value for key, _, value in (each.partition("=") for each in values)}


@click.command()
@click.argument("destination")
@click.option(
    "--from",
    "first_ms",
    type=TimeType(),
    default=0,
    metavar="MOMENT",
    help="Units of groups that closed at this moment or later.",
)
@click.option(
    "--to", "last_ms", type=TimeType(), metavar="MOMENT", help="Units of groups that closed before.  [default: now]"
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    callback=_pairs,
    metavar="KEY=VALUE",
    help="A setting of DESTINATION to use instead of the configured one.",
)
@click.option(
    "--into",
    metavar="TOPIC",
    help="Write the units to this topic, which must be none that destinations, their routes and rules, or routers use.",
)
@click.option(
    "--dry-run", is_flag=True, help="Write nothing; list the units that would differ from the delivered ones."
)
@config_file_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    destination: str,
    first_ms: int,
    last_ms: int | None,
    changes: Mapping[str, str],
    into: str | None,
    dry_run: bool,
    path: Path | None,
    as_json: bool,
) -> None:
    """Build units of DESTINATION again, for a past interval, with the same or with other settings.

    A unit keeps its uow-unit-id. With --dry-run, exit 1 if a unit would differ from the delivered one.
    """
    if dry_run == (into is not None):
        raise click.UsageError("give either --dry-run or --into TOPIC")
    overrides = {
        f"{PREFIX}DESTINATIONS{DELIMITER}{destination}{DELIMITER}{key}".upper(): value for key, value in changes.items()
    }
    settings, changed = load(path), load(path, {**os.environ, **overrides})
    until = wall_clock_ms() + 1 if last_ms is None else last_ms
    context = task_context(settings, destination)
    header = framer_for(settings.registry_url).header("Unit", context.topics.units)
    known = destination_rules(settings, settings.destinations)
    rules, counts = known.get(destination, NO_RULES), counts_with(settings)
    if into is not None and (whose := whose_topic(into, settings, known)):
        raise click.UsageError(f"{into} is {whose}: its readers would take the rebuilt units for new ones")
    if into is not None and into not in counts:
        raise click.UsageError(f"topic {into} does not exist: create it first")
    again = replace(context, policy=changed.policy(destination), unit_header=header)
    with log_reader(settings, PATIENCE_S) as reader:
        require_rights_of_workers(reader, again.topics, range(again.partitions), again.policy)
        registry = connect_registry(settings.registry_url) if settings.registry_url else None
        units = rebuilt(reader, again, until, registry)
        if into is None:
            before = delivered(reader, context, {each: counts[each] for each in rules.targets}, rules.others)
            _report(ctx, [*differences(units, before, first_ms, until)], len(units), as_json)
            return
    chosen = [each for each in units.values() if first_ms <= each.at < until]
    _write(settings, into, sorted(chosen, key=lambda each: each.at))
    click.echo(f"{len(chosen)} units written to {into}")


def _report(ctx: click.Context, found: list[RebuildDifference], count: int, as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "id": each.unit.id.decode("utf-8", "backslashreplace"),
            "unit_id": each.unit.unit_id.decode("ascii", "backslashreplace"),
            "what": each.what.value,
            "outcome": each.unit.outcome.decode("ascii", "backslashreplace"),
            "at": each.unit.at,
        }
        for each in found
    ]
    if as_json:
        print_json({"units": count, "differences": rows})
    else:
        columns = ("id", "what", "outcome", "closed")
        print_table(columns, [(row["id"], row["what"], row["outcome"], moment_text(row["at"])) for row in rows])
        counts = ", ".join(f"{number} {what}" for what, number in Counter(row["what"] for row in rows).items())
        click.echo(f"{count} units can be built; differences: {counts or 'none'}")
    ctx.exit(FAILED if found else 0)


def _write(settings: Settings, topic: str, units: Iterable[RebuiltUnit]) -> None:
    producer = Clients(settings.worker("rebuild")).producer(lambda line: None)
    producer.init_transactions(30.0)
    waiting = list(units)
    for first in range(0, len(waiting), AT_ONCE):
        producer.begin_transaction()
        for unit in waiting[first : first + AT_ONCE]:
            for _, key, value, headers in unit.records:
                producer.produce(topic, value, key, headers=list(headers))
        producer.commit_transaction(30.0)
