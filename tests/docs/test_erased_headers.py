"""Who must erase something reads what goes: each text that lists it names all that goes (B-216)."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("page", "opening"),
    [
        ("docs/operations.md", "| erase what somebody must not see"),
        ("docs/wire-format.md", "| `uow-erased` | numbers of components"),
        ("docs/decisions/0073-erasure.md", "- **What goes:**"),
    ],
)
def test_each_list_of_what_erasing_removes_has_the_key_that_a_router_kept_b216(page: str, opening: str) -> None:
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    (found,) = [line for line in lines if line.startswith(opening)]
    assert "`uow-origin-key`" in found


def test_the_header_that_is_no_text_is_named_where_header_values_are_text() -> None:
    page = (ROOT / "docs/wire-format.md").read_text(encoding="utf-8")
    assert "`uow-origin-key`" in page[page.index("Header values are UTF-8 text") :].partition(".")[0]
