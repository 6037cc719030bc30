"""A transaction that nobody ends: `uow doctor` names its id, and ends it by the id."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaException, Producer

from tests.broker.worker_places import Destination
from tests.processes import PATIENCE_S, wait_for
from uow.cli.main import main
from uow.topics import order_state


def test_doctor_names_who_holds_a_partition_and_ends_it(place: Destination, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id under which nothing is open is not made, and a young transaction is left alone."""
    place.create()
    name = f"{place.name} lost"
    lost = Producer({"bootstrap.servers": place.bootstrap, "transactional.id": name})
    lost.init_transactions(PATIENCE_S)
    lost.begin_transaction()
    lost.produce(place.units, b"never seen", b"k", 2)
    assert not lost.flush(PATIENCE_S)

    def doctor(*words: str) -> str:
        return CliRunner().invoke(main, ["doctor", *words, "-c", str(place.config)]).output

    assert "it may still be at work" in doctor("--end-transaction", name)
    assert "nothing is open under this id" in doctor("--end-transaction", f"{name}!", "--force")
    monkeypatch.setattr(order_state, "HANGING_MS", -10_000)  # from now on it is old
    (line,) = [line for line in doctor().splitlines() if "a transaction has been open since" in line]
    assert line.startswith(f"wrong {place.units}/2")
    assert re.search(rf"transactional id {name}, producer \d+, since 20", line)
    assert f"--end-transaction '{name}'" in line
    assert "is ended" in doctor("--end-transaction", name)
    wait_for(lambda: "a transaction has been open since" not in doctor())
    assert place.read(place.units) == []
    with pytest.raises(KafkaException, match=r"fenced|epoch"):
        lost.commit_transaction(PATIENCE_S)
