"""The error tree is stable and public (W-34)."""

from __future__ import annotations

import pickle

import pytest

from uow.schemas import error_classes as errors
from uow.schemas.error_classes import (
    BadSequenceNumberError,
    BadUnitIdError,
    Complaint,
    ComponentExpiredError,
    ConfigError,
    DecodeError,
    DuplicateSequenceNumberError,
    FencedError,
    InternalError,
    InvariantViolation,
    MisroutedComponentError,
    OutOfSequenceRangeError,
    RoutingError,
    StateCorruptedError,
    UnitClosedError,
    UnitConflictError,
    UnitTooLargeError,
    UowError,
)

EVERY = [
    BadUnitIdError(case="empty", id=b""),
    BadSequenceNumberError(case="a", id=b"order-1"),
    OutOfSequenceRangeError(case="a", id=b"order-1", seq=4, detail="the end is 3"),
    DuplicateSequenceNumberError(case="conflict", id=b"order-1", seq=2),
    UnitConflictError(id=b"order-1"),
    UnitClosedError(case="expired", id=b"order-1", seq=3),
    UnitTooLargeError(case="bytes", id=b"order-1"),
    MisroutedComponentError(id=b"order-1"),
    ComponentExpiredError(id=b"order-1", seq=1),
    ConfigError("worker.poll_records", 0, "at least 1"),
    DecodeError("uow-expires-at", "no number", topic="m.components", partition=2, offset=17, data=b"soon"),
    FencedError("the worker name w-0 was taken over"),
    StateCorruptedError([("m.components", 2)], "the ledger ends at 5, the position is 7", "run uow doctor"),
    InvariantViolation("closed", "hold 3"),
    RoutingError(case="filtered"),
    InternalError.of(KeyError("x\ny")),
]


def test_the_tree_is_that_of_the_contract() -> None:
    """W-34."""
    assert [type(error).__name__ for error in EVERY] == [
        "BadUnitIdError",
        "BadSequenceNumberError",
        "OutOfSequenceRangeError",
        "DuplicateSequenceNumberError",
        "UnitConflictError",
        "UnitClosedError",
        "UnitTooLargeError",
        "MisroutedComponentError",
        "ComponentExpiredError",
        "ConfigError",
        "DecodeError",
        "FencedError",
        "StateCorruptedError",
        "InvariantViolation",
        "RoutingError",
        "InternalError",
    ]
    assert all(type(error).__bases__ == (UowError,) for error in EVERY)
    assert UowError.__bases__ == (Exception,)


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_except_uow_error_catches_all_and_every_one_survives_pickling(error: UowError) -> None:
    """W-34; Spark carries errors between processes."""
    with pytest.raises(UowError) as caught:
        raise error
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  our own bytes
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__


def test_except_bad_sequence_number_does_not_catch_the_conflict() -> None:
    """W-33, W-34."""
    assert not issubclass(UnitConflictError, BadSequenceNumberError)


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_every_docstring_says_what_the_caller_does_next(error: UowError) -> None:
    assert len((type(error).__doc__ or "").split()) > 8


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UowError(), "UowError"),
        (UowError("no such destination"), "no such destination"),
        (UowError(case="age"), "age"),
        (BadUnitIdError(case="undecodable", id=b"\xff"), r"uow-id is no UTF-8 text (id '\\xff')"),
        (BadSequenceNumberError(case="a"), "uow-seq is missing"),
        (EVERY[2], "number above the known end: the end is 3 (id 'order-1', number 4)"),
        (EVERY[9], "worker.poll_records = 0: at least 1"),
        (EVERY[10], "uow-expires-at: no number at m.components/2/17"),
        (DecodeError("framing"), "framing"),
        (EVERY[11], "the worker name w-0 was taken over"),
        (EVERY[12], "m.components/2: the ledger ends at 5, the position is 7; run uow doctor"),
        (StateCorruptedError([], "unreadable"), "unreadable"),
        (EVERY[13], "event 'hold 3' in state 'closed'"),
        (InternalError.of(KeyError("x\ny")), r"KeyError: 'x\ny'"),
        (InvariantViolation(1, 2, "held twice"), "held twice: event 2 in state 1"),
    ],
)
def test_the_message_is_derived_from_the_data(error: UowError, text: str) -> None:
    assert str(error) == error.text == text


def test_every_case_of_the_contract_has_a_sentence() -> None:
    """W-34."""
    assert {*BadSequenceNumberError.CASES} == {"a", "b", "malformed", "malformed-end", "malformed-count"}
    assert {*OutOfSequenceRangeError.CASES} == {"a", "b"}
    assert {*DuplicateSequenceNumberError.CASES} == {"duplicate", "resend", "conflict"}
    assert {*UnitClosedError.CASES} == {"partial", "expired", "cancelled", "failed"}
    assert {*UnitTooLargeError.CASES} == {"count", "bytes", "groups", "depth"}


def test_a_record_can_name_exactly_the_classes_that_concern_records() -> None:
    assert {*errors.REFUSALS} == {type(error).__name__ for error in EVERY[:9]} | {
        "RoutingError",
        "InternalError",
        "DecodeError",
        "UowError",
    }
    assert all(errors.REFUSALS[name].__name__ == name for name in errors.REFUSALS)


def test_one_config_error_carries_every_complaint() -> None:
    rows = [Complaint("a.b", 0, "at least 1"), Complaint("c", "x", "one of y, z")]
    error = ConfigError.many(rows)
    assert error.complaints == tuple(rows)
    assert (error.setting, error.value, error.rule) == ("a.b", 0, "at least 1")
    assert str(error) == "a.b = 0: at least 1\nc = 'x': one of y, z"


def test_a_config_error_needs_a_complaint() -> None:
    with pytest.raises(ValueError, match="needs a complaint"):
        ConfigError.many([])


def test_a_decode_error_keeps_the_bytes_and_learns_where_the_record_lies() -> None:
    error = DecodeError("body", "ends early", data=b"\x02").at("m.units", 1, 9)
    assert (error.data, error.topic, error.partition, error.offset) == (b"\x02", "m.units", 1, 9)


def test_an_error_of_ours_is_shown_whole_and_any_other_one_in_short() -> None:
    """What to do stands at the end of ours; the text of another may be as long as a record."""
    remedy = "x" * 900 + " and then what to do"
    assert errors.shown(errors.StateCorruptedError([], "lost", remedy)).endswith("and then what to do")
    assert len(errors.shown(KeyError(remedy))) == 300
