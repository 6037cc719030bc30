"""Runs of pip for the set-up: they show how far they are, take nothing from a user's settings but the way to the index, and say why they failed.

Belongs here: the settings that are kept, the progress lines, and the table of causes. Does not belong here: which packages are installed, and where
(`tools/setup.py`). Needs nothing but Python's standard library.
"""

import ast
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import NamedTuple

TELL_EVERY_S = 5
SHOWN_LINES = 40
# The way to the index. All else that pip takes from `PIP_*` and its files (constraints, targets, requirements of a virtual environment) could change
# what is installed, or where.
KEPT_SETTINGS = frozenset(
    {
        "cache-dir",
        "cert",
        "client-cert",
        "default-timeout",
        "extra-index-url",
        "find-links",
        "index-url",
        "keyring-provider",
        "no-cache-dir",
        "no-index",
        "proxy",
        "retries",
        "timeout",
        "trusted-host",
        "use-feature",  # `truststore`: certificates of the system
    }
)
AGAIN = "Run the same command again when that is mended: what is there already stays."


class Cause(NamedTuple):
    """A cause of failures: the expression that finds it in pip's output, and the text that is told."""

    expression: str
    remedy: str


# The first that is found is told. `{name}` and others are groups of the expression, `{python}` is this one.
CAUSES = (
    Cause(
        r"No space left on device|\[Errno 28\]|Disk quota exceeded",
        "the disk is full. A whole set-up needs about 1.5 GB, and pip another 1 GB in its folder for temporary files (TMPDIR) meanwhile. "
        + AGAIN,
    ),
    Cause(
        r"DO NOT MATCH THE HASHES[\s\S]*?\n +(?P<name>\S+?)(?:==(?P<version>\S+))? from ",
        "{name}: the file that the index handed out is not the one of {lock}: their hashes differ, and nothing of it was installed. Either the index has "
        "replaced the file, or something between here and the index changes it. Running it again does not help while that is so: use another index "
        "(PIP_INDEX_URL), and ask those who run this one.",
    ),
    Cause(
        r"CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError|certificate verify failed",
        "the certificate of the index is not trusted here. Name the file of your certificate authorities in PIP_CERT, then run the same command again.",
    ),
    Cause(
        r"ProxyError|407 Proxy|Cannot connect to proxy",
        "the proxy refuses, or does not answer. Correct PIP_PROXY or HTTPS_PROXY, then run the same command again.",
    ),
    Cause(
        r"HTTP error 40[13]|: 40[13] (?:Client )?Error|WARNING: 401 Error",
        "the index refuses access. Its address and credentials are in PIP_INDEX_URL or in pip's configuration (`pip config list`).",
    ),
    Cause(
        # the retries have to be about the package that was not found: others may have succeeded after theirs
        r"connection broken by [^\n]*/(?P<name>[^/\s]+)/?\n[\s\S]*satisfies the requirement (?P=name)==|"
        r"\n(?:ERROR: |[\w.]+(?:Error|Timeout|Exception|Incomplete\w*): )[^\n]*(?:timed out|Max retries|Connection (?:reset|aborted|refused|broken)|"
        r"Failed to establish|Remote end closed|IncompleteRead|[Ii]ncomplete download|too many 5\d\d|HTTP error 5\d\d|5\d\d Server Error)",
        "the package index could not be reached, or did not answer in time. Look at the network, or name a mirror in PIP_INDEX_URL. Then run the same "
        "command again: it goes on where it ended.",
    ),
    Cause(
        r"satisfies the requirement (?P<name>\S+?)==(?P<version>[^\s;]+)",
        "the index has no file of {name} {version} for {python}. Tested are Python {tested}: to use one of these, delete the folder {venv} and name it, as "
        "in `PYTHON=/path/to/python make ...`. If this is one of them, the index (a mirror?) lacks the file or is out of order: name another in PIP_INDEX_URL.",
    ),
    Cause(
        r"Failed building (?:wheel|editable) for (?P<name>\S+)|Failed to build '?(?P<other>[\w.-]+)|metadata-generation-failed|"
        r"subprocess-exited-with-error|Cannot import '(?P<backend>[\w.]+)'",
        "a package could not be built from its source; pip's output above says which and why.",
    ),
    Cause(
        r"(?:Permission denied|Read-only file system)(?:: '(?P<path>[^']+)')?",
        "pip may not write there: {path}. Run it as the user who owns the folder, or name another with VENV.",
    ),
)


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"setup: {text}", flush=True)


