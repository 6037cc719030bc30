"""What becomes of one record of an input (B-20 to B-26, B-54, B-97)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.fake_record import T0, FakeRecord
from uow.processor.engine.ports import Tp
from uow.processor.rules.routing import NAME_LIMIT_BYTES, Fate, NoKey, RecordRouting, Routed, RouteTarget, RuleRouting
from uow.processor.rules.rule_set import RuleSet, RuleTables
from uow.processor.rules.transforms import installed
from uow.topics.catalogue import DestinationTopics
from uow.topics.command_keys import CommandKey, CommandSigner
from uow.topics.commands import Command, CommandReader, read_command
from uow.topics.policies import AliasFamily, DestinationPolicy, HandlingPolicy, ValueFormat, ViolationPolicy
from uow.topics.record_size import INPUT_LIMIT_BYTES, RecordLimit
from uow.topics.rules import DEFAULT_ROW, Change, DefaultGroup, Delay, KeyCase, Numbering, OnNoKey, Row, Rule, Source

STOCK = Tp("stock.events", 2)
LOW_STOCK = Rule("low-stock", 1, "supply", default_group=DefaultGroup.SHARED)
FIXTURE = {
    name: Row("low-stock", name, 1, target_topic=f"orders.{topic}", complete_count=count, age_ms=age)
    for name, topic, count, age in [
        ("France", "france", 10, 30_000),
        ("UK", "uk", 5, 15_000),
        ("Spain", "spain", 20, 60_000),
        (DEFAULT_ROW, "other", 10, 60_000),
    ]
}
CHANGE = Change(1, "supply team", "first rules", T0)
POLICY = DestinationPolicy(handling_policy=HandlingPolicy.SINGLE_MESSAGE_DELIVERY)


def router(
    *rules: Rule,
    rows: dict[str, Row] | None = None,
    delays: Any = None,
    policy: DestinationPolicy = POLICY,
    sources: tuple[Source, ...] = (),
    signer: CommandSigner | None = None,
) -> RecordRouting:
    """A router of these rules, each with the same rows."""
    rules = rules or (LOW_STOCK,)
    own = [replace(row, rule_id=rule.rule_id) for rule in rules for row in (FIXTURE if rows is None else rows).values()]
    limits = [Delay(rule.rule_id, *of, 1, limit) for rule in rules for of, limit in (delays or {}).items()]
    rule_set = RuleSet(
        RuleTables(changes=(CHANGE,), rules=rules, rows=tuple(own), delays=tuple(limits), sources=sources)
    )
    target = RouteTarget(DestinationTopics("shop", "supply"), policy, RecordLimit(INPUT_LIMIT_BYTES), signer=signer)
    return RecordRouting([RuleRouting(rule, rule_set, target) for rule in rule_set.rules])


def record(*names: bytes | None, value: bytes | None = b"{}", offset: int = 7, **more: Any) -> FakeRecord:
    """A record with these values of `uow-destination`."""
    return FakeRecord(offset, [("uow-destination", name) for name in names], value, b"own key", tp=STOCK, **more)


def route(routing: RecordRouting, given: FakeRecord) -> Routed:
    return routing.route(given, given.headers_, T0 + 5)


def said(routed: Routed) -> dict[str, bytes | None]:
    return dict(routed.sent.headers)


# -- a component


def test_a_component_is_the_record_with_the_group_key_and_what_the_router_stamps() -> None:
    routed = route(router(), record(b"France", value=b"order 1"))
    assert (routed.fate, routed.rule_id, routed.row and routed.row.name) == (
        Fate.ROUTED,
        "low-stock",
        "low-stock/France@1",
    )
    assert routed.sent == (
        "supply.components",
        b"low-stock/France",
        b"order 1",
        [
            ("uow-destination", b"France"),
            ("uow-id", b"low-stock/France"),
            ("uow-rule", b"low-stock/France@1"),
            ("uow-input", b"stock.events/2/7"),
            ("uow-arrived-at", b"%d" % T0),
            ("uow-origin-key", b"own key"),
        ],
    )


@pytest.mark.parametrize("own", [None, b"", b"\xff", b"low-stock/UK", b"k" * 200_000])
def test_the_key_that_a_record_had_is_kept_b27(own: bytes | None) -> None:
    """The key of a component is that of its group; the record's own was nowhere."""
    routed = route(router(), FakeRecord(7, [("uow-destination", b"UK")], b"", own, tp=STOCK))
    kept = None if own == b"low-stock/UK" else own
    assert [value for name, value in routed.sent.headers if name == "uow-origin-key"] == (
        [] if kept is None else [kept]
    )
    answer = route(gathering(), FakeRecord(7, [("uow-correlation-id", b"trips/trip/17.2")], b"", own, tp=STOCK))
    assert said(answer).get("uow-origin-key") == own


