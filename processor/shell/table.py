"""The table a Faust user sees: a read view of the partition tasks; and a table manager that recovers nothing itself.

Belongs here: the classes behind `app.Table` and the setting `TableManager` of this app. Does not belong here: state (the tasks), the
changelog (written by the driver's transaction), restore (`uow.processor.engine.restore`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import faust
from faust.types.tables import CollectionT, TableManagerT
from mode import Service
from mode.utils.locks import Event

from uow.processor.engine.batch import Task
from uow.processor.engine.ports import Tp


class OpenGroups(Mapping[bytes, Any]):
    """Open groups by id, over the partitions owned."""

    def __init__(self, tasks: Mapping[int, Task]) -> None:
        self._tasks = tasks

    def __getitem__(self, key: bytes) -> Any:
        for task in self._tasks.values():
            if key in task.groups:
                return task.groups[key]
        raise KeyError(key)

    def __iter__(self) -> Iterator[bytes]:
        for task in list(self._tasks.values()):
            yield from list(task.groups)

    def __len__(self) -> int:
        return sum(len(task.groups) for task in self._tasks.values())


class GroupTable(faust.Table[bytes, Any]):
    """`app.Table` of one destination. Its changelog is written by the driver's transaction: read it anywhere, write it through its task only.

    Attributes:
        tasks: Task by number of the partition owned.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tasks: dict[int, Task] = {}

    @property
    def data(self) -> OpenGroups:  # type: ignore[override]
        """The open groups, as a reader of the table sees them."""
        return OpenGroups(self.tasks)

    async def on_start(self) -> None:
        """No store service, no topic declaration."""

    def _read_only(self, *args: Any) -> None:
        raise TypeError(f"table {self.name!r} is written by its partition tasks only")

    on_key_set = on_key_del = on_clear = _read_only  # type: ignore[assignment]


class WorkerTables(Service, TableManagerT):
    """Faust's setting `TableManager`. With it the Recovery service, changelog channels and standbys take no part.

    The first assignment restored, an empty one too (a spare), is what Faust waits for before it is ready.
    """

    def __init__(self, app: Any, **kwargs: Any) -> None:
        Service.__init__(self, **kwargs)
        self.app: Any = app
        self.data: dict[str, CollectionT] = {}
        self.actives_ready = self.standbys_ready = False
        self._first_assignment = Event()

    def __hash__(self) -> int:
        return object.__hash__(self)

    def add(self, table: CollectionT) -> CollectionT:
        """Called by `app.Table`."""
        if table.name in self.data:
            raise ValueError(f"table {table.name!r} exists already")
        self.data[table.name] = table
        return table

    # -- called by the bridge

    def adopt(self, tasks: Mapping[Tp, Task]) -> None:
        """These tasks are new or restored."""
        for tp, task in tasks.items():
            self._table(tp).tasks[tp.partition] = task
        self.actives_ready = self.standbys_ready = True
        self._first_assignment.set()

    def drop(self, tps: Iterable[Tp]) -> None:
        """These partitions are gone."""
        for tp in tps:
            self._table(tp).tasks.pop(tp.partition, None)

    def _table(self, tp: Tp) -> GroupTable:
        table = self.data[self.app.status.destinations[tp.topic]]
        assert isinstance(table, GroupTable)
        return table

    # -- called by Faust

    @property
    def changelog_topics(self) -> set[str]:
        """Names, so that Faust knows them."""
        return {table.changelog_topic.get_topic_name() for table in self.data.values()}

    async def wait_until_tables_registered(self) -> None:
        """Nothing to wait for."""

    async def wait_until_recovery_completed(self) -> bool:
        """Waits for the first assignment; true if the app stops meanwhile."""
        return await self.wait_for_stopped(self._first_assignment)

    def on_rebalance_start(self) -> None:
        """The driver knows."""

    def on_partitions_revoked(self, revoked: Any) -> None:
        """The driver knows."""

    async def on_rebalance(self, assigned: Any, revoked: Any, newly_assigned: Any, generation_id: int = 0) -> None:
        """The driver knows."""

    def persist_offset_on_commit(self, store: Any, tp: Any, offset: int) -> None:
        """Positions live in Kafka."""

    def on_commit(self, offsets: Any) -> None:
        """Positions live in Kafka."""
