"""`docs/configuration.md` is what the declarations say."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from uow.config.settings import DESTINATION, SETTINGS
from uow.config.settings_page import PAGE, page
from uow.topics.policies import DestinationPolicy

ROOT = Path(__file__).parents[2]


def test_page_has_not_drifted_from_the_declarations() -> None:
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page(), "run: python -m uow.config.settings_page"


def test_every_setting_of_a_destination_is_declared_with_the_policys_default() -> None:
    declared = {setting.key: setting.default for setting in SETTINGS if setting.section == DESTINATION}
    policy = {field.name: field.default for field in fields(DestinationPolicy) if field.name != "accept_aliases"}
    assert {key: declared[key] for key in policy} == policy
    assert {*declared} - {*policy} == {"accept_aliases"}


def test_every_default_keeps_its_own_bound() -> None:
    assert [setting.name for setting in SETTINGS if not setting.bound.holds(setting.default)] == []
