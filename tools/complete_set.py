"""Is a set of installed packages complete? `pip check` does not look at extras (`psycopg[binary]`), and not at the lock, so this walks through both.

    python -m tools.complete_set FOLDER LOCK[,LOCK] REQUIREMENT...

`FOLDER` has the packages, each `REQUIREMENT` is where a walk begins, the project with its extras for one. A package that is needed on this Python and is not in a lock, not
installed, or of a version that is not accepted, is told in a line, and the exit status is 1.
"""

import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

try:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name
except ImportError:
    sys.exit("setup: requirements/build.lock lacks packaging, which this check needs")


def locked(lock: Path) -> set[str]:
    """The names in a lock."""
    return {canonicalize_name(name) for name in re.findall(r"^([A-Za-z0-9._-]+)==", lock.read_text(), re.MULTILINE)}


def faults(packages: Path, locks: list[Path], roots: list[str]) -> Iterator[str]:
    """One line for each requirement that the set does not fulfil."""
    installed = {canonicalize_name(each.name): each for each in metadata.distributions(path=[str(packages)])}
    names = set().union(*map(locked, locks)) | {canonicalize_name(Requirement(root).name) for root in roots}
    where = " and ".join(map(str, locks))
    todo: list[tuple[Requirement, str]] = [(Requirement(root), "the project") for root in roots]
    seen: set[tuple[str, str]] = set()
    while todo:
        wanted, by = todo.pop()
        name = canonicalize_name(wanted.name)
        found = installed.get(name)
        if name not in names or found is None:
            yield f"{where} lacks {name}, which {by} needs" + (" on this Python" if name in names else "")
            continue
        if not wanted.specifier.contains(found.version, prereleases=True):
            yield f"{where} has {name} {found.version}, and {by} needs {wanted.specifier}"
        for extra in {"", *wanted.extras} - {extra for each, extra in seen if each == name}:
            seen.add((name, extra))
            below = [Requirement(text) for text in found.requires or ()]
            chosen = [each for each in below if each.marker is None or each.marker.evaluate({"extra": extra})]
            todo += [(each, f"{name} {found.version}") for each in chosen]


def main() -> int:
    """Tell the faults."""
    packages, locks, *roots = sys.argv[1:]
    found = sorted(set(faults(Path(packages), [Path(lock) for lock in locks.split(",")], roots)))
    for line in found:
        print(f"setup: {line}", file=sys.stderr)
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main())
