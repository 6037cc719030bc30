"""Units by rule: what closes them by content, and how they leave (aggregation, 6.4 and 6.6)."""

from __future__ import annotations

import json
from decimal import Decimal
from io import BytesIO
from itertools import permutations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import fastavro
import pytest

from tests.core.rule_script import Table, r, row, sizes, told_by
from tests.core.script import clock, ms, refused, story
from uow.processor.core.conditions import Standing, asked, count_of
from uow.processor.core.gathered import NEVER, NOTHING
from uow.schemas.aggregates import element_of
from uow.schemas.error_classes import DecodeError, UnitTooLargeError
from uow.schemas.framing import single_object_header
from uow.schemas.records import Reason
from uow.topics.conditions import AnyOf, ByCommand, Bytes, Count, Predicate
from uow.topics.grouping import Tally
from uow.topics.policies import Shape, ValueFormat
from uow.topics.rules import Numbering

SCHEMAS = Path(__file__).parents[2] / "schemas"


class SumAtLeast:
    """`sum(value) >= most` (`Measure`)."""

    def __init__(self, most: int) -> None:
        self.most = most

    def measure(self, headers: object, value: bytes | None) -> tuple[Decimal, ...] | str:
        return (Decimal(int(value)),) if value is not None and value.isdigit() else f"no number: {value!r}"

    def holds(self, tallies: Any) -> bool:
        tally: Tally = tallies[0]
        return tally.total >= self.most


def values(made: Any) -> list[bytes | None]:
    return [each.value for each in made.components]


def test_bytes_closes_the_group_before_the_component_that_would_pass_it_b40() -> None:
    played = told_by(*(r(at=0, value="x" * 60) for _ in range(3)), rules=[row(complete_bytes=100)])
    assert sizes(played) == [("complete", "bytes", 1)] * 2
    assert played.open == {"low-stock/UK": "1"}
    assert [made.generation for made in played.units] == [1, 2]


def test_one_component_larger_than_all_is_a_unit_of_one_or_refused_b40() -> None:
    large = r(at=0, value="x" * 101)
    played = told_by(r(at=0, value="x"), large, r(at=0, value="x"), rules=[row(complete_bytes=100)])
    assert sizes(played) == [("complete", "bytes", 1)] * 2
    assert [b"uow-warning" in repr(said).encode() for said in played.unit_headers] == [False, True]
    strict = told_by(r(at=0, value="x"), large, rules=[row(complete_when=Bytes(100, strict=True))])
    assert strict.seen == [refused(large, UnitTooLargeError, "bytes")]
    assert strict.open == {"low-stock/UK": "1"}


def test_a_predicate_over_running_sums_completes_the_group_b41() -> None:
    summed = row(complete_when=Predicate("sum"), measures=[("predicate(sum)", SumAtLeast(500))])
    bad = r(at=0, value="many")
    played = told_by(r(at=0, value=200), r(at=0, value=200), bad, r(at=0, value=200), rules=[summed])
    assert played.seen[0] == refused(bad, DecodeError, "predicate")
    assert sizes(played) == [("complete", "predicate", 3)]


def test_the_condition_that_comes_first_names_the_reason() -> None:
    both = AnyOf((Count(2), Predicate("sum"), ByCommand()))
    summed = row(complete_when=both, measures=[("predicate(sum)", SumAtLeast(5))])
    assert sizes(told_by(r(at=0, value=9), r(at=0, value=1), r(at=0, value=1), rules=[summed])) == [
        ("complete", "predicate", 1),
        ("complete", "count", 2),
    ]
    assert (count_of(both), asked(ByCommand(), Standing(9, 0, 9, Reason.END, NOTHING), summed).at) == (2, NEVER)


def test_a_unit_has_the_components_of_its_group_in_order_b52() -> None:
    rows = [row("A", complete_count=3), row("B", complete_count=3)]
    played = told_by(*(r("AB"[number % 2], at=0, value=number) for number in range(6)), rules=rows)
    assert [values(made) for made in played.units] == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]


def test_order_by_a_field_or_by_source_b52() -> None:
    def rank(headers: Any, value: bytes | None) -> Any:
        return -int(value or 0)

    steps = [r(at=0, value=number, source_name=name) for number, name in ((1, "b"), (3, "a"), (2, "b"))]
    assert values(told_by(*steps, rules=[row(complete_count=3, rank=rank)]).units[0]) == [b"3", b"2", b"1"]
    by_source = row(complete_count=3, rule={"order_by": "source"})
    assert values(told_by(*steps, rules=[by_source]).units[0]) == [b"3", b"1", b"2"]