def test_a_key_that_no_component_can_keep_is_refused_with_its_record_b89() -> None:
    routed = route(router(), FakeRecord(7, [("uow-destination", b"UK")], b"", b"k" * INPUT_LIMIT_BYTES, tp=STOCK))
    assert (routed.fate, said(routed)["uow-error-class"]) == (Fate.REJECTED, b"UnitTooLargeError")


def test_a_topic_without_append_times_gives_no_arrival() -> None:
    class Created(FakeRecord):
        def timestamp(self) -> tuple[int, int]:
            return 1, self.at

    given = Created(7, [("uow-destination", b"UK")], b"", tp=STOCK)
    assert "uow-arrived-at" not in said(route(router(), given))


def test_nobody_forges_what_the_router_stamps() -> None:
    """Another id is kept under another name, so that it makes no second `uow-id`."""
    forged = ["uow-rule", "uow-input", "uow-arrived-at", "uow-delay-ms", "uow-warning", "uow-origin-key"]
    given = record(b"UK")
    given.headers_ += [
        *((name, b"forged") for name in forged),
        ("uow-id", b"mine"),
        ("JMSXGroupID", b"mine"),
        ("x", b"1"),
    ]
    honest = said(route(router(), record(b"UK")))
    for policy in (POLICY, replace(POLICY, accept_aliases=frozenset({AliasFamily.JMS}))):
        routed = route(router(policy=policy), given)
        kept = {"x": b"1", "uow-origin-id": b"mine"}
        kept["uow-origin-JMSXGroupID" if policy is not POLICY else "JMSXGroupID"] = b"mine"
        assert said(routed) == honest | kept
        assert len(routed.sent.headers) == len(honest) + 3


# -- routing names


@pytest.mark.parametrize(
    ("name", "row", "topic"),
    [
        (b"France", "France", "orders.france"),
        (b"UK", "UK", "orders.uk"),
        (b"Spain", "Spain", "orders.spain"),
        (b"Mars", "*", "orders.other"),
    ],
)
def test_a_name_selects_its_row_and_any_other_row_star_b21(name: bytes, row: str, topic: str) -> None:
    routed = route(router(), record(name))
    assert routed.row is not None
    assert (routed.row.row.routing_name, routed.row.row.target_topic) == (row, topic)
    assert routed.sent.key == f"low-stock/{row}".encode()


def test_names_are_compared_exactly_or_by_casefold_b20() -> None:
    for key_case, second in [(KeyCase.EXACT, b"low-stock/*"), (KeyCase.CASEFOLD, b"low-stock/France")]:
        routing = router(replace(LOW_STOCK, key_case=key_case))
        assert route(routing, record(b"France")).sent.key == b"low-stock/France"
        assert route(routing, record(b"france")).sent.key == second


def test_of_a_repeated_name_the_last_counts_with_a_warning_b20() -> None:
    routed = route(router(), record(b"UK", b"France"))
    assert routed.sent.key == b"low-stock/France"
    assert routed.has_warning
    assert b"the last one counts" in (said(routed)["uow-warning"] or b"")


def test_the_header_destination_of_former_messages_is_a_routing_name_b20() -> None:
    given = FakeRecord(1, [("destination", b"UK")], tp=STOCK)
    mq = replace(POLICY, accept_aliases=frozenset({AliasFamily.MQ}))
    assert route(router(policy=mq), given).sent.key == b"low-stock/UK"
    assert route(router(), given).sent.key == b"low-stock/UK"
    both = FakeRecord(1, [("uow-destination", b"UK"), ("destination", b"Mars")], tp=STOCK)
    assert route(router(), both).sent.key == b"low-stock/UK", "our own name counts"
    by_place = router(replace(LOW_STOCK, group_key="header:region"))
    assert route(by_place, given).sent.key == b"low-stock/*"


@pytest.mark.parametrize("on_no_key", OnNoKey)
@pytest.mark.parametrize("key", ["path:order.id", "header:region + path:order.id", "path:/order/@id"])
@pytest.mark.parametrize(
    "value", [b'{"order": {"id": 1}, "price": NaN}', b'{"order": {"id": 1}', b"<order id='1'>", b"\xff"]
)
def test_a_value_that_cannot_be_read_is_refused_and_nobody_s_companion_b22(
    on_no_key: OnNoKey, key: str, value: bytes
) -> None:
    rule = replace(LOW_STOCK, group_key=key, on_no_key=on_no_key)
    given = record(value=value)
    given.headers_.append(("region", b"west"))
    routed = route(router(rule), given)
    if on_no_key is OnNoKey.PASS_THROUGH:
        assert routed.fate is Fate.PASSED
        return
    kind = b"xml" if "path:/" in key else b"json"
    assert (said(routed)["uow-error-class"], said(routed)["uow-error-case"]) == (b"DecodeError", kind)
    assert b"the value is no " in (said(routed)["uow-error-text"] or b"")
    if on_no_key not in (OnNoKey.REJECT, OnNoKey.BY_KEY):
        assert route(router(rule), record(value=b"")).fate is Fate.ROUTED, "no value has no key"


