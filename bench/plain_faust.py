"""Comparison (b): plain Faust on `kafka://` with `app.Table`, as in its documentation, with at-least-once delivery.

Its tables keep each group and each closed id in changelogs, as the worker does: a set of closed ids in memory would be empty after a restart,
and a late duplicate would open a group. Run it as a process: `python -m bench.plain_faust BOOTSTRAP APPLICATION DESTINATION FOLDER`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

import faust

from bench.workloads import PARTITIONS
from uow.topics.catalogue import DestinationTopics


def create_app(bootstrap: str, application: str, destination: str, folder: str) -> Any:
    topics = DestinationTopics(application, destination)
    app = faust.App(
        application,
        broker=f"kafka://{bootstrap}",
        store="memory://",
        datadir=folder,
        topic_partitions=PARTITIONS,
        topic_replication_factor=1,
        topic_disable_leader=True,
        web_enabled=False,
        broker_commit_interval=0.5,  # 2.8 s by default: only so that the end of the run is seen soon
    )
    raw: dict[str, Any] = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw"}
    components = app.topic(topics.components, **raw)
    units = app.topic(topics.units, **raw)
    rows: Any = faust.Schema(key_type=bytes, key_serializer="raw", value_serializer="pickle")
    groups: Any = app.Table("groups", default=dict, partitions=PARTITIONS, schema=rows)
    closed: Any = app.Table("closed", default=bool, partitions=PARTITIONS, schema=rows)

    @app.agent(components)
    async def assemble(stream: Any) -> None:
        events: AsyncIterator[Any] = stream.events()
        async for event in events:
            headers = dict(event.headers)
            group = headers["uow-id"]
            if group in closed:
                continue
            held = groups[group]
            held[int(headers["uow-seq"])] = event.value
            if headers["uow-end"] == b"true":
                held[0] = int(headers["uow-seq"])
            if held.get(0) == len(held) - 1:
                groups.pop(group)
                closed[group] = True
                value = b"".join([held[number] for number in range(1, held[0] + 1)])
                marks = {"uow-id": group, "uow-kind": b"unit", "uow-size": b"%d" % held[0]}
                await units.send(key=group, value=value, headers=marks)
            else:
                groups[group] = held

    @app.task()  # type: ignore[untyped-decorator]
    async def started() -> None:
        print("ready", flush=True)

    return app


if __name__ == "__main__":
    app = create_app(*sys.argv[1:])
    sys.argv = ["faust", "worker", "-l", "warn", "--without-web"]
    app.main()
