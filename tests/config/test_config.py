"""Reading the configuration: rows "input, complaint", every complaint at once, origins (`docs/configuration.md`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from uow.config.loading import MASK, Settings, load
from uow.schemas.error_classes import ConfigError
from uow.topics.policies import (
    AliasFamily,
    DestinationPolicy,
    ExpirationPolicy,
    HandlingPolicy,
    OutcomesPolicy,
)
from uow.topics.routers import RouterSettings, RulesSettings
from uow.topics.routes import RouteMatching

EXAMPLE = Path(__file__).parents[2] / "examples" / "uow.toml"


@pytest.fixture
def read_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`read_as_written(text, variables)`: the settings of a file and an environment."""
    monkeypatch.chdir(tmp_path)

    def read(text: str = "", environ: Mapping[str, str] | None = None) -> Settings:
        Path("uow.toml").write_text(text, encoding="utf-8")
        return load(None, environ or {})

    return read


@pytest.fixture
def read(read_as_written):
    """The same, where each destination of the file that gives no `handling_policy` gets one: it must have one, and few tests are about it."""

    def read(text: str = "", environ: Mapping[str, str] | None = None) -> Settings:
        return read_as_written(_with_policies(text), environ)

    return read


def _with_policies(text: str) -> str:
    for name in dict.fromkeys(re.findall(r"(?m)^\[\[?destinations\.([\w-]+|'.*?'|\".*?\")", text)):
        policy = f'[destinations.{name}]\nhandling_policy = "pass_through"\n'
        if re.search(rf"(?m)^\[destinations\.{re.escape(name)}\](?:\n(?!\[).*)*handling_policy", text):
            continue
        if f"[destinations.{name}]" in text:
            text = text.replace(f"[destinations.{name}]", policy, 1)
        elif f"[[destinations.{name}." in text:
            text = policy + text
    return text


def complaints(read, text: str = "", environ: Mapping[str, str] | None = None) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        read(text, environ)
    return {each.setting: each.rule for each in caught.value.complaints}


def d(*lines: str) -> str:
    return "\n".join(["[destinations.d]", *lines])


def r(*lines: str) -> str:
    return "\n".join(["[[destinations.d.routes]]", *lines, ""])


def test_nothing_given_is_all_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load(None, {})
    assert settings.bootstrap_servers == "localhost:9092"
    assert settings.destinations == {}
    assert settings.origin("worker.poll_records") == "default"


def test_destination_with_no_more_than_a_handling_policy_has_the_defaults(read_as_written) -> None:
    settings = read_as_written("[destinations.megazon]\nhandling_policy = 'pass_through'")
    assert settings.destinations == {"megazon": DestinationPolicy()}


@pytest.mark.parametrize(
    "text", ["[destinations.d]", "[destinations.d]\ntemplate = 't'\n[templates.t]\nshape = 'envelope'"]
)
def test_destination_must_say_whether_it_makes_units_w64(read_as_written, text: str) -> None:
    found = complaints(read_as_written, text)
    assert [*found] == ["destinations.d.handling_policy"]
    assert "must be given" in found["destinations.d.handling_policy"]
    assert "`single_message_delivery` assembles components into units" in found["destinations.d.handling_policy"]


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        ("[destinations.d]\ntemplate = 't'\n[templates.t]\nhandling_policy = 'single_message_delivery'", {}),
        ("[destinations.d]", {"UOW_DESTINATIONS__D__HANDLING_POLICY": "single_message_delivery"}),
        ("", {"UOW_DESTINATIONS__D__HANDLING_POLICY": "single_message_delivery"}),
    ],
)
def test_template_or_variable_may_say_it_w64(read_as_written, text: str, environ: Mapping[str, str]) -> None:
    assert read_as_written(text, environ).policy("d").handling_policy is HandlingPolicy.SINGLE_MESSAGE_DELIVERY