def test_a_document_of_another_kind_that_has_no_name_is_one_without_a_name_b22() -> None:
    """The condition looks for JSON, the key for XML."""
    rule = replace(
        LOW_STOCK, group_key="path:/order/@id", on_no_key=OnNoKey.DEFAULT, accept="!(price > 1) || key() == 'k'"
    )
    for value, fate in ((b"<order/>", Fate.ROUTED), (b"<order>", Fate.REJECTED)):
        given = record(value=value)
        given.key_ = b"k"
        assert route(router(rule), given).fate is fate


def test_a_byte_order_mark_is_no_part_of_a_value_b20() -> None:
    rule = replace(LOW_STOCK, group_key="path:order.id", default_group=DefaultGroup.PER_NAME, accept="order.id > 0")
    assert route(router(rule), record(value=b'\xef\xbb\xbf{"order": {"id": 7}}')).sent.key == b"low-stock/7"


def test_broken_json_and_a_record_that_no_rule_wants_are_told_apart_b111() -> None:
    routing = router(replace(LOW_STOCK, accept="price > 1"))
    texts = [
        said(route(routing, record(value=value)))["uow-error-text"] or b""
        for value in (b'{"price": NaN}', b'{"price": 1}')
    ]
    assert [b"no rule accepts it" in text for text in texts] == [True, True]
    assert [b"the value is no JSON: NaN is no JSON" in text for text in texts] == [True, False]


@pytest.mark.parametrize(
    "headers", [None, [], [("x", b"1")]], ids=["headers that are not there", "no header", "another header"]
)
def test_a_record_without_a_name_joins_row_star_without_a_warning_b22(headers: Any) -> None:
    routed = route(router(), FakeRecord(1, headers, b"", tp=STOCK))
    assert routed.sent.key == b"low-stock/*"
    assert not routed.has_warning


@pytest.mark.parametrize(
    ("key", "fate"),
    [
        ("header:region", Fate.ROUTED),
        ("key pattern:order-*", Fate.ROUTED),
        ("constant:all + header:region", Fate.ROUTED),
        ("path:order.id", Fate.REJECTED),
        ("path:/order/@id", Fate.REJECTED),
        ("header:uow-destination + path:order.id", Fate.REJECTED),
    ],
)
@pytest.mark.parametrize("value", [b'{"order": {"id": null}}', b"<order/>", b"[1]", b"", None])
def test_by_default_no_key_in_a_header_is_row_star_and_no_key_in_the_value_is_refused_b22(
    key: str, fate: Fate, value: bytes | None
) -> None:
    routed = route(router(Rule("low-stock", 1, "supply", group_key=key)), record(b"UK", value=value))
    assert routed.fate is fate
    if fate is Fate.ROUTED:
        assert routed.sent.key == b"low-stock/*"
    else:
        assert (said(routed)["uow-error-class"], said(routed)["uow-error-case"]) in (
            (b"BadUnitIdError", b"no-correlation"),
            (b"DecodeError", b"json"),
            (b"DecodeError", b"xml"),
        )


@pytest.mark.parametrize(
    ("rule", "value", "cause", "text"),
    [
        ({}, b"", NoKey.ABSENT, "header:uow-destination: finds nothing"),
        ({"group_key": "path:order.id"}, b'{"order": {"id": null}}', NoKey.ABSENT, "path:order.id: finds nothing"),
        ({"group_key": "constant:a + path:id pattern:o-*"}, b'{"id": "7"}', NoKey.ABSENT, "path:id pattern:o-*: finds"),
        ({"group_key": "path:id"}, b'{"id": " "}', NoKey.UNUSABLE, "path:id: routing name that is blank"),
        ({"group_key": "path:id"}, b'{"id": NaN}', NoKey.UNREADABLE, "NaN is no JSON"),
        ({"group_key": "request"}, b"", NoKey.ABSENT, "request: finds nothing"),
    ],
)
@pytest.mark.parametrize("on_no_key", OnNoKey)
def test_a_record_without_a_key_says_so_and_why_whatever_becomes_of_it_b22(
    rule: dict[str, str], value: bytes, cause: NoKey, text: str, on_no_key: OnNoKey
) -> None:
    routed = route(router(replace(LOW_STOCK, on_no_key=on_no_key, **rule)), record(value=value))
    assert routed.keyless is not None
    assert routed.keyless.cause is cause
    assert text in routed.keyless.error.text
    if routed.fate is Fate.REJECTED:
        assert (said(routed)["uow-error-text"] or b"").decode() == routed.keyless.error.text
    assert route(router(), record(b"UK")).keyless is None


