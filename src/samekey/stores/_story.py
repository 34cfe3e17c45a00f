"""The story of a record as JSON: what the columns of SQLite and MySQL do not hold."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from samekey.core._json import fast_encoder
from samekey.core.record import Move, Record, evidence_of

NOT_STORED = (0.0, 0.0, 0.0, False)  # now, lease_left, ask_left, after_loss: computed from the store's clock

_dump = fast_encoder(json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False))


def story_of(record: Record, moves: tuple[Move, ...]) -> str:
    """The names and digests of its fields, its attributes, its evidence, and these moves."""
    fields = ",".join([f'{_name_text(name)}{digest.hex()}"]' for name, digest in record.fields])
    if not (moves or record.attributes or record.evidence):
        return f"[[{fields}],[],[],[]]"
    evidence = [(*one[:4], None if one.result is None else one.result.hex(), one.why) for one in record.evidence]
    return f"[[{fields}],{_dump(record.attributes)},{_dump(evidence)},{_dump(moves)}]"


def attribute_text(name: str, value: str) -> str:
    """An attribute as `story_of` writes it. Such a text is found nowhere else in a story: quotes inside of texts are
    escaped, and other lists of two begin with a field's name and end with eight hexadecimal digits."""
    return _dump((name, value))


@lru_cache(maxsize=1024)
def _name_text(name: str) -> str:
    """A field up to its digest. Remembered: an operation's are the same every time."""
    return f'[{_dump(name)},"'


def read_story(story: str | bytes) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...], tuple[Move, ...]]:
    """The fields, the attributes, the evidence and the moves that `story_of` wrote."""
    fields, attributes, evidence, moves = json.loads(story)
    return (
        tuple([(name, bytes.fromhex(digest)) for name, digest in fields]),
        tuple([(name, value) for name, value in attributes]),
        tuple([evidence_of(*one) for one in evidence]),
        tuple([Move._make(move) for move in moves]),
    )
