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
# Findings that come from elsewhere than one catalog: two databases, a trial, the rows, the code.
OTHERS = {
    "SK129": "a retried insert is stored twice",
    "SK130": "unique key differs between two databases",
    "SK131": "column of a unique key differs between two databases",
    "SK132": "a migration adds a unique key that the rows refuse",
    "SK140": "duplicates by a rule of the rule file",
    "SK401": "get_or_create without a unique key",
    "SK402": "look first, insert then",
    "SK403": "POST is repeated without a key",
    "SK404": "key is made inside the loop",
    "SK405": "consumer without a guard",
    "SK406": "ON CONFLICT DO NOTHING RETURNING gives no row",
}
TITLES = {rule.id: rule.title for rule in RULES} | OTHERS


def examine(catalog: Catalog) -> list[Finding]:
    """Every gap that the catalog shows."""
    return [found for rule in RULES if catalog.engine in rule.engines for found in rule.find(catalog)]
