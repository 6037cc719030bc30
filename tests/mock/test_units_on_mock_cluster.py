"""An application's transactions on librdkafka itself: the same producer as the worker's, with the errors that users meet (ER-13, R-75, R-82)."""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka as ck
import pytest

import uow
from tests.mock.mock_cluster import ADD_PARTITIONS, END_TXN, INIT_PRODUCER_ID, PRODUCE, MockCluster
from tests.processes import wait_for
from uow import errors

ERROR = ck.KafkaError


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster("megazon.components") as running:
        yield running


@pytest.fixture
def connection(cluster: MockCluster) -> Iterator[uow.Connection]:
    with uow.connect(cluster.bootstrap, client_id="shop") as connected:
        yield connected


def send(connection: uow.Connection) -> None:
    with connection.unit("megazon") as unit:
        unit.send("a")


@pytest.mark.parametrize("code", [ERROR.INVALID_PRODUCER_EPOCH, ERROR.PRODUCER_FENCED])
@pytest.mark.parametrize("api", [ADD_PARTITIONS, END_TXN])
def test_young_transaction_that_is_fenced_was_taken_over(
    connection: uow.Connection, cluster: MockCluster, api: int, code: int
) -> None:
    cluster.fail(api, code)
    with pytest.raises(errors.FencedError, match="shop-0"):
        send(connection)
    with pytest.raises(errors.FencedError, match="was taken over"):
        send(connection)


@pytest.mark.parametrize("code", [ERROR.MSG_SIZE_TOO_LARGE, ERROR.TOPIC_AUTHORIZATION_FAILED, ERROR.POLICY_VIOLATION])
def test_record_that_the_broker_refuses_keeps_its_class_and_the_next_unit_goes_out(
    connection: uow.Connection, cluster: MockCluster, code: int
) -> None:
    cluster.fail(PRODUCE, code)
    with pytest.raises(errors.SendRejectedError):
        send(connection)
    send(connection)


def test_initialisation_is_repeated_while_the_coordinator_loads(
    connection: uow.Connection, cluster: MockCluster
) -> None:
    cluster.fail(INIT_PRODUCER_ID, ERROR.COORDINATOR_LOAD_IN_PROGRESS, ERROR.COORDINATOR_LOAD_IN_PROGRESS)
    send(connection)


def test_connection_that_broke_between_two_units_makes_a_new_epoch(
    connection: uow.Connection, cluster: MockCluster
) -> None:
    send(connection)
    producer = connection._session.transactions._all[0]._producer
    older = producer.handle
    cluster.down()
    cluster.up()
    wait_for(lambda: (producer.serve(), producer._suspicion.line)[1])
    send(connection)
    assert producer.handle is not older
