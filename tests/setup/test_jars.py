"""The jar fetcher against a repository on the loopback interface: what it refuses, repairs and deletes."""

from __future__ import annotations

import errno
import hashlib
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests

from uow.jvm import jars

CONTENT = {"alpha": b"first jar" * 100, "beta": b"second jar" * 100}


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder and counts what it is asked for."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


class Repository:
    """A Maven repository in a folder, with its lock and its target folder."""

    def __init__(self, root: Path) -> None:
        self.files, self.into, self.lock = root / "repository", root / "jars", root / "jars.lock"
        self.asked: list[str] = []
        for artifact, content in CONTENT.items():
            path = self.files / f"org/example/{artifact}/1.0/{artifact}-1.0.jar"
            path.parent.mkdir(parents=True)
            path.write_bytes(content)
        self.write_lock(*CONTENT)

    def write_lock(self, *artifacts: str) -> None:
        self.lock.write_text(
            "".join(
                f"broker org.example:{name}:1.0 {len(CONTENT[name])} {hashlib.sha256(CONTENT[name]).hexdigest()}\n"
                for name in artifacts
            )
        )

    def ensure(self, *, quick: bool = False) -> list[str]:
        self.asked.clear()
        return sorted(jar.artifact for jar in jars.ensure(self.into, lock=self.lock, quick=quick))

    @property
    def present(self) -> list[str]:
        return sorted(path.name for path in (self.into / "broker").iterdir())


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    made = Repository(tmp_path)
    handler = type("Counting", (Handler,), {"asked": made.asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(made.files)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("UOW_MAVEN_REPOSITORY", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


def test_everything_missing_is_fetched_and_nothing_twice(repository: Repository) -> None:
    assert repository.ensure() == ["alpha", "beta"]
    assert repository.ensure() == []
    assert repository.asked == []
    assert repository.present == ["alpha-1.0.jar", "beta-1.0.jar"]


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * len(CONTENT["beta"])], ids=["empty", "short", "same size"])
def test_a_damaged_jar_is_fetched_again(repository: Repository, damage: bytes) -> None:
    repository.ensure()
    target = repository.into / "broker" / "beta-1.0.jar"
    target.write_bytes(damage)
    assert repository.ensure() == ["beta"]
    assert target.read_bytes() == CONTENT["beta"]


def test_a_quick_look_still_sees_a_missing_jar(repository: Repository) -> None:
    repository.ensure()
    assert repository.ensure(quick=True) == []
    (repository.into / "broker" / "alpha-1.0.jar").unlink()
    assert repository.ensure(quick=True) == ["alpha"]


def test_a_jar_with_a_wrong_sum_gets_no_name(repository: Repository) -> None:
    served = repository.files / "org/example/beta/1.0/beta-1.0.jar"
    served.write_bytes(b"hostile")
    with pytest.raises(jars.ChecksumMismatch) as caught:
        repository.ensure()
    assert caught.value.coordinate == "org.example:beta:1.0"
    assert "beta-1.0.jar" not in repository.present
    assert not [name for name in repository.present if name.endswith(".part")]


def test_what_left_the_lock_is_deleted_with_parts_of_killed_fetchers(repository: Repository) -> None:
    repository.ensure()
    (repository.into / "broker" / "alpha-1.0.jar.4711.part").write_bytes(b"half")
    repository.write_lock("beta")
    assert repository.ensure() == []
    assert repository.present == ["beta-1.0.jar"]


def test_two_fetchers_at_once_fetch_each_jar_once(repository: Repository) -> None:
    threads = [
        threading.Thread(target=jars.ensure, args=(repository.into,), kwargs={"lock": repository.lock}) for _ in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(repository.asked) == sorted(set(repository.asked))
    assert len(repository.asked) == 2


def test_the_class_path_names_locked_jars_only(tmp_path: Path) -> None:
    with pytest.raises(jars.JarsMissing, match="make setup") as caught:
        jars.class_path("broker", tmp_path)
    assert len(caught.value.names) == len(jars.locked(["broker"]))
    assert all(path.is_file() for path in jars.class_path("broker"))


def test_the_folder_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UOW_JARS", str(tmp_path))
    assert jars.folder() == tmp_path


def test_an_unknown_set_is_an_error() -> None:
    with pytest.raises(ValueError, match="no such set"):
        jars.locked(["brocker"])


def test_the_lock_names_no_jar_twice_and_keeps_versions_in_step() -> None:
    rows = jars.locked()
    assert len({jar.name for jar in rows}) == len(rows)
    assert jars.version("broker", "kafka-clients") == jars.version("broker", "kafka_2.13")
    assert jars.version("spark", "spark-avro_2.13") == jars.version("spark", "spark-sql-kafka-0-10_2.13")


@pytest.mark.parametrize(
    ("error", "goes_on"),
    [
        (jars.ChecksumMismatch("org.example:beta:1.0", "1", "2"), False),
        (requests.exceptions.SSLError("certificate"), False),
        (requests.HTTPError("404"), False),
        (requests.ConnectionError("refused"), True),
        (requests.Timeout("late"), True),
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (PermissionError(errno.EACCES, "Permission denied"), False),
    ],
)
def test_to_run_it_again_is_advised_only_where_that_goes_on(
    error: Exception, goes_on: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(jars, "ensure", fails)
    assert jars.main(["--into", str(tmp_path)]) == 1
    assert ("run again to continue" in capsys.readouterr().err) == goes_on


def test_jars_that_were_installed_with_the_environment_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`make install` puts them there, so that any user of the environment has them."""
    monkeypatch.delenv("UOW_JARS", raising=False)
    monkeypatch.setattr(jars, "_CHECKOUT", tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "uow"))
    assert jars.folder() != tmp_path / "uow" / "jars"
    (tmp_path / "uow" / "jars").mkdir(parents=True)
    assert jars.folder() == tmp_path / "uow" / "jars"
