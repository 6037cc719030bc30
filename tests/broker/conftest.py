"""What tests with worker processes share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.broker.worker_places import Destination
from tests.kafka_broker import Kafka
from tests.processes import Process
from uow.embedded.broker import EmbeddedBroker


@pytest.fixture(scope="module")
def authorizing() -> Iterator[EmbeddedBroker]:
    """A broker that lets everybody do everything with topics of which no rule of access speaks."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with EmbeddedBroker(heap="384m", settings=settings) as broker:
        yield broker


@pytest.fixture
def place(broker: Kafka, unique: str, tmp_path: Path, spawn: Callable[..., Process]) -> Iterator[Destination]:
    """A destination of the test's own; in the end every record it was sent is accounted for."""
    made = Destination(broker.bootstrap, unique, tmp_path, spawn)
    yield made
    if made.is_created and not made.is_damaged:
        made.check_account()
