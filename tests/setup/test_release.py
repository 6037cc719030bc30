"""A release: an sdist of tracked files alone, a wheel of it without network, and a page whose links lead to files of the sdist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
from markdown_it import MarkdownIt
from packaging.metadata import Metadata

from hatch_build import description
from tests.setup.wheels import ROOT, build, tracked_files

ADDRESS = "https://forge.example/units/uow"
TAG = f"v{tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['version']}"
STRAY = (
    "uow/left_behind.py",
    "tests/left_behind.txt",
    "left_behind [1]#2 !.txt",
    "left_behind/deep/x.py",
    "processor/__pycache__/left_behind.txt",
)
"""Files that somebody left in a checkout."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository as it is here, and files in it that git does not know."""
    folder = tmp_path_factory.mktemp("repository")
    for name in tracked_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    for command in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    for name in STRAY:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("left here\n")
    return folder


@pytest.fixture(scope="module")
def release(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with sdist and wheel, built with an address."""
    into = tmp_path_factory.mktemp("release")
    build(checkout, "sdist", "wheel", into=into, UOW_PROJECT_URL=ADDRESS)
    return into


@pytest.fixture(scope="module")
def unpacked(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the sdist."""
    folder = tmp_path_factory.mktemp("unpacked")
    (sdist,) = release.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(folder, filter="data")
    return folder / sdist.name.removesuffix(".tar.gz")


def metadata_of(wheel: Path) -> Metadata:
    """Its metadata, if they are valid."""
    with ZipFile(wheel) as packed:
        (name,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        return Metadata.from_email(packed.read(name), validate=True)


def links(markdown: str) -> list[str]:
    """The addresses that a page leads to, as a renderer finds them."""
    inline = (token for token in MarkdownIt("commonmark").enable("table").parse(markdown) if token.children)
    found = (child.attrs.get("href") for token in inline for child in token.children or () if child.type == "link_open")
    return [str(each) for each in found]


def test_the_sdist_has_tracked_files_alone(unpacked: Path) -> None:
    packed = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    assert packed - {*tracked_files()} == {"PKG-INFO"}
    assert {name for name in tracked_files() if not (ROOT / name).is_symlink()} - packed == set()


def test_a_wheel_of_the_checkout_has_no_stray_file(release: Path) -> None:
    (wheel,) = release.glob("*.whl")
    with ZipFile(wheel) as packed:
        assert [name for name in packed.namelist() if "left_behind" in name] == []


def test_pip_builds_the_same_wheel_of_the_sdist_without_network(release: Path, tmp_path: Path) -> None:
    """The address is in the sdist: who builds a wheel of it need not give it."""
    (sdist,), (wheel,) = release.glob("*.tar.gz"), release.glob("*.whl")
    offline = ["--isolated", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "-w", tmp_path]
    subprocess.run([sys.executable, "-m", "pip", *offline, sdist], cwd=tmp_path, check=True)
    (built,) = tmp_path.glob("*.whl")
    assert built.read_bytes() == wheel.read_bytes()


def test_pip_takes_no_stray_file_from_a_checkout(checkout: Path, tmp_path: Path) -> None:
    offline = ["--isolated", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "-w", tmp_path]
    subprocess.run([sys.executable, "-m", "pip", *offline, checkout], cwd=tmp_path, check=True)
    (built,) = tmp_path.glob("*.whl")
    with ZipFile(built) as packed:
        assert [name for name in packed.namelist() if "left_behind" in name] == []


def test_the_metadata_are_complete_and_valid(release: Path) -> None:
    (wheel,) = release.glob("*.whl")
    told = metadata_of(wheel)
    assert (told.name, told.license_expression, str(told.requires_python)) == ("uow", "Apache-2.0", ">=3.11")
    assert told.author
    assert told.summary
    assert {"kafka", "exactly-once"} <= {*(told.keywords or ())}
    assert told.description_content_type == "text/markdown"
    kinds = {classifier.partition(" :: ")[0] for classifier in told.classifiers or ()}
    wanted = {"Development Status", "Intended Audience", "Operating System", "Programming Language", "Topic", "Typing"}
    assert wanted <= kinds
    assert {*(told.project_urls or ())} == {"Source", "Documentation", "Changelog", "Issues"}
    assert not told.dynamic


def test_each_link_of_the_page_leads_to_a_file_of_the_sdist(release: Path, unpacked: Path) -> None:
    (wheel,) = release.glob("*.whl")
    told = metadata_of(wheel)
    in_repository = re.compile(rf"{re.escape(ADDRESS)}/(blob|tree)/{re.escape(TAG)}/([^#]+)(#.*)?")
    found = [*links(told.description or ""), *(told.project_urls or {}).values()]
    ours = [link for link in found if link.startswith(ADDRESS) and link not in {ADDRESS, f"{ADDRESS}/issues"}]
    assert [link for link in found if not link.startswith("https://")] == []
    assert len(ours) > 10
    for link in ours:
        leads = in_repository.fullmatch(link)
        assert leads, link
        kind, path = leads[1], unpacked / leads[2]
        assert path.is_file() if kind == "blob" else path.is_dir(), link


def test_without_an_address_no_link_is_shown_that_leads_nowhere(checkout: Path, tmp_path: Path) -> None:
    (wheel,) = build(checkout, "wheel", into=tmp_path, UOW_PROJECT_URL="")
    told = metadata_of(wheel)
    assert (told.project_urls or {}, told.dynamic or []) == ({}, [])
    assert [link for link in links(told.description or "") if not link.startswith("https://")] == []
    assert "](" not in re.sub(r"^```.*?^```$", "", told.description or "", flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("written", "with_address", "without"),
    [
        ("[rules](docs/rules.md)", "[rules](A/blob/v1/docs/rules.md)", "rules (`docs/rules.md`)"),
        ("[a](docs/rules.md#not-built-yet)", "[a](A/blob/v1/docs/rules.md#not-built-yet)", "a (`docs/rules.md`)"),
        ("[docs/rules.md](docs/rules.md)", "[docs/rules.md](A/blob/v1/docs/rules.md)", "docs/rules.md"),
        ("[a](#b)", "[a](A/blob/v1/README.md#b)", "a"),
        ("[e](examples/)", "[e](A/tree/v1/examples/)", "e (`examples/`)"),
        ("[k](https://kafka.apache.org)", "[k](https://kafka.apache.org)", "[k](https://kafka.apache.org)"),
        ("```sh\na[1](2)\n```", "```sh\na[1](2)\n```", "```sh\na[1](2)\n```"),
    ],
)
def test_a_relative_link_becomes_absolute_or_text(written: str, with_address: str, without: str) -> None:
    assert description(written, "A", "v1") == with_address
    assert description(written, "", "v1") == without


@pytest.mark.parametrize("address", ["http://forge.example/a", "forge.example/a", "https://forge.example", "yes"])
def test_an_address_that_is_none_stops_the_build(address: str, tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        build(ROOT, "wheel", into=tmp_path, UOW_PROJECT_URL=address)


def test_make_dist_refuses_without_an_address_and_says_why() -> None:
    """`setup` is taken as done: here only the refusal counts."""
    command = ["make", "--no-print-directory", "-o", "setup", "dist"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "PROJECT_URL=https://... is missing: the address of the repository" in done.stderr
