"""Fan-in: the replies to the requests of a manifest make one unit (aggregation, 6.9)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from tests.core.rule_script import Table, r, row, sizes, told_by
from tests.core.script import T0, Sent, Story, Told, clock, given_up, ms, refused, told, unit
from tests.engine.test_by_rule_restored import restored, write
from tests.fake_record import FakeRecord
from tests.signed_commands import ForeignSigner
from uow.processor.core.group import Group
from uow.schemas.error_classes import (
    BadSequenceNumberError,
    DuplicateSequenceNumberError,
    OutOfSequenceRangeError,
    UnitClosedError,
)
from uow.topics import conditions
from uow.topics.command_keys import CommandKey
from uow.topics.commands import Command, Verb, command_headers, command_value
from uow.topics.grouping import GroupPolicy
from uow.topics.manifests import Manifest, ReplyContext, RequestEntry
from uow.topics.policies import ExpirationPolicy, OutcomesPolicy, ValueFormat, ViolationPolicy
from uow.topics.rules import AtMaxOpenGroups, Numbering, Release

TRIP = "low-stock/trip/1"
FOLDERS = ("hotel", "flight", "flight")
NO_CONTEXT = ReplyContext()


def gathering(
    k: int | None = None, n: int | None = None, rule: dict[str, Any] | None = None, **row_: Any
) -> GroupPolicy:
    """A row whose groups hold replies."""
    given = {"sequence": Numbering.GIVEN} | (rule or {})
    return row("trip", complete_when=conditions.Manifest(k, n), rule=given, **row_)


def manifest(
    folders: Sequence[str | RequestEntry] = FOLDERS,
    timeout: float | None = None,
    at: float | None = None,
    id: str = TRIP,
    reply: ReplyContext = NO_CONTEXT,
    rule: str = "low-stock/trip@1",
    command_id: str = "",
    text: bytes | None = None,
    dry_run: bool = False,
) -> Told:
    """A manifest on `D.commands`; `timeout` in seconds."""
    listed = tuple(each if isinstance(each, RequestEntry) else RequestEntry(each, f"{each}s") for each in folders)
    timeout_ms = None if timeout is None else round(timeout * 1000)
    said = Manifest("trip", listed, timeout_ms, reply)
    command = Command(
        (command_id or f"m {id}").encode(),
        Verb.MANIFEST,
        id.encode(),
        "called",
        rule=rule,
        manifest=said,
        dry_run=dry_run,
    )
    return Told(command_headers(command), id.encode(), at, command_value(command) if text is None else text)


def reply(seq: int, at: float | None = None, id: str = TRIP, value: object = None, **said: object) -> Sent:
    return r("trip", at=at, id=id, seq=seq, value=f"<r{seq}/>" if value is None else value, **said)


def group_of(played: Story, id: str = TRIP) -> Group:
    return played.task.groups[id.encode()]


def test_the_replies_to_all_requests_make_one_unit_b77_b79() -> None:
    played = told_by(manifest(at=0), reply(2, at=1), reply(1), reply(3, at=2), rules=[gathering()])
    assert played.seen == [unit(1, 2, 3, id=TRIP)]
    assert sizes(played) == [("complete", "manifest", 3)]
    assert (played.units[0].opened_at, played.open) == (ms(0), {})
    assert [answer.text for answer in played.answers] == ["awaits 3 replies"]


@pytest.mark.parametrize("order", list(permutations((1, 2, 3)))[::2])
def test_the_output_is_in_the_order_of_the_manifest_b80(order: tuple[int, ...]) -> None:
    """But for where each reply lies, and when the last one came."""
    told_ = [f"{number}" for number in order]
    played = told_by(
        manifest(at=0),
        *(reply(int(number), at=1, value=f"r{number}", input=f"replies/0/{number}") for number in told_),
        rules=[gathering(value_format=ValueFormat.XML)],
    )
    (output,) = [each for each in played.outputs if each.topic == "D.units"]
    assert output.value == (
        b'<?xml version="1.0" encoding="UTF-8"?>\n<Replies name="trip"><Folder name="hotel"><Value>r1</Value></Folder>'
        b'<Folder name="flight"><Value>r2</Value></Folder><Folder name="flight"><Value>r3</Value></Folder></Replies>'
    )


def test_folders_that_repeat_give_lists_b78() -> None:
    rules = [gathering(value_format=ValueFormat.JSON)]
    played = told_by(manifest(at=0, timeout=5), reply(3, at=1), reply(1, at=2), clock(6), rules=rules)
    (output,) = [each for each in played.outputs if each.topic == "D.units"]
    document = json.loads(output.value or b"")
    assert document["folders"] == {"hotel": [1], "flight": [2]}
    assert document["missing_folders"] == ["flight"]
    assert (document["name"], document["outcome"]) == ("trip", "partial")
    assert json.loads(dict(output.headers)["uow-folders"] or b"") == [*FOLDERS]


def test_replies_that_come_first_are_held_and_adopted_b81() -> None:
    rules = [gathering(parameters={"reply_hold_ms": 3_000})]
    played = told_by(reply(2, at=0), reply(1, at=1), manifest(at=2), reply(3, at=100), rules=rules)
    assert played.seen == [unit(1, 2, 3, id=TRIP)]
    whole = told_by(*(reply(number, at=0) for number in (1, 2, 3)), manifest(at=1), rules=rules)
    assert sizes(whole) == [("complete", "manifest", 3)]
    assert whole.units[0].closed_at == ms(1)


@pytest.mark.parametrize("hold", [0, 3_000])
def test_replies_whose_manifest_never_comes_are_given_up_after_the_hold_b81(hold: int) -> None:
    """Not by another reply: `D.commands` may not have been read so far. A tick says that it was."""
    rules = [gathering(parameters={"reply_hold_ms": hold}, age_ms=60_000)]
    played = told_by(reply(1, at=0), reply(2, at=50), rules=rules)
    assert played.seen == []
    played.send(clock(50.001))
    errors = [given_up(number, "expired", "manifest", "3-2147483647") for number in (1, 2)]
    assert played.seen == [replaced(each, "3-") for each in errors]
    late = reply(3, at=60)
    assert played.send(manifest(at=59), late) == [refused(late, UnitClosedError, "expired")]
    assert not played.answers[0].done
    assert "closed already" in played.answers[0].text


def replaced(error: Any, missing: str) -> Any:
    return type(error)(error.number, error.failure, error.case, error.error, missing)


def test_what_was_read_before_the_manifest_is_not_given_up_by_its_own_age_b81() -> None:
    """The hold counts until the manifest comes, and then its timeout, from the manifest on."""
    played = told_by(reply(1, at=0), manifest(at=2, timeout=10), clock(12), rules=[gathering(age_ms=1_000)])
    assert played.seen == []
    played.send(clock(12.001))
    assert played.seen == [unit(1, id=TRIP, outcome="partial", missing="2-3")]


def test_at_the_timeout_what_has_arrived_goes_out_b83() -> None:
    played = told_by(manifest(at=0, timeout=5), reply(1, at=1), reply(2, at=2), clock(5), rules=[gathering()])
    assert played.seen == []
    played.send(clock(5.001))
    assert played.seen == [unit(1, 2, id=TRIP, outcome="partial", missing="3")]
    assert sizes(played) == [("partial", "age", 2)]


@pytest.mark.parametrize("age_ms", [None, 60_000])
def test_a_timeout_of_none_or_nothing_waits_for_ever_b83(age_ms: int | None) -> None:
    forever = manifest(at=0, timeout=None if age_ms is None else 0)
    played = told_by(forever, reply(1, at=1), clock(1e9), rules=[gathering(age_ms=age_ms)])
    assert (played.seen, group_of(played).deadline(played.task.context.policy)) == ([], None)


@pytest.mark.parametrize("value_format", [None, ValueFormat.JSON, ValueFormat.XML])
def test_a_timeout_without_a_reply_gives_a_unit_of_none_b84(value_format: ValueFormat | None) -> None:
    rules = [gathering(value_format=value_format)]
    played = told_by(manifest(at=0, timeout=5), manifest(at=0, timeout=5, id="low-stock/trip/2"), clock(6), rules=rules)
    first, second = played.unit_headers
    assert (first["uow-size"], first["uow-missing"], first["uow-outcome"]) == (b"0", b"1-3", b"partial")
    assert first["uow-unit-id"] != second["uow-unit-id"]
    if value_format is None:
        assert [(made.count, made.opened_at, made.closed_at) for made in played.units] == [(0, ms(0), ms(5.001))] * 2


def test_a_run_of_records_cannot_be_empty_so_such_a_unit_is_one_record_b84() -> None:
    played = told_by(
        manifest(at=0, timeout=5),
        clock(6),
        rules=[gathering(destination={"shape": "consecutive", "oversize": "consecutive"})],
    )
    assert [said["uow-size"] for said in played.unit_headers] == [b"0"]


def test_the_timeout_of_the_call_wins_over_the_rows_b85() -> None:
    hour = 3_600
    calls = [
        manifest(at=0, timeout=2 * hour, id="low-stock/trip/a"),
        manifest(at=0, timeout=48 * hour, id="low-stock/trip/b"),
    ]
    played = told_by(*calls, manifest(at=0, id="low-stock/trip/c"), clock(1.001), rules=[gathering(age_ms=1_000)])
    assert [made.id for made in played.units] == ["low-stock/trip/c"]
    played.send(clock(2 * hour + 0.001))
    assert [made.id for made in played.units[1:]] == ["low-stock/trip/a"]
    assert [*played.open] == ["low-stock/trip/b"]


@pytest.mark.parametrize(("age_from", "due"), [("arrival", 3), ("manifest", 5)])
def test_the_age_counts_from_the_manifest_or_from_what_came_before_it_b43(age_from: str, due: float) -> None:
    rules = [gathering(age_ms=3_000, age_from=age_from)]
    played = told_by(reply(1, at=0), manifest(at=2), clock(due), rules=rules)
    assert played.seen == []
    played.send(clock(due + 0.001))
    assert sizes(played) == [("partial", "age", 1)]


def test_a_reply_after_closing_is_refused_and_the_unit_stays_as_it_is_b86() -> None:
    late = reply(3, at=7)
    played = told_by(manifest(at=0, timeout=5), reply(1, at=1), reply(2, at=2), clock(6), late, rules=[gathering()])
    assert played.seen[1:] == [refused(late, UnitClosedError, "partial")]
    after = reply(2, at=9)
    whole = told_by(manifest(["a", "b"], at=0), reply(1, at=1), reply(2, at=2), after, rules=[gathering()])
    assert whole.seen[1:] == [refused(after, UnitClosedError, "complete")]


def test_a_hold_ends_after_its_last_millisecond_b81() -> None:
    rules = [gathering(parameters={"reply_hold_ms": 3_000})]
    played = told_by(reply(1, at=0), clock(3), rules=rules)
    assert played.seen == []
    played.send(clock(3.001))
    assert [type(each).__name__ for each in played.seen] == ["SeenError"]


def test_the_same_reply_again_is_refused_and_the_first_counts_b87() -> None:
    first = reply(1, at=1, input="replies/0/7")
    again = [
        reply(1, at=2, input="replies/0/7"),  # the router's input once more
        reply(1, at=2),
        reply(1, at=2, value="<other/>"),
    ]
    played = told_by(manifest(at=0), first, *again, reply(2, at=3), reply(3, at=3), rules=[gathering()])
    cases = ("resend", "duplicate", "conflict")
    assert played.seen[:3] == [
        refused(sent, DuplicateSequenceNumberError, case) for sent, case in zip(again, cases, strict=True)
    ]
    assert played.units[0].components[0].value == b"<r1/>"
    assert played.units[0].count == 3


def test_replies_and_their_manifest_survive_a_restart_b88() -> None:
    rules = (gathering(value_format=ValueFormat.JSON),)
    context = ReplyContext(headers=(("x", "1"),))
    logs, before = write(
        manifest(at=0, timeout=60, reply=context),
        manifest(at=0, timeout=60, id="low-stock/trip/none"),
        reply(1, at=1, delivery_mode="non_persistent"),
        reply(2, at=2, id="low-stock/trip/early"),
        reply(2, at=2),
        rows=rules,
    )
    again = Story(restored(logs, table=Table(*rules)), offset=3, command_offset=2)
    states = [
        {key: group.ruled and group.ruled.state for key, group in task.groups.items()}
        for task in (again.task, before.task)
    ]
    assert states[0] == states[1]
    assert again.task.partition.manifest_bytes == before.task.partition.manifest_bytes > 0
    again.send(reply(3, at=3), clock(60.001))
    assert sizes(again) == [("complete", "manifest", 3), ("partial", "age", 0)]
    assert again.unit_headers[0]["x"] == b"1"
    for plan in again.plans:
        logs.add(plan)
    logs.compact()
    assert [*restored(logs, table=Table(*rules)).groups] == [b"low-stock/trip/early"]


def test_the_first_reply_after_a_restart_joins_a_group_of_none_b88() -> None:
    rules = (gathering(),)
    logs, _ = write(manifest(at=0), rows=rules)
    middle = Story(restored(logs, table=Table(*rules)), command_offset=1)
    middle.send(reply(1, at=1))
    middle.send(reply(2, at=1))
    for plan in middle.plans:
        logs.add(plan)
    last = Story(restored(logs, table=Table(*rules)), offset=2, command_offset=1)
    last.send(reply(3, at=3))
    assert last.seen == [unit(1, 2, 3, id=TRIP)]


def test_the_reply_context_shapes_the_output_b91() -> None:
    context = ReplyContext("trips.done", "the caller", "q-17", (("x", "1"), ("y", "2")))
    rules = [gathering(parameters={"reply_topics": "others, trips.done"}, target_topic="trips")]
    last = reply(3, at=2, correlation_id=f"{TRIP}.3", reply_to="replies", type="offer")
    last = Sent([*last.headers, ("y", b"of the reply"), ("z", b"3")], last.value, last.key, last.at)
    played = told_by(
        manifest(at=0, reply=context), reply(1, at=1), reply(2), last, rules=rules, outcomes=OutcomesPolicy.ALL
    )
    (output,) = [each for each in played.outputs if each.topic == "trips.done"]
    said = dict(output.headers)
    assert (output.key, output.partition) == (b"the caller", -1)
    assert {name: said.get(name) for name in ("x", "y", "z", "uow-correlation-id", "uow-type", "uow-reply-to")} == {
        "x": b"1",
        "y": b"2",
        "z": b"3",
        "uow-correlation-id": b"q-17",
        "uow-type": b"offer",
        "uow-reply-to": None,
    }
    assert len(output.headers) == len(said)
    assert [each.target for each in played.outcomes] == ["trips.done"]


def test_no_call_chooses_a_topic_that_the_rules_do_not_name_b91() -> None:
    """Else whoever may write commands could write, by the worker's rights, wherever it may."""
    for topic in ("app-D-groups-changelog", "trip", "tripss"):
        context = ReplyContext(topic)
        rules = [gathering(parameters={"reply_topics": "trips.done"}, target_topic="trips")]
        played = told_by(manifest(at=0, reply=context), rules=rules)
        assert not played.answers[0].done
        assert (topic in played.answers[0].text, played.open) == (True, {})


