"""Every setting of `uow.toml`, declared once as data: kind, default, bound, reason, text (`docs/configuration.md` is generated from it).

Belongs here: the tables. Reading and checking are in `uow.config.loading`; `docs/configuration.md` is written from them by
`uow.config.settings_page`. Does not belong here: values of a deployment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from uow.config.value_types import (
    ANY,
    Bound,
    ValueType,
    at_least,
    between,
    never_or,
)
from uow.topics import policies
from uow.topics.catalogue import is_topic_name
from uow.topics.commands import Verb
from uow.topics.policies import DestinationPolicy
from uow.topics.routes import RouteMatching

DESTINATION = "destinations.NAME"
"""Section name that stands for `[destinations.<name>]` of each destination."""
ROUTER = "routers.NAME"
"""The same for `[routers.<name>]`."""


LEGAL_NAME = "letters, digits, '.', '_' and '-', 1 to 100 characters"


def is_legal_name(name: str) -> bool:
    """True if a name can be part of topic names: Kafka's alphabet, and so short that two names and a suffix stay below 249 characters."""
    return len(name) <= 100 and is_topic_name(name)


def _is_servers(text: str) -> bool:
    return bool(text) and all(_is_address(part) for part in text.split(","))


def _is_address(text: str) -> bool:
    host, colon, port = text.strip().rpartition(":")
    return bool(colon and host) and port.isascii() and port.isdigit() and int(port) <= 65535


def _is_registry(text: str) -> bool:
    return not text or text.startswith(("http://", "https://", "mock://"))


NAME = Bound(LEGAL_NAME, is_legal_name)
SERVERS = Bound("HOST:PORT, several with commas", _is_servers)
WEB = Bound('HOST:PORT, or "off"', lambda text: text == "off" or _is_address(text))
REGISTRY = Bound("empty, or an http or https URL", _is_registry)