def test_a_source_s_own_correlation_is_named_where_it_finds_nothing_b97() -> None:
    source = Source("low-stock", "stock.events", 1, correlation_path="path:file", correlation_pattern="orders_*.xml")
    rule = Rule("low-stock", 1, "supply", group_key="header:none")
    refused = route(router(rule, sources=(source,)), record(value=b'{"file": "x"}'))
    text = b"path:file pattern:orders_*.xml of source stock.events: finds nothing"
    assert text in (said(refused)["uow-error-text"] or b"")


def test_by_default_every_name_has_a_group_of_its_own_b23() -> None:
    """So a rule by order id and one row mixes no orders."""
    rule = Rule("orders", 1, "supply", group_key="path:order.id")
    values = [b'{"order": {"id": %d}}' % order for order in (1, 2, 1)]
    keys = [route(router(rule), record(value=value)).sent.key for value in values]
    assert keys == [b"orders/1", b"orders/2", b"orders/1"]


def test_an_unknown_name_shares_the_group_or_has_its_own_b23() -> None:
    per_name = router(replace(LOW_STOCK, default_group=DefaultGroup.PER_NAME))
    assert {route(router(), record(name)).sent.key for name in (b"Mars", b"Venus")} == {b"low-stock/*"}
    assert route(per_name, record(b"Mars")).sent.key == b"low-stock/Mars"
    assert route(per_name, record()).sent.key == b"low-stock/*"
    assert route(per_name, record(b"UK")).sent.key == b"low-stock/UK"
    folded = router(replace(LOW_STOCK, default_group=DefaultGroup.PER_NAME, key_case=KeyCase.CASEFOLD))
    assert {route(folded, record(name)).sent.key for name in (b"Mars", b"MARS")} == {b"low-stock/mars"}


def test_without_row_star_an_unknown_name_is_refused_b23() -> None:
    rows = {name: row for name, row in FIXTURE.items() if name != DEFAULT_ROW}
    for given in (record(b"Mars"), record()):
        routed = route(router(rows=rows), given)
        assert (routed.fate, said(routed)["uow-error-class"], said(routed)["uow-error-case"]) == (
            Fate.REJECTED,
            b"RoutingError",
            b"no-rule",
        )


@pytest.mark.parametrize("name", [b"", b" \t", b"\xff\xfe", b"x" * (NAME_LIMIT_BYTES + 1), None])
def test_a_name_that_cannot_be_used_counts_as_none_with_a_warning_b24(name: bytes | None) -> None:
    routed = route(router(), record(name))
    assert (routed.fate, routed.sent.key, routed.has_warning) == (Fate.ROUTED, b"low-stock/*", True)
    assert said(routed)["uow-warning"]


def test_a_name_of_128_bytes_is_one_b24() -> None:
    per_name = router(replace(LOW_STOCK, default_group=DefaultGroup.PER_NAME))
    longest = b"x" * NAME_LIMIT_BYTES
    assert route(per_name, record(longest)).sent.key == b"low-stock/" + longest


def test_a_record_without_a_name_is_treated_as_the_rule_says_b97() -> None:
    refused = route(router(replace(LOW_STOCK, on_no_key=OnNoKey.REJECT)), record())
    assert (said(refused)["uow-error-class"], said(refused)["uow-error-case"]) == (b"BadUnitIdError", b"no-correlation")
    unnamed = route(router(replace(LOW_STOCK, on_no_key=OnNoKey.UNNAMED)), record())
    assert (unnamed.sent.key, unnamed.row and unnamed.row.row.routing_name) == (b"low-stock/", "*")
    given = record(value=b"as it is")
    given.headers_ = [("uow-id", b"mine"), ("x", b"1")]
    passed = route(router(replace(LOW_STOCK, on_no_key=OnNoKey.PASS_THROUGH)), given)
    assert passed.fate is Fate.PASSED
    headers = [("uow-origin-id", b"mine"), ("x", b"1"), ("uow-input", b"stock.events/2/7")]
    assert passed.sent == ("supply.components", b"own key", b"as it is", headers)


def test_the_first_rule_that_accepts_has_the_record_b111() -> None:
    large = Rule("large", 1, "supply", accept="quantity > 100", priority=1)
    routing = router(large, LOW_STOCK)
    assert route(routing, record(b"UK", value=b'{"quantity": 150}')).sent.key == b"large/UK"
    assert route(routing, record(b"UK", value=b'{"quantity": 50}')).sent.key == b"low-stock/UK"
    assert route(routing, record(b"UK", value=b"no JSON")).sent.key == b"low-stock/UK"
    alone = route(router(large), record(b"UK", value=b"no JSON"))
    assert said(alone)["uow-error-case"] == b"no-rule"


def test_rows_of_many_names_are_not_all_remembered() -> None:
    routing = router(replace(LOW_STOCK, default_group=DefaultGroup.PER_NAME))
    for number in range(10_050):
        assert route(routing, record(b"%d" % number)).sent.key == b"low-stock/%d" % number
    assert len(routing._rules[0]._choices) <= 10_000


