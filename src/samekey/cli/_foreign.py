"""Rows of another table of keys, from a CSV file, JSON lines, SQLite or PostgreSQL, and what they mean."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from samekey.core.errors import CallerError, Misconfigured
from samekey.core.key import make_key
from samekey.core.states import State
from samekey.ops.adopting import Row
from samekey.ops.deciding import NOT_GIVEN

FIELDS = ("key", "tenant", "request_hash", "response", "status", "http_status", "created_at")
PROBLEMS_MAX = 5  # rows named that cannot be adopted
SKIP = "skip"

KNOWN = {
    **dict.fromkeys(("completed", "complete", "done", "success", "succeeded", "finished", "processed"), "completed"),
    **dict.fromkeys(
        ("in_progress", "in-progress", "in progress", "started", "pending", "processing", "running", "locked"),
        "in_doubt",
    ),
}


@dataclass(slots=True)
class Reader:
    """Reads the rows, and counts what it must leave out."""

    source: str
    table: str | None
    columns: dict[str, str]  # field -> column
    operation: str
    tenant: str | None
    statuses: dict[str, str]
    states: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)  # status values that mean nothing here
    problems: list[str] = field(default_factory=list)
    wrong: int = 0  # rows without a usable key

    def rows(self) -> Iterator[Row]:
        for number, given in enumerate(self._given(), 1):
            values = dict(zip(self.columns, given, strict=True))
            row = self._row(number, values)
            if row is not None:
                self.states[row.state.value] += 1
                yield row

    def _given(self) -> Iterator[tuple[Any, ...]]:
        names = list(self.columns.values())
        scheme = self.source.partition("://")[0] if "://" in self.source else ""
        if scheme == "sqlite":
            from samekey.drivers.sqlite import parse_url, read_table

            yield from read_table(_there(parse_url(self.source).path), self._table(), names)
        elif scheme in ("postgresql", "postgres"):
            try:
                tables = import_module("samekey.drivers.postgres.tables")
            except ModuleNotFoundError as missing:
                raise Misconfigured(f"{scheme}:// needs {missing.name}: pip install 'samekey[postgres]'") from missing
            yield from tables.read_table(self.source, self._table(), names)
        elif scheme:
            raise Misconfigured(f"{scheme}:// cannot be adopted from: give a file, sqlite:// or postgresql://")
        elif self.table is not None:
            raise click.UsageError("--table is for sqlite:// and postgresql://, not for a file.")
        else:
            yield from _file_rows(_there(Path(self.source)), names)

    def _table(self) -> str:
        if not self.table:
            raise click.UsageError("give --table: which table has the keys?")
        return self.table

    def _row(self, number: int, values: dict[str, Any]) -> Row | None:
        status, http_status = values.get("status"), _http_status(values.get("http_status"))
        if http_status is None and "http_status" not in self.columns:
            http_status = _http_status(status)
        meaning = self._meaning(status, http_status, values)
        if meaning is None:
            self.unknown["(empty)" if status in (None, "") else str(status)[:80]] += 1
            return None
        if meaning == SKIP:
            self.states[SKIP] += 1
            return None
        try:
            tenant = self.tenant if "tenant" not in self.columns else _text(values["tenant"]) or None
            key = make_key(self.operation, _text(values["key"]), tenant)
        except CallerError as error:
            self.wrong += 1
            if len(self.problems) < PROBLEMS_MAX:
                self.problems.append(f"row {number}: {error.message}")
            return None
        result = _result(values.get("response"), http_status) if meaning == State.COMPLETED else NOT_GIVEN
        created = _text(values.get("created_at"))
        return Row(key, State(meaning), _text(values.get("request_hash")), result, created)

    def _meaning(self, status: Any, http_status: int | None, values: dict[str, Any]) -> str | None:
        if "status" not in self.columns:
            if http_status is not None or "http_status" not in self.columns:
                return "in_doubt" if values.get("response") in (None, "") and http_status is None else "completed"
            return "in_doubt"
        text = _text(status)
        named = self.statuses.get(text) or KNOWN.get(text.lower())
        if named is None and http_status is not None and _http_status(status) == http_status:
            return "completed" if 200 <= http_status < 300 else None
        return named


def _file_rows(path: Path, names: list[str]) -> Iterator[tuple[Any, ...]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        if path.suffix.lower() in (".jsonl", ".ndjson", ".json"):
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _json_row(number, line, names)
            return
        reader = csv.DictReader(file)
        missing = [name for name in names if name not in (reader.fieldnames or ())]
        if missing:
            raise Misconfigured(f"{path.name} has no column {', '.join(missing)}; there are {reader.fieldnames}")
        for row in reader:
            yield tuple(row[name] for name in names)


def _json_row(number: int, line: str, names: list[str]) -> tuple[Any, ...]:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Misconfigured(f"line {number} is no JSON: {error}") from error
    if not isinstance(given, dict):
        raise Misconfigured(f"line {number} is no JSON object")
    return tuple(given.get(name) for name in names)


def _there(path: Path) -> Path:
    if not path.is_file():
        raise Misconfigured(f"there is no file {path.absolute()}")
    return path


def _text(value: Any) -> str:
    return "" if value is None else str(value).strip() if not isinstance(value, bytes) else value.hex()


def _http_status(value: Any) -> int | None:
    text = _text(value)
    return int(text) if text.isdecimal() and len(text) == 3 and 200 <= int(text) <= 599 else None


def _result(response: Any, http_status: int | None) -> Any:
    """What callers get: an HTTP answer where the row has a status, else the JSON value, or the text as it is."""
    if isinstance(response, (bytes, memoryview)):
        response = bytes(response).decode("utf-8", "replace")
    if http_status is not None:
        from samekey.http import answer

        body = "" if response is None else response if isinstance(response, str) else json.dumps(response)
        return answer(http_status, body)
    if response is None or response == "":
        return NOT_GIVEN
    if not isinstance(response, str):
        return response
    try:
        return json.loads(response)
    except (ValueError, RecursionError):
        return response
