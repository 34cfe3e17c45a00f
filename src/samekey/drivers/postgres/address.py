"""PostgreSQL addresses: what the user writes, checked and split into libpq's part and ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args
from urllib.parse import quote, urlencode

import psycopg

from samekey.core.errors import Misconfigured
from samekey.drivers.postgres.errors import first_line
from samekey.drivers.urls import split, unsplit

Durability = Literal["durable", "claim-durable", "fast"]


@dataclass(frozen=True, slots=True)
class Address:
    """A checked address, without samekey's own options in it."""

    url: str  # for libpq
    name: str  # for people: no password
    durability: Durability = "durable"
    pgbouncer: bool = False  # in transaction mode: no statement may depend on the session


def parse_url(url: str) -> Address:
    """`postgresql://user@host/database?durability=claim-durable`; options that are not samekey's go to libpq."""
    parts, options = split(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise Misconfigured("a PostgreSQL address is written postgresql://user@host/database")
    ours = {name: value for name, value in options if name in ("durability", "pgbouncer")}
    theirs = [(name, value) for name, value in options if name not in ours]
    durability: Any = ours.get("durability", "durable")
    if durability not in get_args(Durability):
        raise Misconfigured(f"durability is 'durable', 'claim-durable' or 'fast', not {durability!r}")
    if ours.get("pgbouncer", "0") not in ("0", "1"):
        raise Misconfigured(f"pgbouncer is 1 (transaction mode) or 0, not {ours['pgbouncer']!r}")
    plain = unsplit(parts, parts.netloc, urlencode(theirs, quote_via=quote))
    try:
        known = psycopg.conninfo.conninfo_to_dict(plain)
    except psycopg.ProgrammingError as error:
        raise Misconfigured(f"this PostgreSQL address cannot be read: {first_line(error)}") from None
    if known.get("target_session_attrs", "read-write") not in ("read-write", "primary"):
        raise Misconfigured("claims go to the primary only: leave target_session_attrs out of the store's address")
    if ours.get("pgbouncer") == "1" and "search_path" in str(known.get("options", "")):
        # PgBouncer refuses such a session, or ignores the setting: then claims would go to other tables.
        raise Misconfigured(
            f"PgBouncer does not pass options={known['options']} on to the server: remove it from the store's address "
            "and set the path for the role instead (ALTER ROLE app SET search_path = ...)"
        )
    user, at, host = parts.netloc.rpartition("@")
    shown = [(name, value) for name, value in options if name not in ("password", "sslpassword")]
    name = unsplit(parts, user.partition(":")[0] + at + host, urlencode(shown, safe="/", quote_via=quote))
    return Address(plain, name, durability, ours.get("pgbouncer") == "1")
