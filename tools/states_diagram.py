"""Write the diagram of docs/states.md from `NEXT`; `--check` only says whether it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from samekey.core.states import EXPIRES, NEXT, State

PAGE = Path(__file__).parent.parent / "docs" / "states.md"
BEGIN, END = "<!-- from NEXT: begin -->", "<!-- from NEXT: end -->"


def diagram() -> str:
    """Mermaid, then the same as a table for readers without it."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> started: open"]
    moves: dict[tuple[State, State], list[str]] = {}
    for role, before_after in NEXT.items():
        for before, afters in before_after.items():
            for after in afters:
                moves.setdefault((before, after), []).append(role.value)
    order = list(State)
    for (before, after), roles in sorted(moves.items(), key=lambda one: [order.index(state) for state in one[0]]):
        lines.append(f"    {before.value} --> {after.value}: {', '.join(roles)}")
    lines += [f"    {state.value} --> [*]: retention" for state in State if state in EXPIRES]
    lines += ["```", "", "| role | from | to |", "|---|---|---|"]
    for role, before_after in NEXT.items():
        for before in order:
            afters = before_after.get(before, frozenset())
            if afters:
                named = ", ".join(after.value for after in order if after in afters)
                lines.append(f"| {role.value} | {before.value} | {named} |")
    return "\n".join(lines)


def page_with(text: str) -> str:
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{diagram()}\n{END}{tail}"


def main() -> int:
    text = PAGE.read_text(encoding="utf-8")
    fresh = page_with(text)
    if "--check" in sys.argv:
        return int(fresh != text)
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
