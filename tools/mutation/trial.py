"""Which tests see a line, and what they say of a mutant.

The tests run once under coverage, each in a context of its own; a mutant meets only those that come by its line, the
quick ones and those that told before first, and the first that fails ends it. Each mutant has a process of its own,
forked from one that has pytest and every third-party library loaded but nothing of samekey: so importing the changed
module is all there is to do.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

from tools.mutation.mutants import Mutant

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
CPU_SECONDS = 20.0  # beside four times what the tests take without a mutant: then it goes in circles
DATA_BYTES = 3 << 30  # a mutant that fills the memory is as dead as one that fails
WAITING_SECONDS = 25  # for one test; none of these sleeps
DIRECT = "tests/core/"  # tests that call core and nothing else: they are quick, and say most
FIRST = 25  # of those that told before
EXAMPLES_MAX = 40  # made up by Hypothesis, where a test does not say how many it wants
CASES_MAX = 12  # of one test function: the others differ in what they are given, seldom in where they come by
QUICK_SECONDS = 1.0  # of tests in the first batch; each batch after it has eight times as much


Fate = tuple[str, str]  # what became of it, and who told
Tried = Callable[[Mutant, Sequence[str], float], Fate | None]


@dataclass(frozen=True)
class Told:
    """What became of a mutant."""

    fate: str  # killed, survived, circles (stopped by a limit), unseen (no test comes by)
    by: str = ""  # the test that told
    tests: int = 0
    seconds: float = 0.0


@dataclass
class Seen:
    """What each test comes by."""

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[int, list[str]]] = field(default_factory=dict)  # file, line, tests
    files: list[str] = field(default_factory=list)  # that were looked at
    loaded: list[str] = field(default_factory=list)  # third-party modules worth having before a fork
    others: dict[str, list[str]] = field(default_factory=dict)  # cases of a test function that nobody looked at

    def add_cases(self, names: Iterable[str]) -> None:
        """Cases that nobody looked at come by where the other cases of their function do; they are tried last."""
        for name in names:
            if name not in self.seconds and "[" in name:
                self.others.setdefault(name.partition("[")[0], []).append(name)

    def at_import(self, mutant: Mutant) -> bool:
        """Whether its line runs when the module is imported, and in no test."""
        return not self.lines.get(mutant.module, {}).get(mutant.line)

    def of(self, mutant: Mutant) -> list[str]:
        """The tests for a mutant: those of core itself first, and of each test function the quickest case first.

        A line that runs at import is seen by all that use the file.
        """
        lines = self.lines.get(mutant.module, {})
        names = lines.get(mutant.line, [])
        if not names:
            names = sorted({name for found in lines.values() for name in found})
        ranked: dict[str, int] = {}
        met: Counter[str] = Counter()
        quickest = sorted(names, key=lambda name: (self.seconds.get(name, 0.05), name))
        for name in quickest:
            function = name.partition("[")[0]
            ranked[name] = met[function]
            met[function] += 1
        more = [name for function in met for name in self.others.get(function, ())]
        return sorted([*quickest, *more], key=lambda name: (not name.startswith(DIRECT), ranked.get(name, CASES_MAX)))


# -- once: who sees what ---------------------------------------------------------------------------------------


class _Contexts:
    """A pytest plugin: a coverage context for each test."""

    def __init__(self, coverage: Any) -> None:
        self.coverage = coverage
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        met: Counter[str] = Counter()
        kept = []
        for item in items:
            function = item.nodeid.partition("[")[0]
            met[function] += 1
            if met[function] <= CASES_MAX:
                kept.append(item)
        items[:] = kept

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)
        self._started = time.process_time()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.coverage.switch_context("")
        self.seconds[nodeid] = round(time.process_time() - self._started, 4)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


def look(tests: Sequence[str], keep: Path) -> Seen:
    """Run the tests once without a mutant, those that nobody looked at yet."""
    seen = recall(keep) if keep.exists() else Seen()
    folders = [ROOT / one for one in tests if not one.startswith("-")]
    files = [file for one in folders for file in (sorted(one.rglob("test_*.py")) if one.is_dir() else [one])]
    ignored = [ROOT / one.partition("=")[2] for one in tests if one.startswith("-")]
    names = [str(file.relative_to(ROOT)) for file in files if not {file, *file.parents} & set(ignored)]
    new = [name for name in names if name not in seen.files]
    if not new:
        return seen
    more = _looked(new, keep.with_suffix(".new"))
    seen.seconds |= more.seconds
    seen.files += new
    seen.loaded = sorted({*seen.loaded, *more.loaded})
    for module, lines in more.lines.items():
        for line, found in lines.items():
            seen.lines.setdefault(module, {}).setdefault(line, []).extend(found)
    _keep(seen, keep)
    return seen


def _looked(tests: Sequence[str], keep: Path) -> Seen:
    """In a child: this process must stay free of samekey."""
    child = os.fork()
    if not child:
        os._exit(_look(tests, keep))
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit("the tests could not be run without a mutant (see above)")
    return recall(keep)


def recall(keep: Path) -> Seen:
    kept = json.loads(keep.read_text())
    names = kept["names"]
    lines = {
        module: {int(line): [names[number] for number in numbers] for line, numbers in found.items()}
        for module, found in kept["lines"].items()
    }
    return Seen(kept["seconds"], lines, kept["files"], kept["loaded"])


def _look(tests: Sequence[str], keep: Path) -> int:
    import coverage
    import pytest

    quieten_hypothesis()
    measured = coverage.Coverage(data_file=None, config_file=False, source=["samekey"], messages=False)
    measured.start()
    contexts = _Contexts(measured)
    ended = pytest.main([*OPTIONS, *tests], plugins=[contexts])
    measured.stop()
    for name in contexts.failed:
        print(f"fails without a mutant, and is left out: {name}", file=sys.stderr)
    if ended not in (0, 1, pytest.ExitCode.NO_TESTS_COLLECTED):
        return 1
    data = measured.get_data()
    names = {name for name in contexts.seconds if name not in contexts.failed}
    lines: dict[str, dict[int, list[str]]] = {}
    for path in data.measured_files():
        module = ".".join(Path(path).relative_to(SOURCES).with_suffix("").parts)
        lines[module] = {
            line: [name for name in found if name in names] for line, found in data.contexts_by_lineno(path).items()
        }
    foreign = [
        name
        for name, module in sys.modules.items()
        if "site-packages" in (getattr(module, "__file__", None) or "")
        and name.partition(".")[0] not in ("samekey", "tests", "coverage", "pip")
    ]
    _keep(Seen(contexts.seconds, lines, [], foreign), keep)
    return 0


def _keep(seen: Seen, keep: Path) -> None:
    names = {name: number for number, name in enumerate(seen.seconds)}
    lines = {
        module: {line: sorted(names[name] for name in found) for line, found in by_line.items()}
        for module, by_line in seen.lines.items()
    }
    kept = {"seconds": seen.seconds, "names": list(names), "lines": lines, "files": seen.files, "loaded": seen.loaded}
    keep.write_text(json.dumps(kept))


# -- for each mutant -------------------------------------------------------------------------------------------

OPTIONS = (
    "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist",
    "-W", "ignore", "--tb=no", "--no-header", "--no-summary", f"--timeout={WAITING_SECONDS * 8}",
)  # fmt: skip


def prepare(loaded: Iterable[str]) -> None:
    """Load what every test needs and no mutant touches."""
    for name in ("pytest", *loaded):
        try:
            importlib.import_module(name)
        except Exception:  # noqa: S110 - a part of a library that only its own code can import
            pass
    quieten_hypothesis()


def quieten_hypothesis() -> None:
    """The same examples every time, and no shrinking: that it fails is all we want to know."""
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        "mutation",
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=EXAMPLES_MAX,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("mutation")


class _Chosen:
    """A pytest plugin: only these tests, in this order; and who failed."""

    def __init__(self, names: Sequence[str]) -> None:
        self.places = {name: place for place, name in enumerate(names)}
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.places), key=lambda item: self.places[item.nodeid]
        )

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


class _Instead(MetaPathFinder):
    """Finds the changed module before the real one."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != self.mutant.module:
            return None
        file = path_of(fullname)
        code = compile(self.mutant.tree(file), str(file), "exec", dont_inherit=True)

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, name: str) -> Any:
                return code

        return importlib.machinery.ModuleSpec(fullname, Loader(fullname, str(file)), origin=str(file))