class Profile(StrEnum):
    """How much is asked of the cluster."""

    PRODUCTION = "production"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        section: Its table in `uow.toml`; `DESTINATION` for those of each destination.
        key: Its name there.
        kind: The type of its value.
        default: Its value when none is given.
        text: Its effect.
        bound: The legal values.
        reason: The reason for the bound or the default.
        choices: The enumeration of its values, for kinds CHOICE and CHOICES.
        is_required: True if it must be given, so that nobody gets the default without having chosen it.
    """

    section: str
    key: str
    kind: ValueType
    default: Any
    text: str
    bound: Bound = ANY
    reason: str = ""
    choices: type[StrEnum] | None = None
    is_required: bool = False

    @property
    def name(self) -> str:
        """`section.key`."""
        return f"{self.section}.{self.key}"


_DEFAULTS: Mapping[str, Any] = {field.name: field.default for field in fields(DestinationPolicy)}


def _integer(key: str, bound: Bound, text: str, reason: str = "") -> Setting:
    return Setting(DESTINATION, key, ValueType.INTEGER, _DEFAULTS[key], text, bound, reason)


def _choice(
    key: str, choices: type[StrEnum], text: str, bound: Bound = ANY, reason: str = "", *, is_required: bool = False
) -> Setting:
    return Setting(DESTINATION, key, ValueType.CHOICE, _DEFAULTS[key], text, bound, reason, choices, is_required)


def _switch(key: str, text: str, reason: str = "") -> Setting:
    return Setting(DESTINATION, key, ValueType.SWITCH, _DEFAULTS[key], text, reason=reason)


_REPLAY = at_least(0)
_REPLAY_REASON = (
    "if one of the three is 0, every component still held at the end of its poll is written to the changelog at once"
)

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "application",
        "id",
        ValueType.TEXT,
        "uow",
        "Consumer group; prefix of internal topics and transactional ids.",
        NAME,
    ),
    Setting(
        "application", "bootstrap_servers", ValueType.TEXT, "localhost:9092", "Addresses of the Kafka cluster.", SERVERS
    ),
    Setting(
        "application",
        "profile",
        ValueType.CHOICE,
        Profile.PRODUCTION,
        "With `test`, what strict order asks of topics and a single broker cannot give (replicas) is a warning.",
        choices=Profile,
    ),
    Setting(
        "application",
        "command_key",
        ValueType.TEXT,
        "",
        "File of the private key that signs the commands of this program: those of `uow release` and the like, of a client, of a worker and its routers. "
        "`uow command-key create` makes one; if empty, they are not signed.",
    ),
    Setting(
        "worker",
        "poll_records",
        ValueType.INTEGER,
        5000,
        "Largest number of records in one poll, and so in one transaction.",
        between(1, 100_000),
        "below 2000, most of the time goes into sending offsets and committing",
    ),
    Setting(
        "worker",
        "commit_interval_ms",
        ValueType.INTEGER,
        100,
        "Longest time that a transaction stays open while records flow.",
        between(1, 60_000),
        "an open transaction delays every read_committed reader; must be below half of transaction_timeout_ms",
    ),
    Setting(
        "worker",
        "transaction_timeout_ms",
        ValueType.INTEGER,
        10_000,
        "Time after which the broker aborts the transaction of a worker that died.",
        between(1000, 900_000),
        "a crashed worker's transaction holds back readers this long; the broker allows at most 900000",
    ),
    Setting(
        "worker",
        "session_timeout_ms",
        ValueType.INTEGER,
        6000,
        "Time after which the consumer group takes a silent worker's partitions away.",
        between(1000, 1_800_000),
        "between the broker's group.min.session.timeout.ms (6000 unless configured otherwise) and group.max.session.timeout.ms",
    ),
    Setting(
        "worker",
        "memory_limit_bytes",
        ValueType.INTEGER,
        1_073_741_824,
        "Memory, roughly, for everything that grows: open groups, closed ids and commands (at most a quarter, then the oldest are forgotten), the path "
        "map (at most a quarter, then the oldest unused entries are removed). Above it partitions pause. The program and its buffers need more memory.",
        at_least(16_777_216),
        "below 16 MiB one poll may not fit",
    ),
    Setting(
        "worker",
        "replay_limit_records",
        ValueType.INTEGER,
        100_000,
        "Largest number of input records that a restore may read again, per partition.",
        _REPLAY,
        _REPLAY_REASON,
    ),
    Setting(
        "worker",
        "replay_limit_bytes",
        ValueType.INTEGER,
        67_108_864,
        "The same limit in bytes of components.",
        _REPLAY,
        _REPLAY_REASON,
    ),
    Setting(
        "worker",
        "replay_limit_ms",
        ValueType.INTEGER,
        60_000,
        "The same limit as the age of an open group; input and ledger must be kept an hour longer than this.",
        _REPLAY,
        _REPLAY_REASON,
    ),
    Setting(
        "worker",
        "restore_stall_ms",
        ValueType.INTEGER,
        60_000,
        "A restore whose position does not advance for this long blocks its partition, unless an open transaction explains the wait.",
        at_least(1000),
        "a fetch may take a second on a busy broker; time spent waiting for brokers, or for the end of a dead worker's transaction, does not count",
    ),
    Setting(
        "worker",
        "clock_lead_ms",
        ValueType.INTEGER,
        60_000,
        "An append time that is further ahead of the worker's clock than this is ignored: no group expires because of it.",
        at_least(1000),
        "synchronised clocks differ by less than a second; so a broker whose clock jumps forward makes no group expire",
    ),
    Setting(
        "worker",
        "set_aside_per_minute",
        ValueType.INTEGER,
        10,
        "Most records of a partition, within a minute, at which the code itself fails and which are written to `D.rejected` as `InternalError`; at the next "
        "one the partition blocks, and is tried again. 0: it blocks at the first.",
        between(0, 100_000),
        "a defect that every record meets must not empty an input into `D.rejected`",
    ),
    Setting(
        "worker",
        "broker_wait_ms",
        ValueType.INTEGER,
        -1,
        "Longest wait for unreachable brokers before exit 1; -1 waits for ever.",
        Bound("-1 (for ever), or at least 0", lambda value: bool(value >= -1)),
    ),
    Setting(
        "worker",
        "drain_timeout_ms",
        ValueType.INTEGER,
        30_000,
        "Longest time that a worker goes on after SIGTERM before it aborts its transaction and ends.",
        at_least(0),
        "its successor restores the groups that were not finished",
    ),
    Setting(
        "worker",
        "web",
        ValueType.TEXT,
        "127.0.0.1:6066",
        "Address of the worker's web pages.",
        WEB,
        "only the same machine can reach the pages unless you choose another address",
    ),
    Setting(
        "worker",
        "web_names",
        ValueType.TEXTS,
        (),
        "Further host names under which the pages answer; addresses, `localhost` and the machine's own name always do.",
        ANY,
        "a page of somebody else, open in a browser here, could read them under a name of its own otherwise (DNS rebinding)",
    ),
    Setting(
        "client",
        "reconnect_policy",
        ValueType.CHOICE,
        policies.ReconnectPolicy.PRODUCER,
        "The objects of a connection that go on after all brokers were gone: `producer`, the connection and what sends; `all`, readers too; `none`.",
        reason="of programs that read it (`ConnectionFactory.from_config`); workers, the sink and one-shot commands follow rules of their own",
        choices=policies.ReconnectPolicy,
    ),
    Setting(
        "client",
        "reconnect_blocking_ms",
        ValueType.INTEGER,
        6000,
        "Longest that a call waits for a connection; 0: not at all, -1: for ever.",
        Bound("-1 (for ever), or at least 0", lambda value: bool(value >= -1)),
    ),
    Setting(
        "client",
        "reconnect_total_ms",
        ValueType.INTEGER,
        -1,
        "How long reconnecting is tried, from the loss or from the last call, whichever is later; -1: for ever.",
        Bound("-1 (for ever), or at least 0", lambda value: bool(value >= -1)),
    ),
    Setting(
        "client",
        "transaction_timeout_ms",
        ValueType.INTEGER,
        10_000,
        "Time after which the broker ends the transaction of a client that died.",
        between(1000, 900_000),
        "bounds how long it holds back readers; raise it where a commit must ride out longer outages",
    ),
    Setting(
        "client",
        "rollback_on_refresh",
        ValueType.SWITCH,
        False,
        "If true, the transaction of a transacted session that spans an outage is rolled back, also where it could be committed.",
    ),
    Setting(
        "schemas",
        "registry_url",
        ValueType.TEXT,
        "",
        "If empty, records use Avro single-object encoding; if set, Confluent framing with this schema registry.",
        REGISTRY,
    ),
    Setting(
        "rules",
        "source",
        ValueType.TEXT,
        "",
        "The rules of routers: `sqlite:///FILE`, `postgresql://...`, or the path of a TOML file.",
    ),
    Setting(
        "rules",
        "refresh_ms",
        ValueType.INTEGER,
        10_000,
        "Time between two looks for a new version of the rules.",
        between(100, 86_400_000),
        "the database is asked for its version only, once in this time",
    ),
    Setting(
        "rules",
        "allow_defaults",
        ValueType.SWITCH,
        False,
        "Starts with a built-in row (`D.units`, 10 components, 60 s) where neither the source nor its mirror in Kafka has rules.",
    ),
    Setting(
        ROUTER,
        "inputs",
        ValueType.TEXTS,
        (),
        "Topics whose records this router turns into components; any number of partitions each.",
        Bound("names of topics", lambda names: all(map(is_topic_name, names))),
    ),
    Setting(
        ROUTER,
        "rules",
        ValueType.TEXTS,
        (),
        "Ids of the rules that it asks, by their priority; if empty, all of them.",
    ),
    Setting(
        ROUTER,
        "input_stall_ms",
        ValueType.INTEGER,
        60_000,
        "Time for which limits of time of groups by rule wait for a partition of an input that stands: an open transaction holds it back, it has no leader, or "
        "the routers make no progress anywhere. Then they go on without it, until it moves. Must be above `session_timeout_ms` and `transaction_timeout_ms` together; the default counts for as much at least.",
        between(5_000, 86_400_000),
        "routers that make progress are waited for, however far behind they are: they may come to this partition later",
    ),
    _choice(
        "handling_policy",
        policies.HandlingPolicy,
        "`single_message_delivery` assembles components into units; `pass_through` forwards every record as it came.",
        reason="this is never guessed, neither from names of topics nor from traffic",
        is_required=True,
    ),
    _choice(
        "shape",
        policies.Shape,
        "How a unit is written: as one record; as one record per component; or as one record that refers to the components in the input.",
    ),
    _choice("value_format", policies.ValueFormat, "Encoding of a unit's value."),
    _integer(
        "incomplete_expiration_ms",
        never_or(1),
        "Age limit of an open group, from the append time of the first component held.",
        "with -1 groups may wait for ever; 0 would expire every group",
    ),
    _choice(
        "expiration_policy",
        policies.ExpirationPolicy,
        "The treatment of an expired group's components: delete them, log them, send them to the errors topic, or deliver an incomplete unit.",
    ),
    _integer(
        "idle_expiration_ms",
        never_or(1),
        "Longest time that an open group may wait for its next component, from the last component held.",
        "as above",
    ),
    _integer(
        "warn_at_percent",
        between(0, 99),
        "Share of an open group's time after which `D.outcomes` is told once what the group lacks: numbers, or sources of its rule; 0: never.",
        "so that a sender can repeat it before the group is given up",
    ),
    _choice(
        "duplicate_policy",
        policies.DuplicatePolicy,
        "The treatment of a resend or an equal duplicate: refuse it, or drop it silently. A conflict is always refused.",
    ),
    _choice(
        "fingerprints",
        policies.Fingerprints,
        "When fingerprints of delivered units are kept. With them, a component that arrives after its unit is classified as resend, duplicate or "
        "conflict; without them always as duplicate. Where the assembler numbers the components, a resend is known by them at all: without them it is "
        "in the next unit. `as_needed` keeps them under `drop_identical` only, where the class matters.",
        reason="a fingerprint costs 4 or 8 bytes, and about a microsecond, for each component of a unit of up to 1,000; of one that the assembler "
        "numbers 110 bytes of memory besides",
    ),
    _choice(
        "violation_policy",
        policies.ViolationPolicy,
        "The consequence when components contradict each other: the later component is refused, or the whole group fails.",
        reason="under `reject_component` the first of two contradicting components counts: 1, 2 with the end mark and 3 give a unit of two when 2 "
        "comes before 3, else a group that stays open without an end; under `fail_group` they give no unit, unless it was complete before. A record that a router cannot transform fails its open group likewise",
    ),
    _choice(
        "late_policy",
        policies.LatePolicy,
        "The treatment of a component whose group closed incomplete: refuse it, open a new group, or, if the group was delivered in part, deliver a "
        "corrected unit, which names the former one in `uow-supersedes`. Under `amend` a component of a group that gave no unit is refused.",
        reason='`amend` keeps the components of units delivered in part; it does not go with strict_order, `routing = "path"` or units that refer to the '
        "records of their components",
    ),
    _integer(
        "amend_max_bytes",
        at_least(1),
        'Under `late_policy = "amend"`, most memory for the components of units that may be corrected, per partition; beyond it the oldest are let go, and '
        "a component that comes late for one is refused.",
        "they are kept for `closed_retention_ms`, in the worker's memory and in the changelog",
    ),
    _integer(
        "closed_retention_ms",
        at_least(1),
        "How long the id of a closed group is remembered.",
        "within this time a late component opens no new group",
    ),
    _integer(
        "closed_max_groups",
        at_least(1),
        "Largest number of closed ids that are remembered, per partition.",
        "limits memory; the oldest are forgotten first",
    ),
    _integer(
        "max_components",
        between(1, 2_147_483_647),
        "Largest number of components in a group; one more makes the group fail.",
        "the upper bound is the largest sequence number",
    ),
    _integer(
        "max_run_components",
        between(1, 2_147_483_647),
        "The same for units that are written as one record per component: `shape` is `consecutive`, or `oversize` is and the unit fits no record.",
        "these records stand in one transaction, which must end within `transaction_timeout_ms`, and no other unit is delivered meanwhile",
    ),
    _integer(
        "max_bytes", at_least(1), "Largest size of a group, values and headers; one more byte makes the group fail."
    ),
    _integer(
        "max_headers",
        between(8, 100_000),
        "Largest number of headers of a component; one with more is refused as `DecodeError`, case `headers`. Records without an id are not limited.",
        "a header may take five bytes on the wire and thirty times that in a worker's memory; above 100,000 the Kafka client shows no headers at all",
    ),
    _integer(
        "max_header_name_bytes",
        at_least(256),
        "Largest size of all header names of a component together; a component with more is refused likewise.",
        "a worker keeps tables indexed by header names",
    ),
    _choice(
        "oversize",
        policies.Oversize,
        "The treatment of an envelope that does not fit into one record: its group fails, or the unit takes another shape.",
    ),
    _integer(
        "redelivery_limit",
        never_or(0),
        "How many redeliveries of a unit may fail before a reader moves the whole unit to `D.errors`.",
        "-1 allows any number, 0 none; readers use the value that the workers recorded, unless an argument overrides it",
    ),
    _choice(
        "routing",
        policies.Routing,
        "How a component finds its partition: by the murmur2 hash of its id, or by the path map, a topic that keeps the partition of each id in use.",
        reason="with `path`, partitions can be added while groups are open; each new id costs one record in the path map",
    ),
    _choice("outcomes", policies.OutcomesPolicy, "Closed groups that are reported to `D.outcomes`."),
    _switch(
        "strict_order",
        "Strict order, for every program that uses the destination: nothing is passed over, and what would break order is forced or refused.",
        "recorded in `D.registry` by `uow topics create`, where clients find it; `uow config show` lists what is forced and refused",
    ),
    _choice(
        "strict_attach",
        policies.StrictAttach,
        "A reader for which no partition is left: `standby` is a hot spare, `fail` leaves and raises `AlreadyAttachedError`.",
    ),
    Setting(
        DESTINATION,
        "strict_group",
        ValueType.TEXT,
        "",
        "If set, the only consumer group that may read; otherwise each group is a subscription of its own.",
        Bound(f"empty, or {LEGAL_NAME}", lambda text: not text or is_legal_name(text)),
    ),
    _choice(
        "strict_order_topology",
        policies.StrictTopology,
        "Sends without a key, when there is more than one partition: refused, or sent with a warning.",
    ),
    _choice(
        "strict_producers",
        policies.StrictProducers,
        "The way of sending: in transactions (`unit`, `forward`), or record by record (`send`). The other one is refused.",
        reason="both together have no order: each has a buffer of its own",
    ),
    _integer(
        "strict_priority",
        between(0, 9),
        "The one `uow-priority` that is accepted; a component without the header has priority 4.",
    ),
    _integer(
        "strict_block_limit_ms",
        never_or(1),
        "Longest time that a partition may be blocked; the topics must keep records longer. -1: not stated.",
        "with -1 `uow doctor` warns once the first unread record is older than half of the retention",
    ),
    _choice(
        "exception_destination",
        policies.ExceptionDestination,
        "Where a reader puts a unit after `redelivery_limit`: `D.errors`, or nowhere: it stays, and blocks its partition. Default under strict order: "
        "`none`.",
    ),
    _switch(
        "auto_stop_on_failure",
        "A partition whose handler failed `sequential_failure_threshold` times in a row counts as stopped. Default under strict order: true.",
    ),
    _integer("sequential_failure_threshold", at_least(1), "See `auto_stop_on_failure`. 1 under strict order."),
    _integer(
        "concurrency", at_least(1), "Units that the handlers of a reader have in hand at once. Only 1 is supported yet."
    ),
    _integer("max_batch_size", at_least(1), "Units that a handler gets at once. Only 1 is supported yet."),
    _switch(
        "receive_exclusive",
        "One active reader for each partition of a subscription, which is how consumer groups work. True under strict order.",
    ),
    _switch(
        "share_subscription",
        "Readers that share the records of a partition. Only false is supported.",
    ),
    Setting(
        DESTINATION,
        "accept_aliases",
        ValueType.CHOICES,
        frozenset(),
        "Other systems whose headers are read as aliases of the `uow-*` headers.",
        choices=policies.AliasFamily,
    ),
    _choice(
        "field_source",
        policies.FieldSource,
        "With `value`, a record without an id header may give `uow-id`, `uow-seq` and `uow-end` as fields of a JSON object.",
        reason="for clients without headers; the record's key must be the id; any other value is passed through as it is",
    ),
    Setting(
        DESTINATION,
        "expiration_log_headers",
        ValueType.TEXTS,
        (),
        'Further headers that the log lines of `expiration_policy = "log"` show.',
    ),
    Setting(
        DESTINATION,
        "mirror_prefixes",
        ValueType.TEXTS,
        (),
        "Prefixes of the names of mirrored topics; a destination on such topics is refused.",
        reason="the original cluster and the mirror would both deliver each unit",
    ),
    Setting(
        DESTINATION,
        "routes",
        ValueType.ROUTES,
        (),
        "Units whose headers meet the condition `when` go to the topic `to` instead of `D.units`.",
        reason="the condition is about whole units, never about components; see below",
    ),
    _choice(
        "route_matching",
        RouteMatching,
        "The topics of a unit that several routes accept: that of the first route, or those of all.",
    ),
    Setting(
        DESTINATION,
        "command_keys",
        ValueType.COMMAND_KEYS,
        (),
        "Keys that sign commands, and the verbs that each may sign. Without any, whoever may write to `D.commands` may send every command, under any name.",
        reason="see below",
    ),
    Setting(
        DESTINATION,
        "unsigned_commands",
        ValueType.CHOICES,
        _DEFAULTS["unsigned_commands"],
        "With `command_keys`: commands that need no signature.",
        reason="callers of fan-out write manifests, which begin groups and end none; where they do not trust each other `[]`, and a key for each of them; add `cancel` only where every forwarder may give any unit up",
        choices=Verb,
    ),
    _integer(
        "command_window_ms",
        between(1_000, 86_400_000),
        "With `command_keys`: most time between the moment at which a command was signed and its append time, either way.",
        "a client that tries to send a command longer than this sends it in vain; twice as long must fit into `closed_retention_ms`, since so long copies of "
        "a command can come, and are known by its id",
    ),
)

SECTIONS: tuple[str, ...] = (
    "application",
    "client",
    "kafka",
    "worker",
    "schemas",
    "rules",
    "destinations",
    "routers",
    "templates",
)

LATER: frozenset[str] = frozenset()
"""Sections and settings that are specified and not supported yet: refused with that message, not as unknown."""


@dataclass(frozen=True, slots=True)
class KafkaRule:
    """A librdkafka property that the project sets itself; `allowed` are the values that mean the same."""

    properties: tuple[str, ...]
    allowed: frozenset[str]
    rule: str


def _rule(properties: str, rule: str, allowed: str = "") -> KafkaRule:
    return KafkaRule(tuple(properties.split()), frozenset(allowed.split()), rule)


KAFKA_RULES: tuple[KafkaRule, ...] = (
    _rule("bootstrap.servers metadata.broker.list", "given by application.bootstrap_servers"),
    _rule("group.id", "given by application.id"),
    _rule(
        "transactional.id",
        "made of application.id and the worker's name, so that a restarted worker fences its predecessor at once",
    ),
    _rule("transaction.timeout.ms", "given by worker.transaction_timeout_ms"),
    _rule("session.timeout.ms", "given by worker.session_timeout_ms"),
    _rule("isolation.level", "must be read_committed: no reader may see an aborted transaction", "read_committed"),
    _rule("enable.idempotence", "must be true: only then are internal resends safe", "true"),
    _rule("acks request.required.acks", "must be all: an idempotent producer takes nothing less", "all -1"),
    _rule(
        "max.in.flight max.in.flight.requests.per.connection",
        "must be at most 5: an idempotent producer allows no more",
        "1 2 3 4 5",
    ),
    _rule("queuing.strategy", "must be fifo: an idempotent producer takes nothing else", "fifo"),
    _rule(
        "retries message.send.max.retries",
        "must not be set: a producer that stops retrying leaves a gap in the sequence",
    ),
    _rule(
        "message.timeout.ms delivery.timeout.ms",
        "must not be set: a message that times out leaves a gap in the sequence",
    ),
    _rule("enable.auto.commit", "must be false: committed offsets would run ahead of the work", "false"),
    _rule("enable.auto.offset.store", "must be false: committed offsets would run ahead of the work", "false"),
    _rule("auto.offset.reset", "must be error: a silent reset would lose or repeat records", "error"),
    _rule(
        "partitioner",
        "must be murmur2_random: a key belongs to the same partition whichever client sends it",
        "murmur2_random",
    ),
    _rule("allow.auto.create.topics", "must be false: a deleted topic must not come back by accident", "false"),
    _rule("partition.assignment.strategy", "chosen by the worker: partitions of a destination are assigned together"),
    _rule("group.protocol", "must be classic: the newer protocol keeps session times on the broker", "classic"),
    _rule("enable.partition.eof", "chosen by the worker"),
    _rule(
        "log.connection.close",
        "must be true: otherwise a broken connection goes unnoticed, and late requests of a producer spoil the next transaction",
        "true",
    ),
    _rule(
        "message.max.bytes", "chosen by the worker: a record of D.components must fit together with its error headers"
    ),
)

SHOWN_KAFKA = frozenset(
    {name for rule in KAFKA_RULES for name in rule.properties}
    | {
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.kerberos.service.name",
        "sasl.kerberos.principal",
        "sasl.kerberos.keytab",
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.token.endpoint.url",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.keystore.location",
        "ssl.crl.location",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
        "client.id",
        "client.rack",
        "client.dns.lookup",
        "group.instance.id",
        "broker.address.family",
        "broker.version.fallback",
        "api.version.request",
        "compression.type",
        "compression.codec",
        "compression.level",
        "debug",
        "log_level",
        "socket.keepalive.enable",
        "socket.nagle.disable",
    }
)
"""Properties whose values are shown. All others are masked: a secret under a mistyped name is still a secret."""

SHOWN_ENDINGS = (".ms", ".bytes", ".kbytes", ".messages")
"""Endings of properties that are numbers, whose values are shown as well."""

WITH_UNDERSCORE = frozenset({"log_level", "ssl_ca", "ssl_certificate", "ssl_key"})
"""librdkafka properties written with an underscore; all others are written with dots."""
