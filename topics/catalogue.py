"""The topics of a destination: their names and their expected settings (`docs/wire-format.md#topics`). Pure.

Belongs here: names, partition counts and topic settings as data, each with its reason. Does not belong here:
talking to a broker (`uow.topics.admin`) and the settings of destinations (`uow.topics.policies`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from uow.topics.policies import NEVER_MS, DestinationPolicy, HandlingPolicy
from uow.topics.routes import unit_topics

DEFAULT_PARTITIONS = 4

RECORD_LIMIT_BYTES = 10_485_760
"""Record limit of every topic that a worker writes; its producer's `message.max.bytes` is the same.

It is larger than the broker's limit for `D.components` (1 MiB by default), because a refused component has error
headers too, a unit has several components, and a ledger record every id of a poll. Otherwise one large record would stop
the worker (W-114, W-115).
"""

HELD_LIMIT_BYTES = RECORD_LIMIT_BYTES - 65_536
"""Largest size of one component, whatever `max_bytes` is: it must fit into a changelog record (a compressed record may be larger than the
input's limit). For units that must fit into one record, also the largest size of a group."""

HEADERS_LIMIT = 100_000
"""Largest number of headers of a record: of a record with more, librdkafka's Python client shows none at all. Written records have no more either."""

RETENTION_MARGIN_MS = 3_600_000
"""Time that input and ledger are kept beyond the policies' limits (W-120): an hour."""

_DAY_MS = 86_400_000
PATH_TOMBSTONES_MS = _DAY_MS
"""Shortest time that the path map's tombstones are kept."""

READER_LAG_MS = _DAY_MS
"""Time that a reader of units of shape `reference` may be behind, as their components must still exist (W-117)."""

_FOR_EVER = -1

TOPIC_NAME: Final = "letters, digits, '.', '_' and '-', 1 to 249"
"""The legal names of a topic, for people."""
_TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}", re.ASCII)


def is_topic_name(name: str) -> bool:
    """True if a topic may have this name."""
    return _TOPIC_NAME.fullmatch(name) is not None


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
    def registry(self) -> str:
        """Strictness, eras, subscriptions and order gaps, `D.registry`; under strict order only."""
        return f"{self.destination}.registry"

    @property
    def path_map(self) -> str:
        """The path map, `A-D-path-map`; under path routing only."""
        return f"{self.application}-{self.destination}-path-map"


def rules_topic(application: str) -> str:
    """`A-rules`, every row of a rule that a component was stamped with, by its name; for all destinations."""
    return f"{application}-rules"


def senders_topic(application: str) -> str:
    """`A-senders`: how far units that are sent over several transactions have come (B-123); for all destinations."""
    return f"{application}-senders"


RULES_PARTITION = 0
"""The only one of `A-rules`, so that its order is one for all."""


class TopicRule(StrEnum):
    """How a topic's setting is compared with the expected value."""

    EQUAL = "equal"
    AT_LEAST = "at least"
    """Compares numbers; -1 means no limit."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected value of a topic setting, its comparison and reason, and a value for new topics if that is larger.

    With `left_to_broker` a new topic gets the broker's default, which is then compared like any other value. An `advised` setting is
    reported, but nothing fails without it: there are clusters with trusted producers only, and topics of an older version.
    """

    value: str
    rule: TopicRule
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
        """The expectation for an existing topic, in words."""
        return self.value if self.rule is TopicRule.EQUAL else f"{self.rule} {self.value}"

    def accepts(self, actual: str) -> bool:
        """True if an existing topic's value meets the expectation."""
        if self.rule is TopicRule.EQUAL:
            return actual == self.value
        return _is_number(actual) and _or_for_ever(int(actual)) >= _or_for_ever(int(self.value))


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdigit()


def _or_for_ever(value: int) -> float:
    return float("inf") if value == _FOR_EVER else value


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """The expected settings of one topic.

    Attributes:
        name: Topic name.
        partitions: Number of partitions to create it with.
        replication: Replication factor to create it with; never compared.
        expectations: Settings by name that are set on creation and compared by `uow topics check`.
        tuning: Settings by name that are set on creation only: useful, but nothing is lost without them.
        strict: Settings by name that are compared only: strict order needs them, and a topic cannot have them with fewer replicas.
        min_replication: Smallest number of replicas; 0: any.
        is_trial: True if what `strict` and `min_replication` ask for is mere advice (profile `test`).
        counted: True if its number of partitions must be that of `D.components`.
        may_exceed: True if it may have more: `uow topics repartition` gives it partitions first, and may stop after that (W-107).
        of_others: True if it belongs to others: all that is expected of it, but that it is there, is advice.
    """

    name: str
    partitions: int
    replication: int
    expectations: Mapping[str, Expectation]
    tuning: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    counted: bool = True
    may_exceed: bool = False
    strict: Mapping[str, Expectation] = field(default_factory=lambda: MappingProxyType({}))
    min_replication: int = 0
    is_trial: bool = False
    of_others: bool = False

    @property
    def config(self) -> dict[str, str]:
        """Settings to create the topic with."""
        expectations = {**self.expectations, **durability(self.replication)}
        told = {name: each.initial for name, each in expectations.items() if not each.left_to_broker}
        return told | dict(self.tuning)


