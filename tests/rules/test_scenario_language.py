"""The test kit for users: scenarios 1 to 3 of aggregation, each in milliseconds on the production core (B-215, B-61 to B-66)."""

from __future__ import annotations

import json
import time

import pytest

from uow.errors import ConfigError
from uow.testing import ScenarioError, play

RULES = """
version = 1
author = "supply team"
why = "first rules"
[[rule]]
rule_id = "low-stock"
destination = "supply"
default_group = "shared"
row = [
  { routing_name = "France", target_topic = "orders.france", complete_count = 10, age_ms = 30000, value_format = "xml" },
  { routing_name = "UK", target_topic = "orders.uk", complete_count = 5, age_ms = 15000, value_format = "xml" },
  { routing_name = "Spain", target_topic = "orders.spain", complete_count = 20, age_ms = 60000, value_format = "xml" },
  { routing_name = "*", target_topic = "orders.other", complete_count = 10, age_ms = 60000, value_format = "xml" },
]
"""

SCENARIOS = {
    "France by count": """
        at 0s   send France x9
        at 29s  send France value <Test>tenth</Test>
        at 29s  expect complete 10 by count on orders.france
        at 99s  expect nothing
    """,
    "France, nine, then eleven, then twenty": """
        at 0s   send France x9
        at 30s  expect partial 9 by age on orders.france
        at 40s  send France x11
        at 40s  expect complete 10
        at 70s  expect partial 1
        at 80s  send France x20
        at 80s  expect complete 10, complete 10
    """,
    "UK by age": """
        at 0s       send UK x3
        at 14.999s  expect nothing
        at 15s      expect partial 3 by age on orders.uk
    """,
    "Spain over a restart": """
        at 0s     send Spain x12
        at 10s    restart
        at 59.9s  expect nothing
        at 60s    expect partial 12 by age on orders.spain
        at 300s   expect nothing
    """,
    "Spain, restart and eight more": """
        at 0s   send Spain x12
        at 10s  restart
        at 20s  send Spain x8
        at 20s  expect complete 20 by count on orders.spain
    """,
    "Spain, down for ten minutes": """
        at 0s    send Spain x12
        at 10s   restart
        at 610s  expect partial 12 by age on orders.spain
    """,
    "no name and an unknown one": """
        # both take row *
        at 0s   send x5
        at 0s   send Mars x5
        at 0s   expect complete 10 by count on orders.other
    """,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_b215(name: str) -> None:
    begin = time.process_time()
    played = play(RULES, SCENARIOS[name])
    assert played.open == {}
    assert time.process_time() - begin < 1


def test_units_are_those_that_would_be_written_b215_b53() -> None:
    (unit,) = play(RULES, "at 0s send UK x5 value <Test>hello</Test>\nat 0s expect complete 5").units
    assert (unit.value or b"").count(b"<Test>hello</Test>") == 5
    assert unit.key == b"low-stock/UK"


NAMED = """
version = 1
author = "supply team"
why = "by the value"
[[rule]]
rule_id = "named"
destination = "supply"
group_key = "path:order"
row = [{ routing_name = "*", complete_count = 1, value_format = "json" }]
"""


@pytest.mark.parametrize("line", ["send value", "send   value", "send x1 value", "send key=k value"])
def test_a_value_may_stand_first_and_is_what_stands_there_b215(line: str) -> None:
    """It was taken for routing names, the word `value` among them; behind any other there was a space."""
    (unit,) = play(NAMED, f'at 0s {line} {{"order": "7 value 8"}}\nat 0s expect complete 1').units
    assert unit.key == b"named/7 value 8"
    (component,) = json.loads(unit.value or b"")["components"]
    assert component["value"] == {"text": '{"order": "7 value 8"}'}


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ("at 0s send UK x3\nat 15s expect partial 4", "line 2: .*came partial 3 by age on orders.uk"),
        ("at 0s send UK x3\nat 15s expect nothing", "came partial 3"),
        ("at 0s send UK x3\nat 15s expect partial 3 on orders.france", "came partial 3"),
        ("at 0s expect rejected 1", "came nothing"),
        ("at 0s expect many", "is not `OUTCOME SIZE"),
        ("at 5s send UK\nat 4s send UK", "line 2: .*goes back"),
        ("soon send UK", "line 1: .*is not `at MOMENT"),
        ("at 1s shout", "'shout' is none of"),
        ("at 0s call trip c1 hotel", "line 1: .*no rule gathers"),
        ("start 2026-03-27T16:58:00\nat 0s send UK", "line 1: .*with its offset from UTC"),
        ("at 0s send UK\nstart 2026-03-27T16:58:00Z", "line 2: .*is not `at MOMENT"),
        ("at 0s reply c1 1", "line 1: .*of a call before it"),
    ],
)
def test_a_scenario_that_does_not_hold_says_where_b215(lines: str, complaint: str) -> None:
    with pytest.raises(ScenarioError, match=complaint):
        play(RULES, lines)


