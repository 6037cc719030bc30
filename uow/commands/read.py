"""`uow read D`: units of a destination, one after the other."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from schemas import formats
from schemas.records import ranges_text
from uow.cli import FAILED
from uow.config import Settings
from uow.options import config_option, json_option
from uow.printing import printable, printable_json, say

if TYPE_CHECKING:
    from uow.received import ReceivedComponent, ReceivedUnit
    from uow.verdict import GivenUp

LOOK_S = 3.0
"""How long a look without group and count waits for a further unit."""


@click.command()
@click.argument("destination")
@click.option("--group", metavar="G", help="Read as consumer group G, and acknowledge each unit once it is printed.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after N units; exit 1 when fewer came.")
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help=f"Stop when no unit came for so long. Default: {LOOK_S:g} without --group and --count, else never.",
)
@click.option("--topic", metavar="TOPIC", help="One that a route of DESTINATION names, in place of DESTINATION.units.")
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
    """Print the units of DESTINATION, with --json one document a line.

    Without --group it reads from the beginning and commits nothing.
    """
    from uow.client import connect
    from uow.verdict import Failure

    if timeout is None and group is None and count is None:
        timeout = LOOK_S
    printed = 0
    logging.getLogger("uow.giving_up").addHandler(logging.NullHandler())  # it is told here
    with (
        connect(
            settings.bootstrap_servers,
            kafka=settings.kafka,
            registry_url=settings.registry_url,
            application=settings.application_id,
        ) as connection,
        connection.units(destination, group, start="earliest", topic=topic, on_given_up=_tell) as reader,
        suppress(KeyboardInterrupt),  # how a reader without end ends
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
    if as_json:
        click.echo(printable_json(formats.to_json(unit.record).decode()))
        return
    missing = f", missing {ranges_text(unit.missing)}" if unit.missing else ""
    size = len(unit.components)
    told = f"{unit.outcome} by {unit.reason}, {size} component{'s' if size != 1 else ''}{missing}"
    click.echo(f"{printable(unit.id)}  {told}  ({unit.topic}/{unit.partition}/{unit.offset})")
    _print_components(unit.components, "  ")


def _print_components(components: Sequence[ReceivedComponent], indent: str) -> None:
    """A line for each; below one that is a unit itself its own, further in (W-206)."""
    for component in components:
        inner = component.unit
        value = value_text(component.value) if inner is None else f"unit {printable(inner.id)}"
        click.echo(f"{indent}{component.seq:>3}  {value}")
        if inner is not None:
            _print_components(inner.components, indent + "     ")


def value_text(value: bytes | None) -> str:
    """A component's value on one line; what is no printable text as escapes."""
    if value is None:
        return "(null)"
    return printable(value.decode("utf-8", "backslashreplace"))