_DELETE = Expectation("delete", TopicRule.EQUAL, "records must be deleted by age only")
_INPUT_DELETE = Expectation(
    "delete", TopicRule.EQUAL, "all components of a unit share a key, so compaction would lose them"
)
_COMPACT = Expectation("compact", TopicRule.EQUAL, "held components must stay as long as their group is open")
_REGISTRY = Expectation("compact", TopicRule.EQUAL, "clients must find strictness, eras and subscriptions at any time")
_APPEND_TIME = Expectation(
    "LogAppendTime",
    TopicRule.EQUAL,
    "deadlines count from the broker's append time, never from the producer's clock",
)
_NO_SIZE_LIMIT = Expectation(
    "-1",
    TopicRule.EQUAL,
    "units refer to components, which must not be deleted too early",
    left_to_broker=True,
)
_AS_LARGE_AS_SENT = Expectation(
    "uncompressed",
    TopicRule.EQUAL,
    "a compressed batch of 3 kB may grow to 100 MB at its reader; with this setting the broker decompresses it first and enforces max.message.bytes",
    advised=True,
)
_RECORD_LIMIT = Expectation(
    str(RECORD_LIMIT_BYTES),
    TopicRule.AT_LEAST,
    "must accept every record that a worker makes from a record of D.components",
)


def durability(replication: int) -> dict[str, Expectation]:
    """Settings that keep an acknowledged record safe, in a topic with this number of replicas.

    With one replica there is no choice. With two there is no good `min.insync.replicas`: with 1, records that the follower has not copied yet
    are lost with the leader; with 2, the loss of either broker stops all work. So with two brokers the choice is left to the operator.
    """
    if replication < 2:
        return {}
    found = {"unclean.leader.election.enable": _CLEAN_ELECTION}
    return found | {"min.insync.replicas": _TWO_IN_SYNC} if replication > 2 else found


_CLEAN_ELECTION = Expectation(
    "false",
    TopicRule.EQUAL,
    "a leader that lags behind loses acknowledged records, and with them units, offsets or state",
)
_TWO_IN_SYNC = Expectation(
    "2", TopicRule.AT_LEAST, "acknowledged records must outlive the disk of one broker", advised=True
)

STRICT_REPLICATION = 3
"""Fewest replicas of a topic whose order must outlive the loss of a broker (S-22)."""
_STRICT = MappingProxyType(
    {
        "min.insync.replicas": Expectation(
            "2", TopicRule.AT_LEAST, "under strict order an acknowledged record must outlive the disk of one broker"
        ),
        "unclean.leader.election.enable": Expectation(
            "false", TopicRule.EQUAL, "a leader that lags behind would cut off the end of the log, and order with it"
        ),
    }
)

