"""The proof is able to fail: workers with a planted defect are caught by it."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drill import defective
from tests.kafka_broker import Kafka
from uow.embedded.broker import EmbeddedBroker
from uow.prove.faults import Fault, FaultKind
from uow.prove.frames import Api, FrameRule, Proxy
from uow.prove.frames import FrameFault as How
from uow.prove.round import Round, RoundCluster, Setup

KILLS = (Fault(FaultKind.STEP, step="committed", turn=9), Fault(FaultKind.STEP, step="produced", turn=9))


JUMP = (Fault(FaultKind.CLOCK, after_s=2.0, lasts_s=5.0, shift_s=300.0),)


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
    setup = Setup(
        name, 7, faults, worker_names=("a",), expiration_ms=20_000 if faults is JUMP else -1, quiet_s=25, rate=600
    )
    result = Round(RoundCluster(broker.bootstrap), tmp_path / "round", setup, command).run()
    assert not result.is_good
    assert signs & result.findings.anomalies.keys(), result.findings.anomalies


@pytest.fixture(scope="module")
def proxied() -> Iterator[RoundCluster]:
    with Proxy(seed=12) as proxy, EmbeddedBroker(heap="384m", advertised=proxy.port) as broker:
        proxy.upstream = broker.behind
        yield RoundCluster(broker.bootstrap, broker=broker, proxy=proxy)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "defect",
    ["suppressed-lines", *(pytest.param(each, marks=pytest.mark.drill) for each in ("silent-connections", ""))],
)
def test_producer_that_goes_on_after_a_break_nobody_was_told_of_is_caught(
    proxied: RoundCluster, tmp_path: Path, unique: str, defect: str
) -> None:
    """ER-11: librdkafka holds back what it has said often, or was told to say nothing; the worker as it is goes through the same.

    Its first producer is cut off twice while it begins, then at the end of its first transaction; that end arrives late, in the next one.
    """
    command = [sys.executable, defective.__file__, defect] if defect else []
    proxy = proxied.proxy
    assert proxy is not None
    proxy.add(FrameRule(How.CUT, {Api.INIT_PRODUCER_ID}, times=2))
    proxy.add(FrameRule(How.RELEASE, {Api.TXN_OFFSET_COMMIT}, skip=1, times=1))
    late = proxy.add(FrameRule(How.HOLD, {Api.END_TXN}, times=1))
    setup = Setup(
        f"defect-{zlib.crc32(unique.encode()):x}",
        7,
        KILLS[:1],
        worker_names=("a",),
        quiet_s=20 if defect else 60,
        rate=300,
    )
    result = Round(proxied, tmp_path / "round", setup, command).run()
    assert late.hits == 1
    assert ("not fenced" in result.findings.anomalies) == bool(defect), result.findings.texts
    assert result.is_good != bool(defect), result.findings.texts
