"""`uow read D`: units of a destination, one after the other."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from uow.cli.main import FAILED
from uow.cli.options import config_option, json_option
from uow.config.loading import Settings
from uow.schemas import formats
from uow.schemas.records import ranges_text
from uow.terminal.printing import printable, printable_json, say

if TYPE_CHECKING:
    from uow.client.received import ReceivedComponent, ReceivedUnit
    from uow.client.verdict import GivenUp

LOOK_S = 3.0
"""Seconds that a read without group and count waits for a further unit."""


@click.command()
@click.argument("destination")
@click.option("--group", metavar="G", help="Read as consumer group G, and acknowledge each unit once it is printed.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N units; exit 1 if fewer came.")
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help=f"Stop after so many seconds without a unit. [default: {LOOK_S:g} without --group and --count, else never]",
)
@click.option(
    "--topic", metavar="TOPIC", help="Topic of a route of DESTINATION, to read in place of DESTINATION.units."
)
@config_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    destination: str,
    group: str | None,
    count: int | None,
    timeout: float | None,
    topic: str | None,
    settings: Settings,
    as_json: bool,
) -> None:
    """Print the units of DESTINATION; with --json, one JSON document per line.

    Without --group it reads from the beginning and commits nothing.
    """
    from uow.client.connection import connect
    from uow.client.verdict import Failure

    if timeout is None and group is None and count is None:
        timeout = LOOK_S
    printed = 0
    logging.getLogger("uow.client.dead_letters").addHandler(logging.NullHandler())  # printed by `_tell` instead
    with (
        connect(
            settings.bootstrap_servers,
            kafka=settings.kafka,
            registry_url=settings.registry_url,
            application=settings.application_id,
            reconnect_policy="none",
        ) as connection,
        connection.units(destination, group, start="earliest", topic=topic, on_given_up=_tell) as reader,
        suppress(KeyboardInterrupt),  # the way to stop a reader that has no other end
    ):
        while count is None or printed < count:
            unit = reader.receive(timeout)
            if unit is None:
                break
            _print(unit, as_json)
            sys.stdout.flush()
            if group is not None:
                unit.acknowledge()
            printed += 1
    ctx.exit(FAILED if reader.given_up[Failure.FAILED] or (count is not None and printed < count) else 0)


def _tell(given_up: GivenUp) -> None:
    say(f"uow: {given_up}")


def _print(unit: ReceivedUnit, as_json: bool) -> None:
    from uow.client.received import ReceivedDocument

    document = unit.value if isinstance(unit, ReceivedDocument) else None
    if as_json:
        more = {} if document is None else {"document": document.decode("utf-8", "backslashreplace")}
        click.echo(printable_json(formats.to_json(unit.record, more=more).decode()))
        return
    missing = f", missing {ranges_text(unit.missing)}" if unit.missing else ""
    size = unit.record.count
    outcome = f"{unit.outcome} by {unit.reason}, {size} component{'s' if size != 1 else ''}{missing}"
    click.echo(f"{printable(unit.id)}  {outcome}  ({unit.topic}/{unit.partition}/{unit.offset})")
    if document is not None:
        click.echo(f"       {value_text(document)}")
    _print_components(unit.components, "  ")


def _print_components(components: Sequence[ReceivedComponent], indent: str) -> None:
    """Prints a line for each component; below one that is itself a unit, its components, further indented (W-206)."""
    for component in components:
        inner = component.unit
        value = value_text(component.value) if inner is None else f"unit {printable(inner.id)}"
        click.echo(f"{indent}{component.seq:>3}  {value}")
        if inner is not None:
            _print_components(inner.components, indent + "     ")


def value_text(value: bytes | None) -> str:
    """A component's value on one line, with escapes for everything that is not printable text."""
    if value is None:
        return "(null)"
    return printable(value.decode("utf-8", "backslashreplace"))
