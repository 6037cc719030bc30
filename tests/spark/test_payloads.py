"""Payloads as typed columns, where they are declared."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from uow.schemas.error_classes import ConfigError, StateCorruptedError
from uow.schemas.framing import confluent_header
from uow.schemas.registry import connect
from uow.spark_sink import payload_sink
from uow.spark_sink.maintenance import SETTINGS, maintain
from uow.spark_sink.payload_columns import Declaration
from uow.spark_sink.payload_sink import PayloadSink, payload_session
from uow.spark_sink.tables import PAYLOADS, ComponentsForm, DeltaTables, Table, columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


def order(*more: Any, amount: str = "int", name: str = "Order") -> str:
    fields = [{"name": "id", "type": "string"}, {"name": "amount", "type": amount}, *more]
    return json.dumps({"type": "record", "name": name, "namespace": "shop", "fields": fields})


def lines(*fields: str) -> Any:
    line = {"type": "record", "name": "Line", "fields": [{"name": each, "type": "string"} for each in fields]}
    return {"name": "lines", "type": {"type": "array", "items": line}}


NOTE = {"name": "note", "type": ["null", "string"]}


def body(definition: str, **values: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(definition)), values)
    return out.getvalue()


def single_object(definition: str, **values: Any) -> bytes:
    crc = fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(json.loads(definition)), "CRC-64-AVRO")
    return b"\xc3\x01" + bytes.fromhex(crc) + body(definition, **values)


class Payloads:
    """Tables with units of one component, appended without Kafka, and the stream from them."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.tables, self._units = payload_session(spark), DeltaTables(root, "shop"), 0
        self.tables.make(spark)

    def append(self, *values: bytes | None) -> None:
        kind = columns(Table.UNITS, ComponentsForm.NESTED)
        rows = []
        for value in values:
            part = dict.fromkeys(("component_id", "key", "headers", "timestamp", "source", "reference"))
            row = dict.fromkeys(kind.names)
            self._units += 1
            rows.append(
                row | {"unit_id": f"u{self._units}", "components": [{"seq": 1, "end": True, "value": value, **part}]}
            )
        self.spark.createDataFrame(rows, kind).coalesce(1).write.format("delta").mode("append").save(
            self.tables.path(Table.UNITS)
        )

    def sink(self, *files: Path, registry_url: str = "") -> PayloadSink:
        return PayloadSink(self.spark, self.tables, Declaration.of(files), registry_url)

    def run(self, *files: Path, registry_url: str = "") -> list[Any]:
        sink = self.sink(*files, registry_url=registry_url)
        sink.start(once=True).awaitTermination()
        rows = self.spark.read.format("delta").load(sink.path).orderBy("unit_id").collect()
        assert [row.position for row in rows] == [1] * len(rows)
        return [(row.payload and row.payload.asDict(recursive=True), row.reason) for row in rows]


