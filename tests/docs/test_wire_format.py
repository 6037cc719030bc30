"""`docs/wire-format.md` defines every name that is written or read, and its examples are what the code computes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from uow.client.tracing import TRACEPARENT, TRACESTATE
from uow.processor.core.changes import Tail
from uow.processor.core.virtual_message import NAMESPACE, UnitMaker
from uow.schemas.digest import UnitDigest
from uow.schemas.error_classes import REFUSALS
from uow.schemas.records import Reason, UnitOutcome
from uow.topics import commands, headers
from uow.topics.catalogue import DestinationTopics
from uow.topics.commands import Verb
from uow.topics.headers import ALIASES, OWN, UNIT_ONLY, Reading
from uow.topics.partitioner import murmur2, partition_for

PAGE = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text("utf-8")
ROWS = [[cell.strip() for cell in row.split(" | ")] for row in re.findall(r"^\| (.+) \|$", PAGE, re.MULTILINE)]
DEFINED = {name for row in ROWS for name in re.findall(r"`([^`]+)`", row[0])}
"""Names in the first cell of a table's row: what the row defines."""


def constants() -> Iterator[str]:
    for module in (headers, commands):
        for value in vars(module).values():
            if isinstance(value, str) and re.fullmatch(r"uo[wo]-[a-z-]*[a-z]", value):
                yield value


def section(title: str) -> str:
    found = re.search(rf"^##+ {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def table(title: str) -> list[list[str]]:
    """Cells of a section's rows, without the back quotes."""
    rows = re.findall(r"^\| (.+) \|$", section(title), re.MULTILINE)
    return [[cell.strip().strip("`") for cell in row.split(" | ")] for row in rows]


def test_headers_are_found_in_the_code() -> None:
    assert len(set(constants())) > 50


@pytest.mark.parametrize("name", sorted({*constants(), TRACEPARENT, TRACESTATE} - {headers.ORIGIN_KIND}))
def test_header_has_a_row(name: str) -> None:
    assert name in DEFINED


@pytest.mark.parametrize("name", sorted(name for family in ALIASES.values() for name in family))
def test_header_of_another_system_is_told(name: str) -> None:
    assert f"`{name}`" in section("Headers of other systems")


def test_what_only_units_carry_is_listed_where_it_is_renamed() -> None:
    told = section("What passes through")
    assert {name for name in {*UNIT_ONLY, OWN} if f"`{name}`" not in told} == set()


@pytest.mark.parametrize("error", REFUSALS)
def test_error_class_is_told_with_its_cases(error: str) -> None:
    rows = [row for row in section("Error classes").splitlines() if row.startswith(f"| `{error}` |")]
    assert len(rows) == 1
    assert [case for case in REFUSALS[error].CASES if f"`{case}`" not in rows[0] and case] == []


@pytest.mark.parametrize("word", [*Verb, *UnitOutcome, *Reason])
def test_word_of_a_header_is_told(word: str) -> None:
    assert f"`{word}`" in PAGE


def test_every_topic_of_a_destination_is_told() -> None:
    names = [name for name, kind in vars(DestinationTopics).items() if isinstance(kind, property)]
    topics = DestinationTopics("A", "D")
    assert [name for name in names if getattr(topics, name) not in DEFINED] == []


def test_partitions_are_those_of_the_partitioner() -> None:
    rows = [row for row in table("Test vectors") if len(row) == 7 and row[0] != "Key" and "-" * 3 not in row]
    assert len(rows) > 3
    for key, raw, digits, cleared, *partitions in rows:
        data = key.encode()
        assert (data.hex(" "), f"{murmur2(data):08x}", str(murmur2(data) & 0x7FFFFFFF)) == (raw, digits, cleared)
        assert [partition_for(data, count) for count in (4, 12, 97)] == [int(each) for each in partitions]


def test_the_partitioner_is_worked_out_step_by_step() -> None:
    told = [row[1] for row in table("The partitioner") if len(row) == 2 and row[0] != "Step" and "---" not in row]
    key, mask, factor = b"order-1", 0xFFFFFFFF, 0x5BD1E995
    steps = [0x9747B28C ^ len(key)]
    k = [int.from_bytes(key[:4], "little")]
    k += [k[0] * factor & mask]
    k += [k[1] ^ k[1] >> 24]
    k += [k[2] * factor & mask]
    h = [steps[0] * factor & mask]
    h += [h[0] ^ k[3]]
    h += [(h[1] ^ int.from_bytes(key[4:], "little")) * factor & mask]
    h += [(h[2] ^ h[2] >> 13) * factor & mask]
    h += [h[3] ^ h[3] >> 15]
    assert h[-1] == murmur2(key)
    cleared = h[-1] & 0x7FFFFFFF
    assert told == [
        *(f"{each:08x}" for each in [*steps, *k, *h]),
        str(cleared),
        ", ".join(str(cleared % count) for count in (4, 12, 97)),
    ]


def test_identity_of_a_unit_is_computed_as_told() -> None:
    assert str(NAMESPACE) in section("Test vectors")
    maker = UnitMaker("megazon", "megazon.components", 3, Reading())
    rows = {row[1]: row[2] for row in table("Test vectors") if row[0].startswith("megazon`, `order-1")}
    by_id, by_place = "0b8e6a1e-6a4e-4f0e-9f53-0d7ad53dbbc1", "megazon.components/3/41"
    assert rows == {
        by_id: maker.unit_id(b"order-1", 1, Tail(by_id.encode(), 41)).decode(),
        by_place: maker.unit_id(b"order-1", 1, Tail(None, 41)).decode(),
    }


def test_digest_and_trace_are_computed_as_told() -> None:
    digest = UnitDigest()
    for value in (b'{"item":"flash drive"}', b'{"item":"book"}'):
        assert f"`{value.decode()}`" in section("Test vectors")
        digest.add(value)
    assert f"`{digest.header().decode()}`" in section("Test vectors")
    assert f"for `order-1` `{sha256(b'order-1').hexdigest()[:32]}`" in section("Test vectors")