def test_enough_replies_complete_a_quorum_and_the_others_are_late_b209() -> None:
    late = reply(2, at=3)
    played = told_by(manifest(at=0), reply(3, at=1), reply(1, at=2), late, rules=[gathering(2, 3)])
    assert played.seen == [unit(1, 3, id=TRIP), refused(late, UnitClosedError, "complete")]
    assert sizes(played) == [("complete", "manifest", 2)]
    first = reply(3, at=3)
    whole = told_by(manifest(at=0), reply(2, at=1), reply(1, at=2), first, rules=[gathering(2)])
    assert whole.seen == [unit(1, 2, id=TRIP), refused(first, UnitClosedError, "complete")]
    other = told_by(manifest(["a"], at=0), rules=[gathering(2, 3)])
    assert (other.answers[0].done, other.open) == (False, {})


def test_a_reply_that_no_request_asked_for_spoils_nothing() -> None:
    """Anybody may write one: before the manifest, with an end mark, with a count; after it."""
    hostile = reply(9, at=0, end=True, count=1)
    too_high = reply(4, at=2)
    numbers = reply(3, at=3)
    played = told_by(hostile, manifest(at=1), reply(1, at=2), too_high, reply(2), numbers, rules=[gathering()])
    assert played.seen == [
        given_up(9, "cancelled", "command", ""),
        refused(too_high, OutOfSequenceRangeError, "a"),
        unit(1, 2, 3, id=TRIP),
    ]
    unnumbered = r("trip", id=TRIP, at=0)
    alone = told_by(manifest(at=0), unnumbered, rules=[gathering()])
    assert alone.seen == [refused(unnumbered, BadSequenceNumberError, "a")]


