"""Units of units, through a router and a worker on a real broker (B-109)."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.routed_places import RoutedPlace
from tests.broker.test_operating_rules import Desk
from tests.broker.worker_places import Destination
from tests.processes import PATIENCE_S, wait_for
from uow.schemas import codec
from uow.schemas.records import Unit

pytestmark = pytest.mark.timeout(300)

RULES = """
version = 1
author = "the test"
why = "to see"
[[rule]]
rule_id = "outer"
destination = "{d}"
priority = 1
accept = "header('uow-kind') == 'unit'"
group_key = "header:uow-id pattern:inner/*"
default_group = "per_name"
row = [{{ routing_name = "*", target_topic = "{d}.outer", complete_count = 2 }}]
[[rule]]
rule_id = "inner"
destination = "{d}"
priority = 2
default_group = "per_name"
row = [{{ routing_name = "*", target_topic = "{d}.inner", complete_count = 2 }}]
"""


BETWEEN = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "10485760"}
"""Settings of a topic that is a target and an input."""


class NestingDesk(Desk):
    """Events become units, and these units of units."""

    def __init__(self, place: Destination) -> None:
        self.place = place
        self.routed = RoutedPlace(place, {"events": 1})
        between = NewTopic(self.routed.topic("inner"), 1, 1, config=BETWEEN)
        admin = AdminClient({"bootstrap.servers": place.bootstrap})
        admin.create_topics([between])[between.topic].result(PATIENCE_S)
        self.routed.inputs["inner"] = between.topic
        self.routed.rules.write_text(RULES.format(d=place.name))
        self.routed.create({"session_timeout_ms": 2000})
        place.is_created = False  # its conservation check knows of no router


def test_units_become_components_and_show_looks_into_open_ones_b109(place: Destination) -> None:
    desk = NestingDesk(place)
    worker = place.worker()
    desk.send(("x", "one", {}), ("x", "two", {}), ("x", "three", {}))
    wait_for(lambda: desk.open() == {"outer/x": 1, "inner/x": 1}, what=lambda: str(desk.open()))
    shown = desk.json("show", place.name, "outer/x")
    (inner,) = shown["inner"]["groups"]
    assert (inner["id"], inner["generation"], inner["waits_for"]) == ("inner/x", 2, "1 more component")
    assert (shown["inner"]["others"], shown["inner"]["certain"]) == (1, False), "its rule has a condition"
    assert "inner/x" in desk.run("show", place.name, "outer/x").stdout

    desk.send(("x", "four", {}))
    wait_for(lambda: len(desk.topic("outer")) == 1)
    (made,) = place.read(f"{place.name}.outer")
    assert dict(made.headers())["uow-depth"] == b"2"
    components = codec.decode_as(Unit, made.value()).components
    assert [dict(each.headers)["uow-inner-id"] for each in components] == [b"inner/x", b"inner/x"]
    parts = [codec.decode_as(Unit, each.value or b"").components for each in components]
    assert [[each.value for each in some] for some in parts] == [[b"one", b"two"], [b"three", b"four"]]
    assert worker.child.terminate(90) == 0
