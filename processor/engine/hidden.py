"""Records whose headers the Kafka client cannot show: to look at they are like records without any, and pass like them.

Above 100,000 headers, or where they are broken, the client answers None. Whether a record that passes without headers has none is asked while the plan
is written, of whoever can tell (the port `Contents`); what has some goes to `D.rejected` in place of `D.units`, with what is known of it. Nothing else
depends on the answer: either way the record is not held. Records that have headers cost nothing.

Belongs here: what becomes of the answer. Does not belong here: how it is found (`processor.kafka.hidden`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from processor.engine.ports import Contents, Output, Plan
from schemas.errors import DecodeError
from topics import headers as names

_CASE = "headers"
_ERROR = DecodeError(_CASE, "headers that cannot be read: more than 100,000 of them, or broken ones")


def shown_outputs(plan: Plan, outputs: Iterable[Output], contents: Contents) -> Iterable[Output]:
    """The outputs, with a refusal in the place of each record that passed for one without headers and has some.

    Args:
        plan: Whose outputs these are.
        outputs: All of them, in order.
        contents: Looks at records again.

    Raises:
        Doubt: While they are asked for: nobody answered.
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
