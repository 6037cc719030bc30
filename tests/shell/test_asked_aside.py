"""A record at which a partition is blocked is set aside by a command; a command at which the code fails is answered and blocks nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest

from tests.shell.memory_kafka import MemoryKafka, MemorySink
from tests.shell.test_faulty_groups import of_outputs, plant_in
from tests.shell.test_whole_worker import P0, belongs_to, ids, position
from tests.shell.whole_worker import UNITS, answers, in_a_loop, running, send, send_to, settings, tell, until
from uow.processor.core import partition as partition_module
from uow.processor.engine.outputs import OutputWriter
from uow.processor.engine.ports import Output, Refused, Tp
from uow.processor.sim.simulated_kafka import StoredRecord
from uow.schemas.records import Answer, Range
from uow.topics import commands as commands_module
from uow.topics.command_keys import CommandKey, CommandSigner
from uow.topics.commands import Command, Verb, command_headers, is_answer_to


def ask(kafka: MemoryKafka, offset: int, name: str = "s", topic: str = "D.components") -> None:
    """An operator's command about a record of partition 0."""
    command = Command(name.encode(), Verb.SET_ASIDE, b"", "not needed", "ada", source=f"{topic}/0/{offset}")
    kafka.append("D.commands", None, None, command_headers(command), partition=0)


def rejected(kafka: MemoryKafka) -> list[dict[str, bytes | None]]:
    return [dict(record.headers() or []) for record in kafka.topic("D.rejected")]


def answer(kafka: MemoryKafka, name: str = "s") -> Answer:
    (found,) = [each for each in answers(kafka) if each.command_id == name]
    return found


@in_a_loop
async def test_the_blocked_partition_goes_on_and_the_record_is_in_rejected_with_who_and_why() -> None:
    kafka = MemoryKafka()
    bad, behind = belongs_to(kafka, 0, "bad"), belongs_to(kafka, 0, "behind")
    send_to(kafka, 0, bad, 1, value=b"boom")
    send(kafka, behind, (1, True))
    tell(kafka, Verb.CANCEL, bad)  # waits behind the record that blocks
    async with running(kafka) as app:
        await until(lambda: P0 in app.status.blocked)
        assert "uow set-aside D D.components/0/0 --why" in app.status.blocked[P0]
        ask(kafka, 0)
        await until(lambda: ids(kafka) == [behind])
        await until(lambda: not app.status.blocked)
        await until(lambda: len(answers(kafka)) == 2)
    (said,) = rejected(kafka)
    assert (said["uow-error-class"], said["uow-error-case"]) == (b"InternalError", b"LookupError")
    assert said["uow-source"] == b"D.components/0/0"
    assert b"ada (unverified): not needed" in (said["uow-error-text"] or b"")
    told = answer(kafka)
    assert (told.verb, told.done, told.by, told.why) == ("set-aside", True, "ada", "not needed")
    async with running(kafka) as app:  # what was answered is not answered again
        await until(lambda: P0 in app.status.tasks)
        send(kafka, belongs_to(kafka, 0, "later"), (1, True))
        await until(lambda: len(ids(kafka)) == 2)
        assert (len(answers(kafka)), len(rejected(kafka))) == (2, 1)


@in_a_loop
async def test_a_record_whose_output_is_refused_is_set_aside_alone() -> None:
    kafka = MemoryKafka()
    bad, behind = belongs_to(kafka, 0, "bad"), belongs_to(kafka, 0, "behind")

    class Picky(MemorySink):
        def write(self, plans: Any, token: Any) -> None:
            for plan in plans:
                if any(output.topic == "D.units" and output.key == bad.encode() for output in plan.outputs):
                    raise Refused("not authorised", plan.tp)
            super().write(plans, token)

    for number in range(6):
        send(kafka, belongs_to(kafka, 0, f"good{number}"), (1, True))
    send(kafka, bad, (1, False), (2, True))
    send(kafka, behind, (1, True))
    configured = settings()
    async with running(kafka, configured, sink=Picky(kafka, configured.transactional_id)) as app:
        await until(lambda: "uow set-aside D D.components/0/7 " in app.status.blocked.get(P0, ""))
        ask(kafka, 7)
        await until(lambda: behind in ids(kafka))
        await until(lambda: not app.status.blocked)
    (said,) = rejected(kafka)
    assert (said["uow-error-class"], said["uow-error-case"]) == (b"UowError", b"command")
    assert answer(kafka).done


