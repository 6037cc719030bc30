"""Make the environment and fetch the jars; called by `make setup` and `make install`, needs nothing but Python's standard library.

    python -m tools.setup           the environment of a checkout, `.venv`
    python -m tools.setup PART      an environment for production (`VENV`): client, worker, sink or all

A checkout's stages, each done once per state of the files it depends on:

1. build tools with hashes: pyspark has no wheel, and pip's isolated build environment knows no lock;
2. every package from `requirements/all.lock`, hashes required, built with the tools of stage 1;
3. the project itself, editable, and a look whether the set is complete;
4. two pips that a test sets up with;
5. the jars of `uow/jvm/jars.lock` (`python -m uow.jvm.jars`);
6. archives of the classes of Kafka and Spark, with which they start faster (`python -m tools.class_archive`).

pip resolves nothing: the locks are the whole set (decision 106). Belongs here: the order, the stamps, and the lock against two setups at once. When all
stages are up to date this starts no pip and touches no network. Does not belong here: how pip is run (`tools/pip_runs.py`).
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.pip_runs import AGAIN, Pip, packages_folder, python_of, say, watch

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / os.environ.get("VENV", ".venv")
PYTHON = python_of(VENV)
STAGES = VENV / ".stages"
OK = VENV / ".ok"
BUILD, ALL, PROJECT = "requirements/build.lock", "requirements/all.lock", "pyproject.toml"
TESTED = ((3, 11), (3, 12), (3, 13), (3, 14))
LINKED = ("processor", "schemas", "spark_sink", "topics")
PIPS = ("oldest", "newest")
LOCKED = ("--no-deps", "--require-hashes", "--only-binary", ":all:")
FROM_SOURCE = ("--no-binary", "pyspark", "--no-build-isolation")
# the lock, the extras and the sets of jars of an environment for production
PARTS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "client": ("requirements/client.lock", (), ()),
    "worker": ("requirements/worker.lock", ("worker", "rules", "postgresql"), ()),
    "sink": ("requirements/spark.lock", ("spark", "java"), ("spark",)),
    "all": (
        "requirements/production.lock",
        ("worker", "rules", "postgresql", "spark", "java"),
        ("broker", "spark"),
    ),
}


@contextmanager
def alone() -> Iterator[None]:
    """Hold the project's setup lock, so that two `make` at once do not install into each other."""
    try:
        import fcntl
    except ImportError:  # Windows: no lock, as before
        yield
        return
    try:
        lock = (ROOT / ".setup.lock").open("w")
    except OSError as error:
        sys.exit(f"setup: this folder cannot be written to: {error}. Run it as the user who owns the folder.")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another setup is running, waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def digest(*names: str) -> str:
    """Digest of the project's files that a stage's result depends on. The stamps are kept in the environment itself."""
    seen = hashlib.sha256()
    for name in names:
        seen.update((ROOT / name).read_bytes())
    return seen.hexdigest()


def done() -> dict[str, str]:
    """The stages that were completed, with the digest each was completed for."""
    if not STAGES.exists() or not PYTHON.exists():
        return {}
    return dict(line.split(" ", 1) for line in STAGES.read_text().splitlines())


def stage(name: str, state: str, text: str, work: Callable[[], None]) -> None:
    """Do something once per `state`; it is recorded as completed only if it ended well."""
    completed = done()
    if completed.get(name) == state:
        return
    OK.unlink(missing_ok=True)
    say(text)
    work()
    completed[name] = state
    STAGES.write_text("".join(f"{k} {v}\n" for k, v in completed.items()))


def pip_of(folder: Path) -> Pip:
    """The pip of an environment."""
    return Pip(folder, ROOT, ", ".join(f"{major}.{minor}" for major, minor in TESTED))