def path_of(module: str) -> Path:
    return SOURCES.joinpath(*module.split(".")).with_suffix(".py")


def trial(mutant: Mutant, seen: Seen, telling: Sequence[str], quick: Tried, budget: float) -> Told:
    """Try a mutant on the tests that come by it, first on those among them that told before."""
    names = seen.of(mutant)
    if not names:
        return Told("unseen")
    if seen.at_import(mutant):
        quick, budget = too_late, budget / 2  # each try costs an import
    among = set(names)
    first = [name for name in telling if name in among][:FIRST]
    rest = _within(seen, [name for name in names if name not in first], budget)
    started = time.monotonic()
    if first:
        quickly = quick(mutant, first, _sum(seen, first))
        fate, by = quickly or _run(mutant, first, _sum(seen, first))
        if fate != "survived":
            return Told(fate, by, len(first), round(time.monotonic() - started, 2))
    tried = len(first)
    for batch in _batches(seen, rest):
        tried += len(batch)
        quickly = quick(mutant, batch, _sum(seen, batch))
        fate, by = quickly or _run(mutant, batch, _sum(seen, batch))
        if fate != "survived":
            return Told(fate, by, tried, round(time.monotonic() - started, 2))
    return Told("survived", "", tried, round(time.monotonic() - started, 2))


