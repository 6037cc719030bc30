"""The proof is able to fail: workers with a planted defect are caught by it."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import pytest

from tests.drill import defective
from tests.kafka_broker import Kafka
from uow.prove.faults import Fault, Kind
from uow.prove.round import Cluster, Round, Setup

KILLS = (Fault(Kind.STEP, step="committed", turn=9), Fault(Kind.STEP, step="produced", turn=9))


JUMP = (Fault(Kind.CLOCK, after_s=2.0, lasts_s=5.0, shift_s=300.0),)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("defect", "faults", "signs"),
    [
        ("offsets-without-outputs", KILLS, {"missing"}),
        pytest.param("doubled-outputs", KILLS, {"doubled"}, marks=pytest.mark.drill),
        ("no-ledger", KILLS, {"ledger"}),
        pytest.param("no-tombstones", KILLS, {"changelog"}, marks=pytest.mark.drill),
        ("restore-without-barrier", KILLS, {"sequence", "missing", "unaccounted", "changelog"}),
        pytest.param("credulous-clock", JUMP, {"expiry"}, marks=pytest.mark.drill),
    ],
)
def test_planted_defect_is_caught(
    broker: Kafka, tmp_path: Path, unique: str, defect: str, faults: tuple[Fault, ...], signs: set[str]
) -> None:
    command = [sys.executable, defective.__file__, defect]
    name = f"defect-{zlib.crc32(unique.encode()):x}"
    setup = Setup(name, 7, faults, slots=("a",), expiration_ms=20_000 if faults is JUMP else -1, quiet_s=25, rate=600)
    result = Round(Cluster(broker.bootstrap), tmp_path / "round", setup, command).run()
    assert not result.is_good
    assert signs & result.findings.anomalies.keys(), result.findings.anomalies
