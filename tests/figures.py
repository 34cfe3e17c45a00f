"""Figures that `make proof` shows in a table at its end (the hook is in the root conftest.py)."""

from __future__ import annotations

from collections import Counter

MARK = "figure "
_SUM = "\t"  # between a name and the amounts that are added up under it


def figure(what: str, came_to: object) -> None:
    """Say what something came to."""
    print(f"{MARK}{what:58} {came_to}")


def count(what: str, **amounts: int) -> None:
    """The same, added up with all others of this name."""
    print(f"{MARK}{what}{_SUM}{' '.join(f'{name}={amount}' for name, amount in amounts.items())}")


def at_most(trials: int) -> str:
    """What a zero in so many trials says, with 95 % confidence."""
    return f"0 in {trials:,}: < {3 / max(trials, 1):.1e}"


def table(printed: str) -> list[str]:
    """The figures among these lines, sorted."""
    lines = [line.removeprefix(MARK) for line in printed.splitlines() if line.startswith(MARK)]
    sums: dict[str, Counter[str]] = {}
    for line in lines:
        what, summed, amounts = line.partition(_SUM)
        if summed:
            pairs = (pair.partition("=") for pair in amounts.split())
            sums.setdefault(what, Counter()).update({name: int(amount) for name, _, amount in pairs})
    added = [
        f"{what:58} {', '.join(f'{amount:,} {name}' for name, amount in amounts.items())}"
        for what, amounts in sums.items()
    ]
    return sorted({line for line in lines if _SUM not in line} | set(added))
