"""The engine's ports, as Protocols, and the values that cross them.

Belongs here: the shapes of a poll, a plan and a committed position, and the ports that `uow.processor.kafka` (librdkafka) and
`uow.processor.sim` (memory) implement. Does not belong here: anything that decides, and any I/O library. The driver has further ports, which know batches:
`uow.processor.engine.driver_ports`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from uow.schemas.records import ComponentRecord
from uow.topics.output import Output as Output

Headers = list[tuple[str, bytes | None]]


class Doubt(Exception):
    """It is uncertain if a transaction was committed (ER-11): abort, replace the producer, restore, continue."""


class StaleGeneration(Doubt):
    """The group moved on while a poll was in hand (ER-14): abort, discard the poll, let the rebalance finish. Normal when members join."""


class Refused(Doubt):
    """A record of a plan can never be written: too large, not authorised (F20). Aborted, nothing is visible.

    Attributes:
        tp: The partition of the plan; None if the broker's answer does not tell which one it was.
        output: The record, where it is known and refused for what it is; nothing is wrong with its topic.
        is_too_large: True if that is its size.
    """

    def __init__(
        self, cause: str, tp: Tp | None = None, output: Output | None = None, *, is_too_large: bool = False
    ) -> None:
        super().__init__(cause)
        self.tp, self.output, self.is_too_large = tp, output, is_too_large


class Stopped(Exception):
    """Asked to stop while waiting for a broker. Nothing is open."""


class Abandoned(Exception):
    """A restore is not needed any more: all of its partitions were revoked meanwhile."""


class Blocked(Exception):
    """One partition cannot go on, the others can (EN-08). The text is the cause, for people on call."""


class Tp(NamedTuple):
    """A topic partition."""

    topic: str
    partition: int


class RawRecord(Protocol):
    """A consumed record: the methods of `confluent_kafka.Message` that we use, no more."""

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Headers | None: ...
    def timestamp(self) -> tuple[int, int]:
        """(kind, epoch ms); kind 2 is LogAppendTime."""
        ...


Stretch = tuple[Tp, Sequence[RawRecord]]
"""Records of one partition that lie one after another, at least one."""


@dataclass(slots=True)
class Plan:
    """All that one poll writes for one partition, in the poll's single transaction (ER-01). A value: nothing is sent while it is made.

    Attributes:
        tp: The partition of `D.components`.
        changelog_topic: `A-D-groups-changelog`; rows go to partition `tp.partition` of it.
        ledger_topic: `A-D-closed-changelog`; the ledger record goes to partition `tp.partition` of it.
        commands_topic: `D.commands`; the commands read from its partition `tp.partition` are decided in this plan.
        next_command: Position there after this plan.
        changelog: Rows that survived the poll, and tombstones, in order.
        ledger: The ledger record's value; None when position and floor stay as they were.
        outputs: Records for `D.units`, `D.rejected`, `D.errors`, `D.outcomes`, and reroutes to `D.components`, in order.
        next_offset: Position after this plan: the offset to commit.
        metadata: Text for the committed offset (hints for restore: `1;F=<replay floor>;R=<changelog rows>;P=<partitions>;C=<clock>;S=<mark>`).
        external: By index in `outputs`: the component whose value stayed in `D.components` and is read back while the plan is written
            (W-117, `uow.processor.engine.external_values`).
        bare: By index in `outputs`, the source offset of each record that passes without headers. While the plan is written it is checked
            for headers that the client cannot show (`uow.processor.engine.hidden_headers`).
        rejected_topic: `D.rejected`, where such a record goes.
        log_lines: Structured log lines by `expiration_policy = "log"` (W-79), written after the commit.
        awaits_rule: The plan ends before a record that names this row, which is not known; None: it does not.
        is_cut: True if there is more to do at once: the groups that close would make the transaction too large (`uow.processor.core.plan_size`).
        seconds: CPU seconds that it took to hand its records over; set by the sink.
    """

    tp: Tp
    changelog_topic: str
    ledger_topic: str
    next_offset: int
    commands_topic: str
    next_command: int
    metadata: str = ""
    changelog: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    ledger: bytes | None = None
    outputs: list[Output] = field(default_factory=list)
    external: dict[int, ComponentRecord] = field(default_factory=dict)
    bare: dict[int, int] = field(default_factory=dict)
    rejected_topic: str = ""
    log_lines: list[dict[str, Any]] = field(default_factory=list)
    is_cut: bool = False
    awaits_rule: str | None = None
    seconds: float = 0.0

    def positions(self) -> tuple[tuple[Tp, int, str], ...]:
        """The offsets to commit, with their metadata. The position in the commands is committed every time, or it would expire one day."""
        return (
            (self.tp, self.next_offset, self.metadata),
            (Tp(self.commands_topic, self.tp.partition), self.next_command, ""),
        )


@dataclass(slots=True)
class Poll:
    """The result of one `RecordSource.read`.

    Attributes:
        records: Raw records by partition, in offset order.
        token: The consumer group's metadata, taken together with the records and never refreshed (ER-14). Opaque.
        trouble: Partitions that cannot be read on, each with its cause (W-120).
    """

    records: dict[Tp, list[RawRecord]]
    token: Any
    trouble: dict[Tp, Blocked] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndQuestion:
    """A question for the end offset of a partition, as a `read_uncommitted` reader sees it. Nobody waits for the answer.

    Attributes:
        asked_at: The earliest that it can have been on the partition's brokers just before, epoch ms (W-82).
        answer: Returns an offset below which everything lies that was appended before the question; None: it is not known yet.
    """

    asked_at: int
    answer: Callable[[], int | None]


class Committed(NamedTuple):
    """A stable committed offset; `offset` None: the group has none for this partition."""

    offset: int | None
    metadata: str


Released = Callable[[list[Tp]], list[Tp]]
"""Called with the partitions of the group's topics that are revoked; returns all that are read no longer: these, and the ones that go with them."""