def test_versions_of_a_payload_are_typed_columns_and_what_does_not_fit_stays_bytes_with_a_reason(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two versions in a batch, one in a later batch that grows a struct in an array, and every way in which a value can be wrong."""
    url = f"mock://{tmp_path.name}"
    registry, first = connect(url), order()
    second, third = order(NOTE, lines("sku")), order(lines("sku", "color"))
    (tmp_path / "order.avsc").write_text(first)

    def framed(definition: str, **values: Any) -> bytes:
        return confluent_header(registry.register("orders", definition)) + body(definition, **values)

    made = Payloads(spark, tmp_path)
    made.append(
        single_object(first, id="a", amount=1),
        framed(second, id="b", amount=2, note="n", lines=[{"sku": "s"}]),
        framed(order(amount="string"), id="c", amount="3"),
        framed(order(name="Other"), id="d", amount=4),
        body(first, id="e", amount=5),
        single_object(first, id="f", amount=6) + b"more",
        single_object(first, id="f", amount=6)[:-1],
        b"\xc3\x01" + b"12345678",
    )
    append = payload_sink.append_once

    def cut_off(*arguments: Any) -> None:
        append(*arguments)
        raise RuntimeError("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(payload_sink, "append_once", cut_off)
        with pytest.raises(Exception, match="cut off"):
            made.run(tmp_path / "order.avsc", registry_url=url)
    made.append(confluent_header(99) + b"x", None)
    found = made.run(tmp_path / "order.avsc", registry_url=url)
    none = {"note": None, "lines": None}
    # `u10` is sorted behind `u1`
    assert [payload for payload, _ in found] == [
        {"id": "a", "amount": 1} | none,
        None,
        {"id": "b", "amount": 2, "note": "n", "lines": [{"sku": "s"}]},
        None,
        None,
        {"id": "e", "amount": 5} | none,
        *[None] * 4,
    ]
    told = [why for _, why in found]
    wanted = (
        None,
        None,
        None,
        "amount is string, and int",
        "shop.Other",
        None,
        "no shop.Order",
        "no shop.Order",
        "fingerprint",
        "99",
    )
    assert [why if text is None else text in (why or "") for text, why in zip(wanted, told, strict=True)] == [
        None if text is None else True for text in wanted
    ]

    made.append(framed(third, id="g", amount=7, lines=[{"sku": "s", "color": "red"}]))
    later = made.run(tmp_path / "order.avsc", registry_url=url)
    assert [payload for payload, _ in later if payload] == [
        {"id": "a", "amount": 1} | none,
        {"id": "g", "amount": 7, "note": None, "lines": [{"sku": "s", "color": "red"}]},
        {"id": "b", "amount": 2, "note": "n", "lines": [{"sku": "s", "color": None}]},
        {"id": "e", "amount": 5} | none,
    ]
    assert "payloads" in made.tables.made()
    for setting, value in SETTINGS.items():
        made.spark.conf.set(setting, value)
    told = maintain(made.spark, made.tables, PAYLOADS, retain_ms=3_600_000)
    assert (told.files, told.rows, told.compacted) == (1, len(later), told.files_before)


def test_json_is_typed_columns_by_its_declaration_and_a_changed_one_stops_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Then the table is lost, which is refused: its checkpoint would count rows that it has not."""
    ddl = tmp_path / "order.ddl"
    ddl.write_text("id STRING, price DECIMAL(10, 2)")
    made = Payloads(spark, tmp_path)
    made.append(
        b'{"id": "a", "price": 1.10, "more": [1]}', b'{"id": "b', b'{"id": "c", "price": []}', b"", b"\xff", None
    )
    found = made.run(ddl)
    assert [str(payload["price"]) if payload else None for payload, _ in found] == ["1.10", *[None] * 5]
    assert [why is None for _, why in found] == [True, False, False, False, False, True]
    ddl.write_text("id BIGINT, price DECIMAL(10, 2)")
    made.append(b'{"id": 7}')
    payload, reason = made.run(ddl)[-1]
    assert payload is None
    assert "id is bigint, and string in the table" in reason
    ddl.write_text("id STRING, price DECIMAL(10, 2), note STRING")
    made.append(b'{"id": "h", "note": "n"}')
    assert made.run(ddl)[-1] == ({"id": "h", "price": None, "note": "n"}, None)
    sink = made.sink(ddl)
    sink.checkpoint.rename(tmp_path / "elsewhere")
    with pytest.raises(StateCorruptedError, match="is missing"):
        sink.start(once=True)


def test_a_declaration_that_cannot_be_used_is_wrong_configuration(tmp_path: Path) -> None:
    one, other, bad = tmp_path / "one.avsc", tmp_path / "other.avsc", tmp_path / "bad.avsc"
    one.write_text(order())
    other.write_text(order(name="Other"))
    bad.write_text('{"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}')
    for files in ([tmp_path / "none.avsc"], [one, other], [bad], [tmp_path / "x.txt"], []):
        with pytest.raises(ConfigError):
            Declaration.of(files)
    assert Declaration.of([one]).fingerprints().keys() >= {
        f"single-object:{single_object(order(), id='a', amount=1)[2:10].hex().upper()}"
    }
