"""No record stops a worker: each refusal says why, hostile records included, and the others go on (W-23, W-35, W-37).

One worker process serves all tests of this file; the last one looks whether it still does.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaException, Producer

from tests.broker.raw_producer import produce_raw
from tests.broker.worker_places import Destination, Worker, decoded
from tests.kafka_broker import Kafka
from tests.processes import PATIENCE_S, Process, wait_for
from uow.topics.headers import as_origin
from uow.topics.partitioner import partition_for
from uow.topics.policies import DestinationPolicy

Pairs = tuple[tuple[str, bytes | None], ...]
SLOW = 60.0
MAX_COMPONENTS = 30
INPUT_LIMIT = 1_048_588
"""The broker's default record limit, which `D.components` has."""
serials = itertools.count()


class Desk:
    """The place under test, its worker, and a producer that tells where each record went."""

    def __init__(self, place: Destination, worker: Worker) -> None:
        self.place, self.worker = place, worker
        settings = {
            "bootstrap.servers": place.bootstrap,
            "partitioner": "murmur2_random",
            "message.max.bytes": 4_000_000,
        }
        self.producer = Producer(settings)

    def put(
        self,
        headers: Sequence[tuple[str, bytes | None]],
        value: bytes | None = b"v",
        key: bytes | None = None,
        partition: int = -1,
    ) -> str:
        """Produces one record; its `uow-source`."""
        where: list[str] = []

        def on_delivery(error: Any, message: Any) -> None:
            if error is not None:
                raise KafkaException(error)
            where.append(f"{message.topic()}/{message.partition()}/{message.offset()}")

        produce: Any = self.producer.produce
        produce(self.place.components, value, key, partition, on_delivery, None, 0, list(headers))
        assert not self.producer.flush(PATIENCE_S)
        return where[0]

    def component(self, name: str, seq: int, end: bool = False, *more: tuple[str, bytes | None], **how: Any) -> str:
        """Produces one component under its key."""
        pairs = [("uow-id", name.encode()), ("uow-seq", b"%d" % seq), ("uow-end", b"true" if end else b"false"), *more]
        return self.put(pairs, key=name.encode(), **how)

    def by_source(self, topic: str) -> dict[str, list[Any]]:
        """Records of `D.rejected` or `D.errors` by `uow-source`."""
        found: dict[str, list[Any]] = {}
        for record in self.place.read(f"{self.place.name}.{topic}"):
            found.setdefault(header(record, "uow-source").decode(), []).append(record)
        return found

    def wait_source(self, topic: str, *sources: str) -> dict[str, Any]:
        """Waits until each is in the topic; there it is once."""
        found: dict[str, list[Any]] = {}

        def there() -> bool:
            nonlocal found
            found = self.by_source(topic)
            return all(source in found for source in sources)

        wait_for(there, SLOW, lambda: f"{set(sources) - set(found)} in {topic}; {self.worker.child.output[-2000:]}")
        assert all(len(found[source]) == 1 for source in sources)
        return {source: found[source][0] for source in sources}

    def wait_unit(self, name: str) -> dict[str, Any]:
        """Waits for the unit of this id; decoded."""
        found: list[Any] = []

        def there() -> bool:
            found[:] = [record for record in self.place.read(self.place.units) if record.key() == name.encode()]
            return bool(found)

        wait_for(there, SLOW, lambda: f"unit {name}; {self.worker.child.output[-2000:]}")
        assert len(found) == 1
        return decoded(found[0].value())

    def all_partitions_go_on(self) -> None:
        """A unit comes out of each partition, from the same process as ever."""
        names = [
            f"{name}-{next(serials)}"
            for number in range(self.place.partitions)
            for name in self.place.fitting(number, 1)
        ]
        names = [fit(name, number, self.place.partitions) for number, name in enumerate(names)]
        for name in names:
            self.component(name, 1, end=True)
        wait_for(
            lambda: {name.encode() for name in names} <= set(self.place.delivered()),
            SLOW,
            lambda: self.worker.child.output[-3000:],
        )
        assert self.worker.child.status is None


