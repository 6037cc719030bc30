"""The keys under which expected and actual rows of a destination meet in the balance.

Of units of work a key is the group id: an id with anything that cannot be judged is left out as a whole. By rule few ids have all units, generation
after generation, so each generation is a key, and what was refused or given up is known by its own place: else nobody could ever judge
the id of a busy row while workers run. Where retention has deleted the beginning of the input, generations cannot be counted; ids are keys there.

Belongs here: keys, in Python and in SQL. Does not belong here: what is compared under them (`uow.spark_sink.balance`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as sql

from uow.spark_sink.destination_rules import DestinationRules
from uow.spark_sink.kafka import OffsetSpan
from uow.topics.catalogue import DestinationTopics


@dataclass(frozen=True, slots=True)
class AuditKeys:
    """The keys of one destination.

    Attributes:
        rules: Ids of its rules; none where ids are the keys.
        free_topics: Topics of units whose partition is not that of their components: the key decides there (B-57).
    """

    rules: tuple[str, ...] = ()
    free_topics: tuple[str, ...] = ()

    @classmethod
    def of(cls, rules: DestinationRules, topics: DestinationTopics, span: OffsetSpan) -> AuditKeys:
        """The keys for a range of the input."""
        targets = {topic for row in rules.rows.values() for topic in row.targets} | {*rules.targets}
        ids = {row.rule.rule_id for row in rules.rows.values()}
        return cls(() if any(span.start.values()) else tuple(sorted(ids)), tuple(sorted(targets - {topics.units})))

    def is_by_rule(self, group_id: str) -> bool:
        """True for the id of a group by rule."""
        return bool(self.rules) and group_id.partition("/")[0] in self.rules

    def of_group(self, group_id: str, generation: int | None) -> str:
        """The key of a group."""
        return f"{group_id}@{generation}" if self.is_by_rule(group_id) else group_id

    def by_rule(self) -> Column:
        """True in SQL for a row with the `id` of a group by rule."""
        if not self.rules:
            return sql.lit(False)
        return sql.coalesce(sql.substring_index("id", "/", 1).isin(*self.rules), sql.lit(False))

    def group(self) -> Column:
        """The key of a row with `id` and `generation`."""
        return sql.when(self.by_rule(), sql.concat("id", sql.lit("@"), "generation")).otherwise(sql.col("id"))

    def is_free(self) -> Column:
        """True for a row in a topic of `free_topics`."""
        return sql.col("topic").isin(*self.free_topics) if self.free_topics else sql.lit(False)


NO_KEYS: Final = AuditKeys()
