"""The fate of a cancel reaches whoever asked: the answer from `D.outcomes` (W-62, W-203)."""

from __future__ import annotations

import gc
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError
from fake_handles import FakeBroker, consumed, failure

import uow
from tests.signed_commands import ForeignSigner
from uow import Forwarded, errors
from uow.client.following import Follower
from uow.client.kafka_port import REFRESH_S
from uow.schemas import codec
from uow.schemas.records import Answer

COMPONENT: list[tuple[str, bytes | None]] = [("uow-id", b"order-1"), ("uow-seq", b"2")]
OUTCOMES = "D.outcomes"


@pytest.fixture
def fake() -> FakeBroker:
    fake = FakeBroker()
    fake.topics = {"t": 1, OUTCOMES: 2, "D.commands": 2}
    fake.records = [consumed(headers=list(COMPONENT), offset=number) for number in range(3)]
    return fake


def answer_of(command_id: str, text: str = "closes the group as cancelled", done: bool = True) -> Answer:
    return Answer(command_id, "cancel", "order-1", "D", done, text, "out of stock", None, 5)


def answered(fake: FakeBroker, answer: Answer, value: bytes | None = None, kind: bytes = b"answer") -> None:
    headers: list[tuple[str, bytes | None]] = [("uow-kind", kind), ("uow-command-id", answer.command_id.encode())]
    data = codec.frame(answer) if value is None else value
    fake.records.append(consumed(data, headers=headers, topic=OUTCOMES, partition=1, offset=50 + len(fake.records)))


def first(connection: uow.Connection, **options: Any) -> uow.Message:
    message = connection.messages("t", group="g", **options).receive(0)
    assert message is not None
    return message


def test_a_cancel_tells_what_a_worker_made_of_it_w62(fake: FakeBroker, connection: uow.Connection) -> None:
    cancelled = connection.cancel(first(connection), destination="D", why="out of stock")
    assert cancelled.forwarded is Forwarded.COMMITTED
    assert cancelled.answer(0) is None, "committed is not the fate"
    answered(fake, answer_of("somebody else's"))
    answered(fake, answer_of(cancelled.command_id), kind=b"outcome")
    answered(fake, answer_of(cancelled.command_id))
    answered(fake, answer_of(cancelled.command_id, "a repeated command does nothing more", False))
    found = cancelled.answer(5)
    assert found == answer_of(cancelled.command_id) == cancelled.answer(0)


@pytest.mark.parametrize("is_signed", [True, False])
def test_an_answer_to_another_command_of_the_same_id_is_none(
    fake: FakeBroker, tmp_path: Path, *, is_signed: bool
) -> None:
    """The id of a cancel can be guessed: somebody may send another command under it."""
    key = ForeignSigner("forwarder").write(tmp_path / "key") if is_signed else ""
    own = "forwarder" if is_signed else "Jill"
    with fake.connect(command_key=key) as connection:
        cancelled = connection.cancel(first(connection), destination="D", why="out of stock", by="Jill")
        right = replace(answer_of(cancelled.command_id), by=own)
        for other in (
            replace(right, verb="expire"),
            replace(right, id="order-2"),
            replace(right, by="Jack"),
            replace(right, by=None),
            *([replace(right, by="Jill")] if is_signed else []),
        ):
            answered(fake, other)
        assert cancelled.answer(0.1) is None
        answered(fake, right)
        assert cancelled.answer(5) == right


def test_answers_to_several_cancels_come_in_any_order_w62(fake: FakeBroker, connection: uow.Connection) -> None:
    reader = connection.messages("t", group="g")
    cancels = []
    for _ in range(3):
        message = reader.receive(0)
        assert message is not None
        cancels.append(connection.cancel(message, destination="D", why="x"))
    for each in reversed(cancels):
        answered(fake, answer_of(each.command_id, each.command_id))
    assert [each.answer(5) for each in cancels] == [answer_of(each.command_id, each.command_id) for each in cancels]
    assert len([each for each in fake.consumers if "group.id" in each.properties]) == 2, "one reads, one hears"


