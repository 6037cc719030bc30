"""`uow demo`: the Megazon story, from a broker to Delta tables and an audit (contract section 9)."""

from __future__ import annotations

import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from uow.cli import FAILED
from uow.options import json_option
from uow.printing import print_json

if TYPE_CHECKING:
    from uow.demo.place import Place
    from uow.screen import Screen


@click.command()
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where everything goes; an empty folder. Without it a new one for temporary files.",
)
@click.option("--keep", is_flag=True, help="Leave broker and workers running at the end, until Ctrl-C.")
@click.option("--customers", type=click.IntRange(20), default=300, show_default=True, help="How many besides Jill.")
@click.option("--without-spark", is_flag=True, help="No tables and no audit; the counts are checked all the same.")
@json_option
@click.pass_context
def command(
    ctx: click.Context, folder: Path | None, keep: bool, customers: int, without_spark: bool, as_json: bool
) -> None:
    """Units of work on a real broker, in a minute or two: the story of Megazon.

    An order is split over suppliers that forward to each other, hundreds of customers order at once, everything that can go
    wrong does, and each order is invoiced once and whole. Exit 0 only if all counts agree and the audit is clean.
    """
    from uow.broker import BrokerFailed
    from uow.demo.place import DemoFailed, Place
    from uow.demo.play import Play, Size
    from uow.demo.report import show
    from uow.screen import Screen

    for number in (signal.SIGINT, signal.SIGTERM):  # a shell starts what it puts in the background with SIGINT ignored
        signal.signal(number, _interrupt)
    screen = Screen(sys.stderr if as_json else sys.stdout)
    place = Place(folder)
    good = is_told = False
    try:
        with place, ExitStack() as stack:
            screen.title("uow demo: an order is split over suppliers, and invoiced once and whole")
            screen.say(f"everything is in {place.folder}, logs in logs/", "dim")
            play = Play(place, screen, Size.of(customers), stack)
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
            is_told = True
            if keep:
                _keep(screen, place)
    except KeyboardInterrupt:
        screen.say()
        screen.say("stopped" if is_told else "stopped before the end: nothing is proven")
    except (DemoFailed, BrokerFailed) as failure:
        screen.failed(str(failure))
    ctx.exit(0 if good else FAILED)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _keep(screen: Screen, place: Place) -> None:
    """Everything goes on running; says how to look around, and waits for Ctrl-C."""
    uow = "uow" if shutil.which("uow") else _near(Path(sys.argv[0]))
    checkout = f"{_near(Path(sys.executable))} {_near(place.story / 'checkout.py')}"
    screen.act("Everything goes on running: look around; Ctrl-C ends it")
    screen.command(f"{checkout} --customers 5 --bootstrap {place.bootstrap}")
    screen.command(f"{uow} groups megazon -c {place.config}")
    screen.command(f"{uow} read megazon --count 3 -c {place.config}")
    for page in place.web_pages():
        screen.say(page)
    screen.say(f"logs in {place.logs}")
    while True:
        signal.pause()


def _near(path: Path) -> str:
    """A path as people would type it from here."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
