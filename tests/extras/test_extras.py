"""Each extra in a virtual environment of its own: what it is for works with nothing else installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from samekey.drivers.postgres.migrate import migrate
from samekey.testing.servers import NoServer, postgres

ROOT = Path(__file__).parents[2]
INSTALL_SECONDS = 300
NOT_FOR_USERS = {"test", "dev", "peers", "docs"}

ONE_CALL = """
from samekey import Guard
with Guard("memory://") as guard:
    answers = [guard.run("charge", lambda: "receipt", key="o-1", payload={}) for _ in range(2)]
assert [(one.result, one.replayed) for one in answers] == [("receipt", False), ("receipt", True)]
"""

# With its driver a store that is not there is down, in both colours; without it, it would be misconfigured.
NO_SERVER = """
import asyncio
from samekey import AsyncGuard, Guard, Policy, StoreUnavailable
policy = Policy(patience=0)
try:
    Guard({url!r}, policy=policy).run("charge", int, key="o-1", payload={{}})
except StoreUnavailable as error:
    print(error)
else:
    raise AssertionError("there is no server")
async def main():
    guard = AsyncGuard({url!r}, policy=policy)
    try:
        await guard.run("charge", lambda: asyncio.sleep(0), key="o-1", payload={{}})
    except StoreUnavailable as error:
        print(error)
    else:
        raise AssertionError("there is no server")
asyncio.run(main())
"""

CLI = """
import subprocess, sys
from samekey import Guard
with Guard("sqlite:///keys.db") as guard:
    guard.run("charge", lambda: "receipt", key="o-1", payload={})
listed = subprocess.run(
    [sys.executable, "-m", "samekey", "ls", "--store", "sqlite:///keys.db"], capture_output=True, text=True
)
assert "o-1" in listed.stdout, listed
"""

DJANGO = """
from django.conf import settings
settings.configure(SECRET_KEY="x", ROOT_URLCONF=__name__, USE_TZ=True)
import django
django.setup()
import samekey.http.django
urlpatterns = []
"""

HOOK = """
from samekey import Guard
from samekey.hooks.{module} import {hook}
with Guard("memory://", hooks=[{hook}()]) as guard:
    answers = [guard.run("charge", lambda: "receipt", key="o-1", payload={{}}) for _ in range(2)]
assert [(one.result, one.replayed) for one in answers] == [("receipt", False), ("receipt", True)]
"""

CRYPTO = """
from samekey import Guard
from samekey.guard.keyring import Keyring
guard = Guard("memory://", keys=Keyring(("2026-07", b"k" * 32)))
answers = [guard.run("charge", lambda: "receipt", key="o-1", payload={}) for _ in range(2)]
assert [(one.result, one.replayed) for one in answers] == [("receipt", False), ("receipt", True)]
assert b"receipt" not in guard.peek("charge", "o-1").result
"""

# One duplicate, found by DuckDB in a file of SQLite.
SCAN = """
import sqlite3
from samekey.detect.rule_file import Rule
from samekey.detect.scan import Wanted, scan
with sqlite3.connect("shop.db") as shop:
    shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, ref TEXT)")
    shop.execute("INSERT INTO orders (ref) VALUES ('a'), ('a')")
class Sink:
    found = []
    def pair(self, rule, pair): self.found.append((pair.earlier, pair.row))
    def place(self): return 0
    def cut(self, place): pass
scan(Wanted("sqlite:///shop.db", (Rule("orders", "orders", ("ref",)),), duckdb=True), Sink())
assert Sink.found == [((1,), (2,))]
"""

CONSOLE = """
import os, subprocess, sys, urllib.request
from samekey import Guard
with Guard("sqlite:///keys.db") as guard:
    guard.run("charge", lambda: "receipt", key="o-1", payload={})
command = [sys.executable, "-u", "-m", "samekey", "console", "--store", "sqlite:///keys.db", "--port", "0"]
without = {name: value for name, value in os.environ.items() if not name.startswith("SAMEKEY_CONSOLE")}
assert subprocess.run(command, env=without, capture_output=True).returncode == 2
served = subprocess.Popen(command, env={**without, "SAMEKEY_CONSOLE_TOKEN": "0123456789abcdef"}, stdout=subprocess.PIPE)
try:
    where = served.stdout.readline().split()[-1].decode()
    assert b"Sign in to the console" in urllib.request.urlopen(where, timeout=60).read()
finally:
    served.terminate()
    served.wait()
    served.stdout.close()
