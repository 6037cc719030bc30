"""Checks of a whole set of rules before it takes effect: ranges, texts, names, and something that closes each group (B-15). Pure.

Belongs here: everything that makes a version invalid, each with a complaint. Does not belong here: types and words of columns
(`columns.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from uow.processor.rules import conditions
from uow.processor.rules.columns import label
from uow.processor.rules.expressions import compile_expression
from uow.processor.rules.group_keys import GroupKey, matching, on_no_key
from uow.processor.rules.paths import ExpressionError, Place
from uow.processor.rules.routing import RouteTarget
from uow.processor.rules.rule_set import RuleSet
from uow.processor.rules.transforms import transform_named
from uow.processor.rules.trial import Trials
from uow.schemas.error_classes import Complaint, shown
from uow.topics.catalogue import TOPIC_NAME, DestinationTopics, expected, is_topic_name, rules_topic
from uow.topics.conditions import Age, At, Behind, Count, Manifest, Urgent, alternatives
from uow.topics.grouping import MAX_ATTEMPTS, NEVER_HOLDS, parts_of
from uow.topics.policies import DestinationPolicy, HandlingPolicy, LatePolicy, Shape
from uow.topics.record_size import RecordLimit
from uow.topics.rules import (
    PARAMETERS,
    REQUEST,
    BelowMin,
    Cardinality,
    DefaultGroup,
    DeliverOrder,
    Numbering,
    OnNoKey,
    Parameter,
    Release,
    Row,
    Rule,
    Source,
)

MAX_NAME_BYTES: Final = 128
"""Longest routing name."""
_RULE_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_LEAST: Final[Mapping[str, int]] = {
    "release_every_ms": 1_000,
    "max_waiting": 1,
    "waiting_age_ms": 1,
    "max_open_groups": 1,
    "complete_count": 1,
    "complete_bytes": 1,
    "min_count": 1,
    "age_ms": 1,
    "idle_ms": 1,
    "delay_ms": 0,
    "quantity": 0,
    "wait_ms": 1,
}
_INTEGERS: Final = frozenset({"complete_count", "min_count", "quantity", "max_waiting", "max_open_groups", "priority"})
"""Columns of 32 bits."""
_FORMS: Final = DestinationPolicy(handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY)
_NOT_BUILT: Final = "is not built yet"
"""Of a setting that the specification has and nothing obeys: such a rule would wait for ever, or do something else than it says."""


def complaints_about(
    rules: RuleSet,
    destinations: Mapping[str, DestinationPolicy] | None = None,
    application: str = "",
    transforms: Collection[str] | None = None,
) -> list[Complaint]:
    """All that is wrong with the rules as of their latest version; empty if they may take effect. Their texts are tried for a while (`Trials`).

    Args:
        rules: The rules.
        destinations: The configured destinations; None if they are not known, and so are not checked.
        application: `application.id`, a part of names of topics that rules must not write to.
        transforms: Registered transforms; None if they are not known here.
    """
    found: list[Complaint] = []
    trials = Trials()
    taken = _taken(application, destinations or {})
    by_rule: dict[str, list[Row]] = {}
    for each in rules.row_versions():
        if each.row.enabled:
            by_rule.setdefault(each.row.rule_id, []).append(each.row)
    for rule in rules.rules:
        rows = by_rule.get(rule.rule_id, [])
        found += _about_rule(trials, rule, rows, rules.sources_of(rule))
        if destinations is not None:
            found += _about_destination(rule, destinations)
        found += _about_transform(rule, transforms)
        for row in rows:
            found += _about_row(trials, rule, row, bool(rules.sources_of(rule)), taken)
        for source in rules.sources_of(rule):
            found += _about_source(trials, source, rows)
    found += _about_all(rules, taken)
    if not found:
        for rule in rules.rules:
            found += _about_routing(trials, rule, rules, destinations or {})
    return found


def _taken(application: str, destinations: Mapping[str, DestinationPolicy]) -> dict[str, str]:
    """Topics that only the project writes, and whose they are; `D.units` is free to its own destination's rules."""
    topics = {spec.name: name for name, policy in destinations.items() for spec in expected(application, name, policy)}
    return topics | {rules_topic(application): "rules"}


