"""The router's loop on brokers in memory: each record once, whatever happens on the way (B-27)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, cast

import pytest

from tests.processes import wait_for
from tests.shell.memory_kafka import Faults, MemoryContents, MemoryKafka, MemoryLogReader, MemorySink, MemorySource
from uow.processor.engine.ports import Doubt, Meanwhile, Output, Poll, Refused, Tp
from uow.processor.engine.set_aside import SetAsideLimit, asked_aside
from uow.processor.kafka.asked_log import AskedOf
from uow.processor.kafka.router import Router, RouterPorts, RouterStatus
from uow.processor.rules.routed_records import RoutedRecords
from uow.processor.rules.routing import Fate, Keyless, NoKey, Routed, Sent
from uow.schemas.error_classes import BadUnitIdError
from uow.topics.commands import Asked, Command, CommandReader, RecordPlace, Verb, command_headers
from uow.topics.policies import DestinationPolicy
from uow.topics.rules import ResolvedRow

INPUT, OUTPUT, RULES = "stock.events", "supply.components", "A-rules"


class KeyDesk:
    """Sends each record on under the key that its header names."""

    def refresh(self) -> None: ...

    def obstacle(self, topic: str) -> str:
        return ""

    def route(self, tp: Tp, seen: Iterable[tuple[Any, Any]], found: RoutedRecords) -> None:
        for headers, record in seen:
            where = f"{tp.topic}/{tp.partition}/{record.offset()}".encode()
            sent = Sent(OUTPUT, dict(headers or ())["to"], record.value(), [("uow-input", where)])
            found.add(Routed(Fate.ROUTED, "rule", sent))

    def commanded_by(self, topic: str) -> Sequence[str]:
        return ["supply"]

    def set_aside(self, headers: Any, record: Any, why: Any, asked: Sequence[AskedOf], found: RoutedRecords) -> None:
        said = [("uow-error-class", type(why).__name__.encode()), ("uow-error-text", why.text.encode())]
        found.add(Routed(Fate.SET_ASIDE, "", Sent("supply.rejected", None, record.value(), said)))
        for each in asked:
            found.outputs.append(Output("supply.outcomes", each.partition, each.asked.command.id, None, []))

    def announcement(self, meanwhile: Any) -> Sequence[Output]:
        return ()

    def unwritten(self, rows: Iterable[ResolvedRow]) -> Sequence[Output]:
        return ()

    def written(self, outputs: Iterable[Output]) -> None: ...

    def close(self) -> None: ...


class RulesDesk(KeyDesk):
    """Has rules that are not in `A-rules`."""

    def __init__(self) -> None:
        self.is_written = False

    def unwritten(self, rows: Iterable[ResolvedRow]) -> Sequence[Output]:
        return [] if self.is_written else [Output(RULES, 0, b"rules", b"{}", [])]

    def written(self, outputs: Iterable[Output]) -> None:
        self.is_written |= bool([*outputs])


class FailingDesk(KeyDesk):
    """Code that fails at records of some values: each is set aside, or it stops there."""

    failing: frozenset[bytes] = frozenset()

    def route(self, tp: Tp, seen: Iterable[tuple[Any, Any]], found: RoutedRecords) -> None:
        for headers, record in seen:
            if record.value() not in self.failing:
                super().route(tp, [(headers, record)], found)
                continue
            sent = Sent("supply.rejected", None, record.value(), [])
            if not found.take(Routed(Fate.SET_ASIDE, "rule", sent, fault=KeyError(record.value())), record.offset()):
                return


class RefusingSink(MemorySink):
    """A broker that refuses every record of some values."""

    refused: frozenset[bytes] = frozenset()

    def write(self, plans: Sequence[Any], token: Any) -> None:
        for plan in plans:
            if any(output.value in self.refused for output in plan.outputs):
                raise Refused("too large", plan.tp)
        super().write(plans, token)


class SinkWithoutTransaction(RefusingSink):
    """A planted defect: records go out before the transaction begins, and stay."""

    def write(self, plans: Sequence[Any], token: Any) -> None:
        for plan in plans:
            for topic, where, key, value, headers in plan.outputs:
                self.kafka.append(topic, key, value, headers, where)
            plan.outputs.clear()
        super().write(plans, token)


class StashingSource(MemorySource):
    """Serves rebalances by polls, as the library does: one may bring a record, which is kept for the next read."""

    kept: Poll | None = None

    def control(self, timeout: float) -> None:
        super().control(timeout)
        if self.kept is None:
            self.kept = super().read(1, 0.0)

    def read(self, limit: int, timeout: float) -> Poll | None:
        kept, self.kept = self.kept, None
        return kept or super().read(limit, timeout)

    def seek(self, positions: Mapping[Tp, int]) -> None:
        if self.kept is not None and self.kept.records.keys() <= positions.keys():
            self.kept = None
        super().seek(positions)


class BusySource(MemorySource):
    """There is a record in one partition whenever it is read: no poll is empty."""

    def read(self, limit: int, timeout: float) -> Any:
        self.kafka.append(INPUT, None, b"-1", [("to", b"k")], 0)
        return super().read(limit, timeout)


class MemoryAsked:
    """The commands of `supply.commands`."""

    def __init__(self, kafka: MemoryKafka) -> None:
        self._kafka = kafka

    def look(self, standing: Mapping[RecordPlace, int]) -> Mapping[RecordPlace, list[AskedOf]]:
        found: dict[RecordPlace, list[AskedOf]] = {place: [] for place in standing}
        for record in self._kafka.topic("supply.commands"):
            place, asked = asked_aside(record, CommandReader("supply", DestinationPolicy())) or (None, None)
            if place in found and isinstance(asked, Asked):
                found[place].append(AskedOf("supply", 0, asked))
        return found

    def close(self) -> None: ...


@contextmanager
def running(
    kafka: MemoryKafka,
    name: str = "one",
    faults: Faults | None = None,
    sink_type: type[RefusingSink] = RefusingSink,
    desk: KeyDesk | None = None,
    source_type: type[MemorySource] = MemorySource,
    **more: Any,
) -> Iterator[Router]:
    """A router in its thread."""
    reader = MemoryLogReader(kafka)

    def starts(tps: Sequence[Tp], meanwhile: Meanwhile) -> Mapping[Tp, int]:
        return {tp: at.offset or 0 for tp, at in reader.committed(tps).items()}

    sink = sink_type(kafka, f"A-router-{name}", faults)
    contents, asked = MemoryContents(kafka), MemoryAsked(kafka)
    ports = RouterPorts(source_type(kafka, name), sink, starts, contents, desk or KeyDesk(), asked)
    errors: list[BaseException | None] = []

    def finished(error: BaseException | None) -> None:
        errors.append(error)
        if error is not None:
            raise error  # pytest reports what a thread raises

    router = Router(ports, [INPUT], 7, RouterStatus(), threading.Event(), on_finished=finished, **more)
    router.start()
    try:
        yield router
    finally:
        router.request_stop()
        router.join(60)
        assert not router.is_alive()
    assert errors == [None]


def send(kafka: MemoryKafka, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        kafka.append(INPUT, None, b"%d" % number, [("to", b"k%d" % (number % 5))], number % kafka.partitions)


def arrived(kafka: MemoryKafka) -> list[int]:
    return [int(record.value() or b"-1") for record in kafka.topic(OUTPUT)]


def check(kafka: MemoryKafka, count: int) -> None:
    """Each record once; those of an input partition that share a key in their order."""
    assert Counter(arrived(kafka)) == Counter(range(count))
    last: dict[tuple[bytes | None, int], int] = {}
    for record in kafka.topic(OUTPUT):
        number = int(record.value() or b"")
        line = record.key(), number % kafka.partitions
        assert number > last.get(line, -1)
        last[line] = number


def test_each_record_is_routed_once_in_the_order_of_its_partition_b27() -> None:
    kafka = MemoryKafka(partitions=3)
    send(kafka, 100)
    with running(kafka) as router:
        wait_for(lambda: len(arrived(kafka)) == 100)
        wait_for(lambda: not any(router.status.lags().values()))
        assert router.status.is_ready
    check(kafka, 100)
    assert router.status.counts == {("rule", Fate.ROUTED): 100}


def test_rules_are_there_before_any_record_is_and_once_b77() -> None:
    kafka = MemoryKafka(partitions=2)
    with running(kafka, desk=RulesDesk()):
        wait_for(lambda: len(kafka.topic(RULES)) == 1)
        send(kafka, 10)
        wait_for(lambda: len(arrived(kafka)) == 10)
    assert [record.key() for record in kafka.topic(RULES)] == [b"rules"]


@pytest.mark.parametrize("step", ["begin", "produced", "offsets", "commit", "committed"])
def test_doubt_at_any_step_loses_and_doubles_nothing_b27(step: str) -> None:
    kafka, faults = MemoryKafka(partitions=3), Faults()
    faults.plan(step, Doubt("cut"), Doubt("cut"))
    send(kafka, 60)
    with running(kafka, faults=faults) as router:
        wait_for(lambda: len(arrived(kafka)) == 60)
        wait_for(lambda: router.status.doubts["Doubt"] == 2)
    check(kafka, 60)


def test_a_router_without_transaction_is_caught_b220() -> None:
    """The check of the test before this one is worth something."""
    kafka, faults = MemoryKafka(partitions=3), Faults()
    faults.plan("offsets", Doubt("cut"))
    send(kafka, 60)
    with running(kafka, faults=faults, sink_type=SinkWithoutTransaction) as router:
        wait_for(lambda: router.status.doubts["Doubt"] == 1 and not any(router.status.lags().values()))
    with pytest.raises(AssertionError):
        check(kafka, 60)


def test_two_routers_share_the_inputs_and_one_takes_over_from_the_other_b27() -> None:
    kafka = MemoryKafka(partitions=4)
    with running(kafka, "one") as one:
        send(kafka, 40)
        with running(kafka, "two") as two:
            wait_for(lambda: len(one.status.owned) == len(two.status.owned) == 2)
            send(kafka, 40, 40)
            wait_for(lambda: len(arrived(kafka)) == 80)
        wait_for(lambda: len(one.status.owned) == 4)
        send(kafka, 20, 80)
        wait_for(lambda: len(arrived(kafka)) == 100)
    check(kafka, 100)


class OneTurn:
    """A router of one partition that is moved by hand; also its source."""

    def __init__(self, desk: KeyDesk | None = None) -> None:
        self.begun: list[Mapping[Tp, int]] = []
        self.tp, self.asked = Tp(INPUT, 0), 0
        kafka, here = MemoryKafka(partitions=1), cast(Any, self)
        ports = RouterPorts(
            here, RefusingSink(kafka, "r"), self.starts, MemoryContents(kafka), desk or KeyDesk(), MemoryAsked(kafka)
        )
        self.router = Router(ports, [INPUT], 7, RouterStatus(), threading.Event())

    def starts(self, tps: Sequence[Tp], meanwhile: Meanwhile) -> Mapping[Tp, int]:
        """The first time the partition goes and comes back while it is asked for."""
        self.asked += 1
        if self.asked == 1:
            self.router._on_revoke([self.tp])
            self.router._on_assign([self.tp])
        return {self.tp: self.asked}

    def token(self) -> None:
        """Of no group."""

    def begin(self, positions: Mapping[Tp, int]) -> None:
        self.begun.append(positions)

    seek = begin


def test_a_partition_that_went_and_came_back_while_positions_were_asked_for_is_asked_for_again_b27() -> None:
    """Whoever had it meanwhile has routed on."""
    world = OneTurn()
    world.router._on_assign([world.tp])
    world.router._begin_assigned()
    assert (world.begun[0], world.router.status.owned) == ({}, {})
    world.router._begin_assigned()
    assert world.router.status.owned == {world.tp: 2}


def check_nothing_is_announced_without_partitions() -> None:
    class Revoking(RulesDesk):
        def announcement(self, meanwhile: Any) -> Sequence[Output]:
            world.router._on_revoke([world.tp])
            return self.unwritten(())

    world = OneTurn(Revoking())
    world.router.status.owned[world.tp] = 0
    try:
        world.router._announce()
    except StopIteration as error:
        raise AssertionError("the router ends") from error


def test_rows_wait_where_all_partitions_are_revoked_while_the_log_of_rows_is_read_b13() -> None:
    check_nothing_is_announced_without_partitions()


def test_a_partition_whose_record_is_refused_is_blocked_and_the_others_go_on() -> None:
    kafka = MemoryKafka(partitions=2)
    RefusingSink.refused = frozenset({b"4"})
    try:
        send(kafka, 20)
        with running(kafka) as router:
            wait_for(lambda: set(router.status.blocked) == {Tp(INPUT, 0)})
            wait_for(lambda: set(arrived(kafka)) >= set(range(1, 20, 2)))
            assert 6 not in arrived(kafka)
            RefusingSink.refused = frozenset()
            wait_for(lambda: len(arrived(kafka)) == 20)
            assert not router.status.blocked
    finally:
        RefusingSink.refused = frozenset()
    check(kafka, 20)


def test_inputs_whose_router_cannot_go_on_are_not_read_until_it_can() -> None:
    class Holding(KeyDesk):
        """The rules in force are at fault for a while."""

        why, turns = "", 0

        def refresh(self) -> None:
            self.turns += 1

        def obstacle(self, topic: str) -> str:
            assert topic == INPUT
            return self.why

    kafka, desk = MemoryKafka(), Holding()
    send(kafka, 20)
    with running(kafka, desk=desk) as router:
        wait_for(lambda: len(arrived(kafka)) == 20)
        desk.why = "rule low-stock: no such transform"
        wait_for(lambda: set(router.status.blocked.values()) == {desk.why})
        held = set(router.status.blocked)
        send(kafka, 20, first=20)
        transactions, until = router.status.transactions, desk.turns + 20
        wait_for(lambda: desk.turns >= until)
        assert (len(arrived(kafka)), router.status.transactions) == (20, transactions)
        assert set(router.status.blocked) == held, "no try of its own ends it"
        desk.why = ""
        wait_for(lambda: len(arrived(kafka)) == 40)
        assert router.status.blocked == {}
    check(kafka, 40)


@pytest.mark.parametrize("seed", range(4))
def test_a_hold_that_comes_and_goes_at_any_moment_loses_no_record_b27(seed: int) -> None:
    """Also the record that the poll before the hold brought along: its partition is read again from it, before anything behind it is."""

    class Faltering(KeyDesk):
        rnd, is_calm, why = Random(seed), False, ""

        def refresh(self) -> None:
            self.why = "" if self.is_calm or self.rnd.random() < 0.5 else "rule low-stock: no such transform"

        def obstacle(self, topic: str) -> str:
            return self.why

    kafka, desk = MemoryKafka(partitions=2), Faltering()
    with running(kafka, desk=desk, source_type=StashingSource):
        for first in range(0, 300, 3):
            send(kafka, 3, first=first)
            time.sleep(0.001)
        desk.is_calm = True
        wait_for(lambda: 299 in arrived(kafka) and 298 in arrived(kafka))
    check(kafka, 300)


def test_records_at_which_the_code_fails_are_set_aside_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    kafka, desk = MemoryKafka(partitions=2), FailingDesk()
    desk.failing = frozenset(b"%d" % number for number in (0, 4, 6, 19))
    send(kafka, 20)
    with running(kafka, desk=desk) as router:
        wait_for(lambda: router.status.counts.total() == 20)
        assert router.status.counts == {("rule", Fate.ROUTED): 16, ("rule", Fate.SET_ASIDE): 4}
        assert not router.status.blocked
    assert {record.value() for record in kafka.topic("supply.rejected")} == {b"0", b"4", b"6", b"19"}
    assert sorted({*range(20)} - {*arrived(kafka)}) == [0, 4, 6, 19]
    told = [record for record in caplog.records if record.name == "uow.set_aside"]
    assert ["what follows" in record.getMessage() for record in told] == [True, False, False, False]
    assert not any(record.exc_info for record in told)
    assert any(f"{INPUT}/0/2: the code failed at this record" in record.getMessage() for record in told)


def test_beyond_so_many_a_minute_the_partition_blocks_where_it_stands_and_goes_on_a_minute_later() -> None:
    kafka, desk, later_s = MemoryKafka(partitions=2), FailingDesk(), 0.0
    desk.failing = frozenset(b"%d" % number for number in (0, 4, 10, 12))
    send(kafka, 20)
    with running(kafka, desk=desk, set_aside=SetAsideLimit(2), monotonic=lambda: time.monotonic() + later_s) as router:
        wait_for(lambda: "set_aside_per_minute = 2" in router.status.blocked.get(Tp(INPUT, 0), ""))
        wait_for(lambda: len(arrived(kafka)) == 13)
        assert sorted(arrived(kafka)) == [1, 2, 3, 5, 6, 7, 8, 9, 11, 13, 15, 17, 19]
        wait_for(lambda: kafka.committed[Tp(INPUT, 0)].offset == 5)
        later_s = 61.0
        wait_for(lambda: len(arrived(kafka)) == 16)
        wait_for(lambda: not router.status.blocked)
    assert [record.value() for record in kafka.topic("supply.rejected")] == [b"0", b"4", b"10", b"12"]
    assert len(set(arrived(kafka))) == 16


def test_a_record_that_is_planned_again_after_a_doubt_is_counted_once() -> None:
    kafka, desk, doubts = MemoryKafka(partitions=1), FailingDesk(), 3
    desk.failing = frozenset({b"3"})
    send(kafka, 6)

    class Doubting(RefusingSink):
        def write(self, plans: Sequence[Any], token: Any) -> None:
            nonlocal doubts
            if doubts and any(plan.outputs for plan in plans):
                doubts -= 1
                raise Doubt("broker gone")
            super().write(plans, token)

    with running(kafka, desk=desk, sink_type=Doubting, set_aside=SetAsideLimit(2)) as router:
        wait_for(lambda: len(arrived(kafka)) == 5 or router.status.blocked)
        assert (router.status.blocked, router.status.doubts["Doubt"]) == ({}, 3)
    assert [record.value() for record in kafka.topic("supply.rejected")] == [b"3"]


def test_with_a_limit_of_0_it_blocks_at_the_first() -> None:
    kafka, desk = MemoryKafka(partitions=1), FailingDesk()
    desk.failing = frozenset({b"3"})
    send(kafka, 6)
    with running(kafka, desk=desk, set_aside=SetAsideLimit(0)) as router:
        wait_for(lambda: "KeyError" in router.status.blocked.get(Tp(INPUT, 0), ""))
        assert arrived(kafka) == [0, 1, 2]
        desk.failing = frozenset()
        wait_for(lambda: len(arrived(kafka)) == 6)
    assert not kafka.topic("supply.rejected")


def ask(kafka: MemoryKafka, partition: int, offset: int) -> None:
    """An operator's command about a record of the input."""
    command = Command(b"s", Verb.SET_ASIDE, b"", "not needed", "ada", source=f"{INPUT}/{partition}/{offset}")
    kafka.append("supply.commands", None, None, command_headers(command), partition=0)


