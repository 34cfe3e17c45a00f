"""The filters of `ls` and `resolve`: their options, and the search that they make."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import click

from samekey.cli import _out as out
from samekey.cli._keys import sealer
from samekey.cli._times import length, moment
from samekey.core.errors import Misconfigured
from samekey.core.key import make_key
from samekey.core.ports import Query
from samekey.core.search import NOTED, PROVIDER_KEY, REQUEST_ID, term
from samekey.core.states import State
from samekey.ops import Search
from samekey.ops.story import when

F = TypeVar("F", bound=Callable[..., Any])

STATES = click.Choice([state.value for state in State])
SPAN_SECONDS = 24 * 3600.0  # read where no index helps and no span is given
_PAIR = re.compile(r"([^=]+)=(.*)", re.DOTALL)


def _pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for value in values:
        found = _PAIR.fullmatch(value)
        if found is None:
            raise click.BadParameter(f"{value!r} is not name=value.")
        pairs.append((found[1], found[2]))
    return tuple(pairs)


def _digest(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    return "" if value is None else digest_of(value)


def digest_of(value: str) -> str:
    """The beginning of a digest, in hexadecimal; four digits at least, so that it is no mistake."""
    if not re.fullmatch("[0-9a-fA-F]{4,64}", value):
        raise click.BadParameter(f"{value!r} is no digest: give at least its first four hexadecimal digits.")
    return value.lower()


OPTIONS = (
    click.option("--waiting", is_flag=True, help="Only what waits for a decision: doubts, and holds past their lease."),
    click.option("--parked", is_flag=True, help="Only doubts that workers have parked, with the reason."),
    click.option("--verdict", metavar="V", help="Only doubts whose last look found this: absent, stillunknown, ..."),
    click.option("--state", "states", type=STATES, multiple=True, help="Only these; may be given several times."),
    click.option("--operation", metavar="NAME", help="Only this operation."),
    click.option("--tenant", metavar="T", help="Only this tenant."),
    click.option("--digest", callback=_digest, metavar="HEX", help="Only keys whose digest begins so, as in a log."),
    click.option("--provider-key", metavar="KEY", help="Only the record that sent this key to a provider."),
    click.option("--request-id", metavar="ID", help="Only records of this request."),
    click.option("--note", "notes", callback=_pairs, multiple=True, metavar="NAME=VALUE", help="With this note."),
    click.option("--attribute", "attributes", callback=_pairs, multiple=True, metavar="NAME=VALUE", help="With this."),
    click.option("--error", metavar="TYPE", help="Only with this type of error, such as TimeoutError."),
    click.option("--since", type=moment, metavar="TIME", help="Created since then: 24h, 2026-05-03, ..."),
    click.option("--until", type=moment, metavar="TIME", help="Created before then."),
    click.option("--older-than", type=length, metavar="LENGTH", help="Created longer ago than this: 15m, 2h, 7d."),
    click.option("--oldest-first", is_flag=True, help="Oldest first."),
    click.option("--app", metavar="MODULE:GUARD", help="Your guard, if it has a secret: notes are found by it."),
)
NAMES = ("states", "operation", "tenant", "digest", "provider_key", "request_id", "notes", "attributes", "error")
FILTERS = (*NAMES, "waiting", "parked", "verdict", "since", "until", "older_than", "oldest_first", "app")


def filters(command: F) -> F:
    """Add the options above."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def given_filters(given: dict[str, Any]) -> list[str]:
    """The names of the filters that were given, without the tenant, which also names one record."""
    picks = (*NAMES, "waiting", "parked", "verdict", "since", "until", "older_than")
    return [name for name in picks if given[name] not in (None, (), False, "") and name != "tenant"]


@dataclass(frozen=True, slots=True)
class Filtered:
    """The search, and what the person must know about it."""

    search: Search
    span: str = ""  # of a search without an index: which span of time was read

    def report(self) -> None:
        if self.span:
            out.note(self.span)


def search_of(
    *,
    states: tuple[str, ...],
    waiting: bool,
    parked: bool,
    verdict: str | None,
    operation: str | None,
    tenant: str | None,
    digest: str,
    provider_key: str | None,
    request_id: str | None,
    notes: tuple[tuple[str, str], ...],
    attributes: tuple[tuple[str, str], ...],
    error: str | None,
    since: float | None,
    until: float | None,
    older_than: float | None,
    oldest_first: bool,
    app: str | None,
    limit: int = 100,
    before: tuple[float, bytes] | None = None,
) -> Filtered:
    """The search that these options mean; where no index helps, it reads the last day unless a span is given."""
    # No record can have an invalid name: usage error.
    make_key("any" if operation is None else operation, "any", tenant)
    for option, text in (("--error", error), ("--provider-key", provider_key), ("--request-id", request_id)):
        if text == "":
            raise click.UsageError(f"{option} is empty: no record can match it.")
    terms, others = _terms(provider_key, request_id, notes, app)
    if older_than is not None:
        until = min(time.time() - older_than, math.inf if until is None else until)
    even = digest[: len(digest) // 2 * 2]
    query = Query(
        states=tuple(map(State, states)),
        waiting=waiting or parked or bool(verdict),  # by the index of what waits
        operation=operation,
        tenant=tenant,
        digest=bytes.fromhex(even),
        term=terms[0] if terms else None,
        attributes=attributes,
        error=error,
        since=since,
        until=until,
        oldest_first=oldest_first,
        limit=limit,
        before=before,
    )
    keys = sealer() if others else None
    search = Search(query, terms[1:], others, digest if even != digest else "", keys, parked, (verdict or "").lower())
    if not search.scans:
        return Filtered(search)
    given = {
        "--operation": operation,
        "--tenant": tenant,
        "--attribute": attributes,
        "--error": error,
        "--note": others,
    }
    unindexed = [name for name, on in given.items() if on]
    why = f"no index for {' and '.join(unindexed)}: every record is read that was created"
    if since is None:
        since = (time.time() if until is None else until) - SPAN_SECONDS
        search = replace(search, query=replace(query, since=since))
    end = "" if until is None else f" and before {when(until)}"
    return Filtered(search, f"{why} since {when(since)}{end} (--since, --until)")


def _terms(
    provider_key: str | None, request_id: str | None, notes: tuple[tuple[str, str], ...], app: str | None
) -> tuple[tuple[bytes, ...], tuple[tuple[str, str], ...]]:
    """What an index finds, and the notes that no index has."""
    secret = None
    if app is not None:
        from samekey.cli._app import load

        secret = next(iter(load(app)._secrets), None)
    found = [term(name, text) for name, text in ((PROVIDER_KEY, provider_key), (REQUEST_ID, request_id)) if text]
    for name, value in notes:
        if not value:
            raise Misconfigured(f"--note {name}= has no value")
        if name in NOTED:
            found.append(term(f"note.{name}", value, secret))
    return tuple(found), tuple(one for one in notes if one[0] not in NOTED)
