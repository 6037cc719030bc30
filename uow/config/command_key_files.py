"""Files of private keys that sign commands: made, and read where nobody else may read them.

Belongs here: the file. Does not belong here: signing (`uow.topics.command_keys`).
"""

from __future__ import annotations

import os
import stat
import tomllib
from base64 import b64decode, b64encode
from pathlib import Path

from uow.config.command_key_settings import is_key_name
from uow.schemas.error_classes import ConfigError
from uow.schemas.masking import masked_path
from uow.topics.command_keys import KEY_BYTES, CommandSigner

SETTING = "command_key"


def make_key(path: Path, name: str) -> CommandSigner:
    """Makes a pair of keys, and writes the private one for its user alone.

    Args:
        path: The file; it must not exist.
        name: Of the key.

    Raises:
        ConfigError: The file exists, or cannot be written.
    """
    signer = CommandSigner(name, private := os.urandom(KEY_BYTES))
    lines = f'name = "{name}"\nprivate = "{b64encode(private).decode()}"\npublic = "{signer.public}"\n'
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write("# A private key of uow, which signs commands. Who has it may send them.\n" + lines)
    except OSError as error:
        raise ConfigError("--out", str(path), error.strerror or "cannot be written") from error
    return signer


def read_signer(path: Path | str) -> CommandSigner:
    """The key in a file of `make_key`. A text that looks like a key, in place of a path, is not printed.

    Raises:
        ConfigError: It cannot be read, is none, or other users may read or change it; its group may read it.
    """
    shown = masked_path(str(path))
    try:
        with Path(path).open("rb") as file:
            status = os.fstat(file.fileno())
            found = tomllib.load(file)
    except OSError as error:  # which has the path
        raise ConfigError(SETTING, shown, error.strerror or "cannot be read") from None
    except ValueError:
        raise ConfigError(SETTING, shown, _RULE) from None
    mode = stat.S_IMODE(status.st_mode)
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise ConfigError(SETTING, shown, f"other users may use the file, whose mode is {mode:o}: chmod 600")
    if status.st_uid not in (_ROOT, os.geteuid()):
        raise ConfigError(SETTING, shown, f"the file is that of another user, {status.st_uid}, who may change it")
    name, private = found.get("name"), found.get("private")
    if not isinstance(name, str) or not is_key_name(name) or not isinstance(private, str):
        raise ConfigError(SETTING, shown, _RULE)
    try:
        return CommandSigner(name, b64decode(private, validate=True))
    except ValueError:
        raise ConfigError(SETTING, shown, _RULE) from None


_ROOT = 0
_RULE = "is no file of a private key, as `uow command-key create` makes it"