def test_a_record_at_which_the_code_fails_is_set_aside_by_a_command_and_answered_once() -> None:
    kafka, desk = MemoryKafka(partitions=1), FailingDesk()
    desk.failing = frozenset({b"3"})
    send(kafka, 6)
    with running(kafka, desk=desk, set_aside=SetAsideLimit(0)) as router:
        wait_for(lambda: f"uow set-aside supply {INPUT}/0/3 " in router.status.blocked.get(Tp(INPUT, 0), ""))
        ask(kafka, 0, 4)  # about another one: nothing
        ask(kafka, 0, 3)
        wait_for(lambda: len(arrived(kafka)) == 5)
        wait_for(lambda: not router.status.blocked)
    (aside,) = kafka.topic("supply.rejected")
    assert (aside.value(), dict(aside.headers() or [])["uow-error-class"]) == (b"3", b"InternalError")
    assert b"ada (unverified): not needed" in (dict(aside.headers() or [])["uow-error-text"] or b"")
    assert len(kafka.topic("supply.outcomes")) == 1
    with running(kafka, desk=desk):  # a restart does nothing of it again
        send(kafka, 2, first=10)
        wait_for(lambda: len(arrived(kafka)) == 7)
    assert len(kafka.topic("supply.rejected")) == 1


def test_a_record_that_is_refused_stands_alone_and_is_set_aside_by_a_command_that_came_before() -> None:
    """The others of its poll are routed; a restart between the command and its effect changes nothing."""

    class Picky(RefusingSink):
        refused = frozenset({b"13"})

        def write(self, plans: Sequence[Any], token: Any) -> None:
            for plan in plans:
                if any(each.value in self.refused and each.topic == OUTPUT for each in plan.outputs):
                    raise Refused("not authorised", plan.tp)
            MemorySink.write(self, plans, token)

    kafka = MemoryKafka(partitions=1)
    send(kafka, 20)
    with running(kafka, sink_type=Picky) as router:
        wait_for(lambda: f"uow set-aside supply {INPUT}/0/13 " in router.status.blocked.get(Tp(INPUT, 0), ""))
        assert sorted(arrived(kafka)) == [*range(13)]
    ask(kafka, 0, 13)
    with running(kafka, sink_type=Picky):
        wait_for(lambda: len(arrived(kafka)) == 19)
    check_order = [number for number in range(20) if number != 13]
    assert arrived(kafka) == check_order
    (aside,) = kafka.topic("supply.rejected")
    assert (aside.value(), dict(aside.headers() or [])["uow-error-class"]) == (b"13", b"UowError")


