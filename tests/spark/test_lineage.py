"""A checkpoint is believed beside the topics and tables that it was made for, and nowhere else; the way out loses and doubles nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.processes import wait_for
from tests.spark.stage import DEADLINE_S, PARTITIONS, QUIET, Stage, c, plain
from uow.schemas.error_classes import StateCorruptedError
from uow.spark_sink.tables import Table
from uow.topics.partitioner import partition_for

pytestmark = pytest.mark.timeout(600)


def refusal(stage: Stage) -> str:
    with pytest.raises(StateCorruptedError) as caught:
        stage.sink()
    return str(caught.value)


def ids(stage: Stage) -> list[str]:
    return sorted(row.id for row in stage.rows(Table.UNITS))


def deliver(stage: Stage, *units: str) -> None:
    stage.send([*(c(unit, 1, end=True) for unit in units), plain(units[0])])
    stage.work()


@pytest.fixture(scope="module")
def other(make_shared_stage: Callable[..., Stage]) -> Stage:
    """A destination whose sink has had a batch."""
    stage = make_shared_stage()
    deliver(stage, "a")
    stage.sink()
    return stage


def test_a_checkpoint_of_other_topics_or_tables_or_an_older_one_is_refused_with_the_way_out_w127(
    stage: Stage, other: Stage, tmp_path: Path
) -> None:
    deliver(stage, "a")
    stage.sink()
    own, copy = Path(str(stage.tables.checkpoint)), tmp_path / "copy"
    shutil.copytree(own, copy)

    deliver(stage, "b")
    stage.sink()
    shutil.rmtree(own)
    shutil.copytree(copy, own)
    deliver(stage, "c")
    assert "is older than the tables: it has planned batches up to 0, and units has had number 1" in refusal(stage)

    shutil.rmtree(own)
    shutil.copytree(Path(str(other.tables.checkpoint)), own)
    assert f"was made for other topics: {other.names.errors}, " in refusal(stage)
    assert ids(stage) == ["a", "b"]

    shutil.rmtree(own)  # as the message says
    stage.sink()
    assert ids(stage) == ["a", "b", "c"]
    assert len(stage.rows(Table.PASSED)) == 3

    elsewhere = replace(stage.tables, root=tmp_path / "elsewhere")
    shutil.copytree(own, str(elsewhere.checkpoint))
    here, stage.tables = stage.tables, elsewhere
    elsewhere.make(stage.spark)
    assert f"was made for another table than {elsewhere.path(Table.UNITS)}" in refusal(stage)
    stage.tables = here

    create_again(stage, stage.names.rejected)
    assert f"was made for another topic {stage.names.rejected}: " in refusal(stage)


def create_again(stage: Stage, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": stage.servers}, logger=QUIET)
    admin.delete_topics([topic])[topic].result(DEADLINE_S)

    def created() -> bool:
        try:
            admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(DEADLINE_S)
        except KafkaException:
            return False
        return True

    wait_for(created, DEADLINE_S, lambda: f"{topic} is not deleted")


def test_retention_ahead_of_the_checkpoint_is_told_with_the_lost_offsets_and_the_way_out(other: Stage) -> None:
    stage = other
    deliver(stage, "b")
    stage.lose(stage.names.units)
    deliver(stage, "c")
    told = refusal(stage)
    assert "is behind retention, which has deleted what was not yet read: " in told
    assert f"{stage.names.units}/{partition_for(b'b', PARTITIONS)} offsets " in told
    assert f"remove the folder {stage.tables.checkpoint}" in told
    shutil.rmtree(str(stage.tables.checkpoint))
    stage.sink()
    assert ids(stage) == ["a", "c"]
