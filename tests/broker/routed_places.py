"""A destination behind a router: rules in a file, inputs with partitions of their own."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.worker_places import Destination
from tests.processes import PATIENCE_S
from uow.cli.main import main

ROWS = {
    "France": {"target_topic": "france", "complete_count": 10, "age_ms": 30_000},
    "UK": {"target_topic": "uk", "complete_count": 5, "age_ms": 15_000},
    "Spain": {"target_topic": "spain", "complete_count": 20, "age_ms": 60_000},
    "*": {"target_topic": "other", "complete_count": 10, "age_ms": 60_000},
}
"""The fixture of the specification, section 5."""


class RoutedPlace:
    """The destination of a test, with a router before it.

    Args:
        place: The destination.
        inputs: Number of partitions by input; names get the test's own prefix.
        log_append_time: False for inputs whose timestamps are their senders'.
    """

    def __init__(self, place: Destination, inputs: Mapping[str, int], log_append_time: bool = True) -> None:
        self.place = place
        self.inputs = {name: f"{place.name}.{name}" for name in inputs}
        self.rules = place.config.parent / "rules.toml"
        self.version = 0
        kind = "LogAppendTime" if log_append_time else "CreateTime"
        new = [
            NewTopic(
                self.inputs[name],
                count,
                -1,
                config={"message.timestamp.type": kind, "compression.type": "uncompressed"},
            )
            for name, count in inputs.items()
        ]
        admin = AdminClient({"bootstrap.servers": place.bootstrap})
        for made in admin.create_topics(new).values():
            made.result(PATIENCE_S)

    def topic(self, name: str) -> str:
        """A topic of the test's own."""
        return f"{self.place.name}.{name}"

    def put_rules(self, rows: Mapping[str, Mapping[str, Any]] = ROWS, **rule: Any) -> None:
        """A further version of the only rule, `low-stock`."""
        self.version += 1
        lines = [
            f"version = {self.version}",
            'author = "a test"',
            'why = "to see"',
            "[[rule]]",
            'rule_id = "low-stock"',
        ]
        rule = {"default_group": "shared"} | rule
        lines += [f'destination = "{self.place.name}"', *(f"{key} = {_toml(value)}" for key, value in rule.items())]
        for name, row in rows.items():
            values = {"routing_name": name, "value_format": "xml"} | row
            values["target_topic"] = self.topic(str(row.get("target_topic", "other")))
            lines += ["[[rule.row]]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
        ready = self.rules.with_suffix(".new")
        ready.write_text("\n".join(lines))
        ready.replace(self.rules)

    def create(
        self,
        worker: Mapping[str, Any] | None = None,
        refresh_ms: int = 500,
        status: int = 0,
        router: Mapping[str, Any] | None = None,
        **destination: Any,
    ) -> None:
        """Configuration and topics; rules are put before. `status` is that of `uow topics create`, `router` are settings of the router."""
        self.configure(worker, refresh_ms, router, **destination)
        asked = ["topics", "create", "-c", str(self.place.config), "--partitions", str(self.place.partitions)]
        made = CliRunner().invoke(main, asked)
        assert made.exit_code == status, made.output

    def configure(
        self,
        worker: Mapping[str, Any] | None = None,
        refresh_ms: int = 500,
        router: Mapping[str, Any] | None = None,
        **destination: Any,
    ) -> None:
        """Configuration."""
        self.place.configure(worker, **destination)
        lines = ["", "[rules]", f'source = "{self.rules}"', f"refresh_ms = {refresh_ms}", "[routers.stock]"]
        lines += [f"inputs = {_toml([*self.inputs.values()])}"]
        lines += [f"{name} = {_toml(value)}" for name, value in (router or {}).items()]
        self.place.config.write_text(self.place.config.read_text() + "\n".join(lines))

    def send(self, rows: Iterable[tuple[str, str | None, bytes]], transactional: str = "") -> None:
        """Records (input, routing name, value), to partitions in turn; in one transaction where its id is given."""
        properties: dict[str, Any] = {
            "bootstrap.servers": self.place.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
        }
        producer = Producer(properties | ({"transactional.id": transactional} if transactional else {}))
        if transactional:
            producer.init_transactions(PATIENCE_S)
            producer.begin_transaction()
        counts = {
            topic: len(producer.list_topics(topic, PATIENCE_S).topics[topic].partitions)
            for topic in self.inputs.values()
        }
        for number, (name, destination, value) in enumerate(rows):
            headers = [] if destination is None else [("uow-destination", destination.encode())]
            topic = self.inputs[name]
            producer.produce(topic, value, None, number % counts[topic], headers=headers)  # type: ignore[arg-type]
            producer.poll(0)
        if transactional:
            producer.commit_transaction(PATIENCE_S)
        assert not producer.flush(PATIENCE_S)

    def lag(self, worker: Any) -> int:
        """Records that wait for the router of a worker."""
        return sum(each["lag"] for each in worker.page()["router"]["inputs"].values())


def _toml(value: Any) -> str:
    import json

    return json.dumps(value)


def now_ms() -> int:
    """Epoch ms."""
    return time.time_ns() // 1_000_000
