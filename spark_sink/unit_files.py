"""Files for suppliers: a unit as one file, and the folder of a topic with its files and its manifests.

A task writes files under temporary names (`stage`), and the driver alone gives them their names (`UnitFolder.publish`). A file counts once its line
is in a manifest; the line comes after the file is on disk under its name, and is never changed. So a kill at any moment leaves files that are
whole, and lines that are true; what a repeated batch brings is either listed already, or takes its own name again.

    DIR/D/TOPIC/3f/0d1c….xml                the files, in 256 folders
    DIR/D/TOPIC/ROW/3f/0d1c….xml            those of units by rule: a folder for each routing name that has a row, with manifests of its own
    DIR/D/TOPIC/manifest/2026-11-22.sha256  their digests, by the day on which the unit closed: `sha256sum -c`, in TOPIC

Belongs here: names, contents, and these steps on a file system. No Spark. Does not belong here: which units there are (`uow.spark_sink.file_sink`).
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple
from uuid import uuid4

from uow.schemas import codec, formats
from uow.schemas.error_classes import DecodeError
from uow.schemas.records import ComponentRecord, Unit
from uow.topics.rules import RuleName


class FileFormat(StrEnum):
    """Format of the files; the value is the ending of their names."""

    XML = "xml"
    JSON = "json"
    AVRO = "avro"


CONTENT_TYPE: Final = "content-type"
_JSON_TYPE: Final = re.compile(rb"\s*application/(?:[a-z0-9.+-]+\+)?json\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)


def is_json(component: ComponentRecord) -> bool:
    """True if a component's last header `content-type` declares JSON."""
    types = [value for name, value in component.headers if name.lower() == CONTENT_TYPE]
    return bool(types and types[-1] is not None and _JSON_TYPE.fullmatch(types[-1]))


def content(unit: Unit, kind: FileFormat) -> bytes:
    """A unit's file: the same bytes for the same unit."""
    if kind is FileFormat.JSON:
        return formats.to_json(unit, is_json)
    return formats.to_xml(unit) if kind is FileFormat.XML else codec.container(unit)


# -- names ---------------------------------------------------------------------------------------------------------------

LONGEST_NAME: Final = 200
_KEPT_OF_LONG: Final = 100
_DEVICES: Final = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?")
"""Names that Windows keeps for itself, with any ending."""
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_.")


def file_name(text: str) -> str:
    """A name for any text, without an ending: another one for every other text, on every file system, and the same at any time.

    Lower-case letters, digits, `-`, `_` and `.` stay, so a UUID is its own name. Every other byte of the text's UTF-8 is written as `%xx`, which
    `urllib.parse.unquote` reads: capital letters as well, since many file systems do not tell them apart, and what a file system or
    Windows would take for something else: `.`, `_` or `-` in front, `.` at the end, `con`. Of a long name the beginning is kept, with the SHA-256 of the text.
    """
    name = "".join(chr(each) if each in _PLAIN else f"%{each:02x}" for each in text.encode())
    if name[:1] in ("-", "_", ".") or _DEVICES.fullmatch(name):
        name = f"%{ord(name[0]):02x}{name[1:]}"
    if name.endswith("."):
        name = f"{name[:-1]}%2e"
    if not name or len(name) > LONGEST_NAME:
        name = f"{name[:_KEPT_OF_LONG]}~{sha256(text.encode()).hexdigest()}"
    return name


def path_of(unit_id: str) -> str:
    """The path of a unit's file in its topic's folder, without the ending: one of 256 folders, and the name."""
    return f"{sha256(unit_id.encode()).hexdigest()[:2]}/{file_name(unit_id)}"


_OWN_FOLDER: Final = re.compile(r"[0-9a-f]{2}|manifest")


def row_folder(rule: str) -> str:
    """The folder of a row of a rule in that of its topic, by the text of `uow-rule`; empty for a unit of work, which stands in the topic's own (B-03).

    It is the routing name of the row, so there are as many as rows, whatever names senders think of. One text that is no name of a row counts as a
    routing name: the worker that wrote it knows better.
    """
    if not rule:
        return ""
    try:
        name = file_name(RuleName.parse(rule).routing_name)
    except DecodeError:
        name = file_name(rule)
    return f"%{ord(name[0]):02x}{name[1:]}" if _OWN_FOLDER.fullmatch(name) else name


# -- one file ------------------------------------------------------------------------------------------------------------