def test_values_of_every_kind_arrive_as_policy(read) -> None:
    policy = read(
        d(
            """
            handling_policy = "single_message_delivery"
            incomplete_expiration_ms = 60_000
            expiration_policy = "deliver_partial"
            accept_aliases = ["jms", "mq"]
            expiration_log_headers = ["trace"]
            """
        )
    ).policy("d")
    assert policy.handling_policy is HandlingPolicy.SINGLE_MESSAGE_DELIVERY
    assert policy.expiration_policy is ExpirationPolicy.DELIVER_PARTIAL
    assert policy.incomplete_expiration_ms == 60_000
    assert policy.accept_aliases == {AliasFamily.JMS, AliasFamily.MQ}
    assert policy.expiration_log_headers == ("trace",)


def test_destination_on_mirrored_topics_is_refused_w112(read) -> None:
    text = '[templates.all]\nmirror_prefixes = ["west."]\n[destinations.NAME]\ntemplate = "all"\n'
    assert read(text.replace("NAME", "megazon")).policy("megazon").mirror_prefixes == ("west.",)
    with pytest.raises(ConfigError, match="a mirror: the cluster it is copied from delivers"):
        read(text.replace("NAME", '"west.megazon"'))


def test_destination_inherits_from_a_template_key_by_key_w67(read) -> None:
    text = "[templates.slow]\nincomplete_expiration_ms = 60000\noutcomes = 'all'\n"
    for own, expected in (
        ("", 60_000),
        ("incomplete_expiration_ms = 5000", 5000),
        ("incomplete_expiration_ms = -1", -1),
    ):
        policy = read(f"{text}[destinations.d]\ntemplate = 'slow'\n{own}\n").policy("d")
        assert (policy.incomplete_expiration_ms, policy.outcomes) == (expected, OutcomesPolicy.ALL)


def test_origin_of_an_inherited_value_names_the_template_w67(read) -> None:
    settings = read("[templates.slow]\nmax_bytes = 5\n[destinations.d]\ntemplate = 'slow'\n")
    assert settings.origin("destinations.d.max_bytes").endswith("[templates.slow]")
    assert settings.origin("destinations.d.shape") == "default"


def test_variable_sets_a_templates_value_and_names_a_destinations_template_w67(read) -> None:
    given = {"UOW_TEMPLATES__SLOW__MAX_BYTES": "7", "UOW_DESTINATIONS__D__TEMPLATE": "slow"}
    assert read("[templates.slow]\nmax_bytes = 5\n[destinations.d]\n", given).policy("d").max_bytes == 7


def test_routes_arrive_as_policy_and_are_shown_as_they_were_given_w98(read) -> None:
    lanes = r("when = 'uow-priority >= 7'", "to = 'd.urgent'") + r("when = 'uow-size > 9'", "to = 'd.units'")
    settings = read(d("handling_policy = 'single_message_delivery'\nroute_matching = 'all'\n") + lanes)
    policy = settings.policy("d")
    assert [(route.when.text, route.to) for route in policy.routes] == [
        ("uow-priority >= 7", "d.urgent"),
        ("uow-size > 9", "d.units"),
    ]
    assert policy.route_matching is RouteMatching.ALL
    shown = settings.effective["destinations.d.routes"]
    assert (shown.shown, shown.origin) == (["d.urgent when uow-priority >= 7", "d.units when uow-size > 9"], "uow.toml")


def test_every_wrong_route_is_told_at_once_w98(read) -> None:
    wrong = complaints(read, r("when = 'a'", "to = 'x'") + r("when = 'b'", "to = 'x'"))["destinations.d.routes"]
    assert wrong.count("at character 2: expected =") == 2


def test_routes_of_a_destination_without_units_are_warned_about_w98(read) -> None:
    assert "routes have no effect under pass_through" in "".join(read(r("when = 'a = 1'", "to = 'x'")).warnings)


