"""Archives of classes: the JVM maps classes that were parsed and verified once (class-data sharing), and starts in half the CPU time.

`make setup` makes them (`tools/class_archive.py`); everything works without. Belongs here: their names, and the flags of a JVM that uses one. Does not
belong here: what is on a class path.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from uow.jvm import jars, java


def archive(kind: str, class_path: Iterable[Path]) -> Path:
    """Path of the archive of a program's classes, as this Java lays them out in memory, for these jars in these folders.

    Args:
        kind: Name of the program.
        class_path: Its jars, all of which exist.
    """
    release = java.find().home / "release"
    made_for = [str(java.find().home), release.read_text() if release.is_file() else ""]
    # the JVM refuses an archive if a jar has another time of change
    made_for += (f"{jar} {jar.stat().st_mtime_ns}" for jar in class_path)
    digest = hashlib.sha256("\n".join(made_for).encode()).hexdigest()[:16]
    return jars.folder() / f"{kind}-{digest}.jsa"


def flags(archive: Path) -> list[str]:
    """The flags of a JVM that shall use an archive, none where there is none."""
    # a JVM that finds the archive unfit loads the classes from the jars, and would say so
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds*=off"] if archive.exists() else []
