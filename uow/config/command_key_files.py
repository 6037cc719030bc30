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


def read_signer(path: Path) -> CommandSigner:
    """The key in a file of `make_key`.

    Raises:
        ConfigError: It cannot be read, is none, or other users may read it.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            found = tomllib.load(file)
    except OSError as error:
        raise ConfigError(SETTING, str(path), error.strerror or "cannot be read") from error
    except ValueError:
        raise ConfigError(SETTING, str(path), _RULE) from None
    if mode & stat.S_IRWXO:
        raise ConfigError(SETTING, str(path), f"other users may use the file, whose mode is {mode:o}: chmod 600")
    name, private = found.get("name"), found.get("private")
    if not isinstance(name, str) or not is_key_name(name) or not isinstance(private, str):
        raise ConfigError(SETTING, str(path), _RULE)
    try:
        return CommandSigner(name, b64decode(private, validate=True))
    except ValueError:
        raise ConfigError(SETTING, str(path), _RULE) from None


_RULE = "is no file of a private key, as `uow command-key create` makes it"
