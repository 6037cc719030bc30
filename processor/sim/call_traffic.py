"""Fan-outs among the traffic of a run: manifests, and replies before and after them, some of which nobody asked for.

Belongs here: calls and replies, drawn. Does not belong here: rows of other rules (`rule_traffic`), sending (`simulation`).
"""

from __future__ import annotations

from random import Random

from uow.processor.engine.ports import Headers
from uow.processor.sim.simulated_kafka import Row
from uow.topics.commands import Command, Verb, command_headers, command_value
from uow.topics.manifests import Manifest, ReplyContext, RequestEntry
from uow.topics.rules import Numbering, Parameter, ResolvedRow, Rule
from uow.topics.rules import Row as RuleRow

SHARE = 0.1
"""Share of the runs with calls."""
SALT = "calls 21"
"""Of their dice: none of the seeds that are recorded for planted defects has calls."""
RECORDS_A_CALL = 4
NOTICES = "services.cancelled"
"""Topic of the cancel notices: services with the folder `b` want them."""


class CallTraffic:
    """The calls of one run.

    Args:
        seed: Of the run.
        rows: The rows that workers read; its own is added with the first call.
        is_on: False if there must be none.
    """

    def __init__(self, seed: int, rows: list[ResolvedRow], *, is_on: bool) -> None:
        self._rnd = rnd = Random(f"{seed} {SALT}")
        self._entries = Random(f"{seed} entries of calls")
        self._is_on = rnd.random() < SHARE and is_on
        self._rows = rows
        self._records = 0
        self._last: Row | None = None
        hold = Parameter("reply_hold_ms", 1, rnd.choice(["0", "400", "5000"]))
        rule = Rule(
            "calls", 1, "D", group_key="request", sequence=Numbering.GIVEN, max_open_groups=rnd.choice([None, 3])
        )
        row = RuleRow(
            "calls", "*", 1, complete_when=rnd.choice(["manifest", "manifest(2)"]), age_ms=rnd.choice([None, 900])
        )
        self._row = ResolvedRow(rule, row, (), (hold, Parameter("notice_topics", 1, NOTICES)))

    def next(self, topic: str) -> Row | None:
        """A manifest where `topic` is that of commands, else a reply; None where another sender's turn is."""
        rnd = self._rnd
        if not self._is_on or rnd.random() < 0.5:
            return None
        if not self._records:
            self._rows.append(self._row)
        self._records += 1
        group_id = b"calls/c/%d" % max(0, self._records // RECORDS_A_CALL - rnd.choice([0, 0, 1, 2]))
        if topic.endswith(".commands"):
            folders = rnd.choice([("a",), ("a", "b"), ("a", "b", "b")])
            manifest = Manifest(
                "c",
                tuple(map(self._entry, folders)),
                rnd.choice([None, 0, 300, 2_000]),
                ReplyContext(headers=(("x", "1"),)) if rnd.random() < 0.3 else ReplyContext(),
            )
            command = Command(
                b"m%d" % self._records,
                Verb.MANIFEST,
                group_id,
                "drawn",
                rule=self._row.name,
                manifest=manifest,
            )
            if self._last is None or rnd.random() < 0.9:
                self._last = (group_id, command_value(command), command_headers(command))
            return self._last  # else once more
        headers: Headers = [
            ("uow-id", group_id),
            ("uow-rule", self._row.name.encode()),
            ("uow-input", b"replies/0/%d" % self._records),
            ("uow-seq", b"%d" % rnd.choice([1, 1, 2, 2, 3, 4])),
        ]
        if rnd.random() < 0.2:
            headers.append(("uow-end", b"true"))
        return (group_id, rnd.choice([b"x", b"y"]), headers)

    def _entry(self, folder: str) -> RequestEntry:
        weight = self._entries.choice([1, 1, 2])
        return RequestEntry(folder, "t", weight, NOTICES if folder == "b" else None)
