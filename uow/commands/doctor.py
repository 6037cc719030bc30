"""`uow doctor`: everything a deployment can get wrong, one line each, with the remedy."""

from __future__ import annotations

from dataclasses import asdict

import click

from uow.cli import FAILED
from uow.config import Settings
from uow.doctor import Verdict, examine
from uow.options import config_option, json_option
from uow.printing import print_json_line, printable


@click.command()
@config_option
@json_option
@click.pass_context
def command(ctx: click.Context, settings: Settings, as_json: bool) -> None:
    """Look at configuration, brokers, topics, stored state and workers, and say what is wrong and what to do.

    Nothing is changed. Exit 1 when something is wrong; `look` is legal, and perhaps not what is wanted.
    """
    wrong = False
    for finding in examine(settings):
        wrong |= finding.verdict is Verdict.WRONG
        if as_json:
            print_json_line(asdict(finding))
            continue
        remedy = f" -> {finding.remedy}" if finding.remedy else ""
        click.echo(printable(f"{finding.verdict:<6}{finding.what}{remedy}"))
    if wrong:
        ctx.exit(FAILED)
