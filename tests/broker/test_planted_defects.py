"""The kill drill is able to fail: workers with a planted defect are caught by it."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import pytest

from tests.drill import defective
from tests.drill.kill import Drill, Fault
from tests.kafka_broker import Kafka

FAULTS = (Fault("step", step="committed"), Fault("step", step="produced"))


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("defect", "signs"),
    [
        ("offsets-without-outputs", {"missing"}),
        pytest.param("doubled-outputs", {"doubled"}, marks=pytest.mark.drill),
        ("no-ledger", {"ledger"}),
        pytest.param("no-tombstones", {"changelog"}, marks=pytest.mark.drill),
        ("restore-without-barrier", {"sequence", "missing", "unaccounted", "changelog"}),
    ],
)
def test_planted_defect_is_caught(broker: Kafka, tmp_path: Path, unique: str, defect: str, signs: set[str]) -> None:
    command = [sys.executable, defective.__file__, defect]
    name = f"defect-{zlib.crc32(unique.encode()):x}"
    drill = Drill(
        broker.bootstrap, tmp_path / "d", name, FAULTS, 7, command=command, slots=("a",), quiet_s=15, rate=600
    )
    result = drill.run()
    assert signs & result.anomalies.keys(), result.line