def xml(document: bytes | None) -> str:
    return ET.canonicalize(document or b"")


TEST = '<?xml version="1.0" encoding="ISO-8859-1"?>\n<!DOCTYPE Test>\n<Test xmlns:a="urn:a"><a:Greeting>Hallö</a:Greeting></Test><!-- end -->'


def test_xml_is_an_aggregation_around_the_root_elements_b53_b64() -> None:
    documents = [b"<Test>one</Test>", TEST.encode("iso-8859-1"), b'\xef\xbb\xbf<Test at=">"/>']
    uk = row(complete_count=3, value_format=ValueFormat.XML, target_topic="orders.uk")
    played = told_by(*(r(at=0, value=each) for each in documents), rules=[uk])
    (output,) = [each for each in played.outputs if each.topic == "orders.uk"]
    expected = '<Aggregation><Test>one</Test><Test xmlns:a="urn:a"><a:Greeting>Hallö</a:Greeting></Test><Test at="&gt;"></Test></Aggregation>'
    assert xml(output.value) == xml(expected.encode())
    assert (output.value or b"").startswith(b'<?xml version="1.0" encoding="UTF-8"?>')
    assert dict(output.headers)["uow-content-type"] == b"application/xml"


@pytest.mark.parametrize(
    "value",
    [
        b"<Test>",
        b"no document",
        b"<a/><b/>",
        b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>',
        b'<!DOCTYPE a SYSTEM "http://example.invalid/a.dtd"><a>&b;</a>',
        b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>',
        b'<?xml version="1.0" encoding="made-up"?><a/>',
        b'<?xml version="1.0" encoding="rot13"?><a/>',
        b"\xff\xfe\x00",
        b"\x00\xff",
        b"<a>\x00</a>",
        b"",
        None,
    ],
)
def test_a_value_that_is_no_document_spoils_no_unit_b54(value: bytes | None) -> None:
    made = element_of(value)
    (root,) = ET.fromstring(b"<Aggregation>%b</Aggregation>" % made)
    assert root.tag == "Value"
    assert b"root:" not in made


@pytest.mark.parametrize(
    "encoding", ["punycode", "idna", "unicode_escape", "raw_unicode_escape", "utf_8_sig", "palmos", "undefined"]
)
def test_an_encoding_of_no_documents_is_not_decoded_b54(encoding: str) -> None:
    """`punycode` takes time by the square of the length."""
    value = f"<?xml version='1.0' encoding='{encoding}'?><a>x</a>".encode()
    assert element_of(value).startswith(b"<Value")


@pytest.mark.parametrize(
    "encoding",
    ["utf-8", "UTF8", "ascii", "ISO-8859-1", "latin1", "iso-8859-15", "windows-1252", "koi8-r", "utf-7", "gb18030", "Big5",
     "EUC-JP", "euc-kr", "Shift_JIS", "iso-2022-jp", "macintosh"],
)  # fmt: skip
def test_encodings_of_documents_are_b54(encoding: str) -> None:
    value = f"<?xml version='1.0' encoding='{encoding}'?><a>x</a>".encode(encoding)
    assert element_of(value) == b"<a>x</a>"


def test_json_tells_the_row_and_the_origin_of_each_component_b55() -> None:
    uk = row(complete_count=2, value_format=ValueFormat.JSON)
    steps = r(at=1, arrived=0, input="stock.events/3/17", value='{"a": 1}'), r(at=2, value=b"\x00", source_name="shop")
    (output,) = [each for each in told_by(*steps, rules=[uk]).outputs if each.topic == "D.units"]
    told = json.loads(output.value or b"")
    assert {"unit_id", "generation", "outcome", "reason", "opened_at", "closed_at", "missing"} <= told.keys()
    assert (told["rule"], told["opened_at"]) == ("low-stock/UK@1", ms(0))
    first, second = told["components"]
    assert (first["source_name"], first["input"], first["arrived_at"]) == ("stock.events", "stock.events/3/17", ms(0))
    assert (second["source_name"], second["value"]) == ("shop", {"base64": "AA=="})


