"""A connection that was made before a fork (gunicorn's preload, Celery's prefork, multiprocessing): the child is told at once, and may make its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.mock.mock_cluster import MockCluster
from tests.processes import stretched

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
TOPIC = "shop.components"
PROGRAM = """
import gc, json, os, sys
import uow

connection = uow.connect(sys.argv[1])
connection.send("shop", "1", id="a", seq=1)
reader = connection.messages("shop.components", group="g")
session = connection.session()
block = connection.unit("shop", "open")
unit = block.__enter__()
unit.send("1")
said, saying = os.pipe()

def told(call):
    try:
        return type(call()).__name__
    except BaseException as error:
        return f"{type(error).__name__}: {error}"

def of_another():
    with connection.unit("shop", "b") as other:
        other.send("1")

def of_its_own():
    with uow.connect(sys.argv[1]) as own:
        own.send("shop", "1", id="c", seq=1)
        with own.unit("shop", "d") as other:
            other.send("1")

child = os.fork()
if not child:
    found = {
        "send": told(lambda: connection.send("shop", "1", id="a", seq=2)),
        "unit": told(of_another),
        "receive": told(lambda: reader.receive(1)),
        "session": told(lambda: session.producer("shop")),
        "in the unit": told(lambda: unit.send("2")),
        "a reader": told(lambda: connection.messages("shop.components", group="h")),
        "its own": told(of_its_own),
        "close": told(connection.close),
        "close the reader": told(reader.close),
    }
    del connection, reader, session, block, unit
    gc.collect()
    os.write(saying, json.dumps(found).encode())
    sys.exit(7)
os.close(saying)
unit.send("2")
block.__exit__(None, None, None)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
connection.send("shop", "1", id="a", seq=3)
connection.close()
print(json.dumps({"status": status, "child": json.loads(os.read(said, 65536))}))
"""


@pytest.fixture(scope="module")
def told() -> Iterator[dict[str, Any]]:
    with MockCluster(TOPIC) as cluster:
        command = [sys.executable, "-W", "ignore", "-c", PROGRAM, cluster.bootstrap]
        done = subprocess.run(command, capture_output=True, text=True, timeout=stretched(60), check=False)
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout)


BLOCKS = """
import gc, os, sys
import confluent_kafka
import uow

def handles():
    gc.collect()
    return len([each for each in gc.get_objects() if isinstance(each, confluent_kafka.Producer)])

connection = uow.connect(sys.argv[1], application="app")
parent = os.getpid()
said, saying = os.pipe()
try:
    with connection.unit("shop", "long", resume=sys.argv[2] == "resume") as unit:
        unit.send("1")
        child = os.fork()
        if not child:
            had = handles()
            sys.exit(7)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        unit.send("2")
except SystemExit:
    os.write(saying, b"%d" % (had - handles()))
    raise
connection.close()
print(status, os.read(said, 10).decode())
"""


@pytest.mark.parametrize("kind", ["plain", "resume"])
def test_a_child_that_ends_inside_a_block_frees_no_handle_of_its_parent(kind: str) -> None:
    """The library waits for threads that a child does not have, or ends it by a signal, where a handle is freed there."""
    with MockCluster(TOPIC, "app-senders", "shop.commands") as cluster:
        command = [sys.executable, "-W", "ignore", "-c", BLOCKS, cluster.bootstrap, kind]
        done = subprocess.run(command, capture_output=True, text=True, timeout=stretched(60), check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["7", "0"]), done.stderr


@pytest.mark.parametrize("call", ["send", "unit", "receive", "session", "in the unit", "a reader"])
def test_a_connection_of_the_parent_is_closed_in_its_child_and_says_why(told: dict[str, Any], call: str) -> None:
    said = told["child"][call]
    assert said.startswith("ClientClosedError: "), said
    assert said.endswith("this process is a child of fork, and its parent made it: make one here, after the fork")


def test_a_child_may_have_a_connection_of_its_own(told: dict[str, Any]) -> None:
    """A thread of the parent that it does not have was asked to work for it."""
    assert told["child"]["its own"] == "NoneType"


def test_a_child_ends_and_its_parent_goes_on(told: dict[str, Any]) -> None:
    assert (told["child"]["close"], told["child"]["close the reader"], told["status"]) == ("NoneType", "NoneType", 7)
