"""The report of a proof: the checks that were made and their results, as text and as JSON.

Belongs here: texts. Does not belong here: the HTML page (`page`), and the checks themselves (`checker`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from uow.prove.faults import TEXTS, FaultKind
from uow.prove.proof import Proof, versions
from uow.prove.round import Result
from uow.terminal.screen import Screen


@dataclass(frozen=True, slots=True)
class Question:
    """One check, for people.

    Attributes:
        name: The expected result.
        kinds: Kinds of anomaly that contradict it.
        how: How it was checked.
    """

    name: str
    kinds: frozenset[str]
    how: str


def _question(name: str, kinds: str, how: str) -> Question:
    return Question(name, frozenset(kinds.split(",")), how)


QUESTIONS = (
    _question(
        "nothing is missing",
        "missing,unaccounted,input",
        "each record sent and acknowledged is in exactly one place; each unit that was sent completely is in D.units, unless it expired",
    ),
    _question(
        "nothing is doubled",
        "doubled",
        "no offset occurs twice, no unit and no unit id was delivered twice, no record was sent on twice",
    ),
    _question(
        "no unit has foreign or invented components",
        "mixed,invented",
        "each component of a unit is at the offset that the unit names and has that unit's id; no record of an aborted transaction appears anywhere",
    ),
    _question(
        "units are complete and in order, byte for byte",
        "order,incomplete,bytes,sequence,headers,misplaced,undecodable",
        "numbers are 1 to n; key, value, headers and times are those of the input; per partition D.units and D.errors are exactly the "
        "sequence that a second implementation of the decision table computes from the input",
    ),
    _question(
        "nothing is both completed and expired", "both", "no offset and no group id is in D.units and in D.errors"
    ),
    _question(
        "nothing expires too early or too late",
        "expiry,overdue",
        "each expired group was due exactly at its deadline; no component appended in time was unread or came later; no group lived longer",
    ),
    _question(
        "each refusal has the right reason", "reason", "class and case of each rejected record are computed again"
    ),
    _question(
        "state, ledger and outcomes agree with the units",
        "changelog,ledger,outcomes",
        "the live rows of the changelog are exactly the open groups; the ledger is an unbroken chain up to the committed offset and lists "
        "exactly the closed groups",
    ),
    _question(
        "nothing is left in the end",
        "held,lag,not quiet",
        "no live row in the changelog, no record after the committed offset; the last stable offset is the end offset of every partition, "
        "otherwise a round cannot be judged",
    ),
    _question(
        "the workers' own counters add up",
        "conservation",
        "/metrics: received = held + duplicate + rejected + passed + ignored, held = delivered + expired + cancelled + failed + open",
    ),
    _question(
        "no producer is used again after a doubt",
        "not fenced",
        "with fault `frames`: after a request was held, lost or cut off, its producer ends that transaction and begins no other with the same epoch",
    ),
    _question("no worker ended except by a fault", "exit", "exit status of every run, compared with its faults"),
    _question("there was something to check", "nothing", "every round delivered units"),
)

FATES = {
    "unit": "in units",
    "rejected": "rejected",
    "errors": "expired",
    "passed": "passed through",
    "rerouted": "sent on",
    "held": "still held",
}
"""Text for each result of a record, by the checker's word."""


def answers(anomalies: Counter[str]) -> Iterator[tuple[Question, int]]:
    """Each check, with the number of anomalies that contradict it."""
    for question in QUESTIONS:
        yield question, sum(anomalies[kind] for kind in question.kinds)


def kinds_of(faults: Counter[str]) -> list[tuple[FaultKind, int, str]]:
    """Kinds of fault that happened: kind, number, and for `step` the number at each named step."""
    rows = []
    for kind in FaultKind:
        named = {name.partition(":")[2]: count for name, count in faults.items() if name.partition(":")[0] == kind}
        if named:
            steps = ", ".join(f"{step} {count}" for step, count in sorted(named.items()) if step)
            rows.append((kind, sum(named.values()), steps))
    return rows


def round_line(result: Result) -> str:
    """The result of a round in one line."""
    counts = result.findings.counts
    faults = sum(result.faults.values())
    return f"{counts['records']:,} records, {counts['units']:,} units, {faults} faults, {result.kills} of them kill -9"


def verdict(proof: Proof) -> str:
    """The result of the proof in one line."""
    counts = proof.findings.counts
    amount = (
        f"{len(proof.results)} round{'' if len(proof.results) == 1 else 's'}, {sum(proof.faults.values())} faults, {counts['records']:,} records, "
        f"{counts['units']:,} units"
    )
    if proof.failure:
        return f"nothing is proved: {proof.failure}"
    found = sum(proof.findings.anomalies.values())
    return f"{amount}, {found:,} anomalies" if found else f"proved: {amount}, no anomaly"


def as_json(proof: Proof) -> dict[str, Any]:
    """The proof as one JSON object."""
    findings = proof.findings
    return {
        "proved": proof.is_good,
        "failure": proof.failure,
        "seed": proof.settings.seed,
        "command": proof.settings.command,
        "where": proof.where,
        "workers": proof.settings.workers,
        "versions": versions(proof.cluster),
        "seconds": round(proof.seconds, 1),
        "rounds": [_round_json(result) for result in proof.results],
        "faults": dict(proof.faults),
        "kills": proof.kills,
        "counts": dict(findings.counts),
        "questions": [
            {"question": question.name, "how": question.how, "anomalies": count}
            for question, count in answers(findings.anomalies)
        ],
        "anomalies": dict(findings.anomalies),
        "texts": findings.texts,
    }


def _round_json(result: Result) -> dict[str, Any]:
    setup, findings = result.setup, result.findings
    return {
        "name": setup.name,
        "seed": setup.seed,
        "seconds": round(result.seconds, 1),
        "incomplete_expiration_ms": setup.expiration_ms,
        "poll_records": setup.poll_records,
        "rate": setup.rate,
        "faults": dict(result.faults),
        "exits": dict(result.exits),
        "counts": dict(findings.counts),
        "anomalies": dict(findings.anomalies),
    }


def show(screen: Screen, proof: Proof) -> None:
    """Prints the proof for people, after the rounds."""
    findings = proof.findings
    counts = findings.counts
    screen.act("Faults")
    rows = [
        (kind, count, TEXTS[kind] + (f" ({steps})" if steps else "")) for kind, count, steps in kinds_of(proof.faults)
    ]
    screen.table(("fault", "times", ""), rows, right=(1,))
    screen.act("Where the records are")
    fates = [(f"{counts[word]:,}", text) for word, text in FATES.items() if counts[word]]
    screen.table(("", ""), [(f"{counts['records']:,}", "in D.components"), *fates], right=(0,))
    screen.say(f"  {counts['units']:,} units, {counts['expired']:,} groups expired; {counts['aborted']:,} records of")
    screen.say("  aborted transactions were also sent, and appear nowhere")
    screen.act("Checks, by code that shares nothing with the worker (module uow.prove.checker)")
    for question, count in answers(findings.anomalies):
        screen.check(not count, question.name if not count else f"not so: {question.name}; {count:,} anomalies")
    for text in findings.texts:
        screen.say(text)
    screen.act("Verdict")
    screen.check(proof.is_good, verdict(proof))
    screen.say(
        f"on {proof.where}; " + ", ".join(f"{name} {each}" for name, each in versions(proof.cluster).items()), "dim"
    )
    screen.say("again:")
    screen.command(proof.settings.command)
