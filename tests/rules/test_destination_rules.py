"""The rules of destinations as the sink and the audit find them when they start: no broker (B-11, B-57, B-91)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from uow.config.loading import load
from uow.ops import destination_rules
from uow.processor.rules.mirror import mirrored
from uow.processor.rules.rule_set import RuleSet, RuleTables
from uow.topics.rules import Change, Parameter, ResolvedRow, Row, Rule

TOML = """
[application]
id = "A"
[rules]
source = "away/rules.db"
[destinations.trips]
handling_policy = "single_message_delivery"
[destinations.supply]
handling_policy = "single_message_delivery"
[routers.both]
inputs = ["events", "gone"]
[routers.replies]
inputs = ["replies"]
rules = ["calls", "of-nobody"]
"""
CALLS, STOCK = Rule("calls", 1, "trips", group_key="request"), Rule("stock", 1, "supply")
REPLIES = Parameter("reply_topics", 1, "answers, away")
NOW = RuleTables(
    (Change(1, "a test", "to see", 0),),
    (CALLS, STOCK),
    (Row("calls", "*", 1, target_topic="trips.now", complete_when="manifest"), Row("stock", "*", 1, complete_count=2)),
    parameters=(REPLIES,),
)
BEFORE = ResolvedRow(CALLS, Row("calls", "*", 1, target_topic="trips.before", complete_when="manifest"))
EXISTING = ("A-rules", "answers", "trips.now", "trips.before", "trips.units", "events", "replies")


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, destination_rules.DestinationRules]:
    path = tmp_path / "uow.toml"
    path.write_text(TOML)
    log = SimpleNamespace(
        rows={BEFORE.name: BEFORE}, mirror=mirrored(RuleSet(NOW)), catch_up=lambda meanwhile: None, close=lambda: None
    )
    monkeypatch.setattr(destination_rules, "admin_client", lambda *where: None)
    monkeypatch.setattr(destination_rules, "partition_counts", lambda admin: dict.fromkeys(EXISTING, 1))
    monkeypatch.setattr(destination_rules, "open_rule_log", lambda settings: log)
    return destination_rules.destination_rules(load(path), ["trips", "supply"])


def test_units_of_calls_are_looked_for_where_their_rows_and_the_parameter_send_them_b57_b91(
    found: dict[str, destination_rules.DestinationRules],
) -> None:
    assert found["trips"].targets == ("answers", "trips.before", "trips.now")
    assert (found["trips"].others, {*found["trips"].rows}) == ({"stock"}, {"calls/*@1"})


def test_the_inputs_of_a_destination_are_those_of_the_routers_that_lead_to_it_b203(
    found: dict[str, destination_rules.DestinationRules],
) -> None:
    assert {name: (of.inputs, of.routed) for name, of in found.items()} == {
        "trips": (("events", "replies"), ("supply", "trips")),
        "supply": (("events",), ("supply", "trips")),
    }


def test_no_unit_of_another_rule_is_looked_for_where_calls_may_send_theirs_b91(
    found: dict[str, destination_rules.DestinationRules],
) -> None:
    assert found["supply"].targets == ()