@in_a_loop
async def test_a_command_about_another_record_than_the_one_that_blocks_does_nothing_and_says_so_at_once() -> None:
    kafka = MemoryKafka()
    send(kafka, belongs_to(kafka, 0, "good"), (1, True))
    send_to(kafka, 0, belongs_to(kafka, 0, "bad"), 1, value=b"boom")
    async with running(kafka) as app:
        await until(lambda: P0 in app.status.blocked)
        ask(kafka, 0)
        ask(kafka, 2, "t")
        await until(lambda: len(answers(kafka)) == 2)
        assert P0 in app.status.blocked
    assert rejected(kafka) == []
    assert [(each.done, each.text) for each in answers(kafka)] == [
        (False, f"D.components/0/{offset} does not block its partition, D.components/0/1 does: nothing is done")
        for offset in (0, 2)
    ]
    assert position(kafka, P0) == 1


@in_a_loop
async def test_where_nothing_blocks_it_does_nothing_and_a_router_answers_for_its_own_inputs() -> None:
    kafka = MemoryKafka()
    send(kafka, belongs_to(kafka, 0, "good"), (1, True))
    ask(kafka, 0)
    ask(kafka, 0, "r", "stock.events")
    ask(kafka, 0, "last")
    async with running(kafka):
        await until(lambda: len(answers(kafka)) == 2)
    assert [(each.command_id, each.done) for each in answers(kafka)] == [("s", False), ("last", False)]
    assert "is at 1: nothing is done" in answer(kafka).text


@in_a_loop
async def test_a_command_that_came_before_its_worker_started_holds_and_so_does_one_under_strict_order() -> None:
    """A restart, or another owner, between the command and its effect."""
    kafka = MemoryKafka()
    send_to(kafka, 0, belongs_to(kafka, 0, "bad"), 1, value=b"block")
    send(kafka, behind := belongs_to(kafka, 0, "behind"), (1, True))
    ask(kafka, 0)
    async with running(kafka, settings(policy=replace(UNITS, strict_order=True))):
        await until(lambda: ids(kafka) == [behind])
        await until(lambda: len(answers(kafka)) == 1)
    assert [said["uow-error-class"] for said in rejected(kafka)] == [b"UowError"]
    assert answer(kafka).done


@in_a_loop
async def test_a_record_that_is_mended_meanwhile_is_processed_and_the_answer_says_that_nothing_was_done() -> None:
    kafka = MemoryKafka()
    unit = belongs_to(kafka, 0, "u")
    is_broken = True

    class Picky(MemorySink):
        def write(self, plans: Any, token: Any) -> None:
            if is_broken and any(output.topic == "D.units" for plan in plans for output in plan.outputs):
                raise Refused("not authorised", plans[0].tp)
            super().write(plans, token)

    send(kafka, unit, (1, True))
    configured = settings()
    async with running(kafka, configured, sink=Picky(kafka, configured.transactional_id)) as app:
        await until(lambda: P0 in app.status.blocked)
        is_broken = False
        ask(kafka, 0)
        await until(lambda: len(answers(kafka)) == 1)
    assert (ids(kafka), rejected(kafka), answer(kafka).done) == ([unit], [], False)


@pytest.mark.parametrize("seed", range(6))
def test_each_command_has_one_answer_and_only_what_blocks_is_set_aside(seed: int) -> None:
    """Whatever is asked, in whichever order, over restarts."""

    @in_a_loop
    async def test() -> None:
        rnd, kafka = Random(seed), MemoryKafka()
        bad = sorted(rnd.sample(range(12), 3))
        for offset in range(12):
            value = b"boom" if offset in bad else b"x"
            send_to(kafka, 0, belongs_to(kafka, 0, f"u{offset}-"), 1, end=True, value=value)
        asked = [*bad, *(rnd.randrange(14) for _ in range(5))]
        rnd.shuffle(asked)
        names = 0

        def is_answered(count: int) -> bool:
            return len(answers(kafka)) == count

        while len(rejected(kafka)) < 3:
            async with running(kafka):
                for offset in asked[:3] if asked else bad:
                    ask(kafka, offset, f"s{names}")
                    names += 1
                asked = asked[3:]
                await until(partial(is_answered, names))
        async with running(kafka):
            await until(lambda: len(ids(kafka)) == 9)
        assert sorted(int((said["uow-source"] or b"").rsplit(b"/")[-1]) for said in rejected(kafka)) == bad
        assert len({each.command_id for each in answers(kafka)}) == len(answers(kafka)) == names
        assert sum(each.done for each in answers(kafka)) == 3

    test()


