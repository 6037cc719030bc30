"""`README.md` shows settings that are good, files that are there and links that lead somewhere, and is short. Its snippets: `test_readme_runs.py`."""

from __future__ import annotations

import re
from pathlib import Path

from uow.config.loading import load

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL = "\n".join(re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))


def test_the_settings_on_the_page_are_good(tmp_path: Path) -> None:
    (settings,) = re.findall(r"^```toml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    (tmp_path / "uow.toml").write_text(settings)
    assert [*load(tmp_path / "uow.toml").destinations] == ["megazon"]


def test_every_link_leads_somewhere() -> None:
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", head.lower()).replace(" ", "-")
        for head in re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
    }
    for link in re.findall(r"\]\(([^)]+)\)", TEXT):
        file, _, anchor = link.partition("#")
        assert not file or (ROOT / file).exists(), link
        assert file or anchor in anchors, link


def test_every_file_that_a_command_names_is_there() -> None:
    named = re.findall(r"(?:python|-c) (examples/\S+)", SHELL)
    assert named
    assert all((ROOT / name).is_file() for name in named)


def test_the_page_is_two_screens() -> None:
    """A stranger knows in two minutes what it is, why it is better, and how to start; all else has a page of its own."""
    lines = [line for line in TEXT.splitlines() if line.strip() and not line.startswith(("```", "<!--"))]
    assert len(lines) <= 120