Meanwhile = Callable[[], object]
"""To be called at least every few seconds while one waits or works for long: serves the group, so that we stay its member (ER-17). May raise to
end the waiting: the exception is passed on."""


class RecordSource(Protocol):
    """The consumer group's side. All calls come from the driver's thread; rebalance callbacks run inside `control`, `read` and `close`."""

    def open(
        self,
        topics: Sequence[str],
        on_assign: Callable[[list[Tp]], None],
        on_revoke: Released,
        on_lost: Released,
    ) -> None:
        """Joins the group for these topics.

        `on_assign` only takes note: nothing of a partition is read before `begin`. `on_revoke` and `on_lost` return when nothing of the
        partitions is in flight, with every partition to read no longer.
        """
        ...

    def begin(self, positions: Mapping[Tp, int]) -> None:
        """Reads these from now on, from these offsets: partitions that were assigned, and those of `D.commands` that go with them.

        The group does not assign the latter: they are always read by the owner of their `D.components`.
        """
        ...

    def control(self, timeout: float) -> None:
        """Serves rebalances and errors. Raises `UowError` for an error that cannot be repaired."""
        ...

    def read(self, limit: int, timeout: float) -> Poll | None:
        """Up to `limit` records, waiting at most `timeout` seconds for the first; None when there is nothing."""
        ...

    def token(self) -> Any:
        """The consumer group's metadata now, for work that comes from no poll (a tick). Take it first, then look at the partition (ER-02)."""
        ...

    def end(self, tp: Tp) -> EndQuestion:
        """Asks for the end offset of `tp`. The question is put with the next `control` or `read`, those for all partitions together."""
        ...

    def has_read(self, tp: Tp, position: int, end: int) -> bool:
        """True if `position` has reached `end`; markers after the last record count as reached."""
        ...

    def reached(self, tp: Tp, position: int) -> int:
        """How far the partition is read, if everything below `position` was dealt with: beyond it where transaction markers follow."""
        ...

    def seek(self, positions: Mapping[Tp, int]) -> None: ...
    def pause(self, tps: Sequence[Tp]) -> None: ...
    def resume(self, tps: Sequence[Tp]) -> None: ...
    def close(self) -> None: ...


class Sink(Protocol):
    """The transactional producer's side."""

    def open(self, meanwhile: Meanwhile) -> None:
        """`init_transactions`: fences a predecessor with the same transactional id (ER-09)."""
        ...

    def write(self, plans: Sequence[Plan], token: Any) -> None:
        """Writes and commits all plans as one transaction with their offsets (ER-01, ER-02, ER-04).

        Raises:
            StaleGeneration: The group moved on; nothing is visible.
            Refused: A record can never be written; nothing is visible.
            Doubt: The outcome is not plainly known, or the transaction was aborted.
            FencedError: Another worker has taken over our transactional id (ER-13).
        """
        ...

    def replace(self, meanwhile: Meanwhile) -> None:
        """Aborts if possible, throws the producer away, makes a new one: a new epoch (ER-11)."""
        ...

    def close(self) -> None: ...


class LogReader(Protocol):
    """Reads for a restore, and for people (`uow groups`). Never joins the group; during a restore it is made with the `Meanwhile` of the member (ER-17)."""

    def committed(self, tps: Sequence[Tp]) -> Mapping[Tp, Committed]:
        """Stable committed offsets: waits for pending transactional commits (ER-06 step 1)."""
        ...

    def bounds(self, tps: Sequence[Tp]) -> Mapping[Tp, tuple[int, int]]:
        """(log start, end offset), the end asked `read_uncommitted` (ER-06 step 2)."""
        ...

    def read(self, ranges: Mapping[Tp, tuple[int, int]]) -> Iterator[Stretch]:
        """Records in [start, end) of each partition, `read_committed`, until the position, not the last record, has reached each end (ER-07).

        A range with end <= start is not read. Order holds inside a partition.
        """
        ...


class Contents(Protocol):
    """Reads single records of `D.components` again. The group is not served meanwhile, and a transaction may be open (W-117)."""

    def read(self, components: Sequence[ComponentRecord]) -> Iterable[RawRecord]:
        """The records of these components that are still in the log. The components are in order of partition and offset.

        Raises:
            Doubt: No broker answered in time.
        """
        ...

    def hidden(self, tp: Tp, offsets: Sequence[int]) -> Collection[int]:
        """Returns the offsets of those records that have headers which the client cannot show. All came without; the offsets rise.

        Raises:
            Doubt: No broker answered in time.
        """
        ...

    def close(self) -> None: ...


class PathLog(Protocol):
    """The log of a destination's path map, and the map as far as it was read (W-105). Never joins the group."""

    def catch_up(self) -> None:
        """Reads what has arrived; does not wait."""
        ...

    def read_all(self, meanwhile: Meanwhile) -> None:
        """Reads to the end offset of now."""
        ...

    def claim(self, wanted: Mapping[bytes, int]) -> None:
        """Claims ids for partitions, and reads the log up to these claims: the map has their placement then.

        Raises:
            Doubt: No broker answered in time; claims may be in the log or not, which harms nothing.
        """
        ...

    def close(self) -> None: ...


class Clock(Protocol):
    """The wall clock, for deadlines, and a monotonic one, for waiting."""

    def now_ms(self) -> int:
        """Epoch ms. The clock behind it may be set at any moment, in either direction."""
        ...

    def latest_ms(self) -> int:
        """Epoch ms. An append time after this is not believed: a broker's clock is wrong."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since some fixed moment, which setting the wall clock does not change."""
        ...
