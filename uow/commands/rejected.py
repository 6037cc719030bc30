"""`uow rejected D`: refused components, the oldest first (W-202)."""

from __future__ import annotations

from typing import Any

import click

from uow.config import Settings
from uow.logs import log_reader
from uow.options import config_option, json_option
from uow.printing import moment_text, print_json, print_table, say
from uow.refused import COLUMNS, Refused, refused
from uow.refused_options import Place, chosen, refused_options


@click.command()
@click.argument("destination")
@refused_options
@config_option
@json_option
def command(destination: str, place: Place, settings: Settings, as_json: bool, **choice: Any) -> None:
    """What DESTINATION refused, with class, case, and where it came from; --from errors: what it gave up.

    `uow resubmit` takes the same filters, or the coordinates in the column `where`.
    """
    topic, partitions = place.topic(settings, destination)
    with log_reader(settings) as reader:
        found = refused(reader, topic, partitions, chosen(choice))
    if as_json:
        print_json([row(each) for each in found])
        return
    print_table(("refused at", "where", *COLUMNS), [_cells(each) for each in found])
    if not found:
        say(f"nothing in {topic} matches")


def row(record: Refused) -> dict[str, Any]:
    """A refused record as JSON; moments in epoch milliseconds. Its value is not in it."""
    said = {column: record.header(name) for column, name in COLUMNS.items()}
    return {"where": record.coordinates, "at": record.at, **said, "bytes": len(record.value or b"")}


def _cells(record: Refused) -> tuple[object, ...]:
    return (moment_text(record.at), record.coordinates, *(record.header(name) for name in COLUMNS.values()))
