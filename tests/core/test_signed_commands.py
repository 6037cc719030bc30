"""Signed commands: which bytes a signature covers, and who may say what (`docs/decisions/0123-signed-commands.md`)."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.core.script import TOPICS, context_of, policy_of
from tests.core.streams import TP
from tests.fake_record import FakeRecord
from tests.signed_commands import ForeignSigner, Headers, foreign_bytes
from uow.processor.engine.ports import Plan, Tp
from uow.processor.engine.rows import read_ledger
from uow.processor.engine.set_aside import asked_aside
from uow.processor.engine.target_topics import TargetTopics
from uow.processor.engine.task import PartitionTask
from uow.schemas import codec
from uow.schemas.error_classes import InternalError, UowError
from uow.schemas.records import Answer
from uow.spark_sink import journal
from uow.spark_sink.journal import arrivals
from uow.spark_sink.kafka import Cluster
from uow.spark_sink.recompute import Arrived, Decided, Order, orders_of
from uow.topics.command_keys import CommandKey, CommandRights, CommandSigner, signed_bytes
from uow.topics.commands import (
    COMMAND_ID,
    Asked,
    BadCommand,
    Command,
    CommandReader,
    Verb,
    command_headers,
    is_answer_to,
)
from uow.topics.output import Output
from uow.topics.policies import DestinationPolicy, LatePolicy

ALL = frozenset({"all"})
T0 = 1_000_000_000
WINDOW = 300_000
OPERATOR, FORWARDER, OLD, STRANGER = map(ForeignSigner, ("operators", "forwarder", "old", "operators"))


def policy(**settings: Any) -> DestinationPolicy:
    keys = (
        CommandKey("operators", OPERATOR.public, frozenset({"all"})),
        CommandKey("forwarder", FORWARDER.public, frozenset({"cancel"})),
        CommandKey("old", OLD.public, frozenset({"all"}), 0, T0 + 10_000),
    )
    return policy_of(command_keys=keys, late_policy=LatePolicy.REOPEN, **settings)


def release(id: str = "a", command_id: str = "c", verb: Verb = Verb.RELEASE, **more: Any) -> Headers:
    return command_headers(Command(command_id.encode(), verb, id.encode(), "why", **more))


def signed(signer: ForeignSigner, headers: Headers, key: bytes = b"a", at: int = T0) -> Headers:
    return signer.sign("D", key, headers, at)


class Life:
    """A worker's partition, component 1 of group `a` held; keeps what a broker would keep."""

    def __init__(self, settings: DestinationPolicy | None = None) -> None:
        self.context = context_of(settings or policy())
        self.task = PartitionTask(TP, self.context)
        self.commands: list[FakeRecord] = []
        self.plans: list[Plan] = []
        self.count = 0

    def hold(self, id: str = "a", at: int = T0) -> None:
        record = FakeRecord(self.count, [("uow-id", id.encode()), ("uow-seq", b"1")], b"v", id.encode(), at, TP)
        self.count += 1
        self.plans.append(self.task.process([record]))

    def refuse(self, headers: Headers, why: UowError | None = None) -> tuple[Answer, bytes | None]:
        """A broker refuses what the command leads to, or the code fails at it."""
        self.commands.append(FakeRecord(len(self.commands), headers, None, b"a", T0, Tp(TOPICS.commands, TP.partition)))
        self.plans.append(self.task.refuse_command(self.commands[-1], why or UowError("denied")))
        [output] = self.plans[-1].outputs
        return codec.decode_as(Answer, output.value or b""), dict(output.headers).get("uow-user-verified")

    def restart(self) -> None:
        known = [each for plan in self.plans for each in read_ledger(plan.ledger or b"")[0].commands]
        again = PartitionTask(TP, self.context)
        again.restore(self.task.position, self.task.clock, (), 0, len(self.commands), known)
        self.task = again

    def tell(
        self, headers: Headers, key: bytes = b"a", at: int = T0, value: bytes | None = None
    ) -> tuple[Answer, bytes | None]:
        where = Tp(TOPICS.commands, TP.partition)
        self.commands.append(FakeRecord(len(self.commands), headers, value, key, at, where))
        plan = self.task.process([], self.commands[-1:])
        self.plans.append(plan)
        [output] = [each for each in plan.outputs if ("uow-kind", b"answer") in each.headers]
        return codec.decode_as(Answer, output.value or b""), dict(output.headers).get("uow-user-verified")


