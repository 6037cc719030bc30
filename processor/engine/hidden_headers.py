"""Records whose headers the Kafka client cannot show: they look like records without headers, and would pass through like them.

Above 100,000 headers, or where they are broken, the client answers None. So each record that passes without headers is checked while the plan is
written, by the port `Contents`; one that has hidden headers goes to `D.rejected` in place of `D.units`. Nothing else depends on the check: in
neither case is the record held. Records that have headers cost nothing.

Under `field_source = "value"` a record without headers may be a component. There every such record is checked before its batch is handed over.

Belongs here: the use of the check. Does not belong here: the check itself (`uow.processor.kafka.header_lookup`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from uow.processor.core.columns import (
    UNREADABLE_TEXT,
    Seen,
    UnreadableRecord,
    looked_at,
)
from uow.processor.engine.batch import Batch
from uow.processor.engine.ports import Contents, Output, Plan
from uow.schemas.error_classes import DecodeError
from uow.topics import headers as names

_CASE = "headers"
_ERROR = DecodeError(_CASE, UNREADABLE_TEXT)


class HiddenHeaders:
    """Finds records with hidden headers before they are judged, for destinations that read fields off values.

    Args:
        topics: `D.components` of these.
        contents: Looks at records again.
    """

    def __init__(self, topics: Collection[str], contents: Contents) -> None:
        self._topics, self._contents = topics, contents

    def replace(self, batches: Sequence[Batch]) -> None:
        """Replaces each such record in its batch by an `UnreadableRecord`, which is rejected like any other whose headers cannot be read.

        Raises:
            Doubt: No broker answered in time. No task was touched.
        """
        for batch in batches:
            if batch.tp.topic in self._topics and batch.records:
                self._replace(batch)

    def _replace(self, batch: Batch) -> None:
        seen: list[Any] = []
        bare: dict[int, int] = {}
        for pairs, record in looked_at(batch.records):
            if not pairs and not isinstance(record, UnreadableRecord):
                bare[record.offset()] = len(seen)
            seen.append(Seen(record, pairs))
        if bare:
            for offset in self._contents.hidden(batch.tp, list(bare)):
                row = bare[offset]
                seen[row] = Seen(UnreadableRecord(seen[row]), None)
        batch.records[:] = seen


def shown_outputs(plan: Plan, outputs: Iterable[Output], contents: Contents) -> Iterable[Output]:
    """The outputs, with a refusal in the place of each record that has hidden headers.

    Args:
        plan: The plan of these outputs.
        outputs: All of them, in order.
        contents: Looks at records again.

    Raises:
        Doubt: While one iterates: no broker answered in time.
    """
    return _shown(plan, outputs, contents) if plan.bare else outputs


def _shown(plan: Plan, outputs: Iterable[Output], contents: Contents) -> Iterator[Output]:
    hidden = contents.hidden(plan.tp, sorted(plan.bare.values()))
    for index, output in enumerate(outputs):
        offset = plan.bare.get(index)
        yield _refused(plan, output, offset) if offset is not None and offset in hidden else output


def _refused(plan: Plan, output: Output, offset: int) -> Output:
    source = f"{plan.tp.topic}/{plan.tp.partition}/{offset}"
    why: list[tuple[str, bytes | None]] = [
        (names.ERROR_CLASS, DecodeError.__name__.encode()),
        (names.ERROR_CASE, _CASE.encode()),
        (names.ERROR_TEXT, _ERROR.text.encode()),
        (names.SOURCE, source.encode()),
    ]
    return output._replace(topic=plan.rejected_topic, partition=-1, headers=why)
