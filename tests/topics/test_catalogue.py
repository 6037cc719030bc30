"""Names and settings of a destination's topics (`docs/wire-format.md#topics`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from uow.topics.catalogue import (
    PATH_TOMBSTONES_MS,
    DestinationTopics,
    Expectation,
    TopicRule,
    TopicSpec,
    expected,
    expected_of_routers,
    expected_of_senders,
)
from uow.topics.policies import (
    DestinationPolicy,
    HandlingPolicy,
    Oversize,
    Routing,
    Shape,
)
from uow.topics.routes import Route
from uow.topics.selector import Selector

UNITS = HandlingPolicy.SINGLE_MESSAGE_DELIVERY


def specs(policy: DestinationPolicy | None = None, replay_ms: int = 0) -> dict[str, TopicSpec]:
    policy = policy or DestinationPolicy()
    found = expected("shop", "megazon", policy, partitions=6, replication=3, replay_ms=replay_ms)
    return {spec.name: spec for spec in found}


def test_names_are_those_of_the_contract() -> None:
    names = DestinationTopics("shop", "megazon")
    assert [*specs()] == [
        names.components,
        names.units,
        names.rejected,
        names.errors,
        names.commands,
        names.outcomes,
        names.groups_changelog,
        names.closed_changelog,
    ]
    assert names.components == "megazon.components"
    assert names.groups_changelog == "shop-megazon-groups-changelog"
    assert names.closed_changelog == "shop-megazon-closed-changelog"


def test_input_and_commands_carry_the_brokers_clock() -> None:
    """W-70."""
    stamped = {name for name, spec in specs().items() if spec.config.get("message.timestamp.type") == "LogAppendTime"}
    assert stamped == {"megazon.components", "megazon.commands"}


def test_only_the_groups_changelog_is_compacted() -> None:
    """W-120."""
    compacted = {name for name, spec in specs().items() if spec.config["cleanup.policy"] == "compact"}
    assert compacted == {"shop-megazon-groups-changelog"}


def test_every_topic_but_rejected_has_the_partitions_of_the_input() -> None:
    """W-88."""
    assert {name for name, spec in specs().items() if not spec.counted} == {"megazon.rejected"}
    assert {spec.partitions for spec in specs().values()} == {6}


def test_path_map_has_one_partition_is_compacted_and_remembers_tombstones_w105() -> None:
    """Whatever the input has; and it is there under path routing only."""
    name = DestinationTopics("shop", "megazon").path_map
    (added,) = specs(DestinationPolicy(UNITS, routing=Routing.PATH)).keys() - specs().keys()
    assert added == name == "shop-megazon-path-map"
    spec = specs(DestinationPolicy(UNITS, routing=Routing.PATH))[name]
    assert (spec.partitions, spec.counted) == (1, False)
    assert spec.config["cleanup.policy"] == "compact"
    assert int(spec.config["delete.retention.ms"]) >= PATH_TOMBSTONES_MS
    assert specs(DestinationPolicy(HandlingPolicy.PASS_THROUGH, routing=Routing.PATH)).keys() == specs().keys()


def test_topics_of_routes_are_like_the_units_topic_w98() -> None:
    lane, units = "megazon.urgent", "megazon.units"
    routed = specs(DestinationPolicy(routes=(Route(Selector("a = 1"), lane), Route(Selector("a = 2"), units))))
    assert routed.keys() - specs().keys() == {lane}
    assert replace(routed[lane], name=units) == routed[units] == specs()[units]


def test_input_outlives_the_age_limit() -> None:
    """W-120."""
    month_ms = 30 * 86_400_000
    spec = specs(DestinationPolicy(incomplete_expiration_ms=month_ms))["megazon.components"]
    assert int(spec.config["retention.ms"]) > month_ms
    assert not spec.expectations["retention.ms"].accepts(str(month_ms))
    assert spec.expectations["retention.ms"].accepts("-1")


def test_short_age_limit_does_not_shorten_a_new_input_topic() -> None:
    spec = specs(DestinationPolicy(incomplete_expiration_ms=1000))["megazon.components"]
    assert int(spec.config["retention.ms"]) == 7 * 86_400_000


def test_input_without_age_limit_keeps_the_brokers_retention() -> None:
    assert "retention.ms" not in specs()["megazon.components"].config


def test_ledger_outlives_the_closed_memory() -> None:
    """W-19."""
    spec = specs(DestinationPolicy(closed_retention_ms=7_200_000))["shop-megazon-closed-changelog"]
    assert int(spec.config["retention.ms"]) > 7_200_000


def test_input_and_ledger_outlive_what_a_replay_takes_from_them() -> None:
    """A replayable group is in no changelog: without input or ledger it is lost."""
    day_ms = 86_400_000
    found = specs(DestinationPolicy(UNITS), replay_ms=day_ms)
    for name in ("megazon.components", "shop-megazon-closed-changelog"):
        kept = found[name].expectations["retention.ms"]
        assert [kept.accepts(str(value)) for value in (day_ms, day_ms + 3_600_000, -1)] == [False, True, True], name
    assert int(found["shop-megazon-closed-changelog"].config["retention.ms"]) == 2 * day_ms


def test_new_input_without_age_limit_keeps_the_brokers_retention_which_is_compared() -> None:
    """W-120: groups that may wait for ever are not cut down to a week by us."""
    spec = specs(DestinationPolicy(UNITS), replay_ms=60_000)["megazon.components"]
    assert "retention.ms" not in spec.config
    assert spec.expectations["retention.ms"].text == "at least 3660000"


def test_destination_that_holds_nothing_needs_no_retention_for_a_replay() -> None:
    assert "retention.ms" not in specs(replay_ms=60_000)["megazon.components"].expectations


def test_expectation_at_least_counts_minus_one_as_without_limit() -> None:
    at_least = Expectation("10", TopicRule.AT_LEAST, "")
    assert [at_least.accepts(value) for value in ("9", "10", "11", "-1")] == [False, True, True, True]
    assert (at_least.text, Expectation("10", TopicRule.EQUAL, "").text) == ("at least 10", "10")
    without_limit = Expectation("-1", TopicRule.AT_LEAST, "")
    assert not without_limit.accepts("10")


@pytest.mark.parametrize("refers", [{"shape": Shape.REFERENCE}, {"oversize": Oversize.REFERENCE}])
@pytest.mark.parametrize("age_ms", [-1, 5_000])
def test_components_that_units_refer_to_outlive_them_by_a_day_for_readers_w117(
    refers: dict[str, Any], age_ms: int
) -> None:
    policy = DestinationPolicy(HandlingPolicy.SINGLE_MESSAGE_DELIVERY, incomplete_expiration_ms=age_ms, **refers)
    spec = specs(policy)["megazon.components"]
    needed = max(age_ms, 0) + 3_600_000 + 86_400_000
    assert not spec.expectations["retention.ms"].accepts(str(needed - 1))
    assert spec.expectations["retention.ms"].accepts(str(needed))
    assert "by another day for the readers" in spec.expectations["retention.ms"].reason
    assert not spec.expectations["retention.bytes"].accepts("1000000")
    assert "retention.bytes" not in specs(DestinationPolicy())["megazon.components"].expectations


def test_what_others_write_lies_as_large_as_it_was_sent_and_nobody_insists() -> None:
    """Else a batch of 3 kB may be 100 MB in a worker's hands, and only its compressed size is compared with the limit."""
    told = {
        name: spec.expectations.get("compression.type")
        for name, spec in specs(DestinationPolicy(UNITS, routing=Routing.PATH)).items()
    }
    assert {name for name, each in told.items() if each} == {
        "megazon.components",
        "megazon.commands",
        "shop-megazon-path-map",
    }
    assert all(each.advised and each.initial == "uncompressed" for each in told.values() if each)