def make_environment(folder: Path) -> None:
    """Make a virtual environment with pip, unless a whole one is there."""
    # pip's list of its own files is written last
    if python_of(folder).exists() and any(packages_folder(folder).glob("pip-*.dist-info/RECORD")):
        return
    if folder.exists() and any(folder.iterdir()) and not (folder / "pyvenv.cfg").exists():
        sys.exit(f"setup: {folder} has other things in it than a Python environment. Name a new folder with VENV.")
    if importlib.util.find_spec("ensurepip") is None:
        minor = f"{sys.version_info.major}.{sys.version_info.minor}"
        sys.exit(
            f"setup: {sys.executable} cannot make environments: its module ensurepip is missing. On Debian and Ubuntu, "
            f"`apt install python{minor}-venv` as root brings it. Elsewhere, use another Python {minor} (PYTHON=/path/to/python{minor} make ...)."
        )
    say(f"Python {sys.version.split()[0]} environment in {os.path.relpath(folder, ROOT)}")
    try:
        # one inside of the checkout is made by this program alone; another may be somebody's, who has no pip in it
        clear = folder.exists() and folder.is_relative_to(ROOT)
        venv.EnvBuilder(with_pip=True, clear=clear, symlinks=os.name != "nt").create(folder)
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"setup: the environment in {folder} could not be made:\n{(error.output or b'').decode(errors='replace')}"
        )
    except OSError as error:
        sys.exit(f"setup: the environment in {folder} could not be made: {error}. {AGAIN}")


def check_python(folder: Path) -> None:
    """Stop where an environment is there that is of another Python."""
    config, this = folder / "pyvenv.cfg", f"{sys.version_info.major}.{sys.version_info.minor}"
    found = (
        re.search(r"^version(?:_info)? *= *(\d+\.\d+)", config.read_text(), re.MULTILINE) if config.exists() else None
    )
    if found and found[1] != this:
        sys.exit(
            f"setup: {folder} has Python {found[1]}, this is {this}: name that Python with PYTHON, or another folder with VENV."
        )


def check_set(python: Path, packages: Path, locks: tuple[str, ...], *roots: str) -> None:
    """Stop where a package is needed that no lock has."""
    command = [str(python), "-m", "tools.complete_set", str(packages), ",".join(locks), *roots]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        sys.exit(
            "setup: the set of packages is not complete. That is a fault of the lock, not of this machine, and running it again does not help: a "
            "maintainer makes the locks again with `make lock`."
        )


def keep_locked(pip: Pip, folder: Path, part: str, *locks: str) -> None:
    """Remove what an earlier lock of a part brought into an environment and these no longer have; what other parts need, or came otherwise, stays."""
    record = folder / f".locked-{part}"
    earlier = set(record.read_text().split()) if record.exists() else set()
    others = {name for each in folder.glob(".locked-*") if each != record for name in each.read_text().split()}
    pins = (re.findall(r"^([\w.-]+)(?:\[[^\]]*\])?==", (ROOT / lock).read_text(), re.MULTILINE) for lock in locks)
    now = {re.sub(r"[-_.]+", "-", name).lower() for names in pins for name in names}
    if dropped := sorted(earlier - now - others):
        say(f"packages that the lock has no longer: {', '.join(dropped)}")
        pip("uninstall", "--yes", *dropped)
    record.write_text("".join(f"{name}\n" for name in sorted(now)))


def of_project() -> tuple[list[str], list[str]]:
    """Requirements of the build of the project, and the names of its extras."""
    import tomllib

    told = tomllib.loads((ROOT / PROJECT).read_text())
    return told["build-system"]["requires"], list(told["project"].get("optional-dependencies", {}))


def python_packages() -> None:
    """Stages 1 to 4, the environment of a checkout."""
    make_environment(VENV)
    pip = pip_of(VENV)
    tools, extras = of_project()
    here = packages_folder(VENV)

    def build_tools() -> None:
        pip("install", *LOCKED, "-r", BUILD, lock=BUILD)
        check_set(PYTHON, here, (BUILD,), *tools)

    def packages() -> None:
        pip("install", *LOCKED, *FROM_SOURCE, "-r", ALL, lock=ALL)
        keep_locked(pip, VENV, "checkout", BUILD, ALL)

    def project() -> None:
        pip("install", "--no-deps", "--no-build-isolation", "-e", ".")
        check_set(PYTHON, here, (BUILD, ALL), f"uow[{','.join(extras)}]")

    def pips() -> None:
        for which in PIPS:
            lock = f"requirements/pip-{which}.lock"
            shutil.rmtree(VENV / "pips" / which, ignore_errors=True)  # the pip of an earlier lock
            pip("download", *LOCKED, "--dest", VENV / "pips" / which, "-r", lock, lock=lock)

    stage("build", digest(BUILD), "build tools", build_tools)
    stage(
        "packages",
        digest(BUILD, ALL),
        "Python packages by requirements/all.lock, about 0.5 GB (one to two minutes, once)",
        packages,
    )
    stage("project", digest(PROJECT, BUILD, ALL), "the project, editable", project)
    stage("pips", digest(*(f"requirements/pip-{which}.lock" for which in PIPS)), "pips for a test", pips)