LIMITS = """
version = 1
author = "supply team"
why = "end of business"
[[rule]]
rule_id = "low-stock"
destination = "supply"
row = [{ routing_name = "*", complete_count = 10, complete_when = "urgent(header('uow-type') == 'express', alone)", \
give_up_when = "any(at(17:00, Europe/Berlin, mon-fri, 2026-04-03), behind(50))" }]
"""


def test_a_day_with_its_calendar_its_express_and_its_pace_b206_b207_b208_b215() -> None:
    """Before Easter, over a weekend on which the clocks go forward."""
    played = play(
        LIMITS,
        """
        start 2026-03-27T12:00:00+01:00
        at 0h    send A x6
        at 1h    send A header:uow-type=express
        at 1h    expect complete 1 by predicate
        at 5h    expect partial 6 by age
        at 6h    send B x5
        at 6h    restart
        at 75h   expect nothing
        at 76h   expect partial 5 by age
        at 168h  send C x5
        at 243h  expect nothing
        at 244h  expect partial 5 by age
        at 300h  send D x2
        at 306h  expect nothing
        at 306.4h expect partial 2 by idle
    """,
    )
    assert played.open == {}


def test_waiting_groups_are_released_by_a_line_b215() -> None:
    rules = RULES.replace('destination = "supply"', 'destination = "supply"\nrelease = "hold_all"')
    play(
        rules,
        "at 0s send UK x10\nat 1s expect nothing\nat 2s restart\nat 3s release low-stock\nat 3s expect complete 5, complete 5",
    )


TRIPS = """
version = 1
author = "travel"
why = "two of three"
[parameter]
notice_topics = "travel.cancelled"
[[rule]]
rule_id = "trips"
destination = "travel"
group_key = "request"
sequence = "given"
row = [{ routing_name = "*", target_topic = "trips.ready", complete_when = "manifest(3)", age_ms = 60000 }]
"""


def test_a_call_may_say_weights_and_where_its_services_are_told_b209_b215() -> None:
    play(
        TRIPS,
        """
        at 0s  call trip c1 hotel*2 flight car notice=travel.cancelled
        at 1s  reply c1 2
        at 1s  expect nothing
        at 2s  reply c1 1
        at 2s  expect complete 2 by manifest, notices 1
        at 3s  call trip c2 hotel flight car timeout=5s notice=travel.cancelled
        at 8s  expect partial 0 by age, notices 3
        at 9s  call trip c3 hotel*3 flight
        at 9s  reply c3 1
        at 9s  expect complete 1 by manifest
    """,
    )
    with pytest.raises(ScenarioError, match="notices 2"):
        play(
            TRIPS,
            "at 0s call trip c1 hotel*2 car timeout=5s notice=travel.cancelled\nat 5s expect partial 0, notices 1",
        )


@pytest.mark.parametrize(
    ("rules", "complaint"),
    [
        ("version = ", "is not TOML"),
        (RULES.replace("complete_count = 10", "complete_cuont = 10"), "complete_cuont.*no such column"),
        (RULES.replace("age_ms = 15000", 'complete_when = "age(x"'), "complete_when"),
        (RULES + "[parameter]\nreply_hold_ms = 'soon'\n", "reply_hold_ms"),
        (RULES.replace("complete_count = 10, age_ms = 30000, ", ""), "to close by"),
    ],
)
def test_rules_that_no_worker_would_take_are_not_played_b15_b215(rules: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        play(rules, "at 0s send UK")
