"""Secrets, environments, API keys, batches and packets: small tables of the database, each command a few statements."""

from __future__ import annotations

import os
import secrets as randomness
import string
import time
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from samekey.core.errors import Misconfigured
from samekey.intake.rows import Sql, SqlSteps

SECRET_MIN_BYTES = 16
KEY_CHARACTERS = 32  # of an API key, after its prefix


@dataclass(frozen=True, slots=True)
class Know:
    """Reply: the Context of the pipeline."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A run was ended or canceled: wake those who wait for it, and call the cancel hook."""

    run: Any
    canceled: bool


# -- secrets -------------------------------------------------------------------------------------------------------


def as_secret(given: Any) -> bytes | None:
    if given is None:
        return None
    secret = given.encode() if isinstance(given, str) else given
    if not isinstance(secret, bytes) or len(secret) < SECRET_MIN_BYTES:
        raise Misconfigured(f"secret= takes at least {SECRET_MIN_BYTES} bytes")
    return secret


def secrets(given: bytes | None) -> SqlSteps:
    """The secrets that ids are made with, by number. The first is made on first use; a new one given here is added."""
    first = given or os.urandom(32)
    yield Sql(
        "INSERT INTO samekey_intake_meta (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING",
        ("secret.1", first.hex()),
    )
    rows = yield Sql("SELECT name, value FROM samekey_intake_meta WHERE name LIKE 'secret.' || ?", ("%",))
    found = {int(name.partition(".")[2]): bytes.fromhex(value) for name, value in rows}
    if given is not None and given not in found.values():
        number = max(found) + 1
        yield Sql(
            "INSERT INTO samekey_intake_meta (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING",
            (f"secret.{number}", given.hex()),
        )
        found[number] = given
    return found


# -- environments and API keys ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AddEnvironment:
    """Reply: whether it is new."""

    name: str


@dataclass(frozen=True, slots=True)
class Environments:
    """Reply: list of (name, created_at)."""


@dataclass(frozen=True, slots=True)
class AddKey:
    """Store the digest of an API key. Reply: None."""

    id: str
    environment: str
    digest: str


@dataclass(frozen=True, slots=True)
class Keys:
    """Reply: list of (id, environment, created_at, revoked_at)."""


@dataclass(frozen=True, slots=True)
class RevokeKey:
    """Reply: whether there was a key of this id that was not revoked."""

    id: str


@dataclass(frozen=True, slots=True)
class WhoseKey:
    """Reply: the environment of an API key, or None."""

    digest: str


def new_api_key(environment: str) -> tuple[str, str]:
    """A key to show once, and its id."""
    letters = string.ascii_letters + string.digits
    secret = "".join(randomness.choice(letters) for _ in range(KEY_CHARACTERS))
    return f"sk_{environment}_{secret}", "key_" + randomness.token_hex(6)


def digest_of(api_key: str) -> str:
    return sha256(b"samekey.intake.api-key.1" + api_key.encode("utf-8", "surrogatepass")).hexdigest()


def add_environment(command: AddEnvironment) -> SqlSteps:
    rows = yield Sql(
        "INSERT INTO samekey_intake_environments (name, created_at) VALUES (?, ?)"
        " ON CONFLICT DO NOTHING RETURNING name",
        (command.name, time.time()),
    )
    return bool(rows)


def environments(_command: Environments) -> SqlSteps:
    return (yield Sql("SELECT name, created_at FROM samekey_intake_environments ORDER BY name"))


def add_key(command: AddKey) -> SqlSteps:
    yield Sql(
        "INSERT INTO samekey_intake_api_keys (id, environment, digest, created_at) VALUES (?, ?, ?, ?)",
        (command.id, command.environment, command.digest, time.time()),
    )


def keys(_command: Keys) -> SqlSteps:
    return (
        yield Sql("SELECT id, environment, created_at, revoked_at FROM samekey_intake_api_keys ORDER BY created_at, id")
    )


def revoke_key(command: RevokeKey) -> SqlSteps:
    rows = yield Sql(
        "UPDATE samekey_intake_api_keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL RETURNING id",
        (time.time(), command.id),
    )
    return bool(rows)


