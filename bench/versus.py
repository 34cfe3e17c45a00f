"""Two trees in turn: `python -m bench.versus OLD [NEW]`, each a checkout; NEW is this one unless it is given.

Client CPU per call (median of interleaved rounds, so that a machine that gets slower hits both), the CPU of the server
for the same calls, and with `--instructions` the instruction counts of memory and HTTP under valgrind, which are the
same on a busy machine. Exit 1 if a client is more than 5 % above the old tree, or a server more than 10 %.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from samekey.testing.servers import PrivatePostgres, postgres, redis_server

HERE = Path(__file__).parents[1]
TICK = os.sysconf("SC_CLK_TCK")
CLIENT_MOST, SERVER_MOST = 1.05, 1.10
COUNTED = 500  # calls under valgrind, which is fifty times slower


class Case(NamedTuple):
    name: str
    calls: str  # of bench/calls.py
    server: str
    times: int


CASES = (
    Case("memory", "one", "memory", 4000),
    Case("http", "http", "memory", 1500),
    Case("postgres one caller", "one", "postgres", 800),
    Case("postgres 32 tasks", "tasks", "postgres", 3000),
    Case("redis one caller", "one", "redis", 1500),
    Case("redis 32 tasks", "tasks", "redis", 3000),
)


class Server(NamedTuple):
    pid: int | None

    def cpu(self) -> float:
        """Seconds of the server and of its children that ended; a backend ends with its client."""
        if self.pid is None:
            return 0.0
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / TICK


def run(tree: Path, case: Case, address: str, count: int, before: tuple[str, ...] = ()) -> dict[str, float]:
    """The calls of one case with the code of one tree, in a process of its own."""
    ended = subprocess.run(
        [*before, sys.executable, str(HERE / "bench" / "calls.py"), case.calls, address, str(count)],
        env={**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONHASHSEED": "0"},
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def rounds(trees: dict[str, Path], case: Case, number: int) -> Iterator[tuple[str, float, float]]:
    """(what, ratio of new to old, microseconds of new), from `number` rounds in which the trees take turns."""
    readings: dict[str, dict[str, list[float]]] = {name: {} for name in trees}
    with ExitStack() as stack:
        addresses = {name: stack.enter_context(served(case.server, tree)) for name, tree in trees.items()}
        for turn in range(number):
            names = list(trees) if turn % 2 else list(trees)[::-1]
            for name in names:
                server, fresh = addresses[name]
                begun = server.cpu()
                times = run(trees[name], case, fresh(), case.times)
                time.sleep(0.1)  # a backend that ends is counted when its parent has waited for it
                if server.pid is not None:
                    times["server"] = (server.cpu() - begun) / (2 * case.times)
                for what, seconds in times.items():
                    readings[name].setdefault(what, []).append(seconds)
    for what, new in readings["new"].items():
        yield what, statistics.median(new) / statistics.median(readings["old"][what]), statistics.median(new) * 1e6


@contextmanager
def served(server: str, tree: Path) -> Iterator[tuple[Server, Callable[[], str]]]:
    """A server and a function that makes an empty store on it, with the tables that this tree needs."""
    if server == "postgres":
        with postgres() as running:

            def database() -> str:
                url = running.create_database()
                subprocess.run(
                    [sys.executable, "-m", "samekey", "migrate", "--store", url],
                    env={**os.environ, "PYTHONPATH": str(tree / "src")},
                    check=True,
                    capture_output=True,
                )
                return url

            yield Server(running.pid if isinstance(running, PrivatePostgres) else None), database
    elif server == "redis":
        with redis_server(appendonly="yes") as started:

            def emptied() -> str:
                started.call("FLUSHALL")
                return started.url()

            yield Server(started.pid), emptied
    else:
        yield Server(None), lambda: "memory://"


def instructions(tree: Path, case: Case) -> float:
    """Instructions per new key and replay together: two runs of different length, so that starting up cancels out."""
    counts = []
    for count in (COUNTED, 2 * COUNTED):
        with tempfile.NamedTemporaryFile() as out:
            tool = ("valgrind", "--tool=callgrind", f"--callgrind-out-file={out.name}", "-q")
            run(tree, case, "memory://", count, tool)
            found = re.search(r"^(?:summary|totals): (\d+)", Path(out.name).read_text(), re.MULTILINE)
            assert found is not None, "valgrind wrote no summary"
            counts.append(int(found.group(1)))
    return (counts[1] - counts[0]) / COUNTED


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.versus", description="Compare two trees of samekey.")
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path, nargs="?", default=HERE)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument(
        "--instructions", action="store_true", help="count instructions instead of time; memory and http"
    )
    given = parser.parse_args()
    trees = {"old": given.old.resolve(), "new": given.new.resolve()}
    cases = [case for case in CASES if not given.only or given.only in case.name]
    slower = False
    for case in cases:
        if given.instructions:
            if case.server == "memory":
                old, new = (instructions(trees[name], case) for name in ("old", "new"))
                slower |= new > old * CLIENT_MOST
                print(f"{case.name:20} {'pair':8} {new / old:6.3f}x {new:12,.0f} instructions", flush=True)
            continue
        for what, ratio, microseconds in rounds(trees, case, given.rounds):
            slower |= ratio > (SERVER_MOST if what == "server" else CLIENT_MOST)
            print(f"{case.name:20} {what:8} {ratio:6.3f}x {microseconds:8.1f} us", flush=True)
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
