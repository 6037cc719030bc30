"""The report as a page: it tells the verdict and every fault, and needs nothing from elsewhere."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from uow.prove.faults import Fault, FaultKind
from uow.prove.page import page
from uow.prove.proof import Proof, ProofSettings
from uow.prove.proof_report import as_json
from uow.prove.round import Result, RoundCluster, Setup
from uow.prove.seen_records import Findings
from uow.prove.timeline import Event, EventLog

EVENTS = [
    Event(1000.0, "a", "start"),
    Event(1002.0, "a", "ready"),
    Event(1003.0, "broker", "broker-freeze", 4.0, "for 4.0 s"),
    Event(1005.0, "a", "step:commit", detail="3 ms after"),
    Event(1005.1, "a", "end", detail="status 137"),
    Event(1005.2, "a", "start"),
    Event(1009.0, "a", "kill"),
]


def proof(tmp_path: Path, *findings: Findings) -> Proof:
    made = Proof(
        RoundCluster("<here>:9092"), ProofSettings(7, [FaultKind.STEP, FaultKind.KILL], rounds=len(findings)), tmp_path
    )
    for each in findings:
        setup = Setup("prove", 1, [Fault(FaultKind.STEP, step="commit")], worker_names=("a",), expiration_ms=4000)
        event_log = EventLog([*EVENTS], [(1000.0, 0), (1000.5, 40), (1004.0, 400)])
        delivered = [(1003.2, 5), (1003.9, 1), (1008.0, 3)]
        result = Result(setup, 9.0, {"step:commit": 1, "kill": 1}, {"137": 1}, each, event_log, delivered, tmp_path)
        made.results.append(result)
    return made


def good() -> Findings:
    return Findings(counts=Counter(records=400, units=31, unit=380, rejected=20, aborted=9))


def test_a_good_proof_says_so_and_what_happened(tmp_path: Path) -> None:
    text = page(proof(tmp_path, good()))
    assert "proved: 1 round, 2 faults, 400 records, 31 units, no anomaly" in text
    assert "step:commit, 3 ms after, at 5.0 s" in text
    assert "&lt;here&gt;:9092" in text


def test_nothing_is_fetched_and_nothing_runs(tmp_path: Path) -> None:
    text = page(proof(tmp_path, good()))
    assert not re.search(r"<script|<link|https?://|src=|@import|url\(", text)


def test_pictures_are_well_formed(tmp_path: Path) -> None:
    (svg,) = re.findall(r"<svg.*?</svg>", page(proof(tmp_path, good())), re.DOTALL)
    tree = ET.fromstring(svg)
    titles = [title.text for title in tree.iter("title")]
    assert titles == [
        "broker-freeze, for 4.0 s, at 3.0 s",
        "step:commit, 3 ms after, at 5.0 s",
        "kill, at 9.0 s",
    ]


def test_an_anomaly_is_told_and_its_round_drawn(tmp_path: Path) -> None:
    bad = good()
    bad.say("missing", "(0, 7) should be in <unit>")
    found = proof(tmp_path, *(good() for _ in range(20)), bad)
    text = page(found)
    assert not found.is_good
    assert "21 rounds, 42 faults, 8,400 records, 651 units, 1 anomalies" in text
    assert "(0, 7) should be in &lt;unit&gt;" in text
    assert text.count("<svg") == 13, "the first twelve, and the bad one"
    assert as_json(found)["anomalies"] == {"missing": 1}


def test_a_round_that_could_not_be_judged_proves_nothing(tmp_path: Path) -> None:
    found = proof(tmp_path, good())
    found.failure = "round 1 could not be judged: no broker"
    assert not found.is_good
    assert "nothing is proved: round 1 could not be judged" in page(found)


@pytest.mark.parametrize("rounds", [0, 1])
def test_no_round_proves_nothing(tmp_path: Path, rounds: int) -> None:
    assert proof(tmp_path, *[good()] * rounds).is_good is bool(rounds)
