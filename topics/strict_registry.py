"""`D.registry`: what makes a destination strict, as records: rules, the era, subscriptions, order gaps (`docs/wire-format.md#the-registry`). Pure.

Theory of operation. The topic has one partition and is compacted; a record's key is a kind and a name, its value JSON. Clients read all of it when
they first use the destination, and again now and then. Without the topic, or without a record that says otherwise, a destination is not strict.

An *era* begins when order begins: at the start of strictness, with another partition count, with topics that were made again. It names the topics by
id, and the position at which each partition begins. A *subscription* is one partition of a consumer group that has begun in an era.

Whoever may write the topic can change the rules for all; a record that cannot be read stops clients, since the rules are not known then.

Belongs here: the records and their meaning. Does not belong here: reading and writing the topic (`uow.client.strict_log`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from uow.schemas.error_classes import DecodeError
from uow.topics.policies import (
    NEVER_MS,
    NO_LIMIT,
    DestinationPolicy,
    ExceptionDestination,
    StrictAttach,
    StrictProducers,
    StrictTopology,
)

VERSION: Final = 1
ROOM: Final = 1_000_000
"""Largest value that is read, in bytes."""


class Kind(StrEnum):
    """The kinds of records; the key is the kind alone, or the kind, `/` and a name."""

    STRICT = "strict"
    ERA = "era"
    SUBSCRIPTION = "subscription"
    GAP = "gap"
    LEASE = "lease"


@dataclass(frozen=True, slots=True)
class StrictRules:
    """The settings of a strict destination that its clients follow; as in `uow.topics.policies.DestinationPolicy`."""

    strict_order: bool = True
    strict_attach: StrictAttach = StrictAttach.STANDBY
    strict_group: str = ""
    strict_order_topology: StrictTopology = StrictTopology.REFUSE
    strict_producers: StrictProducers = StrictProducers.TRANSACTED
    strict_priority: int = 4
    strict_block_limit_ms: int = NEVER_MS
    exception_destination: ExceptionDestination = ExceptionDestination.NONE
    redelivery_limit: int = NO_LIMIT
    auto_stop_on_failure: bool = True

    @classmethod
    def of(cls, policy: DestinationPolicy) -> StrictRules:
        """The rules of a destination with these settings."""
        return cls(*(getattr(policy, name) for name in cls.__slots__))

    def key(self) -> bytes:
        return Kind.STRICT.encode()

    def value(self) -> bytes:
        return _written({name: getattr(self, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True)
class EraTopic:
    """A topic of an era.

    Attributes:
        id: Kafka's id of the topic.
        starts: The offset at which the era begins, by partition.
    """

    id: str
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Era:
    """A stretch of a destination's life over which order holds.

    Attributes:
        number: From 1.
        topics: By name.
        began_at: Epoch ms.
        why: The reason for it.
        by: Who began it.
    """

    number: int
    topics: Mapping[str, EraTopic]
    began_at: int
    why: str
    by: str

    def key(self) -> bytes:
        return Kind.ERA.encode()

    def value(self) -> bytes:
        topics = {name: {"id": each.id, "starts": each.starts} for name, each in self.topics.items()}
        return _written(
            {"number": self.number, "topics": topics, "began_at": self.began_at, "why": self.why, "by": self.by}
        )


@dataclass(frozen=True, slots=True)
class Subscription:
    """One partition that a consumer group has begun to read.

    Attributes:
        group: The consumer group.
        topic: The topic.
        partition: Its partition.
        era: The era in which it began.
        by: Who began it: empty for the group's first reader, otherwise who adopted the era for it.
        at: Epoch ms.
    """

    group: str
    topic: str
    partition: int
    era: int
    by: str
    at: int

    def key(self) -> bytes:
        return f"{Kind.SUBSCRIPTION}/{self.group}/{self.topic}/{self.partition}".encode()

    def value(self) -> bytes:
        return _written({"era": self.era, "by": self.by, "at": self.at})


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to read a destination for one output, held by a program that is no member of a consumer group: a sink.

    Attributes:
        output: Where what is read goes to.
        token: Of the one program that holds it.
        until: Epoch ms; it is renewed long before.
        by: Who it is.
    """

    output: str
    token: str
    until: int
    by: str

    def key(self) -> bytes:
        return f"{Kind.LEASE}/{self.output}/{self.token}".encode()

    def value(self) -> bytes:
        return _written({"until": self.until, "by": self.by})


