"""The C encoder of `json`, made once instead of once per call.

`JSONEncoder.encode` builds a new C encoder for every value, which costs more than encoding a small one. Where the
C encoder is missing, the plain `encode` does the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

quote: Callable[[str], str] = json.encoder.encode_basestring  # text in quotes, not escaped more than JSON asks


def fast_encoder(encoder: json.JSONEncoder) -> Callable[[Any], str]:
    """`encoder.encode`, faster, for an encoder without circle checks and indentation."""
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if encoder.ensure_ascii:
        return encoder.encode
    if make is None or encoder.check_circular or encoder.indent is not None:
        return encoder.encode
    chunks = make(
        None,
        encoder.default,
        quote,
        None,
        encoder.key_separator,
        encoder.item_separator,
        encoder.sort_keys,
        encoder.skipkeys,
        encoder.allow_nan,
    )

    def encode(value: Any) -> str:
        return quote(value) if type(value) is str else "".join(chunks(value, 0))

    return encode
