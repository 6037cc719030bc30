"""`uow demo`: the Megazon story, from a broker to Delta tables and an audit (P-20)."""

from __future__ import annotations

import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from uow.cli.main import FAILED
from uow.cli.options import json_option
from uow.terminal.printing import print_json

if TYPE_CHECKING:
    from uow.demo.environment import DemoEnvironment
    from uow.terminal.screen import Screen


@click.command()
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="An empty folder for data, tables and logs. Without it a new temporary folder.",
)
@click.option("--keep", is_flag=True, help="Leave broker and workers running at the end, until Ctrl-C.")
@click.option(
    "--customers", type=click.IntRange(20), default=300, show_default=True, help="Number of customers besides Jill."
)
@click.option("--without-spark", is_flag=True, help="Without tables and audit; the counts are still checked.")
@json_option
@click.pass_context
def command(
    ctx: click.Context, folder: Path | None, keep: bool, customers: int, without_spark: bool, as_json: bool
) -> None:
    """Show units of work on a real broker, in a minute or two, with the story of the shop Megazon.

    An order is split over suppliers that forward to each other, hundreds of customers order at the same time, everything that can go wrong
    does, and each order is invoiced once and whole. Exit 0 only if all counts agree and the audit finds no difference.
    """
    from uow.demo.environment import DemoEnvironment, DemoFailed
    from uow.demo.story import Size, Story
    from uow.demo.story_report import show
    from uow.embedded.broker import BrokerFailed
    from uow.terminal.screen import Screen

    for number in (signal.SIGINT, signal.SIGTERM):  # a shell starts a background job with SIGINT ignored
        signal.signal(number, _interrupt)
    screen = Screen(sys.stderr if as_json else sys.stdout)
    environment = DemoEnvironment(folder)
    good = is_finished = False
    try:
        with environment, ExitStack() as stack:
            screen.title("uow demo: an order is split over suppliers, and invoiced once and whole")
            screen.say(f"everything is in {environment.folder}, logs in logs/", "dim")
            play = Story(environment, screen, Size.of(customers), stack)
            play.set_up()
            play.jill_orders()
            play.everybody_orders()
            if not without_spark:
                play.start_spark()
            play.time_passes()
            if not without_spark:
                play.tables()
            report = play.report()
            good = report.is_good
            if as_json:
                print_json(report.as_json())
            else:
                show(screen, report)
            is_finished = True
            if keep:
                _keep(screen, environment)
    except KeyboardInterrupt:
        screen.say()
        screen.say("stopped" if is_finished else "stopped before the end: nothing is proved")
    except (DemoFailed, BrokerFailed) as failure:
        screen.failed(str(failure))
    ctx.exit(0 if good else FAILED)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _keep(screen: Screen, environment: DemoEnvironment) -> None:
    """Leaves everything running, prints commands to look around with, and waits for Ctrl-C."""
    uow = "uow" if shutil.which("uow") else _near(Path(sys.argv[0]))
    checkout = f"{_near(Path(sys.executable))} {_near(environment.story / 'checkout.py')}"
    screen.act("Everything goes on running: look around; Ctrl-C ends it")
    screen.command(f"{checkout} --customers 5 --bootstrap {environment.bootstrap}")
    screen.command(f"{uow} groups megazon -c {environment.config}")
    screen.command(f"{uow} read megazon --count 3 -c {environment.config}")
    for page in environment.web_pages():
        screen.say(page)
    screen.say(f"logs in {environment.logs}")
    while True:
        signal.pause()


def _near(path: Path) -> str:
    """A path relative to the working directory where that is shorter, as people would type it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
