"""Five hundred small clusters under faults: nothing lost, doubled, mixed, early or out of order (W-07 to W-16, W-43, W-82, W-125, W-126, W-216)."""

from __future__ import annotations

from functools import cache

import pytest

from uow.processor.sim import call_traffic
from uow.processor.sim.__main__ import main
from uow.processor.sim.router_traffic import RouterTraffic
from uow.processor.sim.simulation import SimulationReport, play

pytestmark = pytest.mark.slow

RUNS = 500
LOOKED_AT = 60
"""So many of the first runs are looked at for more than violations."""
PORTION = 10
"""Runs of one test: a test has a limit of time, and a run takes some seconds on a machine with much other work."""
ROUTED = [seed for seed in range(RUNS, 2 * RUNS) if RouterTraffic(seed).is_on]
"""Those of the next runs that have routers."""


@cache
def played(seed: int) -> SimulationReport:
    """The run of a seed, played once for all tests that look at it."""
    return play(seed)


@pytest.mark.parametrize("first", range(0, RUNS, PORTION))
def test_nothing_that_must_never_happen_happens(first: int) -> None:
    for seed in range(first, first + PORTION):
        report = played(seed) if seed < LOOKED_AT else play(seed)
        tail = "\n".join(report.script[-40:])
        assert report.violation is None, f"python -m uow.processor.sim --seed {seed} -v\n{tail}"


@pytest.mark.parametrize("begin", range(0, len(ROUTED), PORTION))
def test_routers_lose_and_double_nothing_and_nobody_gives_up_before_them_b220(begin: int) -> None:
    """B-218."""
    reports = [play(seed) for seed in ROUTED[begin : begin + PORTION]]
    assert {report.seed: report.violation for report in reports if report.violation} == {}
    assert sum(report.routed for report in reports) > 5 * len(reports)


@pytest.mark.parametrize("seed", [54982, 68005, 114074])
def test_equal_plans_of_two_workers_are_distinguished(seed: int) -> None:
    """Each is judged under the policy of whoever made it, and only the live state of whoever committed last is the oracle's."""
    assert play(seed).violation is None


def test_values_that_a_slow_worker_had_no_time_to_read_back_may_be_missing_w117() -> None:
    assert play(112119).violation is None


def test_unit_in_part_whose_id_was_forgotten_is_another_unit_of_the_same_name_b205() -> None:
    """A correction has the components of the second one, and one more."""
    report = play(1751)
    assert report.violation is None
    assert report.corrections


def test_calls_tell_services_once_that_their_replies_are_needed_no_longer_b209(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of these runs have calls, with weights and notices; the check is that of every run."""
    monkeypatch.setattr(call_traffic, "SHARE", 1)
    reports = [play(seed) for seed in range(25)]
    assert [report.seed for report in reports if report.violation] == []
    assert sum(report.notices for report in reports) > 10


def test_runs_have_what_they_are_for() -> None:
    reports = [played(seed) for seed in range(LOOKED_AT)]
    for what in ("commits", "units", "crashes", "zombies", "doubts", "moves", "cuts"):
        assert sum(getattr(report, what) for report in reports) > LOOKED_AT / 2, what
    assert sum(report.pauses for report in reports) > 3
    assert sum(report.losses for report in reports) > 1
    assert sum(report.corrections for report in reports) > 1


def test_seed_plays_the_same_run_every_time() -> None:
    for seed in range(10):
        assert play(seed).script == played(seed).script


def test_one_seed_prints_its_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "-v"]) == 0
    said = capsys.readouterr().out
    assert "owns" in said
    assert "seed 3: nothing found" in said


def test_many_seeds_are_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1..5"]) == 0
    assert "5 runs" in capsys.readouterr().out
