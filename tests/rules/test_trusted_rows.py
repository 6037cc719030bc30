"""Rows and sets of rules that somebody wrote to `A-rules`: read like any input, and believed only where the rules themselves say so."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fake_record import FakeRecord
from tests.rules.low_stock import ROWS, RULE, TABLES, changed
from tests.rules.test_rule_log import PLACE, POLICY, Log, reader
from uow.processor.kafka.router_desk import LoggedRules
from uow.processor.kafka.rule_log import ROW_SHARE
from uow.processor.rules.columns import WrongRows
from uow.processor.rules.mirror import mirrored, read_mirror, version_alone
from uow.processor.rules.rule_set import RuleSet, RuleTables
from uow.processor.rules.trusted_rows import TrustedRows
from uow.schemas.error_classes import DecodeError
from uow.topics.grouping import GroupPolicy
from uow.topics.rules import RULES_KEY, Parameter, ResolvedRow, Source

EVIL = "stolen.units"
UK = ResolvedRow(RULE, ROWS[1])
SECOND = changed(2, rows=(replace(ROWS[1], version=2, complete_count=7),))
FULL = ResolvedRow(RULE, ROWS[0], (Source("low-stock", "invoice", 1),), (Parameter("reply_hold_ms", 1, "5"),))


class Bench:
    """A worker's table of rows: its source has some versions by now, and `A-rules` what a test wrote."""

    def __init__(self, tables: RuleTables, *, is_database: bool = True) -> None:
        self.tables, self.log = tables, Log()
        self.newer: RuleTables | None = None
        self.looks = 0
        rows = reader(self.log)
        trusted = TrustedRows(lambda: self.tables, is_database, rows.latest, {"supply": POLICY}, "shop", self.look)
        self.table = LoggedRules(rows, "supply", POLICY, trusted)

    def look(self, meanwhile: object) -> None:
        """The source as it is now, which this worker had not looked at yet."""
        self.looks += 1
        self.tables = self.tables if self.newer is None else self.newer

    def write(self, *rows: ResolvedRow, mirror: RuleTables | None = None) -> None:
        if mirror is not None:
            self.log.append(RULES_KEY, mirrored(RuleSet(mirror)))
        for row in rows:
            self.log.append(row.name.encode(), row.encode())

    def policy(self, name: str) -> GroupPolicy | None:
        self.table.catch_up(lambda: None)
        return self.table.policy(name)


def forged(row: ResolvedRow) -> ResolvedRow:
    """The same name, and units that go to the attacker."""
    return replace(row, row=replace(row.row, target_topic=EVIL))


def row_of(tables: RuleTables, name: str) -> ResolvedRow:
    found = {each.resolved.name: each.resolved for each in RuleSet(tables).row_versions() if each.resolved is not None}
    return found[name]


BOTH = TABLES.with_rows_of(SECOND)
UK_2 = row_of(BOTH, "low-stock/UK@2")


