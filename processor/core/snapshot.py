"""The state of a partition between two records as plain data, to go on from later, in another process.

The worker does not use it: it restores from its changelogs, which grow by what changes. The audit does, which looks at a partition once an hour and
keeps the state in a file.

Belongs here: from state to data and back. Does not belong here: the file (`uow.spark_sink.audit_state`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from uow.processor.core.changes import Closed
from uow.processor.core.group import Group
from uow.processor.core.partition import Partition
from uow.schemas.error_classes import DecodeError
from uow.topics.grouping import GroupPolicy
from uow.topics.headers import RULE


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a partition of which nothing is in `happened`.

    Attributes:
        position: Next input offset.
        clock: Epoch ms.
        command_position: Next offset of `D.commands`.
        groups: Open groups (`Group.as_data`), in order.
        credits: Rules of which the next group that is complete need not wait.
        lines: Ids of the open groups of each order key, in the order of their line.
        closed: The memory of closed groups, oldest first.
        commands: The memory of commands: id and append time, in order.
        kept: What is kept for corrections of units, as data of groups.
    """

    position: int
    clock: int
    command_position: int
    groups: Iterable[Mapping[str, Any]]
    lines: Mapping[bytes, Sequence[bytes]]
    closed: Iterable[Closed]
    commands: Sequence[tuple[bytes, int]]
    credits: Sequence[str] = ()
    kept: Iterable[Mapping[str, Any]] = ()


def take(partition: Partition) -> Snapshot:
    """The state; groups are turned into data when they are asked for, so the partition must not go on before that."""
    return Snapshot(
        partition.position,
        partition.clock,
        partition.command_position,
        (group.as_data() for group in partition.groups.values()),
        {key: [*line] for key, line in partition.lines.items()},
        partition.closed.order,
        [*partition.commands.at_by_id.items()],
        sorted(partition.credits),
        (kept.group.as_data() for kept in partition.kept.values()),
    )


def restore(partition: Partition, snapshot: Snapshot) -> None:
    """Puts the state into a new partition of the same address, policy and rules.

    Raises:
        DecodeError: An open group is of a row that is not in the rules.
    """
    partition.position, partition.clock = snapshot.position, snapshot.clock
    partition.command_position = snapshot.command_position
    for data in snapshot.groups:
        partition.add_restored(Group.from_data(data, _row(partition, data["rule"])))
    groups = partition.groups
    partition.order_restored()
    partition.credits.update(snapshot.credits)
    partition.held_bytes = sum(
        group.bytes - group.external_bytes + group.bytes_in_pieces() for group in groups.values()
    )
    partition.piece_count = sum(group.record_count - len(group.held) for group in groups.values())
    for key, line in snapshot.lines.items():
        partition.lines[key] = {group_id: groups[group_id] for group_id in line}
    for closed in snapshot.closed:
        partition.closed.add(closed)
    partition.closed.trim(partition.clock)
    partition.restore_kept([Group.from_data(data) for data in snapshot.kept])
    for command_id, at in snapshot.commands:
        partition.commands.add(command_id, at)
    partition.reschedule(groups.values())


def _row(partition: Partition, rule: str) -> GroupPolicy | None:
    if not rule:
        return None
    row = partition.rules.kept(rule)
    if row is None:
        raise DecodeError(RULE, f"an open group is of the row {rule}, which is not in the rules")
    return row
