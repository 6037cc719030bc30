"""Whatever the wire, a setting or a rule allows is drawn (`drawn`), or is listed here with the reason why nobody that is compared looks at it.

A generator finds nothing where it does not look: a new setting, column, header or verb that nobody draws fails here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any

import pytest

from tests.core.drawn import COMMANDS, COMPONENTS, Latest, Stream, Tick, draw
from tests.fake_record import FakeRecord
from uow.processor.rules.conditions import group_policy
from uow.topics import command_keys, commands, conditions, headers
from uow.topics.commands import COMMAND, Verb
from uow.topics.grouping import parts_of
from uow.topics.headers import ALIASES
from uow.topics.policies import DestinationPolicy
from uow.topics.rules import PARAMETERS, Row, Rule, Source

READERS = {
    *("redelivery_limit", "exception_destination", "auto_stop_on_failure", "sequential_failure_threshold"),
    *("concurrency", "max_batch_size", "receive_exclusive", "share_subscription"),
}
"""Settings that only those look at who read units."""
STRICT = {
    *("strict_order", "strict_attach", "strict_group", "strict_order_topology", "strict_producers", "strict_priority"),
    "strict_block_limit_ms",
}
"""Settings of readers and senders in order; of a worker they change what happens to groups at which the code fails."""
MIRRORS = {"mirror_prefixes"}
"""Where a cluster's topics come from."""
OF_ROUTERS = {
    *("rule_id", "version", "destination", "enabled", "priority", "accept", "transform", "key_case", "default_group"),
    *("on_no_key", "delay_item"),
}
"""Columns of a rule that name it, or of which a router makes the headers of components."""
OF_ROUTERS_IN_ROWS = {"rule_id", "routing_name", "version", "enabled", "valid_from_ms", "valid_to_ms"}
OF_ROUTERS_IN_SOURCES = {"rule_id", "source_name", "version", "enabled", "correlation_path", "correlation_pattern"}
OF_TOOLS = {"stranded_after_ms", "audit_every_ms"}
"""Parameters of checks that run beside the workers."""
REFUSED = {"late_policy": {"amend"}}
"""Members of columns that `uow rules check` refuses."""


@cache
def streams() -> tuple[Stream, ...]:
    return tuple(draw(seed) for seed in range(1_000))


def assert_drawn(kind: type, name: str, values: Iterable[Any], refused: Iterable[str] = ()) -> None:
    """Every member of an enum, and more than one value of anything else."""
    usual = next(each.default for each in fields(kind) if each.name == name)
    wanted = [each for each in type(usual) if each not in refused] if isinstance(usual, StrEnum) else []
    drawn = set(values)
    assert len(drawn) > 1, f"{name} is always {drawn}"
    assert drawn >= {*wanted}, name


def names(kind: type, *left_out: set[str]) -> list[str]:
    return [each.name for each in fields(kind) if all(each.name not in some for some in left_out)]


@pytest.mark.parametrize("name", names(DestinationPolicy, READERS, STRICT, MIRRORS))
def test_each_setting_of_a_destination_is_drawn(name: str) -> None:
    assert_drawn(DestinationPolicy, name, [getattr(each.policy, name) for each in streams()])


@pytest.mark.parametrize("name", names(Rule, OF_ROUTERS))
def test_each_column_of_a_rule_is_drawn(name: str) -> None:
    drawn = [getattr(row.rule, name) for each in streams() for row in each.rows]
    assert_drawn(Rule, name, drawn, REFUSED.get(name, ()))


@pytest.mark.parametrize("name", names(Row, OF_ROUTERS_IN_ROWS))
def test_each_column_of_a_row_is_drawn(name: str) -> None:
    assert_drawn(Row, name, [getattr(row.row, name) for each in streams() for row in each.rows])


@pytest.mark.parametrize("name", names(Source, OF_ROUTERS_IN_SOURCES))
def test_each_column_of_a_source_is_drawn(name: str) -> None:
    assert_drawn(Source, name, [getattr(one, name) for each in streams() for row in each.rows for one in row.sources])


