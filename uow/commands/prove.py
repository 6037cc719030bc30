"""`uow prove`: faults on a real broker, and a checker that shares no code with the worker."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from uow.cli import FAILED
from uow.config import load
from uow.options import config_file_option, json_option
from uow.printing import print_json

if TYPE_CHECKING:
    from uow.prove.faults import Kind
    from uow.prove.proof import Proof, Wish
    from uow.prove.round import Cluster
    from uow.screen import Screen

MAX_WORKERS = 8
BROKER_LOG = ("-Dorg.slf4j.simpleLogger.log.kafka.coordinator.transaction=info",)
"""What becomes of transactions over a restart of the broker is worth reading where a round cannot be judged."""


@click.command()
@config_file_option
@click.option(
    "--bootstrap",
    metavar="HOST:PORT",
    help="A cluster that needs no further settings; without it and -c an embedded broker.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    default=3.0,
    show_default=True,
    help="Begin rounds and faults for so long.",
)
@click.option("--rounds", type=click.IntRange(1), help="Exactly so many rounds, whatever the time.")
@click.option("--seed", type=int, help="Decides faults and records; timing is the machine's. [default: by the clock]")
@click.option("--workers", type=click.IntRange(1, MAX_WORKERS), default=2, show_default=True, help="Worker processes.")
@click.option(
    "--faults", "wanted", metavar="KIND,...", help="Only these kinds; `help` explains them. [default: all that can be]"
)
@click.option("--per-round", type=click.IntRange(1), default=20, show_default=True, help="Faults in a round.")
@click.option("--rate", type=click.IntRange(1, 100_000), help="Records a second. [default: drawn for each round]")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="For report.html, report.json and logs; without it a new one for temporary files.",
)
@click.option("--keep", is_flag=True, help="Leave logs and truth of good rounds as well; those of others stay anyway.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    path: Path | None,
    bootstrap: str | None,
    minutes: float,
    rounds: int | None,
    seed: int | None,
    workers: int,
    wanted: str | None,
    per_round: int,
    rate: int | None,
    folder: Path | None,
    keep: bool,
    as_json: bool,
) -> None:
    """Workers under load, harmed as the seed has it; then everything is read again and judged.

    On an embedded broker, or with -c or --bootstrap on a cluster of yours, on topics of its own, which it removes again. Exit 0: proved;
    1: an anomaly, or nothing proven; 2: wrong usage.
    """
    from uow.prove.faults import TEXTS
    from uow.prove.proof import Wish
    from uow.screen import Screen

    if wanted == "help":
        for kind, text in TEXTS.items():
            click.echo(f"{kind:14} {text}")
        return
    if path is not None and bootstrap is not None:
        raise click.UsageError("-c and --bootstrap name a cluster each: give one")
    try:
        version("faust-streaming")
    except PackageNotFoundError as missing:
        raise ModuleNotFoundError("the worker is not installed", name="faust") from missing
    kinds = _kinds(wanted, is_ours=path is None and bootstrap is None)
    seed = seed if seed is not None else time.time_ns() // 1_000_000 % 1_000_000
    wish = Wish(seed, kinds, minutes, rounds or 0, workers, per_round, rate or 0)
    folder = _folder(folder)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell starts what it puts in the background with SIGINT ignored
        signal.signal(number, _interrupt)
    screen = Screen(sys.stderr if as_json else sys.stdout)
    try:
        with _cluster(path, bootstrap, folder, wish) as cluster:
            proof = _prove(screen, cluster, wish, folder, keep)
    except KeyboardInterrupt:
        screen.say("stopped before the end: nothing is proven")
        ctx.exit(FAILED)
    _tell(screen, proof, as_json)
    ctx.exit(0 if proof.is_good else FAILED)


def _kinds(wanted: str | None, is_ours: bool) -> list[Kind]:
    """The kinds of fault to draw from: those that were named, else all that can be done here."""
    from uow.prove.faults import Kind
    from uow.prove.weather import can_fill_disk

    possible = [
        kind for kind in Kind if (is_ours or not kind.is_of_broker) and (can_fill_disk() or kind is not Kind.DISK_FULL)
    ]
    if wanted is None:
        return possible
    names = [name.strip() for name in wanted.split(",")]
    for name in names:
        if name not in list(Kind):
            raise click.BadParameter(
                f"no such fault: {name!r}; `uow prove --faults help` explains them", param_hint="--faults"
            )
        if name not in possible:
            raise click.BadParameter(f"{name} cannot be done here: to an embedded broker only", param_hint="--faults")
    return [kind for kind in Kind if kind in names]


def _folder(given: Path | None) -> Path:
    if given is None:
        return Path(tempfile.mkdtemp(prefix="uow-prove-"))
    if given.exists() and any(given.iterdir()):
        raise click.BadParameter("must be empty, or not be there yet", param_hint="--dir")
    given.mkdir(parents=True, exist_ok=True)
    return given.resolve()


@contextmanager
def _cluster(path: Path | None, bootstrap: str | None, folder: Path, wish: Wish) -> Iterator[Cluster]:
    """The one that was named, else an embedded broker; what that said is left in `folder`."""
    from uow.prove.faults import Kind
    from uow.prove.frames import Proxy
    from uow.prove.round import Cluster

    if bootstrap is not None:
        yield Cluster(bootstrap)
    elif path is not None:
        settings = load(path)
        yield Cluster(settings.bootstrap_servers, settings.kafka)
    else:
        from uow.broker import EmbeddedBroker

        with ExitStack() as stack:
            proxy = stack.enter_context(Proxy(seed=wish.seed)) if Kind.FRAMES in wish.kinds else None
            port = proxy.port if proxy is not None else None
            broker = stack.enter_context(EmbeddedBroker(jvm_flags=BROKER_LOG, advertised=port))
            if proxy is not None:
                proxy.upstream = broker.behind
            try:
                yield Cluster(broker.bootstrap, broker=broker, proxy=proxy)
            finally:
                shutil.copy(broker.log, folder / "broker.log")


def _prove(screen: Screen, cluster: Cluster, wish: Wish, folder: Path, keep: bool) -> Proof:
    """Plays the rounds; the reports are there after each of them."""
    from uow.prove.page import page
    from uow.prove.proof import Proof
    from uow.prove.report import as_json, round_line

    proof = Proof(cluster, wish, folder, keep)
    screen.title(f"uow prove: {wish.workers} workers on {proof.where}, seed {wish.seed}")
    screen.say(f"reports and logs in {folder}", "dim")
    while not proof.is_enough:
        number = len(proof.results)
        with screen.step(f"round {number}") as step:
            result = proof.play(wish.setup(number))
            step.is_good = result is not None and result.is_good
            step.text = f"round {number}: {round_line(result) if result else 'not judged'}"
        for text in result.findings.texts if result else ():
            screen.failed(text)
        (folder / "report.json").write_text(json.dumps(as_json(proof), indent=2), encoding="utf-8")
        (folder / "report.html").write_text(page(proof), encoding="utf-8")
    return proof


def _tell(screen: Screen, proof: Proof, is_json: bool) -> None:
    from uow.prove.report import as_json, show

    if is_json:
        print_json(as_json(proof))
    else:
        show(screen, proof)
        screen.say(f"report.html and report.json are in {proof.folder}")


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