@in_a_loop
async def test_a_refused_command_is_answered_while_its_partition_is_blocked_and_once() -> None:
    """Somebody waits for the answer; the partition may be blocked for days. Tries of the record in between restore the partition."""
    kafka = MemoryKafka()
    signer = CommandSigner("ops", bytes(32))
    policy = replace(UNITS, command_keys=(CommandKey("ops", signer.public, frozenset({"set-aside"}), 1),))
    send(kafka, belongs_to(kafka, 0, "good"), (1, True))
    send_to(kafka, 0, belongs_to(kafka, 0, "bad"), 1, value=b"boom")
    async with running(kafka, settings(policy=policy)) as app:
        await until(lambda: P0 in app.status.blocked)
        for offset in (1, 7):  # the one that blocks, and another one
            ask(kafka, offset, f"s{offset}")
        await until(lambda: len(answers(kafka)) == 2)
        assert P0 in app.status.blocked
        assert [(each.done, each.text[:34]) for each in answers(kafka)] == [
            (False, "refused: set-aside needs the signa")
        ] * 2
        counts = app.status.tasks[P0].context.refused_commands
        assert counts == {"not_signed": 2}
        assert not app.status.tasks[P0].partition.commands.at_by_id, "nobody takes an id that is not his"
        command = Command(b"mine", Verb.SET_ASIDE, b"", "not needed", source="D.components/0/1")
        headers = signer.signed("D", None, None, command_headers(command), kafka.clock.now_ms())
        kafka.append("D.commands", None, None, headers, partition=0)
        await until(lambda: not app.status.blocked)
        ask(kafka, 9, "last")
        await until(lambda: any(each.command_id == "last" for each in answers(kafka)))
        assert counts == {"not_signed": 3}
    assert sorted(each.command_id for each in answers(kafka)) == ["last", "mine", "s1", "s7"]
    assert len(rejected(kafka)) == 1


def _fails_at_decision(patch: pytest.MonkeyPatch) -> None:
    decide = partition_module.decide_command

    def failing(command: Command, at: int, now: Any) -> Any:
        if command.group_id.startswith(b"bad"):
            raise LookupError("a defect in a verb")
        return decide(command, at, now)

    patch.setattr(partition_module, "decide_command", failing)


def _fails_at_reading(patch: pytest.MonkeyPatch) -> None:
    read = commands_module.read_command

    def failing(headers: Any, value: bytes | None = None) -> Any:
        if (dict(headers)["uow-id"] or b"").startswith(b"bad"):
            raise RecursionError("too deep")
        return read(headers, value)

    patch.setattr(commands_module, "read_command", failing)


@pytest.mark.parametrize("is_mixed", [False, True])
@pytest.mark.parametrize("verb", [Verb.RELEASE, Verb.CANCEL, Verb.EXPIRE, Verb.DECLARE_END])
def test_a_command_whose_outputs_cannot_be_made_is_answered_and_the_group_stays_as_it_is(
    verb: Verb, is_mixed: bool
) -> None:
    """Also where it is read together with records, some of them of its group."""

    @in_a_loop
    async def test() -> None:
        kafka = MemoryKafka()
        bad, good, later = (belongs_to(kafka, 0, name) for name in ("bad", "good", "later"))
        numbers = (Range(3, 3),) if verb is Verb.DECLARE_END else ()
        command = Command(b"first", verb, bad.encode(), "w", numbers=numbers)
        for seq in (1, 2):
            send_to(kafka, 0, bad, seq)
        with pytest.MonkeyPatch.context() as patch:
            plant_in(OutputWriter, "write", of_outputs)(patch, bad.encode())
            if is_mixed:
                send_to(kafka, 0, bad, 3)
                kafka.append("D.commands", bad.encode(), None, command_headers(command), partition=0)
                send_to(kafka, 0, good, 1, end=True)
            async with running(kafka, settings(set_aside_per_minute=10)) as app:
                if not is_mixed:
                    send_to(kafka, 0, bad, 3)
                    await until(lambda: app.status.tasks[P0].counts.open == 3)
                    kafka.append("D.commands", bad.encode(), None, command_headers(command), partition=0)
                    await until(lambda: answers(kafka))
                    send_to(kafka, 0, good, 1, end=True)
                await until(lambda: ids(kafka) == [good] and answers(kafka))
                assert (app.status.blocked, app.status.tasks[P0].counts.open) == ({}, 3)
        failed = answer(kafka, "first")
        assert (failed.done, "a defect of uow, so nothing is changed" in failed.text) == (False, True)
        assert kafka.topic("D.errors") == []
        async with running(kafka) as app:  # mended
            again = command._replace(id=b"again")
            kafka.append("D.commands", bad.encode(), None, command_headers(again), partition=0)
            await until(lambda: len(answers(kafka)) == 2)
            assert answer(kafka, "again").done
            send_to(kafka, 0, later, 1, end=True)
            await until(lambda: later in ids(kafka))
            assert app.status.tasks[P0].counts.open == 0

    test()


