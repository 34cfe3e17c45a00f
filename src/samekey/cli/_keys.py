"""SAMEKEY_KEYS_FILE: the keys that open what records keep encrypted, for `show`, `explain` and filters by notes."""

from __future__ import annotations

import os
from functools import lru_cache

from samekey.core.errors import Misconfigured
from samekey.core.record import Record
from samekey.core.sealing import NOTES, Sealer, unseal
from samekey.core.shapes import Unreadable

ENVIRONMENT = "SAMEKEY_KEYS_FILE"


def sealer() -> Sealer | None:
    """The keys of the file that the environment names; None without one."""
    path = os.environ.get(ENVIRONMENT)
    return _of_file(path) if path else None


@lru_cache(maxsize=4)
def _of_file(path: str) -> Sealer:
    try:
        from samekey.guard.keyring import Keyring
    except ModuleNotFoundError as missing:
        raise Misconfigured(f"{ENVIRONMENT} needs {missing.name}: pip install 'samekey[crypto]'") from missing
    return Keyring.from_file(path)


def with_plain_notes(record: Record) -> Record:
    """The record for people, with its notes opened where the keys are at hand. Never to be written back."""
    if record.notes is None:
        return record
    try:
        return record._replace(notes=unseal(sealer(), record.notes, NOTES, record.key))
    except Unreadable:
        return record