def test_where_rejected_cannot_be_written_either_the_partition_stays_blocked_and_goes_on_later() -> None:
    class Picky(RefusingSink):
        tries = 0
        is_strict = True

        def write(self, plans: Sequence[Any], token: Any) -> None:
            if type(self).is_strict and any(each.value == b"3" for plan in plans for each in plan.outputs):
                type(self).tries += 1
                raise Refused("not authorised", plans[0].tp)
            MemorySink.write(self, plans, token)

    kafka, skipped_s = MemoryKafka(partitions=1), 0.0
    send(kafka, 4)
    ask(kafka, 0, 3)
    with running(kafka, sink_type=Picky, monotonic=lambda: time.monotonic() + skipped_s) as router:
        wait_for(lambda: Picky.tries >= 3 and Tp(INPUT, 0) in router.status.blocked)
        Picky.is_strict = False
        skipped_s = 61.0
        wait_for(lambda: len(arrived(kafka)) == 4)
    assert not kafka.topic("supply.rejected")


def test_retention_that_took_the_position_blocks_its_partition() -> None:
    kafka = MemoryKafka(partitions=2)
    send(kafka, 20)
    with running(kafka):
        wait_for(lambda: len(arrived(kafka)) == 20)
    send(kafka, 20, 20)
    kafka.cut(Tp(INPUT, 0), 15)
    with running(kafka) as router:
        wait_for(lambda: "below the log's start" in router.status.blocked.get(Tp(INPUT, 0), ""))
        wait_for(lambda: len(arrived(kafka)) == 30)


