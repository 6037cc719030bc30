"""Units by rule in tables and files, from the topics that their rows name (B-03, B-53, B-57, B-203)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.spark.stage import Headers, Stage, c, plain
from tests.spark.test_file_sink import check_digests, files, problems, sink, sinking
from uow.schemas import formats
from uow.spark_sink.comparison import DifferenceKind
from uow.spark_sink.file_sink import write_again
from uow.spark_sink.recompute import Fate
from uow.spark_sink.tables import Table
from uow.spark_sink.unit_files import FileFormat, row_folder
from uow.spark_sink.views import register
from uow.topics.commands import Command, Verb
from uow.topics.manifests import Manifest, ReplyContext, RequestEntry
from uow.topics.policies import OutcomesPolicy, ValueFormat
from uow.topics.rules import Numbering, Parameter, ResolvedRow, Row, Rule

pytestmark = pytest.mark.timeout(600)

FORMATS = {"France": ValueFormat.XML, "UK": ValueFormat.JSON, "Spain": ValueFormat.AVRO, "ab": ValueFormat.XML}


def rows(destination: str) -> Sequence[ResolvedRow]:
    """A row for each format with a target of its own, and row `*`, whose units go to `D.units`."""
    rule = Rule("low-stock", 1, destination)
    named = [
        Row(
            rule.rule_id, name, 1, True, None, None, f"{destination}.orders.{name}", 3, age_ms=60_000, value_format=kind
        )
        for name, kind in FORMATS.items()
    ]
    return [ResolvedRow(rule, each) for each in (*named, Row(rule.rule_id, "*", 1, complete_count=2, age_ms=60_000))]


def order(name: str, number: int, value: bytes = b"<Test/>") -> tuple[bytes, bytes, Headers]:
    """A component that a router made for a row."""
    said = {"uow-id": f"low-stock/{name}", "uow-rule": f"low-stock/{name}@1", "uow-input": f"stock/0/{number}"}
    return f"low-stock/{name}".encode(), value, [(key, text.encode()) for key, text in said.items()]


@pytest.fixture(scope="module")
def traded(make_shared_stage: Callable[..., Stage]) -> Stage:
    """Three orders for each row, two more for France, which its age gives up, and traffic that is not by rule."""
    stage = make_shared_stage(rows=rows, closed_retention_ms=86_400_000)  # what closed an hour ago is remembered
    orders = [order(name, number, b"<Test>%d</Test>" % number) for number in range(3) for name in (*FORMATS, "*")]
    stage.send([*orders, c("jill", 1), c("jill", 2, end=True), plain("news")])
    stage.send([order("France", 10), order("France", 11)])
    stage.work()
    stage.tick()
    topic = f"{stage.names.destination}.orders.France"
    document = next(each for each in stage.read(topic) if b"<Aggregation>" in each.value())
    told = document.headers()
    foreign = [(key, b"of-another/x@1" if key == "uow-rule" else value) for key, value in told]
    broken = [pair for pair in told if pair[0] != "uow-size"]
    stage.put(topic, b"of another destination", document.value(), foreign)
    stage.put(topic, b"broken", document.value(), broken)
    stage.put(topic, b"of nobody", b"hello", [])
    stage.send([order("UK", 20), order("UK", 21)])  # stay open
    stage.work()
    of_input = [("uow-error-class", b"RoutingError"), ("uow-source", b"stock/0/99"), ("uow-input", b"stock/0/99")]
    stage.put(stage.names.rejected, b"x", b"y", [*of_input])
    stage.sink()
    return stage


def test_units_by_rule_are_rows_whatever_their_format_and_topic_b53_b57(traded: Stage) -> None:
    name = traded.names.destination
    found = {(row.topic, row.id, row.generation): row for row in traded.rows(Table.UNITS)}
    assert {key: (row.outcome, row.reason, row["count"], row.rule) for key, row in found.items()} == {
        **{
            (f"{name}.orders.{each}", f"low-stock/{each}", 1): ("complete", "count", 3, f"low-stock/{each}@1")
            for each in FORMATS
        },
        (f"{name}.orders.France", "low-stock/France", 2): ("partial", "age", 2, "low-stock/France@1"),
        (f"{name}.units", "low-stock/*", 1): ("complete", "count", 2, "low-stock/*@1"),
        (f"{name}.units", "low-stock/*", 2): ("partial", "age", 1, "low-stock/*@1"),
        (f"{name}.units", "jill", 1): ("complete", "end", 2, None),
    }
    documents = {
        key[1]: bytes(row.document) for key, row in found.items() if row.document and row.outcome == "complete"
    }
    xml = (
        b'<?xml version="1.0" encoding="UTF-8"?>\n<Aggregation><Test>0</Test><Test>1</Test><Test>2</Test></Aggregation>'
    )
    assert {key: value for key, value in documents.items() if key != "low-stock/UK"} == {
        "low-stock/France": xml,
        "low-stock/ab": xml,
    }
    assert [each.value for each in formats.from_json(documents["low-stock/UK"]).components] == [
        b"<Test>%d</Test>" % number for number in range(3)
    ]
    assert all(row.opened_at <= row.closed_at and row.bytes > 0 for row in found.values())
    parts = traded.rows(Table.COMPONENTS)
    assert {row.id for row in parts} == {"low-stock/UK", "low-stock/Spain", "low-stock/*", "jill"}
    assert traded.tables.rows(traded.spark)[Table.COMPONENTS] == len(parts)
    assert [bytes(row.key) for row in traded.rows(Table.PASSED) if row.topic.endswith("France")] == [
        b"of another destination",
        b"of nobody",
    ]
    [broken] = traded.rows(Table.UNREADABLE)
    assert (bytes(broken.key), "uow-size" in broken.reason) == (b"broken", True)
    register(traded.spark, traded.tables.root, [name])
    took = traded.spark.sql("SELECT id FROM completion_times WHERE took_ms IS NOT NULL").collect()
    assert len(took) == len(found)


@pytest.mark.drill
def test_a_supplier_gets_a_file_for_each_unit_in_the_folder_of_its_row_b03_b213(traded: Stage, tmp_path: Path) -> None:
    name = traded.names.destination
    sink(traded, tmp_path, FileFormat.AVRO)
    assert sorted([*path.split("/")[1:-2], path.rsplit(".")[-1]] for path in listed_paths(tmp_path)) == sorted(
        [
            [f"{name}.orders.%46rance", "%46rance", "xml"],
            [f"{name}.orders.%46rance", "%46rance", "xml"],
            [f"{name}.orders.%55%4b", "%55%4b", "json"],
            [f"{name}.orders.%53pain", "%53pain", "avro"],
            [f"{name}.orders.ab", "%61b", "xml"],
            [f"{name}.units", "%2a", "avro"],
            [f"{name}.units", "%2a", "avro"],
            [f"{name}.units", "avro"],
        ]
    )
    by_topic = {row.topic: row for row in traded.rows(Table.UNITS) if row.document and row.generation == 1}
    for path, data in files(tmp_path).items():
        if path.endswith(".json") or ("ab/" in path and path.endswith(".xml")):
            topic = next(topic for topic in by_topic if topic.endswith("UK" if path.endswith(".json") else ".ab"))
            assert data == bytes(by_topic[topic].document)
    folder = sinking(traded, tmp_path).folder_of(f"{name}.orders.France", row_folder("low-stock/France@1")).path
    check_digests(folder)
    assert {"uow-size" in why for _, why in problems(tmp_path)} == {True}

    taken = next(folder.glob("*/*.xml"))
    before = taken.read_bytes()
    taken.unlink()
    assert write_again([sinking(traded, tmp_path)], [taken.stem]) == [taken]
    assert taken.read_bytes() == before


def test_an_audit_computes_units_by_rule_again_and_says_no_to_each_damage_b203(traded: Stage) -> None:
    """Clean over open groups, what others write to a target, and what routers refused; then one damage of each kind, each named."""
    name = traded.names.destination
    first = traded.audit()
    assert first.totals == {DifferenceKind.UNREADABLE: 1}, first.examples  # the broken one
    assert (first.units, first.found[Fate.DELIVERED]) == ({"complete": 6, "partial": 2, "open": 1}, 19)

    def spoil_units(rows: list[dict[str, Any]]) -> None:
        of = {(row["id"], row["generation"]): row for row in rows}
        rows.remove(of["low-stock/Spain", 1])
        of["low-stock/France", 1]["document"] = bytes(of["low-stock/France", 1]["document"]).replace(b"0", b"9")
        of["low-stock/France", 2]["reason"] = "idle"
        of["low-stock/ab", 1]["document"] = bytes(of["low-stock/ab", 1]["document"]).replace(b"<Test>2</Test>", b"")
        of["low-stock/ab", 1]["count"] = 2
        of["low-stock/*", 2]["generation"] = 7

    def spoil_components(rows: list[dict[str, Any]]) -> None:
        of = {(row["id"], row["generation"], row["position"]): row for row in rows}
        place = ("id", "generation", "unit_id", "unit_topic", "unit_offset", "unit_partition")
        rows.append({**of["low-stock/UK", 1, 2], **{key: of["low-stock/*", 1, 1][key] for key in place}})
        rows.remove(of["low-stock/*", 1, 2])

    traded.tamper(Table.UNITS, spoil_units)
    traded.tamper(Table.COMPONENTS, spoil_components)
    told = {
        (each.what, each.source, each.id, each.detail)
        for each in traded.audit().examples
        if each.source != "unreadable"
    }
    assert {each for each in told if each[1] == "units"} == {
        (DifferenceKind.MISSING, "units", "low-stock/Spain", f"no row from {name}.orders.Spain"),
        (DifferenceKind.CONTENT, "units", "low-stock/France", "document"),
        (DifferenceKind.CONTENT, "units", "low-stock/France", "reason"),
        (DifferenceKind.CONTENT, "units", "low-stock/ab", "count, document"),
        (DifferenceKind.CONTENT, "units", "low-stock/*", "generation"),
    }
    assert {each for each in told if each[1] != "units"} == {
        (DifferenceKind.UNEXPECTED, "components", "low-stock/*", "belongs to no such unit"),
        (DifferenceKind.MISSING, "components", "low-stock/*", "no row"),
    }


@pytest.mark.drill
def test_an_audit_goes_on_with_groups_by_rule_that_were_open_b203(make_stage: Callable[..., Stage]) -> None:
    stage = make_stage(rows=rows, closed_retention_ms=86_400_000)
    stage.send([order(name, number) for number in range(5) for name in FORMATS])
    stage.work()
    stage.sink()
    first = stage.audit(incremental=True)
    assert (first.totals, first.units) == ({}, {"complete": 4, "open": 4}), first.examples
    stage.send([order(name, 5) for name in FORMATS])
    stage.work()
    stage.send([order("France", 6)])
    stage.work()
    stage.tick()
    stage.sink()
    since = stage.audit(incremental=True)
    assert (since.note, since.totals, since.units) == ("", {}, {"complete": 4, "partial": 1}), since.examples


CALLS = [(f"calls/{name}/{replies}", name, replies) for name in ("plain", *ValueFormat) for replies in range(3)]
"""In four formats a call with no reply, with one of two, and with both."""


def calling(destination: str) -> Sequence[ResolvedRow]:
    """A row for each of these formats; the units of two go to `D.units`, and a call may ask for `D.answers`."""
    rule = Rule("calls", 1, destination, group_key="request", sequence=Numbering.GIVEN)
    answers = (Parameter("reply_topics", 1, f"{destination}.answers"),)
    made = [("plain", None, None), *((kind.value, kind, f"{destination}.done") for kind in ValueFormat)]
    return [
        ResolvedRow(
            rule,
            Row("calls", name, 1, True, None, None, target, None, None, "manifest", age_ms=60_000, value_format=kind),
            (),
            answers,
        )
        for name, kind, target in made
    ]


def test_units_of_replies_are_in_the_tables_and_an_audit_computes_them_again_from_the_input_on_b80_b83_b91_b203(
    make_stage: Callable[..., Stage],
) -> None:
    """Manifests are the first that a partition is told of; some come after their replies; what is whole or too old is where its call wants it.
    Then a reply is lost by the router, and one is doubled."""
    stage = make_stage(rows=calling, inputs=["replies"], closed_retention_ms=86_400_000, outcomes=OutcomesPolicy.ALL)
    name = stage.names.destination
    (topic,) = stage.rules.inputs

    def announce(calls: Sequence[tuple[str, str, int]]) -> None:
        for group_id, row, replies in calls:
            key = group_id.encode()
            context = ReplyContext(f"{name}.answers", "place", "mark") if replies == 1 else ReplyContext()
            manifest = Manifest(row, (RequestEntry("f", "t"), RequestEntry("g", "t")), reply=context)
            stage.command(Command(key, Verb.MANIFEST, key, "a call", rule=f"calls/{row}@1", manifest=manifest))

    def route(group_id: str, row: str, number: int, place: str) -> None:
        said = {"uow-id": group_id, "uow-rule": f"calls/{row}@1", "uow-input": place, "uow-seq": str(number)}
        stage.send([(group_id.encode(), b"<r/>", [(key, text.encode()) for key, text in said.items()])])

    announce(CALLS[:6])
    *places, refused = stage.feed(topic, 13)
    given = iter(places)
    for group_id, row, replies in CALLS:
        for number in range(1, replies + 1):
            route(group_id, row, number, next(given))
    of_input = [
        ("uow-error-class", b"BadUnitIdError"),
        ("uow-source", refused.encode()),
        ("uow-input", refused.encode()),
    ]
    stage.put(stage.names.rejected, b"x", b"y", [*of_input])
    stage.work()
    stage.sink()
    first = stage.audit(incremental=True)
    assert (first.totals, first.units, first.left_out) == ({}, {"complete": 2, "open": 8}, 0), first.examples
    assert first.routed == {topic: 13}
    announce(CALLS[6:])
    lost, doubled = stage.feed(topic, 2)
    for _ in range(2):
        route(CALLS[-1][0], CALLS[-1][1], 2, doubled)  # late, so they are refused
    stage.work()
    stage.tick()
    stage.sink()
    since = stage.audit(incremental=True)
    assert [(each.what, each.source, each.place) for each in since.examples] == [
        (DifferenceKind.MISSING, topic, lost),
        (DifferenceKind.DOUBLED, topic, doubled),
    ]
    assert (since.units, since.left_out, since.routed) == ({"complete": 2, "partial": 8}, 0, {topic: 2})
    units = {row.id: row for row in stage.rows(Table.UNITS)}
    assert {key: (row["count"], row.topic == f"{name}.answers", bytes(row.key)) for key, row in units.items()} == {
        group_id: (replies, replies == 1, b"place" if replies == 1 else group_id.encode())
        for group_id, _, replies in CALLS
    }


def listed_paths(root: Path) -> list[str]:
    return [
        f"{manifest.parent.parent.relative_to(root)}/{line.split()[1]}"
        for manifest in sorted(root.rglob("*.sha256"))
        for line in manifest.read_text().splitlines()
    ]


@pytest.mark.parametrize(
    ("rule", "folder"),
    [
        ("", ""),
        ("low-stock/France@1", "%46rance"),
        ("low-stock/*@12", "%2a"),
        ("r/../..@1", "%2e.%2f.%2e"),
        ("r/ab@1", "%61b"),
        ("r/manifest@1", "%6danifest"),
        ("no row", "no%20row"),
    ],
)
def test_the_folder_of_a_row_is_a_name_beside_those_of_files_and_manifests_b03(rule: str, folder: str) -> None:
    assert row_folder(rule) == folder
