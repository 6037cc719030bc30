"""`uow send D`: one unit from files or standard input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import click

from uow.cli.options import config_option, json_option
from uow.config.loading import Settings
from uow.terminal.printing import print_json_line


@click.command()
@click.argument("destination")
@click.argument("files", type=click.File("rb", lazy=False), nargs=-1, metavar="[FILE]...")
@click.option("--id", "unit_id", metavar="ID", help="Group id; use each only once. [default: a new UUID]")
@click.option("--lines", is_flag=True, help="Each line is a component, not each file.")
@config_option
@json_option
def command(
    destination: str, files: tuple[BinaryIO, ...], unit_id: str | None, lines: bool, settings: Settings, as_json: bool
) -> None:
    """Send one unit to DESTINATION in one transaction and print its id.

    Each FILE is a component, in the order given; `-`, or no FILE at all, is standard input.
    """
    from uow.client.connection import connect

    sources = files or (click.get_binary_stream("stdin"),)
    with (
        connect(
            settings.bootstrap_servers,
            kafka=settings.kafka,
            application=settings.application_id,
            reconnect_policy="none",
        ) as connection,
        connection.unit(destination, unit_id) as unit,
    ):
        for value in _values(sources, lines):
            unit.send(value)
    if as_json:
        print_json_line({"id": unit.id, "destination": destination, "components": unit.count})
    else:
        click.echo(unit.id)


def _values(sources: tuple[BinaryIO, ...], lines: bool) -> Iterator[bytes]:
    for source in sources:
        if lines:
            for line in source:
                yield line.rstrip(b"\r\n")
        else:
            yield source.read()
