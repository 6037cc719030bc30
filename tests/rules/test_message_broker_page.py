"""The examples of `docs/message-broker.md`: rules are checked and their scenarios played, programs run against a broker in memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from uow.processor.rules.checks import complaints_about
from uow.processor.rules.rule_file import read_rules
from uow.processor.rules.rule_set import RuleSet
from uow.testing import play
from uow.topics.policies import DestinationPolicy, HandlingPolicy

PAGE = (Path(__file__).parents[2] / "docs" / "message-broker.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(toml|text)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
POLICY = DestinationPolicy(handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY)


def examples() -> list[tuple[str, str]]:
    """Each scenario with the rules above it."""
    found, rules = [], ""
    for kind, text in BLOCKS:
        if kind == "toml":
            rules = text
        else:
            found.append((rules, text))
    return found


def test_every_set_of_rules_on_the_page_has_a_scenario() -> None:
    assert {rules for rules, _ in examples()} == {text for kind, text in BLOCKS if kind == "toml"}
    assert len(examples()) >= 5


@pytest.mark.parametrize(("rules", "scenario"), examples())
def test_an_example_may_take_effect_and_does_as_the_page_says(rules: str, scenario: str) -> None:
    found = RuleSet(read_rules(rules, 0))
    policies = {rule.destination: POLICY for rule in found.rules}
    assert complaints_about(found, policies, "shop", ()) == []
    assert play(rules, scenario).open == {}
    if "expect nothing" in scenario:
        with pytest.raises(AssertionError):
            play(rules, scenario.replace("expect nothing", "expect complete 7"))
