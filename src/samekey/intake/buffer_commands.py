"""Commands of the drainer to the buffer alone: many acknowledgements at once, and the filter of known keys."""

from __future__ import annotations

from typing import NamedTuple

from samekey.intake import commands as c


class AckMany(NamedTuple):
    """Many acknowledgements of one environment. Reply: one for each, as for Ack."""

    environment: str
    acks: tuple[c.Ack, ...]


class Load(NamedTuple):
    """Steps of loading the filter: "begin", "add" with digests, "done" and "renew". Reply: whether it worked.

    "ask" is for the time of the buffer, in milliseconds; "renew" is given it as `began`.
    """

    environment: str
    step: str
    digests: tuple[str, ...] = ()
    began: int = 0


class Fill(NamedTuple):
    """Copy a generation that the database has."""

    environment: str
    digest: str
    pinned: c.Pinned
