"""Transacted client sessions against a real broker (R-29, R-30, R-33, R-62, R-71)."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any
from uuid import uuid4

import pytest
from client_places import Topics

import uow
from tests.processes import PATIENCE_S

KILLED = """
import os, signal, sys, uow
bootstrap, name = sys.argv[1:]
connection = uow.connect(bootstrap, transactional_id=name, kafka={"session.timeout.ms": 6000})
session = connection.session(transacted=True)
reader, producer = session.messages(f"{name}-in", group=name), session.producer()
for number in range(3):
    message = reader.receive(60)
    producer.send(message.value, destination=name, id="a", seq=number + 1)
session._transaction._transaction._producer.handle.flush(10)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def places(broker: Any) -> Topics:
    return Topics(broker.bootstrap)


def test_a_session_killed_before_its_commit_shows_nothing_and_its_successor_does_all_of_it_once_r62(
    places: Topics,
) -> None:
    """Its output, a rollback and a commit of the same session, and what becomes of a commit that nobody heard the answer of."""
    name = f"session-{uuid4().hex[:8]}"
    places.make(f"{name}.components", f"{name}-in", partitions=1)
    places.put(f"{name}-in", *[(b"k", b"%d" % number, {}) for number in range(5)])
    killed = subprocess.run([sys.executable, "-c", KILLED, places.bootstrap, name], timeout=PATIENCE_S, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(places.read(f"{name}.components", "read_uncommitted")) == 3
    with (
        uow.connect(places.bootstrap, transactional_id=name, kafka={"session.timeout.ms": 6000}) as connection,
        connection.session(transacted=True) as session,
    ):
        reader, producer = session.messages(f"{name}-in", group=name), session.producer(name)
        component = uow.Component(b"")
        for step in (session.rollback, session.commit):
            for number in range(5):
                message = reader.receive(PATIENCE_S)
                assert message is not None
                assert message.offset == number
                component = uow.Component(message.value)
                producer.send(component, id="a", seq=number + 1)
            step()
        suspect = uow.errors.Suspect(component.component_id, f"{name}.components", at=2e9)
        starts = uow.errors.Suspect(
            uow.Component("x").component_id, f"{name}.components", ends={(f"{name}.components", 0): 0}
        )
        recovered = [
            connection.recover(uow.errors.CommitOutcomeUnknownError("not heard", f"{name}-0", each))
            for each in (starts, suspect)
        ]
        assert recovered == [uow.Recovered.ROLLED_BACK] * 2, "one was never sent, one is sought far behind its time"
        found = uow.errors.Suspect(component.component_id, f"{name}.components", at=message.timestamp / 1000)
        error = uow.errors.CommitOutcomeUnknownError("not heard", f"{name}-0", found)
        assert connection.recover(error) is uow.Recovered.COMMITTED
    assert [record.value() for record in places.read(f"{name}.components")] == [b"%d" % number for number in range(5)]
    assert places.committed(f"{name}-in", name) == 5
