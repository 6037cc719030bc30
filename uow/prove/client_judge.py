"""The judge of a client proof: what programs were told, against what a bare consumer finds in the topics.

It shares no code with the client or with the worker (an import contract): confluent_kafka in `uow.prove.reading`, and here the standard library.
A *run* is one process of a program. Producers number their records, `ROLE-N:NUMBER`, each program under a key of its own.

Belongs here: judging. Does not belong here: reading topics (`reading`), running programs (`client_round`).
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uow.prove.seen_records import Findings, Log, Place, Rec

Line = Mapping[str, Any]


@dataclass(slots=True)
class Told:
    """All that the client told one program, in all its runs.

    Attributes:
        runs: The lines of each run, in order.
    """

    runs: list[list[Line]] = field(default_factory=list)

    @property
    def lines(self) -> Iterable[Line]:
        """Of all runs."""
        return (line for run in self.runs for line in run)


def read_journal(path: Path) -> Told:
    """A journal; a line that a kill cut off says nothing."""
    told = Told()
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if line["what"] == "begins":
            told.runs.append([])
        told.runs[-1].append(line)
    return told


def judge(journals: Mapping[str, Told], came: Log, onward: Log) -> Findings:
    """The findings of a round.

    Args:
        journals: By program, `plain-0` and so on.
        came: What producers sent and committed, by partition.
        onward: What forwarders sent and committed.
    """
    findings = Findings()
    numbers = _numbers(came, findings)
    for who, told in journals.items():
        role = who.partition("-")[0]
        for line in told.lines:
            findings.counts[f"{role}: {line['what']}"] += 1
        if role == "plain":
            _judge_plain(who, told, numbers[who], findings)
        elif role == "transacted":
            _judge_transacted(who, told, numbers[who], findings)
    _judge_forwarded(came, onward, findings)
    readers = {who: told for who, told in journals.items() if who.startswith("reader")}
    _judge_readers(readers, onward, findings)
    findings.counts["records"] = sum(map(len, came.values()))
    findings.counts["forwarded"] = sum(map(len, onward.values()))
    if not findings.counts["forwarded"] or not findings.counts["reader: acknowledged"]:
        findings.say("nothing", "no record came through: nothing is proved")
    return findings


def _numbers(came: Log, findings: Findings) -> dict[str, dict[int, list[Place]]]:
    """Places of each number, by program; in each partition they rise, but for one that was sent again in doubt."""
    found: dict[str, dict[int, list[Place]]] = defaultdict(lambda: defaultdict(list))
    for records in came.values():
        highest: dict[str, int] = {}
        for rec in records:
            who, _, number = (rec.value or b"?:0").decode(errors="replace").partition(":")
            n = int(number)
            if not found[who][n] and n < highest.get(who, -1):
                findings.say("order", f"{who}: {n} for the first time at {rec.place}, behind {highest[who]}")
            highest[who] = max(n, highest.get(who, -1))
            found[who][n].append(rec.place)
    return found


def _judge_plain(who: str, told: Told, numbers: Mapping[int, list[Place]], findings: Findings) -> None:
    """A record of which the client said that it is written is there, once; one that it refused is not; no other is."""
    asked: set[int] = set()
    doubts: defaultdict[int, int] = defaultdict(int)
    ends: dict[int, Line] = {}
    for line in told.lines:
        match line["what"]:
            case "asked":
                asked.add(line["n"])
            case "ambiguous":
                doubts[line["n"]] += 1
                if line["found"]:
                    ends[line["n"]] = line
            case "sent" | "refused":
                ends[line["n"]] = line
    for n in asked | numbers.keys():
        places = numbers.get(n, [])
        if n not in asked:
            findings.say("invented", f"{who}: {n} was never sent, and is at {places}")
        if len(places) > 1 + doubts[n]:
            findings.say("doubled", f"{who}: {n} is at {places}; {doubts[n]} doubts were reported")
        if n in ends:
            _judge_end(who, ends[n], places, doubts[n], findings)


def _judge_end(who: str, end: Line, places: Sequence[Place], doubts: int, findings: Findings) -> None:
    n = end["n"]
    if end["what"] == "refused" and len(places) > doubts:
        findings.say("not refused", f"{who}: {n} was refused ({end['error']}), and is at {places}")
    if end["what"] == "sent" and (end["partition"], end["offset"]) not in places:
        findings.say("missing", f"{who}: {n} was written to {end['partition']}/{end['offset']}, and is at {places}")
    if end["what"] == "ambiguous" and not places:
        findings.say("missing", f"{who}: {n} was found by probe, and is not there")


def _judge_transacted(who: str, told: Told, numbers: Mapping[int, list[Place]], findings: Findings) -> None:
    """All of a transaction is there, or nothing, as the client said."""
    known: set[int] = set()
    for run in told.runs:
        for at, line in enumerate(run):
            if line["what"] != "begins transaction":
                continue
            fate = next((each["what"] for each in run[at + 1 :] if each.get("n") == line["n"]), None)
            members = range(line["first"], line["n"] + 1)
            known.update(members)
            there = [len(numbers.get(n, ())) for n in members]
            if max(there) > 1:
                findings.say("doubled", f"{who}: transaction {line['first']} to {line['n']} is there {there} times")
            if len(set(there)) > 1:
                findings.say("half", f"{who}: of transaction {line['first']} to {line['n']} there are {there}")
            if fate == "committed" and not all(there):
                findings.say("missing", f"{who}: transaction {line['first']} to {line['n']} was committed")
            if fate == "rolled back" and any(there):
                findings.say("not rolled back", f"{who}: transaction {line['first']} to {line['n']} was rolled back")
    for n in numbers.keys() - known:
        findings.say("invented", f"{who}: {n} was never sent")


def _judge_forwarded(came: Log, onward: Log, findings: Findings) -> None:
    """Each record that came went on once, and those of a key in the order in which they came."""
    of_input, of_output = _by_key(came), _by_key(onward)
    for key in of_input.keys() | of_output.keys():
        first, second = of_input.get(key, []), of_output.get(key, [])
        if first == second:
            continue
        for value in sorted({*first} | {*second}):
            difference = second.count(value) - first.count(value)
            if difference > 0:
                findings.say("forwarded twice", f"{value!r} {difference} times too often")
            elif difference < 0:
                findings.say("not forwarded", f"{value!r} is missing")
        if sorted(first) == sorted(second):
            at = next(at for at, pair in enumerate(zip(first, second, strict=True)) if pair[0] != pair[1])
            findings.say("overtaken", f"key {key!r}: {second[at]!r} went on in the place of {first[at]!r}")


def _by_key(log: Log) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = defaultdict(list)
    for partition in sorted(log):
        for rec in log[partition]:
            found[rec.key or b""].append(rec.value or b"")
    return found


@dataclass(slots=True)
class _Run:
    """One run of a reader: when it began, and its lines."""

    who: str
    begun: int
    lines: Sequence[Line]


def _judge_readers(readers: Mapping[str, Told], onward: Log, findings: Findings) -> None:
    """Every record is handed out, none that is acknowledged comes again, none is passed over, and marks do not lie."""
    runs = [_Run(who, run[0]["at"], run) for who, told in sorted(readers.items()) for run in told.runs]
    for partition, records in onward.items():
        _judge_partition(partition, records, runs, findings)


def _judge_partition(partition: int, records: Sequence[Rec], runs: Sequence[_Run], findings: Findings) -> None:
    events = sorted(
        ((line["at"], run, line) for run in runs for line in run.lines if line.get("partition") == partition),
        key=lambda event: event[0],
    )
    seen = _Seen(partition, [rec.offset for rec in records], findings)
    for _, run, line in events:
        if line["what"] == "got":
            seen.got(run, line)
        elif line["what"] == "acknowledged":
            seen.acknowledged(run, line)
    seen.end()


class _Seen:
    """The records of one partition that readers were handed out, and acknowledged, so far."""

    def __init__(self, partition: int, offsets: Sequence[int], findings: Findings) -> None:
        self._partition, self._offsets, self._findings = partition, offsets, findings
        self._handed_out: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._done, self._done_at = -1, 0
        self._done_by: _Run | None = None

    def _say(self, kind: str, text: str) -> None:
        self._findings.say(kind, f"partition {self._partition}: {text}")

    def got(self, run: _Run, line: Line) -> None:
        """A process that stood still may hand out late what others have done meanwhile: it is judged by what it acknowledges."""
        offset, offsets = line["offset"], self._offsets
        if line["redelivered"] is False and self._handed_out.get(offset, run.begun) < run.begun:
            self._say("mark", f"{run.who}: {offset} was said to be new, and was handed out before")
        if offset <= self._done and (run is self._done_by or run.begun > self._done_at):
            self._say("came again", f"{run.who}: {offset}, and {self._done} was acknowledged")
        before = self._last.get(id(run), -1)
        after = bisect_right(offsets, before)
        due = offsets[after] if before >= 0 and after < len(offsets) else offset
        if offset > due and due not in self._handed_out:
            self._say("passed over", f"{run.who}: {offset} came behind {before}, and {due} was never handed out")
        self._handed_out.setdefault(offset, line["at"])
        self._last[id(run)] = offset

    def acknowledged(self, run: _Run, line: Line) -> None:
        offset = line["offset"]
        if offset < self._done:
            if run is not self._done_by and line["begun"] > self._done_at:
                self._say("went back", f"{run.who} acknowledged {offset} after {self._done} was acknowledged elsewhere")
            return
        for each in self._offsets[bisect_right(self._offsets, self._done) : bisect_right(self._offsets, offset)]:
            if each not in self._handed_out:
                self._say("lost", f"{run.who} acknowledged {offset}, and {each} was not handed out")
        self._done, self._done_at, self._done_by = offset, line["at"], run

    def end(self) -> None:
        """Nothing comes any more."""
        for each in self._offsets:
            if each not in self._handed_out:
                self._say("lost", f"{each} was never handed out")
