"""Quorum of a fan-out by weight, the best replies in time, and cancel notices to services that are still asked (B-209)."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import pytest

from tests.core.rule_script import Table, sizes, told_by
from tests.core.script import Story, clock, policy_of, refused, told, unit
from tests.core.test_fan_in import TRIP, gathering, group_of, manifest, reply
from tests.engine.test_by_rule_restored import restored, write
from uow.processor.core.faulty_groups import GroupFault, Treatment
from uow.processor.core.plan_size import CLOSE_BYTES
from uow.processor.engine.ports import Output
from uow.processor.rules.conditions import group_policy
from uow.schemas.error_classes import DecodeError, InternalError, OutOfSequenceRangeError, UnitClosedError
from uow.topics.manifests import MAX_WEIGHED, MAX_WEIGHT, Manifest, RequestEntry, read_manifest
from uow.topics.policies import ExpirationPolicy, Oversize, ValueFormat
from uow.topics.rules import Numbering, Parameter, Release, ResolvedRow, Row, Rule

STOP = "services.cancelled"
NOTICED = {"parameters": {"notice_topics": f"others, {STOP}"}}


def asked(*weights: int, topic: str | None = STOP) -> list[RequestEntry]:
    """Requests of these weights, to folders a, b and so on, with a topic for notices."""
    return [RequestEntry("abcdefgh"[at % 8], f"services.{at}", weight, topic) for at, weight in enumerate(weights)]


def notices(played: Story) -> list[tuple[str, str]]:
    """Request and outcome of each notice."""
    return [
        (dict(each.headers)["uow-request-id"].decode(), dict(each.headers)["uow-outcome"].decode())  # type: ignore[union-attr]
        for each in played.outputs
        if each.topic == STOP
    ]


def test_enough_replies_make_the_unit_who_is_still_asked_hears_of_it_and_is_late_b209() -> None:
    late = reply(2, at=3)
    played = told_by(
        manifest(asked(1, 1, 1), at=0), reply(3, at=1), reply(1, at=2), late, rules=[gathering(2, 3, **NOTICED)]
    )
    assert played.seen == [unit(1, 3, id=TRIP), refused(late, UnitClosedError, "complete")]
    (notice,) = [each for each in played.outputs if each.topic == STOP]
    assert notice == Output(
        STOP,
        -1,
        b"low-stock/trip/1.2",
        b'{"request_id":"low-stock/trip/1.2","folder":"b","topic":"services.1","outcome":"complete","reason":"manifest"}',
        [
            ("uow-kind", b"notice"),
            ("uow-request-id", b"low-stock/trip/1.2"),
            ("uow-outcome", b"complete"),
            ("uow-reason", b"manifest"),
        ],
    )
    assert played.counts.notices == 1
    assert [[each.topic for each in plan.outputs if each.topic in ("D.units", STOP)] for plan in played.plans[1:2]] == [
        ["D.units", STOP]
    ], "unit and notice are of one transaction"


def test_the_first_reply_wins_b209() -> None:
    played = told_by(manifest(asked(1, 1, 1), at=0), reply(2, at=1), rules=[gathering(1, **NOTICED)])
    assert played.seen == [unit(2, id=TRIP)]
    assert [number[-1] for number, _ in notices(played)] == ["1", "3"]


@pytest.mark.parametrize("quorum", [1, 2, 3, 4, 5, 6])
def test_a_quorum_counts_weights_b209(quorum: int) -> None:
    """Whichever replies come, the unit is complete with the first that brings their weight to the quorum."""
    weights = (3, 1, 2)
    for come in [order for size in (1, 2, 3) for order in combinations((1, 2, 3), size)]:
        replies = (reply(number, at=1) for number in come)
        played = told_by(manifest(asked(*weights, topic=None), at=0), *replies, rules=[gathering(quorum)])
        held, weight = 0, 0
        while weight < quorum and held < len(come):
            weight += weights[come[held] - 1]
            held += 1
        assert sizes(played) == ([("complete", "manifest", held)] if weight >= quorum else [])


def test_replies_before_their_manifest_count_with_its_weights_b209() -> None:
    rules = [gathering(3)]
    played = told_by(reply(2, at=0), reply(1, at=0), manifest(asked(1, 2, 2, topic=None), at=1), rules=rules)
    assert sizes(played) == [("complete", "manifest", 2)]


def test_a_waived_reply_counts_as_much_as_it_weighs_b209_w203() -> None:
    rules = [gathering(4, **NOTICED)]
    call = manifest(asked(1, 3, 2), at=0)
    less = told_by(call, reply(1, at=1), told("waive", id=TRIP, seq=3, at=2), rules=rules)
    assert (less.seen, notices(less)) == ([], [])
    enough = told_by(call, reply(1, at=1), told("waive", id=TRIP, seq=2, at=2), rules=rules)
    assert sizes(enough) == [("partial", "command", 1)]
    assert [number[-1] for number, _ in notices(enough)] == ["2", "3"]
    both = told_by(call, told("waive", id=TRIP, seq=3, at=1), reply(2, at=2), rules=rules)
    assert sizes(both) == [("partial", "command", 1)]
    again = told_by(call, told("waive", id=TRIP, seq=3, at=1), reply(3, at=2), reply(1, at=3), rules=rules)
    assert again.seen == [], "a reply that was waived and came counts once"


def test_the_weights_of_a_rule_that_says_of_n_add_up_to_n_b209() -> None:
    rules = [gathering(3, 5, **NOTICED)]
    assert told_by(manifest(asked(3, 2), at=0), rules=rules).answers[0].done
    other = told_by(manifest(asked(3, 3), at=0), rules=rules)
    assert (other.answers[0].done, other.open) == (False, {})
    assert other.answers[0].text == "its requests weigh 6 in all; the rule is for 5"


def test_a_call_that_cannot_reach_the_quorum_is_refused_b209() -> None:
    for call in (manifest(["a"], at=0), manifest(asked(1, 1, topic=None), at=0)):
        played = told_by(call, rules=[gathering(3)])
        assert (played.answers[0].done, played.open) == (False, {})
        assert "needs replies of 3" in played.answers[0].text
    assert told_by(manifest(asked(MAX_WEIGHT, topic=None), at=0), rules=[gathering(3)]).answers[0].done


def test_weights_are_for_calls_of_up_to_a_thousand_requests_b209() -> None:
    for count, is_taken in ((MAX_WEIGHED, True), (MAX_WEIGHED + 1, False)):
        text = Manifest("trip", tuple(RequestEntry("f", "t", 1 + (n == 7)) for n in range(count))).encode()
        if is_taken:
            assert read_manifest(text).weight == count + 1
        else:
            with pytest.raises(DecodeError, match="weights among 1001 requests; 1000 may have them"):
                read_manifest(text)
    read_manifest(Manifest("trip", tuple([RequestEntry("f", "t")] * (MAX_WEIGHED + 1))).encode())


def test_no_call_has_notices_sent_to_a_topic_that_the_rules_do_not_name_b209() -> None:
    for topic in ("D.components", "app-D-groups-changelog", "trips", STOP[:-1]):
        rules = [gathering(target_topic="trips", **NOTICED)]
        played = told_by(manifest([*asked(1), RequestEntry("x", "x", 1, topic)], at=0), rules=rules)
        assert (played.answers[0].done, played.open) == (False, {})
        assert f"{topic!r} of request 2" in played.answers[0].text


def test_who_is_still_asked_hears_of_every_end_of_a_call_b209() -> None:
    call, rules = manifest(asked(1, 1), at=0, timeout=5), [gathering(**NOTICED)]
    assert notices(told_by(call, reply(1, at=1), clock(5.001), rules=rules)) == [(f"{TRIP}.2", "partial")]
    assert [outcome for _, outcome in notices(told_by(call, clock(6), rules=rules))] == ["partial"] * 2
    assert notices(told_by(call, reply(1, at=1), told("cancel", id=TRIP, at=2), rules=rules)) == [
        (f"{TRIP}.2", "cancelled")
    ]
    for policy in (ExpirationPolicy.REDIRECT, ExpirationPolicy.DISCARD, ExpirationPolicy.LOG):
        given_up = told_by(call, reply(2, at=1), clock(6), rules=[gathering(on_give_up=policy, **NOTICED)])
        assert notices(given_up) == [(f"{TRIP}.1", "expired")]
    whole = told_by(call, reply(1, at=1), reply(2, at=1), rules=rules)
    assert (sizes(whole), notices(whole)) == ([("complete", "manifest", 2)], [])


def test_a_unit_that_cannot_be_written_has_one_notice_that_says_so_b209_b89() -> None:
    rules = [gathering(1, destination={"oversize": Oversize.FAIL}, **NOTICED)]
    context: dict[str, Any] = {"record_limit_bytes": 500}
    played = told_by(manifest(asked(1, 1), at=0), reply(1, at=1, value="x" * 1_000), rules=rules, **context)
    assert [(each.outcome, each.reason) for each in played.outcomes] == [("failed", "limit")]
    assert notices(played) == [(f"{TRIP}.2", "failed")]
    assert played.counts.notices == 1


@pytest.mark.parametrize("treatment", [Treatment.FAILS_AS_UNIT, Treatment.CLOSED])
def test_who_is_still_asked_hears_that_the_unit_could_not_be_made_where_the_notices_are_not_what_fails(
    treatment: Treatment,
) -> None:
    played = told_by(manifest(asked(1, 1), at=0), rules=[gathering(1, **NOTICED)])
    (group,) = played.task.groups.values()
    fault = GroupFault(InternalError("a defect"), treatment)
    played.task.partition.faulty[group.id, group.generation] = fault
    played.send(reply(1, at=1))
    assert [(each.outcome, each.reason) for each in played.outcomes] == [("failed", "limit")]
    assert notices(played) == [(f"{TRIP}.2", "failed")] * (treatment is Treatment.FAILS_AS_UNIT)


def test_requests_without_a_topic_for_notices_and_replies_without_a_manifest_have_none_b209() -> None:
    rules = [gathering(1, **NOTICED, age_ms=9_000)]
    mixed = [*asked(1), *asked(1, topic=None), *asked(1)]
    assert [each for each, _ in notices(told_by(manifest(mixed, at=0), reply(1, at=1), rules=rules))] == [f"{TRIP}.3"]
    early = [gathering(parameters={"reply_hold_ms": 0, "notice_topics": STOP})]
    assert notices(told_by(reply(1, at=0), clock(1), rules=early)) == []


def test_the_notices_of_a_unit_that_waits_for_its_release_go_with_it_b209_b104() -> None:
    rules, late = [gathering(1, rule={"release": Release.HOLD_ALL}, **NOTICED)], reply(2, at=2)
    played = told_by(manifest(asked(1, 1), at=0), reply(1, at=1), late, rules=rules)
    assert (played.seen, notices(played)) == ([refused(late, OutOfSequenceRangeError, "a")], [])
    played.send(told("release", id=TRIP, at=3))
    assert (played.seen[1:], notices(played)) == ([unit(1, id=TRIP)], [(f"{TRIP}.2", "complete")])


def test_a_reply_beyond_the_manifest_weighs_nothing_b209() -> None:
    stranger, too_high = reply(9, at=0), reply(4, at=2)
    played = told_by(stranger, manifest(asked(1, 1, 5, topic=None), at=1), too_high, rules=[gathering(5)])
    assert played.open == {TRIP: ""}
    assert played.seen[1:] == [refused(too_high, OutOfSequenceRangeError, "a")]


def test_weights_and_notices_survive_a_restart_and_notices_are_not_made_again_b209_b88() -> None:
    rules = (gathering(4, **NOTICED),)
    logs, before = write(manifest(asked(1, 3, 2), at=0), reply(1, at=1), reply(3, at=2), rows=rules)
    again = Story(restored(logs, table=Table(*rules)), offset=2, command_offset=1)
    assert group_of(again).ruled is not None
    assert group_of(again).ruled.state == group_of(before).ruled.state  # type: ignore[union-attr]
    assert again.task.partition.manifest_bytes == before.task.partition.manifest_bytes
    again.send(reply(2, at=3))
    assert (sizes(again), notices(again)) == ([("complete", "manifest", 3)], [])
    first = Story(restored(logs, table=Table(*rules)), offset=2, command_offset=1)
    first.send(told("release", id=TRIP, at=3))
    assert notices(first) == [(f"{TRIP}.2", "partial")]
    for plan in first.plans:
        logs.add(plan)
    last = Story(restored(logs, table=Table(*rules)), offset=2, command_offset=2)
    last.send(reply(2, at=4), clock(99))
    assert notices(last) == []


def ranked(complete_when: str) -> Any:
    """A rule that asks for offers: the cheapest is the best."""
    rule = Rule("low-stock", 1, "D", group_key="request", sequence=Numbering.GIVEN, order_by="field:price")
    row = Row("low-stock", "trip", 1, complete_when=complete_when, value_format=ValueFormat.JSON)
    return group_policy(ResolvedRow(rule, row, (), (Parameter("notice_topics", 1, STOP),)), policy_of())


def test_the_best_within_two_seconds_comes_first_b209() -> None:
    """What came by the timeout of the call, cheapest first; a price that is good enough ends the wait."""
    call = manifest(asked(1, 1, 1), at=0, timeout=2)
    offers = [
        reply(number, at=at, value=json.dumps({"price": price})) for number, at, price in ((1, 0.5, 90), (3, 1, 70))
    ]
    rules = [ranked("any(manifest, predicate(min(price) <= 50))")]
    played = told_by(call, *offers, clock(2.001), rules=rules)
    (output,) = [each for each in played.outputs if each.topic == "D.units"]
    told_ = json.loads(output.value or b"")
    assert (told_["outcome"], told_["reason"]) == ("partial", "age")
    assert [each["seq"] for each in told_["components"]] == [3, 1]
    assert notices(played) == [(f"{TRIP}.2", "partial")]
    good = told_by(call, *offers, reply(2, at=1.5, value='{"price":50}'), rules=rules)
    assert sizes(good) == [("complete", "manifest", 3)]
    early = told_by(call, reply(2, at=0.1, value='{"price":49}'), rules=rules)
    assert [dict(each.headers)["uow-reason"] for each in early.outputs if each.topic == "D.units"] == [b"predicate"]
    assert [number[-1] for number, _ in notices(early)] == ["1", "3"]


def test_a_manifest_without_weights_and_notices_has_the_bytes_that_it_had_b217() -> None:
    """Stored rows keep it as text."""
    text = b'{"name":"trip","timeout_ms":5,"requests":[{"number":1,"folder":"a","topic":"t"}]}'
    assert read_manifest(text).encode() == text
    more = b'{"name":"trip","requests":[{"number":1,"folder":"a","topic":"t","weight":2,"notice_topic":"n"}]}'
    assert read_manifest(more) == Manifest("trip", (RequestEntry("a", "t", 2, "n"),))
    assert read_manifest(more).encode() == more


def test_notices_count_to_what_one_plan_may_close_b209() -> None:
    """A thousand calls that nobody answers, due at once, are not one transaction of all their notices."""
    calls = [manifest(asked(1, 1, 1, 1), at=0, timeout=1, id=f"low-stock/trip/{number}") for number in range(12)]
    played = told_by(*calls, rules=[gathering(**NOTICED)], plan_bytes=CLOSE_BYTES * 15)
    plans = len(played.plans)
    played.send(clock(2))
    while played.plans[-1].is_cut:
        played.send(clock(2))
    assert len(notices(played)) == 48
    assert max(sum(each.topic == STOP for each in plan.outputs) for plan in played.plans[plans:]) <= 16
