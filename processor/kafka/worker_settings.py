"""The settings of a worker, as values. `uow.config.loading` builds them from `uow.toml`.

Belongs here: the settings of one worker process. Does not belong here: reading files, bounds and texts (`uow.config.settings`), librdkafka
properties made from them (`uow.processor.kafka.clients`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from uow.topics.command_keys import CommandSigner
from uow.topics.policies import DestinationPolicy
from uow.topics.routers import RouterSettings, RulesSettings
from uow.topics.strict_order import OrderOverrideWarning

CLOCK_LEAD_MS = 60_000
"""Far more than synchronised clocks differ by."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The sections `[application]`, `[kafka]` and `[worker]`, and the destinations. Durations in milliseconds, sizes in bytes.

    Attributes:
        application_id: Consumer group; prefix of internal topics and transactional ids.
        bootstrap_servers: Brokers to ask first.
        worker_name: Names the transactional id; two live workers never share one (ER-09).
        kafka: librdkafka properties of the user, for every handle.
        destinations: Policy by destination.
        poll_records: Most records in one poll, so in one transaction.
        commit_interval_ms: Longest a full backlog may take to fill a poll.
        transaction_timeout_ms: When the coordinator ends an orphan transaction.
        session_timeout_ms: When the group gives a silent worker's partitions away.
        memory_limit_bytes: Memory of open groups over which partitions are paused (ER-19).
        replay_limit_records: How much input a restore may read again, per partition; one of the three 0: every held component is in the
            changelog.
        replay_limit_bytes: The same in bytes.
        replay_limit_ms: The same in time.
        restore_stall_ms: A restore that does not get on this long, and nothing explains it, blocks its partition.
        clock_lead_ms: How far append times may be ahead of the worker's clock and still be believed.
        set_aside_per_minute: Most records of a partition at which the code itself fails that are set aside within a minute; then it blocks.
        broker_wait_ms: Longest wait for unreachable brokers at start; -1: no limit.
        drain_timeout_ms: Longest a stop takes before it leaves without commit.
        web: `HOST:PORT` of the pages, port 0 for any; `off`.
        registry_url: Schema registry; empty: single-object encoding.
        rules: Where the rules are.
        routers: Routers by name.
        is_trial: True in profile `test`: what strict order asks of a cluster is mere advice.
        overrides: Settings that strict order overrides.
        command_signer: Reads the key that signs the commands of its routers; None: they are not signed. Raises ConfigError if its file is no good.
    """

    application_id: str
    bootstrap_servers: str
    worker_name: str
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    destinations: Mapping[str, DestinationPolicy] = field(default_factory=dict)
    poll_records: int = 5000
    commit_interval_ms: int = 100
    transaction_timeout_ms: int = 10_000
    session_timeout_ms: int = 6_000
    memory_limit_bytes: int = 1_073_741_824
    replay_limit_records: int = 100_000
    replay_limit_bytes: int = 67_108_864
    replay_limit_ms: int = 60_000
    restore_stall_ms: int = 60_000
    clock_lead_ms: int = CLOCK_LEAD_MS
    set_aside_per_minute: int = 10
    broker_wait_ms: int = -1
    drain_timeout_ms: int = 30_000
    web: str = "127.0.0.1:6066"
    web_names: tuple[str, ...] = ()
    registry_url: str = field(default="", repr=False)
    rules: RulesSettings = field(default_factory=RulesSettings)
    routers: Mapping[str, RouterSettings] = field(default_factory=dict)
    is_trial: bool = False
    overrides: tuple[OrderOverrideWarning, ...] = ()
    command_signer: Callable[[], CommandSigner | None] = lambda: None

    @property
    def inputs(self) -> dict[str, str]:
        """Name of its router by input topic."""
        return {topic: name for name, router in self.routers.items() for topic in router.inputs}

    @property
    def of_routers(self) -> WorkerSettings:
        """The same with the names of the routers' consumer group, `A-router`, and of a transactional id below it: to Kafka an application of its own."""
        return replace(self, application_id=f"{self.application_id}-router")

    @property
    def transactional_id(self) -> str:
        """`<application.id>-worker-<name>`: stable, so that a restarted worker fences its predecessor at once (ER-09)."""
        return f"{self.application_id}-worker-{self.worker_name}"

    @property
    def replay_ms(self) -> int:
        """Most age of a group whose components are in no changelog; 0: every held component is in the changelog."""
        return self.replay_limit_ms if self.replay_limit_records and self.replay_limit_bytes else 0
