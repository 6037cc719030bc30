"""The topics of a destination: their names and what each of them must be like (contract section 2). Pure.

Belongs here: names, partition counts and topic settings as data, each with its reason. Does not belong here:
talking to a broker (`topics.admin`) and the settings of destinations (`topics.policies`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from topics.policies import NEVER_MS, DestinationPolicy, HandlingPolicy
from topics.routes import unit_topics

DEFAULT_PARTITIONS = 4

RECORD_LIMIT_BYTES = 10_485_760
"""Record limit of every topic that a worker writes; its producer's `message.max.bytes` is the same.

Larger than what the broker takes in on `D.components` (1 MiB by default): a refused component carries its error
headers as well, a unit several components, a ledger record every id of a poll. Otherwise one large record would stop
the worker (W-114, W-115).
"""

HELD_LIMIT_BYTES = RECORD_LIMIT_BYTES - 65_536
"""Most bytes of one component, whatever `max_bytes` says: it must fit a record of the changelog (what came compressed may be larger than the
input's limit). Where a unit must fit one record, most bytes of a group as well."""

HEADERS_LIMIT = 100_000
"""Most headers of a record: librdkafka reads no more, and its Python client then shows none at all. What we write has no more either."""

RETENTION_MARGIN_MS = 3_600_000
"""How much longer than the policies ask the input and the ledger must be kept (W-120): an hour."""

_DAY_MS = 86_400_000
PATH_TOMBSTONES_MS = _DAY_MS
"""How long the path map's tombstones are kept at least."""

READER_LAG_MS = _DAY_MS
"""How far behind a reader of units of shape `reference` may be: their components must still be there (W-117)."""

_FOR_EVER = -1


@dataclass(frozen=True, slots=True)
class DestinationTopics:
    """Names of the topics of one destination.

    Attributes:
        application: `application.id`, the prefix of internal topics.
        destination: Name of the destination.
    """

    application: str
    destination: str

    @property
    def components(self) -> str:
        """Input, `D.components`."""
        return f"{self.destination}.components"

    @property
    def units(self) -> str:
        """Finished units and passed-through records, `D.units`."""
        return f"{self.destination}.units"

    @property
    def rejected(self) -> str:
        """Refused components, `D.rejected`."""
        return f"{self.destination}.rejected"

    @property
    def errors(self) -> str:
        """Components and units given up by policy, `D.errors`."""
        return f"{self.destination}.errors"

    @property
    def commands(self) -> str:
        """Control records, `D.commands`."""
        return f"{self.destination}.commands"

    @property
    def outcomes(self) -> str:
        """Closed groups and answers, `D.outcomes`."""
        return f"{self.destination}.outcomes"

    @property
    def groups_changelog(self) -> str:
        """Held components and changed groups, `A-D-groups-changelog`."""
        return f"{self.application}-{self.destination}-groups-changelog"

    @property
    def closed_changelog(self) -> str:
        """The ledger, `A-D-closed-changelog`."""
        return f"{self.application}-{self.destination}-closed-changelog"

    @property
    def path_map(self) -> str:
        """The path map, `A-D-path-map`; under path routing only."""
        return f"{self.application}-{self.destination}-path-map"


class Rule(StrEnum):
    """How a topic's setting is compared with what is expected."""

    EQUAL = "equal"
    AT_LEAST = "at least"
    """A number; -1 counts as without limit."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """One topic setting: what an existing topic is compared with, how, why; what a new one gets where that is more.

    With `left_to_broker` a new topic gets the broker's default, which is then compared like any other. What is `advised` is told, and nobody
    refuses to work without it: there are clusters where every producer is trusted, and topics of an older version.
    """

    value: str
    rule: Rule
    reason: str
    generous: str = ""
    left_to_broker: bool = False
    advised: bool = False

    @property
    def initial(self) -> str:
        """The value that a new topic gets."""
        return self.generous or self.value

    @property
    def text(self) -> str:
        """What an existing topic must have, in words."""
        return self.value if self.rule is Rule.EQUAL else f"{self.rule} {self.value}"

    def accepts(self, actual: str) -> bool:
        """Whether an existing topic's value will do."""
        if self.rule is Rule.EQUAL:
            return actual == self.value
        return _is_number(actual) and _or_for_ever(int(actual)) >= _or_for_ever(int(self.value))


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdigit()


def _or_for_ever(value: int) -> float:
    return float("inf") if value == _FOR_EVER else value


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """What one topic must be like.

    Attributes:
        name: Topic name.
        partitions: Count to create it with.
        replication: Replication factor to create it with; never compared.
        expectations: Settings by name that are set on creation and compared by `uow topics check`.
        tuning: Settings by name that are set on creation only: good to have, nothing is lost without them.
        counted: Whether `partitions` must be equal to that of `D.components`.
        may_exceed: Whether it may have more of them: `uow topics repartition` gives it partitions first, and may be given up then (W-107).
    """

    name: str
    partitions: int
    replication: int
    expectations: Mapping[str, Expectation]
    tuning: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    counted: bool = True
    may_exceed: bool = False

    @property
    def config(self) -> dict[str, str]:
        """Settings to create the topic with."""
        expectations = {**self.expectations, **durability(self.replication)}
        told = {name: each.initial for name, each in expectations.items() if not each.left_to_broker}
        return told | dict(self.tuning)


_DELETE = Expectation("delete", Rule.EQUAL, "records leave by age only")
_INPUT_DELETE = Expectation(
    "delete", Rule.EQUAL, "all components of a unit share a key, compaction would lose them (W-120)"
)
_COMPACT = Expectation("compact", Rule.EQUAL, "held components stay as long as their group is open (W-124)")
_APPEND_TIME = Expectation(
    "LogAppendTime", Rule.EQUAL, "deadlines count from the broker's append time, never from the producer's clock (W-70)"
)
_NO_SIZE_LIMIT = Expectation(
    "-1", Rule.EQUAL, "units refer to components, which must not leave before their time (W-117)", left_to_broker=True
)
_AS_LARGE_AS_SENT = Expectation(
    "uncompressed",
    Rule.EQUAL,
    "a batch of 3 kB may inflate to 100 MB in whoever reads it: the broker inflates it first, and refuses what is larger than max.message.bytes",
    advised=True,
)
_RECORD_LIMIT = Expectation(
    str(RECORD_LIMIT_BYTES), Rule.AT_LEAST, "must take whatever the worker makes of a record of D.components (W-115)"
)


def durability(replication: int) -> dict[str, Expectation]:
    """What keeps a record that was acknowledged, in a topic with so many replicas.

    One replica has nothing to choose from. With two there is no good `min.insync.replicas`: 1 loses with the leader what the follower has not
    got yet, 2 stops all work with either of them; so that is left to whoever has two brokers.
    """
    if replication < 2:
        return {}
    found = {"unclean.leader.election.enable": _CLEAN_ELECTION}
    return found | {"min.insync.replicas": _TWO_IN_SYNC} if replication > 2 else found


_CLEAN_ELECTION = Expectation(
    "false", Rule.EQUAL, "a leader that lags behind loses what was acknowledged, and with it units, offsets or state"
)
_TWO_IN_SYNC = Expectation("2", Rule.AT_LEAST, "what is acknowledged must outlive the disk of one broker", advised=True)

_QUICK_COMPACTION = MappingProxyType(
    # A restore reads the whole changelog, tombstones included, so segments close soon and tombstones leave soon.
    {
        "segment.bytes": "33554432",
        "segment.ms": "600000",
        "min.cleanable.dirty.ratio": "0.2",
        "delete.retention.ms": "600000",
        "max.compaction.lag.ms": "3600000",
    }
)
_PATH_MAP = MappingProxyType(
    {
        "cleanup.policy": Expectation("compact", Rule.EQUAL, "a way stays as long as its group is open (W-106)"),
        "message.timestamp.type": Expectation(
            "LogAppendTime", Rule.EQUAL, "ways end by the age of their claims (W-106)"
        ),
        "delete.retention.ms": Expectation(
            str(PATH_TOMBSTONES_MS), Rule.AT_LEAST, "who slept must still hear that a way has ended (W-105)"
        ),
        "compression.type": _AS_LARGE_AS_SENT,
    }
)
_SMALL_SEGMENTS = MappingProxyType(
    {"segment.bytes": "33554432", "segment.ms": "600000", "min.cleanable.dirty.ratio": "0.2"}
)
_QUICK_DELETION = MappingProxyType({"segment.bytes": "33554432", "segment.ms": "3600000"})


def expected(
    application: str,
    destination: str,
    policy: DestinationPolicy,
    partitions: int = DEFAULT_PARTITIONS,
    replication: int = 1,
    replay_ms: int = 0,
) -> list[TopicSpec]:
    """What the topics of a destination must be like (contract section 2, W-19, W-70, W-88, W-120).

    Args:
        application: `application.id`.
        destination: Name of the destination.
        policy: Its settings; `closed_retention_ms` and `incomplete_expiration_ms` bound retention times, `routes` name further topics.
        partitions: Count for topics to be created.
        replication: Replication factor for topics to be created.
        replay_ms: How old a group may be whose components are in no changelog: input and ledger are all there is of it.

    Returns:
        `D.components` first; every topic with `counted` must have its partition count.
    """
    names = DestinationTopics(application, destination)
    if policy.handling_policy is HandlingPolicy.PASS_THROUGH:
        replay_ms = 0  # nothing is ever held

    def spec(
        name: str,
        expectations: dict[str, Expectation],
        tuning: Mapping[str, str] = MappingProxyType({}),
        counted: bool = True,
        may_exceed: bool = False,
    ) -> TopicSpec:
        return TopicSpec(name, partitions, replication, MappingProxyType(expectations), tuning, counted, may_exceed)

    cleanup, clock, limit, codec = "cleanup.policy", "message.timestamp.type", "max.message.bytes", "compression.type"
    components = {cleanup: _INPUT_DELETE, clock: _APPEND_TIME, codec: _AS_LARGE_AS_SENT}
    lag_ms = READER_LAG_MS if policy.refers else 0
    if policy.incomplete_expiration_ms != NEVER_MS or replay_ms or lag_ms:
        components["retention.ms"] = _components_retention(policy.incomplete_expiration_ms, replay_ms, lag_ms)
    if lag_ms:
        components["retention.bytes"] = _NO_SIZE_LIMIT
    output = {cleanup: _DELETE, limit: _RECORD_LIMIT}
    ledger = output | {"retention.ms": _ledger_retention(policy.closed_retention_ms, replay_ms)}
    return [
        spec(names.components, components),
        *(spec(name, output) for name in unit_topics(policy.routes, names.units)),
        spec(names.rejected, output, counted=False),
        spec(names.errors, output),
        spec(names.commands, {cleanup: _DELETE, clock: _APPEND_TIME, codec: _AS_LARGE_AS_SENT}),
        spec(names.outcomes, output),
        spec(names.groups_changelog, {cleanup: _COMPACT, limit: _RECORD_LIMIT}, _QUICK_COMPACTION, may_exceed=True),
        spec(names.closed_changelog, ledger, _QUICK_DELETION, may_exceed=True),
        *(
            [TopicSpec(names.path_map, 1, replication, _PATH_MAP, _SMALL_SEGMENTS, counted=False)]
            if policy.has_paths
            else []
        ),
    ]


def _components_retention(incomplete_expiration_ms: int, replay_ms: int, lag_ms: int) -> Expectation:
    """Input outlives every group that may still be open (W-120); a new topic keeps a week of it, unless groups may be open for ever."""
    needed = max(incomplete_expiration_ms, replay_ms, 0) + RETENTION_MARGIN_MS + lag_ms
    reason = "components must outlive incomplete_expiration_ms and replay_limit_ms by an hour (W-120)"
    if lag_ms:
        reason += ", and where units refer to them by a day more for their readers (W-117)"
    for_ever = incomplete_expiration_ms == NEVER_MS
    return Expectation(str(needed), Rule.AT_LEAST, reason, str(max(needed, 7 * _DAY_MS)), left_to_broker=for_ever)


def _ledger_retention(closed_retention_ms: int, replay_ms: int) -> Expectation:
    """Closed ids are remembered by the partition's clock, so a worker's downtime comes on top: a day in a new topic."""
    needed = max(closed_retention_ms, replay_ms)
    reason = "closed ids must be known for closed_retention_ms, and what a replay takes for replay_limit_ms, and an hour (W-19)"
    return Expectation(str(needed + RETENTION_MARGIN_MS), Rule.AT_LEAST, reason, str(needed + _DAY_MS))