@pytest.mark.parametrize("name", sorted({*PARAMETERS} - OF_TOOLS))
def test_each_parameter_of_rules_is_drawn(name: str) -> None:
    assert len({row.parameter(name) for each in streams() for row in each.rows}) > 1


def test_each_condition_of_a_rule_is_drawn() -> None:
    known = {each for each in vars(conditions).values() if isinstance(each, type) and is_dataclass(each)}
    drawn = set()
    for each in streams():
        for row in each.rows:
            policy = group_policy(row, each.policy)
            drawn |= {*map(type, parts_of(policy.complete_when)), *map(type, parts_of(policy.give_up_when))}
            for told in (row.row.complete_when or "", row.row.give_up_when or ""):
                drawn |= {kind for name, kind in JOINED.items() if name in told}
    assert known - drawn == set()


JOINED = {"any(": conditions.AnyOf, "all(": conditions.AllOf, "not(": conditions.Not}


def records(topic: str) -> Iterator[FakeRecord]:
    for each in streams():
        yield from (one for one in each.events if isinstance(one, FakeRecord) and one.tp.topic == topic)


def test_each_verb_of_commands_is_drawn() -> None:
    drawn = {dict(each.headers_)[COMMAND] for each in records(COMMANDS.topic)}
    assert drawn >= {verb.encode() for verb in Verb}


def test_each_header_of_the_wire_is_drawn() -> None:
    """All names that `uow.topics` has; of a prefix one name that begins with it."""
    modules = (headers, commands, command_keys)
    known = {each for module in modules for each in vars(module).values() if isinstance(each, str)}
    known = {each for each in known if re.fullmatch(r"(uow|uoo)-[a-z-]+", each)} - OF_ANSWERS
    known |= {name for family in ALIASES.values() for name in family}
    drawn = {
        name
        for topic in (COMPONENTS.topic, COMMANDS.topic)
        for each in records(topic)
        if isinstance(each.headers_, list)
        for name, _ in each.headers_
    }
    assert {each for each in known if not any(name.startswith(each) for name in drawn)} == set()


OF_ANSWERS = {commands.USER_VERIFIED}
"""Headers of records that only workers write, and that nothing reads from a component or a command."""


def test_odd_ids_nulls_pieces_and_moments_are_drawn() -> None:
    """Each is met with others, in a stream that forms units."""
    ids = {
        value
        for each in records(COMPONENTS.topic)
        if isinstance(each.headers_, list)
        for name, value in each.headers_
        if name == "uow-id"
    }
    assert {b"", None, b"\xff\xfe"} <= ids
    assert any(value and b"\0" in value for value in ids)
    assert any(value and value + b"\0" in ids for value in ids), "an id that only fills another one up"
    assert 255 in {len(value or b"") for value in ids}
    kinds = {type(event) for each in streams() for event in each.events}
    assert kinds == {FakeRecord, Tick, Latest}
    plain_beside_rules = 0
    for each in streams():
        by_rule: set[bytes | None] = set()
        for event in each.events:
            said = dict(event.headers_) if isinstance(event, FakeRecord) and isinstance(event.headers_, list) else {}
            if "uow-rule" in said and "uow-input" in said:
                by_rule.add(said.get("uow-id"))
            elif "uow-seq" in said and said.get("uow-id") in by_rule:
                plain_beside_rules += 1
    assert plain_beside_rules > 100


def test_groups_by_rule_of_an_id_and_of_one_that_fills_it_up_are_drawn() -> None:
    """Of rules of which several groups of a key may be open: only then do both stand beside their places, where they must not meet."""
    met = 0
    for each in streams():
        said = [
            dict(one.headers_) for one in each.events if isinstance(one, FakeRecord) and isinstance(one.headers_, list)
        ]
        ids = {one.get("uow-id") or b"" for one in said if "uow-input" in one} - {b""}
        keeps_several = any(row.rule.cardinality != "one" or row.rule.release != "auto" for row in each.rows)
        met += keeps_several and any(group_id + b"\0" in ids for group_id in ids)
    assert met > 200


def test_several_versions_of_a_row_are_drawn_that_differ() -> None:
    versions = [{row.name for row in each.rows if row.version > 1} for each in streams()]
    assert sum(map(bool, versions)) > 100
