"""The plan on SQLite: one transaction, so that no writer comes in between the clean-up and the index."""

from __future__ import annotations

from collections.abc import Iterator

from samekey.detect.fix_plan.cleaning import Cleaning


def apply(cleaning: Cleaning) -> Iterator[str]:
    target = cleaning.target
    yield "PRAGMA foreign_keys = ON;"
    yield "BEGIN IMMEDIATE;"
    yield "-- 1. Tables of the plan: they stay, for the undo."
    for statement in cleaning.tables():
        yield f"{statement};"
    yield "-- 2. Archive, re-point children, delete."
    yield f"{cleaning.find()};"
    yield f"{cleaning.take()};"
    for statement in cleaning.batch():
        yield f"{statement};"
    yield "-- 3. The unique index."
    keys = cleaning.sql.names(target.columns)
    yield f"CREATE UNIQUE INDEX IF NOT EXISTS {cleaning.sql.name(target.index)} ON {cleaning.table} ({keys});"
    yield "COMMIT;"


def undo(cleaning: Cleaning) -> Iterator[str]:
    yield "PRAGMA foreign_keys = ON;"
    yield "BEGIN IMMEDIATE;"
    yield f"DROP INDEX IF EXISTS {cleaning.sql.name(cleaning.target.index)};"
    for statement in cleaning.undo():
        yield f"{statement};"
    yield "COMMIT;"