@pytest.mark.parametrize("is_database", [True, False])
def test_a_row_that_is_written_before_its_version_exists_is_not_obeyed_and_never_takes_its_place(
    is_database: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(TABLES, is_database=is_database)
    bench.write(forged(UK_2))
    assert bench.policy(UK_2.name) is None
    assert f"row {UK_2.name}: not believed: there is no version 2 of the rules yet" in caplog.text
    bench.tables = BOTH
    bench.write(UK_2, mirror=BOTH)
    policy = bench.policy(UK_2.name)
    assert policy is not None
    assert policy.target_topic == "orders.uk"


def test_a_database_says_that_there_never_was_such_a_row() -> None:
    bench = Bench(BOTH)
    strange = ResolvedRow(RULE, replace(ROWS[1], routing_name="Mars", target_topic=EVIL))
    bench.write(strange)
    assert bench.policy(strange.name) is None
    bench.write(UK, UK_2)
    assert [bench.policy(row.name) is not None for row in (UK, UK_2)] == [True, True], "earlier versions are believed"


def test_a_worker_whose_copy_of_the_file_is_older_believes_what_routers_wrote_as_the_later_version() -> None:
    bench = Bench(TABLES, is_database=False)
    bench.write(UK_2, mirror=BOTH)
    policy = bench.policy(UK_2.name)
    assert policy is not None
    assert policy.rule == UK_2.name


def test_rows_of_an_earlier_version_than_the_file_are_believed_if_a_version_could_have_them() -> None:
    later = replace(
        BOTH, changes=BOTH.changes[1:], rules=(replace(RULE, version=2),), rows=(replace(ROWS[1], version=2),)
    )
    bench = Bench(later, is_database=False)
    bench.write(UK, mirror=later)
    assert bench.policy(UK.name) is not None
    for row in (
        replace(ROWS[2], target_topic="shop-rules"),
        replace(ROWS[2], target_topic="../x"),
        replace(ROWS[2], complete_count=-1),
        replace(ROWS[2], complete_count=2**60),
        replace(ROWS[2], complete_when="count("),
    ):
        bench = Bench(later, is_database=False)
        bench.write(ResolvedRow(RULE, row), mirror=later)
        assert bench.policy("low-stock/Spain@1") is None, row


def test_a_row_of_an_earlier_version_is_believed_though_one_of_its_conditions_never_holds() -> None:
    rule = replace(RULE, delay_item=None)
    row = replace(ROWS[1], give_up_when="component_deadline", age_ms=None)
    later = replace(
        BOTH, changes=BOTH.changes[1:], rules=(replace(rule, version=2),), rows=(replace(ROWS[1], version=2),)
    )
    bench = Bench(later, is_database=False)
    bench.write(ResolvedRow(rule, row), mirror=later)
    assert bench.policy(UK.name) is not None


def test_a_group_keeps_its_row_whoever_knows_it_by_now() -> None:
    bench = Bench(TABLES)
    bench.write(UK_2)
    assert bench.policy(UK_2.name) is None
    kept = bench.table.kept(UK_2.name)
    assert kept is not None
    assert (kept.rule, bench.table.kept("low-stock/none@1")) == (UK_2.name, None)


def test_a_row_that_nobody_can_judge_concerns_itself_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(TABLES)
    bench.write(UK)

    def broken(*arguments: object) -> Any:
        raise ValueError("All strings must be XML compatible")

    monkeypatch.setattr("uow.processor.rules.row_table.group_policy", broken)
    assert bench.policy(UK.name) is None
    assert bench.policy(UK.name) is None
    (told,) = caplog.records
    assert told.exc_info, "once, with where it happened"


@pytest.mark.parametrize("garbage", [None, b"", b"{}", b'{"rules":null,"v":1,"version":0}'])
def test_a_mirror_is_followed_by_no_earlier_one_and_taken_away_by_nobody(garbage: bytes | None) -> None:
    log = Log()
    rows = reader(log)
    for tables in (BOTH, TABLES):
        log.append(RULES_KEY, mirrored(RuleSet(tables)))
    log.append(RULES_KEY, garbage)
    rows.follow()
    assert (rows.mirror, rows.mirror_version) == (mirrored(RuleSet(BOTH)), 2)
    log.append(RULES_KEY, version_alone(3))
    log.append(RULES_KEY, mirrored(RuleSet(BOTH)))
    rows.follow()
    assert (rows.mirror, rows.mirror_version) == (None, 3)


@pytest.mark.parametrize("is_database", [True, False])
def test_a_row_of_a_later_version_whose_rules_fit_no_mirror_is_believed(is_database: bool) -> None:
    bench = Bench(TABLES, is_database=is_database)
    bench.log.append(RULES_KEY, version_alone(2))
    bench.write(UK_2)
    policy = bench.policy(UK_2.name)
    assert policy is not None
    assert policy.target_topic == "orders.uk"


def test_before_a_row_of_a_later_version_is_refused_the_source_is_looked_at() -> None:
    bench = Bench(TABLES)
    bench.newer = BOTH
    bench.write(UK_2)
    assert bench.policy(UK_2.name) is None
    assert bench.policy(UK_2.name) is not None
    assert bench.looks == 1
    strange = ResolvedRow(RULE, replace(ROWS[1], version=9))
    bench.write(strange)
    for _ in range(5):
        assert bench.policy(strange.name) is None
    assert bench.looks == 2, "once, not at each poll"


def test_a_mirror_that_somebody_wrote_over_is_no_proof_against_a_row() -> None:
    bench = Bench(TABLES, is_database=False)
    bench.log.append(RULES_KEY, b"{}")
    bench.write(UK_2)
    assert bench.policy(UK_2.name) is not None


@pytest.mark.parametrize("value", [None, b"{}", forged(UK).encode()])
@pytest.mark.parametrize("from_mirror", [True, False])
def test_what_source_or_mirror_have_of_a_row_counts_whatever_stands_under_its_name(
    value: bytes | None, from_mirror: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(RuleTables() if from_mirror else BOTH)
    bench.write(mirror=TABLES)
    bench.log.append(UK.name.encode(), value)
    for policy in (bench.policy(UK.name), bench.table.kept(UK.name)):
        assert policy is not None
        assert policy.target_topic == "orders.uk"
    told = "not the row of that name in A-rules, but the one that the rules themselves have is obeyed"
    assert (told in caplog.text) == (value == forged(UK).encode())


def test_a_row_that_was_forged_before_its_version_gives_way_to_the_one_after_it() -> None:
    later = replace(BOTH, changes=(replace(BOTH.changes[1], version=3),), rows=(replace(ROWS[1], version=3),))
    log = Log()
    log.append(UK_2.name.encode(), forged(UK_2).encode())
    log.append(RULES_KEY, mirrored(RuleSet(BOTH)))
    for row in (UK_2, forged(UK_2)):
        log.append(UK_2.name.encode(), row.encode())
    log.append(RULES_KEY, mirrored(RuleSet(later)))
    rows = reader(log)
    rows.follow()
    assert rows.rows[UK_2.name] == UK_2
    assert rows.row_bytes == ROW_SHARE * len(UK_2.encode())
    assert rows.target_topics() == {"orders.uk"}


def test_a_row_of_an_earlier_version_is_looked_up_with_what_it_needs_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = TABLES
    for version in range(2, 40):
        tables = tables.with_rows_of(changed(version, rows=(replace(ROWS[version % 4], version=version),)))
    resolved: list[str] = []
    wanted = [
        row_of(tables.until(version), f"low-stock/{ROWS[version % 4].routing_name}@{version}")
        for version in range(2, 40)
    ]
    original = RuleSet._resolved
    bench = Bench(tables)
    bench.write(*wanted)
    assert bench.policy(wanted[-1].name) is not None  # the latest version is read whole, once
    monkeypatch.setattr(
        RuleSet,
        "_resolved",
        lambda self, row, version: (resolved.append(row.routing_name), original(self, row, version))[1],
    )
    assert all(bench.policy(row.name) is not None for row in wanted)
    assert len(resolved) <= len(wanted)


# -- any bytes

NASTY = (None, True, -1, 0, 2**31, 2**63, 10**400, 1.5, "", "x", "\ud800", "x" * 10_000, [], ["a"], {}, {"a": [1]})


def replaced(document: Any, value: Any) -> Iterator[Any]:
    """The document with each of its parts in turn replaced, or taken away."""
    yield value
    if isinstance(document, dict):
        for key, part in document.items():
            yield {name: each for name, each in document.items() if name != key}
            for other in replaced(part, value):
                yield document | {key: other}
    elif isinstance(document, list):
        for at, part in enumerate(document):
            for other in replaced(part, value):
                yield [*document[:at], other, *document[at + 1 :]]


def is_row_or_refusal(data: bytes) -> bool:
    """True of a row, all of whose columns have their types."""
    try:
        row = ResolvedRow.decode(data)
    except DecodeError:
        return False
    assert ResolvedRow.decode(row.encode()) == row
    assert row.name.encode()
    assert [type(each) for each in (row.version, row.row.complete_count, row.rule.priority)] in (
        [int, int, int],
        [int, type(None), int],
    )
    assert all(topic.encode() for topic in row.written_topics)
    return True


def is_set_or_refusal(data: bytes) -> bool:
    try:
        tables = read_mirror(data)
    except WrongRows:
        return False
    assert RuleSet(tables).version >= 1
    return True


@pytest.mark.parametrize(
    ("data", "judge"),
    [(FULL.encode(), is_row_or_refusal), (mirrored(RuleSet(BOTH)), is_set_or_refusal)],
    ids=["row", "mirror"],
)
def test_a_document_with_any_part_of_another_type_is_refused_or_read(
    data: bytes, judge: Callable[[bytes], bool]
) -> None:
    assert judge(data)
    found = [judge(json.dumps(other).encode()) for value in NASTY for other in replaced(json.loads(data), value)]
    assert len(found) > 500
    assert 0 < sum(found) < len(found) / 2


@given(st.one_of(st.binary(max_size=200), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["rule", "row", "sources", "parameters", "changes", "rules", "rows", "delays", "version", "rule_id", "v"]), inner),
    max_leaves=20,
).map(lambda each: json.dumps(each).encode())))  # fmt: skip
@settings(max_examples=300)
def test_any_bytes_are_a_row_or_a_refusal_and_so_is_a_mirror(data: bytes) -> None:
    is_row_or_refusal(data)
    is_set_or_refusal(data)
    log = Log()
    log.append(RULES_KEY, data)
    log.append(b"low-stock/UK@1", data)
    log.append(UK.name.encode(), UK.encode())
    rows = reader(log)
    rows.follow()
    assert UK.name in rows.rows


@pytest.mark.parametrize(
    "data",
    [b"[" * 100_000, b'{"rule":' * 5_000, b"1" * 10_000, b"\xff\xfe", json.dumps({"v": 1}).encode(), b"NaN"],
)
def test_a_bomb_is_left_out_and_named_with_its_place(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    log = Log()
    for key in (RULES_KEY, b"low-stock/UK@1"):
        log.append(key, data)
    rows = reader(log)
    rows.follow()
    assert (rows.ignored, rows.rows, rows.mirror) == (2, {}, None)
    assert [f"{PLACE.topic}/0/{offset} is left out" in caplog.text for offset in (0, 1)] == [True, True]


def test_a_flood_of_them_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    log = Log()
    log.records = [FakeRecord(at, None, b"{}", b"low-stock/UK@1", tp=PLACE) for at in range(500)]
    log.visible = len(log.records)
    rows = reader(log)
    rows.follow()
    assert (rows.ignored, len(caplog.records)) == (500, 101)


def test_no_document_is_believed_that_has_rows_of_a_later_version_than_its_own() -> None:
    told = json.loads(mirrored(RuleSet(TABLES)))
    told["rows"][0]["version"] = 9
    assert not is_set_or_refusal(json.dumps(told).encode())
