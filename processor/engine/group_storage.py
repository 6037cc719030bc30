"""How an open group survives a restart: by rows in the changelog, or because a restore reads it from the input again.

A group is *replayable* while its components have no rows: the input is a durable log already. Of such a group nobody needs to know one by one
which plain components it holds. Once it is *promoted* its components have rows, in order of arrival, and the group has a `GroupStorage`.

Belongs here: what the engine keeps of one group. Does not belong here: the bytes of rows (`rows`), when a group is promoted (`replayable`).
"""

from __future__ import annotations

from collections.abc import Iterable

from uow.processor.core.group import Group

_NO_PIECES: frozenset[int] = frozenset()


class GroupStorage:
    """The rows that a group has in the changelog. It is the group's `attachment`, from its first row on.

    Attributes:
        rows: How many of the components held have a row: the first ones, in order of arrival.
        row_key: The beginning of these rows' keys.
        row_head: The beginning of their values.
        has_group_row: True if the changelog says what commands changed.
        pieces: Slots of the pieces of components that have a row (`uow.processor.core.segments`).
    """

    __slots__ = ("has_group_row", "pieces", "row_head", "row_key", "rows")

    def __init__(self, row_key: bytes, row_head: bytes) -> None:
        self.rows = 0
        self.row_key, self.row_head = row_key, row_head
        self.has_group_row = False
        self.pieces: set[int] | frozenset[int] = _NO_PIECES  # a set of its own would be a quarter of the group's memory

    def add_piece(self, slot: int) -> None:
        """The piece in this slot has a row."""
        if not isinstance(self.pieces, set):
            self.pieces = set()
        self.pieces.add(slot)

    def drop_pieces(self, slots: Iterable[int]) -> list[int]:
        """The pieces in these slots have none any more; returns those that had one."""
        dropped = [slot for slot in slots if slot in self.pieces]
        if isinstance(self.pieces, set):
            self.pieces.difference_update(dropped)
        return dropped


def storage_of(group: Group) -> GroupStorage | None:
    """The group's rows in the changelog; None if it has none and never had."""
    storage: GroupStorage | None = group.attachment
    return storage


def rows_of(group: Group) -> int:
    """How many of the components held have a row."""
    storage = storage_of(group)
    return 0 if storage is None else storage.rows


def pieces_of(group: Group) -> int:
    """How many of the pieces of components that it holds have a row. While one has, all that came before this poll have theirs."""
    storage = storage_of(group)
    return 0 if storage is None else len(storage.pieces)


def begin_anew(group: Group) -> int:
    """The rows of its components are to be written once more, all of them. Returns how many there were."""
    storage = storage_of(group)
    if storage is None:
        return 0
    rows, storage.rows = storage.rows, 0
    return rows


def has_group_row(group: Group) -> bool:
    """True if the changelog says what commands changed in the group."""
    storage = storage_of(group)
    return storage is not None and storage.has_group_row


def is_replayable(group: Group) -> bool:
    """True if a restore would read the group from the input again."""
    return not group.lists_plain
