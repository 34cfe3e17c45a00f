"""What an operator may do: look, read the story of a key, and decide how a doubt ended.

Looking changes nothing. A decision is written only if the record is still as the operator saw it, and always with a
name and a reason; the store keeps it in its audit log. A decision never overrules a holder that is alive, unless the
operator declares that its lease is over.
"""

from __future__ import annotations

from samekey.core.books import Finding, make_finding
from samekey.ops._refusals import CannotResolve, MovedOn, NoSuchKey
from samekey.ops.counting import STATS_MAX, Attempts, Stats
from samekey.ops.deciding import NOT_GIVEN
from samekey.ops.doubles import Double, Doubles
from samekey.ops.findings import AsyncFindings, Findings, NoSuchFinding
from samekey.ops.listing import Page, Search
from samekey.ops.operator import AsyncOps, Ops
from samekey.ops.story import Resolution

__all__ = [
    "AsyncFindings",
    "AsyncOps",
    "Attempts",
    "CannotResolve",
    "Double",
    "Doubles",
    "Finding",
    "Findings",
    "MovedOn",
    "NOT_GIVEN",
    "NoSuchFinding",
    "NoSuchKey",
    "Ops",
    "Page",
    "Resolution",
    "STATS_MAX",
    "Search",
    "Stats",
    "make_finding",
]
