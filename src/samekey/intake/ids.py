"""Run ids. The id of a keyed run is a function of its key, so two stores can never hold two ids for one key.

    id = HMAC(secret, environment, task, key, generation)

Every node computes the same id, with or without Redis. Only the generation needs agreement (rows.py). Each id ends with
a check of 40 bits: an id of ours that is in no store was lost with a buffer's memory, any other was never given out.
"""

from __future__ import annotations

import base64
import hmac
from hashlib import sha256

from samekey.intake.runs import Problem

KEY_MAX = 2048  # characters, as the public API has it
NAME_MAX = 255  # of a task or an environment
_CHECK_BYTES = 5
_ID_BYTES = 15


def _framed(*parts: str | int) -> bytes:
    """The parts with their lengths: `a:b` + `c` never equals `a` + `b:c`."""
    made = [str(part).encode("utf-8", "surrogatepass") for part in parts]
    return b"".join(b"%d:%b" % (len(part), part) for part in made)


def key_digest(environment: str, task: str, key: str) -> str:
    """What the key is called in both stores: 32 hex digits, whatever characters the key has."""
    return sha256(b"samekey.intake.key.1" + _framed(environment, task, key)).hexdigest()[:32]


def keyed_id(secret: bytes, environment: str, digest: str, generation: int) -> str:
    """The run id of this key in this generation."""
    return _id(secret, environment, hmac.digest(secret, b"key" + _framed(environment, digest, generation), "sha256"))


def retry_id(secret: bytes, environment: str, task: str, request: str, fingerprint: str) -> str:
    """The run id of a keyless trigger that carries a request id of its own: a retry gets the same one."""
    mac = hmac.digest(secret, b"retry" + _framed(environment, task, request, fingerprint), "sha256")
    return _id(secret, environment, mac)


def new_id(secret: bytes, environment: str, unique: str) -> str:
    """The id of a keyless run; `unique` is random."""
    return _id(secret, environment, sha256(unique.encode()).digest())


def is_ours(secret: bytes, environment: str, run_id: str) -> bool:
    """Whether this id was made with this secret, for this environment."""
    try:
        raw = base64.b32decode(run_id.removeprefix("run_").upper())
    except ValueError:
        return False
    made = _id(secret, environment, raw[:_ID_BYTES])
    return run_id.startswith("run_") and hmac.compare_digest(made.encode(), run_id.encode("utf-8", "replace"))


def _id(secret: bytes, environment: str, unique: bytes) -> str:
    unique = unique[:_ID_BYTES]
    check = hmac.digest(secret, b"check" + _framed(environment) + unique, "sha256")[:_CHECK_BYTES]
    return "run_" + base64.b32encode(unique + check).decode().lower()


def check_name(what: str, name: object) -> str:
    if not isinstance(name, str) or not name or len(name) > NAME_MAX or not name.isprintable():
        raise Problem(400, f"the {what} must be a text of 1 to {NAME_MAX} printable characters")
    return name


def check_key(key: object) -> str | None:
    """The key as given; an empty one is no key."""
    if key is None or key == "":
        return None
    if not isinstance(key, str):
        raise Problem(400, "the idempotency key must be a text")
    if len(key) > KEY_MAX:
        raise Problem(400, f"the idempotency key has {len(key)} characters; {KEY_MAX} is the limit")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise Problem(400, "the idempotency key holds a lone surrogate, which no store can keep") from None
    return key