# -- limits by item


def test_the_limit_of_an_item_is_stamped_b05() -> None:
    rule = replace(LOW_STOCK, delay_item="path:product")
    routing = router(rule, delays={("UK", "insulin"): 5_000, ("UK", "now"): 0})
    for product, delay in [(b"insulin", b"5000"), (b"now", b"0"), (b"paper", None)]:
        routed = route(routing, record(b"UK", value=b'{"product": "%s"}' % product))
        assert said(routed).get("uow-delay-ms") == delay
    assert "uow-delay-ms" not in said(route(routing, record(b"France", value=b'{"product": "insulin"}')))


# -- refusals


def test_a_refused_record_is_as_it_came_and_says_why_and_where_from() -> None:
    given = record(b"UK", value=b"as it came")
    given.headers_ += [("uow-input", b"forged"), ("uow-id", b"mine")]
    routed = route(router(replace(LOW_STOCK, accept="quantity > 1")), given)
    assert (routed.fate, routed.rule_id, routed.sent[:3]) == (
        Fate.REJECTED,
        "",
        ("supply.rejected", b"own key", b"as it came"),
    )
    assert [
        pair for pair in routed.sent.headers if pair[0] in ("uow-input", "uow-source", "uow-id", "uow-destination")
    ] == [
        ("uow-destination", b"UK"),
        ("uow-id", b"mine"),
        ("uow-input", b"stock.events/2/7"),
        ("uow-source", b"stock.events/2/7"),
    ]


def test_a_record_whose_headers_cannot_be_read_is_refused() -> None:
    given = record(b"UK")
    routed = router().route(given, None, T0, is_readable=False)
    assert (said(routed)["uow-error-class"], said(routed)["uow-error-case"]) == (b"DecodeError", b"headers")


def test_a_record_that_fits_no_component_with_its_stamps_is_refused() -> None:
    routed = route(router(), record(b"UK", value=b"v" * (INPUT_LIMIT_BYTES - 1_100)))
    assert (routed.fate, said(routed)["uow-error-class"]) == (Fate.REJECTED, b"UnitTooLargeError")
    assert len(routed.sent.value or b"") == INPUT_LIMIT_BYTES - 1_100


def test_values_for_xml_are_checked_and_others_are_not_b54() -> None:
    rows = {name: replace(row, value_format=ValueFormat.XML if name == "UK" else None) for name, row in FIXTURE.items()}
    for policy, name, is_checked in [
        (POLICY, b"UK", True),
        (POLICY, b"France", False),
        (replace(POLICY, value_format=ValueFormat.XML), b"France", True),
    ]:
        routing = router(rows=rows, policy=policy)
        bad = route(routing, record(name, value=b"<Test>"))
        assert bad.fate is (Fate.REJECTED if is_checked else Fate.ROUTED)
        if is_checked:
            assert (said(bad)["uow-error-class"], said(bad)["uow-error-case"]) == (b"DecodeError", b"xml")
        assert route(routing, record(name, value=b"<Test>Bonjour</Test>")).fate is Fate.ROUTED


# -- transforms


@pytest.mark.usefixtures("transforms")
def test_a_transform_changes_the_value_and_adds_headers_b25() -> None:
    routing = router(replace(LOW_STOCK, transform="upper_case"))
    routed = [route(routing, record(b"France", value=b"order %d" % number, offset=number)) for number in range(10)]
    assert [each.sent.value for each in routed] == [b"ORDER %d" % number for number in range(10)]
    assert [said(each)["uow-input"] for each in routed] == [b"stock.events/2/%d" % number for number in range(10)]
    assert {said(each)["by"] for each in routed} == {b"stock.events"}


@pytest.mark.usefixtures("transforms")
def test_what_a_transform_leaves_out_is_accounted_for_b25() -> None:
    routed = route(router(replace(LOW_STOCK, transform="only_odd")), record(b"France", offset=4))
    assert (routed.fate, routed.sent.topic, said(routed)["uow-error-case"]) == (
        Fate.REJECTED,
        "supply.rejected",
        b"filtered",
    )


@pytest.mark.usefixtures("transforms")
def test_a_failing_transform_concerns_its_own_record_only_b26() -> None:
    routing = router(replace(LOW_STOCK, transform="every_fourth_fails"))
    routed = [route(routing, record(b"France", value=b"v%d" % number, offset=number)) for number in range(7)]
    assert [each.fate for each in routed].count(Fate.ROUTED) == 6
    (rejected,) = [each for each in routed if each.fate is Fate.REJECTED]
    assert rejected.sent.value == b"v3"
    headers = said(rejected)
    assert headers["uow-input"] == headers["uow-source"] == b"stock.events/2/3"
    assert (headers["uow-error-class"], headers["uow-error-case"]) == (b"RoutingError", b"transform")
    assert b"KeyError: 'no price'" in (headers["uow-error-text"] or b"")