_QUICK_COMPACTION = MappingProxyType(
    # A restore reads the whole changelog including tombstones, so segments close soon and tombstones are removed soon.
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
        "cleanup.policy": Expectation("compact", TopicRule.EQUAL, "a placement must stay as long as its group is open"),
        "message.timestamp.type": Expectation(
            "LogAppendTime", TopicRule.EQUAL, "placements end by the age of their claims"
        ),
        "delete.retention.ms": Expectation(
            str(PATH_TOMBSTONES_MS),
            TopicRule.AT_LEAST,
            "a reader that was away must still see that a placement has ended",
        ),
        "compression.type": _AS_LARGE_AS_SENT,
    }
)
_RULES = MappingProxyType(
    {
        "cleanup.policy": Expectation(
            "compact", TopicRule.EQUAL, "the row of a rule must stay as long as a component that names it can be read"
        ),
        "max.message.bytes": _RECORD_LIMIT,
        "compression.type": _AS_LARGE_AS_SENT,
    }
)
_SENDERS = MappingProxyType(
    {
        "cleanup.policy": Expectation(
            "compact", TopicRule.EQUAL, "how far a unit was sent must stay until it has ended"
        ),
        "delete.retention.ms": Expectation(
            str(7 * _DAY_MS),
            TopicRule.AT_LEAST,
            "a sender that begins once more must still see that its unit has ended",
        ),
    }
)
_ROUTER_INPUT = MappingProxyType(
    {
        "cleanup.policy": Expectation(
            "delete", TopicRule.EQUAL, "compaction would remove records before a router reads them"
        ),
        "message.timestamp.type": Expectation(
            "LogAppendTime",
            TopicRule.EQUAL,
            "limits of time count from the append time here; without it they count from the one in D.components",
        ),
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
    targets: Mapping[str, bool] = MappingProxyType({}),
    is_trial: bool = False,
) -> list[TopicSpec]:
    """The expected settings of the topics of a destination (W-19, W-70, W-88, W-120).

    Args:
        application: `application.id`.
        destination: Name of the destination.
        policy: Its settings; `closed_retention_ms` and `incomplete_expiration_ms` limit retention times, `routes` name further topics.
        partitions: Count for topics to be created.
        replication: Replication factor for topics to be created.
        replay_ms: Largest age of a group whose components are not in the changelog but only in input and ledger.
        targets: Target topics of rules for this destination; true where units are written as runs, one record after another, to the partition
            number of their components (B-60).
        is_trial: True for profile `test`: what strict order asks of a cluster is mere advice (S-22).

    Returns:
        `D.components` first; every topic with `counted` must have its partition count.
    """
    names = DestinationTopics(application, destination)
    if policy.handling_policy is HandlingPolicy.PASS_THROUGH:
        replay_ms = 0  # no component is ever held

    def spec(
        name: str,
        expectations: dict[str, Expectation],
        tuning: Mapping[str, str] = MappingProxyType({}),
        counted: bool = True,
        may_exceed: bool = False,
    ) -> TopicSpec:
        return TopicSpec(name, partitions, replication, MappingProxyType(expectations), tuning, counted, may_exceed)

    def in_order(found: TopicSpec) -> TopicSpec:
        if not policy.strict_order:
            return found
        strict = dict(_STRICT)
        if policy.strict_block_limit_ms != NEVER_MS:
            reason = "a record must outlive the longest time that a partition may be blocked (strict_block_limit_ms)"
            strict["retention.ms"] = Expectation(str(policy.strict_block_limit_ms + 1), TopicRule.AT_LEAST, reason)
        return replace(found, strict=strict, min_replication=STRICT_REPLICATION, is_trial=is_trial)

    units = unit_topics(policy.routes, names.units)
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
        in_order(spec(names.components, components)),
        *(in_order(spec(name, output)) for name in units),
        *(spec(name, output, counted=in_runs) for name, in_runs in sorted(targets.items()) if name not in units),
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
        *(
            [TopicSpec(names.registry, 1, replication, MappingProxyType({cleanup: _REGISTRY}), counted=False)]
            if policy.strict_order
            else []
        ),
    ]


def expected_of_routers(
    application: str,
    inputs: Iterable[str],
    partitions: int = DEFAULT_PARTITIONS,
    replication: int = 1,
    outputs: Collection[str] | None = None,
) -> list[TopicSpec]:
    """The expected settings of `A-rules`, first, and of the inputs of routers, which others own: their settings are advice.

    Args:
        application: `application.id`.
        inputs: Topics that routers read.
        partitions: Count for inputs to be created.
        replication: Replication factor for topics to be created.
        outputs: Topics that workers write, which are known: what comes from them need not be kept from growing. None: not known, so nothing is said of it.
    """

    def of_input(name: str) -> Mapping[str, Expectation]:
        is_foreign = outputs is not None and name not in outputs
        return {**_ROUTER_INPUT, "compression.type": _AS_LARGE_AS_SENT} if is_foreign else _ROUTER_INPUT

    rules = TopicSpec(rules_topic(application), 1, replication, _RULES, _SMALL_SEGMENTS, counted=False)
    return [
        rules,
        *(
            TopicSpec(name, partitions, replication, of_input(name), counted=False, of_others=True)
            for name in sorted(inputs)
        ),
    ]


def expected_of_senders(
    application: str, partitions: int = DEFAULT_PARTITIONS, replication: int = 1
) -> list[TopicSpec]:
    """The expected settings of `A-senders`."""
    return [TopicSpec(senders_topic(application), partitions, replication, _SENDERS, _SMALL_SEGMENTS, counted=False)]


def _components_retention(incomplete_expiration_ms: int, replay_ms: int, lag_ms: int) -> Expectation:
    """Retention of the input, which must outlive every open group (W-120); a new topic keeps a week, unless groups may be open for ever."""
    needed = max(incomplete_expiration_ms, replay_ms, 0) + RETENTION_MARGIN_MS + lag_ms
    reason = "components must outlive incomplete_expiration_ms and replay_limit_ms by an hour"
    if lag_ms:
        reason += ", and, because units refer to them, by another day for the readers"
    for_ever = incomplete_expiration_ms == NEVER_MS
    return Expectation(str(needed), TopicRule.AT_LEAST, reason, str(max(needed, 7 * _DAY_MS)), left_to_broker=for_ever)


def _ledger_retention(closed_retention_ms: int, replay_ms: int) -> Expectation:
    """Retention of the ledger. Closed ids are remembered by the partition's clock, so downtime of the workers is added: a day in a new topic."""
    needed = max(closed_retention_ms, replay_ms)
    reason = "closed ids must be kept for closed_retention_ms, records of a replay for replay_limit_ms, and both an hour longer"
    return Expectation(str(needed + RETENTION_MARGIN_MS), TopicRule.AT_LEAST, reason, str(needed + _DAY_MS))
