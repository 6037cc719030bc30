"""Tables `outcomes` and `answers`: each way of closing a group, counted by SQL, agrees with the topic (W-214, W-203).

A worker, plain Kafka clients, fastavro and the definitions in `schemas/definitions`; nothing of the project encodes or decodes here.
"""

from __future__ import annotations

import io
import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from fastavro.schema import fingerprint, to_parsing_canonical_form

from tests.kafka_broker import Kafka
from tests.processes import Process, wait_for
from uow.cli.main import main
from uow.schemas import codec
from uow.schemas.records import DeadlineWarning, Range, Reason
from uow.spark_sink.lineage import NOTE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

DEFINITIONS = Path(__file__).parents[2] / "schemas" / "definitions"
SLOW_S = 90.0
BY_HAND = {
    "id": "old",
    "unit_id": "5f3a",
    "generation": 3,
    "outcome": "partial",
    "reason": "component_expired",
    "opened_at": 1_700_000_000_123,
    "closed_at": 1_700_000_060_123,
    "count": 2,
    "bytes": 70,
    "missing": [{"first": 2, "last": 3}, {"first": 5, "last": 2147483647}],
    "rule": None,
    "command_id": None,
}


@pytest.fixture
def registry() -> Iterator[tuple[str, list[str]]]:
    """A schema registry: its URL, and the definitions by id, which counts from 1."""
    definitions: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = int(self.path.rpartition("/")[2])
            self.answer({"schema": definitions[number - 1]} if 0 < number <= len(definitions) else None)

        def do_POST(self) -> None:
            text = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["schema"]
            if text not in definitions:
                definitions.append(text)
            self.answer({"id": definitions.index(text) + 1})

        def answer(self, content: dict[str, Any] | None) -> None:
            self.send_response(404 if content is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(content or {}).encode())

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", definitions
        server.shutdown()


def configured(tmp_path: Path, broker: Kafka, name: str, registry_url: str) -> Path:
    path = tmp_path / "uow.toml"
    path.write_text(f"""
        [application]
        id = "{name}"
        bootstrap_servers = "{broker.bootstrap}"
        [worker]
        web = "off"
        [schemas]
        registry_url = "{registry_url}"
        [destinations."{name}"]
        handling_policy = "single_message_delivery"
        outcomes = "all"
        incomplete_expiration_ms = 1500
        max_components = 3
    """)
    return path


def in_topic(broker: Kafka, topic: str) -> list[Any]:
    """Committed records."""
    own = {"bootstrap.servers": broker.bootstrap, "group.id": "looking", "isolation.level": "read_committed"}
    consumer = Consumer({**own, "enable.partition.eof": True})
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
    found, ends = [], 0
    while ends < len(partitions):
        message = consumer.poll(30)
        assert message is not None, f"{topic} has no end"
        if message.error() is None:
            found.append(message)
        else:
            ends += 1
    consumer.close()
    return found


def definition(name: str) -> Any:
    return fastavro.parse_schema(json.loads((DEFINITIONS / f"{name}.avsc").read_text()))


def body(schema: Any, record: dict[str, Any]) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, schema, record)
    return written.getvalue()


def single_object(schema: Any, record: dict[str, Any]) -> bytes:
    mark = bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))
    return b"\xc3\x01" + mark + body(schema, record)


def play(producer: Producer, name: str) -> None:
    """Three complete units, two that lack components, one that is too large, one that a command cancels."""

    def component(id: str, seq: int, *, end: bool = False) -> None:
        marks = {"uow-id": id, "uow-seq": str(seq)} | ({"uow-end": "true"} if end else {})
        producer.produce(f"{name}.components", b"v", id.encode(), headers=[(k, v.encode()) for k, v in marks.items()])

    for number in range(3):
        component(f"whole-{number}", 1)
        component(f"whole-{number}", 2, end=True)
    for number in range(2):
        component(f"gap-{number}", 1)
        component(f"gap-{number}", 3, end=True)
    for seq in range(1, 5):
        component("large", seq)
    said = {"uow-command": "cancel", "uow-command-id": "c-1", "uow-id": "unwanted", "uow-why": "no money"}
    producer.produce(f"{name}.commands", None, b"unwanted", headers=[(k, v.encode()) for k, v in said.items()])
    assert producer.flush(30) == 0


def put_by_hand(producer: Producer, name: str) -> None:
    """An outcome as the first version wrote it, one by whatever comes after this one, and a warning; all without the registry."""
    mine = BY_HAND | {"destination": name}
    first = single_object(definition("released/outcome-1"), mine)
    latest = single_object(
        definition("outcome"), mine | {"id": "new", "last_arrived": {"seq": 4, "component_id": "c-4"}}
    )
    warned = codec.frame(
        DeadlineWarning("late", name, 1, 1, 8, 10, Reason.COMPONENT_EXPIRED, 2, (Range(2, 3),), ("orders",), "r/late@1")
    )
    for value in (first, latest, warned):
        producer.produce(f"{name}.outcomes", value, b"old", 0, headers=[("uow-kind", b"answer")])
    assert producer.flush(30) == 0