@pytest.mark.parametrize("plant", [_fails_at_decision, _fails_at_reading])
def test_a_command_at_which_the_code_fails_is_answered_and_blocks_nothing(plant: Callable[..., None]) -> None:
    @in_a_loop
    async def test() -> None:
        kafka = MemoryKafka()
        bad, good = belongs_to(kafka, 0, "bad"), belongs_to(kafka, 0, "good")
        send(kafka, bad, (1, False))
        send(kafka, good, (1, False))
        tell(kafka, Verb.CANCEL, bad)
        tell(kafka, Verb.CANCEL, good)
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            async with running(kafka, settings(set_aside_per_minute=10)) as app:
                await until(lambda: len(answers(kafka)) == 2)
                assert app.status.blocked == {}
                send(kafka, bad, (2, True))
                await until(lambda: ids(kafka) == [bad])
        failed = answer(kafka, f"c-{bad}")
        assert (failed.done, failed.id, failed.verb) == (False, bad, "cancel")
        assert "a defect of uow, so nothing is changed" in failed.text
        assert answer(kafka, f"c-{good}").done

    test()


@in_a_loop
async def test_a_command_that_fails_beyond_the_limit_blocks_and_so_does_one_where_another_group_is_at_fault() -> None:
    kafka = MemoryKafka()
    bad = belongs_to(kafka, 0, "bad")
    send(kafka, bad, (1, False))
    tell(kafka, Verb.CANCEL, bad)
    with pytest.MonkeyPatch.context() as patch:
        _fails_at_decision(patch)
        async with running(kafka, settings(set_aside_per_minute=0)) as app:
            await until(lambda: "set_aside_per_minute = 0" in app.status.blocked.get(P0, ""))
            assert answers(kafka) == []
    async with running(kafka):
        await until(lambda: [each.done for each in answers(kafka)] == [True])


@in_a_loop
async def test_a_command_of_a_program_at_which_the_code_fails_blocks_since_nobody_reads_its_answer() -> None:
    """Passed over, a group would be delivered that a router has failed."""
    kafka = MemoryKafka()
    bad = belongs_to(kafka, 0, "bad")
    send(kafka, bad, (1, False))
    tell(kafka, Verb.FAIL, bad)
    send(kafka, bad, (2, True))
    with pytest.MonkeyPatch.context() as patch:
        _fails_at_decision(patch)
        async with running(kafka, settings(set_aside_per_minute=10)) as app:
            await until(lambda: P0 in app.status.blocked)
            assert answers(kafka) == []


@in_a_loop
async def test_copies_of_a_command_are_answered_once_each_however_often_the_partition_is_tried() -> None:
    kafka = MemoryKafka()
    send(kafka, belongs_to(kafka, 0, "good"), (1, True))
    send_to(kafka, 0, belongs_to(kafka, 0, "bad"), 1, value=b"boom")
    async with running(kafka) as app:
        await until(lambda: P0 in app.status.blocked)
        for _ in range(2):
            ask(kafka, 0, "twice")
            kafka.clock.now += 5
        await until(lambda: len(answers(kafka)) == 2)
        ask(kafka, 1, "this")
        await until(lambda: any(each.command_id == "this" for each in answers(kafka)))
    async with running(kafka) as app:
        await until(lambda: P0 in app.status.tasks)
        send(kafka, belongs_to(kafka, 0, "later"), (1, True))
        await until(lambda: len(ids(kafka)) == 2)
        assert [each.command_id for each in answers(kafka)].count("twice") <= 2


