"""What long runs came to is added up from one file."""

from __future__ import annotations

import pytest

from tools import measured

REPORT = {
    "seed": 7,
    "workers": 2,
    "rounds": [{}, {}],
    "seconds": 185.0,
    "kills": 3,
    "faults": {"kill": 1, "step:commit": 2, "frames:hold": 2, "frames:cut": 1, "storm": 1},
    "counts": {"records": 12_345, "units": 2_000, "rejected": 9, "expired": 1},
    "anomalies": {"lag": 2},
    "failure": "",
}


def test_row_of_a_proof_counts_kills_steps_and_the_rest_apart() -> None:
    row = measured.row_of(REPORT, "abc")
    assert row["faults"] == "kill, step, storm, frames"
    assert (row["rounds"], row["minutes"], row["kills"], row["at_a_step"]) == ("2", "3", "3", "2")
    assert row["others"] == "3 frames, 1 storm"
    assert row["anomalies"] == "2"
    assert {*row} == {*measured.rows()[0]}, "the file's columns"


def test_promise_has_the_sum_of_all_runs_that_judge_it() -> None:
    proof = measured.row_of(REPORT, "abc")
    late = dict.fromkeys(proof, "") | {"verb": "late ends", "rounds": "1000", "anomalies": "0"}
    lines = measured.promises_table([proof, proof, late]).splitlines()
    assert lines[2] == "| 1. Whole or nothing | 4 | 6 | 8 | 24,690 | 0 | 0 | 4 |"
    assert lines[3] == "| 2. Once | 4 | 6 | 8 | 24,690 | 0 | 1,000 | 4 |"


BENCHMARKS = """\
| w5 bare | 5.09 (3.89 to 5.20) |  | 166,126 (112,818 to 205,428) |
| w5 worker | 11.4 (7.97 to 19.6) | 1.46 (1.20 to 2.39) | 90,947 (69,585 to 101,246) |
| w5 plain faust | 290.20 (269.37 to 304.61) | 31.6 (24.90 to 31.99) | 3,318 (3,167 to 3,591) |

Latency at 2,000 a second, five rounds: p50 12.4 ms (9.9 to 11.3), p99 27.8 ms (20.4 to 26.4).
"""


def test_costs_of_the_readme_are_those_of_the_benchmarks() -> None:
    """That README has this text is for `test_no_generated_page_has_drifted`."""
    told = " ".join(measured.costs(BENCHMARKS).split())
    assert "takes 11 µs of CPU" in told
    assert "1.5 times (1.2 to 2.4) as much as a bare loop" in told
    assert "32 times less than plain Faust" in told
    assert "visible 12 ms after its last component, 99 of 100 within 28." in told


def test_a_figure_that_is_missing_is_an_error() -> None:
    with pytest.raises(ValueError, match="w5 worker"):
        measured.costs(BENCHMARKS.replace("w5 worker", "w5"))