@pytest.mark.usefixtures("transforms")
@pytest.mark.parametrize(
    ("key", "header", "group"),
    [
        ("header:uow-destination", None, b"low-stock/France"),
        ("constant:all", None, b"low-stock/*"),
        ("request", ("uow-correlation-id", b"low-stock/trip/00000000000000000000000000000007.2"), None),
        ("header:region", ("region", b"France"), b""),
        ("path:customer", None, b""),
        ("request", None, b""),
    ],
)
def test_under_fail_group_a_failing_transform_fails_the_group_if_it_is_known_b26(
    key: str, header: tuple[str, bytes] | None, group: bytes | None
) -> None:
    """Each time by the same command, so that a second one does nothing more."""
    policy = replace(POLICY, violation_policy=ViolationPolicy.FAIL_GROUP)
    given = record(b"France", offset=3)
    given.headers_ += [header] if header is not None else []
    rule = replace(LOW_STOCK, transform="every_fourth_fails", group_key=key)
    routed, again = (route(router(rule, policy=policy), given) for _ in range(2))
    assert routed == again
    assert (routed.fate, said(routed)["uow-error-case"]) == (Fate.REJECTED, b"transform")
    assert (b"not known" in (said(routed)["uow-error-text"] or b"")) == (group == b"")
    assert route(router(rule), given).command is None
    if group == b"":
        assert routed.command is None
        return
    assert routed.command is not None
    topic, where, value, headers = routed.command
    command = read_command(headers)
    assert isinstance(command, Command)
    assert (topic, value, command.verb, command.id) == ("supply.commands", None, "fail", b"fail:stock.events/2/3")
    assert where == command.group_id == (group or b"low-stock/trip/00000000000000000000000000000007")
    assert "stock.events/2/3" in command.why


@pytest.mark.usefixtures("transforms")
def test_the_command_that_fails_a_group_is_signed_by_the_key_of_the_router() -> None:
    signer = CommandSigner("router", bytes(32))
    keys = (CommandKey("router", signer.public, frozenset({"fail"})),)
    policy = replace(POLICY, violation_policy=ViolationPolicy.FAIL_GROUP, command_keys=keys)
    rule, given = replace(LOW_STOCK, transform="every_fourth_fails"), record(b"France", offset=3)
    for own in (signer, None):
        sent = route(router(rule, policy=policy, signer=own), given).command
        assert sent is not None
        read = CommandReader("supply", policy).read(sent.headers, FakeRecord(0, [], None, sent.key, T0 + 5))
        assert (read.is_verified, isinstance(read, Command)) == (own is not None, own is not None)


@pytest.mark.usefixtures("transforms")
@pytest.mark.parametrize("name", ["leaves", "forges", "half_a_name", "no_bytes", "not_there", "never_installed"])
def test_a_transform_that_does_what_none_may_do_fails_b25(name: str) -> None:
    routed = route(router(replace(LOW_STOCK, transform=name)), record(b"France"))
    assert (routed.fate, said(routed)["uow-error-case"]) == (Fate.REJECTED, b"transform")


@pytest.mark.usefixtures("transforms")
def test_names_of_installed_transforms_are_known_b25() -> None:
    assert {"upper_case", "not_there"} <= installed()


# -- keys that are not a header, rows that are planned


def test_a_name_may_be_read_from_the_value_or_be_a_part_of_a_text_b20_b96() -> None:
    for group_key, value, key in [
        ("path:supplier", b'{"supplier": "UK"}', b"low-stock/UK"),
        ("path:/order/@to", b'<order to="France"/>', b"low-stock/France"),
        ("path:file pattern:orders_*.xml", b'{"file": "orders_Spain.xml"}', b"low-stock/Spain"),
        ("path:file pattern:orders_*.xml", b'{"file": "Spain"}', b"low-stock/*"),
        ("key", b"", b"low-stock/*"),
        ("constant:UK", b"", b"low-stock/UK"),
    ]:
        rule = replace(LOW_STOCK, group_key=group_key, on_no_key=OnNoKey.DEFAULT)
        routed = route(router(rule), record(value=value))
        assert (routed.sent.key, routed.has_warning) == (key, False)
    too_long = route(router(replace(rule, group_key="path:a")), record(value=b'{"a": "%s"}' % (b"x" * 129)))
    assert (too_long.sent.key, too_long.has_warning) == (b"low-stock/*", True)


def test_the_arrival_decides_which_planned_row_applies_b18() -> None:
    rows = {
        "UK": replace(FIXTURE["UK"], valid_to_ms=T0),
        "later": replace(FIXTURE["UK"], version=2, complete_count=7, valid_from_ms=T0),
    }
    routing = router(rows=rows)
    before, at = (route(routing, record(b"UK", at=arrival)).row for arrival in (T0 - 1, T0))
    assert before is not None
    assert at is not None
    assert (before.row.complete_count, at.row.complete_count) == (5, 7)