# -- the bytes

RAW = st.none() | st.binary(max_size=6)
NAMES = st.sampled_from(["uow-id", "uow-why", "uow-command", "uow-seq", "uow-signed-at", "uow-i", "uow-id-"])
RECORDS = st.tuples(
    st.text(max_size=3), RAW, RAW, st.dictionaries(NAMES, RAW, max_size=4).map(lambda said: [*said.items()])
)


@given(RECORDS, RECORDS)
def test_no_two_records_have_the_same_signed_bytes(one: Any, other: Any) -> None:
    assume((one[:3], dict(one[3])) != (other[:3], dict(other[3])))
    assert signed_bytes(*one) != signed_bytes(*other)


@given(RECORDS, st.randoms())
def test_the_signed_bytes_are_those_that_the_wire_format_says_in_whatever_order_headers_stand(
    one: Any, rnd: Random
) -> None:
    destination, key, value, headers = one
    mixed = [*headers, ("traceparent", b"x"), ("uow-signature", b"y")]
    rnd.shuffle(mixed)
    assert signed_bytes(destination, key, value, mixed) == foreign_bytes(destination, key, value, headers)


def test_the_vector_of_the_wire_format() -> None:
    signer = CommandSigner("operators", bytes(range(32)))
    headers = command_headers(Command(b"c-1", Verb.RELEASE, b"order-7", "as agreed"))
    found = dict(signer.signed("megazon", b"order-7", None, headers, 1_764_201_600_000))
    assert signer.public == "A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg="
    assert found["uow-signature"] == VECTOR


VECTOR = b"4sbJkvDW16ax/BRgvZKpsK2QoU3225cYkxUsTxCrjv/po5LjpwWGiBJ+xV/Ji6//zZoDPOv5CedjUa1SZTIPDg=="


def changes() -> list[tuple[str, Callable[[Headers], Headers], dict[str, Any]]]:
    def header(name: str, raw: bytes | None) -> Callable[[Headers], Headers]:
        return lambda headers: [(each, raw if each == name else said) for each, said in headers]

    each = [
        (name, header(name, raw), {})
        for name, raw in (
            ("uow-command", b"cancel"),
            ("uow-command-id", b"d"),
            ("uow-id", b"b"),
            ("uow-why", b"whyy"),
            ("uow-why", None),
            ("uow-user-id", b"forwarder"),
            ("uow-signed-at", b"%d" % (T0 + 1)),
        )
    ]
    return [
        *each,
        ("added", lambda headers: [*headers, ("uow-generation", b"1")], {}),
        ("added", lambda headers: [*headers, ("uow-dry-run", b"false")], {}),
        ("left out", lambda headers: [pair for pair in headers if pair[0] != "uow-id"], {}),
        ("repeated", lambda headers: [headers[0], *headers], {}),
        ("key", lambda headers: headers, {"key": b"b"}),
        ("no key", lambda headers: headers, {"key": None}),
        ("value", lambda headers: headers, {"value": b""}),
        ("destination", lambda headers: headers, {"destination": "E"}),
        ("signature", lambda headers: [*headers[:-1], ("uow-signature", b64encode(bytes(64)))], {}),
        ("no signature at all", lambda headers: [*headers[:-1], ("uow-signature", b"?")], {}),
        ("dry run made real", lambda headers: [pair for pair in headers if pair[0] != "uow-dry-run"], {"dry": True}),
    ]


@pytest.mark.parametrize(("what", "change", "more"), changes())
def test_a_signature_holds_for_one_record_alone(
    what: str, change: Callable[[Headers], Headers], more: dict[str, Any]
) -> None:
    whole = signed(OPERATOR, release(dry_run=more.pop("dry", False)))
    rights = policy().command_keys
    said = {"key": b"a", "value": None} | {name: raw for name, raw in more.items() if name != "destination"}

    def judged(headers: Headers, destination: str, key: bytes | None, value: bytes | None) -> Any:
        return CommandRights(destination, rights, (), WINDOW).judge("release", key, value, headers, T0)

    assert judged(whole, "D", b"a", None)[:3] == (None, "", True)
    found = judged(change(whole), more.get("destination", "D"), said["key"], said["value"])
    assert found.refused is not None, what
    assert not found.is_verified


