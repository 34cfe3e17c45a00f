"""Sealed bytes: what a record keeps under a key, so that only the holder of the key can read it.

A sealed value is `version | E | length of the key id | key id | what the sealer made`. The record's digest and the
purpose are authenticated with it: an answer that was moved to another record, or notes that were put in place of a
result, do not open. Plain values are read as they are, so that keys can be given to a guard that has records already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from samekey.core.key import Key
from samekey.core.shapes import Unreadable

SEALED = b"\x01E"  # as an envelope begins: its version, and the codec for encryption
RESULT, NOTES, PAYLOAD = b"result", b"notes", b"payload"  # purposes: results and refusals, notes, kept payloads
ID_MAX_BYTES = 64


class Keeping(NamedTuple):
    """How an operation keeps what is not kept as it is."""

    sealer: Sealer | None
    redact: Callable[[Any], Any] | None
    payload: bool  # whether the payload is kept, too


@runtime_checkable
class Sealer(Protocol):
    """What `Guard(keys=...)` takes: `Keyring`, or a class of your own around a key service.

    `seal` returns what `wrap(key_id, ...)` makes. `open` raises Unreadable with the key's id where it cannot.
    """

    def seal(self, data: bytes, aad: bytes) -> bytes: ...
    def open(self, data: bytes, aad: bytes) -> bytes: ...


def wrap(key_id: str, body: bytes) -> bytes:
    """The sealed value with the header that names its key.

    >>> wrap("2026", b"...")
    b'\\x01E\\x042026...'
    """
    name = key_id.encode("ascii")
    return b"%b%c%b%b" % (SEALED, len(name), name, body)


def unwrap(data: bytes) -> tuple[str, bytes]:
    """The key's id, and what the sealer made; Unreadable if this is no sealed value."""
    end = 3 + data[2] if len(data) > 2 else 0
    if data[:2] != SEALED or not 3 < end <= len(data):
        raise Unreadable("the header of a sealed value is damaged")
    try:
        return data[3:end].decode("ascii"), data[end:]
    except UnicodeDecodeError:
        raise Unreadable("the header of a sealed value is damaged") from None


def seal(sealer: Sealer, data: bytes, purpose: bytes, key: Key) -> bytes:
    """Seal this for one record; whatever the sealer raises, goes out."""
    return sealer.seal(data, _authenticated(purpose, key))


def unseal(sealer: Sealer | None, data: bytes, purpose: bytes, key: Key) -> bytes:
    """What was sealed for this record; a plain value as it is. Raises Unreadable and nothing else."""
    if data[:2] != SEALED:
        return data
    if sealer is None:
        raise without_keys(data)
    try:
        return sealer.open(data, _authenticated(purpose, key))
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(f"it could not be opened: the sealer raised {type(error).__name__}") from error


def without_keys(data: bytes) -> Unreadable:
    return Unreadable(f"it is sealed with the key {unwrap(data)[0]!r}, and there are no keys: give Guard(keys=)")


def _authenticated(purpose: bytes, key: Key) -> bytes:
    return b"samekey.seal.1:%b:%b" % (purpose, key.digest)
