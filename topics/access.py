"""The rights that each role needs on a cluster with an authorizer: one table, from which `uow acl show` and `docs/access.md` are made. Pure.

Theory of operation. A row names a resource by a pattern: `{D}` is a destination, `{A}` the application, and the rest are names that the application itself
chooses, such as its consumer group. READ and WRITE imply DESCRIBE, and WRITE on any topic implies the right to an idempotent producer. A test runs each role
with its rows alone, and once without each of them (`tests/broker/test_access.py`).

Belongs here: roles, rows, and the bindings that they become. Does not belong here: talking to a broker, and printing (`uow.cli.acl_command`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from uow.topics.catalogue import DestinationTopics, rules_topic

_RIGHTS: Final = "`uow acl show` prints the rights that each role needs"
_LOGIN: Final = "the brokers refuse the login: look at sasl.mechanism, sasl.username and sasl.password"
REMEDIES: Final = {
    "TOPIC_AUTHORIZATION_FAILED": _RIGHTS,
    "GROUP_AUTHORIZATION_FAILED": _RIGHTS,
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": _RIGHTS,
    "CLUSTER_AUTHORIZATION_FAILED": _RIGHTS,
    "_AUTHENTICATION": _LOGIN,
    "SASL_AUTHENTICATION_FAILED": _LOGIN,
    "_SSL": "no TLS with the brokers: look at ssl.ca.location, ssl.certificate.location and ssl.key.location, and at the address",
}
"""The remedy for each error of Kafka that refuses the user, by its name; the others say nothing about users."""


def explained(name: str, text: str) -> str:
    """The text of an error of Kafka, and where it refuses the user also what to do about it.

    Args:
        name: Of the error, such as `TOPIC_AUTHORIZATION_FAILED`.
        text: As the library gives it.
    """
    # of a handshake that failed the library may also tell by a name that says nothing about it
    remedy = REMEDIES.get("_SSL" if "SSL_HANDSHAKE" in text else name)
    return text if remedy is None else f"{text}; {remedy}"


def denied_text(topic: str) -> str:
    """That a topic may not even be described."""
    return f"this user has no right to topic {topic!r}, not even to hear whether it exists; {_RIGHTS}"


class Role(StrEnum):
    """The roles."""

    PRODUCER = "producer"
    CALLER = "caller"
    FORWARDER = "forwarder"
    CANCELLER = "canceller"
    READER = "reader"
    WORKER = "worker"
    ROUTER = "router"
    OPERATOR = "operator"
    SINK = "sink"
    AUDIT = "audit"
    RULES_AUTHOR = "rules-author"


ROLES: Final = {
    Role.PRODUCER: "sends units and plain records to a destination",
    Role.CALLER: "sends fan-out calls, and waits for their units",
    Role.FORWARDER: "reads a topic and sends its records on, to a destination or to the next topic",
    Role.CANCELLER: "a forwarder that may give a unit up (`cancel()`): beside the rights of a forwarder",
    Role.READER: "reads the units of a destination, and gives up those that fail too often",
    Role.WORKER: "`uow worker`: makes units",
    Role.ROUTER: "`uow worker` with routers: beside the rights of a worker",
    Role.OPERATOR: "looks (`groups`, `show`, `rejected`, `doctor`, `topics check`) and repairs (`release`, `cancel`, ... `set-aside` and `resubmit`)",
    Role.SINK: "`uow sink`",
    Role.AUDIT: "`uow audit`",
    Role.RULES_AUTHOR: "`uow rules`: checks rules and puts new versions in force",
}
"""Each role in words."""


class Resource(StrEnum):
    """Kinds of resources, as `kafka-acls` spells them."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"


class Pattern(StrEnum):
    """How a name is meant."""

    LITERAL = "literal"
    PREFIXED = "prefixed"


class Operation(StrEnum):
    """The operations that the roles need."""

    READ = "Read"
    WRITE = "Write"
    DESCRIBE = "Describe"
    DESCRIBE_CONFIGS = "DescribeConfigs"


class Only(StrEnum):
    """The destinations or applications that a row is about."""

    ALL = ""
    STRICT = "with `strict_order`"
    NOT_STRICT = "without `strict_order`"
    PATHS = 'with `routing = "path"`'
    NO_PATHS = 'with `routing = "hash"`'
    RULES = "with routers"
    REFERENCES = "with shape `reference`"


class Need(NamedTuple):
    """A row of the table.

    Attributes:
        role: Who needs it.
        resource: Kind of the resource.
        name: Of the resource, a pattern with `{D}` and the like (`Names.fill`).
        operations: Each becomes a binding.
        why: What it is for.
        only: The destinations that need it.
        pattern: How the name is meant.
    """

    role: Role
    resource: Resource
    name: str
    operations: tuple[Operation, ...]
    why: str
    only: Only = Only.ALL
    pattern: Pattern = Pattern.LITERAL