def test_counts_per_outcome_from_the_table_are_those_of_the_topic_w214(
    spark: SparkSession,
    broker: Kafka,
    unique: str,
    tmp_path: Path,
    spawn: Callable[..., Process],
    registry: tuple[str, list[str]],
) -> None:
    """In Confluent and in single-object framing, of both released versions; also after the tables or the checkpoint were lost, and from tables of a
    release that had no outcomes."""
    url, definitions = registry
    path = configured(tmp_path, broker, unique, url)
    assert CliRunner().invoke(main, ["topics", "create", "-c", str(path), "--partitions", "2"]).exit_code == 0
    worker = spawn("uow", "worker", "-c", path)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    play(producer, unique)
    topic = f"{unique}.outcomes"
    wait_for(lambda: len(in_topic(broker, topic)) == 8, SLOW_S, lambda: worker.output[-3000:])
    assert worker.terminate() == 0
    told = []
    for record in in_topic(broker, topic):
        assert record.value()[:1] == b"\x00"
        writer = fastavro.parse_schema(json.loads(definitions[int.from_bytes(record.value()[1:5], "big") - 1]))
        told.append((writer["name"], fastavro.schemaless_reader(io.BytesIO(record.value()[5:]), writer, None)))
    expected = Counter(record["outcome"] for name, record in told if name == "uow.Outcome")
    assert expected == {"complete": 3, "expired": 2, "failed": 1, "cancelled": 1}
    put_by_hand(producer, unique)
    expected["partial"] = 2

    tables = tmp_path / "tables"
    checkpoint = tables / "_checkpoints" / unique

    def sink() -> Any:
        return CliRunner().invoke(main, ["sink", "-c", str(path), "--tables", str(tables), "--once", "--json"])

    def rows(query: str) -> list[Any]:
        at = f"delta.`{tables / unique}"
        return spark.sql(
            query.format(outcomes=f"{at}/outcomes`", answers=f"{at}/answers`", warnings=f"{at}/warnings`")
        ).collect()

    def counts_agree() -> bool:
        assert [tuple(row) for row in rows("SELECT command_id, verb, id, done, why FROM {answers}")] == [
            ("c-1", "cancel", "unwanted", True, "no money")
        ]
        return dict(map(tuple, rows("SELECT outcome, count(*) FROM {outcomes} GROUP BY outcome"))) == dict(expected)

    result = sink()
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)[unique] == {
        "units": 3,
        "components": 6,
        "rejected": 4,
        "passed": 0,
        "unreadable": 0,
        "outcomes": 9,
        "answers": 1,
        "warnings": 1,
    }
    assert counts_agree()
    told_once = "SELECT id, reason, count, missing.first, sources, rule, unix_millis(deadline_at) FROM {warnings}"
    assert [tuple(row) for row in rows(told_once)] == [
        ("late", "component-expired", 2, [2], ["orders"], "r/late@1", 10)
    ]
    found = {row.id: row.asDict(recursive=True) for row in rows("SELECT * FROM {outcomes}")}
    for record in (record for name, record in told if name == "uow.Outcome"):
        same, times = (
            ("outcome", "reason", "count", "bytes", "missing", "generation", "unit_id"),
            ("opened_at", "closed_at"),
        )
        assert {name: found[record["id"]][name] for name in same} == {name: record[name] for name in same}
        assert [found[record["id"]][name].replace(tzinfo=UTC) for name in times] == [record[name] for name in times]
    assert found["gap-0"]["missing"] == [{"first": 2, "last": 2}]
    assert [found["old"][name] for name in ("reason", "bytes")] == ["component-expired", 70]
    last = rows("SELECT id, last_arrived.component_id FROM {outcomes} WHERE id IN ('old', 'new') ORDER BY id")
    assert [tuple(row) for row in last] == [("new", "c-4"), ("old", None)]

    for batch in (checkpoint / "offsets").glob("[0-9]*"):
        *head, offsets = batch.read_text().splitlines()
        read = json.loads(offsets)
        del read[topic]
        (checkpoint / "offsets" / f".{batch.name}.crc").unlink()
        batch.write_text("\n".join([*head, json.dumps(read)]))
    (checkpoint / NOTE).unlink()
    for table in ("outcomes", "answers", "warnings"):
        shutil.rmtree(tables / unique / table)
    assert sink().exit_code == 0, "the checkpoint is that of a release that did not carry the topic"
    assert counts_agree()
    shutil.rmtree(checkpoint)
    assert sink().exit_code == 0
    assert counts_agree()
    shutil.rmtree(tables / unique / "outcomes")
    result = sink()
    assert (result.exit_code, "missing below" in result.stderr) == (1, True), result.output
