"""The worker's web pages: `/` for probes, `/groups/` and `/group/` for people, `/metrics` for Prometheus.

Belongs here: pages as views of the worker's status. Does not belong here: what they show (`uow.processor.shell.monitor`), where they listen
(`uow.processor.shell.page_server`).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from ipaddress import ip_address
from itertools import islice
from typing import TYPE_CHECKING, Any

from aiohttp.typedefs import Handler
from aiohttp.web import Request, Response, StreamResponse, middleware
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from uow.processor.core.faulty_groups import GroupFault, GroupKey
from uow.processor.core.group import Group
from uow.processor.engine.batch import Task
from uow.processor.engine.group_view import arrival, arrivals, seen
from uow.processor.engine.ports import Tp
from uow.processor.shell.monitor import WorkerStatus, oldest_opened_at, registry_for, rule_rows

if TYPE_CHECKING:  # the extra `rules` need not be installed
    from uow.processor.kafka.router import RouterStatus

CUT_OFF = "cut off"
RESTORING = "restoring"
GROUPS_SHOWN = 20
"""Open groups listed per partition, oldest first; `uow groups` lists all."""


def groups_view(status: WorkerStatus, now_ms: int) -> dict[str, Any]:
    """The content of `/groups/`, as JSON."""
    destinations: dict[str, dict[str, Any]] = {}
    for tp in sorted({*status.tasks, *status.blocked}):
        name = status.destinations.get(tp.topic, tp.topic)
        destinations.setdefault(name, {})[str(tp.partition)] = _partition_view(status, tp, now_ms)
    return {
        "worker_name": status.worker_name,
        "destinations": destinations,
        "transactions": status.transactions,
        "records": status.records,
        "doubts": dict(status.doubts),
        "producers_replaced": status.replaced,
        "restores": status.restores,
        "rules": rule_rows(status),
        **({"router": _router_view(status.router)} if status.router is not None else {}),
    }


def _router_view(router: RouterStatus) -> dict[str, Any]:
    lags = router.lags()
    return {
        "ready": router.is_ready,
        "inputs": {
            f"{tp.topic}/{tp.partition}": {"position": position, "lag": lags.get(tp), "blocked": router.blocked.get(tp)}
            for tp, position in sorted(router.owned.items())
        },
        "records": {f"{rule}: {fate}": count for (rule, fate), count in sorted(router.counts.items())},
        "warnings": dict(sorted(router.warnings.items())),
        "transactions": router.transactions,
        "doubts": dict(sorted(router.doubts.items())),
        "rules_age_s": router.rules_age_s(),
    }


def _partition_view(status: WorkerStatus, tp: Tp, now_ms: int) -> dict[str, Any]:
    view: dict[str, Any] = {
        "blocked": status.blocked.get(tp),
        "paused": tp in status.paused,
        "order": asdict(status.order(tp, now_ms)),
    }
    task = status.tasks.get(tp)
    if task is None:
        return view
    opened_at, alone = oldest_opened_at(task.groups), task.groups_alone
    return view | {
        "position": task.position,
        "counts": status.counts(tp),
        "held_bytes": task.held_bytes,
        "memory_bytes": task.memory_bytes,
        "open_groups": len(task.groups),
        "oldest_age_ms": None if opened_at is None else now_ms - opened_at,
        "next_deadline": task.first_deadline,
        "groups_alone": [
            {"id": key[0].decode("utf-8", "backslashreplace"), "generation": key[1], **_alone(status, fault, now_ms)}
            for key, fault in islice(alone.items(), GROUPS_SHOWN)
        ],
        "groups": [
            _group_row(status, tp, task, group, alone, now_ms) for group in islice(task.groups.values(), GROUPS_SHOWN)
        ],
    }


def _group_row(
    status: WorkerStatus, tp: Tp, task: Task, group: Group, alone: Mapping[GroupKey, GroupFault], now_ms: int
) -> dict[str, Any]:
    """As `uow groups --json`, and what only a worker knows: why the group stands alone, if it does."""
    fault = alone.get((group.id, group.generation))
    why = None if fault is None else _alone(status, fault, now_ms)
    return seen(group, tp.partition, task.context.policy, now_ms).row(now_ms) | {"alone": why}


def _alone(status: WorkerStatus, fault: GroupFault, now_ms: int) -> dict[str, Any]:
    """Since when a group stands alone, why, and when it is tried again; moments in epoch milliseconds."""
    ahead = now_ms - status.monotonic_ms()
    return {
        "since": ahead + fault.alone_since,
        "why": fault.why_alone,
        "topic": fault.refusing or None,
        "tries": fault.tries,
        "next_try": ahead + fault.try_again_at,
    }


def group_view(status: WorkerStatus, destination: str, group_id: str, now_ms: int) -> dict[str, Any] | None:
    """The content of `/group/` for one open group: as by `uow show --json`, with its timeline (W-201) and why it stands alone; None if it is not open here."""
    for tp, task in status.tasks.items():
        group = task.groups.get(group_id.encode()) if status.destinations.get(tp.topic) == destination else None
        if group is not None:
            opened = _group_row(status, tp, task, group, task.groups_alone, now_ms)
            return opened | {"components": [arrival(each) for each in arrivals(group)]}
    return None


def health_view(status: WorkerStatus) -> dict[str, Any]:
    """The content of `/`: `OK`; `cut off` while no broker answers; `restoring` until each partition is restored; `blocked` if a partition cannot go on; `stalled` if limits of time go on without an input."""
    complaint = status.read_complaint()
    if complaint is not None:
        return {"status": CUT_OFF, "why": complaint}
    if unrestored := status.read_unrestored():
        return {"status": RESTORING, "why": f"{unrestored} partitions are not restored yet"}
    blocked = status.blocked | (dict(sorted(status.router.blocked.items())) if status.router is not None else {})
    if blocked:
        return {"status": "blocked", "why": {f"{tp.topic}/{tp.partition}": why for tp, why in blocked.items()}}
    stalled = status.read_stalled()
    if stalled:
        return {"status": "stalled", "why": {_place(tp): _why_stalled(tp, ms) for tp, ms in sorted(stalled.items())}}
    return {"status": "OK"}


def _why_stalled(tp: Tp, ms: int) -> str:
    what = "nobody has routed on there" if tp.partition >= 0 else "brokers have not told how far it is routed"
    return f"{what} for {ms // 1000} s: limits of time of groups by rule go on without it"


def _place(tp: Tp) -> str:
    """A partition of an input; the whole input, where nobody tells which partitions it has."""
    return tp.topic if tp.partition < 0 else f"{tp.topic}/{tp.partition}"


def is_known(host: str, names: Collection[str]) -> bool:
    """True if the pages answer under the host of a request: an address, this machine, or one of the names.

    A browser that was led here under a name of somebody else (DNS rebinding) gives that name.
    """
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.strip("[]").rstrip(".").lower()
    try:
        ip_address(name)
    except ValueError:
        return name in {"localhost", socket.gethostname().lower(), *(each.lower() for each in names)}
    return True


def only_known_hosts(names: Collection[str]) -> Any:
    """A middleware that refuses requests for other hosts, with status 421."""

    @middleware
    async def refuse_others(request: Request, handler: Handler) -> StreamResponse:
        if is_known(request.headers.get("Host", "localhost"), names):
            answer = await handler(request)
        else:
            answer = Response(status=421, text="unknown host name; worker.web_names lists further ones\n")
        answer.force_close()  # a connection is for one request (`uow.processor.shell.page_server`)
        return answer

    return refuse_others


def add_pages(app: Any, status: WorkerStatus, now_ms: Callable[[], int]) -> None:
    """Registers the pages with the Faust app."""
    registry = registry_for(status, now_ms)
    content_type = CONTENT_TYPE_LATEST.partition(";")[0]

    # before Faust's own, which says OK whatever happens
    @app.page("/", name="health")  # type: ignore[untyped-decorator]
    async def health(web: Any, request: Any) -> Any:
        """For probes: 200 if this worker can work, 503 while no broker answers, or a partition waits for its restore."""
        answer = health_view(status)
        return web.json(answer, status=503 if answer["status"] in (CUT_OFF, RESTORING) else 200)

    @app.page("/groups/")  # type: ignore[untyped-decorator]
    async def groups(web: Any, request: Any) -> Any:
        """Partitions, counts, open groups and blocked partitions."""
        return web.json(groups_view(status, now_ms()))

    @app.page("/group/")  # type: ignore[untyped-decorator]
    async def group(web: Any, request: Any) -> Any:
        """One open group: `/group/?destination=D&id=ID`."""
        asked = request.query
        found = group_view(status, asked.get("destination", ""), asked.get("id", ""), now_ms())
        return web.json({"open": found}, status=200 if found is not None else 404)

    @app.page("/metrics")  # type: ignore[untyped-decorator]
    async def metrics(web: Any, request: Any) -> Any:
        """Prometheus' text format."""
        return web.text(generate_latest(registry).decode(), content_type=content_type)
