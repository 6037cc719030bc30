"""A package index on loopback with small made-up packages, and a small project that is set up from it by the very `tools` of this checkout.

The project has the shape of this one: a package that another requires with an extra, one that comes as source only, a build tool, and locks with hashes.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import venv
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path

from tests.setup.wheels import ROOT

# Builds wheels of `uow` and of the package that comes as source only, as hatchling and setuptools do for the real ones.
BACKEND = """
import pathlib, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name, version = pathlib.Path("name").read_text().split()
    where = f"{name}-{version}.dist-info"
    told = f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n" + pathlib.Path("requires").read_text()
    with zipfile.ZipFile(pathlib.Path(folder, f"{name}-{version}-py3-none-any.whl"), "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{where}/METADATA", told)
        wheel.writestr(f"{where}/WHEEL", "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{where}/RECORD", f"{name}.py,,\\n{where}/METADATA,,\\n{where}/WHEEL,,\\n{where}/RECORD,,\\n")
    return f"{name}-{version}-py3-none-any.whl"

build_editable = build_wheel
"""
BUILD_SYSTEM = '[build-system]\nrequires = ["backend"]\nbuild-backend = "backend"\n'
WHEEL = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def wheel(name: str, version: str, requires: Iterable[str] = (), extras: Iterable[str] = (), module: str = "") -> bytes:
    """The bytes of a wheel with one module."""
    told = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    told += [f"Requires-Dist: {each}" for each in requires] + [f"Provides-Extra: {each}" for each in extras]
    where = f"{name}-{version}.dist-info"
    files = {f"{name}.py": module, f"{where}/METADATA": "\n".join(told) + "\n", f"{where}/WHEEL": WHEEL}
    return _packed(files | {f"{where}/RECORD": "".join(f"{each},,\n" for each in [*files, f"{where}/RECORD"])})


def _packed(files: dict[str, str]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as out:
        for path, text in files.items():
            out.writestr(path, text)
    return packed.getvalue()


def wheel_of_installed(name: str) -> tuple[str, bytes]:
    """Version and wheel of a pure package that is installed here."""
    found = metadata.distribution(name)
    paths = [
        path for path in found.files or () if path.suffix != ".pyc" and path.name not in {"INSTALLER", "REQUESTED"}
    ]
    return found.version, _packed({str(path): path.read_text(encoding="utf-8") for path in paths})


def source(name: str, version: str) -> bytes:
    """A source distribution that `backend` builds."""
    files = {
        "pyproject.toml": BUILD_SYSTEM,
        "name": f"{name} {version}",
        "requires": "",
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as out:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{path}")
            entry.size = len(text)
            out.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


@dataclass
class Index:
    """Files by package; what is changed here is served at once. Paths that begin with `refused` are answered with `status`."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    refused: str = "-"
    status: int = 503
    url: str = ""

    def add(self, name: str, version: str, content: bytes) -> None:
        suffix = "py3-none-any.whl" if content[:2] == b"PK" else None
        file = f"{name}-{version}-{suffix}" if suffix else f"{name}-{version}.tar.gz"
        self.files.setdefault(name, {})[file] = content

    def lock(self, *pins: str) -> str:
        """Lines with hashes for `name==version`."""
        lines = []
        for pin in pins:
            name, version = pin.split("==")
            (content,) = (each for file, each in self.files[name].items() if file.startswith(f"{name}-{version}"))
            lines.append(f"{pin} \\\n    --hash=sha256:{sha256(content)}\n")
        return "".join(lines)

    def answer(self, path: str) -> bytes | None:
        """A page of PEP 503, or a file."""
        self.asked.append(path)
        kind, name, *rest = path.strip("/").split("/")
        if name not in self.files:
            return None
        if kind == "files":
            return self.files[name].get(rest[0])
        links = "".join(f'<a href="/files/{name}/{file}">{file}</a><br>' for file in self.files[name])
        return f"<!DOCTYPE html><html><body>{links}</body></html>".encode()


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, index: Index, *arguments: object) -> None:
        self._index = index
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        content = self._index.answer(self.path)
        refused = self.path.startswith(self._index.refused)
        status = self._index.status if refused else 404 if content is None else 200
        self.send_response(status)
        self.send_header("Content-Type", "text/html" if self.path.startswith("/simple") else "application/octet-stream")
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def served() -> Iterator[Index]:
    """An empty index, while the block runs."""
    index = Index()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, index))
    index.url = f"http://127.0.0.1:{server.server_port}/simple"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


PACKAGES = {
    "asks": (["wants[extra]>=1"], []),
    "wants": (['brought>=1; extra == "extra"'], ["extra"]),
    "brought": ([], []),
    "backend": ([], []),
}


def fill(index: Index, version: str) -> None:
    """Put a release of every package into the index."""
    for name, (requires, extras) in PACKAGES.items():
        index.add(name, version, wheel(name, version, requires, extras, BACKEND if name == "backend" else ""))
    index.add("pyspark", version, source("pyspark", version))