def test_positions_pass_the_markers_of_transactions_in_the_inputs_b218() -> None:
    """So that the committed positions reach the end offsets, and others see that nothing waits."""
    kafka = MemoryKafka(partitions=1)
    with running(kafka):
        kafka.produce("sender", Tp(INPUT, 0), None, b"0", [("to", b"k")])
        from uow.processor.sim.simulated_kafka import State

        kafka.end("sender", State.COMMITTED)
        wait_for(lambda: arrived(kafka) == [0])
        wait_for(lambda: kafka.committed[Tp(INPUT, 0)].offset == kafka.bounds(Tp(INPUT, 0))[1] == 2)


def test_positions_pass_markers_also_while_another_partition_never_falls_silent_b218() -> None:
    """They were passed in a turn whose poll was empty, and no other."""
    from uow.processor.sim.simulated_kafka import State

    kafka, quiet = MemoryKafka(partitions=2), Tp(INPUT, 1)
    with running(kafka, source_type=BusySource):
        kafka.produce("sender", quiet, None, b"0", [("to", b"k")])
        kafka.end("sender", State.COMMITTED)
        wait_for(lambda: quiet in kafka.committed and kafka.committed[quiet].offset == kafka.bounds(quiet)[1] == 2)


class KeylessDesk(KeyDesk):
    """Finds no routing name in records without a value that is even."""

    def route(self, tp: Tp, seen: Iterable[tuple[Any, Any]], found: RoutedRecords) -> None:
        for headers, record in seen:
            number = int(record.value())
            cause = NoKey.ABSENT if number % 3 else NoKey.UNUSABLE
            keyless = Keyless(cause, BadUnitIdError("path:a: \x1b", case="no-correlation")) if number % 2 else None
            where = f"{tp.topic}/{tp.partition}/{record.offset()}".encode()
            sent = Sent(OUTPUT, dict(headers or ())["to"], record.value(), [("uow-input", where)])
            found.add(Routed(Fate.REJECTED, "orders", sent, keyless=keyless))


def test_records_without_a_key_are_counted_and_each_kind_is_logged_once_b22(caplog: pytest.LogCaptureFixture) -> None:
    kafka = MemoryKafka()
    send(kafka, 60)
    with running(kafka, desk=KeylessDesk()) as router:
        wait_for(lambda: sum(router.status.keyless.values()) == 30)
        assert router.status.keyless == {("orders", NoKey.ABSENT): 20, ("orders", NoKey.UNUSABLE): 10}
    lines = [line for line in caplog.messages if "without a key" in line]
    assert len(lines) == 2
    assert all("rule orders: a record without a key was rejected, stock.events/" in line for line in lines)
    assert all("\\x1b" in line and "\x1b" not in line for line in lines)
