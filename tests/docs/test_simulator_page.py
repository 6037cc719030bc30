"""docs/simulator.md says how many defects are planted; the numbers are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from tests.sim import broken_routers, broken_rules
from tests.sim.defects import DEFECTS

PAGE = Path(__file__).parents[2] / "docs" / "simulator.md"


def test_planted_defects_are_as_many_as_the_page_says() -> None:
    said = dict(re.findall(r"`tests/sim/(\w+)\.py` (?:has )?(\d+)\b", PAGE.read_text("utf-8")))
    assert {name: int(number) for name, number in said.items()} == {
        "defects": len(DEFECTS.keys() - broken_rules.NAMES - broken_routers.NAMES),
        "broken_rules": len(broken_rules.NAMES),
        "broken_routers": len(broken_routers.NAMES),
    }