class Project:
    """A project in a folder, with the `tools` of this checkout, and the environment that is set up for it."""

    def __init__(self, folder: Path, index: Index, pip: Path) -> None:
        self.folder, self.environment, self._index = folder, folder / ".venv", index
        self.locks = folder / "requirements"
        version, packaging = wheel_of_installed("packaging")
        index.add("packaging", version, packaging)
        fill(index, "1.0")
        index.add("pip", "1.0", wheel("pip", "1.0"))
        for name in ("setup", "pip_runs", "complete_set"):
            self._write(f"tools/{name}.py", (ROOT / "tools" / f"{name}.py").read_text())
        for name in (
            "tools/__init__.py",
            "tools/class_archive.py",
            "uow/__init__.py",
            "uow/jvm/__init__.py",
            "uow/jvm/jars.py",
        ):
            self._write(name, "")
        for name in ("processor", "schemas", "spark_sink", "topics"):
            (folder / "uow" / name).mkdir()
        self._write("name", "uow 1.0")
        self._write(
            "requires", 'Requires-Dist: asks>=1\nRequires-Dist: pyspark>=1; extra == "all"\nProvides-Extra: all\n'
        )
        self._write(
            "pyproject.toml", BUILD_SYSTEM + '[project]\nname = "uow"\n[project.optional-dependencies]\nall = []\n'
        )
        self._write("requirements/build.lock", index.lock("backend==1.0", f"packaging=={version}"))
        self._write("requirements/all.lock", index.lock("asks==1.0", "wants==1.0", "brought==1.0", "pyspark==1.0"))
        self._write("requirements/client.lock", index.lock("asks==1.0", "wants==1.0", "brought==1.0"))
        for name in ("oldest", "newest"):
            self._write(f"requirements/pip-{name}.lock", index.lock("pip==1.0"))
        self.give_pip(self.environment, pip)

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def give_pip(self, environment: Path, pip: Path) -> None:
        """Make an environment that has the pip of this wheel."""
        venv.EnvBuilder(symlinks=True).create(environment)
        (packages,) = environment.glob("lib/python3*/site-packages")
        shutil.unpack_archive(pip, packages, "zip")

    def take_real_set(self) -> dict[str, str]:
        """Take the set of this checkout: each package of `all.lock` that this Python has, with its real metadata and no content; a newer release of each is served.

        Returns:
            The versions by name.
        """
        extras = metadata.metadata("uow").get_all("Provides-Extra") or []
        pins = re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "requirements" / "all.lock").read_text(), re.MULTILINE)
        lines, versions = [], {}
        for name, version in pins:
            try:
                found = metadata.distribution(name)
            except metadata.PackageNotFoundError:
                continue
            if found.version != version:  # the lock has another one for this Python or system
                continue
            near = name.replace("-", "_")
            told = found.requires or [], found.metadata.get_all("Provides-Extra") or []
            newer = self._index.files.setdefault(name, {})
            newer[f"{near}-9999-py3-none-any.whl"] = wheel(near, "9999", *told)
            file = f"{near}-{version}-py3-none-any.whl"
            if name == "packaging":  # it is used, and there already
                content = newer[file]
            elif name == "pyspark":
                content, file = source(name, version), f"{name}-{version}.tar.gz"
            else:
                content = wheel(near, version, *told)
            newer[file] = content
            lines.append(f"{name}=={version} --hash=sha256:{sha256(content)}\n")
            versions[name] = version
        self._write("requirements/all.lock", "".join(lines))
        required = [f"Requires-Dist: {each}" for each in metadata.requires("uow") or []]
        self._write("requires", "\n".join([*required, *(f"Provides-Extra: {each}" for each in extras)]) + "\n")
        optional = "".join(f"{each} = []\n" for each in extras)
        self._write(
            "pyproject.toml",
            BUILD_SYSTEM + f'[project]\nname = "uow"\n[project.optional-dependencies]\n{optional}',
        )
        return versions

    def leave_out(self, lock: str, name: str) -> None:
        """Remove a package from a lock."""
        path = self.locks / lock
        kept = [entry for entry in path.read_text().split("\n\n") if entry]
        lines = "\n".join(kept).splitlines()
        at = next(n for n, line in enumerate(lines) if line.startswith(f"{name}=="))
        path.write_text("\n".join(lines[:at] + lines[at + 2 :]) + "\n")

    def set_up(self, *part: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run the set-up to its end; standard error is part of the output."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "UOW_"))}
        own = {"PIP_INDEX_URL": self._index.url, "PIP_NO_CACHE_DIR": "1", "PIP_RETRIES": "1", "PIP_TIMEOUT": "5"}
        return subprocess.run(
            [sys.executable, "-m", "tools.setup", *part],
            cwd=self.folder,
            env=kept | own | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def installed(self, environment: Path | None = None) -> dict[str, str]:
        """Versions by name, without pip."""
        (packages,) = (environment or self.environment).glob("lib/python3*/site-packages")
        found = {each.name: each.version for each in metadata.distributions(path=[str(packages)])}
        return {name: version for name, version in found.items() if name != "pip"}
