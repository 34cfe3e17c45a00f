"""samekey db watch: report duplicate rows as they are stored."""

from __future__ import annotations

import gc
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click

from samekey.cli import _out as out
from samekey.cli.exits import Exit
from samekey.detect.rule_file import load
from samekey.detect.watching.changes import Gap, StateDamaged
from samekey.detect.watching.journal import Journal
from samekey.detect.watching.metrics import serve
from samekey.detect.watching.outputs import Outputs, Printed, Webhook
from samekey.detect.watching.running import How, Wanted, installed, made_outputs, removed, watch_until
from samekey.detect.watching.start import watched_database, watched_events
from samekey.detect.watching.watcher import Watcher

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)


class Size(click.ParamType[int]):
    """Bytes such as 500MB or 2GB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d+)\s*(|kB|MB|GB|TB)", str(value))
        if not found:
            self.fail(f"{value!r} is no size: write 500MB or 2GB.", param, ctx)
        return int(found[1]) * {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}[found[2]]


@click.command()
@click.argument("dsn", required=False)
@click.option("--rule", "rules", type=FILE, required=True, metavar="FILE", help="The rule file.")
@click.option("--state", type=FOLDER, required=True, metavar="DIR", help="Checkpoints, window and alerts.")
@click.option(
    "--source", "kind", type=click.Choice([one.value for one in How]), default=None,
    help="How changes are read. Default: replication on PostgreSQL, audit-table elsewhere.",
)  # fmt: skip
@click.option("--audit-table", default="samekey_audit", metavar="TABLE", help="The table that the audit trigger fills.")
@click.option("--install-trigger", is_flag=True, help="Make the audit table and its triggers, and stop.")
@click.option("--from", "events", metavar="URL", help="Debezium change events: kafka://host:9092/topic or a file.")
@click.option("--slot", default="samekey_watch", help="Name of the replication slot and publication.")
@click.option("--max-lag", type=Size(), default="2GB", metavar="SIZE", help="Drop the slot when it retains more WAL.")
@click.option("--allow-unbounded-wal", is_flag=True, help="Start although the server keeps WAL without limit.")
@click.option("--accept-gap", is_flag=True, help="Start again after changes were lost; the gap stays in the state.")
@click.option("--catch-up", is_flag=True, help="Stop when everything that is stored now has been read.")
@click.option("--remove", is_flag=True, help="Remove everything of the watch from the server, and stop.")
@click.option("--webhook", multiple=True, metavar="URL", help="POST each alert there.")
@click.option("--into-table", metavar="TABLE", help="Store each alert in this table of the watched database.")
@click.option(
    "--emit", multiple=True, metavar="URL",
    help="Send alerts to kafka://host:9092/topic, nats://host/subject or redis://host?stream=name; repeatable.",
)  # fmt: skip
@click.option("--metrics", metavar="ADDRESS", help="Give out Prometheus metrics, such as :9187.")
@click.option("--json", "as_json", is_flag=True, help="Print each alert as a JSON line.")
def watch(
    dsn: str | None, rules: Path, state: Path, kind: str | None, audit_table: str, install_trigger: bool,
    events: str | None, slot: str, max_lag: int, allow_unbounded_wal: bool, accept_gap: bool, catch_up: bool,
    remove: bool, webhook: tuple[str, ...], into_table: str | None, emit: tuple[str, ...], metrics: str | None,
    as_json: bool,
) -> Exit:  # fmt: skip
    """Report duplicate rows as they are stored. It never changes or refuses a row.

    On PostgreSQL it makes a publication with the columns of the rules and a replication slot; `--remove`
    removes both. After a crash it continues where its last checkpoint is: no alert is missing, and none is false. It
    stops with exit code 4 when changes were lost, and never reports that as clean.

    \b
    Example:
      samekey db watch postgresql://watcher@db/shop --rule rules.toml --state /var/lib/samekey-watch
      samekey db watch --from kafka://kafka:9092/shop.public.orders --rule rules.toml --state watch-state --json

    \b
    Exit codes: 0 stopped, no duplicate; 1 stopped, duplicates; 2 usage; 3 cannot connect; 4 not everything was seen.
    """
    if dsn is None and events is None:
        raise click.UsageError("give the address of a database, or change events with --from.")
    how = How(kind) if kind else None
    wanted = Wanted(dsn, how, events, slot, max_lag, allow_unbounded_wal, catch_up, audit_table)
    journal = server = outputs = None
    try:
        journal = Journal(state)
        declared = load(rules)
        watched = watched_database(dsn, declared, journal.secret) if dsn else watched_events(declared, journal.secret)
        if remove or install_trigger:
            (removed if remove else installed)(wanted, watched)
            return Exit.FINE
        others = [*map(Webhook, webhook), *made_outputs(watched.engine, dsn, into_table, emit)]
        outputs = Outputs(journal, [Printed(out.data if as_json else _show), *others], out.note)
        watcher = Watcher(journal, outputs, watched, accept_gap=accept_gap)
        server = serve(metrics, watcher.exposition) if metrics else None
        if server is not None:
            out.note(f"metrics: http://{server.server_address[0]!s}:{server.server_port}/metrics")
        gc.set_threshold(100_000, 20, 100)  # the window has no cycles to look for, and millions of entries
        with _signals() as stopped:
            complete = watch_until(watcher, wanted, watched, stopped=stopped, note=out.note)
        return _ended(watcher, outputs, complete)
    except (Gap, StateDamaged) as error:
        out.note(f"samekey: {error.message}")
        if isinstance(error, Gap):
            out.note("  --accept-gap starts again from now on; `samekey db scan` finds what was stored meanwhile")
        return Exit.INCOMPLETE
    finally:
        for one in (server, outputs, journal):
            if isinstance(one, ThreadingHTTPServer):
                one.shutdown()
                one.server_close()
            elif one is not None:
                one.close()


@contextmanager
def _signals() -> Iterator[Callable[[], bool]]:
    """Whether the user asked the watch to stop: Ctrl-C or SIGTERM. A second one ends it at once."""
    asked: list[int] = []

    def stop(number: int, _: Any) -> None:
        asked.append(number)
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ended(watcher: Watcher, outputs: Outputs, complete: bool) -> Exit:
    out.note(f"{watcher.rows} rows, {watcher.alerts} duplicates")
    if outputs.undelivered:
        out.note(f"{outputs.undelivered} bytes of alerts are not delivered; the next start offers them again")
    if not complete or outputs.undelivered:
        return Exit.INCOMPLETE
    return Exit.FOUND if watcher.alerts else Exit.FINE


def _show(alert: dict[str, Any]) -> None:
    """One line for people, and the finding that would have prevented it."""
    source = " ".join(f"{name}={value}" for name, value in alert["source"].items())
    prevented = alert["prevented_by"]
    out.line(
        f"{alert['second']['at']}  {alert['severity']}  {alert['table']}  row {alert['second']['row']} repeats row "
        f"{alert['first']['row']} after {alert['gap_seconds']:.1f} s  {source}".rstrip()
    )
    if prevented:
        out.line(f"  {prevented['finding']} {prevented['object']}: {prevented['why']}")
