"""Every setting of `uow.toml`, declared once as data: kind, default, bound, reason, text (contract section 6).

Belongs here: the tables. Reading and checking are `uow.config`, `docs/configuration.md` is written from here by
`uow.settings_page`. Does not belong here: any value that a deployment gave.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from topics import policies
from topics.policies import DestinationPolicy
from topics.routes import RouteMatching
from uow.kinds import ANY, Bound, Kind, at_least, between, for_now, never_or

DESTINATION = "destinations.NAME"
"""Section name that stands for `[destinations.<name>]` of each destination."""


LEGAL_NAME = "letters, digits, '.', '_' and '-', 1 to 100 characters"
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def is_legal_name(name: str) -> bool:
    """Whether a name can be part of topic names: Kafka's alphabet; two names and a suffix must stay below 249."""
    return 1 <= len(name) <= 100 and _NAME_CHARACTERS.issuperset(name) and name not in (".", "..")


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


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        section: Its table in `uow.toml`; `DESTINATION` for those of each destination.
        key: Its name there.
        kind: What its value is made of.
        default: Its value when nothing is given.
        text: What it does.
        bound: Legal values.
        reason: Why the bound or the default is as it is.
        choices: The enumeration of kinds CHOICE and CHOICES.
    """

    section: str
    key: str
    kind: Kind
    default: Any
    text: str
    bound: Bound = ANY
    reason: str = ""
    choices: type[StrEnum] | None = None

    @property
    def name(self) -> str:
        """`section.key`."""
        return f"{self.section}.{self.key}"


_DEFAULTS: Mapping[str, Any] = {field.name: field.default for field in fields(DestinationPolicy)}


def _integer(key: str, bound: Bound, text: str, reason: str = "") -> Setting:
    return Setting(DESTINATION, key, Kind.INTEGER, _DEFAULTS[key], text, bound, reason)


def _choice(key: str, choices: type[StrEnum], text: str, bound: Bound = ANY, reason: str = "") -> Setting:
    return Setting(DESTINATION, key, Kind.CHOICE, _DEFAULTS[key], text, bound, reason, choices)


_REPLAY = at_least(0)
_REPLAY_REASON = "if one of the three is 0, every component that survives its poll is in the changelog at once"

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "application", "id", Kind.TEXT, "uow", "Consumer group; prefix of internal topics and transactional ids.", NAME
    ),
    Setting("application", "bootstrap_servers", Kind.TEXT, "localhost:9092", "Where the Kafka cluster is.", SERVERS),
    Setting(
        "worker",
        "poll_records",
        Kind.INTEGER,
        5000,
        "Most records of one poll, hence of one transaction.",
        between(1, 100_000),
        "sending offsets and committing is most of the time below 2000",
    ),
    Setting(
        "worker",
        "commit_interval_ms",
        Kind.INTEGER,
        100,
        "Longest a transaction stays open while records flow.",
        between(1, 60_000),
        "an open transaction delays every read_committed reader; must be below half of transaction_timeout_ms",
    ),
    Setting(
        "worker",
        "transaction_timeout_ms",
        Kind.INTEGER,
        10_000,
        "When the broker ends the transaction of a worker that died.",
        between(1000, 900_000),
        "a crashed worker's transaction holds back readers this long; the broker takes at most 900000",
    ),
    Setting(
        "worker",
        "session_timeout_ms",
        Kind.INTEGER,
        6000,
        "When the group takes a silent worker's partitions away.",
        between(1000, 1_800_000),
        "the broker's group.min.session.timeout.ms (6000 unless it was told otherwise) and group.max.session.timeout.ms",
    ),
    Setting(
        "worker",
        "memory_limit_bytes",
        Kind.INTEGER,
        1_073_741_824,
        "Memory for all that grows, about: open groups, closed ids and commands (a quarter at most, then the oldest are forgotten), the path map (a quarter, then the oldest unused ways end). Above it partitions pause. The program and its buffers come on top.",
        at_least(16_777_216),
        "below 16 MiB one poll may not fit",
    ),
    Setting(
        "worker",
        "replay_limit_records",
        Kind.INTEGER,
        100_000,
        "How much input a restore may read again, per partition.",
        _REPLAY,
        _REPLAY_REASON,
    ),
    Setting(
        "worker",
        "replay_limit_bytes",
        Kind.INTEGER,
        67_108_864,
        "The same in bytes of components.",
        _REPLAY,
        _REPLAY_REASON,
    ),
    Setting(
        "worker",
        "replay_limit_ms",
        Kind.INTEGER,
        60_000,
        "The same as the age of an open group; input and ledger must be kept an hour longer.",
        _REPLAY,
        _REPLAY_REASON,
    ),
    Setting(
        "worker",
        "restore_stall_ms",
        Kind.INTEGER,
        60_000,
        "A restore whose position does not move this long, with no open transaction to explain it, blocks its partition.",
        at_least(1000),
        "a fetch may take a second on a busy broker; waiting for brokers, or for the end of a dead worker's transaction, does not count",
    ),
    Setting(
        "worker",
        "clock_lead_ms",
        Kind.INTEGER,
        60_000,
        "An append time that is further ahead of the worker's clock is not believed: it moves no deadline.",
        at_least(1000),
        "synchronised clocks differ by less than a second; a broker whose clock leaps expires nothing then",
    ),
    Setting(
        "worker",
        "broker_wait_ms",
        Kind.INTEGER,
        -1,
        "Longest wait for unreachable brokers before exit 1; -1 waits for ever.",
        Bound("-1 (for ever), or at least 0", lambda value: bool(value >= -1)),
    ),
    Setting(
        "worker",
        "drain_timeout_ms",
        Kind.INTEGER,
        30_000,
        "Longest a SIGTERM takes before the worker aborts and leaves.",
        at_least(0),
        "the successor restores what was not settled",
    ),
    Setting(
        "worker",
        "web",
        Kind.TEXT,
        "127.0.0.1:6066",
        "Address of the worker's web pages.",
        WEB,
        "loopback unless you say otherwise",
    ),
    Setting(
        "schemas",
        "registry_url",
        Kind.TEXT,
        "",
        "Empty: Avro single-object encoding. Set: Confluent framing through that registry.",
        REGISTRY,
    ),
    _choice(
        "handling_policy",
        policies.HandlingPolicy,
        "Whether the destination forms units.",
        reason="never inferred from topic names or traffic (W-05, W-64)",
    ),
    _choice(
        "shape",
        policies.Shape,
        "How a unit is written: one record; one record per component; one record that says where they are (W-12, W-117).",
    ),
    _choice("value_format", policies.ValueFormat, "Encoding of a unit's value (W-95)."),
    _integer(
        "incomplete_expiration_ms",
        never_or(1),
        "Age limit of an open group, from the append time of the first component held.",
        "with -1 groups may wait for ever; 0 would expire every group (W-70, W-72)",
    ),
    _choice(
        "expiration_policy",
        policies.ExpirationPolicy,
        "What becomes of the held components of an expired group (W-78 to W-81, W-207).",
    ),
    _integer(
        "idle_expiration_ms",
        never_or(1),
        "Limit of quiet time of an open group, from the last component held.",
        "as above (W-70)",
    ),
    _choice(
        "duplicate_policy",
        policies.DuplicatePolicy,
        "What becomes of a resend or an equal duplicate; a conflict is always refused (W-44).",
    ),
    _choice(
        "fingerprints",
        policies.Fingerprints,
        "Whether a component that comes after its unit was delivered is told as resend, duplicate or conflict only where that decides what "
        "becomes of it, under `drop_identical`, or always; else it is told as duplicate (W-40).",
        reason="4 bytes, or 8, and about a microsecond for each component of a unit of up to 1,000",
    ),
    _choice(
        "violation_policy",
        policies.ViolationPolicy,
        "Whether a violation costs the component or the group (W-35, W-39).",
        reason="between components that contradict each other the first one stays: 1, 2 with the end mark, 3 gives a unit of two when 2 comes "
        "before 3, else a group that stays open without an end; under `fail_group` no unit, unless it was whole before the violation came",
    ),
    _choice(
        "late_policy",
        policies.LatePolicy,
        "What a component of a group meets that closed otherwise than complete (W-85).",
    ),
    _integer(
        "closed_retention_ms",
        at_least(1),
        "How long a closed id is remembered.",
        "within it a late component opens no new group (W-19)",
    ),
    _integer(
        "closed_max_groups",
        at_least(1),
        "How many closed ids are remembered at most, per partition.",
        "memory; the oldest are forgotten first",
    ),
    _integer(
        "max_components",
        between(1, 2_147_483_647),
        "Most components of a group; one more fails it.",
        "the largest sequence number (W-20, W-115)",
    ),
    _integer("max_bytes", at_least(1), "Most bytes of a group, values and headers; more fails it.", "W-115"),
    _integer(
        "max_headers",
        between(8, 100_000),
        "Most headers of a component; one with more is refused as `DecodeError`, case `headers`. Plain traffic passes.",
        "a header is five bytes on the wire and thirty times that in a worker's hands; the Kafka client shows none at all above 100,000",
    ),
    _integer(
        "max_header_name_bytes",
        at_least(256),
        "Most bytes of the names of a component's headers, together; more is refused likewise.",
        "a worker keeps tables by header names",
    ),
    _choice(
        "oversize",
        policies.Oversize,
        "What becomes of an envelope that does not fit one record: its group fails, or it takes another shape (W-115, W-208).",
    ),
    _integer(
        "redelivery_limit",
        never_or(0),
        "How many redeliveries of a unit may fail before a reader moves it, whole, to `D.errors` (W-87).",
        "-1: any number; 0: none. Readers take it from what the workers recorded; an argument overrides it",
    ),
    _choice(
        "routing",
        policies.Routing,
        "How a component finds its partition: murmur2 of the id, or the path map, a topic that keeps the way of each id that is in use.",
        reason="with path, partitions can be added while groups are open; each new id costs a claim (W-104, W-105, W-215)",
    ),
    _choice("outcomes", policies.OutcomesPolicy, "Which closed groups are reported to `D.outcomes` (W-214)."),
    Setting(
        DESTINATION,
        "strict_order",
        Kind.SWITCH,
        False,
        "Units leave in the order in which their groups opened.",
        for_now(False, "strict order is"),
    ),
    Setting(
        DESTINATION,
        "accept_aliases",
        Kind.CHOICES,
        frozenset(),
        "Header families of other systems that are read as ours (W-17).",
        choices=policies.AliasFamily,
    ),
    _choice(
        "field_source",
        policies.FieldSource,
        "With `value`, records without an id header may say `uow-id`, `uow-seq` and `uow-end` as fields of a JSON object.",
        reason="for clients that have no headers; any other value stays plain traffic; the key is the id (W-24)",
    ),
    Setting(
        DESTINATION,
        "expiration_log_headers",
        Kind.TEXTS,
        (),
        'Further headers in the log lines of `expiration_policy = "log"` (W-79).',
    ),
    Setting(
        DESTINATION,
        "mirror_prefixes",
        Kind.TEXTS,
        (),
        "What names of mirrored topics begin with; a destination on such topics is refused.",
        reason="its origin and the mirror would both deliver each unit (W-112)",
    ),
    Setting(
        DESTINATION,
        "routes",
        Kind.ROUTES,
        (),
        "Units whose headers meet the condition `when` go to the topic `to` instead of `D.units`.",
        reason="selection looks at whole units, never at components; see below (W-98 to W-101)",
    ),
    _choice(
        "route_matching",
        RouteMatching,
        "Whether a unit that several routes accept goes to the first one's topic or to all of theirs.",
        reason="W-100",
    ),
)

SECTIONS: tuple[str, ...] = ("application", "kafka", "worker", "schemas", "destinations", "templates")

LATER: frozenset[str] = frozenset(
    {
        "client",
        "rules",
    }
)
"""Sections and settings that the specifications name and nothing reads yet: refused as not built, not as unknown."""


@dataclass(frozen=True, slots=True)
class KafkaRule:
    """A librdkafka property that we set ourselves; `allowed` are the values that say the same."""

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
        "made of application.id and the worker's slot: stable, so that a successor fences at once (ER-09)",
    ),
    _rule("transaction.timeout.ms", "given by worker.transaction_timeout_ms"),
    _rule("session.timeout.ms", "given by worker.session_timeout_ms"),
    _rule("isolation.level", "every reader of ours reads read_committed (W-49)", "read_committed"),
    _rule("enable.idempotence", "must be true: safe internal resend", "true"),
    _rule("acks request.required.acks", "must be all: an idempotent producer takes nothing less", "all -1"),
    _rule(
        "max.in.flight max.in.flight.requests.per.connection",
        "at most 5: above it an idempotent producer is refused",
        "1 2 3 4 5",
    ),
    _rule("queuing.strategy", "must be fifo: an idempotent producer takes nothing else", "fifo"),
    _rule(
        "retries message.send.max.retries",
        "not to be set: a producer that gives up opens a hole in the sequence (S-30)",
    ),
    _rule(
        "message.timeout.ms delivery.timeout.ms",
        "a finite value of its own opens a hole in the sequence (S-30)",
    ),
    _rule("enable.auto.commit", "must be false: committed offsets would run ahead of the work", "false"),
    _rule("enable.auto.offset.store", "must be false: committed offsets would run ahead of the work", "false"),
    _rule("auto.offset.reset", "must be error: a silent reset is loss or replay; the first start is explicit", "error"),
    _rule(
        "partitioner",
        "must be murmur2_random: one key, one partition, whichever client sends (W-109)",
        "murmur2_random",
    ),
    _rule("allow.auto.create.topics", "must be false: a deleted topic must not come back by accident", "false"),
    _rule("partition.assignment.strategy", "chosen by the worker: partitions of a destination are assigned together"),
    _rule("group.protocol", "must be classic: the newer protocol keeps session times on the broker", "classic"),
    _rule("enable.partition.eof", "chosen by the worker"),
    _rule(
        "log.connection.close",
        "must be true: a broken connection that is not logged leaves a producer in use whose late requests harm the next transaction (ER-11)",
        "true",
    ),
    _rule(
        "message.max.bytes", "chosen by the worker: a record of D.components must fit with its error headers (W-115)"
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
"""Properties whose values are shown. All others are masked: a secret under a mistyped name is a secret."""

SHOWN_ENDINGS = (".ms", ".bytes", ".kbytes", ".messages")
"""Properties that end so are numbers, and shown as well."""

WITH_UNDERSCORE = frozenset({"log_level", "ssl_ca", "ssl_certificate", "ssl_key"})
"""librdkafka properties written with an underscore; all others are written with dots."""
