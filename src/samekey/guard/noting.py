"""What one effect notes about itself, until its settle writes it: `held.note(...)`, and the provider keys it took."""

from __future__ import annotations

import logging
from typing import Any

from samekey.core.errors import Misconfigured
from samekey.core.notes import Note, encode
from samekey.core.record import Record
from samekey.core.sealing import NOTES, Sealer, seal
from samekey.core.search import NOTED, TERMS_MAX, provider_term, term

_log = logging.getLogger("samekey")

# The notes with a name of their own, and the type of each: what a ledger has of a payment.
LEDGER: dict[str, type] = {"amount_minor": int, "currency": str, "party": str, "provider_ref": str}


class Noted:
    """The notes of one hold, checked as they come, and the labels of its provider keys."""

    def __init__(self) -> None:
        self._notes: dict[str, Note] = {}
        self._written: bytes | None = None
        self._labels: dict[str, None] = {}

    def add(self, given: dict[str, Any]) -> None:
        """Merge these notes into the others; Misconfigured for one that cannot be kept, and then none is added."""
        for name, kind in LEDGER.items():
            value = given.get(name)
            if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                raise Misconfigured(f"the note {name!r} is {_KINDS[kind]}, not a {type(value).__name__}")
        merged = {**self._notes, **{name: one for name, one in given.items() if one is not None or name not in LEDGER}}
        self._written = encode(merged) if merged else None
        self._notes = merged

    def took(self, label: str) -> None:
        """The effect took the provider key of this label."""
        if len(self._labels) < TERMS_MAX:
            self._labels[label] = None

    def kept(
        self, record: Record, secret: bytes | None, sealer: Sealer | None
    ) -> tuple[bytes | None, tuple[bytes, ...]]:
        """The notes as the record keeps them, and what the record can be found by because of them."""
        terms = [provider_term(record.key, record.round, label) for label in self._labels]
        terms += [term(f"note.{name}", str(self._notes[name]), secret) for name in NOTED if name in self._notes]
        written = self._written
        if sealer is not None and written is not None:
            try:
                written = seal(sealer, written, NOTES, record.key)
            except Exception as error:  # the effect has ended: its outcome is written without them
                _log.error(
                    "the notes of %s are lost: %s while sealing them", record.key.operation, type(error).__name__
                )
                written = None
        return written, tuple(terms)


_KINDS = {int: "a whole number of the smallest unit (cents)", str: "a text"}
