"""Every block of code in the pages, however it is written: fenced, or indented by four spaces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^[ \t>*+-]*(`{3,}|~{3,})(.*)$")  # also in a list or a quotation
ABOVE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")


@dataclass(frozen=True)
class Block:
    page: str
    line: int  # of its first own line, counted from 1
    language: str  # empty where it is indented, or nobody said
    text: str

    @property
    def last_line(self) -> int:
        return self.line + self.text.count("\n")

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {self.language or 'indented'}: {self.text.splitlines()[0].strip()}"


def pages() -> list[Path]:
    return [ROOT / name for name in ABOVE] + sorted((ROOT / "docs").rglob("*.md"))


def every_block() -> list[Block]:
    return [
        block for page in pages() for block in blocks(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT)))
    ]


def blocks(text: str, page: str = "") -> Iterator[Block]:
    lines = _without_admonitions(text.splitlines())
    number = 0
    while number < len(lines):
        first, opened = number + 1, FENCE.match(lines[number])
        if opened:
            number = first
            while number < len(lines) and not re.match(rf"^[ \t>]*{opened[1]}\s*$", lines[number]):
                number += 1
            yield Block(page, first + 1, opened[2].strip(), "\n".join(lines[first:number]))
        elif lines[number].startswith("<!--"):
            while "-->" not in lines[number]:
                number += 1
        elif lines[number].startswith("    ") and number > 0 and not lines[number - 1].strip():
            while number < len(lines) and (lines[number].startswith("    ") or not lines[number].strip()):
                number += 1
            yield Block(page, first, "", "\n".join(lines[first - 1 : number]).rstrip())
            continue
        number += 1


def _without_admonitions(lines: list[str]) -> list[str]:
    """The same lines; the text of an admonition (`!!! warning`) is indented by four spaces and is no code."""
    found, inside = [], False
    for line in lines:
        inside = line.startswith("!!! ") or (inside and (not line.strip() or line.startswith("    ")))
        found.append(line[4:] if inside and line.startswith("    ") else line)
    return found


def block(page: str, starts: str) -> Block:
    """The one block of this page that starts so."""
    (found,) = (one for one in every_block() if one.page == page and one.text.lstrip().startswith(starts))
    return found
