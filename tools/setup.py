"""Make `.venv` and fetch the jars; called by `make setup`, needs nothing but Python's standard library.

Stages, each done once per state of the files it depends on:

1. build tools with hashes: pyspark has no wheel, and pip's isolated build environment knows no lock;
2. every package from `requirements/all.lock`, hashes required, built with the tools of stage 1;
3. the project itself, editable;
4. the jars of `uow/jvm/jars.lock` (`python -m uow.jvm.jars`);
5. archives of the classes of Kafka and Spark, with which they start faster (`python -m tools.class_archive`).

Belongs here: the order, the stamps, the lock against two setups at once, and the progress lines. When all
stages are up to date this starts no pip and touches no network.
"""

import hashlib
import os
import re
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / os.environ.get("VENV", ".venv")
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAGES = VENV / ".stages"
OK = VENV / ".ok"
BUILD, ALL, PROJECT = "requirements/build.lock", "requirements/all.lock", "pyproject.toml"
TESTED = ((3, 11), (3, 12))
LINKED = ("processor", "schemas", "spark_sink", "topics")


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"setup: {text}", flush=True)


@contextmanager
def alone() -> Iterator[None]:
    """Hold the project's setup lock, so that two `make` at once do not install into each other."""
    try:
        import fcntl
    except ImportError:  # Windows: no lock, as before
        yield
        return
    with (ROOT / ".setup.lock").open("w") as lock:
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


def pip(*arguments: str) -> None:
    """Run pip in the environment; show what it collects, and its whole output if it fails."""
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", *arguments]
    # a user's own constraints or target folder must not leak into the environment of the project
    environment = {
        k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PIP_TARGET", "PIP_USER", "PIP_PREFIX"}
    }
    said: list[str] = []
    began, collected, shown = time.monotonic(), 0, time.monotonic()
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            found = re.match(r"Collecting (\S+?)(==| |$)", line)
            collected += found is not None
            now = time.monotonic()
            if (found and now - shown > 3) or line.startswith("Installing collected"):
                shown = now
                what = (
                    f"{collected} packages, at {found[1]}" if found else f"{collected} packages collected, installing"
                )
                say(f"  {now - began:3.0f} s  {what}")
    if process.returncode:
        sys.stderr.write("".join(said[-40:]))
        sys.exit(f"setup: pip failed with status {process.returncode}; run `make setup` again to go on")


def done() -> dict[str, str]:
    """The stages that were completed, with the digest each was completed for."""
    if not STAGES.exists() or not PYTHON.exists():
        return {}
    return dict(line.split(" ", 1) for line in STAGES.read_text().splitlines())


def stage(name: str, state: str, text: str, *arguments: str) -> None:
    """Run pip once per `state`; a stage is recorded as completed only if pip succeeded."""
    completed = done()
    if completed.get(name) == state:
        return
    OK.unlink(missing_ok=True)
    say(text)
    pip(*arguments)
    completed[name] = state
    STAGES.write_text("".join(f"{k} {v}\n" for k, v in completed.items()))


def python_packages() -> None:
    """Stages 1 to 3."""
    if not PYTHON.exists():
        say(f"Python {sys.version.split()[0]} environment in {VENV.relative_to(ROOT)}")
        venv.EnvBuilder(with_pip=True, clear=VENV.exists(), symlinks=os.name != "nt").create(VENV)
    locked = ("--require-hashes", "--no-deps", "--only-binary", ":all:")
    stage("build", digest(BUILD), "build tools", *locked, "-r", BUILD)
    stage(
        "packages",
        digest(BUILD, ALL),
        "Python packages by requirements/all.lock, about 0.5 GB (one to two minutes, once)",
        *locked, "--no-binary", "pyspark", "--no-build-isolation", "-r", ALL,
    )  # fmt: skip
    stage("project", digest(PROJECT), "the project, editable", "--no-deps", "--no-build-isolation", "-e", ".")


def check_links() -> None:
    """Stop where git wrote the links in `uow/` as small text files, as it does where it may not make links."""
    if not all((ROOT / "uow" / name).is_dir() for name in LINKED):
        sys.exit(
            "setup: uow/processor and others must be links to folders. "
            "On Windows, allow links (developer mode), then `git config core.symlinks true` and `git checkout -- uow`"
        )


def main() -> None:
    """Bring the environment and the jars to the state that the locks describe."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this very script is started with the Python of the machine
        sys.exit("setup: Python 3.11 or newer is needed (PYTHON=/path/to/python3.11 make ...)")
    if sys.version_info[:2] not in TESTED:
        say(f"note: tested with Python 3.11 and 3.12, this is {sys.version.split()[0]}")
    check_links()
    with alone():
        python_packages()
        fetched = subprocess.run([str(PYTHON), "-m", "uow.jvm.jars", "--quick"], cwd=ROOT, check=False)
        if fetched.returncode:
            sys.exit(fetched.returncode)
        if not OK.exists():
            subprocess.run([str(PYTHON), "-m", "tools.class_archive"], cwd=ROOT, check=False)
        if not OK.exists():
            OK.touch()
            say("ready")


if __name__ == "__main__":
    main()