def test_avro_has_the_content_of_json_and_is_read_by_older_and_newer_schemas_b56() -> None:
    """The released schema, the present one, and one that a later release may have: each reads what each of the others wrote."""
    steps = r(at=1, value='{"a": 1}'), r(at=2, value=b"\x00", source_name="shop")
    by_format = {}
    for value_format in (ValueFormat.AVRO, ValueFormat.JSON):
        played = told_by(*steps, rules=[row(complete_count=2, value_format=value_format)])
        (by_format[value_format],) = [each for each in played.outputs if each.topic == "D.units"]
    told = json.loads(by_format[ValueFormat.JSON].value or b"")
    body = (by_format[ValueFormat.AVRO].value or b"").removeprefix(single_object_header("Unit"))
    present = json.loads((SCHEMAS / "definitions" / "unit.avsc").read_text())
    released = json.loads((SCHEMAS.parent / "tests" / "golden" / "unit-1.avsc").read_text())
    later = present | {"fields": [*present["fields"], {"name": "mood", "type": ["null", "string"], "default": None}]}
    read = fastavro.schemaless_reader(BytesIO(body), present)
    for writer, reader in permutations((released, present, later), 2):
        written = BytesIO()
        fastavro.schemaless_writer(written, writer, read)
        again = fastavro.schemaless_reader(BytesIO(written.getvalue()), writer, reader)
        assert {name: again[name] for name in read} == read
    assert {name: read[name] for name in ("id", "unit_id", "generation", "outcome", "reason", "missing")} == {
        name: told[name] for name in ("id", "unit_id", "generation", "outcome", "reason", "missing")
    }
    assert [each["value"] for each in read["components"]] == [b'{"a": 1}', b"\x00"]
    assert dict(by_format[ValueFormat.AVRO].headers)["uow-rule"] == told["rule"].encode()


def test_a_unit_that_cannot_be_encoded_fails_alone_after_its_attempts_b89() -> None:
    tried: list[bytes | None] = []

    def rank(headers: Any, value: bytes | None) -> Any:
        tried.append(value)
        return int(value or b"")

    rows = [
        row("bad", complete_count=2, rank=rank),
        row("good", complete_count=2),
        row("late", age_ms=5_000, rank=rank),
    ]
    steps = [r("bad", at=0, value="two"), r("good", at=0), r("bad", at=0, value="one"), r("good", at=0)]
    played = story(*steps, r("late", at=0, value="no"), clock(6), rules=Table(*rows))
    assert [said["uow-id"] for said in played.unit_headers] == [b"low-stock/good"]
    assert len(tried) == 2 * rows[0].delivery_attempts
    failed = [(one.id, one.outcome, one.reason, one.count) for one in played.outcomes]
    assert failed == [("low-stock/bad", "failed", "limit", 2), ("low-stock/late", "failed", "limit", 1)]
    errors = [each for each in played.outputs if each.topic == "D.errors"]
    assert [each.value for each in errors] == [b"two", b"one", b"no"]
    assert played.open == {}


def test_the_target_is_the_rows_and_the_key_is_the_group_b57() -> None:
    rows = [row("France", complete_count=1, target_topic="orders.france"), row("Mars", complete_count=1)]
    played = told_by(r("France", at=0), r("Mars", at=0), rules=rows)
    assert [(each.topic, each.partition, each.key) for each in played.outputs] == [
        ("orders.france", -1, b"low-stock/France"),
        ("D.units", 0, b"low-stock/Mars"),
    ]


def test_no_unit_exceeds_its_topic_where_numbers_are_assigned_b59() -> None:
    steps = [r(at=0, value=f"{number:02}" * 25_000) for number in range(30)]
    played = told_by(*steps, clock(100), rules=[row(age_ms=15_000)], record_limit_bytes=1_000_000)
    assert all(len(each.value or b"") <= 1_000_000 for each in played.outputs)
    assert [outcome for outcome, _, _ in sizes(played)] == ["complete", "partial"]
    together = [value for made in played.units for value in values(made)]
    assert together == [sent.value for sent in steps]


def test_shape_consecutive_has_real_components_only_b47_b60() -> None:
    uk = row(complete_count=5, age_ms=15_000, shape=Shape.CONSECUTIVE, target_topic="orders.uk")
    played = told_by(*(r(at=0) for _ in range(3)), clock(16), rules=[uk])
    run = [
        (each.topic, each.partition, dict(each.headers)["uow-pos"])
        for each in played.outputs
        if each.topic == "orders.uk"
    ]
    assert run == [("orders.uk", 0, b"1/3"), ("orders.uk", 0, b"2/3"), ("orders.uk", 0, b"3/3")]


def test_an_end_flag_and_a_count_may_both_complete_what_is_numbered() -> None:
    numbered = row(complete_count=2, rule={"sequence": Numbering.GIVEN})
    assert sizes(told_by(r(at=0, seq=7), r(at=0, seq=3), rules=[numbered])) == [("complete", "count", 2)]
