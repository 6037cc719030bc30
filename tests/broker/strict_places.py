"""A strict destination for tests: its topics and `D.registry`, as `uow topics create` makes them, and records as its workers would write them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from client_places import Topics
from confluent_kafka import TopicPartition

import uow
from tests.kafka_broker import committed_rows
from tests.processes import PATIENCE_S
from uow.config.loading import Settings, load
from uow.ops.eras import record_strictness, registry_of
from uow.topics import admin
from uow.topics.catalogue import expected
from uow.topics.strict_registry import StrictRegistry


class StrictPlace:
    """One destination, strict or not yet."""

    def __init__(self, bootstrap: str, name: str, folder: Path) -> None:
        self.bootstrap, self.name = bootstrap, name
        self.places = Topics(bootstrap)
        self.units, self.components = f"{name}.units", f"{name}.components"
        self._file = folder / "uow.toml"

    def settings(self, *, is_strict: bool = True, **given: Any) -> Settings:
        """Its configuration; written to a file, which commands read too."""
        wanted = {"handling_policy": "single_message_delivery", "strict_order": is_strict, **given}
        lines = [f"{key} = {_toml(value)}" for key, value in wanted.items()]
        self._file.write_text(
            f'[application]\nid = "{self.name}"\nbootstrap_servers = "{self.bootstrap}"\nprofile = "test"\n'
            f'[destinations."{self.name}"]\n' + "\n".join(lines)
        )
        return load(self._file, {})

    @property
    def file(self) -> str:
        return str(self._file)

    def create(self, *, partitions: int = 1, is_strict: bool = True, **given: Any) -> list[str]:
        """Makes the topics and records strictness, as `uow topics create` does; returns what that says."""
        settings = self.settings(is_strict=is_strict, **given)
        client = admin.admin_client(self.bootstrap, {})
        admin.create_missing(client, expected(self.name, self.name, settings.policy(self.name), partitions))
        return record_strictness(settings, client, self.name)

    def registry(self) -> StrictRegistry:
        return registry_of(self.settings(), self.name)

    def deliver(self, *numbers: int, partition: int = 0) -> None:
        """Units `u1`, `u2`, ... as a worker would write them."""
        self.places.deliver(self.name, *(f"u{number}" for number in numbers), partition=partition)

    def committed(self, group: str, partition: int = 0) -> int:
        return self.places.committed(self.units, group, partition)

    def metadata(self, group: str) -> str:
        """The text beside the group's committed offset."""
        return self.row(group).metadata or ""

    def row(self, group: str) -> TopicPartition:
        """The group's committed offset, with all that is beside it."""
        (row,) = committed_rows(self.bootstrap, group, [(self.units, 0)])
        return row


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool | int) else f'"{value}"'


def numbers(reader: uow.Reader[Any], count: int, *, done: bool = True) -> Iterator[int]:
    """The numbers of the next units, each acknowledged."""
    for _ in range(count):
        unit = reader.receive(PATIENCE_S)
        assert unit is not None
        yield int(unit.id[1:])
        if done:
            unit.acknowledge()