def _ranges(value: Any) -> Iterator[Complaint]:
    for name, least in _LEAST.items():
        number = getattr(value, name, None)
        if number is not None and number < least:
            yield _complaint(value, name, f"must be at least {least}")
    for name in _INTEGERS:
        number = getattr(value, name, None)
        if number is not None and abs(number) > 2_147_483_647:
            yield _complaint(value, name, "must be at most 2147483647")


def _complaint(value: Any, column: str, rule: str) -> Complaint:
    row = {name: getattr(value, name) for name in value.__slots__}
    return Complaint(f"{label(type(value), row)}.{column}", row.get(column), rule)


def _unreadable(trials: Trials, value: Any, column: str, read: Callable[[str], object]) -> Iterator[Complaint]:
    text = getattr(value, column)
    if text is None:
        return
    try:
        why = trials.failure(read, text)
    except ExpressionError as error:
        why = str(error)
    except Exception as error:  # noqa: BLE001 - of a text: it would end whoever takes the rules
        why = f"cannot be read: {shown(error)}"
    if why:
        yield _complaint(value, column, why)


def _about_rule(trials: Trials, rule: Rule, rows: list[Row], sources: tuple[Source, ...]) -> Iterator[Complaint]:
    if not _RULE_ID.fullmatch(rule.rule_id):
        yield _complaint(rule, "rule_id", "must be letters, digits, dots, dashes and underscores, 1 to 64")
    yield from _ranges(rule)
    yield from _unreadable(trials, rule, "accept", compile_expression)
    yield from _unreadable(trials, rule, "group_key", GroupKey)
    yield from _unreadable(trials, rule, "delay_item", compile_expression)
    yield from _unreadable(trials, rule, "order_by", conditions.read_order_by)
    if not rows:
        yield _complaint(rule, "row", "a rule needs a row that is enabled")
    if rule.late_policy is LatePolicy.AMEND:
        yield _complaint(
            rule, "late_policy", f"amend {_NOT_BUILT} for rules: only a destination's own setting may say so"
        )
    if rule.name_template is not None and (rule.name_template.count("*") != 1 or len(rule.name_template) > 256):
        yield _complaint(rule, "name_template", "must have one *, and at most 256 characters")
    if sources and on_no_key(rule, sources) is OnNoKey.DEFAULT:
        yield _complaint(rule, "on_no_key", "a rule with sources must say reject, unnamed or pass_through")
    if sources and rule.default_group is not DefaultGroup.PER_NAME:
        yield _complaint(rule, "default_group", "a rule with sources has one group per name: per_name")
    if rule.gathers_replies:
        yield from _about_request(rule, sources)
    if rule.deliver_order is DeliverOrder.FIRST_ARRIVAL:
        yield from _about_order(rule, rows)


def _about_destination(rule: Rule, destinations: Mapping[str, DestinationPolicy]) -> Iterator[Complaint]:
    policy = destinations.get(rule.destination)
    if policy is None:
        yield _complaint(rule, "destination", f"no such destination; there are {', '.join(destinations) or 'none'}")
    elif not policy.forms_units:
        yield _complaint(rule, "destination", "its handling_policy must be single_message_delivery")
    elif policy.has_paths:
        yield _complaint(rule, "destination", 'rules for routing = "path" are not built yet')