class Staged(NamedTuple):
    """A file under its temporary name, or the reason why there is none.

    Attributes:
        topic: Topic of the unit's record.
        partition: Its partition.
        offset: Its offset.
        timestamp: Its timestamp, epoch ms.
        unit_id: Of the unit; None where it could not be read.
        day: The day on which it closed, in UTC: `YYYY-MM-DD`.
        sha256: Digest of the file, in hexadecimal digits.
        temporary: The temporary name.
        problem: The reason why there is no file.
        folder: Folder in that of the topic; empty for its own.
        ending: Of the name.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    unit_id: str | None
    day: str = ""
    sha256: str = ""
    temporary: str = ""
    problem: str | None = None
    folder: str = ""
    ending: str = ""

    @property
    def place(self) -> str:
        """The record: topic/partition/offset."""
        return f"{self.topic}/{self.partition}/{self.offset}"


def stage(data: bytes, folder: Path) -> tuple[str, str]:
    """Writes a file under a temporary name, on disk when this returns.

    Returns:
        The digest and the name, as in `Staged`.
    """
    temporary = uuid4().hex
    _write(folder / temporary, data)
    return sha256(data).hexdigest(), temporary


def day_of(at: int) -> str:
    """The day of a moment in epoch ms, in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(at / 1000))


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_whole(path: Path, text: str) -> None:
    """Writes or replaces a small file; it never is half."""
    temporary = path.with_name(f"{path.name}.{uuid4().hex}")
    _write(temporary, text.encode())
    temporary.replace(path)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    """The names in a folder are on disk when this returns."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# -- the folder of a topic, or of a row in it ----------------------------------------------------------------------------


def name_hash(folder: str, path: str) -> int:
    """A signed 64-bit hash of a file, to know it by: of a topic, or of a topic and a folder in its own, with a slash between; and of its path there."""
    return int.from_bytes(sha256(f"{folder}/{path}".encode()).digest()[:8], signed=True)


class Listed(NamedTuple):
    """A line of a manifest: the path without its ending, the ending, and the digest."""

    path: str
    ending: str
    sha256: str


@dataclass(frozen=True, slots=True)
class UnitFolder:
    """The folder of a topic, or of a row in it.

    Attributes:
        path: The folder; it need not exist yet.
    """

    path: Path

    @property
    def _manifests(self) -> Path:
        return self.path / "manifest"

    def rows(self) -> list[str]:
        """Names of the folders of rows in that of a topic."""
        return sorted(path.parent.name for path in self.path.glob("*/manifest") if path.is_dir())

    def listed(self) -> Iterator[Listed]:
        """The lines of all manifests. The rest of a line that was cut off when it was written is none."""
        for manifest in sorted(self._manifests.glob("*.sha256")):
            with manifest.open(encoding="ascii", newline="\n") as lines:
                for line in lines:
                    if line.endswith("\n"):
                        digest, _, name = line[:-1].partition("  ")
                        path, _, ending = name.rpartition(".")
                        yield Listed(path, ending, digest)

    def publish(self, files: Iterable[tuple[str, Staged]], temporary: Path) -> None:
        """Gives files their names, then lists them; when this returns, both are on disk.

        Args:
            files: Path and file; none of the paths is listed, and each comes once.
            temporary: The folder of the temporary names.
        """
        files = list(files)
        if not self.place(files, temporary):
            return
        lines: dict[str, list[str]] = {}
        for path, staged in files:
            lines.setdefault(staged.day, []).append(f"{staged.sha256}  {path}.{staged.ending}\n")
        self._manifests.mkdir(exist_ok=True)
        _sync_folder(self.path)
        for day, added in lines.items():
            _append(self._manifests / f"{day}.sha256", "".join(added))
        _sync_folder(self._manifests)

    def place(self, files: Iterable[tuple[str, Staged]], temporary: Path) -> list[Path]:
        """Gives files their names, on disk when this returns, without listing them; arguments as of `publish`."""
        targets = []
        for path, staged in files:
            target = self.path / f"{path}.{staged.ending}"
            target.parent.mkdir(parents=True, exist_ok=True)
            (temporary / staged.temporary).replace(target)
            targets.append(target)
        for folder in {target.parent for target in targets}:
            _sync_folder(folder)
        return targets


_LONGEST_LINE: Final = 1024


def _append(path: Path, text: str) -> None:
    """Appends whole lines to a file, of which the rest of a line that was cut off is removed before."""
    with path.open("ab+") as file:
        start = max(0, file.seek(0, os.SEEK_END) - _LONGEST_LINE)
        file.seek(start)
        file.truncate(start + file.read().rfind(b"\n") + 1)
        file.write(text.encode("ascii"))
        file.flush()
        os.fsync(file.fileno())


def problem_line(staged: Staged, reason: str) -> str:
    """A line for people about a record without a file of its own, as JSON."""
    return json.dumps({"record": staged.place, "unit_id": staged.unit_id, "reason": reason}) + "\n"


def in_order(files: Sequence[Staged]) -> list[Staged]:
    """Records in the order of their timestamps: that in which a unit was emitted."""
    return sorted(files, key=lambda each: (each.timestamp, each.topic, each.partition, each.offset))