"""

PROGRAMS = {
    "cli": CLI,
    "crypto": CRYPTO,
    "mysql": NO_SERVER.format(url="mysql://app:secret@127.0.0.1:9/shop"),
    "postgres": NO_SERVER.format(url="postgresql://app@127.0.0.1:9/shop?connect_timeout=1"),
    "redis": NO_SERVER.format(url="redis://127.0.0.1:9/0"),
    "django": DJANGO + ONE_CALL,
    "fastapi": "import samekey.http.fastapi\n" + ONE_CALL,
    "flask": "import samekey.http.flask\n" + ONE_CALL,
    "litestar": "import samekey.http.litestar\n" + ONE_CALL,
    "starlette": "import samekey.http.asgi\n" + ONE_CALL,
    "aio-pika": "import samekey.messages.aio_pika\n" + ONE_CALL,
    "aiohttp": "import samekey.clients.aiohttp\n" + ONE_CALL,
    "httpx": "import samekey.clients.httpx\n" + ONE_CALL,
    "httpx2": "import samekey.clients.httpx2\n" + ONE_CALL,
    "requests": "import samekey.clients.requests\n" + ONE_CALL,
    "celery": "import samekey.messages.celery\n" + ONE_CALL,
    "nats": "import samekey.messages.nats\n" + ONE_CALL,
    "confluent-kafka": "import samekey.detect.watching.confluent_kafka\n" + ONE_CALL,
    "pika": "import samekey.messages.pika\n" + ONE_CALL,
    "scan": SCAN,
    "sqs": "import boto3, samekey.messages.aws_lambda, samekey.messages.sqs\n" + ONE_CALL,
    "reconcile": "from samekey.doubt.duckdb import Books\nBooks().db.close()\n" + ONE_CALL,
    "intake": """
import samekey.intake.app, samekey.cli.intake, uvicorn
from samekey.intake import Intake
with Intake("sqlite:///runs.db") as intake:
    answers = [intake.trigger("t", {}, key="k") for _ in range(2)]
assert answers[0].id == answers[1].id
""",
    "console": CONSOLE,
    "prometheus": HOOK.format(module="prometheus", hook="PrometheusHook"),
    "otel": HOOK.format(module="opentelemetry", hook="OpenTelemetryHook"),
}

# Each takes 3 CPU seconds, most of them pip's. `make test` tries one of each kind, `make proof` all.
OF_EACH_KIND = ("cli", "redis", "fastapi", "httpx")
TRIED = tuple(PROGRAMS) if os.environ.get("SAMEKEY_BUDGET") == "full" else OF_EACH_KIND

# The example of docs/atomic.md. `sqlalchemy.ext.asyncio` needs greenlet since SQLAlchemy 2.1: here it is not to be had.
SQLALCHEMY = """
import sys
sys.modules["greenlet"] = sys.modules["sqlalchemy.ext.asyncio"] = None
import sqlalchemy as sa
from sqlalchemy.orm import Session
from samekey import Atomic, Guard
url = sys.argv[1]
guard = Guard(url)

@guard.once(name="order", key="order_id", boundary=Atomic("session"))
def order(session, order_id):
    session.execute(sa.text("INSERT INTO orders VALUES (:id)"), {"id": order_id})
    return order_id

engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
with engine.begin() as connection:
    connection.execute(sa.text("CREATE TABLE orders (id text)"))
with Session(engine) as session:
    assert [order(session, "o-1"), order(session, "o-1")] == ["o-1", "o-1"]
with Session(engine) as session:
    assert session.execute(sa.text("SELECT count(*) FROM orders")).scalar() == 1
engine.dispose()
guard.close()
"""


def pip(*arguments: str) -> None:
    """Run pip; where the package index cannot be reached the test is skipped, or fails with --samekey-require=pypi."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        cwd=ROOT,
    )
    if done.returncode:
        if "Could not find a version" in done.stderr or "No matching distribution" in done.stderr:
            raise NoServer("the package index cannot be reached: pip found no distribution", "pypi")
        raise AssertionError(done.stderr[-2000:])


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """samekey itself, built once."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    return next(folder.glob("samekey-*.whl"))


@pytest.fixture
def python(tmp_path: Path) -> str:
    """The interpreter of an empty virtual environment."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    return str(tmp_path / "venv" / "bin" / "python")


def install(python: str, *what: str) -> None:
    constraints = ("--constraint", str(ROOT / "requirements-dev.lock"))
    pip("--python", python, "install", "--quiet", "--no-compile", "--only-binary", ":all:", *constraints, *what)


def run(python: str, program: str, folder: Path, *arguments: str) -> None:
    path = folder / "program.py"
    path.write_text(program)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SAMEKEY"))}
    done = subprocess.run(
        [python, "-W", "error::ImportWarning", str(path), *arguments],
        capture_output=True, text=True, timeout=60, cwd=folder, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_every_extra_for_users_has_a_program():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    assert set(PROGRAMS) == set(declared) - NOT_FOR_USERS


@pytest.mark.slow
@pytest.mark.parametrize("extra", TRIED)
def test_an_extra_is_enough_for_what_it_is_for(extra: str, wheel: Path, python: str, tmp_path: Path):
    install(python, f"{wheel}[{extra}]")

    run(python, PROGRAMS[extra], tmp_path)


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    with postgres() as server:
        url = server.create_database()
        migrate(url)
        yield url


@pytest.mark.slow
def test_atomic_with_a_sync_sqlalchemy_session_needs_no_greenlet(
    wheel: Path, python: str, database: str, tmp_path: Path
):
    install(python, f"{wheel}[postgres]")
    install(python, "--no-deps", "sqlalchemy", "typing_extensions")

    run(python, SQLALCHEMY, tmp_path, database)
