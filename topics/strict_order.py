"""Strict order of a destination as data: what it forces, what it refuses, and what nobody can enforce (`docs/specification/ordering.md`). Pure.

Belongs here: the tables, and the values that strict order puts in the place of others. Does not belong here: enforcing them
(`uow.client.strict_order` for applications, `uow.config.loading` for settings, `uow.topics.catalogue` for topics).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from uow.topics.policies import ExceptionDestination

STRICT_DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "exception_destination": ExceptionDestination.NONE,
        "auto_stop_on_failure": True,
        "receive_exclusive": True,
    }
)
"""Defaults of settings under strict order, where they differ."""

FORCED: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "concurrency": 1,
        "max_batch_size": 1,
        "receive_exclusive": True,
        "share_subscription": False,
        "sequential_failure_threshold": 1,
    }
)
"""Settings that have one value under strict order; another one is overridden, with a warning (S-27)."""

ONLY_STRICT: Final = frozenset(
    {
        "strict_attach",
        "strict_group",
        "strict_order_topology",
        "strict_producers",
        "strict_priority",
        "strict_block_limit_ms",
        "auto_stop_on_failure",
        "receive_exclusive",
    }
)
"""Settings without an effect unless `strict_order` is on."""

ONE_AT_A_TIME: Final = ("concurrency", "max_batch_size", "share_subscription", "sequential_failure_threshold")
"""Settings of which, without strict order, only the default is supported yet."""


class OrderOverrideWarning(NamedTuple):
    """A setting that strict order overrides (S-27). Logged and counted, never raised."""

    destination: str
    key: str
    requested: Any
    effective: Any

    def __str__(self) -> str:
        return (
            f"OrderOverrideWarning: destination {self.destination}: {self.key} is {_text(self.requested)}, "
            f"strict order makes it {_text(self.effective)}"
        )


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def overrides(destination: str, requested: Mapping[str, Any]) -> Iterator[OrderOverrideWarning]:
    """A warning for each requested value that is not the one that strict order forces.

    Args:
        destination: Its name.
        requested: Values by setting; settings that are not forced are passed over.
    """
    for key, effective in FORCED.items():
        if key in requested and requested[key] != effective:
            yield OrderOverrideWarning(destination, key, requested[key], effective)


class StrictRow(NamedTuple):
    """One row of what strict order does to a setting or a use."""

    subject: str
    reaction: str
    effective: str


OVERRIDE, REFUSE, WARN, ALLOW = "override", "refuse", "warn", "allow"

ROWS: Final = (
    StrictRow("concurrency above 1", OVERRIDE, "1"),
    StrictRow("max_batch_size above 1, or several units at once", OVERRIDE, "1"),
    StrictRow("parallel forwarding of one partition", OVERRIDE, "1"),
    StrictRow("receive_exclusive = false, share_subscription = true", OVERRIDE, "exclusive, never shared"),
    StrictRow("sequential_failure_threshold above 1", OVERRIDE, "1"),
    StrictRow("message.timeout.ms of a plain producer", REFUSE, "0: no record is given up by time"),
    StrictRow('exception_destination = "errors"', WARN, "every move is recorded as an order gap"),
    StrictRow("max.in.flight 2 to 5", ALLOW, "as given: an idempotent producer keeps the order"),
    StrictRow("enable.idempotence = false, acks not all, retries = 0, lifo queuing", REFUSE, ""),
    StrictRow("isolation.level, auto.offset.reset, enable.auto.commit, enable.auto.offset.store", REFUSE, ""),
    StrictRow("readers without a group, share groups", REFUSE, ""),
    StrictRow("a consumer group other than strict_group, where that is set", REFUSE, ""),
    StrictRow("a send without a key to more than one partition", REFUSE, 'warning with strict_order_topology = "warn"'),
    StrictRow("partitions chosen by the application, another partitioner", REFUSE, "murmur2 of the key"),
    StrictRow(
        "replication below 3, min.insync.replicas below 2, unclean election, compaction",
        REFUSE,
        "warning in profile test",
    ),
    StrictRow("retention below strict_block_limit_ms", REFUSE, "warning in profile test"),
    StrictRow("uow-priority other than strict_priority", REFUSE, ""),
    StrictRow("uow-delivery-mode other than persistent", REFUSE, ""),
    StrictRow("sending in the way that strict_producers does not name", REFUSE, ""),
    StrictRow(
        "going forward past what is not acknowledged", REFUSE, "break_order=WHY does it, and records an order gap"
    ),
    StrictRow("partition.assignment.strategy, group.protocol", REFUSE, "cooperative-sticky, classic"),
    StrictRow("strict_order on a mirrored topic", REFUSE, ""),
    StrictRow("worker.poll_records", ALLOW, "as given: a poll is one transaction, in the order of the log"),
)
"""Each setting or use that strict order touches (S-02)."""

HAZARDS: Final = (
    "Kafka clients that do not use this product: the broker checks nothing; use ACLs. `uow doctor` names unknown consumer groups",
    "several producers: there is no order between them; records stand as the broker appended them",
    "plain producers: order holds within one run of the producer, not over its restart",
    "applications that reorder, buffer or hand work away: work that a handler leaves running is detected in part",
    'exception_destination = "errors": a unit that is moved is recorded as an order gap, not prevented',
    "topic settings that are changed, or topics that are made again, while nobody runs: found at the next start or refresh",
    "pipeline changes without a drain: seen where records carry uow-pipeline-version, and by readers that keep the order",
    "mirrored copies of a strict topic: positions and order of a mirror are its own affair",
)
"""Ways of breaking order that are not prevented."""