# -- collections


def test_each_source_of_a_collection_has_its_own_correlation_b96_b97() -> None:
    """Invoices are files of XML, orders are JSON; what is of neither has the rule's own key."""
    sources = (
        Source("low-stock", "invoices", 1, correlation_path="path:/invoice/@file", correlation_pattern="orders_*.xml"),
        Source("low-stock", "stock.events", 1, correlation_path="path:cust"),
        Source("low-stock", "packaging", 1),
    )
    rule = replace(LOW_STOCK, default_group=DefaultGroup.PER_NAME, on_no_key=OnNoKey.REJECT)
    routing = router(rule, sources=sources)
    invoice = record(value=b'<invoice file="orders_111.xml"/>')
    invoice.headers_.append(("uow-source-name", b"invoices"))
    packaging = record(b"111")
    packaging.headers_.append(("uow-source-name", b"packaging"))
    order = record(b"another", value=b'{"cust": 111}')
    assert {route(routing, each).sent.key for each in (invoice, packaging, order)} == {b"low-stock/111"}
    for value in (b'{"cust": ""}', b'{"cust": null}', b""):
        assert said(route(routing, record(b"another", value=value)))["uow-error-case"] == b"no-correlation"
    assert said(route(routing, record(b"another", value=b"no JSON")))["uow-error-case"] == b"json"
    invoice.value_ = b'<invoice file="orders.xml"/>'
    assert said(route(routing, invoice))["uow-error-case"] == b"no-correlation"


def test_names_of_headers_count_for_the_size_of_a_component() -> None:
    """A broker would refuse it, and the partition of the input would stand still."""
    given = record(b"UK")
    given.headers_ += [("n" * 60_000, b"")] * 18
    routed = route(router(), given)
    assert said(routed)["uow-error-class"] == b"UnitTooLargeError"
    given.headers_ = given.headers_[:9]
    assert route(router(), given).fate is Fate.ROUTED


# -- replies to the requests of a fan-out

TRIPS = Rule("trips", 1, "supply", group_key="request", sequence=Numbering.GIVEN)


def gathering(rule: Rule = TRIPS, **policy: Any) -> RecordRouting:
    rows = {name: Row("trips", name, 1, complete_when="manifest") for name in ("trip", DEFAULT_ROW)}
    return router(rule, rows=rows, policy=replace(POLICY, **policy))


def reply(*correlations: bytes, name: str = "uow-correlation-id", value: bytes = b"{}", **more: Any) -> FakeRecord:
    headers = [(name, each) for each in correlations] + [(key.replace("_", "-"), one) for key, one in more.items()]
    return FakeRecord(3, headers, value, b"own key", tp=STOCK)


def test_a_reply_goes_to_the_group_and_the_number_of_its_request_b79() -> None:
    """No look-up: both are in the correlation id. What it says of number and end itself is nothing to us."""
    hostile = {"uow_seq": b"9", "uow_end": b"true", "uow_count": b"1", "uow_id": b"other", "x": b"1"}
    routed = route(gathering(), reply(b"trips/trip/17.2", **hostile))
    assert (routed.fate, routed.sent.key, routed.row and routed.row.name) == (
        Fate.ROUTED,
        b"trips/trip/17",
        "trips/trip@1",
    )
    stamped = [pair for pair in routed.sent.headers if pair[0] in ("uow-id", "uow-seq", "uow-end", "uow-count", "x")]
    assert sorted(stamped) == [("uow-id", b"trips/trip/17"), ("uow-seq", b"2"), ("x", b"1")]
    other = route(gathering(), reply(b"trips/a.b/c/17.2"))
    assert (other.sent.key, other.row and other.row.name) == (b"trips/a.b/c/17", "trips/*@1")


def test_the_correlation_may_stand_elsewhere_b79() -> None:
    at = replace(TRIPS, group_key="request:path:call.id")
    assert route(gathering(at), reply(value=b'{"call": {"id": "trips/trip/17.2"}}')).sent.key == b"trips/trip/17"
    jms = gathering(accept_aliases=frozenset({AliasFamily.JMS}))
    assert route(jms, reply(b"trips/trip/17.2", name="JMSCorrelationID")).sent.key == b"trips/trip/17"


@pytest.mark.parametrize(
    "correlations",
    [
        (),
        (b"",),
        (b" ",),
        (b"17",),
        (b"trips/trip/17",),
        (b"trips/trip/17.0",),
        (b"trips/trip/17.-1",),
        (b"trips/trip/17.99999999",),
        (b"trips/17.1",),
        (b"trips/ /17.1",),
        (b"others/trip/17.1",),
        (b"trips/trip/" + b"x" * 300 + b".1",),
        (b"trips/trip/17.\xb2",),
        ("trips/trip/17.\u0662".encode(),),
    ],
)
def test_a_reply_to_no_request_is_refused_b82(correlations: tuple[bytes, ...]) -> None:
    routed = route(gathering(), reply(*correlations))
    assert (routed.fate, routed.sent.topic) == (Fate.REJECTED, "supply.rejected")
    assert (said(routed)["uow-error-class"], said(routed)["uow-error-case"]) == (b"BadUnitIdError", b"no-correlation")


