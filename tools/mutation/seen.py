"""Which tests come by a line of core: they run once with nothing changed, each in a coverage context of its own.

What was seen is kept, file by file, for as long as the text of the test file and that of core stay the same.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tools.mutation.mutants import Mutant

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
CORE = SOURCES / "samekey" / "core"
WAITING_SECONDS = 25  # for one test; none of these sleeps
SLOW_SECONDS = 0.1  # a test that takes longer takes the time of many that say more
LOOKED_SECONDS = 0.02  # assumed of a case that nobody looked at
DIRECT = "tests/core/"  # tests that call core and nothing else: they are quick, and say most
EXAMPLES_MAX = 40  # made up by Hypothesis, where a test does not say how many it wants
CASES_MAX = 12  # of one test elsewhere: the others differ in what they are given, seldom in where they come by
OPTIONS = (  # that it fails is all we want to know, and as soon as can be
    "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:unraisableexception",
    "-W", "ignore", "--tb=no", "--no-header", "--no-summary", "--assert=plain", "--confcutdir=tests",
)  # fmt: skip


def path_of(module: str) -> Path:
    return SOURCES.joinpath(*module.split(".")).with_suffix(".py")


@dataclass
class Part:
    """What the tests of one file come by."""

    text: str  # a digest of the file
    seconds: dict[str, float] = field(default_factory=dict)  # of each test
    lines: dict[str, dict[str, list[str]]] = field(default_factory=dict)  # module of core, line, tests


class Seen:
    """What each test comes by."""

    def __init__(self, parts: Iterable[Part], names: Iterable[str]) -> None:
        """`names` is every test there is, also those that nobody looked at."""
        self.seconds: dict[str, float] = {}
        self._lines: dict[str, dict[int, list[str]]] = {}
        self._width: Counter[str] = Counter()  # how many files of core a test comes by
        for part in parts:
            self.seconds |= part.seconds
            for module, lines in part.lines.items():
                self._width.update({name for found in lines.values() for name in found})
                for line, found in lines.items():
                    self._lines.setdefault(module, {}).setdefault(int(line), []).extend(found)
        # Cases that nobody looked at come by where the other cases of their function do; they are tried last.
        self._others: dict[str, list[str]] = {}
        for name in names:
            if name not in self.seconds and "[" in name:
                self._others.setdefault(name.partition("[")[0], []).append(name)

    def at_import(self, mutant: Mutant) -> bool:
        """Whether its line runs when the module is imported, and in no test."""
        return not self._by(mutant)

    def of(self, mutant: Mutant) -> list[str]:
        """The tests for a mutant: those of core itself first, and of each test function the quickest case first.

        A line that runs at import is seen by all that use the file, most sharply by those that use few others; and by
        those that run no line of core, for they look at what an import made. The slow ones come last.
        """
        names = self._by(mutant)
        if not names:
            using = {name for found in self._lines.get(mutant.module, {}).values() for name in found}
            using |= {name for name in self.seconds if name.startswith(DIRECT) and not self._width[name]}
            return sorted(
                using,
                key=lambda name: (
                    not name.startswith(DIRECT),
                    self.seconds[name] > SLOW_SECONDS,
                    self._width[name],
                    self.seconds[name],
                ),
            )
        ranked: dict[str, int] = {}
        met: Counter[str] = Counter()
        quickest = sorted(names, key=lambda name: (self.seconds[name], name))
        for name in quickest:
            function = name.partition("[")[0]
            ranked[name] = met[function]
            met[function] += 1
        more = [name for function in met for name in self._others.get(function, ())]
        return sorted([*quickest, *more], key=lambda name: (not name.startswith(DIRECT), ranked.get(name, CASES_MAX)))

    def _by(self, mutant: Mutant) -> list[str]:
        lines = self._lines.get(mutant.module, {})
        return lines.get(mutant.line) or lines.get(mutant.statement) or []

    def sum(self, names: Iterable[str]) -> float:
        """The seconds that these tests take."""
        return sum(self.seconds.get(name, LOOKED_SECONDS) for name in names)


def look(tests: Sequence[str], keep: Path) -> tuple[list[Part], list[str]]:
    """Run those tests that nobody looked at as they are now; all parts, and what third-party modules they load."""
    core = _digest(*sorted(CORE.glob("*.py")))
    kept = json.loads(keep.read_text()) if keep.exists() else {}
    if kept.get("core") != core:
        kept = {"core": core, "loaded": [], "parts": {}}
    texts = {name: _digest(ROOT / name) for name in _files(tests)}
    parts = {name: Part(**part) for name, part in kept["parts"].items() if texts.get(name) == part["text"]}
    new = {name: text for name, text in texts.items() if name not in parts}
    if new:
        more, loaded = _looked(new, keep.with_suffix(".new"))
        parts |= more
        loaded = sorted({*kept["loaded"], *loaded})
        told = {"core": core, "loaded": loaded, "parts": {name: asdict(part) for name, part in parts.items()}}
        keep.write_text(json.dumps(told))
        return list(parts.values()), loaded
    return list(parts.values()), kept["loaded"]


def _files(tests: Sequence[str]) -> list[str]:
    folders = [ROOT / one for one in tests if not one.startswith("-")]
    files = [file for one in folders for file in (sorted(one.rglob("test_*.py")) if one.is_dir() else [one])]
    ignored = {ROOT / one.partition("=")[2] for one in tests if one.startswith("-")}
    return [str(file.relative_to(ROOT)) for file in files if not {file, *file.parents} & ignored]


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _looked(new: dict[str, str], keep: Path) -> tuple[dict[str, Part], list[str]]:
    """In a child: this process must stay free of samekey."""
    child = os.fork()
    if not child:
        os._exit(_look(new, keep))
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit("the tests could not be run without a mutant (see above)")
    told = json.loads(keep.read_text())
    keep.unlink()
    return {name: Part(**part) for name, part in told["parts"].items()}, told["loaded"]


def _look(new: dict[str, str], keep: Path) -> int:
    import coverage
    import pytest

    quieten_hypothesis()
    measured = coverage.Coverage(data_file=None, config_file=False, source=["samekey.core"], messages=False)
    measured.start()
    contexts = _Contexts(measured)
    ended = pytest.main([*OPTIONS, f"--timeout={WAITING_SECONDS * 8}", *new], plugins=[contexts])
    measured.stop()
    for name in contexts.failed:
        print(f"fails without a mutant, and is left out: {name}", file=sys.stderr)
    if ended not in (0, 1, pytest.ExitCode.NO_TESTS_COLLECTED):
        return 1
    parts = {name: Part(text) for name, text in new.items()}
    for name in contexts.failed:
        contexts.seconds.pop(name, None)
    for name, seconds in contexts.seconds.items():
        parts[name.partition("::")[0]].seconds[name] = seconds
    data = measured.get_data()
    for path in data.measured_files():
        module = ".".join(Path(path).relative_to(SOURCES).with_suffix("").parts)
        for line, found in data.contexts_by_lineno(path).items():
            for name in found:
                if name in contexts.seconds:
                    part = parts[name.partition("::")[0]]
                    part.lines.setdefault(module, {}).setdefault(str(line), []).append(name)
    foreign = [
        name
        for name, module in sys.modules.items()
        if "site-packages" in (getattr(module, "__file__", None) or "")
        and name.partition(".")[0] not in ("samekey", "tests", "coverage", "pip")
    ]
    keep.write_text(json.dumps({"parts": {name: asdict(part) for name, part in parts.items()}, "loaded": foreign}))
    return 0


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
            if met[function] <= CASES_MAX or function.startswith(DIRECT):
                kept.append(item)
        items[:] = kept

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        forget()
        self.coverage.switch_context(nodeid)
        self._started = time.process_time()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.coverage.switch_context("")
        self.seconds[nodeid] = round(time.process_time() - self._started, 4)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


def forget() -> None:
    """What core remembers: a test that finds an answer there would not be seen where that is made."""
    for name in [name for name in sys.modules if name.startswith("samekey.core.")]:
        for made in list(vars(sys.modules[name]).values()):
            if isinstance(made, functools._lru_cache_wrapper):
                made.cache_clear()


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
