"""JSON that arrives as text: read exactly, or refused where two readers could understand it differently.

Two ways lead to the same value, as in `canonical`. `_read_quick` leaves plain bodies to the C decoder and encoder of
`json`, and has their canonical bytes at once; `_read_exactly` judges everything else. The parser does not know the
path: it leaves what must be refused in the value as a `NoForm`, and the walk finds it.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from samekey.core.canonical import (
    DEPTH_MAX,
    DIGITS_MAX,
    EXPONENT_FROM,
    SIZE_MAX,
    NoForm,
    canonical_slow,
    encode_json,
    larger_than_allowed,
    long_digits,
    survey,
)
from samekey.core.errors import PayloadRefused


def parse_json(body: bytes | str) -> Any:
    """The value of a JSON body, refused where two readers could understand it differently.

    Duplicate names, NaN, lone surrogates, anything but UTF-8, too large or too deep: PayloadRefused. A number
    that a double would round becomes a Decimal.

    >>> parse_json(b'{"amount": 1.50, "rate": 0.1000000000000000055}')
    {'amount': 1.5, 'rate': Decimal('0.1000000000000000055')}
    """
    return read_json(body)[0]


def read_json(body: bytes | str) -> tuple[Any, bytes | None]:
    """As `parse_json`, and the value's canonical bytes where reading it gave them, too.

    >>> read_json(b'{"b": 1, "a": [true, 19.90]}')
    ({'b': 1, 'a': [True, 19.9]}, b'{"a":[true,19.9],"b":1}')
    """
    if type(body) is not bytes and not isinstance(body, (bytes, bytearray, str)):
        raise TypeError(f"parse_json takes bytes or str, not {type(body).__name__}")
    if len(body) > SIZE_MAX:
        raise larger_than_allowed("")
    try:
        text = body if isinstance(body, str) else body.decode()
    except UnicodeDecodeError as error:
        raise PayloadRefused(f"the body is not UTF-8 (byte {error.start})", path="") from None
    quick = _read_quick(text)
    return (_read_exactly(text), None) if quick is None else quick


def _read_quick(text: str) -> tuple[Any, bytes] | None:
    """A plain value and its canonical bytes, by the C decoder and the C encoder; None if the exact way must judge.

    The members are not inspected one by one. A duplicate name shows in the written text: the decoder dropped a member,
    and a colon with it. Only an escaped colon could hide that.
    """
    if ("\\u" in text and _ODD_ESCAPE.search(text)) or (len(text) > DIGITS_MAX and long_digits(text)):
        return None
    text = text.strip(" \t\n\r")
    try:
        value, end = _read_plain(text, 0)
        if end != len(text):
            return None
        if text.count("{") + text.count("[") > DEPTH_MAX and survey(value, DEPTH_MAX) is None:
            return None
        written = encode_json(value)
        if written.count(":") != text.count(":"):
            return None
        data = written.encode()
    except (_NotPlain, ValueError, RecursionError, StopIteration):  # the last: there is no value
        return None
    return (value, data) if len(data) <= SIZE_MAX else None


def _read_exactly(text: str) -> Any:
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise PayloadRefused(f"the body is not JSON: {error.msg} (character {error.pos})", path="") from None
    except RecursionError:
        raise PayloadRefused(f"the body nests deeper than {DEPTH_MAX} levels", path="") from None
    if survey(value, DEPTH_MAX) is None or "\\ud" in text or "\\uD" in text or not _encodable(text):
        canonical_slow(value)  # raises PayloadRefused with the path, if there is something to refuse
    return value


def _encodable(text: str) -> bool:
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _object(pairs: list[tuple[str, Any]]) -> Any:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
    return NoForm("this name occurs more than once in its object", name)


def _whole(text: str) -> Any:
    if len(text) > DIGITS_MAX:
        return NoForm(f"an integer of more than {DIGITS_MAX} digits")
    try:
        return int(text)
    except ValueError:  # this process allows fewer digits
        return int(Decimal(text))


def _fraction(text: str) -> Any:
    number = float(text)
    if repr(number) == text and abs(number) < EXPONENT_FROM:
        return number
    try:
        exact = Decimal(text)
    except InvalidOperation:
        exact = Decimal("NaN")  # what a context without traps gives
    if not exact.is_finite():
        return NoForm("a number with an exponent no machine can hold")
    if not math.isfinite(number):
        return exact
    # A large float's repr is not its value: 1e23 is 99999999999999991611392, and must not merge with it.
    held = Decimal(int(number)) if number.is_integer() else Decimal(repr(number))
    return number if held == exact else exact


class _NotPlain(Exception):
    """A number whose canonical form is not what the C encoder writes."""


def _plain_fraction(text: str) -> float:
    number = _fraction(text)
    if type(number) is not float or number.is_integer():
        raise _NotPlain
    return number


def _not_plain(name: str) -> Any:
    raise _NotPlain


_ODD_ESCAPE: Final = re.compile(r"\\u(?:[dD]|003[aA])")  # a surrogate, a colon
# Not `decode`: to look for spaces with a regular expression takes it longer than to read a small body.
_plain: Final[Any] = json.JSONDecoder(parse_float=_plain_fraction, parse_constant=_not_plain)
_read_plain: Final[Callable[[str, int], tuple[Any, int]]] = _plain.scan_once  # what `raw_decode` is a frame around
_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_whole,
    parse_float=_fraction,
    parse_constant=lambda name: NoForm(f"{name} is not JSON"),
)