ROWS = [
    # unknown names, with the nearest known one
    ("[wroker]\n", "wroker", "did you mean worker?"),
    ("[worker]\npoll_record = 3", "worker.poll_record", "did you mean poll_records?"),
    ("worker = 3", "worker", "must be a section"),
    ("zzz = 3", "zzz", "no such section"),
    (d("shap = 'envelope'"), "destinations.d.shap", "did you mean shape?"),
    ("[destinations]\nd = 3", "destinations.d", "must be a section"),
    ("[destinations.west.megazon]", "destinations.west.megazon", '[destinations."west.megazon"]'),
    # kinds
    ("[worker]\npoll_records = 'many'", "worker.poll_records", "must be an integer"),
    ("[worker]\npoll_records = true", "worker.poll_records", "must be an integer"),
    ("[worker]\npoll_records = 1.5", "worker.poll_records", "must be an integer"),
    ("[worker]\nweb = 6066", "worker.web", "must be a text"),
    (d("strict_order = 'perhaps'"), "destinations.d.strict_order", "must be true or false"),
    (d("late_policy = 'amend'", "strict_order = true"), "destinations.d.late_policy", "strict_order = true"),  # B-205
    (d("late_policy = 'amend'", "routing = 'path'"), "destinations.d.late_policy", 'routing = "path"'),
    (d("late_policy = 'amend'", "shape = 'reference'"), "destinations.d.late_policy", 'shape = "reference"'),
    (d("late_policy = 'amend'", "oversize = 'reference'"), "destinations.d.late_policy", 'oversize = "reference"'),
    (d("amend_max_bytes = 0"), "destinations.d.amend_max_bytes", "at least 1"),
    (d("accept_aliases = 3"), "destinations.d.accept_aliases", "must be a list"),
    (d("accept_aliases = ['nifi', 'nifi_from_1']"), "destinations.d.accept_aliases", "choose the one of the processor"),
    (d("accept_aliases = ['jsm']"), "destinations.d.accept_aliases", "did you mean jms?"),
    (
        d("handling_policy = 'Foo'"),
        "destinations.d.handling_policy",
        "must be one of pass_through, single_message_delivery",
    ),  # W-64
    # bounds
    ("[application]\nid = 'a b'", "application.id", "letters, digits"),
    ("[application]\nbootstrap_servers = 'somewhere'", "application.bootstrap_servers", "HOST:PORT"),
    ("[worker]\nweb = 'everywhere'", "worker.web", '"off"'),
    ("[worker]\npoll_records = 0", "worker.poll_records", "1 to 100000"),
    ("[worker]\nsession_timeout_ms = 10", "worker.session_timeout_ms", "1000 to"),
    ("[worker]\ncommit_interval_ms = 9000", "worker.commit_interval_ms", "half of worker.transaction_timeout_ms"),
    ("[schemas]\nregistry_url = 'registry'", "schemas.registry_url", "http"),
    (d("incomplete_expiration_ms = 0"), "destinations.d.incomplete_expiration_ms", "-1 (never) or at least 1"),  # W-72
    (d("incomplete_expiration_ms = -2"), "destinations.d.incomplete_expiration_ms", "-1 (never) or at least 1"),  # W-72
    (d("idle_expiration_ms = 0"), "destinations.d.idle_expiration_ms", "-1 (never) or at least 1"),
    (d("max_components = 2147483648"), "destinations.d.max_components", "1 to 2147483647"),  # W-20
    (d("closed_retention_ms = 0"), "destinations.d.closed_retention_ms", "at least 1"),
    ("[destinations.'a b']", "destinations.a b", "letters, digits"),
    ("[destinations.'a.b']\n[destinations.a_b]", "destinations.a_b", "only in '.' and '_'"),
    ("[worker]\nreplay_limit_records = -1", "worker.replay_limit_records", "0"),
    ("[worker]\nreplay_limit_bytes = -1", "worker.replay_limit_bytes", "0"),
    ("[worker]\nreplay_limit_ms = -1", "worker.replay_limit_ms", "0"),
    ("[client]\nreconnect_policy = 'some'", "client.reconnect_policy", "must be one of none, producer, all"),
    ("[client]\nreconnect_total_ms = -2", "client.reconnect_total_ms", "at least 0"),
    # templates and mirrors
    (d("template = 'slwo'") + "\n[templates.slow]", "destinations.d.template", "did you mean slow?"),
    ("[templates.slow]\nmax_bytes = 0", "templates.slow.max_bytes", "at least 1"),
    ("[templates.slow]\ntemplate = 'other'", "templates.slow.template", "no such setting"),
    ("templates.slow = 3", "templates.slow", "must be a section"),
    (d("shape = 'heap'"), "destinations.d.shape", "must be one of envelope, consecutive, reference"),
    (d("oversize = 'envelope'"), "destinations.d.oversize", "must be one of fail, consecutive, reference"),
    (d("concurrency = 2"), "destinations.d.concurrency", "only 1 is supported yet"),
    (d("share_subscription = true"), "destinations.d.share_subscription", "only false is supported yet"),
    (d("strict_priority = 10"), "destinations.d.strict_priority", "0 to 9"),
    (d("strict_group = 'a b'"), "destinations.d.strict_group", "letters, digits"),
    (d("strict_attach = 'wait'"), "destinations.d.strict_attach", "must be one of standby, fail"),
    (d("strict_order = true", "mirror_prefixes = ['d']"), "destinations.d", "are a mirror"),  # S-18
    (d("redelivery_limit = -2"), "destinations.d.redelivery_limit", "-1 (never) or at least 0"),
    # routes: W-98
    (r("when = 7", "to = 'x'"), "destinations.d.routes", "route 1: must have two settings, both texts: when and to"),
    (r("to = 'x'"), "destinations.d.routes", "route 1: must have two settings, both texts: when and to"),
    (r("when = 'a = 1'", "to = 'a b'"), "destinations.d.routes", "to = 'a b' is not a legal topic name"),
    (
        r("when = 'a = 1'", "to = 'x'") + r("when = 'a ='", "to = 'x'"),
        "destinations.d.routes",
        "route 2: when: at character 4: expected a number",
    ),
    (d("routes = 'x'"), "destinations.d.routes", "[[destinations.NAME.routes]]"),
    (d("routes = ['x']"), "destinations.d.routes", "[[destinations.NAME.routes]]"),
    (
        r("when = 'uow-seq = 1'", "to = 'x'"),
        "destinations.d.routes",
        "uow-seq is never on a unit; a unit may have uow-correlation-id,",
    ),
    (
        d("accept_aliases = ['jms']\n") + r("when = 'JMSPriority = 9'", "to = 'x'"),
        "destinations.d.routes",
        "JMSPriority is called uow-priority on a unit",
    ),
    (r("when = 'a = 1'", "to = 'd.errors'"), "destinations.d.routes", "'d.errors' is a topic of destination 'd'"),
    (r("when = 'a = 1'", "to = 'uow-d-groups-changelog'"), "destinations.d.routes", "a topic of destination 'd'"),
    (r("when = 'a = 1'", "to = 'e.units'") + "[destinations.e]", "destinations.d.routes", "a topic of destination 'e'"),
    (
        r("when = 'a = 1'", "to = 'x'") + "[[destinations.e.routes]]\nwhen = 'a = 1'\nto = 'x'",
        "destinations.e.routes",
        "'x' is a topic of destination 'd'",
    ),
    # librdkafka properties that would break a promise
    ("[kafka]\n'isolation.level' = 'read_uncommitted'", "kafka.isolation.level", "read_committed"),
    ("[kafka]\nisolation.level = 'read_uncommitted'", "kafka.isolation.level", "read_committed"),
    ("[kafka]\n'log.connection.close' = false", "kafka.log.connection.close", "late requests of a producer"),
    ("[kafka]\n'enable.auto.commit' = true", "kafka.enable.auto.commit", "ahead of the work"),
    ("[kafka]\n'partitioner' = 'consistent_random'", "kafka.partitioner", "murmur2_random"),
    ("[kafka]\n'acks' = 1", "kafka.acks", "must be all"),
    ("[kafka]\n'transactional.id' = 'x'", "kafka.transactional.id", "worker's name"),
    ("[kafka]\n'bootstrap.servers' = 'h:1'", "kafka.bootstrap.servers", "application.bootstrap_servers"),
    ("[kafka]\n'socket.timeout.ms' = 60000", "kafka.socket.timeout.ms", "at most worker.transaction_timeout_ms"),
    ("[kafka]\n'debug' = ['a']", "kafka.debug", "must be a text or a number"),
    # no TOML
    ("[worker", "file", "is not TOML"),
    pytest.param("x = " + "[" * 5_000, "file", "is not TOML", id="nested 5,000 deep"),
]


