"""The hashes of the units in a table: what was seen is known, whatever the bound of memory (W-127)."""

from __future__ import annotations

import gc

import numpy as np
import pytest

pytest.importorskip("pyspark")

from uow.spark_sink.superseded import KnownUnits


def test_a_unit_is_known_once_it_was_added_in_memory_or_in_files() -> None:
    rnd = np.random.default_rng(1)
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    every = np.unique(np.append(rnd.integers(low, high, 20_000), [low, -1, 0, 1, high]))
    rnd.shuffle(every)
    known = KnownUnits(in_memory=1_500)
    batches = np.array_split(every, 23)
    assert [known.add(batch) for batch in batches] == [False] * 23
    for batch in batches:
        assert known.add(batch[:1])
        assert known.add(batch[-1:])
    assert known.add(np.array([low, 12345]))
    assert known.add(np.array([high]))
    assert not known.add(np.array([7]))
    assert known.add(np.array([8, 8]))
    assert not known.add(np.empty(0, np.int64))


def test_the_files_are_removed_with_it() -> None:
    known = KnownUnits(in_memory=2)
    known.add(np.arange(5))
    folder = known._folder
    assert folder is not None
    assert folder.is_dir()
    del known
    gc.collect()
    assert not folder.exists()
