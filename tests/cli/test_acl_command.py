"""`uow acl show` prints what roles need for the destinations asked for, and no right over workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from uow.cli.main import main
from uow.ops.access import commands_text
from uow.topics.access import REMEDIES, Names, Only, Role, bindings, covers_workers, explained
from uow.topics.command_keys import CommandKey
from uow.topics.policies import DestinationPolicy

TOML = """
[application]
id = "{id}"
bootstrap_servers = "nowhere:1"
[destinations.D]
handling_policy = "single_message_delivery"
routing = "path"
[destinations.E]
handling_policy = "single_message_delivery"
[rules]
source = "{rules}"
[routers.one]
inputs = ["one.in"]
rules = ["to-d"]
[routers.two]
inputs = ["two.in"]
rules = ["to-e"]
"""
RULE = '[[rule]]\nrule_id = "to-{0}"\ndestination = "{1}"\ngroup_key = "key"\n[[rule.row]]\nrouting_name = "*"\ncomplete_count = 2\n'


def show(folder: Path, *words: str, application: str = "A") -> tuple[int, str]:
    rules = folder / "rules.toml"
    rules.write_text('version = 1\nauthor = "a"\nwhy = "w"\n' + RULE.format("d", "D") + RULE.format("e", "E"))
    config = folder / "uow.toml"
    config.write_text(TOML.format(id=application, rules=rules))
    done = CliRunner().invoke(main, ["acl", "show", *words, "-c", str(config)])
    return done.exit_code, done.output


def rights(folder: Path, *words: str) -> set[tuple[str, str]]:
    code, output = show(folder, *words, "--json")
    assert code == 0, output
    return {(row["name"], row["operation"]) for row in json.loads(output)}


def test_a_forwarder_claims_partitions_of_a_path_map(tmp_path: Path) -> None:
    assert {("A-D-path-map", "Read"), ("A-D-path-map", "Write")} <= rights(tmp_path, "forwarder")


def test_an_author_of_rules_may_ask_for_the_partitions_that_are_compared() -> None:
    names = Names("A", "D", targets=("T",), conditions=frozenset({Only.RULES}))
    found = {(each.name, each.operation) for each, _ in bindings(Role.RULES_AUTHOR, names)}
    assert {("D.components", "Describe"), ("T", "Describe")} <= found


def test_who_may_write_commands_is_told_what_that_gives_beside_the_keys(tmp_path: Path) -> None:
    said = "D: commands need no signature: whoever may write to D.commands may send each of them, under any name"
    assert said in show(tmp_path, "caller", "--destination", "D")[1]
    assert "need no signature" not in show(tmp_path, "producer")[1]
    assert "E: commands" not in show(tmp_path, "caller", "--destination", "D")[1]
    key = CommandKey("ops", "", frozenset({"all"}))
    assert commands_text("D", DestinationPolicy(command_keys=(key, key))) == (
        "commands need the signature of a key (ops), but for manifest"
    )


@pytest.mark.parametrize("role", ["operator", "audit", "router", "rules-author"])
def test_inputs_are_those_of_the_chosen_destination_s_routers(tmp_path: Path, role: str) -> None:
    def inputs(*words: str) -> set[str]:
        return {name for name, _ in rights(tmp_path, role, *words)} & {"one.in", "two.in"}

    assert inputs("--destination", "D") == {"one.in"}
    assert inputs("--destination", "E") == {"two.in"}
    assert inputs() == {"one.in", "two.in"}


@pytest.mark.parametrize("role", ["producer", "caller", "forwarder", "reader"])
@pytest.mark.parametrize("client", ["", "A", "A-", "A-worker-one", "A-router", "A-router-worker-7"])
def test_ids_of_clients_are_none_of_workers(tmp_path: Path, role: str, client: str) -> None:
    code, output = show(tmp_path, role, "--client", client)
    assert code == 2
    assert "--client" in output
    assert show(tmp_path, role, "--client", "A-client-")[0] == 0


def test_the_default_is_refused_where_it_covers_the_application(tmp_path: Path) -> None:
    assert show(tmp_path, "producer", application="uow-shop")[0] == 2
    assert show(tmp_path, "worker", application="uow-shop")[0] == 0


def test_commands_need_the_ids_of_clients_said(tmp_path: Path) -> None:
    code, output = show(tmp_path, "producer", "--principal", "User:a")
    assert (code, "--client" in output) == (2, True)
    assert show(tmp_path, "producer", "--principal", "User:a", "--client", "shop-")[0] == 0
    assert show(tmp_path, "worker", "--principal", "User:a")[0] == 0


@given(st.text("Auow-rtek", max_size=12), st.text("ab-", max_size=4), st.sampled_from(["worker", "router-worker"]))
def test_no_id_of_a_worker_begins_as_those_of_clients_may(client: str, name: str, kind: str) -> None:
    if f"A-{kind}-{name}".startswith(client):
        assert covers_workers("A", client)


def test_a_router_may_write_the_commands_of_rules() -> None:
    """A failure of a group, and the version of a live rule."""
    names = Names("A", "D", conditions=frozenset({Only.RULES}))
    assert ("D.commands", "Write") in {(each.name, each.operation) for each, _ in bindings(Role.ROUTER, names)}


def test_a_failed_handshake_says_what_to_look_at_by_whichever_name_the_library_tells_of_it() -> None:
    text = "ssl://broker:9093/bootstrap: certificate verify failed (after 42ms in state SSL_HANDSHAKE)"
    assert [explained(name, text) == f"{text}; {REMEDIES['_SSL']}" for name in ("_SSL", "_TRANSPORT")] == [True, True]
    assert explained("_TRANSPORT", "timed out (after 3ms in state CONNECT)").endswith("state CONNECT)")