def whose_key(command: WhoseKey) -> SqlSteps:
    rows = yield Sql(
        "SELECT environment FROM samekey_intake_api_keys WHERE digest = ? AND revoked_at IS NULL", (command.digest,)
    )
    return rows[0][0] if rows else None


# -- batches -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """Make a batch, or find it. Reply: Batch."""

    environment: str
    id: str
    expected: int
    key: str | None


@dataclass(frozen=True, slots=True)
class Batch:
    id: str
    expected: int
    sealed: bool
    created_at: float
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Reply: Batch or None."""

    environment: str
    id: str


@dataclass(frozen=True, slots=True)
class NoteItem:
    """An item of a batch has this run. Reply: whether the item is new; a repeated item keeps its first run."""

    batch: str
    number: int
    run: str


@dataclass(frozen=True, slots=True)
class SealBatch:
    """Seal it if it has all its items. Reply: the number of its items."""

    environment: str
    id: str


def open_batch(command: OpenBatch) -> SqlSteps:
    yield Sql(
        "INSERT INTO samekey_intake_batches (id, environment, key, expected, created_at) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT DO NOTHING",
        (command.id, command.environment, command.key, command.expected, time.time()),
    )
    return (yield from read_batch(ReadBatch(command.environment, command.id)))


def read_batch(command: ReadBatch) -> SqlSteps:
    rows = yield Sql(
        "SELECT id, expected, sealed_at, created_at FROM samekey_intake_batches WHERE environment = ? AND id = ?",
        (command.environment, command.id),
    )
    if not rows:
        return None
    items = yield Sql("SELECT run FROM samekey_intake_batch_items WHERE batch = ? ORDER BY number", (command.id,))
    run_id, expected, sealed_at, created_at = rows[0]
    return Batch(run_id, expected, sealed_at is not None, created_at, tuple(item[0] for item in items))


def note_item(command: NoteItem) -> SqlSteps:
    rows = yield Sql(
        "INSERT INTO samekey_intake_batch_items (batch, number, run) VALUES (?, ?, ?)"
        " ON CONFLICT DO NOTHING RETURNING number",
        (command.batch, command.number, command.run),
    )
    return bool(rows)


def seal_batch(command: SealBatch) -> SqlSteps:
    rows = yield Sql("SELECT count(*) FROM samekey_intake_batch_items WHERE batch = ?", (command.id,))
    yield Sql(
        "UPDATE samekey_intake_batches SET sealed_at = ?"
        " WHERE environment = ? AND id = ? AND sealed_at IS NULL AND expected <= ?",
        (time.time(), command.environment, command.id, rows[0][0]),
    )
    return rows[0][0]


# -- packets -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PutPacket:
    environment: str
    name: str
    content_type: str
    content: bytes


@dataclass(frozen=True, slots=True)
class ReadPacket:
    """Reply: (content type, content) or None."""

    environment: str
    name: str


def put_packet(command: PutPacket) -> SqlSteps:
    yield Sql(
        "INSERT INTO samekey_intake_packets (environment, name, content_type, content, created_at)"
        " VALUES (?, ?, ?, ?, ?) ON CONFLICT (environment, name) DO UPDATE"
        " SET content_type = excluded.content_type, content = excluded.content",
        (command.environment, command.name, command.content_type, command.content, time.time()),
    )


def read_packet(command: ReadPacket) -> SqlSteps:
    rows = yield Sql(
        "SELECT content_type, content FROM samekey_intake_packets WHERE environment = ? AND name = ?",
        (command.environment, command.name),
    )
    return (rows[0][0], bytes(rows[0][1])) if rows else None


STEPS: dict[type, Any] = {
    AddEnvironment: add_environment,
    Environments: environments,
    AddKey: add_key,
    Keys: keys,
    RevokeKey: revoke_key,
    WhoseKey: whose_key,
    OpenBatch: open_batch,
    ReadBatch: read_batch,
    NoteItem: note_item,
    SealBatch: seal_batch,
    PutPacket: put_packet,
    ReadPacket: read_packet,
}
