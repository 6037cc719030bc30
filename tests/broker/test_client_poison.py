"""Records that no consumer may stop at, on a real broker: what cannot be read, what cannot be fetched, what kills (W-86, W-87, W-117)."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner
from client_places import Topics, a_unit, headers_of
from confluent_kafka import Producer

import uow
from tests.broker.worker_places import Destination
from tests.processes import PATIENCE_S, stretched
from uow.cli.main import main
from uow.schemas import codec
from uow.schemas.records import ComponentRecord, Reference, Source, Unit, UnitOutcome
from uow.schemas.registry import RegistryFramer
from uow.schemas.registry import connect as registry_at
from uow.topics import headers as names

Write = tuple[bytes | None, dict[str, bytes]]
"""Value and headers of a record."""


@pytest.fixture
def places(broker: Any) -> Topics:
    return Topics(broker.bootstrap)


@pytest.fixture
def destination(places: Topics) -> str:
    """A destination of this test alone."""
    name = f"poison-{uuid4().hex[:8]}"
    places.make(*(f"{name}.{each}" for each in ("units", "components", "errors")), partitions=1)
    return name


@pytest.fixture
def connection(places: Topics) -> Iterator[uow.Connection]:
    with uow.connect(places.bootstrap) as connection:
        yield connection


def unit_record(value: bytes | None, name: str = "poison", **more: bytes) -> Write:
    return value, {names.KIND: b"unit", names.ID: name.encode(), **more}


def referring(destination: str, *places: tuple[str, int, int, int]) -> Write:
    """A unit whose components are said to lie at topic, partition and offset, with so many bytes."""
    components = tuple(
        ComponentRecord(seq, False, None, None, None, (), 1, Source(topic, partition, offset), Reference(length, 0))
        for seq, (topic, partition, offset, length) in enumerate(places, 1)
    )
    unit = replace(a_unit("poison", [b""], destination), components=components, count=len(components))
    return unit_record(codec.frame(unit))


def placed(position: bytes, unit_id: bytes = b"u-broken") -> Write:
    """A record of a run."""
    told = {names.UNIT_ID: unit_id, names.GENERATION: b"1", names.OUTCOME: b"complete", names.REASON: b"end"}
    return unit_record(b"v", **told, **{names.POS: position})


def registered(url: str) -> Write:
    """A unit by a schema that another registry knows."""
    return unit_record(codec.frame(a_unit("x", [b"1"]), RegistryFramer(registry_at(url)), "t"))


def poisons(destination: str) -> dict[str, list[Write]]:
    """What stands before a good unit each time."""
    components = f"{destination}.components"
    whole = codec.frame(a_unit("x", [b"1"]))
    array = whole[: whole.index(b"\x02\x02")]
    return {
        "no unit": [unit_record(b"nonsense")],
        "no value": [unit_record(None)],
        "no bytes": [unit_record(b"")],
        "unknown fingerprint": [unit_record(b"\xc3\x01" + b"\x07" * 30)],
        "no registry": [registered("mock://elsewhere")],
        "cut off": [unit_record(whole[:-3])],
        "array without end": [unit_record(array + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01")],
        "deep json": [unit_record(b'{"schema":' + b"[" * 200_000)],
        "deep xml": [unit_record(b"<unit>" * 50_000)],
        "entities": [unit_record(b'<!DOCTYPE x [<!ENTITY a "' + b"a" * 1000 + b'">]><unit>&a;</unit>')],
        "huge number": [unit_record(b'{"schema":"uow.Unit","version":' + b"9" * 5000 + b"}")],
        "missing topic": [referring(destination, ("no-such-topic", 0, 0, 5))],
        "another topic": [referring(destination, (f"{destination}.units", 0, 0, 5))],
        "partition 99": [referring(destination, (components, 99, 0, 5))],
        "negative partition": [referring(destination, (components, -3, 0, 5))],
        "far away": [referring(destination, (components, 0, 2**62, 5))],
        "negative offset": [referring(destination, (components, 0, -1, 5))],
        "huge length": [referring(destination, (components, 0, 0, 2**62))],
        "one place twice": [referring(destination, (components, 0, 0, 1), (components, 0, 0, 1))],
        "no place in a run": [unit_record(b"v", **{names.POS: b"first"})],
        "nothing of its unit": [unit_record(b"v", **{names.POS: b"1/2"})],
        "broken run": [placed(b"1/3"), placed(b"3/3")],
        "run without its beginning": [placed(b"2147483646/2147483647", b"u-late")],
    }


INNER = ComponentRecord(1, True, None, None, b"no unit", ((names.INNER_ID, b"x"),), 1, Source("t", 0, 0))


@pytest.fixture
def poisoned(places: Topics, destination: str) -> list[str]:
    """Each poison, then a good unit of its name, and in the end one whose component says that it is a unit."""
    producer = Producer({"bootstrap.servers": places.bootstrap, "enable.idempotence": True})
    producer.produce(f"{destination}.components", b"v", b"k", 0)
    ids = []
    for name, records in poisons(destination).items():
        good = a_unit(name, [b"1"], destination)
        for value, headers in [*records, unit_record(codec.frame(good), name)]:
            producer.produce(f"{destination}.units", value, b"k", 0, headers=dict(headers))  # type: ignore[arg-type]
        ids.append(name)
    nested = replace(a_unit("nested", [b"1"], destination), components=(INNER,))
    producer.produce(f"{destination}.units", codec.frame(nested), b"k", 0, headers=unit_record(b"", "nested")[1])  # type: ignore[arg-type]
    assert not producer.flush(PATIENCE_S)
    return [*ids, "nested"]


def gone_through(reader: Any, acknowledge: bool) -> list[str]:
    """Ids of all units up to the last one, each opened as far as it goes; a stream tells of one that is broken while it is opened."""
    found: list[str] = []
    while found[-1:] != ["nested"]:
        unit = reader.receive(PATIENCE_S)
        assert unit is not None, f"stopped behind {found}"
        try:
            assert all(component.unit is None for component in unit.components)
        except uow.errors.DecodeError:
            assert isinstance(unit, uow.StreamedUnit)
            continue
        found.append(unit.id)
        if acknowledge:
            unit.acknowledge()
    return found


@pytest.mark.parametrize("call", ["units", "stream"])
def test_no_record_stops_a_consumer_and_none_is_met_twice_w12_w117(
    connection: uow.Connection, places: Topics, destination: str, poisoned: list[str], call: str
) -> None:
    read: Callable[..., Any] = getattr(connection, call)
    with read(destination, group=None, start="earliest") as alone:
        assert gone_through(alone, acknowledge=False) == poisoned
        assert alone.given_up == {"failed": len(poisoned) - 1}
    assert places.read(f"{destination}.errors") == []
    with read(destination, group=destination) as reader:
        assert gone_through(reader, acknowledge=True) == poisoned
        assert reader.given_up == {"failed": len(poisoned) - 1}
    moved = [headers_of(each) for each in places.read(f"{destination}.errors")]
    assert {each["uow-failure-reason"] for each in moved} == {b"failed"}
    assert len({each["uow-source"] for each in moved}) == len(moved) == len(poisoned) - 1
    with read(destination, group=destination) as again:
        assert again.receive(1.0) is None
        assert not again.given_up


def test_uow_read_goes_through_all_of_it(places: Topics, destination: str, poisoned: list[str], tmp_path: Path) -> None:
    config = tmp_path / "uow.toml"
    config.write_text(f'[application]\nid = "A"\nbootstrap_servers = "{places.bootstrap}"\n')
    for group in ([], ["--group", "reading"]):
        command = [
            sys.executable,
            "-m",
            "uow",
            "read",
            destination,
            "-c",
            config,
            "--count",
            str(len(poisoned)),
            *group,
        ]
        done = subprocess.run(command, timeout=stretched(60), check=False, capture_output=True, text=True)
        assert [line.split("  ")[0] for line in done.stdout.splitlines() if line[0] != " "] == poisoned
        assert (done.returncode, "Traceback" in done.stderr) == (1, False)  # something could not be read
        assert f"{destination}.units/0/0 " in done.stderr


def test_every_third_one_is_acknowledged_and_no_expired_unit_is_lost_w86(
    connection: uow.Connection, places: Topics, destination: str
) -> None:
    ids = ["a", "old1", "b", "old2", "c", "old3", "d", "e"]
    units = [
        replace(a_unit(each, [b"1"], destination), expires_at=1 if each.startswith("old") else None) for each in ids
    ]
    places.put(
        f"{destination}.units", *[(each.id.encode(), *unit_record(codec.frame(each), each.id)) for each in units]
    )
    with connection.units(destination, group=destination, expiration_policy="redirect", redelivery_limit=-1) as reader:
        found = [next(reader) for _ in range(5)]
        assert [each.id for each in found] == ["a", "b", "c", "d", "e"]
        assert places.read(f"{destination}.errors") == []
        found[2].acknowledge()
        assert [each.key() for each in places.read(f"{destination}.errors")] == [b"old1", b"old2", b"old3"]
        assert places.committed(f"{destination}.units", destination) == 6


def test_a_large_unit_that_expired_is_moved_whole_or_says_where_it_stayed_w86(
    connection: uow.Connection, places: Topics, destination: str
) -> None:
    """Larger than a client sends by default: the first goes to a topic as large as a worker makes it, the second finds no room."""
    roomy = f"{destination}-roomy"
    admin = places.admin
    from confluent_kafka.admin import NewTopic

    room = {"max.message.bytes": "10485760"}
    topics = [NewTopic(f"{roomy}.{each}", 1, config=room) for each in ("units", "errors")]
    for made in admin.create_topics(
        [*topics, NewTopic(f"{roomy}2.units", 1, config=room), NewTopic(f"{roomy}2.errors", 1)]
    ).values():
        made.result(PATIENCE_S)
    for name in (roomy, f"{roomy}2"):
        old = replace(a_unit("old", [b"v" * 3_000_000], name), expires_at=1)
        # without idempotence, a first try that the new topic refuses is sent again behind the second record
        settings = {"bootstrap.servers": places.bootstrap, "message.max.bytes": 10_000_000, "enable.idempotence": True}
        producer = Producer(settings)
        for unit in (old, a_unit("fresh", [b"1"], name)):
            value, headers = unit_record(codec.frame(unit), unit.id)
            producer.produce(f"{name}.units", value, unit.id.encode(), 0, headers=dict(headers))  # type: ignore[arg-type]
        assert not producer.flush(PATIENCE_S)
        with connection.units(name, group=name, expiration_policy="redirect", redelivery_limit=-1) as reader:
            assert (next(reader).id, reader.given_up) == ("fresh", {"expired": 1})
    (whole,), (stub,) = places.read(f"{roomy}.errors"), places.read(f"{roomy}2.errors")
    assert (whole.key(), len(whole.value() or b"") > 3_000_000) == (b"old", True)
    assert (stub.key(), stub.value()) == (None, None)
    assert headers_of(stub)["uow-error-value"] == f"too large, it stays at {roomy}2.units/0/0".encode()
    assert headers_of(stub)["uow-failure-reason"] == b"expired"


SMALL: Mapping[str, Any] = {
    "receive.message.max.bytes": 1_100_000,
    "fetch.max.bytes": 1_000_000,
    "fetch.message.max.bytes": 500_000,
}
"""Of a consumer that inflates little: the library ends at `receive.message.max.bytes`."""


def test_a_batch_that_the_library_will_not_inflate_is_passed_over(
    connection: uow.Connection, places: Topics, destination: str
) -> None:
    """The library asks for the same batch for ever. It holds two records, among them nothing that anybody could read."""
    topic, hop = f"{destination}.units", f"{destination}-hop"
    places.make(hop, partitions=1)
    bombs = Producer(
        {
            "bootstrap.servers": places.bootstrap,
            "message.max.bytes": 9_000_000,
            "compression.type": "zstd",
            "linger.ms": 500,
        }
    )
    for name in (topic, hop):
        value, headers = unit_record(codec.frame(a_unit("before", [b"1"], destination)), "before")
        places.put(name, (b"k", value, headers))
        for _ in range(2):
            bombs.produce(name, bytes(3_000_000), b"k", 0)
        assert not bombs.flush(PATIENCE_S)
        value, headers = unit_record(codec.frame(a_unit("behind", [b"1"], destination)), "behind")
        places.put(name, (b"k", value, headers))
    with connection.units(destination, group=destination, kafka=SMALL) as reader:
        for expected in ("before", "behind"):
            unit = reader.receive(PATIENCE_S)
            assert unit is not None
            assert unit.id == expected
            unit.acknowledge()
    with connection.messages(hop, group=destination, kafka=SMALL) as messages:
        found = [messages.receive(PATIENCE_S), messages.receive(PATIENCE_S)]
        assert [message.offset for message in found if message is not None] == [0, 3]
        assert messages.given_up["failed"] >= 1
    moved = [headers_of(each) for each in places.read(f"{destination}.errors")]
    assert {each["uow-error-case"] for each in moved} == {b"batch"}
    assert moved[0]["uow-source"] == f"{topic}/0/1".encode()


DIES = """
import os, signal, sys, uow
bootstrap, destination = sys.argv[1:]
# under its own name the next one takes the place of one that was killed at once, however long sessions last
with uow.connect(bootstrap, client_id=destination) as connection, connection.units(destination, group=destination) as reader:
    for unit in reader:
        print(unit.id, unit.delivery_count, flush=True)
        if unit.id.startswith("poison"):
            os.kill(os.getpid(), signal.SIGKILL)
        unit.acknowledge()
        if unit.id == "last":
            break
