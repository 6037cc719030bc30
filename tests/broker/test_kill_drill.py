"""kill -9 at each named commit step and at random, two workers, under load: no unit lost, doubled or mixed (W-125, W-126, W-216)."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import pytest

from tests.drill.kill import STEPS, Drill, short_faults
from tests.kafka_broker import Kafka

SEED = 3


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_unit_is_lost_doubled_or_mixed_by_kills(broker: Kafka, tmp_path: Path, unique: str) -> None:
    """The short drill; the long one is `make drill`. `tests/drill/checker.py` is the judge: it shares no code with the worker."""
    name = f"drill-{zlib.crc32(unique.encode()):x}"
    drill = Drill(broker.bootstrap, tmp_path / "drill", name, short_faults(random.Random(SEED)), SEED, rate=800)
    result = drill.run()
    print(result.line)
    assert not result.anomalies, "\n".join(result.texts)
    assert {f"step:{step}" for step in STEPS} <= result.faults.keys(), result.faults
    assert result.kills >= 7
    assert result.counts["units"] > 500