def test_one_violation_does_not_fail_what_others_replied_unless_the_destination_says_so() -> None:
    rules = [gathering(destination={"violation_policy": ViolationPolicy.FAIL_GROUP})]
    played = told_by(manifest(at=0), reply(1, at=1), reply(8, at=2), rules=rules)
    assert [(each.outcome, each.reason) for each in played.outcomes] == [("failed", "conflict")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "is missing or empty" and "empty"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "are allowed"),
        (b"[" * 60_000, "no JSON"),
        (b"[]", "no JSON object"),
        (b'{"name":"n","requests":[]}', "requests"),
        (b'{"name":"n","requests":[{"number":2,"folder":"f","topic":"t"}]}', "is not 1"),
        (b'{"name":"n","requests":[{"number":1,"folder":" ","topic":"t"}]}', "folder"),
        (b'{"name":"n","requests":[{"number":1,"folder":"\\ud800","topic":"t"}]}', "UTF-8"),
        *(
            (
                b'{"name":"n","requests":[{"number":1,"folder":"f","topic":"t","weight":%b}]}' % weight,
                "weight of request 1",
            )
            for weight in (b"0", b"-1", b"1000001", b"1e999", b"1.0", b"true", b'"2"', b"null", b"[]", b"9" * 4_000)
        ),
        *(
            (
                b'{"name":"n","requests":[{"number":1,"folder":"f","topic":"t","notice_topic":%b}]}' % topic,
                "notice_topic",
            )
            for topic in (b'" "', b"7", b'"%b"' % (b"t" * 250))
        ),
        (b'{"name":"n","timeout_ms":-1,"requests":[{"number":1,"folder":"f","topic":"t"}]}', "timeout_ms"),
        (b'{"name":"n","timeout_ms":1e999,"requests":[{"number":1,"folder":"f","topic":"t"}]}', "timeout_ms"),
        (
            b'{"name":"n","requests":[{"number":1,"folder":"f","topic":"t"}],"reply":{"headers":[["uow-id","x"]]}}',
            "uow-id",
        ),
        (b'{"name":"n","requests":[{"number":1,"folder":"f","topic":"t"}],"reply":{"headers":[["x",1]]}}', "UTF-8"),
    ],
)
def test_what_is_no_manifest_is_answered_so_b78(text: bytes, why: str) -> None:
    played = told_by(manifest(at=0, text=text), rules=[gathering()])
    assert (played.answers[0].done, played.open) == (False, {})
    assert why in played.answers[0].text


