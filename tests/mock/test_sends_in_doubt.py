"""Finding out what became of a record or a transaction that nobody answered for, on librdkafka itself (R-04, R-05, R-63, R-64, R-71).

The mock cluster hides no aborted records: that a transaction was rolled back is told on a broker.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError

import uow
from tests.mock.mock_cluster import PRODUCE, MockCluster
from tests.processes import PATIENCE_S, wait_for
from uow import errors
from uow.client.session_state import Waits

TOPIC = "shop.components"


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster(TOPIC) as running:
        yield running


@pytest.fixture
def connection(cluster: MockCluster) -> Iterator[uow.Connection]:
    with uow.connect(cluster.bootstrap) as connected:
        yield connected


def suspect(component: uow.Component, sent: uow.Sent | None = None) -> errors.AmbiguousSendError:
    ends = {} if sent is None else {(sent.topic, sent.partition): sent.offset}
    return errors.AmbiguousSendError("in doubt", errors.Suspect(component.component_id, TOPIC, -1, ends, 2e9))


def test_probe_finds_what_is_in_the_log_and_says_what_is_not_r04(
    connection: uow.Connection, cluster: MockCluster
) -> None:
    component = uow.Component("x")
    for number in range(3):
        connection.send("shop", str(number), id="a", seq=1)
    sent = connection.send("shop", component, id="a", seq=2)
    assert connection.probe(suspect(component, sent)) == sent
    assert connection.probe(suspect(uow.Component("x"), sent)) is None
    behind = sent._replace(offset=sent.offset + 1)
    assert connection.probe(suspect(component, behind)) is None, "nothing before the last known end is read"
    with pytest.raises(ValueError, match="carries no identity"):
        connection.probe(errors.AmbiguousSendError("no more is known"))


def test_final_doubt_names_the_record_and_probe_answers_r04(connection: uow.Connection, cluster: MockCluster) -> None:
    sent = connection.send("shop", "before", id="a", seq=1)
    component = uow.Component("x")
    cluster.fail(PRODUCE, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, KafkaError.INVALID_REQUIRED_ACKS)
    with pytest.raises(errors.AmbiguousSendError) as raised:
        connection.send("shop", component, id="a", seq=2)
    assert raised.value.suspect is not None
    assert raised.value.suspect.component_id == component.component_id
    assert raised.value.suspect.ends == {(TOPIC, sent.partition): sent.offset + 1}
    assert connection.probe(raised.value) is None


def test_partition_that_cannot_be_read_is_never_answered_with_absent_r05(
    connection: uow.Connection, cluster: MockCluster
) -> None:
    component = uow.Component("x")
    sent = connection.send("shop", component, id="a", seq=1)
    connection._session.life.waits = Waits(blocking_ms=1000)
    cluster.lead(TOPIC, sent.partition, broker=-1)
    with pytest.raises(errors.DestinationUnavailableError):
        connection.probe(suspect(component, sent))
    cluster.lead(TOPIC, sent.partition)
    connection._session.life.waits = Waits(blocking_ms=PATIENCE_S * 1000)
    assert connection.probe(suspect(component, sent)) == sent


def test_commit_that_meets_an_outage_is_asked_for_again_r63_r64(
    connection: uow.Connection, cluster: MockCluster
) -> None:
    with connection.unit("shop") as unit:
        unit.send("warm")
    unit = pending_unit(connection, cluster)
    with pytest.raises(errors.CommitPendingError):
        unit.commit()
    with pytest.raises(errors.ClientClosedError):
        unit.send("2")
    cluster.up()
    connection._session.life.waits = Waits(blocking_ms=PATIENCE_S * 1000)
    with connection.unit("shop") as other:
        other.send("another id takes its place meanwhile")
    unit.commit()
    with pytest.raises(errors.ClientClosedError, match="no commit of this unit is pending"):
        unit.commit()
    assert connection.stats().sent == 4
    with connection.unit("shop") as unit:
        unit.send("and the id is usable again")


def pending_unit(connection: uow.Connection, cluster: MockCluster) -> uow.UnitWriter:
    """Brokers go when all but the commit is done."""
    connection._session.life.waits = Waits(blocking_ms=200)
    unit = connection.unit("shop")
    unit.__enter__()
    unit.send("1")
    unit.send("2")
    transaction = unit._transaction._transaction
    assert transaction is not None
    transaction._producer.flush()
    cluster.down()
    wait_for(lambda: connection.state is uow.ConnectionState.RECONNECTING)
    with pytest.raises(errors.CommitPendingError, match=cluster.bootstrap):
        unit.__exit__(None, None, None)
    return unit


def test_close_waits_for_a_commit_under_way_r66(cluster: MockCluster) -> None:
    with uow.connect(cluster.bootstrap) as connection:
        with connection.unit("shop") as unit:
            unit.send("warm")
        unit = pending_unit(connection, cluster)
        cluster.up()
        connection.close(PATIENCE_S)
        unit.commit()


def test_transaction_is_recovered_by_its_id_r71(connection: uow.Connection, cluster: MockCluster) -> None:
    component = uow.Component("x")
    with connection.unit("shop") as unit:
        unit.send(component)
    starts = {(TOPIC, 0): 0, (TOPIC, 1): 0}
    suspect_of = errors.Suspect(component.component_id, TOPIC, -1, starts)
    base = connection._session.transactions._all[0].transactional_id
    error = errors.CommitOutcomeUnknownError("not answered", base, suspect_of)
    assert connection.recover(error) is uow.Recovered.COMMITTED
    other = errors.Suspect("another", TOPIC, -1, starts)
    assert (
        connection.recover(errors.CommitOutcomeUnknownError("", f"{base}-foreign", other)) is uow.Recovered.ROLLED_BACK
    )
    with connection.unit("shop") as unit:
        unit.send("the id is usable again")
    wait_for(lambda: connection.stats().sent == 2)
