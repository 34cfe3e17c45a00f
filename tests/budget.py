"""CPU seconds of each room, printed at the end of a run that is given `--cpu-budget`, as `make test` does.

Counted is user and system time: of the test process, of the processes it waited for, and of its children that still run
(a server that many tests share). Wall time says more about the machine's other work than about the tests. A room above
its budget is printed with a mark; one above 1.5 times its budget fails the run, and so does the whole run.

Each worker counts for itself and sends its sums to the process that prints them.
"""

from __future__ import annotations

import os
import resource
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

# 25 CPU minutes for all rooms. On a machine with two free cores a run takes 885 of these 1,500 seconds; on a busy one
# the same tests took 1,275.
BUDGETS = {
    "core": 30,
    "guard": 120,
    "http": 90,
    "stores": 60,
    "servers": 300,
    "edges": 120,
    "pages": 80,  # 60 is planned; the examples of five more rooms are run
    "proofs": 130,  # 120 is planned
    "messages": 120,
    "doubt": 60,
    "intake": 90,
    "detect": 180,
    "console": 120,
}
WHOLE_SECONDS = 1500
FAILS_FROM = 1.5

# What is tested there, not where the file is. A folder that is named in neither table fails the run.
ROOMS = {
    **{f"tests/{room}": room for room in BUDGETS if room != "edges"},
    **{f"tests/{edge}": "edges" for edge in ("cli", "clients", "demo", "extras", "hooks", "ops", "processor", "prove")},
    "tests/testing": "guard",
    "tests/security": "guard",
    "tests/examples": "http",  # shops on FastAPI, Flask and Django
    "tests/bench": "servers",
    "tests/peers": "servers",
    "tests/tools": "pages",
    "tests": "pages",
    "docs": "pages",
    ".": "pages",
}
START = "start"  # imports and collection, in each worker and in the process that starts them

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PLUGIN = "samekey-cpu-budget"


def room_of(path: str) -> str:
    """The room that a test file counts for: the nearest folder that is named, or the path itself if none is."""
    for folder in Path(path).parents:
        if str(folder) in ROOMS:
            return ROOMS[str(folder)]
    return path


def spent() -> float:
    """User and system seconds of this process, its ended children and its running ones."""
    return _seconds(resource.RUSAGE_SELF) + _seconds(resource.RUSAGE_CHILDREN) + _running_children()


def _seconds(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def _running_children() -> float:
    """Seconds of every process below this one, with what their own ended children took. Linux only."""
    below: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        below[int(fields[1])].append((int(stat.parent.name), sum(map(int, fields[11:15])) / _TICKS))
    seconds, parents = 0.0, [os.getpid()]
    while parents:
        for child, took in below[parents.pop()]:
            seconds += took
            parents.append(child)
    return seconds


class Budget:
    """What the rooms of one process took; in the process that prints, of all of them."""

    def __init__(self, *, alone: bool) -> None:
        self.took: Counter[str] = Counter()
        self._alone = alone  # False where workers run the tests: they are children, and count for themselves
        self._room, self._since = START, 0.0

    def enter(self, room: str) -> None:
        if room != self._room:
            now = spent() if self._alone else _seconds(resource.RUSAGE_SELF)
            self.took[self._room] += now - self._since  # type: ignore[assignment] # a Counter of seconds
            self._room, self._since = room, now

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.enter(room_of(item.nodeid.partition("::")[0]))
        return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.enter("")
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_PLUGIN] = dict(self.took)
        elif over(self.took)[1] and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.took.update(getattr(node, "workeroutput", {}).get(_PLUGIN, {}))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("CPU seconds")
        for line in table(self.took):
            terminalreporter.write_line(line)


def over(took: Counter[str]) -> tuple[list[str], list[str]]:
    """The rooms above their budget, and those so far above it that the run fails."""
    limits = {room: BUDGETS.get(room, 0) for room in took if room != START}
    above = [room for room, limit in limits.items() if took[room] > limit]
    failed = [room for room in above if took[room] > limits[room] * FAILS_FROM]
    whole = sum(took.values())
    return above + ["all"] * (whole > WHOLE_SECONDS), failed + ["all"] * (whole > WHOLE_SECONDS * FAILS_FROM)


def table(took: Counter[str]) -> list[str]:
    above, failed = over(took)
    rows = [(room, took[room], BUDGETS.get(room, 0)) for room in (*BUDGETS, *sorted({*took} - {*BUDGETS}))]
    rows.append(("all", sum(took.values()), WHOLE_SECONDS))
    marks = dict.fromkeys(above, "  over budget") | dict.fromkeys(failed, f"  FAILED: above {FAILS_FROM} budgets")
    return [
        f"{room:12}{seconds:8.1f}" + (f" of {budget:4}" if budget else " " * 8) + marks.get(room, "")
        for room, seconds, budget in rows
    ]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-budget", action="store_true", help="print the CPU seconds of each room; far too many fail")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--cpu-budget"):
        workers = config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput")
        config.pluginmanager.register(Budget(alone=not workers), _PLUGIN)
