"""`make programme`: the same trouble for samekey and for others, into docs/programme.md.

python -m tools.peers.programme PYTHON [--keys 10] [--only NAME ...]

PYTHON is the interpreter where the libraries are installed. Takes about a quarter of an hour, and goes on where it
stopped; `make clean` starts it afresh.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from samekey.drivers.postgres.migrate import migrate
from samekey.testing.servers import Postgres, RedisServer, postgres, redis_server
from tools.peers.trouble import SCENARIOS, Outcome, play

PAGE = Path(__file__).parents[2] / "docs" / "programme.md"
KEPT = Path(__file__).parents[2] / ".cache" / "programme"  # `make clean` forgets it
ONE_BY_ONE = {"lost claim", "lost settle"}  # replies are lost one at a time; a few keys say enough
KEYS_ONE_BY_ONE = 5
WIPED = "Redis wiped"


@dataclass(frozen=True)
class Row:
    """A library in one of its ways of use."""

    library: str
    driver: str
    store: str  # postgresql, redis, both
    how: str
    says: str = ""  # of itself, in its released documentation or source
    open_windows: dict[str, str] = field(default_factory=dict, hash=False)  # scenario: where its documentation says so

    @property
    def name(self) -> str:
        return f"{self.library}, {self.how}"


ROWS = (
    Row(
        "samekey",
        "samekey",
        "postgresql",
        "PostgreSQL, `Opaque`",
        "one effect, or it says that nobody knows; nobody can be asked here, so what is in doubt waits for a person",
    ),
    Row(
        "samekey",
        "samekey-asks",
        "redis",
        "Redis, `Asks`, marked",
        "as above; the provider is asked, also after a loss of memory that a running process noticed",
    ),
    Row("samekey", "samekey", "both", "Redis before PostgreSQL, `Opaque`", "only PostgreSQL says go"),
    Row(
        "samekey",
        "samekey",
        "redis",
        "Redis alone, `Opaque`",
        "a claim is as durable as the server ([guarantees](guarantees.md))",
        {WIPED: "guarantees, per store: what Redis forgets is forgotten; `Asks` and the layered store close it"},
    ),
    Row(
        "once-kernel",
        "once-kernel",
        "postgresql",
        "PostgreSQL",
        '"exactly-once execution + at-least-once result delivery"; "an unknown outcome never silently re-runs"',
        {
            "killed after": '"Executing worker dies: lease expires, another caller takes over"',
            "lost answer": '"Your function raises: key freed, a later retry may execute"',
            "long effect": '"Long job outliving its lease: `heartbeat()` keeps it protected"; `run` calls none',
        },
    ),
    Row(
        "idempotency-kit",
        "idempotency-kit",
        "redis",
        'Redis, fingerprints, `on_storage_error="raise"`',
        '"Ensure operations execute exactly once"; "high availability over strict exactly-once"',
        {
            "killed after": 'a reservation that outlives its owner by a lease "counts as abandoned"',
            "lost answer": '"Failures are not cached, so the reservation goes too and the retry runs again"',
        },
    ),
    Row(
        "aws-lambda-powertools",
        "powertools",
        "redis",
        "Redis, with a Lambda context",
        "for Lambda, where whoever outlives the timeout is ended: made to be retried after it",
        {
            "another payload": "payload validation is an option",
            "killed after": "an invocation in progress may be retried after the Lambda timeout",
            "long effect": "Lambda ends whoever outlives its timeout; elsewhere somebody else must",
            "lost answer": "a function that raises has its record deleted",
        },
    ),
    Row(
        "aws-lambda-powertools",
        "powertools-validates",
        "redis",
        "the same, with payload validation",
        "as above; payloads are compared",
        {
            "killed after": "an invocation in progress may be retried after the Lambda timeout",
            "long effect": "Lambda ends whoever outlives its timeout; elsewhere somebody else must",
            "lost answer": "a function that raises has its record deleted",
        },
    ),
    Row("(textbook)", "textbook", "redis", "`SET NX EX`, then the answer", "what one writes first; no library"),
)
DISTRIBUTIONS = ("samekey", "once-kernel", "idempotency-kit", "aws-lambda-powertools")

INTRODUCTION = """# The same programme against others

Written by `make programme`; do not edit. A test that never failed has shown little. Here the faults that samekey is
tested with are played on three other libraries as well, and on the `SET NX` that one writes first.

Each customer is a process with one library in it, set up as its documentation says and at its strictest, with a lease
of one second. The store is a real server, reached through a proxy that can lose a reply. The provider is a process that
nobody touches: it knows no keys, charges whenever it is asked, and its books are the judge. `tools/peers/customer.py`
has the drivers, `tools/peers/trouble.py` the programme, `tools/peers/requirements.txt` the versions.

*holds*: every key was charged once and everybody was told the same. *in doubt*: it was said that nobody knows, and
nothing was run again. *as it says*: the library's own documentation or source says that it is so; it is listed below.

