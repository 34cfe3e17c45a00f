"""Figures that `make proof` shows in a table at its end (the hook is in the root conftest.py)."""

from __future__ import annotations

MARK = "figure "


def figure(what: str, came_to: object) -> None:
    """Say what something came to."""
    print(f"{MARK}{what:58} {came_to}")


def at_most(trials: int) -> str:
    """What a zero in so many trials says, with 95 % confidence."""
    return f"0 in {trials:,}: < {3 / max(trials, 1):.1e}"
