"""What the ledger says about each column, and whether the demo showed what it claims. No I/O in here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from samekey.cli.demo._plan import COLUMNS, SAMEKEY, Order

SHOWN_MAX = 5  # orders named in a sentence


@dataclass(frozen=True, slots=True)
class Totals:
    """One column, counted by the provider's books; only samekey's records can say "in doubt"."""

    orders: int
    charges: int
    doubled: tuple[str, ...]  # orders charged more than once
    overcharged: int  # cents
    lost: tuple[str, ...]  # orders never charged
    in_doubt: tuple[str, ...]


def count(orders: list[Order], charged: Mapping[str, int], in_doubt: tuple[str, ...] = ()) -> Totals:
    return Totals(
        orders=len(orders),
        charges=sum(charged.values()),
        doubled=tuple(order.id for order in orders if charged.get(order.id, 0) > 1),
        overcharged=sum(order.amount * max(0, charged.get(order.id, 0) - 1) for order in orders),
        lost=tuple(order.id for order in orders if not charged.get(order.id) and order.id not in in_doubt),
        in_doubt=in_doubt,
    )


def broken_promises(orders: list[Order], totals: Totals) -> list[str]:
    """What samekey did that it never may: each one is a bug of ours."""
    opaque = {order.id for order in orders if order.opaque}
    unexpected = tuple(one for one in totals.in_doubt if one not in opaque)
    broken = (
        (totals.doubled, "the samekey column charged an order twice"),
        (totals.lost, "the samekey column lost an order"),
        (unexpected, "the samekey column left more in doubt than the one Opaque order"),
    )
    return [f"{what}: {_named(which)}" for which, what in broken if which]


def nothing_shown(totals: Mapping[str, Totals]) -> list[str]:
    """Columns that should have charged twice and did not: then this run proves nothing."""
    return [
        f"the column {name!r} made no double charge, so this run showed nothing; try another --seed"
        for name in COLUMNS
        if name != SAMEKEY and not totals[name].doubled
    ]


def _named(orders: tuple[str, ...]) -> str:
    more = f" and {len(orders) - SHOWN_MAX} more" if len(orders) > SHOWN_MAX else ""
    return ", ".join(orders[:SHOWN_MAX]) + more
