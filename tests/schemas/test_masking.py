"""No spelling of a secret is shown: every setting that holds a text, every place of a URL, complaints, errors, the name of a database."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from uow.cli.main import main
from uow.config.loading import Effective
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.schemas.masking import MASK, masked, masked_value
from uow.topics.routers import RulesSettings

SECRET = "hush4711"
SPELLINGS = (
    f"https://user:{SECRET}@registry:8081",
    f"https://{SECRET}@registry:8081",
    f"https://{SECRET}:@registry:8081/path",
    f"https://registry:8081/?apikey={SECRET}",
    f"https://registry:8081/?x=1&API_KEY={SECRET}&y=2",
    f"https://registry:8081/path;key={SECRET}",
    f"https://registry:8081/#{SECRET}",
    f"postgresql://uow@db/rules?password={SECRET}&sslmode=require",
    f"postgresql://db/rules?user=uow&passfile=/x&sslpassword={SECRET}",
    f"postgresql://uow:p@{SECRET}/@db/rules",
    f"one:9092,https://u:{SECRET}@two:9092",
    f"sasl.password={SECRET}",
    f'password: "{SECRET} and more {SECRET}"',
    f"token = {SECRET}",
    f"https://registry:8081/?{SECRET}",
    f"https://registry:8081/https://user:{SECRET}@other",
    f"postgresql://db/rules?options=-cpassword%3D{SECRET}",
)


@pytest.mark.parametrize("text", SPELLINGS)
def test_no_spelling_is_shown(text: str) -> None:
    assert SECRET not in masked(text)
    assert SECRET not in masked_value(text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "localhost:9092",
            "one:9092,two:9092",
            "sqlite:///rules.db",
            "https://registry:8081/path",
            "a.tokens.components",
        ),
        *("uow/rules.toml", "", 'near "x": unrecognized token: "xyz"', "https://registry:8081/subjects/a@b/versions"),
    ],
)
def test_what_is_no_secret_is_shown(text: str) -> None:
    assert masked(text) == masked_value(text) == text


def test_harmless_parameters_and_the_place_stay() -> None:
    shown = masked(f"postgresql://uow:{SECRET}@db:5432/rules?sslmode=require&password={SECRET}")
    assert shown == f"postgresql://{MASK}@db:5432/rules?sslmode=require&password={MASK}"


USERS = (f"user:{SECRET}@", f"{SECRET}@", f"us%20er:a{SECRET}:b@", f"u:a {SECRET}@", f'u:"{SECRET}@', f"u:a@{SECRET}@")
WRITTEN = ("{}", '"{}"', "'{}'", '"a\\"{}"', "'a\\'{}'", "a,{}", "a;{}", "Bearer {}", "basic {}")
NAMES = (
    "password",
    "ssl.key.password",
    "PGPASSWORD",
    "pass",
    "passphrase",
    "Authorization",
    "api_key",
    "sasl.oauthbearer.client.secret",
)
WITH_NAMES = ("{}={}", "{}: {}", "{} = {}", '{{"{}": {}}}', "{{'{}': {}, 'x': 1}}", '{{\\"{}\\":{}}}', "{} => {}")
PLACES = ("{}", "see {} now", "({})", "first, {}", "'{}'")


@pytest.mark.parametrize("scheme", ["https://", "postgresql://", "postgresql+psycopg://", "//", "https:/", ""])
@pytest.mark.parametrize("user", USERS)
def test_a_user_of_a_setting_is_masked_in_each_spelling(scheme: str, user: str) -> None:
    shown = masked_value(f"{scheme}{user}host:8081/rules")
    assert SECRET not in shown
    assert shown.endswith("@host:8081/rules")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("user", USERS)
def test_a_user_of_a_url_is_masked_wherever_it_is_quoted(place: str, user: str) -> None:
    """A space ends a URL in a sentence, unless a password has begun: that lasts until its @."""
    assert SECRET not in masked(place.format(f"https://{user}host:8081/rules"))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("named", WITH_NAMES)
@pytest.mark.parametrize("name", NAMES)
def test_a_named_secret_is_masked_to_its_end_wherever_it_stands(place: str, named: str, name: str) -> None:
    for written in WRITTEN:
        text = place.format(named.format(name, written.format(SECRET)))
        assert SECRET not in masked(text), text
        assert SECRET not in masked_value(text), text


@given(
    user=st.text("abc:%@", max_size=5),
    path=st.text("abc/.", max_size=5),
    names=st.lists(st.text("abc_-", max_size=5), max_size=3),
    where=st.integers(0, 3),
    marks=st.lists(st.sampled_from("&;"), min_size=3, max_size=3),
    equals=st.sampled_from(["=", ""]),
)
def test_a_secret_anywhere_in_a_url_is_masked(
    user: str, path: str, names: list[str], where: int, marks: list[str], equals: str
) -> None:
    account = f"{user}{SECRET}@" if where == 0 else ""
    query = "".join(
        f"{name}{equals if name else ''}{SECRET if where == 1 else 1}{mark}"
        for name, mark in zip(names, marks, strict=False)
    )
    fragment = f"#{SECRET}" if where == 2 else ""
    url = f"https://{account}host/{path}?{query}{fragment}"
    assert SECRET not in masked(f"see {url} now")
    assert SECRET not in masked_value(url)


@given(st.text(st.sampled_from(":/@?#[] .,;=\"'\\apsword\n"), max_size=40))
def test_a_password_of_a_database_s_url_is_masked_whatever_it_is_made_of(noise: str) -> None:
    shown = masked_value(f"postgresql://uow:{noise}{SECRET}{noise}@host/db")
    assert SECRET not in shown.rpartition("@")[0]


def test_no_text_takes_long() -> None:
    """A pattern that tries each beginning with each end would take hours."""
    for part in ("a.", "a", "password", "a:", "(a:b", '"', "//", "https://a:", "https://a:b ", "https:/", "\\"):
        masked(part * 20_000)
        masked_value(part * 20_000)


def test_settings_do_not_tell_theirs_as_python_values() -> None:
    url = f"https://user:{SECRET}@host"
    for each in (
        RulesSettings(source=url),
        WorkerSettings("a", "b", "c", kafka={"sasl.password": SECRET}, registry_url=url, rules=RulesSettings(url)),
        Effective("kafka.sasl.password", SECRET, "uow.toml"),
    ):
        assert SECRET not in repr(each)


TEXT_SETTINGS = (
    "SCHEMAS__REGISTRY_URL",
    "RULES__SOURCE",
    "APPLICATION__BOOTSTRAP_SERVERS",
    "WORKER__WEB",
    "KAFKA__SOMETHING_NEW",
)


@pytest.mark.parametrize("setting", TEXT_SETTINGS)
@pytest.mark.parametrize(
    "spelling", [each for each in SPELLINGS if "p@" not in each]
)  # of that one it is the host's name
def test_neither_config_show_nor_its_complaints_show_one(setting: str, spelling: str) -> None:
    variables = {f"UOW_{setting}": spelling, "UOW_APPLICATION__ID": "A"}
    for words in (("config", "show"), ("config", "show", "--json"), ("config", "check"), ("config", "check", "--json")):
        done = CliRunner().invoke(main, words, env=variables)
        assert SECRET not in done.output + json.dumps(str(done.exception)), done.output
