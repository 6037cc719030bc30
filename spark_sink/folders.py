"""Folders of tables and checkpoints: on this machine as `pathlib.Path`, elsewhere by Hadoop's file systems, such as `s3a://bucket/tables`.

Belongs here: the few operations on folders that the jobs need besides Spark's own reading and writing. Does not belong here: what is in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from uow.schemas.error_classes import UowError

_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)")


@dataclass(frozen=True, slots=True)
class RemoteFolder:
    """A folder or file of a file system that Hadoop knows, with the part of `pathlib.Path` that is used here. It needs the Spark session.

    Attributes:
        uri: `scheme://place/folder`, without `/` at its end.
    """

    uri: str

    def __truediv__(self, name: str) -> RemoteFolder:
        return RemoteFolder(f"{self.uri}/{name}")

    def __str__(self) -> str:
        return self.uri

    @property
    def scheme(self) -> str:
        """Of the URI, `s3a`."""
        return self.uri.partition(":")[0]

    @property
    def name(self) -> str:
        return self.uri.rpartition("/")[2]

    @property
    def parent(self) -> RemoteFolder:
        return RemoteFolder(self.uri.rpartition("/")[0])

    def exists(self) -> bool:
        return bool(self._call("exists"))

    def is_dir(self) -> bool:
        return bool(self._call("isDirectory"))

    def mkdir(self, *, parents: bool, exist_ok: bool) -> None:
        self._call("mkdirs")

    def glob(self, pattern: str) -> Iterator[RemoteFolder]:
        # Hadoop's patterns know `{` as well, which the patterns used here have not
        found = self._call("globStatus", _jvm().org.apache.hadoop.fs.Path(f"{self.uri}/{pattern}"))
        return (RemoteFolder(status.getPath().toString()) for status in found or ())

    def read_text(self) -> str:
        stream = self._call("open")
        try:
            return str(_jvm().org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text(self, text: str) -> None:
        stream = self._call("create")
        stream.write(bytearray(text.encode()))
        stream.close()

    def _call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the file system, with this path unless others are given.

        Raises:
            UowError: It failed.
        """
        from py4j.protocol import Py4JJavaError

        try:
            path = _jvm().org.apache.hadoop.fs.Path(self.uri)
            system = path.getFileSystem(_context()._jsc.hadoopConfiguration())
            return getattr(system, method)(*(arguments or (path,)))
        except Py4JJavaError as error:
            raise UowError(f"{self.uri}: {error.java_exception.toString()}") from error


Folder = Path | RemoteFolder
"""A folder, wherever it is."""


def folder(text: str | Folder) -> Folder:
    """The folder that a path or a URI names; a path, and one in a URI of scheme `file`, as an absolute one."""
    if isinstance(text, RemoteFolder):
        return text
    found = _URI.fullmatch(str(text))
    if found is None:
        return Path(text).resolve()
    scheme, rest = found.groups()
    return Path("/", rest).resolve() if scheme == "file" else RemoteFolder(str(text).rstrip("/"))


def _context() -> Any:
    from pyspark import SparkContext  # the command line names folders before it starts Spark

    context = SparkContext._active_spark_context
    assert context is not None, "a folder elsewhere is asked for before the session is there"
    return context


def _jvm() -> Any:
    return _context()._jvm
