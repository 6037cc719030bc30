"""How a proof is told: the questions that were asked of the topics, and the answers; as text and as JSON.

Belongs here: words. Does not belong here: the pictures (`page`), and what is found (`checker`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from uow.prove.faults import TEXTS, Kind
from uow.prove.proof import Proof, versions
from uow.prove.round import Result
from uow.screen import Screen


@dataclass(frozen=True, slots=True)
class Question:
    """Something that was checked.

    Attributes:
        name: The answer that one hopes for.
        kinds: Anomalies that deny it.
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
        "each record sent and acknowledged lies in exactly one place; each unit of which all was sent is in D.units, unless it expired",
    ),
    _question(
        "nothing is doubled",
        "doubled",
        "no offset is in two places of one kind, no unit and no unit id comes twice, nothing is sent on twice",
    ),
    _question(
        "nothing is mixed or made up",
        "mixed,invented",
        "each component of a unit lies at the offset it claims and has that unit's id; nothing of an aborted transaction is anywhere",
    ),
    _question(
        "units are whole and in order, byte for byte",
        "order,incomplete,bytes,sequence,headers,misplaced,undecodable",
        "numbers are 1 to n; key, value, headers and times are those of the input; per partition D.units and D.errors are exactly the "
        "sequence that the decision table, written a second time, makes of the input",
    ),
    _question(
        "nothing is both completed and expired", "both", "no offset and no group id is in D.units and in D.errors"
    ),
    _question(
        "nothing expires too early or too late",
        "expiry,overdue",
        "each group given up was due at its very deadline; no component appended in time lay unread or came after; none outlived it (W-82)",
    ),
    _question("each refusal has its right reason", "reason", "class and case of each rejected record, judged again"),
    _question(
        "state, ledger and outcomes agree with the units",
        "changelog,ledger,outcomes",
        "live rows of the changelog, read as rows and tombstones alone, are the open groups; the ledger is an unbroken chain to the "
        "committed offset and closed what was closed",
    ),
    _question(
        "after quiet nothing is left",
        "held,lag,not quiet",
        "no live row in the changelog, no record after the committed offset; last stable offset = end offset on every partition, else a round "
        "cannot be judged at all",
    ),
    _question(
        "the workers' own counters add up",
        "conservation",
        "/metrics: received = held + duplicate + rejected + passed + ignored, held = delivered + expired + cancelled + failed + open",
    ),
    _question(
        "no producer goes on after a doubt",
        "not fenced",
        "with frames: a producer of which a request was held, lost or cut off ends that transaction, and begins no other under the same epoch",
    ),
    _question("no worker ended but by its fault", "exit", "exit status of every run, against what befell it"),
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
"""What a record can become, by the checker's word for it."""


def answers(anomalies: Counter[str]) -> Iterator[tuple[Question, int]]:
    """Each question, and how many anomalies deny what one hopes for."""
    for question in QUESTIONS:
        yield question, sum(anomalies[kind] for kind in question.kinds)


def kinds_of(faults: Counter[str]) -> list[tuple[Kind, int, str]]:
    """Faults that happened: kind, how often, and for the named steps how often at each."""
    rows = []
    for kind in Kind:
        named = {name.partition(":")[2]: count for name, count in faults.items() if name.partition(":")[0] == kind}
        if named:
            steps = ", ".join(f"{step} {count}" for step, count in sorted(named.items()) if step)
            rows.append((kind, sum(named.values()), steps))
    return rows


def round_line(result: Result) -> str:
    """A round in a line."""
    counts = result.findings.counts
    faults = sum(result.faults.values())
    return f"{counts['records']:,} records, {counts['units']:,} units, {faults} faults, {result.kills} of them kill -9"


def verdict(proof: Proof) -> str:
    """The proof in a line."""
    counts = proof.findings.counts
    amount = (
        f"{len(proof.results)} round{'' if len(proof.results) == 1 else 's'}, {sum(proof.faults.values())} faults, {counts['records']:,} records, "
        f"{counts['units']:,} units"
    )
    if proof.failure:
        return f"nothing is proven: {proof.failure}"
    found = sum(proof.findings.anomalies.values())
    return f"{amount}, {found:,} anomalies" if found else f"proved: {amount}, no anomaly"


def as_json(proof: Proof) -> dict[str, Any]:
    """The proof as one JSON object."""
    findings = proof.findings
    return {
        "proved": proof.is_good,
        "failure": proof.failure,
        "seed": proof.wish.seed,
        "command": proof.wish.command,
        "where": proof.where,
        "workers": proof.wish.workers,
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
    """The proof for people, behind the rounds."""
    findings = proof.findings
    counts = findings.counts
    screen.act("What happened")
    rows = [
        (kind, count, TEXTS[kind] + (f" ({steps})" if steps else "")) for kind, count, steps in kinds_of(proof.faults)
    ]
    screen.table(("fault", "times", ""), rows, right=(1,))
    screen.act("What became of the records")
    fates = [(f"{counts[word]:,}", text) for word, text in FATES.items() if counts[word]]
    screen.table(("", ""), [(f"{counts['records']:,}", "in D.components"), *fates], right=(0,))
    screen.say(f"  {counts['units']:,} units, {counts['expired']:,} groups expired; {counts['aborted']:,} records of")
    screen.say("  aborted transactions were sent as well, and are nowhere")
    screen.act("What was checked, by code that shares nothing with the worker (uow/prove/checker.py)")
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
    screen.command(proof.wish.command)
