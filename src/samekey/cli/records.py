"""samekey ls, show, explain: they read records and change nothing."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import click

from samekey.cli import _out as out
from samekey.cli._asking import common, find, one_record, opened
from samekey.cli._filters import digest_of, filters, search_of
from samekey.cli._keys import with_plain_notes
from samekey.cli._record import as_lines, as_object, print_list
from samekey.cli.exits import Exit
from samekey.core.key import make_key
from samekey.core.ports import LIST_MAX, waits
from samekey.ops import Page
from samekey.ops.story import explain as explained

LIMIT = 100  # records of one page: as many as a person reads
_DIGEST_BYTES = len(make_key("any", "any").digest)


def _cursor(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[float, bytes] | None:
    """Where a page ended: the creation time and the digest of its last record."""
    if value is None:
        return None
    at, _, digest = value.partition("/")
    try:
        cursor = float(at), bytes.fromhex(digest)
    except ValueError:
        cursor = math.nan, b""
    # Otherwise the page would be empty and look clean.
    if not math.isfinite(cursor[0]) or len(cursor[1]) != _DIGEST_BYTES:
        raise click.BadParameter(f"{value!r} is no cursor: copy it from the end of the page before.")
    return cursor


@click.command()
@click.argument("start", required=False, metavar="[DIGEST]")
@filters
@click.option("--limit", type=click.IntRange(1, LIST_MAX), default=LIMIT, help="Records at most.")
@click.option("--before", callback=_cursor, metavar="CURSOR", help="Continue after an earlier page.")
@common
def ls(store: str | None, start: str | None, as_json: bool, **given: Any) -> Exit:
    """List records, newest first; DIGEST is the beginning of a key's digest, as log lines and alerts have it.

    Exits with 1 if a listed record needs a person: in doubt, or held past its lease. On a pipe the columns are
    separated by tabs; --json prints one object per line. If there are more records, stderr shows how to continue.
    A record that is damaged, or of a newer version, is listed as "unreadable" in its place (not in --json) and named
    on stderr, and the exit code is 4. It is also 4 if a store could not look at every record.

    Indexed are digest, state, time of creation, --provider-key, --request-id, and the notes party and provider_ref.
    With --operation, --tenant, other notes, --attribute or --error alone the records of a span of time are read (the
    last day, unless you give one), and stderr names that span.

    \b
    Example:
      samekey ls --waiting --oldest-first --operation charge
      samekey ls --note party=cus_17 --since 2026-05-03 --until 2026-05-04
      samekey ls 3f9c01ab
    """
    if start is not None:
        if given["digest"]:
            raise click.UsageError("give the digest as an argument or with --digest, not both.")
        given["digest"] = digest_of(start)
    filtered = search_of(**given)
    with opened(store) as ops:
        page = ops.search(filtered.search)
    filtered.report()
    if as_json:
        for record in page.records:
            out.data(as_object(record))
    elif page.entries:
        print_list(page.entries)
    else:
        out.note("no records")
    if page.before is not None:
        at, digest = page.before
        out.note(f"there are more records: --before {at!r}/{digest.hex()}")
    return _complete(page) or (Exit.FOUND if any(waits(record) for record in page.records) else Exit.FINE)


def _complete(page: Page) -> Exit | None:
    """Name what is missing from a page."""
    for unreadable in page.unreadable:
        out.note(f"incomplete: {unreadable}")
    if page.cut:
        out.note("incomplete: the store did not look at every record; narrow it down with --since and --until")
    if page.sealed:
        out.note(f"incomplete: the notes of {page.sealed} records are encrypted and could not be compared")
    return Exit.INCOMPLETE if page.unreadable or page.cut or page.sealed else None


@click.command()
@click.option("--reveal", is_flag=True, help="Show the stored results too.")
@one_record
def show(store: str | None, names: tuple[str, ...], tenant: str | None, reveal: bool, as_json: bool) -> Exit:
    """Show everything a record holds.

    A payload is never stored; a result is masked unless you --reveal it.

    \b
    Example:
      samekey show charge order-17 --tenant acme
    """
    with opened(store) as ops:
        record = find(ops, names, tenant)
    if as_json:
        out.data(as_object(record, reveal=reveal))
        return Exit.FINE
    lines = list(as_lines(record, reveal=reveal))
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        out.line(f"{name:<{width}}  {text}")
    return Exit.FINE


@click.command()
@one_record
@click.pass_context
def explain(ctx: click.Context, store: str | None, names: tuple[str, ...], tenant: str | None, as_json: bool) -> Exit:
    """Print the story of a key.

    Which attempt claimed it and under which boundary, what happened since, the evidence of late attempts, who must
    act, whose records are right in a conflict, and what to do next.

    \b
    Example:
      samekey explain charge order-17
    """
    given = ctx.get_parameter_source("store") is click.core.ParameterSource.COMMANDLINE
    with opened(store) as ops:
        record = find(ops, names, tenant)
        # The name of the store has no password in it. An address from the environment need not be printed.
        story = explained(with_plain_notes(record), store=ops.store.name if given else "")
    if as_json:
        key = {"operation": record.key.operation, "tenant": record.key.tenant, "key": record.key.text}
        shown = {name: value for name, value in asdict(story).items() if name != "title"}
        out.data({**key, "state": record.state.value, **shown, "turn": story.turn._asdict()})
        return Exit.FINE
    for number, text in enumerate(story.lines()):
        out.line(text, style="bold" if number == 0 or (text and not text.startswith(" ") and number > 2) else "")
    return Exit.FINE
