"""No spelling of a secret is shown: every setting that holds a text, every place of a URL, complaints, errors, the name of a database."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from uow.cli.main import main
from uow.schemas.masking import MASK, masked

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
)


@pytest.mark.parametrize("text", SPELLINGS)
def test_no_spelling_is_shown(text: str) -> None:
    assert SECRET not in masked(text)


@pytest.mark.parametrize(
    "text",
    ["localhost:9092", "sqlite:///rules.db", "https://registry:8081/path", "a.tokens.components", "uow/rules.toml", ""],
)
def test_what_is_no_secret_is_shown(text: str) -> None:
    assert masked(text) == text


def test_harmless_parameters_and_the_place_stay() -> None:
    shown = masked(f"postgresql://uow:{SECRET}@db:5432/rules?sslmode=require&password={SECRET}")
    assert shown == f"postgresql://{MASK}@db:5432/rules?sslmode=require&password={MASK}"


@given(
    user=st.text("abc:%/?#", max_size=5),
    path=st.text("abc/.", max_size=5),
    names=st.lists(st.text("abc_-", min_size=1, max_size=5), max_size=3),
    where=st.integers(0, 3),
)
def test_a_secret_anywhere_in_a_url_is_masked(user: str, path: str, names: list[str], where: int) -> None:
    account = f"{user}{SECRET}@" if where == 0 else ""
    query = "&".join(f"{name}={SECRET if where == 1 else 1}" for name in names)
    fragment = f"#{SECRET}" if where == 2 else ""
    assert SECRET not in masked(f"see https://{account}host/{path}?{query}{fragment} now")


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