def test_headers_of_a_command_that_cannot_be_read_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library raises at the first look alone, and gives a list afterwards that kills the process (`look_at_headers`)."""
    kafka, looked = MemoryKafka(), set[int]()
    real = StoredRecord.headers

    def headers(record: StoredRecord) -> Any:
        said = real(record)
        if said and said[0][0] == "unreadable":
            assert id(record) not in looked, "a second look"
            looked.add(id(record))
            raise SystemError("bad argument to internal function")
        return said

    @in_a_loop
    async def play() -> None:
        name = belongs_to(kafka, 0, "g")
        send(kafka, name, (1, False))
        kafka.append("D.commands", b"k", None, [("unreadable", None)], 0)
        async with running(kafka):
            tell(kafka, Verb.CANCEL, name)
            await until(lambda: position(kafka, Tp("D.commands", 0)) == 2)

    with monkeypatch.context() as patch:
        patch.setattr(StoredRecord, "headers", headers)
        play()
    assert (len(looked), len(answers(kafka))) == (1, 2), "the other command is decided"


class Picky(MemorySink):
    """A broker that refuses some records: those of `why` for what they are, if `tells` says so."""

    def __init__(self, kafka: MemoryKafka, why: Callable[[Output], bool], tells: bool) -> None:
        super().__init__(kafka, settings().transactional_id)
        self._why, self._tells = why, tells

    def write(self, plans: Any, token: Any) -> None:
        for plan in plans:
            for output in plan.outputs:
                if self._why(output):
                    raise Refused("TOPIC_AUTHORIZATION_FAILED", plan.tp, output if self._tells else None)
        super().write(plans, token)


@in_a_loop
async def test_a_command_whose_unit_may_not_be_written_is_answered_and_blocks_nothing() -> None:
    kafka = MemoryKafka()
    bad, good = belongs_to(kafka, 0, "bad"), belongs_to(kafka, 0, "good")
    for each in (bad, good):
        send(kafka, each, (1, False))
    sink = Picky(kafka, lambda output: output.key == bad.encode() and output.topic == "D.units", tells=False)
    for each in (bad, good):
        command = Command(b"end " + each.encode(), Verb.DECLARE_END, each.encode(), "w", numbers=(Range(1, 1),))
        kafka.append("D.commands", each.encode(), None, command_headers(command), partition=0)
    async with running(kafka, sink=sink) as app:
        await until(lambda: ids(kafka) == [good])
        await until(lambda: len(answers(kafka)) == 2)
        assert app.status.blocked == {}
        assert app.status.tasks[P0].counts.open == 1
    refused = answer(kafka, f"end {bad}")
    assert (refused.done, "TOPIC_AUTHORIZATION_FAILED" in refused.text) == (False, True)
    assert answer(kafka, f"end {good}").done


@in_a_loop
async def test_beyond_so_many_refused_commands_a_minute_their_partition_blocks_and_later_all_are_answered() -> None:
    """Each costs a producer and a restore of every partition: whoever may send commands must not keep the others from their work."""
    kafka = MemoryKafka()
    bad = [belongs_to(kafka, 0, f"bad{number}-") for number in range(8)]
    refused = list[bytes | None]()

    def is_refused(output: Output) -> bool:
        if output.topic == "D.units" and (output.key or b"").startswith(b"bad"):
            refused.append(output.key)
            return True
        return False

    async with running(kafka, settings(set_aside_per_minute=3), sink=Picky(kafka, is_refused, tells=False)) as app:
        for each in bad:
            send_to(kafka, 0, each, 1)
        await until(lambda: app.status.tasks[P0].counts.open == len(bad))
        for each in bad:
            command = Command(b"end " + each.encode(), Verb.DECLARE_END, each.encode(), "w", numbers=(Range(1, 1),))
            kafka.append("D.commands", each.encode(), None, command_headers(command), partition=0)
        await until(lambda: "set_aside_per_minute = 3" in app.status.blocked.get(P0, ""))
        assert len(answers(kafka)) == 3
        assert len(refused) <= 6
        there = belongs_to(kafka, 1, "there")
        send_to(kafka, 1, there, 1, end=True)
        send_to(kafka, 0, belongs_to(kafka, 0, "here"), 1)  # a record beside the command
        await until(lambda: ids(kafka) == [there])

        def are_answered() -> bool:
            kafka.clock.now += 500
            return len(answers(kafka)) == len(bad)

        await until(are_answered)
        await until(lambda: app.status.tasks[P0].counts.open == len(bad) + 1)
        assert app.status.blocked == {}
    assert not any(each.done for each in answers(kafka))


class Busy(Picky):
    """The same, and with every try to write come more records."""

    def __init__(self, kafka: MemoryKafka, why: Callable[[Output], bool], most: int) -> None:
        super().__init__(kafka, why, tells=False)
        self.names, self.tries, self._most = list[str](), 0, most

    def write(self, plans: Any, token: Any) -> None:
        self.tries += 1
        for _ in range(3 if len(self.names) < self._most else 0):
            self.kafka.clock.now += 1
            self.names.append(belongs_to(self.kafka, 0, f"busy{len(self.names)}-"))
            send_to(self.kafka, 0, self.names[-1], 1, end=True)
        super().write(plans, token)


def refused(kafka: MemoryKafka, patch: pytest.MonkeyPatch) -> Callable[[Output], bool]:
    return lambda output: (output.key or b"").startswith(b"bad") and output.topic == "D.units"


def failing(kafka: MemoryKafka, patch: pytest.MonkeyPatch) -> Callable[[Output], bool]:
    _fails_at_decision(patch)
    return lambda output: False


@pytest.mark.parametrize("plant", [refused, failing])
def test_on_a_busy_partition_each_command_that_cannot_be_done_is_answered_and_nothing_else_suffers(
    plant: Callable[[MemoryKafka, pytest.MonkeyPatch], Callable[[Output], bool]],
) -> None:
    @in_a_loop
    async def test() -> None:
        kafka = MemoryKafka()
        bad = [belongs_to(kafka, 0, f"bad{number}-") for number in range(2)]
        good = belongs_to(kafka, 0, "good")
        for each in (bad[0], good, bad[1]):
            send_to(kafka, 0, each, 1)
        kafka.clock.now += 1
        for each in (bad[0], good, bad[1]):
            command = Command(b"end " + each.encode(), Verb.DECLARE_END, each.encode(), "w", numbers=(Range(1, 1),))
            kafka.append("D.commands", each.encode(), None, command_headers(command), partition=0)
        with pytest.MonkeyPatch.context() as patch:
            sink = Busy(kafka, plant(kafka, patch), most=200)
            async with running(kafka, settings(set_aside_per_minute=10), sink=sink) as app:
                await until(lambda: len(answers(kafka)) == 3)
                assert len(sink.names) < 200, "they are answered while it is busy"
                await until(lambda: {*ids(kafka)} == {good, *sink.names} and len(sink.names) >= 200)
                assert (app.status.blocked, app.status.tasks[P0].counts.open) == ({}, 2)
        assert [answer(kafka, f"end {each}").done for each in (*bad, good)] == [False, False, True]
        assert len(ids(kafka)) == len({*ids(kafka)})

    test()


@in_a_loop
async def test_an_answer_that_is_refused_for_its_length_is_written_without_the_sender_s_words() -> None:
    kafka = MemoryKafka()
    bad = belongs_to(kafka, 0, "bad")
    send(kafka, bad, (1, False))
    command = Command(b"long", Verb.CANCEL, bad.encode(), "w" * 3_000, by="Jill")
    kafka.append("D.commands", bad.encode(), None, command_headers(command), partition=0)
    sink = Picky(kafka, lambda output: len(output.value or b"") > 2_000 and output.topic == "D.outcomes", tells=True)
    async with running(kafka, sink=sink) as app:
        await until(lambda: len(answers(kafka)) == 1)
        assert app.status.blocked == {}
    (told,) = answers(kafka)
    assert (told.done, told.command_id, "left out" in told.why) == (True, "long", True)
    assert is_answer_to(told, command, None), "or its sender would wait in vain"
    assert len(kafka.topic("D.errors")) == 1
