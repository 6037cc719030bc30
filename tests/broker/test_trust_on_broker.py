"""Through worker processes and a real broker: nothing forged is a unit to any reader, and a unit is the same in every shape (W-94 to W-96, W-121)."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from confluent_kafka import Producer

import uow
from tests.broker.worker_places import Destination
from tests.processes import PATIENCE_S, Process, wait_for
from uow.topics.headers import is_unit

pytestmark = pytest.mark.timeout(300)
Pairs = list[tuple[str, bytes | None]]

FORGED: Pairs = [
    ("uow-id", b"real"),
    ("uow-kind", b"unit"),
    ("uow-unit-id", b"6f0f3b64-6f2e-5c0b-8f0d-0c7c2b0a8d11"),
    ("uow-generation", b"1"),
    ("uow-outcome", b"complete"),
    ("uow-reason", b"end"),
    ("uow-size", b"1"),
    ("uow-own-x", b"1"),
]
SENT: list[tuple[bytes | None, bytes, Pairs]] = [
    (
        b"own key",
        b"one",
        [
            ("uow-id", b"real"),
            ("uow-seq", b"1"),
            ("uow-reply-to", b"answers"),
            ("uow-correlation-id", b"k-1"),
            ("uow-priority", b"1"),
            ("uow-hops", b"gadget-planet,widget-world"),
            ("trace", b"\x00\xff"),
            ("trace", None),
            ("uow-own-x", b"mine"),
            ("uow-kind", b"unit"),
        ],
    ),
    (None, b"two", [("uow-id", b"real"), ("uow-seq", b"2"), ("uow-end", b"true"), ("colour", b"red")]),
]


@pytest.mark.parametrize("shape", ["envelope", "consecutive", "reference"])
def test_what_is_forged_is_passed_to_every_reader_and_what_is_real_is_the_same_in_every_shape_w95_w96(
    place: Destination, spawn: Callable[..., Process], shape: str
) -> None:
    place.partitions = 1
    place.create(shape=shape)
    place.worker()
    put(place, [(b"real", b"no unit", FORGED), (b"real", b"no unit either", [*FORGED, ("uow-pos", b"1/1")]), *SENT])
    made = wait_for_records(place, 4 if shape == "consecutive" else 3)
    copied = [(record.key(), record.value(), record.headers()) for record in made if is_unit(record.headers())]
    put(place, [*copied, (b"last", b"", [("uow-id", b"last"), ("uow-seq", b"1"), ("uow-end", b"true")])])
    all_records = wait_for_records(place, len(made) + len(copied) + 1)
    genuine = [record for record in all_records if is_unit(record.headers())]
    assert [record.key() for record in genuine] == [b"real"] * len(copied) + [b"last"]

    with uow.connect(place.bootstrap) as connection:
        with connection.units(place.name, group="units", start="earliest") as reader:
            real, last = islice(reader, 2)
        assert [(each.record.key, each.value, [*each.headers]) for each in real.components] == SENT
        assert [(name, value) for name, value in real.headers if not name.startswith("uow-")] == [("colour", b"red")]
        assert (real.components[0].end, real.components[1].end, last.id) == (False, True, "last")
        with connection.stream(place.name, group="stream", start="earliest") as stream:
            streamed = [(unit.id, [each.value for each in unit.components]) for unit in islice(stream, 2)]
        assert streamed == [("real", [b"one", b"two"]), ("last", [b""])]
        with connection.units(place.name, group="all", start="earliest", include_plain=True) as everything:
            passed = [each for each in islice(everything, 4 + len(copied)) if isinstance(each, uow.Message)]
        assert [each.value for each in passed[:2]] == [b"no unit", b"no unit either"]
        assert all(
            name in ("uow-id", "uow-origin-kind") or name.startswith("uow-origin-") for name, _ in passed[0].headers
        )
        opened = passed[2].unit
        assert (opened is None) == (shape == "consecutive")
        assert opened is None or (opened.id, opened.unit_id) == ("real", real.unit_id)
    printed = spawn("uow", "read", place.name, "-c", place.config, "--json")
    assert printed.wait(60) == 0, printed.output
    assert [json.loads(line)["id"] for line in printed.output.splitlines() if line.startswith("{")] == ["real", "last"]


def put(place: Destination, records: list[tuple[Any, Any, Any]]) -> None:
    producer = Producer({"bootstrap.servers": place.bootstrap, "enable.idempotence": True})
    for key, value, headers in records:
        producer.produce(place.components, value, key, 0, headers=headers)
    assert not producer.flush(PATIENCE_S)


def wait_for_records(place: Destination, count: int) -> list[Any]:
    found: list[Any] = []

    def there() -> bool:
        found[:] = place.read(place.units)
        return len(found) >= count

    wait_for(there)
    assert len(found) == count
    return sorted(found, key=lambda record: int(record.offset()))


def test_a_destination_that_forms_no_units_hands_none_out_w65(
    place: Destination, spawn: Callable[..., Process]
) -> None:
    """What is sent there comes out unchanged; its readers know by the settings that its workers recorded."""
    place.partitions = 1
    place.configure()
    place.config.write_text(place.config.read_text().replace("single_message_delivery", "pass_through"))
    made = spawn("uow", "topics", "create", "-c", place.config, "--partitions", "1")
    assert made.wait(90) == 0, made.output
    place.is_created = True
    place.worker()
    claims: Pairs = [("uow-id", b"a"), ("uow-kind", b"unit")]
    put(place, [(b"a", b"no unit", claims)])
    (passed,) = wait_for_records(place, 1)
    assert passed.headers() == claims
    with (
        uow.connect(place.bootstrap) as connection,
        connection.units(place.name, group="all", start="earliest", include_plain=True) as reader,
    ):
        message = next(reader)
        assert isinstance(message, uow.Message)
        assert message.headers == claims
    printed = spawn("uow", "read", place.name, "-c", place.config)
    assert printed.wait(60) == 0, printed.output
    assert "a" not in printed.output.split()