@pytest.mark.parametrize(("text", "setting", "rule"), ROWS)
def test_wrong_setting_is_named_with_its_rule(read, text: str, setting: str, rule: str) -> None:
    found = complaints(read, text)
    assert [*found] == [setting]
    assert rule in found[setting]


def test_every_complaint_comes_at_once(read) -> None:
    found = complaints(
        read, "[worker]\npoll_records = 0\nweb = 1\n" + d("shape = 'Foo'"), {"UOW_SCHEMAS__REGISTRY_URL": "x"}
    )
    assert {*found} == {"worker.poll_records", "worker.web", "destinations.d.shape", "schemas.registry_url"}


def test_accepted_kafka_properties_arrive_as_texts(read) -> None:
    kafka = read(
        "[kafka]\nsecurity.protocol = 'SASL_SSL'\n'socket.keepalive.enable' = true\n'fetch.min.bytes' = 5\nacks = 'all'"
    ).kafka
    assert kafka == {
        "security.protocol": "SASL_SSL",
        "socket.keepalive.enable": "true",
        "fetch.min.bytes": "5",
        "acks": "all",
    }


def test_named_file_that_is_missing_is_a_complaint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "none.toml", {})


# -- the environment


def test_environment_wins_over_the_file_and_both_are_named(read) -> None:
    settings = read("[worker]\npoll_records = 7\nweb = 'off'", {"UOW_WORKER__POLL_RECORDS": "9"})
    assert (settings.value("worker.poll_records"), settings.origin("worker.poll_records")) == (
        9,
        "UOW_WORKER__POLL_RECORDS",
    )
    assert (settings.value("worker.web"), settings.origin("worker.web")) == ("off", "uow.toml")


