"""The checks of routers: from the records of an input on (laws L1 to L5 of the aggregation rules), by no rule of the router's code.

After every commit of a router: it moves positions without gap, and has for each record of the input between the old one and the new one exactly one
record, in its order; this is a component with key, value and stamps as the record asks for, of a row that is in `A-rules` by then, or a
refusal, or what passes. So no record is lost, doubled, or early (L1, L2), whoever died on the way; and no router moves what another owns (L5).
After a worker's: no group is given up by time while a record of its key that came in time waits in an input, or unread in `D.components` (L4,
B-218). What the components come to is judged by `checks` (L3). At the end every record of the input is in one place, counted in the logs alone.

Belongs here: those checks. Does not belong here: drawing (`router_traffic`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from uow.processor.core.changes import Closed
from uow.processor.engine.ports import Tp
from uow.processor.sim.router_traffic import INPUT, NAME, RULE_ID, RouterTraffic
from uow.processor.sim.simulated_kafka import Broker, SimulatedTransaction, State, StoredRecord
from uow.processor.sim.simulated_routers import RULES
from uow.processor.sim.witness import require
from uow.schemas.records import Reason
from uow.topics import headers as names
from uow.topics.catalogue import DestinationTopics
from uow.topics.rules import DEFAULT_ROW, DefaultGroup, OnNoKey

_BY_TIME = (Reason.AGE, Reason.IDLE)


class RouterChecks:
    """Judges the routers of one run.

    Args:
        broker: The simulated brokers.
        topics: Topics of the destination.
        traffic: What was drawn.
    """

    def __init__(self, broker: Broker, topics: DestinationTopics, traffic: RouterTraffic) -> None:
        self._broker, self._topics, self._traffic = broker, topics, traffic
        self._positions: dict[Tp, int] = {}
        self._rows: set[str] = set()
        self._became: dict[bytes, tuple[Tp, int, bytes]] = {}
        self.routed = 0

    # -- a router's commit

    def on_commit(self, transaction: SimulatedTransaction) -> None:
        """Judges one transaction of a router."""
        written = [
            (where, record)
            for where, record in transaction.written
            if where.topic in (self._topics.components, self._topics.rejected)
        ]
        self._rows |= {(r.key() or b"").decode() for where, r in transaction.written if where == RULES}
        by_place = {_place_of(record): (where, record) for where, record in written}
        require(len(by_place) == len(written), "a router writes two records for one of the input (L1)")
        require(bool(transaction.offsets), "a router writes without positions (L5)")
        come: list[bytes] = []
        for tp, position in sorted(transaction.offsets.items()):
            before, now = self._positions.get(tp, 0), position.offset or 0
            require(tp.topic == INPUT and now >= before, f"a router moves {tp} from {before} to {now} (L5)")
            log = self._broker.log(tp)
            require(log.stable_end >= now, f"{tp}: routed above the last stable offset (L2)")
            for record in log.visible(before, now):
                place = b"%s/%d/%d" % (tp.topic.encode(), tp.partition, record.offset())
                come.append(place)
                require(place in by_place, f"{place!r} is passed over (L1)")
                self._check(record, *by_place[place])
                where, made = by_place[place]
                self._became[place] = where, made.offset(), made.key() or b""
            self._positions[tp] = now
        require({*come} == by_place.keys(), f"{by_place.keys() - {*come}} were not read by who routed them (L1)")
        self._check_order(come, by_place)
        self.routed += len(come)

    @staticmethod
    def _check_order(come: Sequence[bytes], by_place: dict[bytes, tuple[Tp, StoredRecord]]) -> None:
        """Records of one input partition and one group stay in their order."""
        last: dict[tuple[bytes, Tp], int] = {}
        for place in come:
            where, record = by_place[place]
            line = place.rpartition(b"/")[0], where
            require(record.offset() > last.get(line, -1), f"{place!r} is overtaken")
            last[line] = record.offset()

    def _check(self, came: StoredRecord, where: Tp, made: StoredRecord) -> None:
        """The record that one of the input became."""
        given, said = dict(came.headers() or []), dict(made.headers() or [])
        name, is_unit = given.get(NAME), names.KIND in given
        depth = given.get(names.DEPTH, b"1")
        is_refused = (name is None and self._traffic.on_no_key is OnNoKey.REJECT) or (
            is_unit
            and depth not in (b"1", b"2")
            and not (name is None and self._traffic.on_no_key is OnNoKey.PASS_THROUGH)
        )
        require(made.value() == came.value(), f"{came.offset()} became another value")
        require(said.get("x") == given["x"], f"{came.offset()} lost a header of its own")
        require(
            (where.topic == self._topics.rejected) == is_refused,
            f"{given} came out in {where}, refused is {is_refused}",
        )
        if is_refused:
            return
        if name is None and self._traffic.on_no_key is OnNoKey.PASS_THROUGH:
            require(names.ID not in said, f"{given} passes, and came out as {said}")
            return
        group = name or (b"" if self._traffic.on_no_key is OnNoKey.UNNAMED else DEFAULT_ROW.encode())
        row = (said.get(names.RULE) or b"").decode()
        is_served_by_star = row.startswith(f"{RULE_ID}/{DEFAULT_ROW}@")
        if name is not None and is_served_by_star and self._traffic.default_group is DefaultGroup.SHARED:
            group = DEFAULT_ROW.encode()
        key = f"{RULE_ID}/".encode() + group
        require((made.key(), said.get(names.ID)) == (key, key), f"{given} came out under {made.key()!r}, {said}")
        own_key = came.key() if came.key() != key else None
        require(said.get(names.ORIGIN_KEY) == own_key, f"{given} came out as {said}, its own key was {own_key!r}")
        require(said[names.ARRIVED_AT] == b"%d" % came.timestamp()[1], f"{given} came out with another arrival (L4)")
        require(row in self._traffic.rows, f"row {row} was never in force")
        require(row in self._rows, f"row {row} is on a component, and not in {RULES.topic}")
        inner = (given[names.ID], b"%d" % (int(depth or 0) + 1)) if is_unit else (None, None)
        require((said.get(names.INNER_ID), said.get(names.DEPTH)) == inner, f"{given} came out as {said} (B-109)")

    # -- a worker's commit

    def on_given_up(self, tp: Tp, read_to: int, closed: Sequence[Closed]) -> None:
        """Groups that the clock alone closed, of one partition read up to an offset; all clocks of the run agree."""
        for one in closed:
            rule_id, _, name = one.id.partition(b"/")
            if one.reason not in _BY_TIME or rule_id != RULE_ID.encode():
                continue
            for partition in range(self._broker.settings.partitions):
                for record in self._broker.log(Tp(INPUT, partition)).records:
                    if record.state in (State.OPEN, State.COMMITTED) and record.timestamp()[1] < one.at:
                        self._require_read(record, name, tp, read_to, one)

    def _require_read(self, record: StoredRecord, name: bytes, tp: Tp, read_to: int, closed: Closed) -> None:
        if dict(record.headers() or []).get(NAME) != name:
            return
        place = b"%s/%d/%d" % (INPUT.encode(), record.partition(), record.offset())
        where, offset, key = self._became.get(place, (None, 0, closed.id))
        if where is not None and where.topic == self._topics.components and key != closed.id:
            return  # it is in the group of row `*`: its name had no row of its own
        is_there = where is not None and (where.topic != self._topics.components or (where == tp and offset < read_to))
        require(
            is_there, f"{closed.id!r} is given up at {closed.at} by {closed.reason}, and {place!r} waits (B-218, L4)"
        )

    # -- the end

    def lag(self) -> int:
        """Records of the input that wait to be routed."""
        return sum(
            len(self._broker.log(tp).visible(self._positions.get(tp, 0), self._broker.log(tp).end))
            for tp in self._inputs()
        )

    def at_the_end(self) -> None:
        """Every record of the input is in one place (L1), as a reader of the topics counts them."""
        came = Counter(
            b"%s/%d/%d" % (INPUT.encode(), tp.partition, record.offset())
            for tp in self._inputs()
            for record in self._broker.log(tp).everything
            if record.state is State.COMMITTED
        )
        became = Counter(
            place
            for tp, log in self._broker.logs.items()
            if tp.topic in (self._topics.components, self._topics.rejected)
            for record in log.everything
            if record.state is State.COMMITTED
            and (place := _place_of(record)).startswith(INPUT.encode() + b"/")
            and (tp.topic == self._topics.components or names.RULE not in dict(record.headers() or []))
        )
        require(came == became, f"of the input came {came - became} no further, and {became - came} too often (L1)")

    def _inputs(self) -> list[Tp]:
        return [Tp(INPUT, partition) for partition in range(self._broker.settings.partitions)]


def _place_of(record: StoredRecord) -> bytes:
    """The record of an input that one was made of: `uow-input`; on a refused one as well."""
    return dict(record.headers() or []).get(names.INPUT) or b""