def test_a_manifest_that_cannot_be_taken_changes_nothing() -> None:
    rules = [gathering(rule={"max_open_groups": 2}), row("count", complete_count=3, age_ms=9_000)]
    r_count = r("count", at=0)
    steps = {
        "is no row": manifest(at=0, rule="low-stock/count@1", id="low-stock/trip/x"),
        "does not begin": manifest(at=0, id="other/trip/x"),
        "already": manifest(at=1, command_id="again"),
        "repeated": manifest(at=1),
        "another rule": manifest(at=1, id="low-stock/count", rule="x/trip@1"),
        "may have 2": manifest(at=1, id="low-stock/trip/3"),
    }
    dry = manifest(at=0, id="low-stock/trip/4", dry_run=True)
    played = told_by(manifest(at=0), dry, r_count, *steps.values(), rules=rules)
    texts = [answer.text for answer in played.answers]
    assert texts[1].startswith("dry run")
    assert all(why in text for why, text in zip(steps, texts[2:], strict=True)), texts
    assert [answer.done for answer in played.answers] == [True, False] + [False] * len(steps)
    assert played.open == {TRIP: "", "low-stock/count": "1"}


@pytest.mark.parametrize("since", [T0 - 1, T0 + 2_001, None])
@pytest.mark.parametrize("is_signed", [True, False])
def test_a_manifest_without_a_signature_ends_no_group_where_signatures_are_asked_for(
    since: int | None, *, is_signed: bool
) -> None:
    """A caller that may write manifests and nothing else could end those of all others, as many as it likes."""
    signer = ForeignSigner("caller")
    keys = () if since is None else (CommandKey("caller", signer.public, frozenset({"manifest"}), since),)
    calls = [manifest(at=number, id=f"low-stock/trip/{number}") for number in range(3)]
    if is_signed:
        last = calls[-1]
        calls[-1] = replace(last, headers=signer.sign("D", last.key, [*last.headers], ms(2), last.value))
    rules = [gathering(rule={"max_open_groups": 2, "at_max_open_groups": AtMaxOpenGroups.CLOSE_OLDEST})]
    played = told_by(*calls, rules=rules, command_keys=keys)
    ends_one = is_signed or since != T0 - 1
    assert [answer.done for answer in played.answers] == [True, True, ends_one]
    assert [*played.open] == [f"low-stock/trip/{number}" for number in range(3)][ends_one : 2 + ends_one]
    assert ("may have 2" in played.answers[-1].text) is not ends_one


