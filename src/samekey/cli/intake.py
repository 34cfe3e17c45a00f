"""`samekey intake`: the HTTP service, the drainer, environments, API keys, and what an operator looks at."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import signal
import sys
import threading
import time
from importlib import import_module
from typing import Any

import click

from samekey.cli import _out as out
from samekey.cli.exits import Exit
from samekey.core.errors import Misconfigured

DB = "sqlite:///intake.db"
ENVIRONMENT = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")  # it is a part of its API keys

_db = click.option("--db", default=DB, envvar="SAMEKEY_INTAKE_DB", help="sqlite:///file or postgresql://...")
_redis = click.option("--redis", default=None, envvar="SAMEKEY_INTAKE_REDIS", help="redis://...")
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")


@click.group()
def intake() -> None:
    """A front door that absorbs bursts of triggers: one key, one run id.

    \b
    Example:
      samekey intake serve --port 3030
      samekey intake serve --db postgresql://app@db/runs --redis redis://fast --port 3030
      samekey intake drain --db postgresql://app@db/runs --redis redis://fast --app worker:intake
    """


def _opened(db: str, redis: str | None, **more: Any) -> Any:
    from samekey.intake import Intake

    return Intake(db, redis, **more)


def _reading(db: str, redis: str | None) -> Any:
    """For commands that accept no run: a Redis that may forget is read and drained all the same."""
    from samekey.intake import Settings

    return _opened(db, redis, settings=Settings(volatile_redis="warn"))


@intake.command()
@_db
def migrate(db: str) -> None:
    """Make the tables of the intake."""
    with _opened(db, None) as opened:
        opened._database.migrate()
    out.note("the intake's tables are there")


@intake.command()
@_db
@_redis
@click.option("--host", default="127.0.0.1")
@click.option("--port", default=3030, type=click.IntRange(0, 65535))
@click.option("--drain/--no-drain", default=None, help="Drain in this process too: the default with SQLite.")
@click.option("--gate", default="on", type=click.Choice(["on", "off", "shadow", "divert"]))
@click.option(
    "--volatile-redis",
    default="refuse",
    type=click.Choice(["refuse", "warn"]),
    help="What to do where Redis may evict runs, or has no append-only file.",
)
def serve(db: str, redis: str | None, host: str, port: int, drain: bool | None, gate: Any, volatile_redis: Any) -> None:
    """Serve the trigger API over HTTP."""
    for name in ("starlette", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise click.UsageError("samekey intake serve needs: pip install 'samekey[intake]'")
    import uvicorn

    from samekey.intake import AsyncIntake, Settings
    from samekey.intake.app import App
    from samekey.intake.draining import Drain

    settings = Settings(gate=gate, volatile_redis=volatile_redis)
    with _opened(db, redis, settings=settings) as opened:
        opened.check_redis()
        _first_key(opened)
        stop = threading.Event()
        drains = opened.embedded if drain is None else drain
        thread = threading.Thread(target=Drain(opened).run, args=(stop,), name="samekey-intake-drain", daemon=True)
        if drains:
            thread.start()
        app = App(AsyncIntake(db, redis, settings=settings))
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        out.note(f"samekey intake on http://{host}:{port}{', draining' if drains else ''}")
        uvicorn.run(app, host=host, port=port, log_level="warning", access_log=False)
        stop.set()
        if drains:
            thread.join(10)


def _first_key(opened: Any) -> None:
    """On the first start: the environment `dev`, and its API key, printed once."""
    from samekey.intake import admin

    if opened.carry_out(admin.Environments()):
        return
    if opened.carry_out(admin.AddEnvironment("dev")):
        _print_key(opened, "dev")


def _print_key(opened: Any, environment: str) -> None:
    from samekey.intake import admin

    key, key_id = admin.new_api_key(environment)
    opened.carry_out(admin.AddKey(key_id, environment, admin.digest_of(key)))
    out.note(f"API key {key_id} of {environment}, shown once:")
    out.line(key)
    sys.stdout.flush()


@intake.command()
@_db
@_redis
@click.option("--app", default=None, help="module:intake, your Intake with its sink.")
def drain(db: str, redis: str | None, app: str | None) -> None:
    """Move buffered runs to the database until it is stopped (SIGTERM, Ctrl-C)."""
    from samekey.intake.draining import Drain

    opened = _load(app) if app else _reading(db, redis)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    draining = Drain(opened)
    # A sink that hangs must not keep the process: its entries come back when their leases end.
    thread = threading.Thread(target=draining.run, args=(stop,), name="samekey-intake-drain", daemon=True)
    thread.start()
    out.note("draining")
    while not stop.wait(0.2):
        pass
    thread.join(10)
    out.note(f"stopped; {draining.total.written} runs written")
    if thread.is_alive():
        sys.stderr.flush()
        os._exit(Exit.INCOMPLETE)


def _load(app: str) -> Any:
    from samekey.intake import Intake

    module, _, name = app.partition(":")
    if not (module and name):
        raise click.UsageError(f"--app takes module:intake, not {app!r}.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(import_module(module), name, None)
    except Exception as error:  # the user's own code runs here: show what it raises
        raised = f"importing {module} raised {type(error).__name__}: {error}"
        raise Misconfigured(raised, hint="--debug shows where") from error
    if not isinstance(found, Intake):
        raise Misconfigured(f"{app} is {'missing' if found is None else type(found).__name__}, not an Intake")
    return found


@intake.group()
def env() -> None:
    """Environments: each has its own keys, gate and buffer."""


@env.command("add")
@click.argument("name")
@_db
def env_add(name: str, db: str) -> None:
    """Make an environment, and print its first API key once."""
    from samekey.intake import admin

    if not ENVIRONMENT.fullmatch(name):
        raise click.UsageError("an environment's name has lower case letters, digits and hyphens.")
    with _opened(db, None) as opened:
        if not opened.carry_out(admin.AddEnvironment(name)):
            raise click.UsageError(f"there is an environment {name} already.")
        _print_key(opened, name)


@env.command("ls")
@_db
@_json
def env_ls(db: str, as_json: bool) -> None:
    """List the environments."""
    from samekey.intake import admin

    with _opened(db, None) as opened:
        for name, created in opened.carry_out(admin.Environments()):
            out.data({"name": name, "created_at": created}) if as_json else out.line(name)


@intake.group()
def keys() -> None:
    """API keys: only their digests are stored."""


@keys.command("add")
@click.argument("environment")
@_db
def keys_add(environment: str, db: str) -> None:
    """Make an API key of an environment, and print it once."""
    from samekey.intake import admin

    with _opened(db, None) as opened:
        if environment not in {name for name, _ in opened.carry_out(admin.Environments())}:
            raise click.UsageError(f"there is no environment {environment}: samekey intake env add {environment}")
        _print_key(opened, environment)


@keys.command("ls")
@_db
@_json
def keys_ls(db: str, as_json: bool) -> None:
    """List the API keys by their ids."""
    from samekey.intake import admin

    with _opened(db, None) as opened:
        for key_id, environment, created, revoked in opened.carry_out(admin.Keys()):
            if as_json:
                out.data({"id": key_id, "environment": environment, "created_at": created, "revoked_at": revoked})
            else:
                out.line(f"{key_id}  {environment}{'  revoked' if revoked else ''}")


@keys.command("revoke")
@click.argument("key_id")
@_db
@click.pass_context
def keys_revoke(ctx: click.Context, key_id: str, db: str) -> None:
    """Refuse an API key from now on; a running service does so within five seconds."""
    from samekey.intake import admin

    with _opened(db, None) as opened:
        if not opened.carry_out(admin.RevokeKey(key_id)):
            out.note(f"there is no API key {key_id} that is not revoked")
            ctx.exit(Exit.NO_SUCH_KEY)


@intake.command()
@_db
@_redis
@_json
def status(db: str, redis: str | None, as_json: bool) -> None:
    """How full the buffer of each environment is."""
    from samekey.intake import admin
    from samekey.intake import commands as c

    with _reading(db, redis) as opened:
        for name, _ in opened.carry_out(admin.Environments()):
            load = opened.carry_out(c.Depth(name))
            age = 0.0 if load.oldest_at is None else max(0.0, time.time() - load.oldest_at)
            if as_json:
                out.data({"environment": name, **load._asdict(), "oldest_age_seconds": age})
            else:
                gate = "diverting" if load.diverting else "open"
                out.line(f"{name}: gate {gate}, {load.depth} waiting, oldest {age:.1f} s, {load.dead} dead letters")


@intake.group("dead-letters")
def dead_letters() -> None:
    """Entries that can never be written as they are."""


@dead_letters.command("ls")
@click.argument("environment")
@_db
@_redis
@_json
@click.pass_context
def dead_ls(ctx: click.Context, environment: str, db: str, redis: str | None, as_json: bool) -> None:
    """List them with their reasons; exit code 1 if there are any."""
    from samekey.intake import commands as c

    with _reading(db, redis) as opened:
        found = opened.carry_out(c.DeadLetters(environment))
    for run_id, reason, blob in found:
        if as_json:
            out.data({"id": run_id, "reason": reason, "bytes": len(blob)})
        else:
            out.line(f"{run_id}  {reason}  {len(blob)} bytes")
    ctx.exit(Exit.FOUND if found else Exit.FINE)


@dead_letters.command("show")
@click.argument("environment")
@click.argument("run_id")
@_db
@_redis
@click.pass_context
def dead_show(ctx: click.Context, environment: str, run_id: str, db: str, redis: str | None) -> None:
    """Print the stored entry, its payload included."""
    from samekey.intake import commands as c

    with _reading(db, redis) as opened:
        for found, _, blob in opened.carry_out(c.DeadLetters(environment, 10_000)):
            if found == run_id:
                out.line(blob.decode("utf-8", "replace"))
                return
    out.note(f"there is no dead letter {run_id}")
    ctx.exit(Exit.NO_SUCH_KEY)


@dead_letters.command("retry")
@click.argument("environment")
@click.argument("run_id")
@_db
@_redis
@click.pass_context
def dead_retry(ctx: click.Context, environment: str, run_id: str, db: str, redis: str | None) -> None:
    """Put one back into the buffer: the drainer tries it again."""
    from samekey.intake import commands as c

    with _reading(db, redis) as opened:
        if not opened.carry_out(c.Revive(environment, run_id)):
            out.note(f"there is no dead letter {run_id}")
            ctx.exit(Exit.NO_SUCH_KEY)
