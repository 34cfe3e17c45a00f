"""What a record can be found by, besides its key: search terms, 16 bytes each.

A term is a digest of a name and a value, so that an index holds no value of a customer. Two kinds are never stored by a
claim, because they follow from what the record has anyway: the provider key of the first round, and the attribute
`request_id`. A store with an index computes them when it writes the claim; a store without one when it searches.
`Record.terms` has the others: provider keys of other labels and later rounds, and the notes that can be searched for.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache

from samekey.core.boundary import Kind, parse_terms
from samekey.core.errors import RecordUnreadable
from samekey.core.key import Key
from samekey.core.record import TERM_BYTES, Record, provider_key

TERMS_MAX = 32  # of one record: every settle of a long life may add some, and each is an entry of an index
PROVIDER_KEY, REQUEST_ID = "provider_key", "request_id"
NOTED = ("provider_ref", "party")  # notes that are search terms, under the name note.<name>

# Not keyed with a secret: the one is a digest itself, the other is among the attributes as it is.
_PLAIN = frozenset({PROVIDER_KEY, REQUEST_ID})


def term(name: str, value: str, secret: bytes | None = None) -> bytes:
    """The search term of this name and value; keyed with the guard's secret, where there is one.

    >>> term("provider_key", "a") == term("provider_key", "a", b"secret") != term("note.party", "a")
    True
    """
    data = b"samekey.term.1:%b\x00%b" % (name.encode(), value.encode("utf-8", "surrogatepass"))
    if secret is None or name in _PLAIN:
        return hashlib.sha256(data).digest()[:TERM_BYTES]
    return hmac.digest(secret, data, "sha256")[:TERM_BYTES]


def provider_term(key: Key, round: int, label: str = "") -> bytes:
    return term(PROVIDER_KEY, provider_key(key, round, label))


def claim_terms(key: Key, boundary: str, attributes: tuple[tuple[str, str], ...]) -> tuple[bytes | None, bytes | None]:
    """The terms that a claim has by itself: of its provider key, and of its request id."""
    return provider_term(key, 0) if sends_key(boundary) else None, request_term(attributes)


def request_term(attributes: tuple[tuple[str, str], ...]) -> bytes | None:
    request = None
    for name, value in attributes:
        if name == REQUEST_ID:
            request = term(REQUEST_ID, value)
    return request


def all_terms(record: Record) -> tuple[bytes, ...]:
    """Everything the record can be found by."""
    own = claim_terms(record.key, record.boundary, record.attributes)
    return (*record.terms, *[one for one in own if one is not None])


@lru_cache(maxsize=256)
def sends_key(boundary: str) -> bool:
    """Whether an effect under these terms may send the provider key: it has a provider, and may not be repeated."""
    try:
        return parse_terms(boundary).kind not in (Kind.ATOMIC, Kind.REPEATABLE)
    except RecordUnreadable:
        return True  # terms of a newer version


def with_terms(there: tuple[bytes, ...], more: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The terms of a record after a write that brings more: each once, and no more than TERMS_MAX."""
    return tuple(dict.fromkeys((*there, *more)))[:TERMS_MAX]