"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.peers.programme")
    parser.add_argument("python", help="where the libraries are installed")
    parser.add_argument("--keys", type=int, default=10, help="in each scenario")
    parser.add_argument("--only", nargs="+", default=[], metavar="DRIVER", help="these rows; then no page is written")
    asked = parser.parse_args()
    rows = [row for row in ROWS if not asked.only or row.driver in asked.only]
    found: dict[Row, dict[str, Outcome]] = {}
    with ExitStack() as stack:
        servers = stack.enter_context(postgres()), stack.enter_context(redis_server())
        for row in rows:
            found[row] = examine(row, *servers, python=asked.python, keys=asked.keys)
    if not asked.only:
        PAGE.write_text(page(found, versions(asked.python), asked.keys), encoding="utf-8")
        print(f"written: {PAGE.name}")
    ours = [one for row in found if row.library == "samekey" for one in surprises(row, found[row])]
    for one in ours:
        print(f"samekey broke a promise: {one}")
    return 1 if ours else 0


def examine(row: Row, database: Postgres, redis: RedisServer, *, python: str, keys: int) -> dict[str, Outcome]:
    """What came of each scenario; what was found before and is kept is not played again."""
    kept = KEPT / f"{row.driver}-{row.store}-{keys}.json"
    outcomes = {}
    if kept.exists():
        outcomes = {name: Outcome(**found) for name, found in json.loads(kept.read_text()).items()}
    for scenario in SCENARIOS:
        if scenario in outcomes or (scenario == WIPED and row.store == "postgresql"):
            continue
        url, behind = redis.url(), redis.port
        if row.store != "redis":
            database_url = database.create_database()
            behind = urlsplit(database_url).port or 5432
            if row.library == "samekey":
                migrate(database_url)
            url = f"{url} {database_url}" if row.store == "both" else database_url
        outcomes[scenario] = play(
            scenario,
            python=python,
            driver=row.driver,
            url=url,
            behind=behind,
            redis=redis,
            keys=min(keys, KEYS_ONE_BY_ONE) if scenario in ONE_BY_ONE else keys,
        )
        print(f"{row.name}: {scenario}: {outcomes[scenario].text}", flush=True)
        KEPT.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps({name: asdict(one) for name, one in outcomes.items()}))
    return outcomes


def surprises(row: Row, outcomes: dict[str, Outcome]) -> list[str]:
    """What is broken and not said to be."""
    return [
        f"{row.name}: {scenario}: {one.text}"
        for scenario, one in outcomes.items()
        if one.broken and scenario not in row.open_windows
    ]


def versions(python: str) -> dict[str, str]:
    asked = f"from importlib.metadata import version\nfor name in {list(DISTRIBUTIONS)!r}: print(name, version(name))"
    said = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout  # noqa: S603
    return dict(line.split() for line in said.splitlines())


def page(found: dict[Row, dict[str, Outcome]], released: dict[str, str], keys: int) -> str:
    lines = INTRODUCTION.splitlines()
    lines += [f"{keys} keys in each scenario, {KEYS_ONE_BY_ONE} where replies are lost one by one.", ""]
    lines += ["| | what is done | " + " | ".join(str(number) for number in range(1, len(found) + 1)) + " |"]
    lines += ["|---|---|" + "---|" * len(found)]
    for name, scenario in SCENARIOS.items():
        cells = [_cell(row, name, outcomes) for row, outcomes in found.items()]
        lines.append(f"| {name} | {scenario.__doc__} | " + " | ".join(cells) + " |")
    doubled = [sum(one.doubled for one in outcomes.values()) for outcomes in found.values()]
    tried = [sum(one.keys for one in outcomes.values()) for outcomes in found.values()]
    totals = " | ".join(f"{many} of {of}" for many, of in zip(doubled, tried, strict=True))
    lines += [
        f"| **keys charged more than once** | | {totals} |",
        "",
        "## Who is who, and what each says of itself",
        "",
    ]
    for number, row in enumerate(found, 1):
        version = released.get(row.library, "")
        lines.append(f"{number}. **{' '.join(filter(None, (row.library, version)))}**, {row.how}: {row.says}.")
        lines += [f"    - {name}: {where}" for name, where in row.open_windows.items() if found[row][name].broken]
        errors = sorted({(name, text) for name, one in found[row].items() for text in one.errors})
        lines += [f"    - {name}, said besides: `{text}`" for name, text in errors if "did not answer" not in text]
    return "\n".join(lines).rstrip() + "\n"


def _cell(row: Row, name: str, outcomes: dict[str, Outcome]) -> str:
    if name not in outcomes:
        return "-"
    return outcomes[name].text + (" (as it says)" if outcomes[name].broken and name in row.open_windows else "")


if __name__ == "__main__":
    sys.exit(main())
