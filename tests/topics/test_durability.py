"""What keeps acknowledged records, by the number of replicas that a topic really has."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from uow.topics import admin
from uow.topics.catalogue import TopicSpec, expected
from uow.topics.policies import DestinationPolicy

UNCLEAN, IN_SYNC = "unclean.leader.election.enable", "min.insync.replicas"


def spec(replication: int = 1) -> TopicSpec:
    return expected("shop", "megazon", DestinationPolicy(), replication=replication)[0]


class DescribedCluster:
    """Answers as an `AdminClient` does: one topic, as it must be in all else."""

    def __init__(self, replicas: int, **settings: str) -> None:
        self.replicas, self.settings = replicas, {name.replace("_", "."): value for name, value in settings.items()}

    about_missing = KafkaError.UNKNOWN_TOPIC_OR_PART

    def list_topics(self, timeout: float) -> Any:
        part = SimpleNamespace(replicas=[*range(self.replicas)], leader=0)
        return SimpleNamespace(topics={spec().name: SimpleNamespace(partitions={0: part, 1: part})})

    def describe_topics(self, asked: Any, request_timeout: float) -> Any:
        answers: dict[str, Future[Any]] = {name: Future() for name in asked.topic_names}
        for answer in answers.values():
            answer.set_exception(KafkaException(KafkaError(self.about_missing)))
        return answers

    def describe_configs(self, resources: Any, request_timeout: float) -> Any:
        answer: Future[Any] = Future()
        told = spec().config | {"retention.ms": "-1"} | self.settings
        answer.set_result({name: SimpleNamespace(value=value) for name, value in told.items()})
        return {resources[0]: answer}


def found(replicas: int, **settings: str) -> dict[str, bool]:
    """Deviations, and whether each is only advised."""
    client: Any = DescribedCluster(replicas, **settings)
    return {each.what: each.advised for each in admin.check(client, [spec()])}


@pytest.mark.parametrize(
    ("replication", "told"),
    [(1, {}), (2, {UNCLEAN: "false"}), (3, {UNCLEAN: "false", IN_SYNC: "2"}), (5, {UNCLEAN: "false", IN_SYNC: "2"})],
)
def test_new_topics_keep_what_was_acknowledged(replication: int, told: dict[str, str]) -> None:
    config = spec(replication).config
    assert {name: config[name] for name in (UNCLEAN, IN_SYNC) if name in config} == told


@pytest.mark.parametrize(
    ("replicas", "unclean", "in_sync", "complaints"),
    [
        (1, "true", "1", {}),
        (2, "true", "1", {UNCLEAN: False}),
        (2, "false", "1", {}),
        (3, "true", "1", {UNCLEAN: False, IN_SYNC: True}),
        (3, "false", "1", {IN_SYNC: True}),
        (3, "false", "2", {}),
        (3, "false", "3", {}),
    ],
)
def test_existing_topics_are_judged_by_the_replicas_they_have(
    replicas: int, unclean: str, in_sync: str, complaints: dict[str, bool]
) -> None:
    settings = {"unclean_leader_election_enable": unclean, "min_insync_replicas": in_sync}
    assert found(replicas, **settings) == complaints


def test_an_existing_topic_is_looked_for_again_while_another_broker_does_not_know_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Right behind a creation one broker lists the topic and another one does not."""
    client: Any = DescribedCluster(1)
    knows, answers = client.list_topics, [SimpleNamespace(topics={})] * 2
    monkeypatch.setattr(client, "list_topics", lambda timeout: answers.pop() if answers else knows(timeout))
    assert (admin.check_existing(client, [spec()]), answers) == ([], [])


def test_an_existing_topic_that_stays_away_is_told_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "SPREAD_S", 0.2)
    client: Any = DescribedCluster(1)
    monkeypatch.setattr(client, "list_topics", lambda timeout: SimpleNamespace(topics={}))
    assert [each.actual for each in admin.check_existing(client, [spec()])] == [admin.MISSING]


def test_a_topic_that_this_user_may_not_know_of_is_not_told_as_missing() -> None:
    class DenyingCluster(DescribedCluster):
        about_missing = KafkaError.TOPIC_AUTHORIZATION_FAILED

        def list_topics(self, timeout: float) -> Any:
            return SimpleNamespace(topics={})

        def describe_configs(self, resources: Any, request_timeout: float) -> Any:
            return {}

    client: Any = DenyingCluster(1)
    [told] = admin.check(client, [spec()])
    assert (told.what, told.actual) == ("topic", admin.HIDDEN)
    assert "uow acl show" in told.reason
    assert "create" not in told.reason
