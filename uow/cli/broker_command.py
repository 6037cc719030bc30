"""`uow broker`: a real single-node Apache Kafka in the foreground."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9092,
    show_default=True,
    help="Port on the loopback address; 0 takes any free one.",
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the data in this folder; without it they are deleted at the end.",
)
@click.pass_context
def command(ctx: click.Context, port: int, folder: Path | None) -> None:
    """Run a real single-node Apache Kafka in the foreground, on the loopback address, until SIGTERM or Ctrl-C.

    Prints `broker ready on HOST:PORT` once clients can connect.
    """
    from uow.embedded.broker import (
        BrokerFailed,
        FolderInUse,
        PortTaken,
        serve,
    )

    try:
        ctx.exit(serve(port, folder))
    except (BrokerFailed, FolderInUse, PortTaken) as error:
        raise click.ClickException(str(error)) from error
