"""`uow demo`: the Megazon story, from a broker to Delta tables and an audit (P-20); `uow demo low-stock`: units by rule, up to files (B-08)."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from uow.cli.main import FAILED
from uow.cli.options import json_option
from uow.terminal.printing import print_json

if TYPE_CHECKING:
    from uow.demo.environment import DemoEnvironment
    from uow.terminal.screen import Screen


@click.command()
@click.argument("story", type=click.Choice(["megazon", "low-stock"]), default="megazon")
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
@click.option(
    "--events",
    type=click.IntRange(400),
    default=1000,
    show_default=True,
    help="Number of orders in low-stock's busy day.",
)
@click.option("--without-spark", is_flag=True, help="Without tables, audit and files; the counts are still checked.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    story: str,
    folder: Path | None,
    keep: bool,
    customers: int,
    events: int,
    without_spark: bool,
    as_json: bool,
) -> None:
    """Show units of work on a real broker, in a minute or two, with the story of the shop Megazon, or units by rule with that of low stock.

    Megazon: an order is split over suppliers that forward to each other, hundreds of customers order at the same time, everything that can go
    wrong does, and each order is invoiced once and whole. Low stock: orders of a warehouse become units by rule, by count and by time, over a
    crash and a change of rules, and a file for each. Exit 0 only if all counts agree and the audit finds no difference.
    """
    from uow.demo.environment import DemoEnvironment, DemoFailed
    from uow.embedded.broker import BrokerFailed
    from uow.terminal.screen import Screen

    for number in (signal.SIGINT, signal.SIGTERM):  # a shell starts a background job with SIGINT ignored
        signal.signal(number, _interrupt)
    screen = Screen(sys.stderr if as_json else sys.stdout)
    environment = DemoEnvironment(folder, story.replace("-", "_"))
    good = is_finished = False
    try:
        with environment, ExitStack() as stack:
            if story == "megazon":
                good = _megazon(environment, screen, customers, stack, with_spark=not without_spark, as_json=as_json)
            else:
                good = _low_stock(environment, screen, events, stack, with_spark=not without_spark, as_json=as_json)
            is_finished = True
            if keep:
                _keep(screen, environment, story)
    except KeyboardInterrupt:
        screen.say()
        screen.say("stopped" if is_finished else "stopped before the end: nothing is proved")
    except (DemoFailed, BrokerFailed) as failure:
        screen.failed(str(failure))
    ctx.exit(0 if good else FAILED)


def _megazon(
    environment: DemoEnvironment, screen: Screen, customers: int, stack: ExitStack, *, with_spark: bool, as_json: bool
) -> bool:
    """Plays the story of Megazon; True if everything agrees."""
    from uow.demo.story import Size, Story
    from uow.demo.story_report import show

    screen.title("uow demo: an order is split over suppliers, and invoiced once and whole")
    screen.say(f"everything is in {environment.folder}, logs in logs/", "dim")
    play = Story(environment, screen, Size.of(customers), stack)
    play.set_up()
    play.jill_orders()
    play.everybody_orders()
    if with_spark:
        play.start_spark()
    play.time_passes()
    if with_spark:
        play.tables()
    return _tell(screen, play.report(), show, as_json)


def _low_stock(
    environment: DemoEnvironment, screen: Screen, events: int, stack: ExitStack, *, with_spark: bool, as_json: bool
) -> bool:
    """Plays the story of low stock; True if everything agrees."""
    from uow.demo.stock_report import show
    from uow.demo.stock_story import StockStory

    screen.title("uow demo low-stock: one order for a supplier, instead of one for each product")
    screen.say(f"everything is in {environment.folder}, logs in logs/", "dim")
    play = StockStory(environment, screen, events, stack)
    play.set_up()
    play.three_suppliers()
    play.busy_day()
    if with_spark:
        play.write_files()
    return _tell(screen, play.report(), show, as_json)


class _Report(Protocol):
    """The report of a story."""

    @property
    def is_good(self) -> bool: ...

    def as_json(self) -> dict[str, Any]: ...


_AReport = TypeVar("_AReport", bound=_Report)


def _tell(screen: Screen, report: _AReport, show: Callable[[Screen, _AReport], None], as_json: bool) -> bool:
    """Prints a report; True if everything in it agrees."""
    if as_json:
        print_json(report.as_json())
    else:
        show(screen, report)
    return report.is_good


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _keep(screen: Screen, environment: DemoEnvironment, story: str) -> None:
    """Leaves everything running, prints commands to look around with, and waits for Ctrl-C."""
    uow = "uow" if shutil.which("uow") else _near(Path(sys.argv[0]))
    python, at = _near(Path(sys.executable)), f"--bootstrap {environment.bootstrap}"
    screen.act("Everything goes on running: look around; Ctrl-C ends it")
    if story == "megazon":
        screen.command(f"{python} {_near(environment.story / 'checkout.py')} --customers 5 {at}")
        screen.command(f"{uow} groups megazon -c {environment.config}")
        screen.command(f"{uow} read megazon --count 3 -c {environment.config}")
    else:
        screen.command(f"{python} {_near(environment.story / 'warehouse.py')} --events 20 {at}")
        screen.command(f"{uow} groups supply -c {environment.config}")
        screen.command(f"{uow} rules history -c {environment.config}")
    for page in environment.web_pages():
        screen.say(page)
    screen.say(f"logs in {environment.logs}")
    while True:
        signal.pause()


def _near(path: Path) -> str:
    """A path relative to the working directory where that is shorter, as people would type it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
