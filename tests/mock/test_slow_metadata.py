"""Questions to a cluster that answers slowly, and refusals meanwhile."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.conftest import QUIET
from uow.processor.kafka.worker_settings import WorkerSettings
from uow.processor.shell.worker import _insist, _partitions, _step_s
from uow.topics.admin import REFUSALS, Admin

SLOW = {"bootstrap.servers": "x", "test.mock.num.brokers": 1, "test.mock.broker.rtt": 800}
SILENT = SLOW | {"test.mock.broker.rtt": 600_000}
REFUSED = KafkaError(KafkaError._SSL, "no TLS")
NO_TOKEN = KafkaError(
    KafkaError._AUTHENTICATION, "Failed to acquire SASL OAUTHBEARER token: the issuer does not answer"
)


def heard_while_asking(error: KafkaError, timeout: float) -> KafkaError:
    """The failure of a question during which this error is heard as often as a refusal needs."""
    client = Admin(SILENT, QUIET)
    timer = threading.Timer(0.2, lambda: [client._on_error(error) for _ in range(REFUSALS)])
    timer.start()
    with pytest.raises(KafkaException) as caught:
        client.list_topics(timeout=timeout)
    timer.join()
    found: KafkaError = caught.value.args[0]
    return found


def test_a_cluster_that_answers_slowly_is_waited_for() -> None:
    """A question that is asked again every half second never hears it."""
    client = Admin(SLOW, QUIET)
    assert len(client.list_topics(timeout=30).brokers) == 1
    assert len(client.list_topics("a", timeout=30).brokers) == 1


def test_a_worker_gives_a_question_as_long_as_it_may_wait() -> None:
    """Its own time-out for each question must not be shorter than the cluster's answer."""
    settings = WorkerSettings("shop", "nowhere:9092", "a", broker_wait_ms=15_000)
    client = Admin(SLOW | {"test.mock.broker.rtt": 1500}, QUIET)
    assert _insist(settings, partial(_partitions, client, _step_s(settings))) == {}


def test_refusals_end_a_question_before_its_time() -> None:
    assert heard_while_asking(REFUSED, 600).code() == KafkaError._SSL


def test_refusals_of_long_ago_say_nothing_about_a_slow_answer() -> None:
    client = Admin(SLOW, QUIET)
    for _ in range(REFUSALS):
        client._on_error(REFUSED)
    assert len(client.list_topics(timeout=30).brokers) == 1


def test_a_token_that_cannot_be_fetched_is_no_refusal() -> None:
    found = heard_while_asking(NO_TOKEN, 1)
    assert (found.code(), found.str()) == (KafkaError._TRANSPORT, NO_TOKEN.str())
