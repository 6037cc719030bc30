"""The sink's look at topics that were made a moment ago."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from uow.schemas.error_classes import StateCorruptedError
from uow.spark_sink import kafka
from uow.spark_sink.kafka import Backlog, Cluster, backlog


class Reader:
    """A consumer whose answers about the topic, and then about its offsets, fail with these codes, one after the other, and then succeed."""

    def __init__(self, topics: list[int], offsets: list[int]) -> None:
        self.about_topics, self.about_offsets = topics, offsets

    def list_topics(self, topic: str, timeout: float) -> Any:
        error = KafkaError(self.about_topics.pop(0)) if self.about_topics else None
        return SimpleNamespace(topics={topic: SimpleNamespace(error=error, partitions={0: None, 1: None})})

    def offsets_for_times(self, asked: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        if self.about_offsets:
            raise KafkaException(KafkaError(self.about_offsets.pop(0)))
        return [TopicPartition(each.topic, each.partition, 0 if each.offset == -2 else 7) for each in asked]


def looked(monkeypatch: pytest.MonkeyPatch, reader: Reader) -> Backlog:
    @contextmanager
    def made(*_: object) -> Any:
        yield reader

    monkeypatch.setattr(kafka, "_consumer", made)
    return backlog(Cluster("nowhere:9"), ["a"], {"a": {"0": 2}})


def test_a_topic_whose_leader_does_not_know_of_it_yet_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen on a busy machine: the cluster lists a topic that was made again, and its broker says `UNKNOWN_TOPIC_OR_PART`."""
    reader = Reader(
        [KafkaError.LEADER_NOT_AVAILABLE], [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE]
    )
    assert looked(monkeypatch, reader).records == 5 + 7
    assert (reader.about_topics, reader.about_offsets) == ([], [])


def test_a_topic_that_the_cluster_does_not_have_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader([KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._NOENT], [])
    with pytest.raises(StateCorruptedError, match="create the topics"):
        looked(monkeypatch, reader)
    assert len(reader.about_topics) == 1


def test_a_right_that_is_missing_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader([], [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._NOENT])
    with pytest.raises(KafkaException):
        looked(monkeypatch, reader)
    assert len(reader.about_offsets) == 1
