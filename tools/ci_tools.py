"""Install the tools of other languages, and the browser, that the tests use: `make ci-tools`, which CI runs first.

A skipped test fails CI (decision 112), so what it needs has to be there. Debian's packages come from apt, as root or by a `sudo` that asks no
password; Go comes from its wheel by `requirements/go.lock` into `.tools`, since Debian's is too old for the Kafka client of the
examples. Nothing is done where everything is there.

Exit status 0: all is there. 1: it names what is missing, and why it could not be installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tools.setup import LOCKED, pip_of

ROOT = Path(__file__).resolve().parent.parent
GO_LOCK = ROOT / "requirements" / "go.lock"
GO_FOLDER = ROOT / ".tools"
GO_MODULE = ROOT / "examples" / "producers" / "go" / "kafka" / "go.mod"


class Tool(NamedTuple):
    """A tool: the names under which it may be on the path, and Debian's package."""

    commands: tuple[str, ...]
    package: str

    def is_there(self) -> bool:
        """True if one of the names is on the path."""
        return any(map(shutil.which, self.commands))


TOOLS = (
    Tool(("javac",), "default-jdk-headless"),
    Tool(("node",), "nodejs"),
    Tool(("npm",), "npm"),
    Tool(("chromium", "chromium-browser", "google-chrome"), "chromium"),
)


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"ci-tools: {text}", flush=True)


def install(tools: Sequence[Tool]) -> str:
    """Installs Debian's packages; the reason if that is not possible, else an empty text."""
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if shutil.which("apt-get") is None:
        return "there is no apt-get here"
    if as_root and (shutil.which("sudo") is None or subprocess.run([*as_root, "true"], check=False).returncode):
        return "apt-get needs root"
    apt = [*as_root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-o", "Acquire::Retries=3"]
    packages = [tool.package for tool in tools]
    say(f"apt-get install {' '.join(packages)}")
    subprocess.run([*apt, "update"], check=False)  # a source that does not answer need not be the one that is needed
    done = subprocess.run(
        [*apt, "install", "-y", "--no-install-recommends", *packages], stdout=subprocess.DEVNULL, check=False
    )
    return f"apt-get ended with status {done.returncode}" if done.returncode else ""


def go_needed() -> tuple[int, int]:
    """The Go version that the Kafka client of the examples asks for."""
    found = re.search(r"^go (\d+)\.(\d+)", GO_MODULE.read_text("utf-8"), re.MULTILINE)
    assert found is not None
    return int(found[1]), int(found[2])


def has_go() -> bool:
    """True if a Go that is new enough is on the path."""
    go = shutil.which("go")
    if go is None:
        return False
    environment = os.environ | {"GOTOOLCHAIN": "local"}
    told = subprocess.run([go, "version"], env=environment, capture_output=True, text=True, check=False).stdout
    found = re.search(r"\bgo(\d+)\.(\d+)", told)
    return found is not None and (int(found[1]), int(found[2])) >= go_needed()


def install_go() -> str:
    """Installs Go into `.tools`, which the Makefile has on the path; the reason if that is not possible.

    Of a user's settings pip takes the way to the index alone, as in the set-up.
    """
    say(f"Go by {GO_LOCK.relative_to(ROOT)}")
    shutil.rmtree(GO_FOLDER, ignore_errors=True)  # pip does not replace what is in a target folder
    try:
        pip_of(Path(sys.prefix))("install", *LOCKED, "--target", GO_FOLDER, "-r", GO_LOCK, lock=str(GO_LOCK))
    except SystemExit as failure:
        return str(failure)
    return ""


def main() -> int:
    """Look for each tool, install what is missing, and look again."""
    missing = [tool for tool in TOOLS if not tool.is_there()]
    if missing:
        reason = install(missing)
        missing = [tool for tool in missing if not tool.is_there()]
        for tool in missing:
            say(f"{tool.commands[0]} is missing (Debian's package {tool.package}): {reason}")
    if not has_go():
        reason = install_go()
        if not has_go():
            say(f"go {'.'.join(map(str, go_needed()))} or newer is missing: {reason}")
            return 1
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
