"""A worker's status, and its metrics: declared once, as data, with their texts.

Belongs here: the worker's status, and how each metric is read from it at scrape time; nothing is counted per record. Does not belong
here: counting components (the partition's task does, EN-10) and serving pages (`uow.processor.shell.pages`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from uow.processor.engine.batch import Task
from uow.processor.engine.ports import Tp
from uow.processor.engine.rule_figures import Histogram, OpenFigures, RowFigures, RuleFigures
from uow.topics.command_keys import Refused
from uow.topics.order_state import OrderState, PartitionOrder, Seen, order_of
from uow.topics.path_map import PathMap

if TYPE_CHECKING:  # the extra `rules` need not be installed
    from uow.processor.kafka.router import RouterStatus

FATES = (
    "received",
    "held",
    "duplicate",
    "rejected",
    "passed",
    "ignored",
    "delivered",
    "expired",
    "cancelled",
    "failed",
    "open",
)
"""The counts of a partition's records: received = held + duplicate + rejected + passed + ignored, and
held = delivered + expired + cancelled + failed + open (EN-10). Since the partition was assigned; restored components count as held."""

AGE_SAMPLE = 10_000
"""Groups looked at for the oldest one. Tasks keep them in order of opening, so the oldest come first."""


@dataclass(slots=True)
class WorkerStatus:
    """One worker, as pages and metrics show it. Written on the event loop only.

    Attributes:
        worker_name: Its name, from which the transactional id is made.
        destinations: Name of the destination by its `D.components`.
        tasks: Task by partition owned.
        blocked: Cause by partition that cannot go on.
        blocked_since: Since when, epoch ms.
        blocks: Number of times a partition was blocked, tries that failed included.
        paused: Partitions that are paused because memory is short.
        paths: The path map by name of the destination, where it has one.
        read_held_back: Returns the partitions that an open transaction keeps waiting: the offset at which it began, and since when, epoch ms.
        overrides: Number of settings that strict order overrides, by destination (S-27).
        read_stalled: Returns the partitions of inputs that limits of time go on without, with the time for which they have stood, ms (B-218).
        read_unrestored: Returns the number of partitions that were assigned, and are neither restored nor blocked yet.
        read_complaint: Returns the reason why nothing can be read at present; None if records can be read.
        read_stable_lags: Returns by how many records the last stable offset is behind the end offset, by partition (W-50).
        transactions: Number committed.
        polls: Number handed over to the tasks.
        records: Number handed over to the tasks.
        commit_seconds: Seconds from made plans to a known commit, summed over the transactions.
        doubts: Number by kind of doubt.
        replaced: Producers replaced before a transaction, on suspicion.
        restores: Partitions restored.
        busy_at: Loop time of the last batch.
        router: The router, if this worker has one.
        rules_bytes: Returns about the memory that rows of rules take.
        monotonic_ms: The clock by which the engine notes how long something lasts.
    """

    worker_name: str
    destinations: Mapping[str, str] = field(default_factory=dict)
    tasks: dict[Tp, Task] = field(default_factory=dict)
    blocked: dict[Tp, str] = field(default_factory=dict)
    blocked_since: dict[Tp, int] = field(default_factory=dict)
    blocks: int = 0
    paused: frozenset[Tp] = frozenset()
    paths: Mapping[str, PathMap] = field(default_factory=dict)
    read_stable_lags: Callable[[], Mapping[Tp, int]] = dict
    read_held_back: Callable[[], Mapping[Tp, tuple[int, int]]] = dict
    overrides: Mapping[str, int] = field(default_factory=dict)
    read_complaint: Callable[[], str | None] = lambda: None
    read_stalled: Callable[[], Mapping[Tp, int]] = dict
    read_unrestored: Callable[[], int] = int
    transactions: int = 0
    polls: int = 0
    records: int = 0
    commit_seconds: float = 0.0
    doubts: Counter[str] = field(default_factory=Counter)
    replaced: int = 0
    restores: int = 0
    busy_at: float = 0.0
    router: RouterStatus | None = None
    rules_bytes: Callable[[], int] = lambda: 0
    monotonic_ms: Callable[[], int] = lambda: 0

    def counts(self, tp: Tp) -> dict[str, int]:
        """The counts of one partition, by fate."""
        counts = self.tasks[tp].counts
        return {fate: getattr(counts, fate) for fate in FATES}

    def unblock(self, tp: Tp) -> None:
        """A partition goes on, or went away."""
        self.blocked.pop(tp, None)
        self.blocked_since.pop(tp, None)

    def order(self, tp: Tp, now_ms: int) -> PartitionOrder:
        """The state of a partition as strict order knows it, whether or not its destination is strict (S-32)."""
        task, held = self.tasks.get(tp), self.read_held_back().get(tp)
        position = task.position if task is not None else 0
        stable, since = held if held is not None else (position, 0)
        if held is not None:
            position = max(position, stable)  # what lies between are markers of transactions
        end = stable + self.read_stable_lags().get(tp, 0)
        failed_since, cause = self.blocked_since.get(tp, 0), self.blocked.get(tp, "")
        seen = Seen(position, stable, end, now_ms, since, failed_since, cause=cause)
        return order_of(seen)


def oldest_opened_at(groups: Mapping[bytes, Any]) -> int | None:
    """The time at which the oldest open group was opened, epoch ms."""
    return min((group.opened_at for group in islice(groups.values(), AGE_SAMPLE)), default=None)


Labels = tuple[str, ...]
Rows = Iterator[tuple[Labels, float]]
Reading = Callable[[WorkerStatus, int], Rows]
"""Reads a metric's rows from the status; the number is the wall clock, epoch ms."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric.

    Attributes:
        name: As scraped; counters get `_total`.
        kind: `counter` or `gauge`.
        text: Its description.
        labels: Names of its labels.
        read: Its rows.
    """

    name: str
    kind: str
    text: str
    labels: Labels
    read: Reading


def _per_partition(value: Callable[[WorkerStatus, Tp, Task, int], float]) -> Reading:
    def read(status: WorkerStatus, now_ms: int) -> Rows:
        for tp, task in sorted(status.tasks.items()):
            yield _place(status, tp), value(status, tp, task, now_ms)

    return read


def _place(status: WorkerStatus, tp: Tp) -> Labels:
    return (status.destinations.get(tp.topic, tp.topic), str(tp.partition))


def _fates(status: WorkerStatus, now_ms: int) -> Rows:
    for tp in sorted(status.tasks):
        for fate, count in status.counts(tp).items():
            if fate != "open":
                yield (*_place(status, tp), fate), count


def unaccounted(counts: Mapping[str, int]) -> int:
    """The number of records received that no other count includes (EN-10)."""
    return counts["received"] - sum(counts[fate] for fate in ("held", "duplicate", "rejected", "passed", "ignored"))


def _age(status: WorkerStatus, tp: Tp, task: Task, now_ms: int) -> float:
    opened_at = oldest_opened_at(task.groups)
    return 0.0 if opened_at is None else max(0.0, (now_ms - opened_at) / 1000)


def _blocked(status: WorkerStatus, now_ms: int) -> Rows:
    for tp in sorted({*status.tasks, *status.blocked}):
        yield _place(status, tp), float(tp in status.blocked)


def _order_states(status: WorkerStatus, now_ms: int) -> Rows:
    for tp in sorted({*status.tasks, *status.blocked}):
        found = status.order(tp, now_ms).state
        for state in OrderState:
            yield (*_place(status, tp), state.value), float(state is found)


def _overrides(status: WorkerStatus, now_ms: int) -> Rows:
    for destination, count in sorted(status.overrides.items()):
        yield (destination,), count


def _per_map(value: Callable[[PathMap], float]) -> Reading:
    def read(status: WorkerStatus, now_ms: int) -> Rows:
        for name, paths in sorted(status.paths.items()):
            yield (name,), value(paths)

    return read


def _one(value: Callable[[WorkerStatus], float]) -> Reading:
    def read(status: WorkerStatus, now_ms: int) -> Rows:
        yield (), value(status)

    return read


def _figures(status: WorkerStatus) -> dict[str, RuleFigures]:
    """Of each destination of which this worker owns a partition."""
    return {status.destinations.get(tp.topic, tp.topic): task.context.figures for tp, task in status.tasks.items()}


def _refused_commands(status: WorkerStatus, now_ms: int) -> Rows:
    found = {status.destinations.get(tp.topic, tp.topic): task.context for tp, task in status.tasks.items()}
    for destination, context in sorted(found.items()):
        for reason in Refused:
            yield (destination, reason.value), context.refused_commands[reason]


def _of_rows(status: WorkerStatus) -> Iterator[tuple[Labels, RowFigures]]:
    for destination, figures in sorted(_figures(status).items()):
        for name, row in sorted(figures.rows.items()):
            yield (destination, *name), row


def _closed_by_rule(status: WorkerStatus, now_ms: int) -> Rows:
    for labels, row in _of_rows(status):
        for (outcome, reason), count in sorted(row.closed.items()):
            yield (*labels, outcome.value, reason.value), count


def _components_by_rule(status: WorkerStatus, now_ms: int) -> Rows:
    for labels, row in _of_rows(status):
        yield labels, row.components


def _open_by_rule(value: Callable[[Sequence[OpenFigures], int], float]) -> Reading:
    def read(status: WorkerStatus, now_ms: int) -> Rows:
        found: dict[Labels, list[OpenFigures]] = {}
        for tp, task in status.tasks.items():
            for rule_id, figures in task.open_by_rule(now_ms).items():
                found.setdefault((status.destinations.get(tp.topic, tp.topic), rule_id), []).append(figures)
        for labels, several in sorted(found.items()):
            yield labels, value(several, now_ms)

    return read


def rule_rows(status: WorkerStatus) -> list[dict[str, Any]]:
    """Figures of groups by rule by row, for people; seconds. The fill is components per unit, a wait the upper bound of its class."""
    found = []
    for (destination, rule, row), figures in _of_rows(status):
        closed = sum(figures.closed.values())
        found.append(
            {
                "destination": destination,
                "rule": rule,
                "row": row,
                "groups": closed,
                "units": figures.units,
                "fill": round(figures.components / figures.units, 2) if figures.units else None,
                "share_by_time": round(figures.by_time / closed, 4),
                "wait_p50_s": figures.waits.at_most(0.5),
                "wait_p99_s": figures.waits.at_most(0.99),
                "overrun_p99_s": figures.overruns.at_most(0.99),
            }
        )
    return found


def _doubts(status: WorkerStatus, now_ms: int) -> Rows:
    for kind, count in sorted(status.doubts.items()):
        yield (kind,), count


def _of_router(value: Callable[[RouterStatus, int], Rows]) -> Reading:
    def read(status: WorkerStatus, now_ms: int) -> Rows:
        if status.router is not None:
            yield from value(status.router, now_ms)

    return read


def _routed(router: RouterStatus, now_ms: int) -> Rows:
    for (rule, fate), count in sorted(router.counts.items()):
        yield (rule, fate.value), count


def _router_lags(router: RouterStatus, now_ms: int) -> Rows:
    for tp, lag in sorted(router.lags().items()):
        yield (tp.topic, str(tp.partition)), lag


def _router_blocked(router: RouterStatus, now_ms: int) -> Rows:
    blocked = set(router.blocked)
    for tp in sorted(router.owned):
        yield (tp.topic, str(tp.partition)), float(tp in blocked)


def _stalled_inputs(status: WorkerStatus, now_ms: int) -> Rows:
    for tp, stood_ms in sorted(status.read_stalled().items()):
        yield (tp.topic, str(tp.partition)), stood_ms / 1000


def _routing_warnings(router: RouterStatus, now_ms: int) -> Rows:
    for rule, count in sorted(router.warnings.items()):
        yield (rule,), count


def _records_without_key(router: RouterStatus, now_ms: int) -> Rows:
    for (rule, cause), count in sorted(router.keyless.items()):
        yield (rule, cause.value), count


def _router_doubts(router: RouterStatus, now_ms: int) -> Rows:
    for kind, count in sorted(router.doubts.items()):
        yield (kind,), count


def _rules_age(router: RouterStatus, now_ms: int) -> Rows:
    yield (), router.rules_age_s()


def _rules_rejected(router: RouterStatus, now_ms: int) -> Rows:
    yield (), router.rules_rejected()


def _rules_errors(router: RouterStatus, now_ms: int) -> Rows:
    yield (), router.rules_errors()


def _rules_left_out(router: RouterStatus, now_ms: int) -> Rows:
    yield (), router.rules_left_out()


PARTITION = ("destination", "partition")
INPUT = ("topic", "partition")
RULE = ("destination", "rule")
ROW = (*RULE, "row")

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "uow_components",
        "counter",
        "Records received since the partition was assigned, by result.",
        (*PARTITION, "fate"),
        _fates,
    ),
    MetricSpec(
        "uow_unaccounted_components",
        "gauge",
        "Records received that no other count includes; anything but 0 is a bug.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: unaccounted(s.counts(tp))),
    ),
    MetricSpec(
        "uow_open_components",
        "gauge",
        "Components held in open groups.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: task.counts.open),
    ),
    MetricSpec(
        "uow_open_groups",
        "gauge",
        "Open groups, which wait for components.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: len(task.groups)),
    ),
    MetricSpec(
        "uow_oldest_group_age_seconds",
        "gauge",
        "Age of the oldest open group.",
        PARTITION,
        _per_partition(_age),
    ),
    MetricSpec(
        "uow_clock_lead_seconds",
        "gauge",
        "Lead of the partition's clock over the worker's clock: groups that open until then expire early.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: max(0.0, (task.clock - now) / 1000)),
    ),
    MetricSpec(
        "uow_disbelieved_append_times",
        "counter",
        "Append times that were ignored since they are further ahead of the worker's clock than clock_lead_ms, since the partition was assigned.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: task.disbelieved),
    ),
    MetricSpec(
        "uow_groups_at_risk",
        "gauge",
        "Open groups that have used up four fifths of their time, among the 10,000 that opened first.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: task.count_at_risk(now)),
    ),
    MetricSpec(
        "uow_rerouted_components",
        "counter",
        "Components that came to a wrong partition and were sent on to the right one; they also count as passed.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: task.counts.rerouted),
    ),
    MetricSpec(
        "uow_set_aside_components",
        "counter",
        "Records at which the code itself failed, which are in `D.rejected` as `InternalError`: a defect to report. They also count as rejected.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: task.counts.set_aside),
    ),
    MetricSpec(
        "uow_set_aside_groups",
        "counter",
        "Groups at which the code itself failed, whose components are in `D.errors` as `InternalError`: a defect to report.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: task.counts.faulty_groups),
    ),
    MetricSpec(
        "uow_groups_alone",
        "gauge",
        "Groups at which the code itself fails and that cannot even be closed: they stay open and are tried again, while the others go on; the page /groups/ says why.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: len(task.groups_alone)),
    ),
    MetricSpec(
        "uow_refused_commands",
        "counter",
        "Commands that were refused since their senders have no right to them, by reason: not_signed, unknown_key, signature, time, or verb. Only with command_keys.",
        ("destination", "reason"),
        _refused_commands,
    ),
    MetricSpec(
        "uow_deadline_warnings",
        "counter",
        "Groups of which `D.outcomes` was told what they lack, as `warn_at_percent` asks for.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: task.counts.warned),
    ),
    MetricSpec(
        "uow_mixed_units",
        "counter",
        "Units delivered whose components differ in expiry, priority or delivery mode.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: task.counts.mixed),
    ),
    MetricSpec(
        "uow_cancel_notices",
        "counter",
        "Cancel notices made for requests whose reply is needed no longer, those that wait for their topic included.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: task.counts.notices),
    ),
    MetricSpec(
        "uow_cancel_notices_dropped",
        "counter",
        "Cancel notices that were not written: their topic refuses them, or 1,000 of the partition wait for topics that cannot be written to.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: task.counts.dropped_notices),
    ),
    MetricSpec(
        "uow_corrected_units",
        "counter",
        'Units made once more with a component that came late, under `late_policy = "amend"`.',
        PARTITION,
        _per_partition(lambda s, tp, task, now: task.counts.corrected),
    ),
    MetricSpec(
        "uow_correctable_units",
        "gauge",
        "Units delivered in part whose components are kept, so that a late one corrects them.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: task.correctable_units),
    ),
    MetricSpec(
        "uow_last_stable_offset_lag",
        "gauge",
        "Records of D.components after the start of the oldest open transaction: no consumer sees them until it ends.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: s.read_stable_lags().get(tp, 0)),
    ),
    MetricSpec(
        "uow_held_bytes",
        "gauge",
        "Bytes of held components.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: task.held_bytes),
    ),
    MetricSpec(
        "uow_memory_bytes",
        "gauge",
        "Approximate memory of open groups, including objects. The sum with uow_remembered_bytes and uow_path_map_bytes of a worker is limited by memory_limit_bytes.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: task.memory_bytes),
    ),
    MetricSpec(
        "uow_closed_groups",
        "gauge",
        "Closed ids remembered, limited by closed_max_groups.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: task.closed_groups),
    ),
    MetricSpec(
        "uow_remembered_bytes",
        "gauge",
        "Approximate memory of closed ids with their fingerprints, and of commands; over all partitions at most a quarter of memory_limit_bytes.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: task.remembered_bytes),
    ),
    MetricSpec(
        "uow_closed_groups_forgotten",
        "counter",
        "Closed groups forgotten before closed_retention_ms to save memory: a late component opens a new group.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: task.forgotten),
    ),
    MetricSpec(
        "uow_path_map_bytes",
        "gauge",
        "Approximate memory of the path map; above a quarter of memory_limit_bytes the oldest unused placements are removed early.",
        ("destination",),
        _per_map(lambda paths: paths.memory_bytes),
    ),
    MetricSpec(
        "uow_path_claims",
        "gauge",
        "Ids with a claim in the path map, as far as this worker has read it; under path routing.",
        ("destination",),
        _per_map(lambda paths: paths.ids),
    ),
    MetricSpec(
        "uow_path_claims_ignored",
        "counter",
        "Claims ignored because they cannot be read or name a partition that does not exist; later claims count instead.",
        ("destination",),
        _per_map(lambda paths: paths.ignored),
    ),
    MetricSpec(
        "uow_closed_forgotten_until_seconds",
        "gauge",
        "Append time (epoch) until which components may open groups again whose closing was forgotten too early, because a part of the ledger was deleted; 0: none.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: task.forgotten_until / 1000),
    ),
    MetricSpec(
        "uow_position",
        "gauge",
        "Next input offset.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: task.position),
    ),
    MetricSpec(
        "uow_blocked",
        "gauge",
        "1 if the partition cannot go on; the page /groups/ says why.",
        PARTITION,
        _blocked,
    ),
    MetricSpec(
        "uow_order_state",
        "gauge",
        "1 for the state of the partition: ok, blocked-handler (it cannot go on), blocked-transaction (an open transaction holds back all that is left "
        "to read), stopped; the page /groups/ has position, moment and cause.",
        (*PARTITION, "state"),
        _order_states,
    ),
    MetricSpec(
        "uow_order_overrides",
        "counter",
        "Settings of a strict destination that strict order has overridden at the start; each is a log line.",
        ("destination",),
        _overrides,
    ),
    MetricSpec(
        "uow_blocks",
        "counter",
        "How often a partition was blocked; a blocked one is tried again by itself, and a try that fails counts.",
        (),
        _one(lambda s: s.blocks),
    ),
    MetricSpec(
        "uow_paused",
        "gauge",
        "1 if the partition is paused because memory is short.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: tp in s.paused),
    ),
    MetricSpec(
        "uow_transactions",
        "counter",
        "Transactions committed.",
        (),
        _one(lambda s: s.transactions),
    ),
    MetricSpec(
        "uow_polls",
        "counter",
        "Polls with records or ticks.",
        (),
        _one(lambda s: s.polls),
    ),
    MetricSpec(
        "uow_records",
        "counter",
        "Records handed to tasks, repeats after a doubt included.",
        (),
        _one(lambda s: s.records),
    ),
    MetricSpec(
        "uow_doubts",
        "counter",
        "Transactions whose outcome was in doubt, or that were refused.",
        ("kind",),
        _doubts,
    ),
    MetricSpec(
        "uow_producers_replaced",
        "counter",
        "Producers replaced because the connection had failed before a transaction.",
        (),
        _one(lambda s: s.replaced),
    ),
    MetricSpec(
        "uow_restores",
        "counter",
        "Partitions restored from the changelogs.",
        (),
        _one(lambda s: s.restores),
    ),
    MetricSpec(
        "uow_rule_groups",
        "counter",
        "Groups by rule that closed since the worker started, by outcome and reason. Routing names without a row of their own count under row *; beyond 1,000 rows under (others).",
        (*ROW, "outcome", "reason"),
        _closed_by_rule,
    ),
    MetricSpec(
        "uow_rule_components",
        "counter",
        "Components in the units among them: divided by those units, how full they left.",
        ROW,
        _components_by_rule,
    ),
    MetricSpec(
        "uow_overdue_groups",
        "gauge",
        "Open groups of the rule that should have closed or left by now, among the 10,000 of each partition that opened first.",
        RULE,
        _open_by_rule(lambda several, now: sum(each.overdue for each in several)),
    ),
    MetricSpec(
        "uow_oldest_open_group_seconds",
        "gauge",
        "Age of the rule's oldest open group.",
        RULE,
        _open_by_rule(lambda several, now: max(0, now - min(each.oldest_at for each in several)) / 1000),
    ),
    MetricSpec(
        "uow_orphans",
        "gauge",
        "Components in the changelog without a group, as the restore of the partition found them; `uow groups D --audit` lists them.",
        PARTITION,
        _per_partition(lambda s, tp, task, now: task.orphans),
    ),
    MetricSpec(
        "uow_routed_records",
        "counter",
        "Records of the inputs that the router has dealt with, by rule and result: routed, rejected, passed, or set_aside since the code itself failed at it. An empty rule: no rule accepted them.",
        ("rule", "fate"),
        _of_router(_routed),
    ),
    MetricSpec(
        "uow_routing_warnings",
        "counter",
        "Records whose routing name could not be used, or was given more than once; uow-warning says which.",
        ("rule",),
        _of_router(_routing_warnings),
    ),
    MetricSpec(
        "uow_records_without_key",
        "counter",
        "Records that give no routing name, by rule and cause: absent where the key finds nothing, unusable, or unreadable since the value cannot be read. on_no_key says what becomes of them.",
        ("rule", "cause"),
        _of_router(_records_without_key),
    ),
    MetricSpec(
        "uow_router_lag",
        "gauge",
        "Records of an input that wait for the router.",
        INPUT,
        _of_router(_router_lags),
    ),
    MetricSpec(
        "uow_router_blocked",
        "gauge",
        "1 if the router cannot go on with an input's partition; the page /groups/ says why.",
        INPUT,
        _of_router(_router_blocked),
    ),
    MetricSpec(
        "uow_input_stalled_seconds",
        "gauge",
        "Only for partitions of inputs that limits of time of groups by rule go on without, since nobody routes on there (input_stall_ms): for how long.",
        INPUT,
        _stalled_inputs,
    ),
    MetricSpec(
        "uow_router_doubts",
        "counter",
        "Transactions of the router whose outcome was in doubt, or that were refused.",
        ("kind",),
        _of_router(_router_doubts),
    ),
    MetricSpec(
        "uow_rules_age_seconds",
        "gauge",
        "Time since the rules were last compared with their store.",
        (),
        _of_router(_rules_age),
    ),
    MetricSpec(
        "uow_rules_bytes",
        "gauge",
        "Approximate memory of all rows of rules that a component was ever stamped with; counts towards memory_limit_bytes.",
        (),
        _one(lambda s: s.rules_bytes()),
    ),
    MetricSpec(
        "uow_rules_errors",
        "counter",
        "Looks at the rules that ended with an error that nobody foresaw: the version in force stays, and the log has the error.",
        (),
        _of_router(_rules_errors),
    ),
    MetricSpec(
        "uow_rules_left_out",
        "counter",
        "Records of A-rules that are no rows of rules, and so are left out; the log has their places.",
        (),
        _of_router(_rules_left_out),
    ),
    MetricSpec(
        "uow_rules_rejected",
        "counter",
        "Versions of the rules that were not taken into use because they are wrong; `uow rules history` says why.",
        (),
        _of_router(_rules_rejected),
    ),
)


class HistogramSpec(NamedTuple):
    """A histogram by row of a rule: name, description, and how it is read from a row's figures."""

    name: str
    text: str
    read: Callable[[RowFigures], Histogram]