def fit(stem: str, partition: int, count: int) -> str:
    """An id of this partition."""
    return next(name for n in itertools.count() if partition_for((name := f"{stem}-{n}").encode(), count) == partition)


def header(record: Any, name: str) -> bytes:
    value = dict(record.headers() or ()).get(name, b"")
    assert isinstance(value, bytes)
    return value


@pytest.fixture(scope="module")
def desk(broker: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder: Path = tmp_path_factory.mktemp("bad-input")
    children: list[Process] = []

    def spawn(*command: str | Path, env: Any = None) -> Process:
        first, *rest = map(str, command)
        import sys

        children.append(
            Process([str(Path(sys.executable).with_name(first)), *rest], folder / f"{len(children)}.log", env)
        )
        return children[-1]

    place = Destination(broker.bootstrap, f"bad-{uuid4().hex[:8]}", folder, spawn)
    place.create(
        accept_aliases=["weblogic"], max_components=MAX_COMPONENTS, expiration_policy="redirect", outcomes="all"
    )
    worker = place.worker()
    yield Desk(place, worker)
    if worker.child.status is None:
        worker.check_counts()
    status = worker.child.terminate() if worker.child.status is None else worker.child.status
    for child in children:
        child.close()
    assert status == 0


# -- the decision table


@dataclass(frozen=True)
class BadInput:
    """Records of which the last is refused. `{id}` in a header stands for an id of this case."""

    line: str
    error: str
    case: str
    says: str
    records: tuple[Pairs, ...]
    misplaced: bool = False


def one(*pairs: tuple[str, bytes | None]) -> tuple[Pairs, ...]:
    return (pairs,)


ID = ("uow-id", b"{id}")


def c(seq: int, *more: tuple[str, bytes | None], end: bool = False) -> Pairs:
    return (ID, ("uow-seq", b"%d" % seq), *((("uow-end", b"true"),) if end else ()), *more)


SAME = ("uow-component-id", b"same")
CASES = [
    BadInput("1", "UnitConflictError", "", "uoo-name", one(ID, ("uow-seq", b"1"), ("uoo-name", b"o"))),
    BadInput("3", "BadUnitIdError", "empty", "empty", one(("uow-id", b""), ("uow-seq", b"1"))),
    BadInput("3", "BadUnitIdError", "undecodable", "xff", one(("uow-id", b"\xff\xfe"), ("uow-seq", b"1"))),
    BadInput("3", "BadUnitIdError", "too-long", "", one(("uow-id", b"i" * 256), ("uow-seq", b"1"))),
    BadInput("3", "BadUnitIdError", "repeated", "", one(ID, ("uow-id", b"other"), ("uow-seq", b"1"))),
    BadInput("3", "BadUnitIdError", "alias", "", one(ID, ("JMS_BEA_UnitOfWork", b"other"), ("uow-seq", b"1"))),
    BadInput("4", "BadSequenceNumberError", "a", "{id}", one(ID, ("uow-end", b"true"))),
    BadInput("4", "BadSequenceNumberError", "b", "{id}", one(ID, ("uow-seq", b"0"))),
    BadInput("4", "BadSequenceNumberError", "b", "-2147483648", one(ID, ("uow-seq", b"-2147483648"))),
    BadInput("4", "BadSequenceNumberError", "malformed", "2147483648", one(ID, ("uow-seq", b"2147483648"))),
    BadInput("4", "BadSequenceNumberError", "malformed", "9999", one(ID, ("uow-seq", b"9" * 5000))),
    BadInput("4", "BadSequenceNumberError", "malformed", "", one(ID, ("uow-seq", "٣".encode()))),
    BadInput("4", "BadSequenceNumberError", "a", "", one(ID, ("uow-seq", None))),
    BadInput("4", "BadSequenceNumberError", "malformed", "repeated", one(ID, ("uow-seq", b"1"), ("uow-seq", b"2"))),
    BadInput("5", "BadSequenceNumberError", "malformed-end", "yes", one(ID, ("uow-seq", b"1"), ("uow-end", b"yes"))),
    BadInput("5", "BadSequenceNumberError", "malformed-end", "", one(ID, ("uow-seq", b"1"), ("uow-end", b""))),
    BadInput(
        "5", "BadSequenceNumberError", "malformed-count", "1e9", one(ID, ("uow-seq", b"1"), ("uow-count", b"1e9"))
    ),
    BadInput("5b", "DecodeError", "uow-expires-at", "soon", one(*c(1), ("uow-expires-at", b"soon"))),
    BadInput("5b", "DecodeError", "uow-expires-at", "", one(*c(1), ("uow-expires-at", b"9" * 19))),
    BadInput("5b", "DecodeError", "uow-deliver-at", "", one(*c(1), ("uow-deliver-at", b"\xff"))),
    BadInput("5b", "DecodeError", "uow-priority", "11", one(*c(1), ("uow-priority", b"11"))),
    BadInput("5b", "DecodeError", "uow-digest", "md5", one(*c(1), ("uow-digest", b"md5:00"))),
    BadInput("6", "MisroutedComponentError", "", "partition", one(*c(1), ("uow-rerouted", b"1")), misplaced=True),
    BadInput("8", "DuplicateSequenceNumberError", "duplicate", "delivered", (c(1, end=True), c(1))),
    BadInput("8", "OutOfSequenceRangeError", "a", "1", (c(1, end=True), c(2))),
    BadInput("9", "UnitClosedError", "expired", "component-expired", (c(1, ("uow-expires-at", b"1")), c(2))),
    BadInput("10", "DuplicateSequenceNumberError", "resend", "", (c(1, SAME), c(1, SAME))),
    BadInput("10", "DuplicateSequenceNumberError", "duplicate", "", (c(1), c(1))),
    BadInput("11", "OutOfSequenceRangeError", "a", "3", (c(3, end=True), c(4))),
    BadInput("11", "OutOfSequenceRangeError", "a", "3", (c(1, ("uow-count", b"3")), c(4))),
    BadInput("12", "OutOfSequenceRangeError", "b", "5", (c(5), c(3, end=True))),
    BadInput("12", "OutOfSequenceRangeError", "b", "5", (c(5), c(1, ("uow-count", b"3")))),
]


@pytest.fixture(scope="module")
def refusals(desk: Desk) -> list[tuple[BadInput, str, str, Any]]:
    """All cases sent, then answered: (case, id, source, record of D.rejected)."""
    sent = []
    for number, case in enumerate(CASES):
        name = fit(f"case-{number}", 1, desk.place.partitions)
        source = ""
        for pairs in case.records:
            filled = [(key, None if raw is None else raw.replace(b"{id}", name.encode())) for key, raw in pairs]
            source = desk.put(filled, b"value-%d" % number, name.encode(), 2 if case.misplaced else 1)
        sent.append((case, name, source))
    found = desk.wait_source("rejected", *(source for *_, source in sent))
    return [(case, name, source, found[source]) for case, name, source in sent]


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{n}-line {x.line}-{x.case}" for n, x in enumerate(CASES)])
def test_each_refusing_line_says_class_case_text_and_source(refusals: list[Any], number: int) -> None:
    """W-25 to W-37: original key, value and headers, plus four error headers."""
    case, name, source, record = refusals[number]
    assert header(record, "uow-source").decode() == source
    assert header(record, "uow-error-class").decode() == case.error
    assert header(record, "uow-error-case").decode() == case.case
    text = header(record, "uow-error-text").decode()
    assert text
    assert case.says.replace("{id}", name) in text
    assert (record.key(), record.value()) == (name.encode(), b"value-%d" % number)
    original = [(key, None if raw is None else raw.replace(b"{id}", name.encode())) for key, raw in case.records[-1]]
    assert record.headers()[: len(original)] == original
    added = [key for key, _ in record.headers()[len(original) :]]
    assert added == ["uow-error-class", "uow-error-case", "uow-error-text", "uow-source"]


def test_conflict_is_told_from_a_duplicate_by_the_bytes(desk: Desk) -> None:
    """W-31, line 10; the first one stays."""
    desk.component("differs", 2, value=b"x")
    source = desk.component("differs", 2, value=b"y")
    desk.component("differs", 1, end=False)
    desk.component("differs", 3, end=True)
    record = desk.wait_source("rejected", source)[source]
    assert header(record, "uow-error-case") == b"conflict"
    assert [each["value"] for each in desk.wait_unit("differs")["components"]] == [b"v", b"x", b"v"]


def test_plain_traffic_passes_however_odd(desk: Desk) -> None:
    """Line 2, W-22, W-96: byte for byte but for what only units carry, no refusal."""
    odd: list[tuple[Pairs, bytes | None]] = [
        ((("uow-seq", b"-7"), ("uow-end", b"banana")), b"plain-1"),
        ((("uow-id", b"finished"), ("uow-kind", b"unit")), b"plain-2"),
        ((("x", b"\xff\x00"), ("x", None), ("", b"")), b"plain-3"),
        ((), b"plain-4"),
    ]
    for pairs, value in odd:
        desk.put(pairs, value, None, 3)
    values = [value for _, value in odd]
    found: list[Any] = []

    def there() -> bool:
        found[:] = [record for record in desk.place.read(desk.place.units) if record.value() in values]
        return len(found) == len(odd)

    wait_for(there, SLOW)
    assert [(tuple(record.headers() or ()), record.value(), record.key(), record.partition()) for record in found] == [
        (tuple(as_origin(pairs)), value, None, 3) for pairs, value in odd
    ]


def test_expired_component_ends_its_group_with_the_reason(desk: Desk) -> None:
    """Line 13, W-77."""
    held = desk.component("too-old", 1)
    source = desk.component("too-old", 2, False, ("uow-expires-at", b"1"))
    found = desk.wait_source("errors", held, source)
    for record in found.values():
        assert header(record, "uow-error-class") == b"ComponentExpiredError"
        assert header(record, "uow-error-case") == b"component-expired"
        assert header(record, "uow-failure-reason") == b"expired"
        assert header(record, "uow-missing") == b"3-"


def test_group_over_its_limit_fails_with_all_its_components(desk: Desk) -> None:
    """Line 14, W-115."""
    sources = [desk.component("too-many", seq) for seq in range(1, MAX_COMPONENTS + 2)]
    found = desk.wait_source("errors", *sources)
    assert {header(record, "uow-error-class") for record in found.values()} == {b"UnitTooLargeError"}
    assert {header(record, "uow-failure-reason") for record in found.values()} == {b"failed"}
    desk.all_partitions_go_on()


# -- hostile records


def test_header_name_that_is_no_utf8_is_refused(desk: Desk, broker: Kafka) -> None:
    """W-23: what cannot be read is refused as `DecodeError`, key and value kept."""
    headers = [(b"uow-id", b"raw"), (b"uow-seq", b"1"), (b"\xff\xfe", b"x")]
    produce_raw(broker.bootstrap, desk.place.components, 0, b"raw-name", b"raw-value", headers)
    found: list[Any] = []

    def there() -> bool:
        everything = desk.place.read(f"{desk.place.name}.rejected")
        found[:] = [record for record in everything if record.key() == b"raw-name"]
        return bool(found)

    wait_for(there, SLOW, lambda: desk.worker.child.output[-3000:])
    (record,) = found
    assert header(record, "uow-error-class") == b"DecodeError"
    assert header(record, "uow-source").startswith(f"{desk.place.components}/0/".encode())
    assert record.value() == b"raw-value"
    desk.all_partitions_go_on()


def test_empty_value_null_value_and_null_key_are_components_like_others(desk: Desk) -> None:
    """W-95: null stays null, empty stays empty."""
    name = fit("hollow", 2, desk.place.partitions)
    desk.component(name, 1, value=None)
    desk.component(name, 2, value=b"")
    desk.put([("uow-id", name.encode()), ("uow-seq", b"3"), ("uow-end", b"true")], b"x", None, 2)
    unit = desk.wait_unit(name)
    assert [each["value"] for each in unit["components"]] == [None, b"", b"x"]
    assert [each["key"] for each in unit["components"]] == [name.encode(), name.encode(), None]


def test_header_of_nearly_a_megabyte(desk: Desk) -> None:
    """Held and delivered where it is a component, refused with all its headers where it is none."""
    huge = ("blob", b"\xff" * 1_000_000)
    bad = desk.put([("uow-id", b"blob"), ("uow-seq", b"x"), huge], key=b"blob")
    desk.component("blob-good", 1, True, huge)
    record = desk.wait_source("rejected", bad)[bad]
    assert header(record, "blob") == huge[1]
    (part,) = desk.wait_unit("blob-good")["components"]
    assert {"name": "blob", "value": huge[1]} in part["headers"]
    desk.all_partitions_go_on()


def test_marks_of_nearly_a_megabyte(desk: Desk) -> None:
    """Huge values where a few bytes belong; the text stays readable."""
    big = b"9" * 900_000
    sources = [
        desk.put([("uow-id", big), ("uow-seq", b"1")], key=b"big"),
        desk.put([("uow-id", b"big"), ("uow-seq", big)], key=b"big"),
        desk.put([("uow-id", b"big"), ("uow-seq", b"1"), ("uow-end", big)], key=b"big"),
        desk.put([("uow-id", b"big"), ("uow-seq", b"1"), ("uow-expires-at", big)], key=b"big"),
        desk.put([("uow-id", b"big"), ("uow-seq", b"1"), ("uow-count", big)], key=b"big"),
    ]
    for record in desk.wait_source("rejected", *sources).values():
        assert len(header(record, "uow-error-text")) < 1000


def test_many_headers_are_kept_and_too_many_refused(desk: Desk) -> None:
    """Each of them, in both; `max_headers` is the limit."""
    most = DestinationPolicy().max_headers
    fit = [(f"h{number % 700}", b"%d" % number) for number in range(most - 3)]
    bad = desk.put([*fit, ("uow-id", b"many"), ("uow-seq", b"1"), ("uow-end", b"true"), ("one", b"more")], key=b"many")
    desk.component("many-good", 1, True, *fit)
    record = desk.wait_source("rejected", bad)[bad]
    assert (header(record, "uow-error-class"), header(record, "uow-error-case")) == (b"DecodeError", b"headers")
    assert len(record.headers()) == most + 1 + 4
    (part,) = desk.wait_unit("many-good")["components"]
    assert len(part["headers"]) == most


def test_more_headers_than_the_client_shows_are_refused_and_no_plain_traffic(desk: Desk) -> None:
    """The client answers None for them, as for the plain record before and behind."""
    desk.put([], b"bare", key=b"k", partition=0)
    hidden = desk.put([("h", b"")] * 100_001, b"hidden", key=b"k", partition=0)
    desk.put([], b"bare too", key=b"k", partition=0)
    record = desk.wait_source("rejected", hidden)[hidden]
    assert (record.key(), record.value()) == (b"k", b"hidden")
    assert (header(record, "uow-error-class"), header(record, "uow-error-case")) == (b"DecodeError", b"headers")

    def passed() -> list[bytes]:
        return [each.value() for each in desk.place.read(desk.place.units) if each.value() in (b"bare", b"bare too")]

    wait_for(lambda: passed() == [b"bare", b"bare too"], SLOW)


def test_components_by_value_with_headers_that_the_client_does_not_show_are_refused(
    broker: Kafka, spawn: Callable[..., Process], tmp_path: Path
) -> None:
    """W-24: held, the unit would be delivered without them, and nobody would know."""
    place = Destination(broker.bootstrap, f"by-value-{uuid4().hex[:8]}", tmp_path, spawn, 1)
    place.create(field_source="value")
    worker = place.worker()
    desk = Desk(place, worker)

    def value(seq: int, end: bool) -> bytes:
        return json.dumps({"uow-id": "a", "uow-seq": seq, "uow-end": end}).encode()

    desk.put([], value(1, False), key=b"a")
    hidden = desk.put([("h", b"")] * 100_001, value(2, True), key=b"a")
    desk.put([("h", b"1")], value(2, True), key=b"a")
    record = desk.wait_source("rejected", hidden)[hidden]
    assert (record.key(), record.value()) == (b"a", value(2, True))
    assert (header(record, "uow-error-class"), header(record, "uow-error-case")) == (b"DecodeError", b"headers")
    first, last = desk.wait_unit("a")["components"]
    assert (first["headers"], [each["name"] for each in last["headers"]]) == ([], ["h"])
    assert worker.child.terminate() == 0


def test_numbers_as_large_as_they_come_cost_nothing(desk: Desk) -> None:
    """W-20: a lone highest number opens a group like any other."""
    desk.component("highest", 2_147_483_647, end=True)
    desk.component("highest", 2_147_483_646)
    desk.all_partitions_go_on()


def largest(desk: Desk, headers: Sequence[tuple[str, bytes | None]], key: bytes, scratch: str) -> int:
    """The largest value a record with these headers may have to be taken in, by trying."""
    low, high = INPUT_LIMIT - 2000, INPUT_LIMIT
    produce: Any = desk.producer.produce
    while high - low > 1:
        middle, errors = (low + high) // 2, []
        produce(scratch, b"v" * middle, key, 0, lambda error, _, e=errors: e.append(error), None, 0, list(headers))
        assert not desk.producer.flush(PATIENCE_S)
        low, high = (low, middle) if errors[0] is not None else (middle, high)
    return low


def test_record_at_the_limit_of_the_input_can_be_refused(desk: Desk, create_topic: Callable[..., str]) -> None:
    """W-114: it gains four headers on its way to `D.rejected`."""
    pairs: list[tuple[str, bytes | None]] = [("uow-id", b"limit"), ("uow-seq", b"0")]
    size = largest(desk, pairs, b"limit", create_topic("scratch", partitions=1))
    source = desk.put(pairs, b"v" * size, b"limit")
    assert len(desk.wait_source("rejected", source)[source].value()) == size
    desk.all_partitions_go_on()


def test_record_at_the_limit_of_the_input_on_a_wrong_partition_does_not_stop_it(
    desk: Desk, create_topic: Callable[..., str]
) -> None:
    """Line 6: with `uow-rerouted` it no longer fits the input, so it is refused where it is; nothing waits for it."""
    name = fit("limit-misrouted", 1, desk.place.partitions)
    pairs: list[tuple[str, bytes | None]] = [("uow-id", name.encode()), ("uow-seq", b"1"), ("uow-end", b"true")]
    size = largest(desk, pairs, name.encode(), create_topic("scratch", partitions=1))
    source = desk.put(pairs, b"v" * size, name.encode(), 2)
    record = desk.wait_source("rejected", source)[source]
    assert header(record, "uow-error-class") == b"MisroutedComponentError"
    assert len(record.value()) == size
    desk.all_partitions_go_on()


def test_unit_that_fits_no_record_fails_and_the_next_group_is_handled(desk: Desk) -> None:
    """W-115: components of nearly a megabyte; the eleventh breaks the limit, all held come out in D.errors, the twelfth is late."""
    *sources, last = [desk.component("heavy", seq, seq == 12, value=b"h" * 1_000_000) for seq in range(1, 13)]
    found = desk.wait_source("errors", *sources)
    assert {header(record, "uow-error-class") for record in found.values()} == {b"UnitTooLargeError"}
    late = desk.wait_source("rejected", last)
    assert {header(record, "uow-error-class") for record in late.values()} == {b"UnitClosedError"}
    desk.all_partitions_go_on()


# -- partitions and transactions


def test_producer_with_librdkafkas_default_partitioner_is_put_right(desk: Desk) -> None:
    """W-110: CRC32 instead of murmur2; units complete, each on its right partition."""
    producer = Producer({"bootstrap.servers": desk.place.bootstrap, "enable.idempotence": True})
    names = [f"crc-{number}" for number in range(40)]
    produce: Any = producer.produce
    wrong = 0

    def on_delivery(error: Any, message: Any) -> None:
        nonlocal wrong
        assert error is None
        wrong += message.partition() != partition_for(message.key(), desk.place.partitions)

    for name, seq in itertools.product(names, (2, 1, 3)):
        key = name.encode()
        pairs = [("uow-id", key), ("uow-seq", b"%d" % seq), ("uow-end", b"true" if seq == 3 else b"false")]
        produce(desk.place.components, b"crc", key, -1, on_delivery, None, 0, pairs)
    assert not producer.flush(PATIENCE_S)
    assert wrong > 0
    keys = {name.encode() for name in names}
    wait_for(lambda: keys <= set(desk.place.delivered()), SLOW)
    units = [record for record in desk.place.read(desk.place.units) if record.key() in keys]
    assert len(units) == len(names)
    assert all(record.partition() == partition_for(record.key(), desk.place.partitions) for record in units)
    ours = [
        record for record in desk.place.read(desk.place.components) if record.key() in keys
    ]  # others' headers may kill
    assert len([record for record in ours if header(record, "uow-rerouted")]) == wrong


def transactional(desk: Desk, name: str) -> Producer:
    settings = {"transactional.id": f"{desk.place.name}-{name}", "partitioner": "murmur2_random"}
    producer = Producer({"bootstrap.servers": desk.place.bootstrap, **settings})
    producer.init_transactions(PATIENCE_S)
    return producer


def hand(desk: Desk, producer: Producer, name: str, seq: int, end: bool) -> None:
    key, produce = name.encode(), producer.produce
    pairs = [("uow-id", key), ("uow-seq", b"%d" % seq), ("uow-end", b"true" if end else b"false")]
    produce(desk.place.components, b"transaction", key, headers=pairs)  # type: ignore[arg-type]
    producer.flush(PATIENCE_S)


def test_aborted_component_is_never_seen_and_its_number_stays_free(desk: Desk) -> None:
    """W-06, W-46, W-48, W-49."""
    producer = transactional(desk, "abort")
    producer.begin_transaction()
    hand(desk, producer, "abandoned", 1, False)
    hand(desk, producer, "abandoned", 2, True)
    producer.abort_transaction(PATIENCE_S)
    desk.component("abandoned", 1)
    desk.component("abandoned", 2, end=True)
    unit = desk.wait_unit("abandoned")
    assert [each["value"] for each in unit["components"]] == [b"v", b"v"]
    desk.all_partitions_go_on()
    assert not [record for record in desk.place.read(f"{desk.place.name}.rejected") if record.key() == b"abandoned"]


def test_open_transaction_delays_its_partition_only(desk: Desk) -> None:
    """W-50: what lies behind it appears when it ends, in its turn."""
    blocked, behind = (fit(f"{stem}-{uuid4().hex[:6]}", 0, desk.place.partitions) for stem in ("open", "behind"))
    elsewhere = fit(f"elsewhere-{uuid4().hex[:6]}", 3, desk.place.partitions)
    producer = transactional(desk, "open")
    producer.begin_transaction()
    hand(desk, producer, blocked, 1, True)
    desk.component(behind, 1, end=True)
    desk.component(elsewhere, 1, end=True)
    desk.wait_unit(elsewhere)
    assert not {blocked.encode(), behind.encode()} & set(desk.place.delivered())
    gap = f'uow_last_stable_offset_lag{{destination="{desk.place.name}",partition="0"}}'
    wait_for(lambda: desk.worker.metric(gap) >= 2, PATIENCE_S, "the metric tells of records that nobody can read yet")
    producer.commit_transaction(PATIENCE_S)
    desk.wait_unit(blocked)
    desk.wait_unit(behind)
    wait_for(lambda: desk.worker.metric(gap) == 0, PATIENCE_S, "nothing is held back any more")


def test_worker_is_alive_and_everything_is_read(desk: Desk) -> None:
    """The last of this file: all partitions go on, no record stopped the worker or was left behind."""
    desk.all_partitions_go_on()
    page = desk.worker.partitions()
    assert [each["blocked"] for each in page.values()] == [None] * desk.place.partitions
    assert "InvariantViolation" not in desk.worker.child.output
    started = time.monotonic()
    assert desk.worker.child.status is None
    assert time.monotonic() - started < SLOW
