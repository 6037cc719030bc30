"""The example `examples/low_stock`: its events and its rules."""

from __future__ import annotations

from pathlib import Path

from examples.low_stock.warehouse import PRODUCTS, Shelf, events
from uow.config.loading import load
from uow.processor.rules.checks import complaints_about
from uow.processor.rules.rule_file import read_rules
from uow.processor.rules.rule_set import RuleSet

FOLDER = Path(__file__).parents[2] / "examples" / "low_stock"


def test_an_event_exists_exactly_when_the_level_falls_below_the_threshold_b01() -> None:
    shelf = Shelf("cheese", "France", 13, 10, 25)
    assert shelf.withdraw(1) is None
    assert shelf.withdraw(2) is None
    assert shelf.level == 10
    event = shelf.withdraw(1)
    assert event is not None
    told = {name: value for name, value in event.items() if name not in ("event_id", "event_time")}
    assert told == {"product": "cheese", "supplier": "France", "level": 9, "threshold": 10, "quantity": 25}
    assert shelf.withdraw(1) is None, "it was told already"


def test_events_are_as_many_as_asked_for_and_each_is_another_one() -> None:
    found = list(events(1000))
    assert len({event["event_id"] for event in found}) == 1000
    assert {event["supplier"] for event in found} == {*PRODUCTS.values()}


def test_the_rules_of_the_example_may_take_effect() -> None:
    settings = load(FOLDER / "uow.toml", {})
    rules = RuleSet(read_rules((FOLDER / "rules.toml").read_text(), 0))
    assert complaints_about(rules, settings.destinations, settings.application_id, ()) == []
