"""The state at the end of an audit, from which an incremental one goes on. It is beside the tables, in `DIR/_audits/D`.

`latest.json` names a folder with a file for each partition (the open groups and memories of the recomputation, positions in the worker's own logs) and
`residue` (`uow.spark_sink.balance`): keys of which one side was there at that time and the other was not yet. Positions of the input and of the output
topics say what both sides have of every record before. An audit writes a folder of its own, and replaces `latest.json` when its judgement is done, at once. So
audits that run at the same time do not disturb each other: the last one counts.

Nothing in these files is executed. A file that differs from its checksum is not used. Who may write in the folder of the tables can, as ever, make an
audit believe what they like.

Belongs here: the files. Does not belong here: what is in the state of a partition (`uow.processor.core.snapshot`), and when it is taken (`uow.spark_sink.expectations`).
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import file_digest
from pathlib import Path
from typing import Any, Final, NamedTuple

import fastavro

from uow.processor.core.changes import Closed
from uow.processor.core.snapshot import Snapshot
from uow.schemas.records import Reason, UnitOutcome

FORMAT: Final = 7
"""Version of the files; another one is not read."""
LIMIT_BYTES: Final = 1 << 30
"""Bytes of the open groups of a partition from which no state is written: the next audit is a full one."""
KEPT_S: Final = 6 * 3600
"""Age from which folders are deleted that `latest.json` does not name. An audit that runs for longer may lose the one that it reads, and fails."""

Offsets = Mapping[int, int]


class JournalMark(NamedTuple):
    """Where reading of the worker's own records of one partition goes on.

    Attributes:
        ledger: Next offset of the ledger; None for its beginning, as with the others.
        outcomes: Next offset of `D.outcomes`.
        commands: Next offset of `D.commands`.
        position: Input position that the ledger was read to.
        clock: Clock of the last ledger record, 0 before the first one; None: retention has deleted the beginning, and none was read.
        closings: Recorded closings of groups that are open: id, generation, outcome, time, topic.
        done: Commands that did something, as an answer says, and of which the ledger has not told (yet): id of the group, id, append time.
        ordered: Those of which the ledger has told, and of which no answer is read yet.
    """

    ledger: int | None = None
    outcomes: int | None = None
    commands: int | None = None
    position: int = 0
    clock: int | None = None
    closings: Sequence[tuple[bytes, int, str, int, str]] = ()
    done: Sequence[tuple[str, bytes, int]] = ()
    ordered: Sequence[tuple[bytes, int]] = ()


class PartitionMark(NamedTuple):
    """The state of one partition.

    Attributes:
        snapshot: Of the recomputation.
        journal: Of the worker's own records.
        turn: Number of its units so far, as in `uow.spark_sink.expectations`.
        rank: Number of its plain records so far.
    """

    snapshot: Snapshot
    journal: JournalMark
    turn: int
    rank: int


def _record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields.items()]}


def _array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


_MAYBE_LONG: Final = ["null", "long"]
_GROUP: Final = _record(
    "Group",
    **dict.fromkeys(("id", "order_key"), "bytes"),
    **dict.fromkeys(("marked", "waits", "special", "is_kept"), "boolean"),
    **dict.fromkeys(
        (
            *("generation", "opened_at", "last_at", "end", "highest", "bytes", "external_bytes", "expires_at"),
            *("deliver_at", "free_at", "declared_end", "waived_held", "extended", "warned_at"),
        ),
        "long",
    ),
    held=_array(_record("Component", seq="long", body="bytes")),
    waived=_array(_record("Waived", first="long", last="long")),
    rule="string",
    waits_since="long",
    manifest_id="bytes",
    manifest_at="long",
    manifest="bytes",
    deadlines=_array("long"),
)
_CLOSED: Final = _record(
    "Closed",
    id="bytes",
    generation="long",
    outcome="string",
    reason="string",
    highest="long",
    before="long",
    at="long",
    prints="bytes",
)
_COMMAND: Final = _record("Command", id="bytes", at="long")
_HEAD: Final = _record(
    "Head",
    position="long",
    clock="long",
    command_position="long",
    lines=_array(_record("Line", key="bytes", ids=_array("bytes"))),
    commands=_array(_COMMAND),
    credits=_array("string"),
    turn="long",
    rank="long",
    ledger=_MAYBE_LONG,
    outcomes=_MAYBE_LONG,
    journal_commands=_MAYBE_LONG,
    journal_position="long",
    journal_clock=_MAYBE_LONG,
    closings=_array(_record("Closing", id="bytes", generation="long", outcome="string", at="long", topic="string")),
    done=_array(_record("Done", group="string", id="bytes", at="long")),
    ordered=_array("Command"),
)
_SCHEMA: Final = fastavro.parse_schema([_HEAD, _GROUP, _CLOSED])


def write_mark(path: Path, mark: PartitionMark) -> None:
    """Writes the state of a partition."""
    with path.open("wb") as file:
        fastavro.writer(file, _SCHEMA, _records(mark), codec="deflate", codec_compression_level=1)


def _records(mark: PartitionMark) -> Iterator[tuple[str, dict[str, Any]]]:
    snapshot, journal = mark.snapshot, mark.journal
    yield (
        "Head",
        {
            "position": snapshot.position,
            "clock": snapshot.clock,
            "command_position": snapshot.command_position,
            "lines": [{"key": key, "ids": ids} for key, ids in snapshot.lines.items()],
            "commands": _named(snapshot.commands, "id", "at"),
            "credits": snapshot.credits,
            "turn": mark.turn,
            "rank": mark.rank,
            "ledger": journal.ledger,
            "outcomes": journal.outcomes,
            "journal_commands": journal.commands,
            "journal_position": journal.position,
            "journal_clock": journal.clock,
            "closings": _named(journal.closings, "id", "generation", "outcome", "at", "topic"),
            "done": _named(journal.done, "group", "id", "at"),
            "ordered": _named(journal.ordered, "id", "at"),
        },
    )
    for group in snapshot.groups:
        yield "Group", _as_lists(group)
    for group in snapshot.kept:
        yield "Group", _as_lists(group) | {"is_kept": True}
    for closed in snapshot.closed:
        yield "Closed", closed._asdict()


def _as_lists(group: Mapping[str, Any]) -> dict[str, Any]:
    lists = {"held": _named(group["held"], "seq", "body"), "waived": _named(group["waived"], "first", "last")}
    return {**group, **lists, "is_kept": False}


def _named(rows: Sequence[Sequence[Any]], *names: str) -> list[dict[str, Any]]:
    return [dict(zip(names, row, strict=True)) for row in rows]


def read_mark(path: Path) -> PartitionMark:
    """The state of a partition as `write_mark` wrote it."""
    groups: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    closed: list[Closed] = []
    with path.open("rb") as file:
        records: Iterator[Any] = iter(fastavro.reader(file, return_record_name=True))
        head = next(records)[1]
        for name, record in records:
            if name == "Closed":
                outcome, reason = UnitOutcome(record.pop("outcome")), Reason(record.pop("reason"))
                closed.append(Closed(outcome=outcome, reason=reason, **record))
            else:
                record["held"] = _rows(record["held"])
                record["waived"] = _rows(record["waived"])
                (kept if record.pop("is_kept") else groups).append(record)
    snapshot = Snapshot(
        head["position"],
        head["clock"],
        head["command_position"],
        groups,
        {line["key"]: line["ids"] for line in head["lines"]},
        closed,
        _rows(head["commands"]),
        head["credits"],
        kept,
    )
    journal = JournalMark(
        head["ledger"],
        head["outcomes"],
        head["journal_commands"],
        head["journal_position"],
        head["journal_clock"],
        _rows(head["closings"]),
        _rows(head["done"]),
        _rows(head["ordered"]),
    )
    return PartitionMark(snapshot, journal, head["turn"], head["rank"])


def _rows(records: list[dict[str, Any]]) -> list[Any]:
    return [tuple(record.values()) for record in records]


@dataclass(frozen=True, slots=True)
class AuditState:
    """The state of a destination.

    Attributes:
        settings: Digest of everything that a recomputation depends on beside the logs.
        at: Time of the audit, epoch ms.
        origin: First input offset of the first audit of the chain, by partition.
        ends: Input offset that is judged next, by partition.
        reach: The offset of each output topic, by partition as text, from which rows of the tables are judged next.
        passed: Rows in `passed` before that, by partition.
        done: Names of the data files of each table that have no row from there on.
        folder: Name of the folder.
        routed: Where the next audit of the routers' inputs begins (`uow.spark_sink.routed_inputs.RoutedMark`).
        sums: SHA-256 of the files in it, by name.
        format: `FORMAT`.
    """

    settings: str
    at: int
    origin: Offsets
    ends: Offsets
    reach: Mapping[str, Mapping[str, int]]
    passed: Offsets
    done: Mapping[str, Sequence[str]]
    folder: str
    routed: Mapping[str, Any] = field(default_factory=dict)
    sums: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT


class Unusable(Exception):
    """There is no state to go on from; the text says why."""


@dataclass(frozen=True, slots=True)
class StateFolder:
    """The folder `DIR/_audits/D`."""

    folder: Path

    def load(self, settings: str) -> AuditState:
        """The latest state.

        Raises:
            Unusable: There is none, or it does not fit.
        """
        try:
            found = json.loads((self.folder / "latest.json").read_text(encoding="utf-8"))
            if found["format"] != FORMAT:
                raise Unusable("the last audit was by another version of uow")
            if found["settings"] != settings:
                raise Unusable("settings of the destination, or the version of uow, have changed since the last audit")
            for name in ("origin", "ends", "passed"):
                found[name] = {int(partition): int(offset) for partition, offset in found[name].items()}
            state = AuditState(**found)
            if Path(state.folder).name != state.folder or state.sums != _sums(self.folder / state.folder):
                raise Unusable("files that the last audit left are damaged")
        except FileNotFoundError:
            raise Unusable("no audit without differences came before") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unusable(f"the state that the last audit left cannot be read ({error})") from error
        return state

    def begin(self) -> Path:
        """Makes the folder for the files of an audit; its name is that of the state."""
        folder = self.folder / uuid.uuid4().hex
        folder.mkdir(parents=True)
        return folder

    def finish(self, state: AuditState) -> None:
        """The state counts from now on. What is no longer needed is deleted."""
        data = asdict(state) | {"sums": _sums(self.folder / state.folder)}
        own = self.folder / f"{state.folder}.json"
        own.write_text(json.dumps(data), encoding="utf-8")
        own.replace(self.folder / "latest.json")
        for folder in self.folder.iterdir():
            if folder.is_dir() and folder.name != state.folder and time.time() - folder.stat().st_mtime > KEPT_S:
                shutil.rmtree(folder, ignore_errors=True)

    def drop(self, folder: Path) -> None:
        """Deletes the files of an audit that leaves no state."""
        shutil.rmtree(folder, ignore_errors=True)


def _sums(folder: Path) -> dict[str, str]:
    """SHA-256 of each file below a folder, by path; Spark's own files beside the data do not count."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name[0] not in "._"]
    found = {}
    for path in files:
        with path.open("rb") as file:
            found[path.relative_to(folder).as_posix()] = file_digest(file, "sha256").hexdigest()
    return found
