"""`uow doctor`: checks of a deployment, one line each, with the remedy for what is wrong."""

from __future__ import annotations

from dataclasses import asdict

import click

from uow.cli.main import FAILED
from uow.cli.options import config_option, json_option
from uow.config.loading import Settings
from uow.ops.doctor import examine
from uow.ops.findings import CheckResult
from uow.ops.open_transactions import end_transaction
from uow.terminal.printing import print_json_line, printable


@click.command()
@click.option(
    "--end-transaction",
    "transactional_id",
    metavar="ID",
    help="Check nothing; end the hanging transaction under this transactional id, and fence a producer that uses it.",
)
@click.option(
    "--force",
    "is_forced",
    is_flag=True,
    help="With --end-transaction: also one that is young, or has no topic of this application.",
)
@config_option
@json_option
@click.pass_context
def command(
    ctx: click.Context, transactional_id: str | None, is_forced: bool, settings: Settings, as_json: bool
) -> None:
    """Check configuration, brokers, topics, stored state and workers; say what is wrong and how to mend it.

    Nothing is changed, but by --end-transaction. Exit 1 when something is wrong. A line that begins with `look` is allowed, but perhaps not what you want.
    """
    if is_forced and transactional_id is None:
        raise click.UsageError("--force goes with --end-transaction")
    if transactional_id is not None:
        end_transaction(settings, transactional_id, is_forced=is_forced)
        click.echo(printable(f"what was open under {transactional_id} is ended"))
        return
    wrong = False
    for finding in examine(settings):
        wrong |= finding.verdict is CheckResult.WRONG
        if as_json:
            print_json_line(asdict(finding))
            continue
        remedy = f" -> {finding.remedy}" if finding.remedy else ""
        click.echo(printable(f"{finding.verdict:<6}{finding.what}{remedy}"))
    if wrong:
        ctx.exit(FAILED)