def too_late(mutant: Mutant, names: Sequence[str], seconds: float) -> None:
    """What an import has made cannot be changed by changing a function."""


def _sum(seen: Seen, names: Iterable[str]) -> float:
    return sum(seen.seconds.get(name, 0.02) for name in names)


def _within(seen: Seen, names: Sequence[str], budget: float) -> list[str]:
    """As many as the budget allows, in their order; it always allows one."""
    chosen: list[str] = []
    spent = 0.0
    for name in names:
        spent += seen.seconds.get(name, 0.02)
        if chosen and spent > budget:
            break
        chosen.append(name)
    return chosen


def _batches(seen: Seen, names: Sequence[str]) -> Iterator[list[str]]:
    """The files in which little time tells, then the others: whoever imports a mutant anew imports few files first."""
    files: dict[str, list[str]] = {}
    for name in names:
        files.setdefault(name.partition("::")[0], []).append(name)
    cost = {file: _sum(seen, found) for file, found in files.items()}
    batch: list[str] = []
    spent, room = 0.0, QUICK_SECONDS
    for file in sorted(files, key=lambda file: cost[file]):
        if batch and spent + cost[file] > room:
            yield batch
            batch, spent, room = [], 0.0, room * 8
        batch += files[file]
        spent += cost[file]
    if batch:
        yield batch


def _run(mutant: Mutant, names: Sequence[str], seconds: float) -> Fate:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os.setsid()
        limit = int(CPU_SECONDS + 4 * seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
        quiet = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(quiet, number)
        os._exit(_judge(mutant, names, writing))
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        ended = wait_for(child, CPU_SECONDS * 6 + 30 * seconds)
        by = said.read().decode() if ended is not None else ""
    end_group(child)
    if ended is None or os.WIFSIGNALED(ended):
        return "circles", ""
    return ("survived" if os.WEXITSTATUS(ended) == 0 else "killed"), by


def _judge(mutant: Mutant, names: Sequence[str], writing: int) -> int:
    import pytest

    sys.meta_path.insert(0, _Instead(mutant))
    chosen = _Chosen(names)
    files = dict.fromkeys(name.partition("::")[0] for name in names)
    try:
        importlib.import_module(mutant.module)  # before pytest, whose own way to import goes past ours
    except BaseException as error:
        os.write(writing, f"import: {type(error).__name__}".encode())
        return 1
    try:
        ended = pytest.main([*OPTIONS, f"--timeout={WAITING_SECONDS}", "-x", *files], plugins=[chosen])
    except BaseException:  # a mutant may well raise SystemExit while it is imported
        return 1
    if chosen.failed:
        os.write(writing, chosen.failed[0].encode())
        return 1
    return 0 if ended == 0 else 1


def wait_for(child: int, seconds: float) -> int | None:
    """How it ended, or None if it had to be stopped."""
    deadline = time.monotonic() + seconds
    pause = 0.005
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def end_group(child: int) -> None:
    """What a dead test left behind."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
