"""`uow rejected D`: refused components, the oldest first (W-202)."""

from __future__ import annotations

from typing import Any

import click

from uow.cli.options import config_option, json_option
from uow.cli.rejected_options import RejectedFrom, chosen, refused_options
from uow.client.rejected_records import COLUMNS, RefusedRecord, refused
from uow.config.loading import Settings
from uow.ops.destination_logs import log_reader
from uow.terminal.printing import (
    moment_text,
    print_json,
    print_table,
    say,
)


@click.command()
@click.argument("destination")
@refused_options
@config_option
@json_option
def command(destination: str, source: RejectedFrom, settings: Settings, as_json: bool, **choice: Any) -> None:
    """List the components that DESTINATION refused, with error class, case and source.

    With --from errors: the components that it gave up. `uow resubmit` takes the same filters, or the coordinates in the column `where`.
    """
    topic, partitions = source.topic(settings, destination)
    with log_reader(settings) as reader:
        found = refused(reader, topic, partitions, chosen(choice))
    if as_json:
        print_json([row(each) for each in found])
        return
    print_table(("refused at", "where", *COLUMNS), [_cells(each) for each in found])
    if not found:
        say(f"nothing in {topic} matches")


def row(record: RefusedRecord) -> dict[str, Any]:
    """A refused record for JSON, without its value; moments are epoch milliseconds."""
    said = {column: record.header(name) for column, name in COLUMNS.items()}
    return {"where": record.coordinates, "at": record.at, **said, "bytes": len(record.value or b"")}


def _cells(record: RefusedRecord) -> tuple[object, ...]:
    return (moment_text(record.at), record.coordinates, *(record.header(name) for name in COLUMNS.values()))