@dataclass(frozen=True, slots=True)
class OrderGap:
    """Order that was broken on purpose, and is recorded: never silent.

    Attributes:
        whose: The consumer group, or `producer`.
        topic: Where.
        partition: Its partition.
        first: First offset that was passed over; of a producer, which knows none, the time, epoch ms.
        last: Last offset; of a producer, as `first`.
        cause: The reason.
        by: Who did it.
        at: Epoch ms.
    """

    whose: str
    topic: str
    partition: int
    first: int
    last: int
    cause: str
    by: str
    at: int

    def key(self) -> bytes:
        return f"{Kind.GAP}/{self.whose}/{self.topic}/{self.partition}/{self.first}".encode()

    def value(self) -> bytes:
        return _written({"last": self.last, "cause": self.cause, "by": self.by, "at": self.at})

    def __str__(self) -> str:
        span = f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"
        return f"{self.topic}/{self.partition}, {span}, by {self.by} ({self.whose}): {self.cause}"


def _written(fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"v": VERSION, **fields}).encode()


@dataclass(slots=True)
class StrictRegistry:
    """The content of `D.registry`: the newest record of each key.

    Attributes:
        destination: `D`.
        rules: None if nothing says that it is strict.
        era: The present era.
        subscriptions: Era by group, topic and partition.
        gaps: By key, in the order of their writing.
        leases: By output and token, those that are over included.
        unread: Records of kinds that this version does not know.
    """

    destination: str
    rules: StrictRules | None = None
    era: Era | None = None
    subscriptions: dict[tuple[str, str, int], Subscription] = field(default_factory=dict)
    gaps: dict[bytes, OrderGap] = field(default_factory=dict)
    leases: dict[tuple[str, str], Lease] = field(default_factory=dict)
    unread: int = 0

    @property
    def is_strict(self) -> bool:
        return self.rules is not None and self.rules.strict_order

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Takes the next record.

        Raises:
            DecodeError: It is of a kind of ours and cannot be read.
        """
        try:
            kind, *name = (key or b"").decode().split("/")
        except UnicodeDecodeError:
            kind, name = "", []
        if kind not in Kind.__members__.values():
            self.unread += 1
            return
        try:
            self._apply(Kind(kind), name, value)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DecodeError(kind, f"record {key!r} of {self.destination}.registry cannot be read: {error}") from error

    def _apply(self, kind: Kind, name: list[str], value: bytes | None) -> None:
        said = None if value is None else _read(value)
        match kind:
            case Kind.STRICT:
                self.rules = None if said is None else _rules(said)
            case Kind.ERA:
                self.era = None if said is None else _era(said)
            case Kind.SUBSCRIPTION:
                *group, topic, partition = name
                place = ("/".join(group), topic, _number(partition))
                if said is None:
                    self.subscriptions.pop(place, None)
                else:
                    self.subscriptions[place] = Subscription(
                        *place, _number(said["era"]), str(said["by"]), _number(said["at"])
                    )
            case Kind.LEASE:
                *output, token = name
                held = ("/".join(output), token)
                if said is None:
                    self.leases.pop(held, None)
                else:
                    self.leases[held] = Lease(*held, _number(said["until"]), str(said["by"]))
            case Kind.GAP:
                *whose, topic, partition, first = name
                key = "/".join((kind, *name)).encode()
                if said is None:
                    self.gaps.pop(key, None)
                else:
                    at = ("/".join(whose), topic, _number(partition), _number(first))
                    self.gaps[key] = OrderGap(
                        *at, _number(said["last"]), str(said["cause"]), str(said["by"]), _number(said["at"])
                    )


def _read(value: bytes) -> Mapping[str, Any]:
    if len(value) > ROOM:
        raise ValueError(f"{len(value)} bytes, at most {ROOM} are read")
    said = json.loads(value)
    if not isinstance(said, dict):
        raise ValueError("it is no JSON object")
    if said.get("v") != VERSION:
        raise ValueError(f"version {said.get('v')!r} is not known to this program")
    return said


def _rules(said: Mapping[str, Any]) -> StrictRules:
    return StrictRules(
        _flag(said["strict_order"]),
        StrictAttach(said["strict_attach"]),
        str(said["strict_group"]),
        StrictTopology(said["strict_order_topology"]),
        StrictProducers(said["strict_producers"]),
        _number(said["strict_priority"]),
        _number(said["strict_block_limit_ms"]),
        ExceptionDestination(said["exception_destination"]),
        _number(said["redelivery_limit"]),
        _flag(said["auto_stop_on_failure"]),
    )


def _era(said: Mapping[str, Any]) -> Era:
    topics = {
        str(name): EraTopic(str(each["id"]), tuple(_number(start) for start in each["starts"]))
        for name, each in said["topics"].items()
    }
    return Era(_number(said["number"]), topics, _number(said["began_at"]), str(said["why"]), str(said["by"]))


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _number(value: Any) -> int:
    """An integer as Kafka has them: 64 bits."""
    if isinstance(value, str) and not (value.isascii() and value.isdigit() and len(value) < 20):
        raise ValueError(f"{value[:20]!r} is no number")
    if isinstance(value, bool) or not isinstance(value, int | str) or not -(2**63) <= int(value) < 2**63:
        raise ValueError(f"{str(value)[:20]!r} is no number")
    return int(value)