def test_topics_of_rules_and_routers_are_expected() -> None:
    rules, *inputs = expected_of_routers("shop", ["stock.events", "returns"], 6, 3, {"shop.units"})
    assert (rules.name, rules.partitions, rules.config["cleanup.policy"]) == ("shop-rules", 1, "compact")
    assert [spec.name for spec in inputs] == ["returns", "stock.events"]
    assert inputs[0].config["message.timestamp.type"] == "LogAppendTime"
    assert [spec.of_others for spec in (rules, *inputs)] == [False, True, True]
    assert {spec.config["compression.type"] for spec in (rules, *inputs)} == {"uncompressed"}
    (nested,) = expected_of_routers("shop", ["shop.units"], 6, 3, {"shop.units"})[1:]
    assert "compression.type" not in nested.expectations, "workers write it themselves"


def test_the_topic_of_long_units_keeps_what_is_open_and_the_ends_of_a_week_b123() -> None:
    (senders,) = expected_of_senders("shop", 6, 3)
    assert (senders.name, senders.partitions, senders.replication) == ("shop-senders", 6, 3)
    assert senders.config["cleanup.policy"] == "compact"
    assert senders.config["delete.retention.ms"] == "604800000"


def test_target_topics_are_expected_once_and_those_of_runs_have_the_number_of_the_input() -> None:
    targets = {"orders.france": False, "orders.uk": True, "megazon.units": False}
    found = expected("shop", "megazon", DestinationPolicy(), targets=targets)
    names = [spec.name for spec in found]
    assert names.count("megazon.units") == 1
    assert {spec.name: spec.counted for spec in found if spec.name.startswith("orders")} == {
        "orders.france": False,
        "orders.uk": True,
    }