def _about_row(
    trials: Trials, rule: Rule, row: Row, has_sources: bool, taken: Mapping[str, str]
) -> Iterator[Complaint]:
    yield from _ranges(row)
    yield from _unreadable(trials, row, "complete_when", conditions.read_complete_when)
    yield from _unreadable(trials, row, "give_up_when", conditions.read_give_up_when)
    yield from _unreadable(trials, row, "age_from", conditions.read_age_from)
    yield from _about_manifest(rule, row)
    yield from _about_pace(rule, row)
    if not row.routing_name.strip() or len(row.routing_name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        yield _complaint(row, "routing_name", f"must not be blank, and at most {MAX_NAME_BYTES} bytes")
    if row.valid_from_ms is not None and row.valid_to_ms is not None and row.valid_from_ms >= row.valid_to_ms:
        yield _complaint(row, "valid_to_ms", "must be after valid_from_ms")
    if row.target_topic is not None:
        if not is_topic_name(row.target_topic):
            yield _complaint(row, "target_topic", f"must be a topic's name: {TOPIC_NAME}")
        elif row.target_topic in taken and row.target_topic != f"{rule.destination}.units":
            yield _complaint(row, "target_topic", f"is a topic of {taken[row.target_topic]}, which has its own writer")
    yield from _about_closing(rule, row, has_sources)


def _about_order(rule: Rule, rows: list[Row]) -> Iterator[Complaint]:
    """Nothing may keep the units behind it waiting for ever (B-118)."""
    if any(row.age_ms is None for row in rows) or rule.gathers_replies:
        yield _complaint(
            rule, "deliver_order", "units wait for older ones, so every row needs an age, and no call its own"
        )
    if rule.release is not Release.AUTO:
        yield _complaint(rule, "release", "units in order of their first arrival leave by themselves: auto")


def _about_request(rule: Rule, sources: tuple[Source, ...]) -> Iterator[Complaint]:
    if rule.sequence is not Numbering.GIVEN:
        yield _complaint(rule, "sequence", "replies have the numbers of their requests: given")
    if rule.cardinality is not Cardinality.ONE:
        yield _complaint(rule, "cardinality", "each call has an id of its own: one")
    if rule.on_no_key is OnNoKey.UNNAMED:
        yield _complaint(rule, "on_no_key", "a reply without correlation belongs to no call: reject or pass_through")
    if sources:
        yield _complaint(rule, "group_key", "a rule with sources gathers no replies")


def _about_manifest(rule: Rule, row: Row) -> Iterator[Complaint]:
    try:
        parts = parts_of(conditions.read_complete_when(row.complete_when)) if row.complete_when else []
    except ExpressionError:
        return  # that has its complaint
    gathers = any(isinstance(part, Manifest) for part in parts)
    if gathers and not rule.gathers_replies:
        yield _complaint(row, "complete_when", f"manifest needs group_key = {REQUEST!r}")
    if rule.gathers_replies and not gathers:
        yield _complaint(row, "complete_when", f"group_key = {REQUEST!r} needs the condition manifest")
    if row.age_from == "manifest" and not gathers:
        yield _complaint(row, "age_from", "there is no manifest without complete_when = 'manifest'")
    if gathers and row.shape is Shape.CONSECUTIVE:
        yield _complaint(row, "shape", "the unit of a call may be empty, and is one record: envelope or reference")


def _about_pace(rule: Rule, row: Row) -> Iterator[Complaint]:
    """An early close needs a count and a deadline (B-208); whoever leaves alone has a number of its own (B-207)."""
    try:
        complete = conditions.read_complete_when(row.complete_when) if row.complete_when else NEVER_HOLDS
        give_up = conditions.read_give_up_when(row.give_up_when) if row.give_up_when else NEVER_HOLDS
    except ExpressionError:
        return  # that has its complaint
    if any(isinstance(part, Urgent) and part.alone for part in parts_of(complete)) and (
        rule.sequence is not Numbering.ASSIGNED
    ):
        yield _complaint(row, "complete_when", "urgent(..., alone) needs sequence = 'assigned'")
    if not any(isinstance(part, Behind) for part in parts_of(give_up)):
        return
    if row.complete_count is None and not any(isinstance(each, Count) for each in alternatives(complete)):
        yield _complaint(row, "give_up_when", "behind(p) needs a count that completes the group")
    if row.age_ms is None and not any(isinstance(each, Age | At) for each in alternatives(give_up)):
        yield _complaint(row, "give_up_when", "behind(p) needs a deadline: age_ms, age(ms) or at(...)")


def _about_closing(rule: Rule, row: Row, has_sources: bool) -> Iterator[Complaint]:
    limits = (row.complete_count, row.complete_bytes, row.complete_when, row.give_up_when, row.age_ms, row.idle_ms)
    if all(limit is None for limit in limits) and not has_sources and rule.sequence is not Numbering.GIVEN:
        yield _complaint(row, "complete_count", "needs a count, bytes, an age, an idle time or a condition to close by")
    if row.age_ms is None:
        if row.age_from != "arrival" and row.give_up_when is None:
            yield _complaint(row, "age_from", "is of no use without age_ms")
        if row.below_min is BelowMin.EXTEND:
            yield _complaint(row, "below_min", "extends by age_ms, which is not given")
    if row.complete_count and row.min_count > row.complete_count:
        yield _complaint(row, "min_count", f"is above complete_count, {row.complete_count}")


def _about_source(trials: Trials, source: Source, rows: list[Row]) -> Iterator[Complaint]:
    yield from _ranges(source)
    yield from _unreadable(trials, source, "correlation_path", Place)
    if not source.quantity and source.wait_ms is None and not all(row.age_ms for row in rows):
        yield _complaint(source, "wait_ms", "without a quantity it needs a wait, or every row an age")
    if source.correlation_pattern is not None:
        yield from _unreadable(trials, source, "correlation_pattern", _pattern)


def _pattern(text: str) -> None:
    matching(Place("key"), text)


def _about_transform(rule: Rule, transforms: Collection[str] | None) -> Iterator[Complaint]:
    if transforms is None or rule.transform is None:
        return
    if rule.transform not in transforms:
        yield _complaint(rule, "transform", f"no such transform; there are {', '.join(transforms) or 'none'}")
        return
    try:
        transform_named(rule.transform)
    except LookupError as error:
        yield _complaint(rule, "transform", str(error.args[0]))


def _about_routing(
    trials: Trials, rule: Rule, rules: RuleSet, destinations: Mapping[str, DestinationPolicy]
) -> Iterator[Complaint]:
    """A rule of which every text is good, tried as the router uses it. Its transform is code of a stranger, and is left out."""
    policy = destinations.get(rule.destination, _FORMS)
    target = RouteTarget(DestinationTopics("", rule.destination), policy, RecordLimit())
    why = trials.routing_failure(replace(rule, transform=None), rules, target)
    if why:
        yield _complaint(rule, "group_key", why)


def _about_all(rules: RuleSet, taken: Mapping[str, str]) -> Iterator[Complaint]:
    tables = rules.tables
    enabled = {rule.rule_id: rule for rule in rules.rules}
    seen: dict[tuple[object, ...], object] = {}
    for row in tables.rows:
        rule = enabled.get(row.rule_id)
        folded = row.routing_name.casefold() if rule is not None and rules.is_folded(rule) else row.routing_name
        if seen.setdefault((row.rule_id, folded, row.version), row) is not row:
            yield _complaint(row, "routing_name", f"is there twice in version {row.version}")
    first = {rule.rule_id: rule.version for rule in sorted(tables.rules, key=lambda rule: -rule.version)}
    for each in rules.row_versions():
        oldest = first[each.row.rule_id]
        if each.row.version < oldest:
            yield _complaint(
                each.row, "version", f"is older than its rule, {oldest}: the rule must be there as of then too"
            )
    for delay in rules.delays():
        yield from _ranges(delay)
        if not delay.item or len(delay.item) > MAX_NAME_BYTES:
            yield _complaint(delay, "item", f"must have 1 to {MAX_NAME_BYTES} characters")
        if delay.rule_id in enabled and enabled[delay.rule_id].delay_item is None:
            yield _complaint(delay, "item", "its rule has no delay_item, which finds the item of a record")
    latest = {each.name: each for each in sorted(tables.parameters, key=lambda each: each.version)}
    for parameter in latest.values():
        yield from _about_parameter(parameter, rules, taken)


def _about_parameter(parameter: Parameter, rules: RuleSet, taken: Mapping[str, str]) -> Iterator[Complaint]:
    value = parameter.value
    if parameter.name not in PARAMETERS:
        yield _complaint(parameter, "name", f"no such parameter; there are {', '.join(PARAMETERS)}")
    elif parameter.name in ("reply_topics", "notice_topics"):
        topics = [each.strip() for each in value.split(",") if value]
        if not all(map(is_topic_name, topics)):
            yield _complaint(parameter, "value", "must be names of topics with commas")
        for topic in taken.keys() & topics:
            yield _complaint(parameter, "value", f"{topic} is a topic of {taken[topic]}, which has its own writer")
        of_units = {
            topic for each in rules.row_versions() if each.resolved is not None for topic in each.resolved.targets
        }
        for topic in sorted(of_units.intersection(topics)) if parameter.name == "notice_topics" else ():
            yield _complaint(parameter, "value", f"{topic} is a topic of units, and a notice is none")
    elif value and not (value.isascii() and value.isdigit() and len(value) < 19):
        yield _complaint(parameter, "value", "must be a whole number, or empty for off")
    elif parameter.name == "delivery_attempts" and not 1 <= int(value or 0) <= MAX_ATTEMPTS:
        yield _complaint(parameter, "value", f"must be 1 to {MAX_ATTEMPTS}")
    elif value and parameter.name == "stranded_after_ms":
        longest = max((each.row.age_ms or 0 for each in rules.row_versions()), default=0)
        if int(value) <= longest:
            yield _complaint(parameter, "value", f"must exceed the largest age_ms, {longest}")
