"""Records that the library never hands over: a batch that inflates to more than `receive.message.max.bytes`, or that is damaged.

Theory of operation. Such a batch fails whole, and asking for any offset inside it fails the same way; nothing says where it
ends. So the next readable offset is searched: ahead in steps that double, until one can be read, or is the end; then back by halves to the first such. The records
between are given up.

Belongs here: the search. Does not belong here: trying an offset (`uow.client.consumption`), and handling the gap (`uow.client.dead_letters`).
"""

from __future__ import annotations


class Gap:
    """A stretch that cannot be fetched, as far as it is known.

    Args:
        first: Its first offset.
        end: End offset of the partition: can be read, or waited for.
        why: The library's error text.

    Attributes:
        at: The offset that is tried; where `is_known`, the first one that can be read.
    """

    def __init__(self, first: int, end: int, why: str) -> None:
        self.first = self.at = first
        self._bad, self._good = first - 1, max(end, first + 1)
        self._why = why
        self._step = 1

    @property
    def is_known(self) -> bool:
        """True once its end is found."""
        return self._good - self._bad == 1

    def learn(self, can_be_read: bool) -> None:
        """Takes the result of trying `at`, and sets the next offset to try."""
        if can_be_read:
            self._good, self._step = self.at, 0
        else:
            self._bad, self._good = self.at, max(self._good, self.at + 1)
        ahead = self._bad + self._step
        if not self._bad < ahead < self._good:  # the end need not be tried
            self._step, ahead = 0, (self._bad + self._good) // 2
        self.at = self._good if self.is_known else ahead
        self._step *= 2

    def __str__(self) -> str:
        return f"offsets {self.first} to {self.at - 1} cannot be fetched: {self._why}"