def test_letter_case_of_a_variable_does_not_matter(read) -> None:
    assert read("", {"uow_Worker__Poll_Records": "9"}).value("worker.poll_records") == 9


def test_destination_may_exist_in_the_environment_only(read) -> None:
    settings = read(
        "",
        {
            "UOW_DESTINATIONS__MEGAZON__HANDLING_POLICY": "single_message_delivery",
            "UOW_DESTINATIONS__MEGAZON__ACCEPT_ALIASES": "jms, mq",
        },
    )
    assert settings.policy("megazon").handling_policy is HandlingPolicy.SINGLE_MESSAGE_DELIVERY
    assert settings.policy("megazon").accept_aliases == {AliasFamily.JMS, AliasFamily.MQ}


@pytest.mark.parametrize("name", ["West.Megazon", "west-megazon", "WEST_MEGAZON"])
def test_variable_means_the_destination_that_reads_the_same_in_small_letters(read, name: str) -> None:
    settings = read(f"[destinations.'{name}']", {"UOW_DESTINATIONS__WEST_MEGAZON__MAX_COMPONENTS": "5"})
    assert [*settings.destinations] == [name]
    assert settings.policy(name).max_components == 5


def test_variable_that_may_mean_two_destinations_is_a_complaint(read) -> None:
    text = "[destinations.A-b]\n[destinations.a-B]"
    assert "A-b or a-B" in complaints(read, text, {"UOW_DESTINATIONS__A_B__SHAPE": "envelope"})["destinations.a_b"]


def test_destinations_name_may_hold_the_delimiter(read) -> None:
    settings = read("", {"UOW_DESTINATIONS__A__B__HANDLING_POLICY": "pass_through"})
    assert settings.policy("a__b").handling_policy is HandlingPolicy.PASS_THROUGH


def test_kafka_property_in_a_variable_has_underscores_for_dots(read) -> None:
    environ = {"UOW_KAFKA__SASL_PASSWORD": "x", "UOW_KAFKA__LOG_LEVEL": "3"}
    assert read("", environ).kafka == {"sasl.password": "x", "log_level": "3"}