_READ, _WRITE, _BOTH = (Operation.READ,), (Operation.WRITE,), (Operation.READ, Operation.WRITE)
_DESCRIBE, _LOOK = (Operation.DESCRIBE,), (Operation.DESCRIBE_CONFIGS, Operation.READ)
_CHECK = (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
_CLIENT: Final = "{client}"
_T, _G, _X = Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID


def _of_clients(role: Role) -> tuple[Need, ...]:
    """The rows of everybody who uses `uow.connect` with a destination."""
    return (
        Need(role, _T, "{D}.registry", _DESCRIBE, "asks whether the destination is strict", Only.NOT_STRICT),
        Need(role, _T, "{D}.registry", _READ, "the rules of a strict destination", Only.STRICT),
    )


def _of_readers(role: Role) -> tuple[Need, ...]:
    """The rows of everybody who reads units. A reader without a group has one by name all the same, and Kafka is asked who coordinates it."""
    return (
        Need(role, _T, "{held}", _READ, "the policies for units that are given up; without it nothing is discarded"),
        Need(role, _G, "uow-", _DESCRIBE, "reads of the client's own, outside its group", pattern=Pattern.PREFIXED),
    )


def _of_transactions(role: Role) -> Need:
    return Need(role, _X, _CLIENT, _WRITE, "transactions", pattern=Pattern.PREFIXED)


_TABLES: Final = (
    ("{units}", "units"),
    ("{D}.rejected", "refused components"),
    ("{D}.errors", "what was given up"),
    ("{D}.outcomes", "outcomes and answers"),
)


def _of_workers(role: Role) -> tuple[Need, ...]:
    return (
        Need(role, _G, "{A}", _READ, "the consumer group"),
        Need(role, _X, "{A}-worker-", _WRITE, "transactions, `{A}-worker-NAME`", pattern=Pattern.PREFIXED),
        Need(role, _T, "{D}.components", _BOTH, "the input; components on a wrong partition are sent on"),
        Need(role, _T, "{D}.commands", _READ, "commands"),
        Need(role, _T, "{units}", _WRITE, "units"),
        Need(role, _T, "{targets}", _WRITE, "units by rule", Only.RULES),
        Need(role, _T, "{D}.rejected", _WRITE, "refused components"),
        Need(role, _T, "{D}.errors", _WRITE, "what policies give up"),
        Need(role, _T, "{D}.outcomes", _WRITE, "outcomes and answers"),
        Need(role, _T, "{held}", _BOTH, "open groups"),
        Need(role, _T, "{closed}", _BOTH, "positions and closed ids"),
        Need(role, _T, "{map}", _BOTH, "the partitions of ids", Only.PATHS),
        Need(role, _T, "{A}-rules", _READ, "the rules of groups", Only.RULES),
        Need(role, _T, "{every}", (Operation.DESCRIBE_CONFIGS,), "compares settings at its start"),
    )


def _of_routers(role: Role) -> tuple[Need, ...]:
    return (
        Need(role, _G, "{A}-router", _READ, "the consumer group"),
        Need(role, _X, "{A}-router-worker-", _WRITE, "transactions", pattern=Pattern.PREFIXED),
        Need(role, _T, "{inputs}", (Operation.READ, Operation.DESCRIBE_CONFIGS), "what is routed"),
        Need(role, _T, "{D}.components", _WRITE, "routed records"),
        Need(role, _T, "{D}.commands", _WRITE, "the commands of rules"),
        Need(role, _T, "{D}.rejected", _WRITE, "records without a route"),
        Need(role, _T, "{A}-rules", _BOTH, "rows, and the mirror of the rules"),
    )


NEEDS: Final = (
    Need(Role.PRODUCER, _T, "{D}.components", _WRITE, "components and plain records"),
    Need(Role.PRODUCER, _T, "{map}", _BOTH, "claims a partition for each new id", Only.PATHS),
    *_of_clients(Role.PRODUCER),
    _of_transactions(Role.PRODUCER),
    Need(Role.CALLER, _T, "{A}-rules", _BOTH, "the rules that gather replies, and the row of a call where it is new"),
    Need(Role.CALLER, _T, "{D}.commands", _WRITE, "the manifest of a call"),
    Need(Role.CALLER, _T, "{to}", _WRITE, "requests"),
    Need(Role.CALLER, _T, "{replies}", _READ, "waits for the unit of a call"),
    *_of_readers(Role.CALLER),
    Need(Role.CALLER, _T, "{map}", _DESCRIBE, "asks whether ids are claimed", Only.NO_PATHS),
    Need(Role.CALLER, _T, "{map}", _READ, "finds the partition of an id", Only.PATHS),
    *_of_clients(Role.CALLER),
    _of_transactions(Role.CALLER),
    Need(Role.FORWARDER, _T, "{from}", _READ, "the records that it sends on"),
    Need(Role.FORWARDER, _G, "{group}", _READ, "its consumer group"),
    Need(Role.FORWARDER, _T, "{to}", _WRITE, "the next topic"),
    Need(Role.FORWARDER, _T, "{D}.components", _WRITE, "the destination, at the last hop"),
    Need(Role.FORWARDER, _T, "{map}", _BOTH, "claims a partition for each new id, at the last hop", Only.PATHS),
    *_of_clients(Role.FORWARDER),
    _of_transactions(Role.FORWARDER),
    Need(Role.CANCELLER, _T, "{D}.commands", _WRITE, "`cancel()`"),
    Need(Role.CANCELLER, _T, "{D}.outcomes", _READ, "the answer to it"),
    Need(Role.READER, _T, "{units}", _READ, "units"),
    Need(Role.READER, _G, "{group}", _READ, "its consumer group"),
    Need(Role.READER, _T, "{D}.errors", _WRITE, "units that are given up"),
    *_of_readers(Role.READER),
    Need(Role.READER, _T, "{D}.components", _READ, "the values that units refer to", Only.REFERENCES),
    *_of_clients(Role.READER),
    _of_transactions(Role.READER),
    *_of_workers(Role.WORKER),
    *_of_routers(Role.ROUTER),
    Need(Role.OPERATOR, _T, "{D}.components", (*_LOOK, Operation.WRITE), "looks at what waits; `resubmit` sends again"),
    Need(Role.OPERATOR, _T, "{D}.commands", (*_LOOK, Operation.WRITE), "commands"),
    Need(Role.OPERATOR, _T, "{D}.rejected", _LOOK, "`rejected` and `resubmit`"),
    Need(Role.OPERATOR, _T, "{D}.errors", _LOOK, "`rejected` and `resubmit`"),
    Need(Role.OPERATOR, _T, "{D}.outcomes", _LOOK, "answers, and how groups closed"),
    Need(Role.OPERATOR, _T, "{units}", _LOOK, "`show`, `topics check` and `doctor`"),
    Need(Role.OPERATOR, _T, "{targets}", _CHECK, "`topics check` and `doctor`", Only.RULES),
    Need(Role.OPERATOR, _T, "{held}", _LOOK, "open groups"),
    Need(Role.OPERATOR, _T, "{closed}", _LOOK, "positions and closed ids"),
    Need(Role.OPERATOR, _T, "{map}", _DESCRIBE, "asks whether ids are claimed", Only.NO_PATHS),
    Need(Role.OPERATOR, _T, "{map}", _LOOK, "the partitions of ids", Only.PATHS),
    Need(Role.OPERATOR, _T, "{A}-rules", _LOOK, "the rules of groups", Only.RULES),
    Need(Role.OPERATOR, _T, "{inputs}", _CHECK, "`topics check` and `doctor`", Only.RULES),
    Need(Role.OPERATOR, _G, "{A}", _DESCRIBE, "positions of the workers"),
    Need(Role.OPERATOR, _G, "{A}-router", _DESCRIBE, "positions of the routers, for `set-aside`", Only.RULES),
    *_of_clients(Role.OPERATOR),
    *(Need(Role.SINK, _T, name, _READ, why) for name, why in _TABLES),
    Need(Role.SINK, _T, "{targets}", _READ, "units by rule", Only.RULES),
    Need(Role.SINK, _T, "{A}-rules", _READ, "the rules of destinations", Only.RULES),
    Need(Role.SINK, _T, "{D}.components", _READ, "the values that units refer to", Only.REFERENCES),
    Need(Role.SINK, _T, "{D}.registry", _BOTH, "the lease of a strict destination", Only.STRICT),
    Need(Role.SINK, _G, "uow-sink", _DESCRIBE, "asks for the ends of topics"),
    Need(Role.SINK, _G, "{A}", _DESCRIBE, "reads the rules", Only.RULES),
    Need(Role.AUDIT, _T, "{D}.components", _READ, "what the units are computed from"),
    Need(Role.AUDIT, _T, "{D}.commands", _READ, "what the units are computed from"),
    Need(Role.AUDIT, _T, "{D}.outcomes", _READ, "the answers to commands"),
    Need(Role.AUDIT, _T, "{closed}", _READ, "what workers knew"),
    Need(Role.AUDIT, _T, "{map}", _READ, "the partitions of ids", Only.PATHS),
    Need(Role.AUDIT, _T, "{A}-rules", _READ, "the rules of groups", Only.RULES),
    Need(Role.AUDIT, _T, "{inputs}", (Operation.READ, Operation.DESCRIBE_CONFIGS), "what was routed", Only.RULES),
    Need(Role.AUDIT, _G, "{A}", _DESCRIBE, "how far workers were"),
    Need(Role.AUDIT, _G, "{A}-router", _DESCRIBE, "how far routers were", Only.RULES),
    Need(Role.AUDIT, _G, "uow-audit", _DESCRIBE, "reads without a group"),
    Need(Role.AUDIT, _G, "uow-sink", _DESCRIBE, "asks for the ends of topics"),
    Need(Role.RULES_AUTHOR, _T, "{A}-rules", _WRITE, "`rules refresh`", Only.RULES),
    Need(Role.RULES_AUTHOR, _T, "{inputs}", _READ, "`rules rehearse`", Only.RULES),
    Need(Role.RULES_AUTHOR, _T, "{D}.components", _DESCRIBE, "`rules check` and `put` compare partitions", Only.RULES),
    Need(Role.RULES_AUTHOR, _T, "{targets}", _DESCRIBE, "`rules check` and `put` compare partitions", Only.RULES),
    Need(Role.RULES_AUTHOR, _G, "{A}", _DESCRIBE, "reads without a group", Only.RULES),
)


@dataclass(frozen=True, slots=True)
class Names:
    """The names that stand in the rows for one destination.

    Attributes:
        application: `application.id`.
        destination: Its name.
        units: `D.units`, and the topics of its routes.
        targets: Target topics of its rules.
        inputs: What its routers read.
        conditions: The kinds of destinations that this one is.
        group: Consumer group of a reader or forwarder.
        client: What the transactional ids of clients begin with.
        reads: Topics that a forwarder reads.
        writes: Topics that a forwarder or a caller writes.
        replies: Topics of the units that a caller waits for.
    """

    application: str
    destination: str
    units: Sequence[str] = ()
    targets: Sequence[str] = ()
    inputs: Sequence[str] = ()
    conditions: frozenset[Only] = frozenset()
    group: str = "GROUP"
    client: str = "uow-"
    reads: Sequence[str] = ("INPUT",)
    writes: Sequence[str] = ("OUTPUT",)
    replies: Sequence[str] = ()

    def fill(self, name: str) -> Iterable[str]:
        """The names that a pattern stands for."""
        topics = DestinationTopics(self.application, self.destination)
        several = {
            "{units}": self.units,
            "{targets}": self.targets,
            "{inputs}": self.inputs,
            "{from}": self.reads,
            "{to}": self.writes,
            "{replies}": self.replies,
            "{every}": (
                *(topics.components, *self.units, *self.targets, topics.rejected, topics.errors, topics.commands),
                *(topics.outcomes, topics.groups_changelog, topics.closed_changelog),
                *((topics.path_map,) if Only.PATHS in self.conditions else ()),
                *((topics.registry,) if Only.STRICT in self.conditions else ()),
                *((rules_topic(self.application),) if Only.RULES in self.conditions else ()),
            ),
        }
        if name in several:
            return several[name]
        single = {
            "{D}": self.destination,
            "{A}": self.application,
            "{held}": topics.groups_changelog,
            "{closed}": topics.closed_changelog,
            "{map}": topics.path_map,
            "{group}": self.group,
            _CLIENT: self.client,
        }
        for pattern, meant in single.items():
            name = name.replace(pattern, meant)
        return (name,)


def has_transactions(role: Role) -> bool:
    """True if a role uses transactional ids that the application chooses."""
    return any(need.role is role and need.name == _CLIENT for need in NEEDS)


def covers_workers(application: str, client: str) -> bool:
    """True if a right to all transactional ids that begin like this is one to ids of workers too: its holder could fence them."""
    own = (f"{application}-worker-", f"{application}-router-worker-")
    return client.startswith(own) or any(each.startswith(client) for each in own)


class Binding(NamedTuple):
    """A right: to allow an operation on a resource."""

    resource: Resource
    name: str
    pattern: Pattern
    operation: Operation


def bindings(role: Role, names: Names) -> Iterator[tuple[Binding, str]]:
    """The rights that a role needs for a destination, each with what it is for."""
    for need in NEEDS:
        if need.role is role and (need.only is Only.ALL or need.only in names.conditions):
            for name in names.fill(need.name):
                for operation in need.operations:
                    yield Binding(need.resource, name, need.pattern, operation), need.why
