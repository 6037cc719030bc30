"""The images and `compose.yaml`, as far as they can be checked without a Docker engine: each file that is named is there, and the wheel comes
out of what `.dockerignore` lets through. `tests/docker` builds and runs them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka_broker import IMAGE
from tests.setup.wheels import ROOT, build, needed, tracked_files

DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = (ROOT / "compose.yaml").read_text()
COPIED = [line.split()[1:] for line in DOCKERFILE.splitlines() if re.match(r"COPY (?!--from)", line)]


def pattern(text: str) -> re.Pattern[str]:
    """A line of `.dockerignore`: matches a path and everything below it."""
    parts = {"**/": "(?:.*/)?", "*": "[^/]*"}
    body = "".join(parts.get(part) or re.escape(part) for part in re.split(r"(\*\*/|\*)", text))
    return re.compile(f"{body}(?:/.*)?")


def sent_paths() -> list[Path]:
    """Files and links that Docker is sent; the last line that matches a path decides."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    rules = [(pattern(line.removeprefix("!")), line.startswith("!")) for line in lines]
    kept = [line[1:].split("/")[0] for line in lines if line.startswith("!")]

    def is_sent(path: Path) -> bool:
        name = str(path.relative_to(ROOT))
        return next((sent for rule, sent in reversed(rules) if rule.fullmatch(name)), True)

    tracked = (
        ROOT / name for name in tracked_files() if name.split("/")[0] in kept
    )  # a wheel of the checkout has no others
    return [path for path in tracked if is_sent(path)]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Docker builds from."""
    folder = tmp_path_factory.mktemp("context")
    for path in sent_paths():
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target, follow_symlinks=False)
    return folder


def test_the_wheel_of_the_images_is_the_wheel_of_the_checkout(context: Path, tmp_path: Path) -> None:
    (here,) = build(ROOT, "wheel", into=tmp_path / "here")
    (there,) = build(context, "wheel", into=tmp_path / "there")
    assert there.read_bytes() == here.read_bytes()


def test_tests_and_pages_are_not_sent(context: Path) -> None:
    """A change to one of them builds nothing again."""
    assert {path.name for path in context.iterdir()}.isdisjoint({"tests", "docs", ".git", ".venv", ".jars", "bench"})


def test_every_file_that_is_copied_is_sent(context: Path) -> None:
    assert COPIED
    for *sources, _ in COPIED:
        assert all((context / source).exists() for source in sources), sources


def test_jars_are_fetched_with_the_files_that_stage_has(context: Path, tmp_path: Path) -> None:
    """The sink's jars come before the project, so that a change to it fetches none again."""
    for source, target in (pair for pair in COPIED if pair[0].startswith("uow/")):
        if (context / source).is_dir():
            shutil.copytree(context / source, tmp_path / target)
        else:
            (tmp_path / target).mkdir(parents=True, exist_ok=True)
            shutil.copy(context / source, tmp_path / target)
    code = (
        "from uow.jvm import jars, java; print(jars.__file__, bool(jars.locked(['spark'])), callable(java.spark_home))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(tmp_path / "uow" / "jvm" / "jars.py"), "True", "True"]


@pytest.mark.parametrize(("lock", "extras"), [("worker", ["worker"]), ("spark", ["spark", "java"])])
def test_each_image_has_every_package_that_its_command_needs(lock: str, extras: list[str]) -> None:
    """The wheel is installed without its dependencies there."""
    locked = set(re.findall(r"^([a-z0-9._-]+)==", (ROOT / "requirements" / f"{lock}.lock").read_text(), re.MULTILINE))
    assert {re.sub(r"[-_.]+", "-", name).lower() for name in needed(*extras)} <= locked


def test_compose_names_what_is_there() -> None:
    stages = set(re.findall(r"^FROM .* AS (\S+)$", DOCKERFILE, re.MULTILINE))
    assert {*re.findall(r"target: (\w+)", COMPOSE)} == {"worker", "sink"} <= stages
    mounted = re.findall(r'"(\./[^:"]+):', COMPOSE)
    assert mounted
    assert all((ROOT / name).is_file() for name in mounted)
    assert re.findall(r"image: (apache/kafka\S+)", COMPOSE) == [IMAGE]