@pytest.mark.parametrize(
    ("variable", "setting", "rule"),
    [
        ("UOW_WROKER__WEB", "wroker", "did you mean worker? (from UOW_WROKER__WEB)"),
        ("UOW_WORKER__WEBB", "worker.webb", "did you mean web? (from UOW_WORKER__WEBB)"),
        ("UOW_APPLICATION_ID", "UOW_APPLICATION_ID", "did you mean UOW_APPLICATION__ID?"),
        ("UOW_DESTINATIONS__SHAPE", "destinations.shape", "UOW_DESTINATIONS__NAME__SETTING"),
        ("UOW_WORKER__POLL_RECORDS", "worker.poll_records", "must be an integer (from UOW_WORKER__POLL_RECORDS)"),
        ("UOW_KAFKA__ISOLATION_LEVEL", "kafka.isolation.level", "read_committed"),
    ],
)
def test_wrong_variable_is_a_complaint(read, variable: str, setting: str, rule: str) -> None:
    found = complaints(read, "", {variable: "x"})
    assert [*found] == [setting]
    assert rule in found[setting]


def test_two_variables_for_one_setting_are_a_complaint(read) -> None:
    assert "also given by" in complaints(read, "", {"UOW_WORKER__WEB": "off", "uow_worker__web": "off"})["worker.web"]


def test_variables_that_are_no_settings_are_left_alone(read) -> None:
    assert read("", {"UOW_MAVEN_REPOSITORY": "x", "HOME": "/"}).value("worker.web") == "127.0.0.1:6066"


# -- secrets and warnings


def test_secrets_are_masked_where_they_are_shown(read) -> None:
    settings = read(
        "[kafka]\n'sasl.password' = 'hush'\n'ssl.key.password' = 'hush'\n[schemas]\nregistry_url = 'https://me:hush@registry'",
    )
    shown = {name: each.shown for name, each in settings.effective.items()}
    assert shown["kafka.sasl.password"] == shown["kafka.ssl.key.password"] == MASK
    assert shown["schemas.registry_url"] == f"https://{MASK}@registry"
    assert settings.kafka["sasl.password"] == "hush"


def test_secrets_are_masked_in_complaints(read) -> None:
    with pytest.raises(ConfigError) as caught:
        read("[kafka]\n'sasl.password' = ['hush']")
    assert "hush" not in str(caught.value)


def test_properties_that_nobody_knows_are_masked_and_those_that_are_no_secrets_are_shown(read) -> None:
    """A mistyped name has the secret of the right one."""
    names = "sasl.pasword", "ssl.keystore.passwd", "my.token", "sasl.oauthbearer.config", "ssl_key", "ssl.key.pem"
    settings = read("[kafka]\nlinger.ms = 5\n'client.id' = 'me'\n" + "\n".join(f"'{name}' = 'hush'" for name in names))
    shown = {name: each.shown for name, each in settings.effective.items()}
    assert {shown[f"kafka.{name}"] for name in names} == {MASK}
    assert (shown["kafka.linger.ms"], shown["kafka.client.id"]) == ("5", "me")