def test_plain_traffic_among_replies_passes_if_the_rule_says_so_b97() -> None:
    routed = route(gathering(replace(TRIPS, on_no_key=OnNoKey.PASS_THROUGH)), reply())
    assert (routed.fate, routed.sent.topic) == (Fate.PASSED, "supply.components")


def two_of_replies(**other: Any) -> RecordRouting:
    hotels = replace(TRIPS, rule_id="hotels", priority=200)
    return router(
        TRIPS, replace(hotels, **other), rows={DEFAULT_ROW: Row("trips", DEFAULT_ROW, 1, complete_when="manifest")}
    )


@pytest.mark.parametrize(
    ("correlation", "rule", "key"),
    [
        (b"trips/trip/17.2", "trips", b"trips/trip/17"),
        (b"hotels/rome/17.1", "hotels", b"hotels/rome/17"),
        (b"others/x/17.1", "trips", None),
        (b"17", "trips", None),
        (b"", "trips", None),
    ],
)
def test_rules_that_share_a_topic_of_replies_have_each_its_own_b79_b111(
    correlation: bytes, rule: str, key: bytes | None
) -> None:
    """The first of them refused the replies of the other."""
    routed = route(two_of_replies(), reply(correlation))
    assert (routed.rule_id, routed.fate) == (rule, Fate.REJECTED if key is None else Fate.ROUTED)
    assert key is None or routed.sent.key == key


def test_a_reply_is_no_other_rule_s_where_its_own_does_not_accept_it_b79_b111() -> None:
    routed = route(two_of_replies(accept="header('from') == 'hotel'"), reply(b"hotels/rome/17.1"))
    assert (routed.rule_id, routed.fate, said(routed)["uow-error-case"]) == ("trips", Fate.REJECTED, b"no-correlation")
    routed = route(two_of_replies(accept="header('from') == 'hotel'"), reply(b"hotels/rome/17.1", **{"from": b"hotel"}))
    assert (routed.rule_id, routed.fate) == ("hotels", Fate.ROUTED)


def test_a_reply_goes_past_what_stands_between_its_rule_and_the_other_b79_b111() -> None:
    between = replace(LOW_STOCK, priority=150)
    hotels = replace(TRIPS, rule_id="hotels", priority=200)
    rows = {DEFAULT_ROW: Row("trips", DEFAULT_ROW, 1, complete_when="manifest")}
    assert route(router(TRIPS, between, hotels, rows=rows), reply(b"hotels/rome/17.1")).rule_id == "hotels"


HOTELS_INSIDE, TRIPS_INSIDE = b'{"call": "hotels/rome/17.1"}', b'{"call": "trips/rome/17.1"}'
NESTED = b"[" * 5_000 + b"]" * 5_000


@pytest.mark.parametrize("priority", [1, 200])
@pytest.mark.parametrize(
    ("sent", "rule", "key"),
    [
        (reply(value=HOTELS_INSIDE), "hotels", b"hotels/rome/17"),
        (reply(b"trips/trip/17.2"), "trips", b"trips/trip/17"),
        (reply(b"trips/trip/17.2", value=b"no JSON"), "trips", b"trips/trip/17"),
        (reply(b"17", value=HOTELS_INSIDE), "hotels", b"hotels/rome/17"),
        (reply(b"hotels/rome/17.1"), "", None),
        (reply(value=TRIPS_INSIDE), "", None),
    ],
)
def test_rules_of_replies_may_look_in_places_of_their_own_b79_b111(
    priority: int, sent: FakeRecord, rule: str, key: bytes | None
) -> None:
    """Each is asked whether its own request is where it looks, whichever is asked first; a reply to none is refused by that one."""
    routed = route(two_of_replies(group_key="request:path:call", priority=priority), sent)
    assert routed.fate is (Fate.REJECTED if key is None else Fate.ROUTED)
    assert routed.rule_id == (rule or ("hotels" if priority == 1 else "trips"))
    assert key is None or routed.sent.key == key


@pytest.mark.parametrize(
    "other", [{"accept": "kind == 'hotel'"}, {"group_key": "request:path:call"}], ids=["accept", "place"]
)
def test_a_reply_too_deep_for_a_rule_that_looks_into_it_is_refused_for_that_b79_b111(other: dict[str, Any]) -> None:
    """It said that no rule accepts it, and named none."""
    routed = route(two_of_replies(**other), reply(b"hotels/rome/17.1", value=NESTED))
    assert (routed.rule_id, routed.fate, said(routed)["uow-error-class"]) == ("hotels", Fate.REJECTED, b"DecodeError")
