"""Collections: several sources, each with its own criteria (aggregation, 6.10)."""

from __future__ import annotations

import json
from itertools import count, permutations
from random import Random
from typing import Any

import pytest

from tests.core.rule_script import Table, r, row, sizes, told_by
from tests.core.script import Story, clock, refused
from tests.engine.test_by_rule_restored import restored, write
from uow.processor.core.virtual_message import collection_name
from uow.schemas.error_classes import DecodeError
from uow.topics.policies import ExpirationPolicy, ValueFormat
from uow.topics.rules import Cardinality, Release, Source, WaitFrom

_numbers = count()


def collecting(*sources: Source, name: str = "*", rule: dict[str, Any] | None = None, **settings: Any) -> Any:
    many = {"cardinality": Cardinality.MANY} | (rule or {})
    return row(name, sources=sources, rule=many, **settings)


def source(name: str, quantity: int | None = 1, wait_ms: int | None = None, **more: Any) -> Source:
    return Source("low-stock", name, 1, quantity=quantity, wait_ms=wait_ms, **more)


def of(name: str, at: float = 0, text: str = "111", **more: Any) -> Any:
    return r("*", id=f"low-stock/{text}", source_name=name, at=at, value=f"{name}{next(_numbers)}", **more)


def values(played: Story) -> list[list[str]]:
    return [[(each.value or b"").decode() for each in made.components] for made in played.units]


def test_a_collection_gathers_from_each_source_b92_b98() -> None:
    rule = collecting(source("invoice"), source("order"), source("packaging"))
    sent = [of("invoice"), of("order", text="222"), of("order"), of("packaging", text="222"), of("packaging")]
    played = told_by(*sent, rules=[rule])
    assert [(made.id, made.count) for made in played.units] == [("low-stock/111", 3)]
    assert sizes(played) == [("complete", "sources", 3)]
    assert played.open == {"low-stock/222": "1-2"}


def test_the_input_topic_is_the_source_without_a_name_and_others_are_refused_b92() -> None:
    rule = collecting(source("invoices"), source("orders"))
    named = [r("*", id="low-stock/1", input=f"{name}/0/1", at=0) for name in ("invoices", "orders", "others")]
    played = told_by(*named, rules=[rule])
    assert [seen.__class__.__name__ for seen in played.seen] == ["SeenUnit", "SeenRefusal"]
    assert played.seen[1] == refused(named[2], DecodeError, "uow-source-name")


@pytest.mark.parametrize("order", sorted(set(permutations("AAB"))))
def test_each_source_has_its_quantity_b93(order: tuple[str, ...]) -> None:
    played = told_by(*map(of, order), rules=[collecting(source("A", 2), source("B"))])
    assert sizes(played) == [("complete", "sources", 3)]


def test_each_source_has_its_wait_b94() -> None:
    played = told_by(of("A", 0), of("B", 1), clock(5), rules=[collecting(source("A", 2, 5_000), source("B"))])
    assert played.seen == []
    played.send(clock(5.001))
    assert sizes(played) == [("complete", "sources", 2)]


@pytest.mark.parametrize(("wait_from", "until"), [(WaitFrom.SOURCE, 9), (WaitFrom.GROUP, 5)])
def test_a_wait_counts_from_the_source_or_from_the_group_b95(wait_from: WaitFrom, until: float) -> None:
    rule = collecting(source("A"), source("B", 2, 5_000, wait_from=wait_from))
    played = told_by(of("A", 0), of("B", 4), clock(until), rules=[rule])
    assert played.seen == []
    played.send(clock(until + 0.001))
    assert sizes(played) == [("complete", "sources", 2)]


def test_a_component_goes_to_the_oldest_group_that_takes_it_b99() -> None:
    sent = [of("A"), of("A"), of("A"), of("B"), of("B")]
    played = told_by(*sent, rules=[collecting(source("A"), source("B"))])
    told = [sent_one.value.decode() for sent_one in sent]
    assert values(played) == [[told[0], told[3]], [told[1], told[4]]]
    assert [made.generation for made in played.units] == [1, 2]
    assert len(played.task.groups) == 1