def test_the_rules_are_read_before_a_manifest_with_an_unknown_row_is_refused() -> None:
    played = told_by(manifest(at=0), reply(1, at=1), rules=[], later=[gathering()])
    assert played.open == {TRIP: "1"}
    unknown = told_by(
        manifest(at=0, rule="low-stock/none@9"), manifest(at=1, id="low-stock/trip/2"), rules=[gathering()]
    )
    assert [answer.done for answer in unknown.answers] == [False, True]


def test_commands_work_on_a_group_that_gathers_replies_w203() -> None:
    rules = [gathering(on_give_up=ExpirationPolicy.REDIRECT)]
    waived = told_by(manifest(at=0), told("waive", id=TRIP, seq="2-3", at=1), reply(1, at=2), rules=rules)
    assert waived.seen == [unit(1, id=TRIP, outcome="partial", missing="2-3")]
    released = told_by(manifest(at=0), told("release", id=TRIP, at=1), rules=rules)
    assert [said["uow-size"] for said in released.unit_headers] == [b"0"]
    ended = told_by(
        manifest(at=0), told("declare-end", id=TRIP, seq=1, at=1), told("cancel", id=TRIP, at=2), rules=rules
    )
    assert [answer.done for answer in ended.answers] == [True, False, True]
    assert [(each.outcome, each.count) for each in ended.outcomes] == [("cancelled", 0)]
    extended = told_by(
        manifest(at=0, timeout=5), told("extend", id=TRIP, until=20, at=1), clock(19), rules=[gathering()]
    )
    assert extended.seen == []
    removed = told_by(
        manifest(at=0),
        reply(1, at=1),
        reply(2),
        told("remove", id=TRIP, seq=1, at=2),
        reply(1, at=3),
        reply(3),
        rules=rules,
    )
    assert sizes(removed) == [("complete", "manifest", 3)]


def test_what_is_whole_waits_for_its_release_b104() -> None:
    rules = [gathering(rule={"release": Release.HOLD_ALL})]
    waits = told_by(reply(1, at=0), manifest(["a"], at=1), rules=rules)
    assert (waits.seen, waits.open) == ([], {TRIP: "1"})
    waits.send(told("release", id=TRIP, at=2))
    assert waits.seen == [unit(1, id=TRIP)]


def test_manifest_and_replies_of_one_poll_are_taken_in_order_of_their_append_times_b81() -> None:
    played = Story(told_by(rules=[gathering()]).task)
    records = played.records([reply(1, at=5), reply(2, at=6)])
    command = played.command(manifest(["a", "b"], at=0))
    played.plans.append(played.task.process(records, [command]))
    assert played.seen == [unit(1, 2, id=TRIP)]
    assert isinstance(command, FakeRecord)
    assert played.units[0].opened_at == T0
