"""The fingerprint of plain payloads against what anybody would write: sorted JSON, then SHA-256."""

from __future__ import annotations

import hashlib
import json
import random
import statistics
from collections.abc import Sequence
from typing import Any

from bench.figures import Experiment, Figure, Reading, at_most
from bench.measure import Effort, Work, cpu_ratios, interleave, microseconds
from samekey.core.fingerprint import Intent

SIZES = {"200B": 200, "2KB": 2_000, "100KB": 100_000}


def order(size: int) -> dict[str, Any]:
    """An order of about so many bytes of JSON: the same one every time."""
    chance = random.Random(size)
    payload: dict[str, Any] = {"order": "ord_7f3a91", "customer": 4711, "currency": "EUR", "express": False}
    items: list[dict[str, Any]] = []
    payload["items"] = items
    while len(json.dumps(payload)) < size:
        cents = chance.randrange(100, 99_999)
        items.append(
            {"sku": f"SKU-{chance.randrange(10**6):06d}", "count": chance.randrange(1, 9), "price": cents / 100}
        )
    return payload


def compare(size: int, effort: Effort) -> Sequence[Reading]:
    payload = order(size)
    text = json.dumps(payload, sort_keys=True).encode()

    def ours(operations: int) -> Work:
        return lambda: [Intent(payload).digest for _ in range(operations)]

    def with_fields(operations: int) -> Work:
        return lambda: [Intent(payload).fingerprint() for _ in range(operations)]

    def plain(operations: int) -> Work:
        return lambda: [
            hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).digest() for _ in range(operations)
        ]

    def hash_alone(operations: int) -> Work:
        return lambda: [hashlib.sha256(text).digest() for _ in range(operations)]

    digest, fields, json_hash, alone = interleave(effort, ours, with_fields, plain, hash_alone).laps
    readings = []
    for mine, other in ((digest, json_hash), (fields, json_hash), (digest, alone)):
        ratios = cpu_ratios(mine, other)
        note = f"{microseconds(mine):.2f} against {microseconds(other):.2f} us CPU; {len(text)} bytes"
        readings.append(Reading(statistics.median(ratios), ratios, note))
    return readings


def experiment(name: str, size: int) -> Experiment:
    return Experiment(
        (
            Figure(f"fingerprint.{name}", "x CPU", "json.dumps(sort_keys=True) + SHA-256", at_most(2.0)),
            Figure(f"fingerprint.{name}.fields", "x CPU", "the same; ours with a digest per field"),
            Figure(f"fingerprint.{name}.hash", "x CPU", "SHA-256 alone"),
        ),
        lambda effort: compare(size, effort),
    )


EXPERIMENTS = tuple(experiment(name, size) for name, size in SIZES.items())