def install(part: str) -> None:
    """Make an environment for production: the packages of one lock, and the project as a wheel. The build tools stay outside of it."""
    lock, extras, jar_sets = PARTS[part]
    if VENV == ROOT / ".venv":
        sys.exit(f"setup: VENV names the folder to install into: make install PART={part} VENV=/opt/uow")
    check_python(VENV)
    make_environment(VENV)
    here = packages_folder(VENV)
    pip = pip_of(VENV)
    with tempfile.TemporaryDirectory(dir=VENV, prefix=".build-") as scratch:
        builder = Path(scratch, "venv")
        make_environment(builder)
        build = pip_of(builder)
        say("build tools")
        build("install", *LOCKED, "-r", BUILD, lock=BUILD)
        say("the project, as a wheel")
        build("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", Path(scratch, "project"), ".")
        say(f"Python packages by {lock}")
        build("wheel", *LOCKED, *FROM_SOURCE, "--wheel-dir", Path(scratch, "wheels"), "-r", lock, lock=lock)
        pip("install", "--no-index", "--no-deps", *Path(scratch, "wheels").glob("*.whl"))
        keep_locked(pip, VENV, part, lock)
        # the same version may have other content
        pip("install", "--no-index", "--no-deps", "--force-reinstall", *Path(scratch, "project").glob("*.whl"))
        check_set(python_of(builder), here, (lock,), f"uow[{','.join(extras)}]" if extras else "uow")
    if jar_sets:
        (VENV / "jars").mkdir(exist_ok=True)
        fetch_jars(VENV, "-I", "-m", "uow.jvm.jars", *jar_sets)
        fetch_jars(VENV, "-I", "-c", "from uow.jvm import java; java.spark_home()")
    say(f"ready: {VENV / 'bin' / 'uow'}")


def fetch_jars(folder: Path, *command: str) -> None:
    """Run a program that fetches jars, or puts them in their place; it says itself what failed."""
    status = subprocess.run([PYTHON, *command], cwd=folder, check=False).returncode
    if status:
        sys.exit(status)


def check_links() -> None:
    """Stop where git wrote the links in `uow/` as small text files, as it does where it may not make links."""
    if not all((ROOT / "uow" / name).is_dir() for name in LINKED):
        sys.exit(
            "setup: uow/processor and others must be links to folders. "
            "On Windows, allow links (developer mode), then `git config core.symlinks true` and `git checkout -- uow`"
        )


def main() -> None:
    """Bring the environment and the jars to the state that the locks describe, or make one for production."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this very script is started with the Python of the machine
        sys.exit("setup: Python 3.11 or newer is needed (PYTHON=/path/to/python3.11 make ...)")
    if sys.version_info[:2] not in TESTED:
        oldest, newest = (".".join(map(str, each)) for each in (TESTED[0], TESTED[-1]))
        say(f"note: tested with Python {oldest} to {newest}, this is {sys.version.split()[0]}")
    check_links()
    part = sys.argv[1] if len(sys.argv) > 1 else None
    if part not in {None, *PARTS}:
        sys.exit(f"setup: there is no part {part}: make install PART={'|'.join(PARTS)} VENV=/opt/uow")
    with alone():
        if part:
            install(part)
            return
        python_packages()
        fetch_jars(ROOT, "-m", "uow.jvm.jars", "--quick")
        # .jars has one archive of each kind, for the Java of the checkout's own environment; those of `make test-pythons` do without
        if not OK.exists() and VENV.parent == ROOT:
            archives = [str(PYTHON), "-m", "tools.class_archive"]
            watch(archives, lambda: "the classes are being loaded and written", sys.stdout.write, folder=ROOT)
        if not OK.exists():
            OK.touch()
            say("ready")


if __name__ == "__main__":
    main()
