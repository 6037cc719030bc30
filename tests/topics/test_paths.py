"""The path map: the first claim of an id counts until the owner of its partition ends it (W-105, W-106)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.paths import NONCE_BYTES, PathMap, claim_key, claim_value

HOUR = 3_600_000


def nonce(number: int) -> bytes:
    return number.to_bytes(NONCE_BYTES, "big")


def claim(paths: PathMap, group_id: bytes, partition: int, number: int = 0, at: int = 0) -> bytes:
    key = claim_key(group_id, nonce(number))
    paths.read(key, claim_value(partition), at)
    return key


@pytest.fixture
def paths() -> PathMap:
    return PathMap()


def test_first_claim_counts_whoever_else_claims_w105(paths: PathMap) -> None:
    claim(paths, b"a", 3, 1)
    claim(paths, b"a", 1, 2)
    assert paths.get(b"a") == 3
    assert [*paths] == [b"a"]
    assert (paths.claimed[3], paths.claimed[1]) == (1, 0)


def test_claim_that_is_read_twice_is_one_claim_w105(paths: PathMap) -> None:
    claim(paths, b"a", 3, 1)
    key = claim(paths, b"a", 3, 1)
    paths.read(key, None, 0)
    assert paths.get(b"a") is None


def test_next_claim_counts_when_the_first_is_ended_w106(paths: PathMap) -> None:
    first = claim(paths, b"a", 3, 1)
    claim(paths, b"a", 1, 2)
    paths.read(first, None, 0)
    paths.read(first, None, 0)  # a tombstone of what is gone
    assert paths.get(b"a") == 1
    assert (paths.claimed[3], paths.claimed[1]) == (0, 1)
    paths.read(claim_key(b"b", nonce(7)), None, 0)
    assert paths.get(b"b") is None


def test_later_claim_that_is_ended_changes_nothing_w106(paths: PathMap) -> None:
    claim(paths, b"a", 3, 1)
    paths.read(claim(paths, b"a", 1, 2), None, 0)
    assert paths.get(b"a") == 3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"1"),
        (b"\x02a\0" + nonce(1), b"1"),
        (b"\x01a", b"1"),
        (claim_key(b"a", nonce(1)), b"one"),
        (claim_key(b"a", nonce(1)), b""),
    ],
)
def test_record_that_is_no_claim_is_left_alone(paths: PathMap, key: bytes | None, value: bytes) -> None:
    paths.read(key, value, 0)
    assert [*paths] == []


@given(st.binary(min_size=1, max_size=255), st.integers(0, 10_000))
def test_any_id_can_be_claimed(group_id: bytes, partition: int) -> None:
    paths = PathMap()
    claim(paths, group_id, partition)
    assert paths.get(group_id) == partition


@pytest.mark.parametrize("seed", range(20))
def test_compaction_at_any_moment_changes_nothing_w105(seed: int) -> None:
    """Each claim has a key of its own, so all that is left of the log are the claims that are not ended, in their order."""
    rnd = Random(seed)
    log: list[tuple[bytes, bytes | None]] = []
    for number in range(60):
        if log and rnd.random() < 0.3:
            log.append((rnd.choice(log)[0], None))
        else:
            log.append((claim_key(b"g%d" % rnd.randrange(4), nonce(number)), claim_value(rnd.randrange(3))))
    last = {key: index for index, (key, _) in enumerate(log)}
    compacted = [row for index, row in enumerate(log) if last[row[0]] == index]
    whole, left = PathMap(), PathMap()
    for key, value in log:
        whole.read(key, value, 0)
    for key, value in compacted:
        left.read(key, value, 0)
    assert {each: whole.get(each) for each in whole} == {each: left.get(each) for each in left}


def test_id_without_a_way_belongs_where_it_is_asked_for(paths: PathMap) -> None:
    claim(paths, b"a", 3)
    way = paths.partition_for(1)
    assert (way(b"a", 4), way(b"b", 4)) == (3, 1)


def test_least_claimed_partition_is_chosen_of_equals_the_next_from_the_hash_w105(paths: PathMap) -> None:
    assert paths.least_claimed(2, 4) == 2
    for number, partition in enumerate([2, 3, 3, 1]):
        claim(paths, b"g%d" % number, partition)
    assert paths.least_claimed(1, 4) == 0
    claim(paths, b"more", 0)
    assert paths.least_claimed(3, 4) == 0
    assert paths.least_claimed(3, 6) == 4  # partitions that were added (W-215)


# -- a way ends


def test_way_ends_only_when_nobody_knows_its_id_and_not_before_its_time_w106(paths: PathMap) -> None:
    key = claim(paths, b"a", 1, at=100)
    assert paths.look_at(1) == 100
    assert paths.leave(1, 100, HOUR, lambda group_id: False) == []
    assert paths.leave(1, 101, HOUR, lambda group_id: True) == []
    assert paths.look_at(1) == HOUR, "looked at again an hour later"
    assert paths.leave(1, HOUR, 2 * HOUR, lambda group_id: False) == []
    assert paths.leave(1, HOUR + 1, 2 * HOUR, lambda group_id: False) == [key]
    assert paths.get(b"a") == 1, "until the tombstone is read"
    paths.read(key, None, 0)
    assert (paths.get(b"a"), paths.look_at(1)) == (None, None)


def test_all_claims_of_an_id_end_together_w106(paths: PathMap) -> None:
    keys = [claim(paths, b"a", partition, partition) for partition in (2, 1, 0)]
    assert paths.leave(2, 1, HOUR, lambda group_id: False) == keys
    assert paths.leave(1, 1, HOUR, lambda group_id: False) == [], "the way never led there"


def test_id_whose_way_is_ending_is_claimed_again_and_a_rolled_back_end_leaves_it_where_it_was_w106(
    paths: PathMap,
) -> None:
    claim(paths, b"a", 2, 1)
    assert paths.unknown([b"a", b"b"]) == [b"b"]
    paths.leave(2, 1, HOUR, lambda group_id: False)
    assert paths.unknown([b"a"]) == [b"a"]
    claim(paths, b"a", 0, 2)
    paths.settled([b"a", b"c"])  # and no tombstone came before it
    assert (paths.get(b"a"), paths.unknown([b"a"])) == (2, [])
    (first, second) = paths.leave(2, HOUR + 1, 2 * HOUR, lambda group_id: False)
    paths.read(first, None, 0)
    paths.read(second, None, 0)
    claim(paths, b"a", 0, 3)
    assert paths.get(b"a") == 0


def test_way_that_is_ending_is_not_trusted_because_others_claim_or_half_of_its_end_was_read_w106(
    paths: PathMap,
) -> None:
    claim(paths, b"a", 2, 1)
    claim(paths, b"a", 2, 2)
    first, second = paths.leave(2, 1, HOUR, lambda group_id: False)
    claim(paths, b"a", 0, 3)  # by a sender, before the tombstones
    assert paths.unknown([b"a"]) == [b"a"]
    paths.read(first, None, 0)
    assert (paths.get(b"a"), paths.unknown([b"a"])) == (2, [b"a"])
    paths.read(second, None, 0)
    assert (paths.get(b"a"), paths.unknown([b"a"])) == (0, [])


def test_map_that_is_cleared_begins_anew(paths: PathMap) -> None:
    claim(paths, b"a", 2)
    paths.clear()
    assert ([*paths], paths.look_at(2), paths.claimed[2]) == ([], None, 0)
