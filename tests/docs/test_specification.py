"""Every rule that is cited has a row that can be read, and pages of the repository are cited by paths and anchors that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.requirements import requirements

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "specification"
ID = re.compile(r"\b(?:[A-Z]{1,2}-\d+|F\d{1,2})\b")
IN_A_TEST_NAME = re.compile(r"_((?:w|er|r|s)\d{2,3})(?=_|\b)")
ANCHORED = re.compile(r"\b(docs/[a-z/-]+\.md)(?:#([a-z0-9-]+))?")
FOLDERS = (".", "processor", "schemas", "topics", "spark_sink", "uow", "tests", "docs", "tools", "bench", "examples")
SUFFIXES = {".py", ".md", ".toml", ".avsc", ".yaml", ".java", ".go", ".mjs"}
NOT_OURS = re.compile(
    r"\b(?:contract|architecture|failover|ordering|aggregation) section\b|\bengine rule \d", re.IGNORECASE
)


def texts() -> Iterator[tuple[Path, str]]:
    """Every text of the repository that people or programs read."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).glob("*" if folder == "." else "**/*")):
            if path.suffix in SUFFIXES and path.is_file() and "node_modules" not in path.parts:
                yield path, path.read_text("utf-8")


def rows() -> set[str]:
    """Ids that have a row of their own in the specification, or are a requirement."""
    found = {one.id for one in requirements()}
    for page in FOLDER.glob("*.md"):
        found |= set(re.findall(r"^\| ((?:R|ER|EN|S|B|P)-\d+|F\d+) \|", page.read_text("utf-8"), re.MULTILINE))
    return found


def cited(text: str) -> set[str]:
    named = {f"{each.rstrip('0123456789').upper()}-{each.lstrip('werst')}" for each in IN_A_TEST_NAME.findall(text)}
    return set(ID.findall(text)) | named


@pytest.fixture(scope="module")
def files() -> list[tuple[Path, str]]:
    return list(texts())


def test_every_id_that_is_cited_can_be_read(files: list[tuple[Path, str]]) -> None:
    known = rows()
    unknown = {
        f"{path.relative_to(ROOT)}: {number}"
        for path, text in files
        if path.parent != FOLDER
        for number in cited(text) - known
    }
    assert unknown == set()


def test_an_id_has_one_row() -> None:
    pages = [page.read_text("utf-8") for page in FOLDER.glob("*.md")]
    listed = [number for page in pages for number in re.findall(r"^\| ([A-Z]{1,2}-\d+) \|", page, re.MULTILINE)]
    assert len(listed) == len(set(listed)) > 80


def test_every_requirement_is_explained_once() -> None:
    page = (FOLDER / "units-of-work.md").read_text("utf-8")
    explained = [
        number for row in re.findall(r"^\| (W-[W\d, -]+) \|", page, re.MULTILINE) for number in row.split(", ")
    ]
    assert sorted(explained) == sorted(one.id for one in requirements())


def test_papers_outside_the_repository_are_not_cited(files: list[tuple[Path, str]]) -> None:
    """A section of a paper that a reader does not have says nothing to him."""
    assert [str(path) for path, text in files if path != Path(__file__) and NOT_OURS.search(text)] == []


def test_pages_that_code_cites_exist_with_their_anchors(files: list[tuple[Path, str]]) -> None:
    missing = {
        f"{path.relative_to(ROOT)}: {page}#{anchor}"
        for path, text in files
        if path.suffix == ".py"
        for page, anchor in ANCHORED.findall(text)
        if not (ROOT / page).is_file() or (anchor and anchor not in anchors(ROOT / page))
    }
    assert missing == set()


LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


@pytest.mark.parametrize(
    "page", [*sorted(FOLDER.glob("*.md")), ROOT / "docs" / "wire-format.md"], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    broken = [
        f"{name}#{anchor}"
        for name, anchor in LINK.findall(page.read_text("utf-8"))
        if not (target := (page.parent / name).resolve() if name else page).exists()
        or (anchor and anchor not in anchors(target))
    ]
    assert broken == []


def anchors(page: Path) -> set[str]:
    """Headings as Markdown pages make anchors of them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", each.lower()).replace(" ", "-") for each in headings}
