"""What long runs came to is added up from one file."""

from __future__ import annotations

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
