"""The facts about a batch that are found while its units are written, so that no job of their own is needed for them.

Belongs here: the observed counts and hashes. Does not belong here: what is done with them (`uow.spark_sink.delta_sink`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as sql

from uow.spark_sink.superseded import former_hashes, hashes_of_text, own_hash

WAIT_S: Final = 30.0
"""Time that Spark gets to deliver what it observed; it does so in the background."""


CLOSED_AT: Final = "CAST(unit.closed_at AS DOUBLE)"
"""Closing of a unit, epoch seconds."""


@dataclass(frozen=True, slots=True)
class LookFound:
    """The facts about a batch.

    Attributes:
        records: Number of records.
        encoded: Number of records with a frame that is decoded at once.
        plain: Number of plain units among these.
        closed_at: Latest closing of these, epoch seconds; None without one.
        hashes: Hashes of each plain unit.
        frames: The frames of all other records.
    """

    records: int
    encoded: int
    plain: int
    closed_at: float | None
    hashes: Any
    frames: Sequence[str]


def is_encoded(frames: Sequence[str]) -> Column:
    """True for a record with one of these frames, and false for any other."""
    return sql.coalesce(sql.col("frame").isin(*frames), sql.lit(False))


class BatchLook:
    """Looks at records while an action goes through them.

    Args:
        records: Records with the columns `frame` and `is_plain`.
        frames: The frames that are decoded at once.
        topics: All topics of units.

    Attributes:
        records: The same records; an action on them is looked at.
    """

    def __init__(self, records: DataFrame, frames: Sequence[str], topics: Sequence[str]) -> None:
        self._observation = Observation()
        of_plain = sql.collect_list(sql.when(sql.col("is_plain"), own_hash("unit.")))
        # hardly any, and an array for each unit would be dear
        of_former = sql.flatten(sql.collect_list(sql.when(sql.col("is_plain"), former_hashes(topics, "unit."))))
        of_others = sql.collect_set(sql.when(~sql.col("is_plain"), sql.col("frame")))
        self.records = records.observe(
            self._observation,
            sql.count("*").alias("records"),
            sql.count_if(is_encoded(frames)).alias("encoded"),
            sql.count_if(sql.col("is_plain")).alias("plain"),
            sql.max(sql.when(sql.col("is_plain"), sql.expr(CLOSED_AT))).alias("closed_at"),
            sql.array_join(of_plain, ",").alias("hashes"),
            sql.array_join(of_former, ",").alias("former"),
            sql.array_join(of_others, ",").alias("frames"),
        )

    def get(self) -> LookFound | None:
        """The facts after the action; None if Spark did not deliver them, as after an append that was skipped."""
        # not PySpark's `get`, which may wait without end for an append that was skipped
        observed: Any = self._observation._jo
        deadline = time.monotonic() + WAIT_S
        while not observed.future().isCompleted():
            if time.monotonic() > deadline:
                return None
            time.sleep(0.01)
        found = observed.getAsJava()
        if found.isEmpty():
            return None
        return LookFound(
            found["records"],
            found["encoded"],
            found["plain"],
            found["closed_at"],
            np.concatenate([hashes_of_text(found["hashes"]), hashes_of_text(found["former"])]),
            sorted(filter(None, found["frames"].split(","))),
        )
