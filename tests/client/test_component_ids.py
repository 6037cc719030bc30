"""Identities of components: UUIDs that nothing repeats."""

from __future__ import annotations

import random
import subprocess
import sys
from uuid import RFC_4122, UUID

from uow.client.outgoing import random_uuid

FORKED = """
import os
from uow.client.outgoing import random_uuid
random_uuid()
reading, writing = os.pipe()
if os.fork() == 0:
    os.write(writing, random_uuid().encode())
    os._exit(0)
print(os.read(reading, 100).decode(), random_uuid())
"""


def test_an_identity_is_a_random_uuid_whatever_the_application_seeds() -> None:
    made = set()
    for _ in range(100):
        random.seed(7)
        made.add(random_uuid())
    assert len(made) == 100
    assert {(UUID(each).version, UUID(each).variant, str(UUID(each)) == each) for each in made} == {(4, RFC_4122, True)}


def test_a_child_of_fork_makes_others() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    assert len({*done.stdout.split()}) == 2
