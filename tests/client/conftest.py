"""A client without a broker: handles in memory, and a connection over them. A file whose topics matter has a `fake` of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_handles import FakeBroker

import uow


@pytest.fixture
def fake() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def connection(fake: FakeBroker) -> Iterator[uow.Connection]:
    with fake.connect() as connection:
        yield connection
