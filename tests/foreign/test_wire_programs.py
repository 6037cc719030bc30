"""The wire format in Java, Go and Node, written from `docs/wire-format.md` alone, agrees with ours. No broker is needed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from uuid import UUID

import pytest

from tests.foreign.foreign_programs import BUILD_S, LANGUAGES, ForeignProgram, hex_lines, wire_program
from tests.golden.test_producer_vectors import FOLDER, IDS
from tests.golden.wire_examples import EXAMPLES
from uow.schemas.codec import encode
from uow.schemas.framing import single_object_header
from uow.schemas.records import Range, Unit
from uow.topics.headers import Marks, Reading
from uow.topics.partitioner import partition_for

pytestmark = pytest.mark.timeout(BUILD_S + 20)
GOLDEN = FOLDER.parent


@pytest.fixture(scope="module", params=LANGUAGES)
def wire(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ForeignProgram:
    return wire_program(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("group_id", ["order-7", "bücher-日本", 'a "quoted" one\\'])
def test_components_are_what_a_worker_reads_w17_w109(wire: ForeignProgram, group_id: str) -> None:
    items = ["flash drive", "book", 'läva "lamp"']
    records = wire.lines("records", "megazon", 12, group_id, *items)
    assert [record["value"] for record in records] == items
    assert {record["topic"] for record in records} == {"megazon.components"}
    assert {record["key"] for record in records} == {group_id}
    assert {record["partition"] for record in records} == {partition_for(group_id.encode(), 12)}
    read = [Reading().read([(name, value.encode()) for name, value in each["headers"]]) for each in records]
    identities = {marks.component_id for marks in read if isinstance(marks, Marks) and marks.component_id is not None}
    assert len({UUID(each.decode()) for each in identities}) == 3
    assert [marks._replace(component_id=None) for marks in read if isinstance(marks, Marks)] == [
        Marks(group_id.encode(), number, number == 3) for number in (1, 2, 3)
    ]


@pytest.mark.parametrize("count", ["1", "4", "12", "97"])
def test_keys_go_where_all_clients_send_them_w109(wire: ForeignProgram, count: str) -> None:
    said = json.loads((FOLDER / "java-kafka-clients.json").read_text())["partitions"][count]
    assert wire.lines("partitions", count, stdin=hex_lines(IDS)) == said


def told(unit: Unit) -> dict[str, object]:
    return {
        "id": unit.id,
        "unit_id": unit.unit_id,
        "outcome": unit.outcome.value,
        "missing": [[each.first, each.last] for each in unit.missing],
        "components": [[each.seq, None if each.value is None else each.value.decode()] for each in unit.components],
    }


def test_units_are_read_w95_w118(wire: ForeignProgram) -> None:
    released = EXAMPLES["Unit", 1]
    assert isinstance(released, Unit)
    first = released.components[0]
    many = tuple(replace(first, seq=number, value=f"wért {number}".encode() * number) for number in range(1, 300))
    units = [
        released,
        replace(released, components=many, missing=(), expires_at=None),
        replace(released, components=(), missing=tuple(Range(2 * each, 2 * each) for each in range(1, 200))),
    ]
    values = [single_object_header("Unit") + encode(unit) for unit in units]
    assert values[0] == bytes.fromhex(re.sub(r"\s", "", (GOLDEN / "unit-1.hex").read_text()))
    assert wire.lines("unit", stdin=hex_lines(values)) == [told(unit) for unit in units]


def test_blocks_that_say_their_size_are_read_w95(wire: ForeignProgram) -> None:
    """Other Avro libraries may write an array in several blocks, with a negative count and the size in bytes."""
    empty = replace(EXAMPLES["Unit", 1], components=(), missing=())  # type: ignore[type-var]
    framed = single_object_header("Unit") + encode(empty)
    assert framed.endswith(b"\0\0")
    blocks = bytes([0x01, 4, 4, 4]) + bytes([2, 8, 10]) + b"\0"  # 1 range of 2 bytes: 2 to 2; then 1 more: 4 to 5
    [unit] = wire.lines("unit", stdin=hex_lines([framed[:-2] + blocks + b"\0"]))
    assert unit["missing"] == [[2, 2], [4, 5]]


@pytest.mark.parametrize("value", [b"", b'{"schema": "uow.Unit"}', single_object_header("Outcome") + b"\0" * 40])
def test_what_is_no_unit_is_refused(wire: ForeignProgram, value: bytes) -> None:
    assert wire.status("unit", stdin=hex_lines([value or b"\0"])) != 0


def test_a_unit_that_is_cut_off_is_refused(wire: ForeignProgram) -> None:
    value = single_object_header("Unit") + encode(EXAMPLES["Unit", 1])
    assert wire.status("unit", stdin=hex_lines([value[:-5]])) != 0


def test_wrong_usage_is_told(wire: ForeignProgram) -> None:
    assert wire.status("units") == 2
