"""`uow prove`: faults on a real broker, judged by a checker that shares no code with the worker."""

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

from uow.cli.main import FAILED
from uow.cli.options import config_file_option, json_option
from uow.config.loading import load
from uow.terminal.printing import print_json

if TYPE_CHECKING:
    from uow.prove.faults import FaultKind
    from uow.prove.proof import Proof, ProofSettings
    from uow.prove.round import RoundCluster
    from uow.terminal.screen import Screen

MAX_WORKERS = 8
BROKER_LOG = ("-Dorg.slf4j.simpleLogger.log.kafka.coordinator.transaction=info",)
"""Loggers of the embedded broker whose lines help when a round cannot be judged: they show what happened to transactions over a restart."""


@click.command()
@config_file_option
@click.option(
    "--bootstrap",
    metavar="HOST:PORT",
    help="A cluster that needs no further settings. [default: an embedded broker, unless -c is given]",
)
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    default=3.0,
    show_default=True,
    help="How long new rounds and faults are begun.",
)
@click.option("--rounds", type=click.IntRange(1), help="Play exactly this many rounds, however long they take.")
@click.option("--seed", type=int, help="Decides faults and records, but not their timing. [default: from the clock]")
@click.option("--workers", type=click.IntRange(1, MAX_WORKERS), default=2, show_default=True, help="Worker processes.")
@click.option(
    "--faults",
    "wanted",
    metavar="KIND,...",
    help="Only these kinds of fault; `help` explains them. [default: all that are possible]",
)
@click.option("--per-round", type=click.IntRange(1), default=20, show_default=True, help="Faults in a round.")
@click.option("--rate", type=click.IntRange(1, 100_000), help="Records a second. [default: drawn for each round]")
@click.option(
    "--client",
    "of_clients",
    is_flag=True,
    help="Prove the client in place of workers: producers, forwarders and readers.",
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="An empty folder for report.html, report.json and logs. [default: a new temporary folder]",
)
@click.option(
    "--keep", is_flag=True, help="Also keep logs and records of good rounds; those of failed rounds are always kept."
)
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
    of_clients: bool,
    folder: Path | None,
    keep: bool,
    as_json: bool,
) -> None:
    """Run workers under load, cause faults that the seed decides, then read every topic again and judge.

    Runs on an embedded broker, or with -c or --bootstrap on your cluster, in topics of its own, which it deletes afterwards. Exit 0: proved;
    1: an anomaly, or nothing proved; 2: wrong usage.
    """
    from uow.prove.faults import TEXTS
    from uow.prove.proof import ProofSettings
    from uow.terminal.screen import Screen

    if wanted == "help":
        for kind, text in TEXTS.items():
            click.echo(f"{kind:14} {text}")
        return
    if path is not None and bootstrap is not None:
        raise click.UsageError("-c and --bootstrap each name a cluster: give only one of them")
    if not of_clients:
        try:
            version("faust-streaming")
        except PackageNotFoundError as missing:
            raise ModuleNotFoundError("the worker is not installed", name="faust") from missing
    kinds = _kinds(wanted, is_ours=path is None and bootstrap is None, of_clients=of_clients)
    seed = seed if seed is not None else time.time_ns() // 1_000_000 % 1_000_000
    settings = ProofSettings(seed, kinds, minutes, rounds or 0, workers, per_round, rate or 0)
    folder = _folder(folder)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell starts a background job with SIGINT ignored
        signal.signal(number, _interrupt)
    screen = Screen(sys.stderr if as_json else sys.stdout)
    try:
        with _cluster(path, bootstrap, folder, settings) as cluster:
            if of_clients:
                is_good = _prove_clients(screen, cluster, settings, folder, keep, as_json)
                ctx.exit(0 if is_good else FAILED)
            proof = _prove(screen, cluster, settings, folder, keep)
    except KeyboardInterrupt:
        screen.say("stopped before the end: nothing is proved")
        ctx.exit(FAILED)
    _tell(screen, proof, as_json)
    ctx.exit(0 if proof.is_good else FAILED)