HISTOGRAMS = (
    HistogramSpec(
        "uow_group_wait_seconds",
        "Time from the first arrival in a group by rule to its close.",
        lambda row: row.waits,
    ),
    HistogramSpec(
        "uow_deadline_overrun_seconds",
        "Of groups that a limit of time closed: time from the deadline to the close, as deadline_at and closed_at of the Outcome.",
        lambda row: row.overruns,
    ),
)

COMMIT_SECONDS = (
    "uow_commit_seconds",
    "Time from the finished plans to the known result of the commit, per transaction.",
)


class WorkerCollector(Collector):
    """Makes a scrape from the status.

    Args:
        status: The worker's status.
        now_ms: Wall clock.
    """

    def __init__(self, status: WorkerStatus, now_ms: Callable[[], int]) -> None:
        self._status, self._now_ms = status, now_ms

    def collect(self) -> Iterator[Metric]:
        """Every metric, read now."""
        now = self._now_ms()
        for spec in METRICS:
            family: CounterMetricFamily | GaugeMetricFamily
            if spec.kind == "counter":
                family = CounterMetricFamily(spec.name, spec.text, labels=spec.labels)
            else:
                family = GaugeMetricFamily(spec.name, spec.text, labels=spec.labels)
            for labels, value in spec.read(self._status, now):
                family.add_metric(list(labels), float(value))
            yield family
        for name, text, histogram_of in HISTOGRAMS:
            histogram = HistogramMetricFamily(name, text, labels=ROW)
            for labels, row in _of_rows(self._status):
                found = histogram_of(row)
                so_far = [*accumulate(found.counts)]
                limits = [*map(str, found.limits), "+Inf"]
                histogram.add_metric(list(labels), [*zip(limits, so_far, strict=True)], found.total)
            yield histogram
        name, text = COMMIT_SECONDS
        yield SummaryMetricFamily(
            name,
            text,
            count_value=self._status.transactions,
            sum_value=self._status.commit_seconds,
        )


def registry_for(status: WorkerStatus, now_ms: Callable[[], int]) -> CollectorRegistry:
    """A registry with the worker's metrics and nothing else."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(WorkerCollector(status, now_ms))
    return registry
