"""What the command lines of the docs are, and how each is shown to be right.

A line whose program is ours, or one that works on files of the page, is run in the page's folder. One that would
install something, build for minutes or serve for ever is given to whoever it speaks to, who must know it: `make`
its target, `pyproject.toml` the extra, a measurement its options with a small budget. A line nobody here knows fails.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 100  # a busy machine starts a server within it

# What a command may take, said after what the page says: the last word counts.
SHORTER = {
    "bench.capacity": ["--keys", "100"],
    "tests.proofs.simulate": ["--runs", "20", "--jobs", "1"],
}


def console(text: str) -> Iterator[tuple[str, str]]:
    """The lines behind `$ `, each with what is printed under it."""
    for part in ("\n" + _joined(text)).split("\n$ ")[1:]:
        line, _, printed = part.partition("\n")
        yield line, printed.strip()


def script(text: str) -> Iterator[tuple[str, str]]:
    """The lines of a script, which shows nothing."""
    for line in _joined(text).splitlines():
        if shlex.split(line, comments=True):
            yield line, ""


def _joined(text: str) -> str:
    return re.sub(r"\\\n\s*", "", text)


def carry_out(line: str, printed: str = "") -> str | None:
    """Run or check this line; what is wrong with it, or None."""
    words = shlex.split(line, comments=True)
    for known, does in KNOWN.items():
        if re.match(known, line):
            return does(line, words, printed)
    return f"nobody here knows what {line!r} is: run or check it in tests/pages/commands.py"


def environment() -> dict[str, str]:
    """As in a shell with our venv active; what a `make` above us told its children is not meant for these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "PYTEST_"))}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)  # what was imported is told by what it left
    programs = str(Path(sys.executable).parent)
    return {**kept, "PATH": programs + os.pathsep + kept.get("PATH", "")}


def _run(line: str, words: list[str], printed: str) -> str | None:
    return _ended(line, printed, _done(["sh", "-c", line]))


def _done(words: list[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False
    )


def _ended(line: str, printed: str, done: subprocess.CompletedProcess[str]) -> str | None:
    said = done.stdout + done.stderr
    found = re.match(
        r"samekey (?!prove )", line
    )  # 1: something was found, as a page may want to show; not in an endpoint
    if done.returncode not in ((0, 1) if found else (0,)):
        return f"{line!r} ended with {done.returncode}:\n{said}"
    same = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if printed and not doctest.OutputChecker().check_output(printed + "\n", said.strip() + "\n", same):
        return f"{line!r} printed\n{said}\ninstead of\n{printed}"
    return None


def _export(line: str, words: list[str], printed: str) -> str | None:
    for word in words[1:]:
        name, _, value = word.partition("=")
        os.environ[name] = value  # for the rest of the page, which puts it back
    return None


def _make(line: str, words: list[str], printed: str) -> str | None:
    return _ended(line, printed, _done(["make", "--dry-run", *words[1:]], ROOT))


def _install(line: str, words: list[str], printed: str) -> str | None:
    """Each requirement is this project, with extras that it has; each file is there."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = words[2:]
    for option in ("-c", "-r"):
        while option in wanted:
            at = wanted.index(option)
            if not (ROOT / wanted[at + 1]).exists():
                return f"{line!r}: there is no {wanted[at + 1]}"
            del wanted[at : at + 2]
    for one in wanted:
        ours = re.fullmatch(r"(?:samekey|\.)(?:\[([\w,]+)\])?|-e", one)
        missing = [name for name in (ours[1] or "").split(",") if name and name not in extras] if ours else [one]
        if missing:
            return f"{line!r}: there is no {', '.join(missing)} in pyproject.toml"
    return None


def _measure(line: str, words: list[str], printed: str) -> str | None:
    """All that the page says is understood, and less of it is done."""
    return _ended(line, printed, _done([sys.executable, *words[1:], *SHORTER[words[2]]], ROOT))


def _tests(line: str, words: list[str], printed: str) -> str | None:
    """In a folder with tests of the page's own they run; elsewhere they are this very run, and are there."""
    if list(Path().glob("test_*.py")):
        return _run(line, words, printed)
    missing = [word for word in words[1:] if not (ROOT / word).exists()]
    return f"{line!r}: there is no {', '.join(missing)}" if missing else None


def _serve(line: str, words: list[str], printed: str) -> str | None:
    """It starts, says how to try it, and ends when it is told to."""
    with subprocess.Popen(
        [sys.executable, *words[1:]],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as started:
        assert started.stdout is not None
        said = ""
        for said in started.stdout:
            if "curl" in said:
                break
        started.send_signal(signal.SIGTERM)
        rest = started.stdout.read()
    return (
        None
        if "curl" in said and started.returncode == 0
        else f"{line!r} ended with {started.returncode}: {said}{rest}"
    )


def _venv(line: str, words: list[str], printed: str) -> str | None:
    """Made and entered by every contributor, and by CI; here is what was run inside of it."""
    return None


KNOWN: Mapping[str, Callable[[str, list[str], str], str | None]] = {
    r"(samekey|alembic|python manage\.py|python -m samekey\.hooks\.alarms) ": _run,
    r"export \w+=": _export,
    r"make [a-z]+( |$)": _make,
    r"(\.venv/bin/)?pip install ": _install,
    rf"python -m ({'|'.join(map(re.escape, SHORTER))})( |$)": _measure,
    r"(\.venv/bin/)?pytest( |$)": _tests,
    r"python examples/shops ": _serve,
    r"python3 -m venv \.venv$|\. \.venv/bin/activate$": _venv,
}
