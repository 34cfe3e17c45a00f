"""What the commands share: their options, opening the store, and finding the record that the arguments name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from samekey.cli._filters import SPAN_SECONDS
from samekey.cli.exits import NoStore
from samekey.core.commands import Read
from samekey.core.errors import Misconfigured, StoreError
from samekey.core.key import make_key
from samekey.core.record import Record
from samekey.guard.store_urls import check_address, open_store
from samekey.ops import NoSuchKey, Ops

F = TypeVar("F", bound=Callable[..., Any])

ENVIRONMENT = "SAMEKEY_STORE"
LATELY_SECONDS = 3600.0  # searched for a hint: no index has the text of a key
OPERATIONS_MAX = 50  # in which a key is looked for, to suggest another operation
CANDIDATES_MAX = 10  # records shown when a key text alone is ambiguous


def common(command: F) -> F:
    """Add --store, --json and --debug, which every command has."""
    store = click.option("--store", metavar="URL", envvar=ENVIRONMENT, help=f"The store's address, or ${ENVIRONMENT}.")
    as_json = click.option("--json", "as_json", is_flag=True, help="JSON on stdout, for programs.")
    debug = click.option(
        "--debug", is_flag=True, expose_value=False, callback=_debug, help="Show an error's traceback."
    )
    return store(as_json(debug(command)))


def one_record(command: F) -> F:
    """Add [OPERATION] KEY and --tenant, which every command about one record has."""
    names = click.argument("names", nargs=-1, required=True, metavar="[OPERATION] KEY")
    tenant = click.option("--tenant", metavar="T", help="The tenant, where the operation has tenants.")
    return names(tenant(common(command)))


def _debug(ctx: click.Context, param: click.Parameter, asked: bool) -> None:
    if asked and ctx.obj is not None:
        ctx.obj.debug = True


@contextmanager
def opened(address: str | None) -> Iterator[Ops]:
    """The store at this address, for as long as the command runs."""
    store = open_there(address)
    try:
        yield Ops(Asked(store))
    finally:
        store.close()


class Asked:
    """A store whose server errors (no tables, no permission) are NoStore and not a usage error."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def ask(*args: Any, **kwargs: Any) -> Any:
            try:
                return found(*args, **kwargs)
            except Misconfigured as error:
                raise NoStore(error.message) from error

        return ask


def open_there(address: str | None) -> Any:
    if not address:
        raise click.UsageError(f"which store? Give --store URL or set {ENVIRONMENT}.")
    check_address(address)
    scheme = address.partition(":")[0]
    if scheme == "memory":
        raise Misconfigured("memory:// exists only in the process that made it: no other process can read it")
    if scheme == "sqlite":
        _check_file(address)
    try:
        return _open_file(address) if scheme == "sqlite" else open_store(address, asynchronous=False)
    except (Misconfigured, StoreError, OSError) as error:
        raise NoStore(f"the store cannot be opened: {error}") from error


def _open_file(address: str) -> Any:
    """Open the file without making tables: a file without samekey tables is the wrong file."""
    from samekey.stores.sqlite import SqliteStore

    return SqliteStore.from_url(address, create=False)


def _check_file(address: str) -> None:
    """Refuse a missing file: SQLite would create it, and a typing error would look like an empty, clean store."""
    from samekey.drivers.sqlite import parse_url

    path = parse_url(address).path
    try:
        found = path.exists()
    except OSError as error:
        raise NoStore(f"the store cannot be opened: {error}") from error
    if not found:
        raise NoStore(f"there is no file {path.absolute()}", hint="a guard creates it with its first claim")


def find(ops: Ops, names: tuple[str, ...], tenant: str | None) -> Record:
    """Return the record that [OPERATION] KEY names."""
    match names:
        case (operation, text):
            key = make_key(operation, text, tenant)
            record: Record | None = ops.store.carry_out(Read(key))
            if record is None:
                raise NoSuchKey(f"there is no record of {key}", key=text, hint=_hint(_elsewhere(ops, text, tenant)))
            return record
        case (text,):
            make_key("any", text, tenant)  # a text that cannot be a key is a usage error, not an absent key
            page = ops.find(text, tenant=tenant)
            records = page.records
            if page.unreadable:
                raise page.unreadable[0]  # it may be the record that the user means
            if not records:
                raise NoSuchKey(f"no operation has a record of the key {text!r}", key=text)
            if len(records) > 1:
                several = f"{len(records)} records have the key {text!r}: give the operation too"
                raise Misconfigured(several, hint=_hint(records))
            return records[0]
        case _:
            raise click.UsageError("give [OPERATION] KEY; quote what holds spaces.")


def _elsewhere(ops: Ops, text: str, tenant: str | None) -> list[Record]:
    """Records of this key elsewhere, for a hint: in other operations (one read each), else of any tenant lately."""
    counts = ops.store.counts(time.time() - SPAN_SECONDS, time.time())
    names = sorted({one.operation for one in counts})[:OPERATIONS_MAX]
    read = [ops.store.carry_out(Read(make_key(name, text, tenant))) for name in names]
    return [one for one in read if one is not None] or ops.find(text, since=time.time() - LATELY_SECONDS).records


def _hint(records: list[Record]) -> str:
    if not records:
        return ""
    more = ", ..." if len(records) > CANDIDATES_MAX else ""
    return "there is: " + ", ".join(f"{one.key} [{one.state}]" for one in records[:CANDIDATES_MAX]) + more
