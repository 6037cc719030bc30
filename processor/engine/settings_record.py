"""The settings of a destination that all its workers must share, recorded beside its state (W-68).

Theory of operation. Each partition of `A-D-groups-changelog` has one `SettingsRow`. Its *mark*, a short digest, is in the metadata of the
committed offset, so that one request shows if anything differs. A worker looks before it joins the group. If its settings differ while another
worker lives, it is refused; if it is alone, it records its own with the first plan of each partition. A worker that later gets a partition and
finds a row that is neither its own nor one it saw when it was alone was overtaken by a worker with other settings, and stops. If two workers with
different settings start in the same moment, one of them stops when a partition next moves between them.

Belongs here: the row, its mark, and the differences of two rows. Does not belong here: finding other workers, waiting and refusing
(`uow.processor.shell.settings_check`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import Any, NamedTuple, Self

from uow.processor.engine.ports import LogReader, Tp
from uow.schemas import codec
from uow.schemas.error_classes import Complaint, ConfigError, StateCorruptedError
from uow.schemas.records import SETTINGS_KEY, SettingsRow
from uow.topics.policies import DestinationPolicy

_RIGHTS = ("command_keys", "unsigned_commands", "command_window_ms")
_MARK = re.compile(r";S=([0-9a-f]{16})([0-9a-f]{16})?")


@dataclass(frozen=True, slots=True)
class RecordedSettings:
    """The settings of one destination, as this worker has them.

    Attributes:
        destination: Its name.
        row: The settings that are not at their default.
        value: Its bytes in the changelog.
        mark: Its mark.
        rights: The mark of those settings that say who may send which command (`rights_of`).
        replaces: Marks that were recorded when this worker was found to be alone: it may put its own in their place.
    """

    destination: str
    row: SettingsRow
    value: bytes
    mark: str
    rights: str = ""
    replaces: frozenset[str] = frozenset()

    @classmethod
    def of(cls, destination: str, policy: DestinationPolicy) -> Self:
        """For a destination with these settings."""
        row = row_of(policy)
        value = codec.frame(row)
        return cls(destination, row, value, mark_of(value), rights_of(policy))

    def is_recorded(self, value: bytes | None) -> bool:
        """True if a partition's row has the same settings; if not, the next plan writes ours.

        Raises:
            ConfigError: A worker with other settings has recorded them since this one began.
            DecodeError: It cannot be read.
        """
        if value is None or value == self.value:
            return value is not None
        if mark_of(value) not in self.replaces:
            found = differences(codec.decode_as(SettingsRow, value), self.row)
            who = "another worker has recorded it since this one began"
            if found:
                raise ConfigError.many(each.complaint(self.destination, who) for each in found)
        return False


class SettingsDifference(NamedTuple):
    """A setting with two values, in the words of `uow.toml`."""

    name: str
    recorded: str
    ours: str

    def complaint(self, destination: str, who: str) -> Complaint:
        """The complaint about ours."""
        rule = f"{self.recorded!r} is recorded, and {who}; all workers need equal settings: stop them all to change one"
        return Complaint(f"destinations.{destination}.{self.name}", self.ours, rule)


def row_of(policy: DestinationPolicy) -> SettingsRow:
    """The row of a destination. A setting at its default is left out, so that a version with more settings writes the same row."""
    ours, defaults = _texts(policy), _texts(DestinationPolicy())
    return SettingsRow(tuple((name, text) for name, text in sorted(ours.items()) if text != defaults[name]))


def differences(recorded: SettingsRow, ours: SettingsRow) -> list[SettingsDifference]:
    """The settings in which two rows differ."""
    defaults = _texts(DestinationPolicy())
    found = []
    theirs, mine = dict(recorded.settings), dict(ours.settings)
    for name in sorted(theirs.keys() | mine.keys()):
        pair = [each.get(name, defaults.get(name, "unknown")) for each in (theirs, mine)]
        if pair[0] != pair[1]:
            found.append(SettingsDifference(name, *pair))
    return found


def recorded(reader: LogReader, changelog: Tp) -> SettingsRow:
    """The row of a partition of `A-D-groups-changelog`.

    Raises:
        StateCorruptedError: There is none, though there is a mark beside the offset.
        DecodeError: It cannot be read.
    """
    stretches = reader.read(reader.bounds([changelog]))
    values = [each.value() for _, records in stretches for each in records if each.key() == SETTINGS_KEY]
    if not values or values[-1] is None:
        raise StateCorruptedError([changelog], "the row of settings is missing", "restore the topic from a backup")
    return codec.decode_as(SettingsRow, values[-1])


def mark_of(value: bytes) -> str:
    """A row's mark."""
    return sha256(value).hexdigest()[:16]


def mark_in(metadata: str) -> str | None:
    """The mark beside a committed offset; None if there is none."""
    found = _MARK.search(metadata)
    return found[1] if found else None


def rights_of(policy: DestinationPolicy) -> str:
    """A short digest of who may send which command; empty if nobody needs a key."""
    texts = _texts(policy)
    return mark_of(json.dumps([texts[each] for each in _RIGHTS]).encode()) if policy.command_keys else ""


def rights_in(metadata: str) -> str | None:
    """The same of the workers, beside a committed offset; None if there is no mark of their settings."""
    found = _MARK.search(metadata)
    return (found[2] or "") if found else None


def _texts(policy: DestinationPolicy) -> Mapping[str, str]:
    return {each.name: _text(getattr(policy, each.name)) for each in fields(policy)}


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str) else json.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, Iterable) else str(value)