def explain(output: str, status: int, **known: str) -> str:
    """The cause of a failed run and the remedy, as far as its output tells.

    Args:
        known: texts for `lock`, `tested` and `venv`.
    """
    known |= {"python": f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"}
    for cause in CAUSES:
        found = re.search(cause.expression, output)
        if found:
            return cause.remedy.format(
                **known, **{name: group or "see above" for name, group in found.groupdict().items()}
            )
    if status < 0:
        return f"pip was ended by signal {-status}. Signal 9 often means that memory ran out."
    return f"pip failed with status {status}; its output above says why."


def watch(
    command: Sequence[str | Path],
    told: Callable[[], str],
    each_line: Callable[[str], object],
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
) -> int:
    """Run a program; every few seconds of it a line of progress is printed.

    Returns:
        Its status.
    """
    began = time.monotonic()
    with subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        lines = process.stdout
        reader = Thread(target=lambda: [each_line(line) for line in lines])
        reader.start()
        while (status := _ended(process)) is None:
            say(f"  {time.monotonic() - began:3.0f} s  {told()}")
        reader.join()
    return status


def _ended(process: subprocess.Popen[str]) -> int | None:
    """The status of a program, or None if it still runs after a while."""
    try:
        return process.wait(TELL_EVERY_S)
    except subprocess.TimeoutExpired:
        return None


def packages_folder(environment: Path) -> Path:
    """The folder of a virtual environment into which packages are installed."""
    found = [*environment.glob("lib/python3*/site-packages"), environment / "Lib" / "site-packages"]
    return next(path for path in found if path.exists() or path == found[-1])


def python_of(environment: Path) -> Path:
    """The Python of a virtual environment."""
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


class Steps:
    """How far a run of pip is, by the lines that it prints and the packages that appear in its environment."""

    def __init__(self, packages: Path) -> None:
        self._packages = packages
        self._lines: list[str] = []
        self._collected = self._total = 0
        self._doing = "pip starts"
        self._before: set[str] = set()

    @property
    def output(self) -> str:
        """All that pip printed."""
        return "".join(self._lines)

    def read(self, line: str) -> None:
        """Take note of a line."""
        self._lines.append(line)
        if found := re.match(r"Collecting (\S+?)(?:==| |$)", line):
            self._collected += 1
            self._doing = f"{self._collected} packages collected, at {found[1]}"
        elif found := re.match(r"\s+Downloading (\S+) \((.+)\)", line):
            self._doing = f"{self._collected} packages collected, downloading {found[1].rsplit('/', 1)[-1]}, {found[2]}"
        elif found := re.match(r"\s*Building \w+ for (\S+)", line):
            self._doing = f"building {found[1]}"
        elif found := re.match(r"Installing collected packages: (.+)", line):
            self._before = self._installed()
            self._total = found[1].count(",") + 1

    def told(self) -> str:
        """One line: packages that are collected, or installed."""
        if self._total:
            return f"{len(self._installed() - self._before)} of {self._total} packages installed"
        return self._doing

    def _installed(self) -> set[str]:
        return {path.name for path in self._packages.glob("*.dist-info")}


class Pip:
    """The pip of a virtual environment.

    Args:
        environment: The folder of the environment.
        root: The project's folder, in which pip runs.
        tested: The Pythons that the project is tested with, as text.
    """

    def __init__(self, environment: Path, root: Path, tested: str) -> None:
        self._environment, self._root, self._tested = environment, root, tested
        self._settings: dict[str, str] | None = None

    def __call__(self, verb: str, *arguments: str | Path, lock: str = "the lock") -> None:
        """Run `pip install` or another verb; a failure ends the program and says what to do."""
        command = [python_of(self._environment), "-m", "pip", "--no-input", verb, *arguments]
        steps = Steps(packages_folder(self._environment))
        status = watch(command, steps.told, steps.read, self._variables(), self._root)
        if status:
            sys.stderr.write("".join(steps.output.splitlines(keepends=True)[-SHOWN_LINES:]))
            known = {"lock": lock, "tested": self._tested, "venv": str(self._environment)}
            sys.exit(f"setup: {explain(steps.output, status, **known)}")

    def _variables(self) -> dict[str, str]:
        """The environment variables for pip: of its settings only those that are kept."""
        if self._settings is None:
            self._settings = self._kept_settings()
        return _without("PIP_", "PYTHON") | self._settings

    def _kept_settings(self) -> dict[str, str]:
        # loud, since the user's settings may say `quiet`
        command = [str(python_of(self._environment)), "-m", "pip", "-vvv", "config", "list"]
        variables = _without("PIP_PYTHON", "PYTHON")
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.stderr.write(done.stderr)
            sys.exit("setup: pip cannot read its configuration; its message is above.")
        kept = {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        for section in ("global", "install", ":env:"):  # the later wins
            for name, value in re.findall(rf"^{section}\.([a-z-]+)=(.+)$", done.stdout, re.MULTILINE):
                if name in KEPT_SETTINGS and (text := ast.literal_eval(value)):  # pip takes an empty variable for none
                    kept["PIP_" + name.upper().replace("-", "_")] = text
        return kept


def _without(*prefixes: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