@pytest.mark.parametrize(
    ("document", "environ"),
    [
        ("[application]\n'sasl.password' = 'hush'", {}),
        ("[worker]\npassword = 'hush'", {}),
        ("kafka = 'hush'", {}),
        ("password = 'hush'", {}),
        ("[destinations]\nmegazon = 'hush'", {}),
        ("[destinations.megazon]\npassword = 'hush'", {}),
        ("", {"UOW_SCHEMAS__PASSWORD": "hush"}),
        ("", {"UOW_KAFKA__SASL_PASWORD": "hush", "uow_kafka__sasl_pasword": "hush"}),
    ],
)
def test_no_complaint_shows_what_is_in_the_wrong_place(read, document: str, environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read(document, environ)
    assert "hush" not in str(caught.value)


def test_group_without_limit_is_warned_about(read) -> None:
    """W-72."""
    assert "may wait for ever" in "".join(read(d("handling_policy = 'single_message_delivery'")).warnings)
    assert not read(d("handling_policy = 'single_message_delivery'\nincomplete_expiration_ms = 5")).warnings
    assert "may be deleted before the unit" in "".join(
        read(d("handling_policy = 'single_message_delivery'\nshape = 'reference'")).warnings
    )


def test_limit_under_pass_through_is_warned_about(read) -> None:
    """W-73."""
    assert "no effect under pass_through" in "".join(read(d("incomplete_expiration_ms = 5")).warnings)
    assert not read(d("")).warnings


def test_unknown_destination_is_told_with_the_nearest_name(read) -> None:
    with pytest.raises(ConfigError, match="did you mean megazon"):
        read("[destinations.megazon]").policy("megazone")


def test_the_example_is_good() -> None:
    settings = load(EXAMPLE, {})
    assert settings.policy("megazon").handling_policy is HandlingPolicy.SINGLE_MESSAGE_DELIVERY
    assert not settings.warnings


ROUTER = """
[rules]
source = "sqlite:///rules.db"
[destinations.supply]
[routers.stock]
inputs = ["stock.events", "returns"]
"""


def test_routers_and_rules_arrive_as_settings(read) -> None:
    settings = read(ROUTER, {"UOW_RULES__REFRESH_MS": "2000", "UOW_ROUTERS__STOCK__RULES": "low-stock, returns"})
    assert settings.rules == RulesSettings("sqlite:///rules.db", 2000)
    assert settings.routers == {"stock": RouterSettings(("stock.events", "returns"), ("low-stock", "returns"))}
    worker = settings.worker("0")
    assert worker.inputs == {"stock.events": "stock", "returns": "stock"}
    assert worker.of_routers.application_id == "uow-router"
    assert worker.of_routers.transactional_id != worker.transactional_id


def test_password_of_the_rules_database_is_not_shown(read) -> None:
    settings = read('[rules]\nsource = "postgresql://uow:secret@db/rules"')
    assert settings.effective["rules.source"].shown == f"postgresql://{MASK}@db/rules"


@pytest.mark.parametrize(
    ("text", "setting", "rule"),
    [
        (ROUTER.replace("sqlite:///rules.db", ""), "rules.source", "routers need rules"),
        (ROUTER + "[routers.other]", "routers.other.inputs", "at least one topic"),
        (ROUTER + '[routers.two]\ninputs = ["returns"]', "routers.two.inputs", "a record is routed once"),
        (ROUTER + '[routers.two]\ninputs = ["supply.components"]', "routers.two.inputs", "read by the workers"),
        (ROUTER + '[routers.two]\ninputs = ["a b"]', "routers.two.inputs", "names of topics"),
        (ROUTER + "input_stall_ms = 16000", "routers.stock.input_stall_ms", "must be above worker.session_timeout_ms"),
        (ROUTER + "[routers.two]\ninput = []", "routers.two.input", "did you mean inputs"),
        ("[rules]\nrefresh_ms = 1", "rules.refresh_ms", "100 to"),
    ],
)
def test_router_that_cannot_be_is_refused(read, text: str, setting: str, rule: str) -> None:
    assert rule in complaints(read, text)[setting]


CONTRARY = d(
    "strict_order = true",
    "concurrency = 8",
    "max_batch_size = 50",
    "receive_exclusive = false",
    "share_subscription = true",
    "sequential_failure_threshold = 5",
)


def test_each_value_that_strict_order_overrides_is_told_once_s27(read) -> None:
    """S-04, S-10, S-12: a warning each, and the effective value with its origin."""
    settings = read(CONTRARY)
    told = [each for each in settings.warnings if each.startswith("OrderOverrideWarning")]
    assert len(told) == len(settings.overrides) == 5
    assert "concurrency is 8, strict order makes it 1" in told[0]
    policy = settings.policy("d")
    assert (policy.concurrency, policy.max_batch_size, policy.sequential_failure_threshold) == (1, 1, 1)
    assert (policy.receive_exclusive, policy.share_subscription) == (True, False)
    assert settings.effective["destinations.d.concurrency"].origin == "strict_order, in place of 8 from uow.toml"


def test_strict_order_has_defaults_of_its_own_and_its_settings_mean_nothing_without_it(read) -> None:
    strict, usual = read(d("strict_order = true")), read(d("strict_producers = 'plain'"))
    policy = strict.policy("d")
    assert (policy.exception_destination, policy.auto_stop_on_failure, policy.receive_exclusive) == ("none", True, True)
    assert not [each for each in strict.warnings if "Order" in each]
    assert any("strict_producers has no effect without strict_order" in each for each in usual.warnings)
    moved = read(d("strict_order = true", "exception_destination = 'errors'"))
    assert any("leaves a gap in the order" in each for each in moved.warnings)
