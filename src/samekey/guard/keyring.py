"""Keys for what records keep: `Guard(store, keys=Keyring(("2026-07", key), ("2026-01", old_key)))`.

AES-256-GCM. The first key seals, all of them open. A key is never used itself: each process derives one from it and a
random salt, and derives a new one after SEALS_MAX values, so that random nonces stay far from repeating however many
values and processes there are.
"""

from __future__ import annotations

import hmac
import os
import re
import stat
from base64 import b64decode
from pathlib import Path
from typing import Any

from samekey.core.errors import Misconfigured
from samekey.core.sealing import ID_MAX_BYTES, unwrap, wrap
from samekey.core.shapes import Unreadable

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "keys for records need cryptography: pip install 'samekey[crypto]'", name=missing.name
    ) from missing

KEY_BYTES = 32
SALT_BYTES = 16
NONCE_BYTES = 12
SEALS_MAX = 1 << 24  # values sealed under one derived key; NIST allows 2**32 with random nonces
DERIVED_MAX = 256  # derived keys that are remembered for opening
FILE_MAX_BYTES = 1 << 16

_LABEL = b"samekey.keyring.1:"
_ID = re.compile(r"[A-Za-z0-9_.-]+")


class Keyring:
    """Keys by their ids: the current one, which seals, and older ones, which still open what they sealed.

    An id is 1 to 64 letters, digits, `_`, `.` or `-`; it is stored with each value. A key is 32 random bytes.
    """

    def __init__(self, current: tuple[str, bytes], *old: tuple[str, bytes]) -> None:
        self._keys: dict[str, bytes] = {}
        for pair in (current, *old):
            key_id, key = _checked(pair)
            if key_id in self._keys:
                raise Misconfigured(f"two keys have the id {key_id!r}: a value could not name its key")
            self._keys[key_id] = key
        self.current = next(iter(self._keys))
        self._derived: dict[tuple[str, bytes], AESGCM] = {}
        self._turn_over()

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Keyring:
        """The keys in a file: one `id base64-of-32-bytes` in each line, the current key first; `#` begins a comment.

        The file is refused if every user of the machine may read or change it.
        """
        try:
            with open(path, "rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                data = file.read(FILE_MAX_BYTES)
        except OSError as error:
            raise Misconfigured(f"the file of keys {str(path)!r} cannot be read: {error.strerror}") from error
        if os.name == "posix" and mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
            raise Misconfigured(f"the file of keys {str(path)!r} is open to other users: chmod 600 {Path(path).name}")
        lines = [line.partition("#")[0].split() for line in data.decode("ascii", "replace").splitlines()]
        keys = [_from_line(number, parts) for number, parts in enumerate(lines, 1) if parts]
        if not keys:
            raise Misconfigured(f"the file of keys {str(path)!r} has no key: write lines of `id base64-of-32-bytes`")
        return cls(*keys)

    def seal(self, data: bytes, aad: bytes) -> bytes:
        self._left -= 1
        if self._left < 0:
            self._turn_over()
        head, cipher = self._sealing
        nonce = os.urandom(NONCE_BYTES)
        return b"%b%b%b" % (head, nonce, cipher.encrypt(nonce, data, aad))

    def open(self, data: bytes, aad: bytes) -> bytes:
        key_id, body = unwrap(data)
        if key_id not in self._keys:
            raise Unreadable(
                f"it is sealed with the key {key_id!r}, which is not among those given: give it after the current one"
            )
        nonce, sealed = body[SALT_BYTES : SALT_BYTES + NONCE_BYTES], body[SALT_BYTES + NONCE_BYTES :]
        try:
            opened: bytes = self._cipher(key_id, body[:SALT_BYTES]).decrypt(nonce, sealed, aad)
        except (InvalidTag, ValueError):
            raise Unreadable(
                f"it does not open with the key {key_id!r}: it was damaged, or sealed for another record"
            ) from None
        return opened

    def _turn_over(self) -> None:
        """Seal under another derived key from now on. The head and its cipher are one value: threads share them."""
        salt = os.urandom(SALT_BYTES)
        self._left = SEALS_MAX
        self._sealing = wrap(self.current, salt), self._cipher(self.current, salt)

    def _cipher(self, key_id: str, salt: bytes) -> AESGCM:
        cipher = self._derived.get((key_id, salt))
        if cipher is None:
            cipher = AESGCM(hmac.digest(self._keys[key_id], _LABEL + salt, "sha256"))
            if len(self._derived) >= DERIVED_MAX:
                self._derived.clear()
            self._derived[key_id, salt] = cipher
        return cipher

    def __repr__(self) -> str:
        return f"<Keyring {', '.join(self._keys)}>"


def _checked(pair: Any) -> tuple[str, bytes]:
    if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
        raise Misconfigured('a key is a pair of its id and 32 bytes: Keyring(("2026-07", key))')
    key_id, key = pair
    if not (isinstance(key_id, str) and len(key_id) <= ID_MAX_BYTES and _ID.fullmatch(key_id)):
        raise Misconfigured(f"the id of a key is 1 to {ID_MAX_BYTES} letters, digits, `_`, `.` or `-`")
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise Misconfigured(f"the key {key_id!r} is not {KEY_BYTES} bytes: make one with os.urandom({KEY_BYTES})")
    return key_id, key


def _from_line(number: int, parts: list[str]) -> tuple[str, bytes]:
    """A line as a key. An error names the number of the line, never what is in it."""
    if len(parts) == 2:
        try:
            return parts[0], b64decode(parts[1], validate=True)
        except ValueError:
            pass
    raise Misconfigured(f"line {number} of the file of keys is not written as `id base64-of-32-bytes`")
