"""Keys that sign the commands of a destination: which bytes a signature covers, signing, and who may say what (`docs/wire-format.md#signed-commands`). Pure.

Theory of operation. Kafka tells a reader nothing about who wrote a record, so a command proves by a signature (Ed25519) who sent it. It covers the
destination, the record's key and value and all of its `uow-*` headers, the time of signing among them. A command counts if it was appended within so
long of that time: this follows from the record and the settings alone, so that a restart, a rebuild and an audit years later decide the same. A copy of it
within that time has the same id, which is remembered for longer.

Belongs here: these bytes, keys, and the judgement of one record. Does not belong here: the meaning of a command (`uow.topics.commands`), files of
private keys (`uow.config.command_key_files`).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

SIGNATURE: Final = "uow-signature"
"""Of a signed command: the signature, in base64."""
SIGNED_AT: Final = "uow-signed-at"
"""The same: when it was signed, epoch ms."""
SIGNER: Final = "uow-user-id"
"""The same: the name of the key."""
PREFIX: Final = b"uow-command-signature-1\n"
"""Begins the bytes that are signed, so that no signature made for something else fits."""
KEY_BYTES: Final = 32
MAX_NAME_CHARS: Final = 100
"""Longest name of a key."""
LOG_APPEND_TIME: Final = 2
"""Kind of a timestamp that the broker gave, as confluent_kafka numbers them."""
ALL_VERBS: Final = "all"
NEVER_ENDS: Final = 2**63 - 1
WINDOW_MS: Final = 300_000
"""Default of `command_window_ms`: longer than a client tries to send a command in an outage that it survives."""

_OURS: Final = "uow-"
_NULL: Final = b"\xff\xff\xff\xff"

Headers = list[tuple[str, bytes | None]]
Pairs = Iterable[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class CommandKey:
    """A public key of `command_keys`, and what its holder may say.

    Attributes:
        name: The name in the trail; several keys may have it, such as an old one and its successor.
        public: The raw key, in base64.
        verbs: The verbs that it may sign, or `all`.
        since_ms: It counts for commands appended from then on, epoch ms.
        until_ms: And before then.
    """

    name: str
    public: str
    verbs: frozenset[str]
    since_ms: int = 0
    until_ms: int = NEVER_ENDS

    def __str__(self) -> str:
        return f"{self.name} {self.public} {','.join(sorted(self.verbs))} {self.since_ms} {self.until_ms}"

    def may(self, verb: str) -> bool:
        """True if it may sign this verb."""
        return verb in self.verbs or ALL_VERBS in self.verbs


class Refused(StrEnum):
    """Why a command is refused, whatever it asks for; a label of the metric."""

    NOT_SIGNED = "not_signed"
    UNKNOWN_KEY = "unknown_key"
    SIGNATURE = "signature"
    TIME = "time"
    VERB = "verb"


class Judgement(NamedTuple):
    """Who may have sent a command.

    Attributes:
        refused: Why it is refused; None: it may be obeyed.
        text: The same, for people.
        is_verified: True if the signature is that of the key which the command names.
        nameless_before: A copy that was appended before this moment, epoch ms, has not been verified; 0: there can be none.
    """

    refused: Refused | None = None
    text: str = ""
    is_verified: bool = False
    nameless_before: int = 0


def signed_bytes(destination: str, key: bytes | None, value: bytes | None, headers: Pairs) -> bytes:
    """The bytes that a signature covers: a prefix and then fields, each with its length before it, so that no two records have the same.

    Args:
        destination: Name of the destination.
        key: Of the record.
        value: Of the record.
        headers: All of the record; those that do not begin with `uow-`, and the signature itself, are left out, and the others are put in order.
    """
    parts = [PREFIX, _field(destination.encode()), _field(key), _field(value)]
    covered = [(name.encode(), raw) for name, raw in headers if name.startswith(_OURS) and name != SIGNATURE]
    for name, raw in sorted(covered, key=itemgetter(0)):
        parts += [_field(name), _field(raw)]
    return b"".join(parts)


def _field(raw: bytes | None) -> bytes:
    return _NULL if raw is None else len(raw).to_bytes(4, "big") + raw


class CommandSigner:
    """Signs the commands of one program.

    Args:
        name: Of its key.
        private: The raw private key.

    Raises:
        ValueError: That is none.
    """

    def __init__(self, name: str, private: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self.name = name
        self._key = Ed25519PrivateKey.from_private_bytes(private)

    @property
    def public(self) -> str:
        """Its public key, raw, in base64."""
        return b64encode(self._key.public_key().public_bytes_raw()).decode()

    def signed(self, destination: str, key: bytes | None, value: bytes | None, headers: Pairs, now_ms: int) -> Headers:
        """The headers of a command with its signature, as sent under the name of the key, whatever name they had."""
        whole: Headers = [pair for pair in headers if pair[0] not in (SIGNER, SIGNED_AT, SIGNATURE)]
        whole += [(SIGNER, self.name.encode()), (SIGNED_AT, b"%d" % now_ms)]
        signature = self._key.sign(signed_bytes(destination, key, value, whole))
        return [*whole, (SIGNATURE, b64encode(signature))]


def signed_headers(
    signer: CommandSigner | None,
    destination: str,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    now_ms: int,
) -> Headers:
    """The headers of a command, signed by whoever signs here."""
    return headers if signer is None else signer.signed(destination, key, value, headers, now_ms)


@dataclass(frozen=True, slots=True)
class CommandRights:
    """Who may say what in `D.commands`.

    Attributes:
        destination: Name of the destination.
        keys: Its keys; without one everything is allowed.
        unsigned: Verbs that need no signature.
        window_ms: Most time between signing and the append time, either way.
    """

    destination: str
    keys: Sequence[CommandKey] = ()
    unsigned: Collection[str] = frozenset()
    window_ms: int = WINDOW_MS

    @property
    def since_ms(self) -> int:
        """The moment from which signatures are asked for, epoch ms: the first key counts."""
        return min((key.since_ms for key in self.keys), default=NEVER_ENDS)

    def are_asked(self, kind: int, at: int) -> bool:
        """True if a command with this timestamp is judged. One that its sender may have chosen does not say that it came before there were keys."""
        return bool(self.keys) and (at >= self.since_ms or at < 0 or kind != LOG_APPEND_TIME)

    def judge(self, verb: str, key: bytes | None, value: bytes | None, headers: Pairs, at: int) -> Judgement:
        """Judges a command.

        Args:
            verb: Its verb.
            key: Of the record.
            value: Of the record.
            headers: Of the record.
            at: Its append time, epoch ms.
        """
        found = self._judged(verb, key, value, [*headers], at)
        # whoever may not sign this may as well leave the signature out
        return found._replace(refused=None, text="") if verb in self.unsigned else found

    def _judged(self, verb: str, key: bytes | None, value: bytes | None, headers: Headers, at: int) -> Judgement:
        """The same as if every command needed a signature."""
        names = [name for name, _ in headers if name.startswith(_OURS)]
        if SIGNATURE not in names:
            return Judgement(Refused.NOT_SIGNED, f"{verb} needs the signature of a key of this destination")
        if len(set(names)) < len(names):
            return Judgement(Refused.SIGNATURE, "a uow header of a signed command is repeated")
        said = {name: raw or b"" for name, raw in headers}
        name = said.get(SIGNER, b"").decode("utf-8", "backslashreplace")
        known = [each for each in self.keys if each.name == name and each.since_ms <= at < each.until_ms]
        if not known:
            return Judgement(Refused.UNKNOWN_KEY, f"no key {name!r} counted when it was appended")
        signed, signature = signed_bytes(self.destination, key, value, headers), _decoded(said[SIGNATURE]) or b""
        signers = [each for each in known if _is_signed(each.public, signature, signed)]
        if not signers:
            return Judgement(Refused.SIGNATURE, f"the signature is not that of key {name!r} on this record")
        if not self._is_in_time(said.get(SIGNED_AT, b""), at):
            text = f"it was appended more than {self.window_ms} ms before or after it was signed"
            return Judgement(Refused.TIME, text)
        if not any(each.may(verb) for each in signers):
            return Judgement(Refused.VERB, f"key {name!r} has no right to {verb}", True)
        is_new = int(said[SIGNED_AT]) >= self.since_ms + self.window_ms
        return Judgement(None, "", True, 0 if is_new else self.since_ms)

    def _is_in_time(self, raw: bytes, at: int) -> bool:
        return is_moment(raw) and abs(at - int(raw)) <= self.window_ms


_DIGITS: Final = 15


def is_moment(raw: bytes) -> bool:
    """True if bytes can be a moment of signing: digits, not too many."""
    return raw.isdigit() and len(raw) <= _DIGITS


def is_public_key(text: str) -> bool:
    """True if a text is a public key: 32 bytes in base64, and none of those under which anybody can make signatures."""
    raw = _decoded(text.encode())
    if raw is None or len(raw) != KEY_BYTES or _y_of(raw) in _SMALL_ORDER:
        return False
    if b64encode(raw).decode() in _PUBLISHED:
        return False
    try:
        _public(text)
    except ValueError:
        return False
    return True


def _y_of(raw: bytes) -> int:
    return int.from_bytes(raw, "little") & (1 << 255) - 1


_PUBLISHED: Final = frozenset(
    {
        "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=",
        "PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=",
        "/FHNjmIYoaONpH7QAjDwWAgW7RO6MwOsXeuRFUiQgCU=",
        "J4EX/BRMcjQPZ9DyMW6Dhs7/vyskKMnFH+98WX8dQm4=",
        "38lCXk+Wj38MKfAlnPX5rtaFHCu0rYv7hgz+4KskgpI=",
        "Dx0SdJQ7kUFYiRUuiT2A6TJ1ofwLZf1xtLDdoQrX13I=",
        "7Bcrk61eVjv0kyxw4SRQNMNUZ+8u/U1k6/gZaDRn4r8=",
        "A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=",
    }
)
"""Keys whose private ones stand in a text that everybody can read: the vectors of RFC 8032 (7.1 to 7.3), and that of `docs/wire-format.md`."""
_P: Final = 2**255 - 19
_Y_OF_ORDER_8: Final = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER: Final = frozenset({0, 1, _P - 1, _P, _P + 1, _Y_OF_ORDER_8, _P - _Y_OF_ORDER_8})
"""The points of small order, by the coordinate that is encoded; two of them also beyond the prime, which libraries accept (RFC 8032, 5.1.3)."""


def _decoded(text: bytes) -> bytes | None:
    try:
        return b64decode(text, validate=True)
    except (NoBase64, ValueError):
        return None


@lru_cache(256)
def _public(text: str) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(b64decode(text))


def _is_signed(public: str, signature: bytes, signed: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        _public(public).verify(signature, signed)
    except InvalidSignature:
        return False
    return True