def _kinds(wanted: str | None, is_ours: bool, of_clients: bool) -> list[FaultKind]:
    """The kinds of fault to draw from: the named ones, else all that are possible on this cluster, and of these programs."""
    from uow.prove.client_round import KINDS
    from uow.prove.cluster_faults import can_fill_disk
    from uow.prove.faults import FaultKind

    possible = [
        kind
        for kind in FaultKind
        if (is_ours or not kind.is_of_broker)
        and (can_fill_disk() or kind is not FaultKind.DISK_FULL)
        and (not of_clients or kind in KINDS)
    ]
    if wanted is None:
        return possible
    names = [name.strip() for name in wanted.split(",")]
    for name in names:
        if name not in list(FaultKind):
            raise click.BadParameter(
                f"no such fault: {name!r}; `uow prove --faults help` explains them", param_hint="--faults"
            )
        if name not in possible:
            where = "for workers" if of_clients and FaultKind(name) not in KINDS else "with the embedded broker"
            raise click.BadParameter(f"{name} is possible only {where}", param_hint="--faults")
    return [kind for kind in FaultKind if kind in names]


def _folder(given: Path | None) -> Path:
    if given is None:
        return Path(tempfile.mkdtemp(prefix="uow-prove-"))
    if given.exists() and any(given.iterdir()):
        raise click.BadParameter("must be empty, or must not exist yet", param_hint="--dir")
    given.mkdir(parents=True, exist_ok=True)
    return given.resolve()


@contextmanager
def _cluster(path: Path | None, bootstrap: str | None, folder: Path, settings: ProofSettings) -> Iterator[RoundCluster]:
    """The named cluster, else an embedded broker, whose log is left in `folder`."""
    from uow.prove.faults import FaultKind
    from uow.prove.frames import Proxy
    from uow.prove.round import RoundCluster

    if bootstrap is not None:
        yield RoundCluster(bootstrap)
    elif path is not None:
        configuration = load(path)
        yield RoundCluster(configuration.bootstrap_servers, configuration.kafka)
    else:
        from uow.embedded.broker import EmbeddedBroker

        with ExitStack() as stack:
            proxy = stack.enter_context(Proxy(seed=settings.seed)) if FaultKind.FRAMES in settings.kinds else None
            port = proxy.port if proxy is not None else None
            broker = stack.enter_context(EmbeddedBroker(jvm_flags=BROKER_LOG, advertised=port))
            if proxy is not None:
                proxy.upstream = broker.behind
            try:
                yield RoundCluster(broker.bootstrap, broker=broker, proxy=proxy)
            finally:
                shutil.copy(broker.log, folder / "broker.log")


def _prove(screen: Screen, cluster: RoundCluster, settings: ProofSettings, folder: Path, keep: bool) -> Proof:
    """Plays the rounds, and writes the reports after each of them."""
    from uow.prove.page import page
    from uow.prove.proof import Proof
    from uow.prove.proof_report import as_json, round_line

    proof = Proof(cluster, settings, folder, keep)
    screen.title(f"uow prove: {settings.workers} workers on {proof.where}, seed {settings.seed}")
    screen.say(f"reports and logs in {folder}", "dim")
    while not proof.is_enough:
        number = len(proof.results)
        with screen.step(f"round {number}") as step:
            result = proof.play(settings.setup(number))
            step.is_good = result is not None and result.is_good
            step.text = f"round {number}: {round_line(result) if result else 'not judged'}"
        for text in result.findings.texts if result else ():
            screen.failed(text)
        (folder / "report.json").write_text(json.dumps(as_json(proof), indent=2), encoding="utf-8")
        (folder / "report.html").write_text(page(proof), encoding="utf-8")
    return proof


def _prove_clients(
    screen: Screen, cluster: RoundCluster, settings: ProofSettings, folder: Path, keep: bool, as_json: bool
) -> bool:
    """Plays the rounds of a client proof, and tells their results; True if there was no anomaly."""
    from uow.prove.client_round import prove

    def tell(number: int, text: str, is_good: bool) -> None:
        with screen.step(f"round {number}") as step:
            step.is_good, step.text = is_good, f"round {number}: {text}"

    screen.title(f"uow prove --client on {cluster.bootstrap}, seed {settings.seed}")
    screen.say(f"journals and logs in {folder}", "dim")
    report = prove(cluster, settings, folder, keep, tell)
    (folder / "report.json").write_text(json.dumps(report, indent=2), encoding="utf-8")
    for text in report["texts"]:
        screen.failed(text)
    if as_json:
        print_json(report)
    screen.check(report["proved"], report["verdict"])
    return bool(report["proved"])


def _tell(screen: Screen, proof: Proof, is_json: bool) -> None:
    from uow.prove.proof_report import as_json, show

    if is_json:
        print_json(as_json(proof))
    else:
        show(screen, proof)
        screen.say(f"report.html and report.json are in {proof.folder}")


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
