"""The catalogue: every rule, in the order of its number. A rule is a pure function of the catalog."""

from __future__ import annotations

from samekey.detect.catalog import Catalog
from samekey.detect.findings import Finding, Rule
from samekey.detect.rules import (
    durability,
    engines,
    id_spaces,
    key_stores,
    missing_keys,
    replication,
    side_effects,
    weak_keys,
    wide_keys,
)

_MODULES = (
    missing_keys, weak_keys, wide_keys, durability, side_effects, key_stores, id_spaces, replication, engines,
)  # fmt: skip
RULES: tuple[Rule, ...] = tuple(sorted((rule for module in _MODULES for rule in module.RULES), key=lambda one: one.id))
TITLES = {rule.id: rule.title for rule in RULES}


def examine(catalog: Catalog) -> list[Finding]:
    """Every gap that the catalog shows."""
    return [found for rule in RULES if catalog.engine in rule.engines for found in rule.find(catalog)]
