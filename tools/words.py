"""Plain English, counted: `python -m tools.words` checks every file against `tools/words.txt`.

A sentence in samekey has a subject with a name and a literal verb (CONTRIBUTING, "Style"). This check counts the words
that usually hide one: pronouns instead of the caller, the holder or the server; speech instead of writing and reading;
places instead of relations; and words that each mean two things. Counted are comments, docstrings and other strings of
a Python file and the names it defines, comments of SQL and Lua, and the text of a page outside its code. What is in
`backticks` is a name and does not count, and neither do the words of another party's API (`THEIRS`).

`tools/words.txt` has the highest count each file may have. It only goes down: a file that got better must be written
there again (`python -m tools.words --lower`), and a file that is not named there has no such word at all.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
CEILINGS = ROOT / "tools" / "words.txt"

PRONOUNS = ("whoever", "somebody", "nobody", "anybody")
PRONOUNS_MAX = 60  # in all of src, wherever they are
PLAIN = re.compile(rf"\b(?:{'|'.join(PRONOUNS)})\b", re.IGNORECASE)
WORDS = (
    *PRONOUNS,
    *("said", "told", "tells", "heard", "word", "words"),  # a record is written and read
    *("behind", "extra_attributes", "stands", "stood"),  # one thing calls, holds, follows or contains another
    *("job", "jobs", "pending", "cache", "cached", "processed"),  # each means two things; see docs/glossary.md
)
COUNTED = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)

# Words of another party's API, or of grammar: they are not ours to choose.
THEIRS = re.compile(
    r"pip cache|cache-control|cachecontrol|no-cache|wheel cache"
    r"|stands for|reserved words?|in other words|stop words?|passwords?|keywords?|words\.(?:py|txt)|tools\.words"
    r"|page cache|prepared-statement cache|cached plan|cache_info|cache_clear|job queue|cron jobs?|background jobs?",
    re.IGNORECASE,
)
NAMES = re.compile(
    r"``.+?``|`[^`\n]+`|https?://\S+|[\w./-]+\.(?:py|md|sql|lua|toml|txt|db)\b|\w*_\w+|\w+\(\)", re.DOTALL
)
FENCE = re.compile(r"^( *)```.*?^\1```[^\n]*$", re.DOTALL | re.MULTILINE)
ADMONITION = re.compile(r"^!!! .*\n(?:(?: {4}.*)?\n)+", re.MULTILINE)
INDENTED = re.compile(r"(?:^|\n)\n(?:(?: {4}|\t)[^\n]*\n|\n)+")
HTML = re.compile(r"<!--.*?-->", re.DOTALL)


def prose(path: Path) -> Iterator[str]:
    """The parts of a file that are sentences."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from _python(text)
    elif path.suffix in (".sql", ".lua"):
        yield from re.findall(r"--(.*)", text)
    else:
        text = ADMONITION.sub(lambda found: found[0].replace("\n    ", "\n"), text)
        yield INDENTED.sub("\n\n", HTML.sub("", FENCE.sub("", text)))


def _python(text: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Constant(value=str(value)) if " " in value:
                yield value
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield _apart(name)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield _apart(name)


def _apart(name: str) -> str:
    """`_was_told` as "was told": the words that a name is made of."""
    return " ".join(name.split("_"))


def found(path: Path) -> list[str]:
    """Every counted word in this file."""
    words: list[str] = []
    for part in prose(path):
        words += COUNTED.findall(THEIRS.sub(" ", NAMES.sub(" ", part)))
    return [word.lower() for word in words]


def files() -> list[Path]:
    """What is held to it: the package, the pages and the tools; tests are not read by users."""
    patterns = ("src/*.py", "src/*.sql", "src/*.lua", "docs/*.md", "tools/*.py", "bench/*.py", "examples/*.py", "*.md")
    listed = subprocess.run(  # noqa: S603 - constants only
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", *patterns],  # noqa: S607 - git from the PATH
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = (ROOT / name for name in listed.splitlines() if not name.startswith("tests/"))
    return sorted(path for path in paths if path.exists() and path != Path(__file__))


def ceilings() -> dict[str, int]:
    lines = CEILINGS.read_text(encoding="utf-8").splitlines() if CEILINGS.exists() else []
    pairs = (line.split() for line in lines if line and not line.startswith("#"))
    return {name: int(count) for count, name in pairs}


def lowered(counts: dict[str, int], allowed: dict[str, int]) -> dict[str, int]:
    """The ceilings as low as the counts are now, and none higher than it was."""
    return {name: low for name, most in allowed.items() if (low := min(counts.get(name, 0), most))}


def complaints(counts: dict[str, int], allowed: dict[str, int], pronouns: int) -> list[str]:
    """What is wrong, one line each; pure, so that a test can show every kind."""
    wrong: list[str] = []
    for name in sorted({*counts, *allowed}):
        count, most = counts.get(name, 0), allowed.get(name, 0)
        if count > most:
            wrong.append(f"{name}: {count} hidden subjects, at most {most} allowed: python -m tools.words {name}")
        if count < most:
            wrong.append(f"{name}: {count} hidden subjects, {most} allowed: python -m tools.words --lower")
    if pronouns > PRONOUNS_MAX:
        wrong.append(f"src: {pronouns} times {'/'.join(PRONOUNS)}, at most {PRONOUNS_MAX}: name the subject")
    return wrong


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.words", description="Count the words that hide a subject.")
    parser.add_argument("paths", nargs="*", type=Path, help="list the words of these files or folders, line by line")
    parser.add_argument(
        "--lower", action="store_true", help="write smaller counts into tools/words.txt; never larger ones"
    )
    given = parser.parse_args(arguments)
    if given.paths:
        return _show(given.paths)
    seen = {str(path.relative_to(ROOT)): found(path) for path in files()}
    counts = {name: len(words) for name, words in seen.items() if words}
    pronouns = sum(
        len(PLAIN.findall(path.read_text(encoding="utf-8"))) for path in files() if path.is_relative_to(ROOT / "src")
    )
    allowed = ceilings()
    if given.lower:
        allowed = lowered(counts, allowed) if allowed else counts
        lines = "".join(f"{count:4} {name}\n" for name, count in sorted(allowed.items()))
        CEILINGS.write_text(f"# The most hidden subjects a file may have: python -m tools.words --lower\n{lines}")
    wrong = complaints(counts, allowed, pronouns)
    print("\n".join(wrong) or f"{len(seen)} files, {sum(counts.values())} hidden subjects, none above its ceiling")
    return 1 if wrong else 0


def _show(paths: list[Path]) -> int:
    chosen = [one for path in paths for one in ([path] if path.is_file() else sorted(path.rglob("*"))) if one.is_file()]
    total = 0
    for path in chosen:
        if path.suffix not in (".py", ".sql", ".lua", ".md"):
            continue
        words = found(path)
        total += len(words)
        if words:
            print(f"{len(words):4} {path}: {', '.join(f'{word} {words.count(word)}' for word in sorted(set(words)))}")
    print(f"{total} in all")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