"""


def test_a_unit_that_kills_its_consumer_meets_the_limit_that_the_workers_were_told_w87(place: Destination) -> None:
    """The consumer is told nothing but broker and destination: the limit stands in the settings that a worker recorded. Two poisons, in order."""
    place.partitions = 1
    place.create(redelivery_limit=1)
    worker = place.worker()
    names_in_order = ["poison-1", "good", "poison-2", "last"]
    for name in names_in_order:
        place.send([(name, 1, True)])
    place.wait_delivered(4)
    assert worker.child.terminate(90) == 0
    place.is_damaged = True  # by what comes now: units in the errors topic
    said: list[str] = []
    for _ in range(10):
        died = subprocess.run(
            [sys.executable, "-c", DIES, place.bootstrap, place.name],
            timeout=stretched(90),
            check=False,
            capture_output=True,
            text=True,
        )
        said += died.stdout.splitlines()
        if died.returncode == 0:
            break
        assert died.returncode == -signal.SIGKILL, died.stderr
    assert said == ["poison-1 1", "poison-1 2", "good 1", "poison-2 1", "poison-2 2", "last 1"]
    moved = place.read(f"{place.name}.errors")
    assert [each.key() for each in moved] == [b"poison-1", b"poison-2"]
    assert {dict(each.headers())["uow-failure-reason"] for each in moved} == {b"redelivery-limit"}
    arguments = ["resubmit", place.name, "--from", "errors", "--all", "-c", str(place.config)]
    resubmitted = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert resubmitted.exit_code == 0, resubmitted.output
    place.worker()
    place.wait_delivered(6)
    again = [codec.decode_as(Unit, each.value()) for each in place.read(place.units)][4:]
    assert [[part.value for part in each.components] for each in again] == [
        [part.value for part in codec.decode_as(Unit, each.value()).components] for each in moved
    ]
    assert all(each.id in resubmitted.output and each.outcome is UnitOutcome.COMPLETE for each in again)


def test_the_policy_is_what_the_workers_recorded_and_an_argument_overrides_it_w86(place: Destination) -> None:
    place.partitions = 1
    place.create(expiration_policy="redirect")
    worker = place.worker()
    place.send([("a", 1, True)])
    place.wait_delivered(1)
    assert worker.child.terminate(90) == 0
    old = replace(a_unit("old", [b"1"], place.name), expires_at=1)
    for unit in (old, a_unit("last", [b"1"], place.name)):
        value, headers = unit_record(codec.frame(unit), unit.id)
        Topics(place.bootstrap).put(place.units, (unit.id.encode(), value, headers))
    place.is_damaged = True  # by those two
    with uow.connect(place.bootstrap) as connection:
        for options, moved in (({"expiration_policy": "discard"}, []), ({}, [b"old"])):
            with connection.units(place.name, group=f"{place.name}-{len(moved)}", **options) as reader:  # type: ignore[call-overload]
                units = [next(reader) for _ in range(2)]
                assert [each.id for each in units] == ["a", "last"]
                units[1].acknowledge()
                assert reader.given_up == {"expired": 1}
            assert [each.key() for each in place.read(f"{place.name}.errors")] == moved


def test_what_a_client_may_not_see_loses_nothing(
    connection: uow.Connection, places: Topics, destination: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No settings are recorded for this destination: units that expired are kept, and a warning says what to do."""
    old, last = replace(a_unit("old", [b"1"], destination), expires_at=1), a_unit("last", [b"1"], destination)
    for unit in (old, last):
        places.put(f"{destination}.units", (unit.id.encode(), *unit_record(codec.frame(unit), unit.id)))
    assert next(connection.units(destination, group=destination)).id == "last"
    assert [each.key() for each in places.read(f"{destination}.errors")] == [b"old"]
    assert f"the settings of destination {destination} are not known" in caplog.text