def test_a_signed_command_has_each_header_once_whatever_was_signed() -> None:
    signer = CommandSigner("ops", bytes(32))
    rights = CommandRights("D", (CommandKey("ops", signer.public, frozenset({"all"})),))
    for more, refused in (([], None), ([("uow-why", b"why")], "signature")):
        headers = signer.signed("D", b"a", None, [*release(), *more], T0)
        assert rights.judge("release", b"a", None, headers, T0).refused == refused


@given(st.integers(0, 511))
def test_a_bit_of_the_signature_that_is_another_is_no_signature(bit: int) -> None:
    *rest, (name, raw) = signed(OPERATOR, release())
    signature = bytearray(b64decode(raw or b""))
    signature[bit // 8] ^= 1 << bit % 8
    rights = CommandRights("D", policy().command_keys, (), WINDOW)
    assert rights.judge("release", b"a", None, [*rest, (name, b64encode(signature))], T0).refused == "signature"


# -- who may

CASES = [
    ("not signed", release(), T0, "not_signed", b"false"),
    ("not signed, with the name of a key", [*release(), ("uow-user-id", b"operators")], T0, "not_signed", b"false"),
    ("an operator", signed(OPERATOR, release()), T0, "", b"true"),
    ("a forwarder may cancel", signed(FORWARDER, release(verb=Verb.CANCEL)), T0, "", b"true"),
    ("and not release", signed(FORWARDER, release()), T0, "verb", b"true"),
    ("another key under the name", signed(STRANGER, release()), T0, "signature", b"false"),
    (
        "a key under the name of another",
        FORWARDER.sign("D", b"a", release(verb=Verb.CANCEL), T0, name="operators"),
        T0,
        "signature",
        b"false",
    ),
    ("a name without key", signed(ForeignSigner("who"), release()), T0, "unknown_key", b"false"),
    ("an old key in its time", signed(OLD, release()), T0, "", b"true"),
    ("an old key after its time", signed(OLD, release(), at=T0 + 10_000), T0 + 10_000, "unknown_key", b"false"),
    ("at the end of the window", signed(OPERATOR, release()), T0 + WINDOW, "", b"true"),
    ("after it", signed(OPERATOR, release()), T0 + WINDOW + 1, "time", b"false"),
    ("signed too far ahead", signed(OPERATOR, release(), at=T0 + WINDOW + 1), T0, "time", b"false"),
    ("as far ahead as may be", signed(OPERATOR, release(), at=T0 + WINDOW), T0, "", b"true"),
]


@pytest.mark.parametrize(("what", "headers", "at", "refused", "verified"), CASES, ids=[each[0] for each in CASES])
def test_each_command_is_obeyed_or_refused_by_what_its_key_may(
    what: str, headers: Headers, at: int, refused: str, verified: bytes
) -> None:
    life = Life()
    life.hold()
    answer, is_verified = life.tell(headers, at=at)
    named = dict(headers).get("uow-user-id")
    assert answer.done is (refused == "")
    assert (b"a" in life.task.groups) is (refused != "")
    assert is_verified == (verified if named is not None else None)
    assert answer.text.startswith("refused: ") is (refused != "")
    assert life.context.refused_commands == ({refused: 1} if refused else {})
    assert len(life.task.partition.commands.at_by_id) == (refused == ""), "nobody takes an id that is not his"


def test_of_several_entries_of_one_key_that_count_at_once_each_one_s_verbs_may_be_signed() -> None:
    """As where somebody adds an entry, and gives the old one no end."""
    stranger = CommandKey("operators", FORWARDER.public, frozenset({"expire"}))
    entries = [CommandKey("operators", OPERATOR.public, frozenset({verb})) for verb in ("release", "cancel")]
    for keys in ([stranger, *entries], [*reversed(entries), stranger]):
        rights = CommandRights("D", keys)
        for verb, refused in ((Verb.RELEASE, None), (Verb.CANCEL, None), (Verb.EXPIRE, "verb")):
            headers = signed(OPERATOR, release(verb=verb))
            found = rights.judge(verb, b"a", None, headers, T0)
            assert (found.refused, found.is_verified) == (refused, True)


def test_a_refusal_is_logged_once_for_each_kind(caplog: pytest.LogCaptureFixture) -> None:
    life = Life()
    for number in range(3):
        life.tell(release(command_id=f"c{number}"))
        life.tell(signed(FORWARDER, release(command_id=f"d{number}")))
    assert [record.message.split(";")[0] for record in caplog.records] == [
        "D: a command is refused, release by no name: release needs the signature of a key of this destination",
        "D: a command is refused, release by forwarder: key 'forwarder' has no right to release",
    ]
    assert life.context.refused_commands == {"not_signed": 3, "verb": 3}


def test_without_keys_or_before_the_first_of_them_counts_everything_is_as_it_was() -> None:
    later = (CommandKey("operators", OPERATOR.public, frozenset({"all"}), T0 + 1),)
    for settings in (policy_of(), policy_of(command_keys=later)):
        life = Life(settings)
        life.hold()
        answer, verified = life.tell([*release(), ("uow-user-id", b"Jill")])
        assert (answer.done, verified) == (True, b"false")
    life.hold(at=T0 + 1)
    assert not life.tell(release(command_id="later"), at=T0 + 1)[0].done


def test_unsigned_commands_that_are_allowed_are_not_verified_and_others_are_refused() -> None:
    life = Life(policy(unsigned_commands=frozenset({"expire"})))
    life.hold()
    assert not life.tell(release())[0].done
    for signer, proved in ((None, b"false"), (STRANGER, b"false"), (FORWARDER, b"true")):
        headers = release(verb=Verb.EXPIRE, command_id=f"by {signer and signer.name}")
        named = [*headers, ("uow-user-id", b"operators")] if signer is None else signed(signer, headers)
        answer, verified = life.tell(named)
        assert (answer.done, verified) == (True, proved)
        life.hold()


def test_a_copy_of_a_command_does_nothing_more_also_after_a_restart() -> None:
    life = Life()
    life.hold()
    headers = signed(OPERATOR, release())
    assert life.tell(headers)[0].done
    life.hold(at=T0 + 1)
    answer, verified = life.tell(headers, at=T0 + WINDOW)
    assert (answer.done, answer.text, verified) == (False, "a repeated command does nothing more", b"true")
    life.restart()
    life.hold(at=T0 + 2)
    assert not life.tell(headers, at=T0 + WINDOW)[0].done
    assert not life.tell(headers, at=T0 + WINDOW + 1)[0].done


@pytest.mark.parametrize("why", [UowError("denied"), InternalError("KeyError")])
def test_a_copy_of_a_command_that_was_refused_does_nothing_also_after_a_restart(why: UowError) -> None:
    """Its sender was told that nothing is changed; without keys whoever may write it again may send another one as well."""
    for settings, signer in ((policy(), OPERATOR), (policy_of(), None)):
        life = Life(settings)
        life.hold()
        headers = release() if signer is None else signed(signer, release())
        answer, verified = life.refuse(headers, why)
        assert (answer.done, "so nothing is changed" in answer.text) == (False, True)
        assert verified == (None if signer is None else b"true")
        life.task.partition.groups.clear()
        for _ in range(2):
            life.hold(at=T0 + 1)
            copied = life.tell(headers, at=T0 + WINDOW)[0]
            assert copied.done is (signer is None)
            if signer is None:
                break
            assert copied.text == "a repeated command does nothing more"
            life.restart()
        else:
            life.hold(at=T0 + 1)
            assert life.tell(signed(OPERATOR, release(), at=T0 + 1))[0].done, "it is signed newly"
            life.hold(at=T0 + 1)
            for at in (T0, T0 + 1):
                copied = life.tell(signed(OPERATOR, release(), at=at), at=T0 + WINDOW)[0]
                assert copied.text == "a repeated command does nothing more"


@pytest.mark.parametrize("has_keys", [True, False])
def test_a_copy_of_a_command_that_was_refused_before_signatures_were_asked_for_does_nothing(*, has_keys: bool) -> None:
    """A worker that is started before the first key counts may have none of them in its settings yet."""
    later = policy_of(command_keys=(CommandKey("operators", OPERATOR.public, ALL, T0 + 1),))
    life = Life(later if has_keys else policy_of())
    headers = signed(OPERATOR, release())
    life.refuse(headers)
    life.context = context_of(later)
    life.restart()
    life.hold()
    assert life.tell(headers, at=T0 + 10)[0].text == "a repeated command does nothing more"
    assert life.tell(signed(OPERATOR, release(), at=T0 + 10), at=T0 + 10)[0].done


def test_a_refusal_of_what_no_key_proves_takes_no_id_and_where_reading_fails_nothing_is_proved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    life = Life()
    life.hold()
    for headers, proved in ((signed(STRANGER, release()), b"false"), (signed(FORWARDER, release()), b"true")):
        assert life.refuse(headers)[1] == proved
    assert life.refuse(signed(OPERATOR, release(dry_run=True)))[1] == b"true"
    assert not life.task.partition.commands.at_by_id

    def fail(*_: object) -> None:
        raise KeyError

    with monkeypatch.context() as failing:
        failing.setattr(CommandReader, "read", fail)
        assert life.refuse(signed(OPERATOR, release()))[1] == b"false"
    assert life.tell(signed(OPERATOR, release()))[0].done


@pytest.mark.parametrize(("kind", "at"), [(1, T0 - 1), (1, 0), (1, -1), (0, -1), (2, -1)])
def test_a_time_that_its_sender_may_have_chosen_does_not_say_that_a_command_came_before_there_were_keys(
    kind: int, at: int
) -> None:
    reader = CommandReader("D", policy_of(command_keys=(CommandKey("operators", OPERATOR.public, ALL, T0),)))
    for headers, refused in ((release(), "not_signed"), (signed(OPERATOR, release()), "unknown_key")):
        sent = FakeRecord(0, headers, None, b"a", at, Tp(TOPICS.commands, 0), kind=kind)
        for record in (sent, *arrivals([sent])):  # type: ignore[list-item]
            read = reader.read(headers, record)
            assert isinstance(read, BadCommand)
            assert read.refused == refused
    before = FakeRecord(0, release(), None, b"a", T0 - 1)
    assert isinstance(reader.read(release(), before), Command)


@pytest.mark.parametrize("signed_before_ms", [0, 1, WINDOW, WINDOW + 1])
@pytest.mark.parametrize("after_ms", [0, 1, WINDOW])
def test_a_copy_does_nothing_more_where_signatures_are_asked_for_between_the_two(
    signed_before_ms: int, after_ms: int
) -> None:
    """The first was remembered by its id alone. It may have been signed after it was appended: clocks differ."""
    since = T0 + 1_000
    life = Life(
        policy_of(late_policy=LatePolicy.REOPEN, command_keys=(CommandKey("operators", OPERATOR.public, ALL, since),))
    )
    life.hold()
    for signed_at in (since - signed_before_ms, since + WINDOW - 1):
        headers = signed(OPERATOR, release(command_id=f"at {signed_at}"), at=signed_at)
        life.tell(headers, at=since - 1)
        life.hold(at=since + 1)
        answer = life.tell(headers, at=since + after_ms)[0]
        assert not answer.done
        assert "repeated" in answer.text or "was appended more than" in answer.text
        assert b"a" in life.task.groups


@pytest.mark.parametrize("signer", [FORWARDER, None])
def test_a_copy_does_nothing_more_however_many_commands_others_have_sent_since(signer: ForeignSigner | None) -> None:
    """A limit of their number for all would let a forwarder, or a caller without a key, repeat what an operator did once."""
    life = Life(policy(closed_max_groups=3, unsigned_commands=frozenset({"expire"})))
    life.hold()
    copied = signed(OPERATOR, release())
    assert life.tell(copied)[0].done
    for number in range(5):
        name = f"junk{number}"
        headers = release(name, name, Verb.EXPIRE if signer is None else Verb.CANCEL)
        life.tell(headers if signer is None else signed(signer, headers, name.encode()), name.encode())
    life.hold(at=T0 + 1)
    assert life.tell(copied, at=T0 + 10)[0].text == "a repeated command does nothing more"


def test_an_id_that_was_used_before_signatures_were_asked_for_may_be_used_after_a_window() -> None:
    """Else somebody could have used up ids that can be guessed, such as those of routers."""
    life = Life(policy_of(command_keys=(CommandKey("operators", OPERATOR.public, ALL, T0 + 1),)))
    life.tell(release(command_id="guessed"))
    life.hold(at=T0 + 1)
    headers = signed(OPERATOR, release(command_id="guessed"), at=T0 + 1 + WINDOW)
    assert life.tell(headers, at=T0 + 1 + WINDOW)[0].done


def test_nobody_uses_up_the_id_of_a_command_of_somebody_else() -> None:
    life = Life(policy(unsigned_commands=frozenset({"manifest", "expire"})))
    life.hold()
    assert not life.tell(release("b", verb=Verb.EXPIRE), b"b")[0].done, "it is decided, and does nothing"
    assert not life.tell(signed(FORWARDER, release("b", verb=Verb.CANCEL), b"b"), b"b")[0].text.startswith("a repeated")
    assert life.tell(signed(OPERATOR, release()))[0].done


def test_the_failure_of_a_unit_is_told_to_the_command_that_asked_for_it_and_not_to_another_of_its_id() -> None:
    life = Life()
    life.context = context_of(policy(), record_limit_bytes=2_000)
    life.task = PartitionTask(TP, life.context)
    big = FakeRecord(0, [("uow-id", b"a"), ("uow-seq", b"1")], b"v" * 1_900, b"a", T0, TP)
    life.task.process([big, FakeRecord(1, [("uow-id", b"b"), ("uow-seq", b"1")], b"v", b"b", T0, TP)])
    where = Tp(TOPICS.commands, TP.partition)
    both = [
        FakeRecord(0, signed(OPERATOR, release()), None, b"a", T0, where),
        FakeRecord(1, signed(FORWARDER, release("b", verb=Verb.CANCEL), b"b"), None, b"b", T0, where),
    ]
    plan = life.task.process([], both)
    answers = [codec.decode_as(Answer, each.value or b"") for each in plan.outputs if COMMAND_ID in dict(each.headers)]
    assert [(each.by, each.done, each.text) for each in answers] == [
        ("operators", True, "fails the group: its unit fits no record"),
        ("forwarder", True, "closes the group as cancelled: 1 component to the errors topic, missing 2-"),
    ]


@pytest.mark.parametrize("has_keys", [True, False])
def test_the_failure_of_a_unit_is_told_to_the_command_that_asked_for_it_and_not_to_its_repetitions(
    *, has_keys: bool
) -> None:
    """They may be in one plan, as where an operator who heard nothing asks again."""
    life = Life()
    life.context = context_of(policy() if has_keys else policy_of(), record_limit_bytes=2_000)
    life.task = PartitionTask(TP, life.context)
    life.task.process([FakeRecord(0, [("uow-id", b"a"), ("uow-seq", b"1")], b"v" * 1_900, b"a", T0, TP)])
    where = Tp(TOPICS.commands, TP.partition)
    told = [
        FakeRecord(n, signed(OPERATOR, headers) if has_keys else headers, None, b"a", T0, where)
        for n, headers in enumerate([release(dry_run=True), release(), release(), release(dry_run=True)])
    ]
    plan = life.task.process([], told)
    answers = [codec.decode_as(Answer, each.value or b"") for each in plan.outputs if COMMAND_ID in dict(each.headers)]
    assert answers[0].text.startswith("dry run, nothing is changed: ")
    assert [(each.done, each.text) for each in answers[1:]] == [
        (True, "fails the group: its unit fits no record"),
        *[(False, "a repeated command does nothing more")] * 2,
    ]
    assert not answers[0].done


def test_an_early_look_at_commands_to_set_aside_asks_for_the_right_too() -> None:
    reader = CommandReader("D", policy())
    asks = release(verb=Verb.SET_ASIDE, source=f"{TOPICS.components}/0/5")
    where = Tp(TOPICS.commands, 0)
    for headers, is_heard in ((asks, False), (signed(FORWARDER, asks), False), (signed(OPERATOR, asks), True)):
        found = asked_aside(FakeRecord(0, headers, None, b"a", T0, where), reader)
        assert found is not None
        assert found[0] == (TOPICS.components, 0, 5)
        assert isinstance(found[1], Asked) is is_heard
        assert found[1].command.is_verified is (headers is not asks)


@pytest.mark.parametrize("is_early", [True, False])
def test_a_copy_of_a_command_to_set_aside_is_not_obeyed_once_its_record_blocks(*, is_early: bool) -> None:
    """Its sender was told that nothing is done; the answer came while another record blocked the partition, or none did."""
    life = Life()
    headers = signed(OPERATOR, release(verb=Verb.SET_ASIDE, source=f"{TOPICS.components}/{TP.partition}/5"))
    if is_early:
        found = asked_aside(
            FakeRecord(0, headers, None, b"a", T0, Tp(TOPICS.commands, TP.partition)), life.task.context.command_reader
        )
        assert found is not None
        life.plans.append(life.task.answer_early([(found[1], "nothing is done")]))
    else:
        answer, _ = life.tell(headers)
        assert (answer.done, "nothing is done" in answer.text) == (False, True)
    reader = life.task.context.command_reader
    for _ in range(2):
        copy = FakeRecord(len(life.commands), headers, None, b"a", T0 + 10, Tp(TOPICS.commands, TP.partition))
        again = asked_aside(copy, reader)
        assert again is not None
        assert life.task.has_answered(again[1]), "nobody hears it"
        life.restart()
    asks = {"verb": Verb.SET_ASIDE, "source": f"{TOPICS.components}/{TP.partition}/5"}
    for signed_later in (
        signed(OPERATOR, release(**asks), at=T0 + 5),
        signed(OPERATOR, release(command_id="d", **asks)),
    ):
        other = asked_aside(FakeRecord(9, signed_later, None, b"a", T0 + 10, Tp(TOPICS.commands, TP.partition)), reader)
        assert other is not None
        assert not life.task.has_answered(other[1]), (
            "signed now that the record blocks, it is heard, also under the same id"
        )


def test_an_audit_takes_the_command_that_was_obeyed_and_not_a_forged_one_with_its_id_and_time() -> None:
    life = Life()
    life.hold()
    life.tell(release())
    life.tell(signed(STRANGER, release()))
    assert life.tell(signed(OPERATOR, release()))[0].done
    told = [(0, Arrived(each.offset_, each.at, each.key_, each.value_, each.headers_)) for each in life.commands]
    known = [(each.id, each.at) for plan in life.plans for each in read_ledger(plan.ledger or b"")[0].commands]
    orders = orders_of([Decided(0, 0, 1, 0, known)], told, CommandReader("D", life.context.policy))
    assert [order.record.offset() for order in orders.values()] == [2]


def refuse_long_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a broker does whose `max.message.bytes` of D.outcomes is small."""

    def is_given_up(self: TargetTopics, outputs: Sequence[Output]) -> bool:
        return any(each.topic == TOPICS.outcomes and len(each.value or b"") > 1_000 for each in outputs)

    monkeypatch.setattr(TargetTopics, "is_given_up", is_given_up)


@pytest.mark.parametrize("has_keys", [True, False])
@pytest.mark.parametrize("by", [None, "", "me", "m" * 101, "m" * 900, "ä" * 2_100, "ä" * 5_000])
@pytest.mark.parametrize("why", ["why", "w" * 2_000])
def test_whoever_sent_a_command_knows_its_answer_however_it_is_shortened(
    by: str | None, why: str, monkeypatch: pytest.MonkeyPatch, *, has_keys: bool
) -> None:
    refuse_long_answers(monkeypatch)
    for group_id in (b"a", b"\xff", b"a" * 300):
        life = Life(policy() if has_keys else policy_of())
        life.hold()
        command = Command(b"c", Verb.RELEASE, group_id, why, by)
        headers = command_headers(command._replace(by=None)) if has_keys else command_headers(command)
        answer, verified = life.tell(signed(OPERATOR, headers) if has_keys else headers)
        signer = OPERATOR.name if has_keys else None
        assert is_answer_to(answer, command, signer)
        assert answer.done is (group_id == b"a" and (has_keys or by is None or 0 < len(by.encode()) < 4_097))
        assert verified == (b"true" if has_keys else None if by is None else b"false")
        others = command._replace(by="mm"), command._replace(id=b"d"), command._replace(group_id=b"b")
        assert not any(is_answer_to(answer, other, signer) for other in others[has_keys:])


@pytest.mark.parametrize("why", ["why", "w" * 2_000])
def test_the_journal_of_an_audit_finds_each_command_that_did_something(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_long_answers(monkeypatch)
    life = Life()
    life.hold()
    life.tell(release())
    life.refuse(signed(OPERATOR, release(command_id="refused")))
    life.tell(signed(STRANGER, release()))
    assert life.tell(signed(OPERATOR, command_headers(Command(b"c", Verb.RELEASE, b"a", why))))[0].done
    outputs = [each for plan in life.plans for each in plan.outputs if each.topic == TOPICS.outcomes]
    logs = {
        TOPICS.closed_changelog: [FakeRecord(n, [], plan.ledger, None, T0) for n, plan in enumerate(life.plans)],
        TOPICS.outcomes: [FakeRecord(n, each.headers, each.value, each.key, T0) for n, each in enumerate(outputs)],
        TOPICS.commands: life.commands,
    }
    monkeypatch.setattr(
        journal, "PartitionLog", lambda cluster, name, *_, **__: SimpleNamespace(rest=lambda: [logs[name]])
    )
    reader = CommandReader("D", life.context.policy)
    found = journal.Journal(Cluster(""), TOPICS, 0, 0, 10, reader)
    assert [order.record.offset() for order in found.orders() if isinstance(order, Order)] == [3]
    assert found.changed_by_lost_commands() == set()


# -- any commands, and an oracle that knows who sent them


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_sent_only_those_who_may_have_an_effect(seed: int) -> None:
    """Who signed, what was signed, and what became of it on its way are drawn; the oracle looks at what was drawn, and at no signature."""
    rnd = Random(seed)
    verbs = (Verb.RELEASE, Verb.CANCEL, Verb.EXPIRE)
    unsigned = frozenset(rnd.sample(verbs, rnd.choice((0, 0, 1))))
    life = Life(policy(unsigned_commands=unsigned))
    sent: list[tuple[Headers, ForeignSigner | None, Verb, int, str]] = []
    done: set[tuple[str | None, str]] = set()
    now, obeyed, refusals = T0, 0, 0
    for number in range(60):
        now += rnd.choice((0, 1, 5_000, 100_000))
        if b"a" not in life.task.groups:
            life.hold(at=now)
        signer: ForeignSigner | None = rnd.choice((OPERATOR, FORWARDER, OLD, STRANGER, None))
        verb, command_id, signed_at, is_whole = rnd.choice(verbs), f"c{rnd.randrange(8)}", now, True
        headers = release(command_id=command_id, verb=verb)
        if rnd.random() < 0.3 and sent:
            headers, signer, verb, signed_at, command_id = rnd.choice(sent)  # somebody sends a copy of it
        elif signer is not None:
            signed_at = now + rnd.choice((-WINDOW - 1, -WINDOW, 0, 0, 0, WINDOW, WINDOW + 1))
            headers = signed(signer, headers, at=signed_at)
            sent.append((headers, signer, verb, signed_at, command_id))
        if signer is not None and rnd.random() < 0.2:
            is_whole = False
            changed = [*headers, ("uow-generation", b"1")], [*headers[1:], ("uow-command", b"waive")]
            headers = [headers[0], *headers] if verb in unsigned else rnd.choice(changed)
        is_readable = ("uow-command", b"waive") not in headers  # which lacks its numbers
        is_proved = (
            signer is not None
            and is_whole
            and signer is not STRANGER
            and (signer is not OLD or now < T0 + 10_000)
            and abs(now - signed_at) <= WINDOW
        )
        allowed = verb in unsigned or (is_proved and (signer is not FORWARDER or verb is Verb.CANCEL))
        who = signer.name if signer is not None and is_proved else None
        wanted = allowed and (who, command_id) not in done
        answer, verified = life.tell(headers, at=now)
        assert answer.done is wanted, (number, answer.text)
        assert (b"a" in life.task.groups) is not wanted
        assert verified == (None if signer is None else b"true" if is_proved else b"false")
        if allowed:
            done.add((who, command_id))
        obeyed, refusals = obeyed + wanted, refusals + (not allowed and is_readable)
    assert refusals
    assert sum(life.context.refused_commands.values()) == refusals


def test_a_command_that_cannot_be_read_is_answered_as_such() -> None:
    read = CommandReader("D", policy()).read([("uow-command", b"release")], FakeRecord(0, [], None, b"a", T0, TP))
    assert isinstance(read, BadCommand)
    assert not read.refused
