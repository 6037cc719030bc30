"""The proof's plan and its words: what a seed draws, and that no anomaly goes untold."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import uow.prove
from uow.cli.main import main
from uow.cli.prove_command import _cluster
from uow.config.loading import load
from uow.prove.faults import SHARES, STEPS, TEXTS, FaultKind, draw, parted
from uow.prove.proof import ProofSettings
from uow.prove.proof_report import QUESTIONS
from uow.prove.reading import conservation

METRICS = """\
# HELP uow_components_total Records by what became of them
uow_components_total{destination="d",partition="0",fate="received"} 10.0
uow_components_total{destination="d",partition="0",fate="held"} 7.0
uow_components_total{destination="d",partition="0",fate="rejected"} 2.0
uow_components_total{destination="d",partition="0",fate="passed"} 1.0
uow_components_total{destination="d",partition="0",fate="delivered"} 4.0
uow_components_total{destination="d",partition="0",fate="expired"} 1.0
uow_open_components{destination="d",partition="0"} 2.0
uow_open_groups{destination="d",partition="0"} 1.0
"""


def test_every_anomaly_that_can_be_said_answers_exactly_one_question() -> None:
    paths = Path(uow.prove.__file__).parent.glob("*.py")
    source = "".join(path.read_text(encoding="utf-8") for path in paths if path.name != "client_judge.py")
    said = {*re.findall(r'\bsay\(\s*"([a-z ]+)"', source)} | {"missing", "unaccounted", "doubled", "both"}
    asked = [kind for question in QUESTIONS for kind in question.kinds]
    assert len(asked) == len({*asked})
    assert {*asked} == said


def test_every_kind_of_fault_has_a_text_and_a_share() -> None:
    assert {*TEXTS} == {*SHARES} == {*FaultKind}


@pytest.mark.parametrize("seed", range(20))
def test_a_seed_draws_each_kind_and_each_step(seed: int) -> None:
    faults = draw(random.Random(seed), list(FaultKind), 30)
    assert len(faults) == 30
    assert {fault.kind for fault in faults} == {*FaultKind}
    assert {fault.step for fault in faults if fault.kind is FaultKind.STEP} == {*STEPS}
    mine, rest = parted(faults)
    assert len(mine) + len(rest) == 30
    assert all(fault.kind.is_of_worker for fault in mine)
    assert not any(fault.kind.is_of_worker for fault in rest)


def test_the_same_seed_asks_for_the_same_rounds() -> None:
    one, other = ProofSettings(7, list(FaultKind)), ProofSettings(7, list(FaultKind))
    assert replace(one.setup(3), name="") == replace(other.setup(3), name="")
    assert one.setup(3).name != other.setup(3).name
    assert replace(one.setup(4), name="") != replace(one.setup(3), name="")


def test_command_to_have_it_again_names_everything_that_was_asked_for() -> None:
    settings = ProofSettings(7, [FaultKind.KILL, FaultKind.DISK_FULL], rounds=2, workers=3, per_round=9, rate=100)
    told = "uow prove --rounds 2 --seed 7 --workers 3 --per-round 9 --faults kill,disk-full --rate 100"
    assert settings.command == told


def test_workers_get_the_clusters_properties_and_nothing_else_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secrets go by the environment, never into a file; what somebody set for workers of their own is not for these."""
    monkeypatch.setenv("UOW_WORKER__POLL_RECORDS", "7")
    file = tmp_path / "uow.toml"
    file.write_text(
        '[application]\nid = "mine"\nbootstrap_servers = "far:9092"\n'
        '[kafka]\n"security.protocol" = "SASL_SSL"\n"sasl.password" = "s3cret"\n[destinations.mine]\n'
        'handling_policy = "single_message_delivery"\n'
    )
    with _cluster(file, None, tmp_path, ProofSettings(7, list(FaultKind))) as cluster:
        assert cluster.bootstrap == "far:9092"
        assert cluster.broker is None
        assert cluster.client["sasl.password"] == "s3cret"
        read_back = load(file, cluster.environment)
    assert read_back.kafka == {"security.protocol": "SASL_SSL", "sasl.password": "s3cret"}
    assert read_back.origin("kafka.sasl.password") == "UOW_KAFKA__SASL_PASSWORD"
    assert read_back.origin("worker.poll_records") == "default"


def test_counters_that_add_up_are_accepted_and_others_told() -> None:
    good = conservation("a", METRICS)
    assert not good.anomalies
    assert good.counts["counted partitions"] == 1
    lost_on_arrival = METRICS.replace('fate="rejected"} 2.0', 'fate="rejected"} 1.0')
    lost_in_state = METRICS.replace(
        'components{destination="d",partition="0"} 2.0', 'components{destination="d",partition="0"} 1.0'
    )
    for damaged in (lost_on_arrival, lost_in_state):
        assert conservation("a", damaged).anomalies["conservation"] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--faults", "earthquake"),
        ("--faults", "broker-kill", "--bootstrap", "localhost:9092"),
        ("--rounds", "0"),
        ("--minutes", "0"),
        ("--workers", "0"),
        ("-c", "uow.toml", "--bootstrap", "localhost:9092"),
    ],
)
def test_wrong_usage_exits_2(arguments: tuple[str, ...]) -> None:
    assert CliRunner().invoke(main, ["prove", *arguments]).exit_code == 2


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    assert CliRunner().invoke(main, ["prove", "--dir", str(tmp_path)]).exit_code == 2


def test_faults_are_explained() -> None:
    said = CliRunner().invoke(main, ["prove", "--faults", "help"])
    assert said.exit_code == 0
    assert all(text in said.output for text in TEXTS.values())