def test_a_copy_is_found_in_whichever_group_has_it_b38_b99() -> None:
    copy = of("A", input="in/0/7")
    played = told_by(copy, of("A"), of("A"), copy, rules=[collecting(source("A"), source("B"))])
    assert [seen.case for seen in played.seen] == ["resend"]
    assert len(played.task.groups) == 3


def test_several_groups_of_a_key_survive_a_restart_b99() -> None:
    rule = collecting(source("A", 1, 60_000), source("B"))
    logs, _ = write(of("A"), of("A"), of("A"), rows=[rule])
    after = Story(restored(logs, table=Table(rule)), offset=3)
    after.send(of("B", 1), of("B", 1))
    assert [made.generation for made in after.units] == [1, 2]
    after.send(of("A", 2))
    assert sorted(group.generation for group in after.task.groups.values()) == [3, 4]


@pytest.mark.parametrize("seed", range(5))
def test_each_component_is_in_one_collection_b100(seed: int) -> None:
    rnd = Random(seed)
    names = ["A", "B", "C"][: rnd.randint(1, 3)]
    waits = [rnd.choice([None, 300]) for _ in names]
    rule = collecting(
        *(source(name, rnd.randint(1, 3), wait) for name, wait in zip(names, waits, strict=True)), age_ms=2_000
    )
    sent = [of(rnd.choice(names), number / 20, text=rnd.choice(["1", "2"])) for number in range(200)]
    played = told_by(*sent, clock(60), rules=[rule])
    together = sorted(each for made in values(played) for each in made)
    assert together == sorted(each.value.decode() for each in sent)
    assert played.open == {}


@pytest.mark.parametrize("release", [Release.AUTO, Release.HOLD_ALL])
def test_the_age_of_a_collection_overrides_the_waits_of_its_sources_b101(release: Release) -> None:
    rule = collecting(
        source("A", 2, 60_000),
        source("B", 2),
        age_ms=10_000,
        on_give_up=ExpirationPolicy.REDIRECT,
        rule={"release": release},
    )
    played = told_by(of("A"), of("A"), of("B"), clock(10.001), rules=[rule])
    assert [(seen.failure, seen.case) for seen in played.seen] == [("expired", "age")] * 3
    (outcome,) = played.outcomes
    assert [(each.name, each.count) for each in outcome.per_source] == [("A", 2), ("B", 1)]


def test_a_collection_has_a_name_and_its_correlation_text_b102() -> None:
    rule = collecting(source("A"), rule={"name_template": "orders-*"})
    said = told_by(of("A", text="111"), of("A", text=""), rules=[rule]).unit_headers
    assert [(each["uow-collection"], each["uow-correlation-id"]) for each in said] == [
        (b"orders-111", b"111"),
        (b"orders-", b""),
    ]
    assert collection_name("*", b"") == b""


def test_a_collection_as_json_and_xml_tells_its_sources_b108() -> None:
    for value_format in (ValueFormat.JSON, ValueFormat.XML):
        rule = collecting(source("invoice", 2), source("order"), value_format=value_format)
        sent = [
            r("*", id="low-stock/1", source_name=name, at=0, value="<a/>") for name in ("invoice", "order", "invoice")
        ]
        (output,) = [each for each in told_by(*sent, rules=[rule]).outputs if each.topic == "D.units"]
        if value_format is ValueFormat.XML:
            assert (output.value or b"").endswith(
                b'<Collection name="1"><Component source="invoice"><a/></Component>'
                b'<Component source="order"><a/></Component><Component source="invoice"><a/></Component></Collection>'
            )
        else:
            told = json.loads(output.value or b"")
            assert (told["collection"], told["sources"], len(told["components"])) == (
                "1",
                {"invoice": [1, 3], "order": [2]},
                3,
            )


def test_no_two_groups_of_a_key_have_one_generation_b99() -> None:
    """The oldest closes by bytes before a component; the generation that it opens is above all that are open."""
    rule = collecting(source("A"), source("B", 2), complete_bytes=10)
    sent = [
        r("*", id="low-stock/111", source_name=name, at=0, value=value)
        for name, value in (("A", "12"), ("A", "34"), ("B", "x" * 9))
    ]
    played = told_by(*sent, rules=[rule])
    generations = [made.generation for made in played.units] + [each.generation for each in played.task.groups.values()]
    assert len(generations) == len(set(generations))
    assert played.counts.open + sum(made.count for made in played.units) == len(sent)