def test_in_an_open_transaction_the_answer_is_asked_for_after_a_commit_w62(
    fake: FakeBroker, connection: uow.Connection
) -> None:
    cancelled = connection.cancel(first(connection, commit_interval_ms=5_000), destination="D", why="x")
    assert cancelled.forwarded is Forwarded.PENDING
    assert fake.visible == []
    answered(fake, answer_of(cancelled.command_id))
    assert cancelled.answer(5) is not None
    assert [sent.name for sent in fake.visible] == ["D.commands"]


def test_what_was_not_sent_has_no_answer_w62(fake: FakeBroker, connection: uow.Connection) -> None:
    reader = connection.messages("t", group="g")
    message = reader.receive(0)
    assert message is not None
    reader.roll_back()
    cancelled = connection.cancel(message, destination="D", why="x")
    assert (cancelled.forwarded, cancelled.answer(30)) == (Forwarded.AGAIN, None)


def test_an_answer_that_cannot_be_read_is_logged_and_waited_for_w203(
    fake: FakeBroker, connection: uow.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    cancelled = connection.cancel(first(connection), destination="D", why="x")
    answered(fake, answer_of(cancelled.command_id), b"\xc3\x01 none of ours")
    answered(fake, answer_of(cancelled.command_id))
    with caplog.at_level(logging.WARNING):
        assert cancelled.answer(5) is not None
    assert "an answer that cannot be read" in caplog.text


def test_without_the_topic_of_answers_nothing_is_cancelled_w62(fake: FakeBroker, connection: uow.Connection) -> None:
    fake.topics[OUTCOMES] = 0
    with pytest.raises(errors.DestinationUnavailableError, match=r"D\.outcomes"):
        connection.cancel(first(connection), destination="D", why="x")
    assert fake.visible == []


def test_while_nobody_waits_nothing_is_kept_for_him(fake: FakeBroker, connection: uow.Connection) -> None:
    reader = connection.messages("t", group="g")
    for _ in range(2):
        message = reader.receive(0)
        assert message is not None
        connection.cancel(message, destination="D", why="x")
        gc.collect()
        fake.records.append(consumed(topic=OUTCOMES, partition=0, offset=len(fake.records)))
    assert fake.assigned == [[3, 3], [4, 4]], "the end, and the end again"


def test_retention_that_is_faster_and_errors_of_the_library_end_no_waiting(
    fake: FakeBroker, connection: uow.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    cancelled = connection.cancel(first(connection), destination="D", why="x")
    fake.read_errors = [KafkaError(KafkaError._TRANSPORT), KafkaError(KafkaError._AUTO_OFFSET_RESET)]
    with caplog.at_level(logging.WARNING):
        assert cancelled.answer(0.001) is None
        assert cancelled.answer(0.001) is None
    assert "retention was faster" in caplog.text
    answered(fake, answer_of(cancelled.command_id))
    assert cancelled.answer(5) is not None
    connection.close()
    assert cancelled.answer(0) is not None
    assert all(consumer.closed for consumer in fake.consumers)


def test_end_offsets_that_nobody_tells_are_a_time_out_and_nothing_is_sent(
    fake: FakeBroker, connection: uow.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = first(connection)
    monkeypatch.setattr(
        "fake_handles.FakeConsumer.get_watermark_offsets",
        lambda *_: (_ for _ in ()).throw(failure(KafkaError._TRANSPORT)),
    )
    with pytest.raises(errors.ReconnectTimeoutError, match=r"the end offset of D\.outcomes/0"):
        connection.cancel(message, destination="D", why="x")
    assert fake.visible == []


def test_partitions_that_are_added_are_followed_from_their_beginning_w215(fake: FakeBroker) -> None:
    now = [0.0]
    follower = Follower(lambda logger: fake.consumer({}, logger), OUTCOMES, clock=lambda: now[0])
    fake.topics[OUTCOMES] = 3
    assert follower.poll(0) is None
    now[0] = REFRESH_S
    fake.topics[OUTCOMES], gone = 0, fake.topics[OUTCOMES]
    assert follower.poll(0) is None, "a topic that cannot be seen now is looked for again later"
    fake.topics[OUTCOMES] = gone
    fake.records.append(consumed(topic=OUTCOMES, partition=2, offset=0))
    assert follower.poll(0) is None
    now[0] = 2 * REFRESH_S
    record = follower.poll(0)
    assert record is not None
    assert record.partition() == 2
    follower.close()
