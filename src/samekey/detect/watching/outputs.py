"""Where alerts go. Each output reads the durable alerts file from its own offset, so no alert is lost or skipped.

An alert leaves only after the checkpoint that contains it. An output that fails is tried again later, and the watch
goes on. After a crash an output may get an alert a second time, with the same id.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, Protocol

from samekey.core.errors import Misconfigured, SamekeyError
from samekey.detect.catalog import Engine
from samekey.detect.dialect import quoted
from samekey.detect.watching.journal import Journal
from samekey.drivers.writing import Writing

AT_ONCE = 200  # alerts that an output gets in one call
RETRY_SECONDS = 30.0  # after a failure
WEBHOOK_SECONDS = 5.0
READ_MAX = 1 << 20  # bytes of alerts that are read at once

Found = list[dict[str, Any]]


class OutputFailed(SamekeyError):
    """The output did not take the alerts; they stay, and are offered again."""


class Output(Protocol):
    name: str  # under which its offset is kept: without a password

    def deliver(self, found: Found) -> None:
        """Take these alerts, or raise `OutputFailed`."""
        ...

    def close(self) -> None: ...


class Outputs:
    """All outputs of a watch, with the offset of each in `delivered.json`."""

    def __init__(self, journal: Journal, outputs: list[Output], note: Callable[[str], None]) -> None:
        self._journal, self._outputs, self._note = journal, outputs, note
        self._path = journal.folder / "delivered.json"
        kept: dict[str, int] = {}
        if self._path.exists():
            try:
                kept = json.loads(self._path.read_bytes())
            except ValueError:
                note(f"{self._path} cannot be read: the outputs start with the next alert")
        end = journal.alerts_length
        self._offsets = {one.name: min(int(kept.get(one.name, end)), end) for one in outputs}
        self._not_before: dict[str, float] = {}

    @property
    def undelivered(self) -> int:
        """Bytes of alerts that the slowest output has not taken."""
        return max((self._journal.alerts_length - offset for offset in self._offsets.values()), default=0)

    def pump(self, *, last: bool = False) -> None:
        """Give every output what is durable and new. `last`: also to one that failed a moment ago."""
        for output in self._outputs:
            if not last and time.monotonic() < self._not_before.get(output.name, 0.0):
                continue
            try:
                self._deliver(output)
            except OutputFailed as error:
                self._not_before[output.name] = time.monotonic() + RETRY_SECONDS
                self._note(f"{output.name} does not take alerts: {error.message}. They are kept and offered again")

    def _deliver(self, output: Output) -> None:
        end = self._journal.alerts_length
        while (offset := self._offsets[output.name]) < end:
            with open(self._journal.alerts_path, "rb") as file:
                file.seek(offset)
                raw = file.read(min(READ_MAX, end - offset))
            lines = raw[: raw.rindex(b"\n") + 1].splitlines(keepends=True)[:AT_ONCE]
            output.deliver([json.loads(line) for line in lines])
            self._offsets[output.name] = offset + sum(map(len, lines))
            made = self._path.with_suffix(".new")
            made.write_text(json.dumps(self._offsets))
            made.replace(self._path)

    def close(self) -> None:
        for output in self._outputs:
            output.close()


class Printed:
    """Standard output: a function of the command prints each alert."""

    name = "stdout"

    def __init__(self, show: Callable[[dict[str, Any]], None]) -> None:
        self._show = show

    def deliver(self, found: Found) -> None:
        for one in found:
            self._show(one)

    def close(self) -> None: ...


class Webhook:
    """POST of one JSON object for each alert. `Idempotency-Key` is the alert's id: the receiver can drop a repeat."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("https://", "http://")):
            raise Misconfigured("a webhook has an address such as https://example.com/alerts")
        self._url = url
        self.name = url.partition("?")[0].partition("://")[2].rpartition("@")[2]

    def deliver(self, found: Found) -> None:
        for one in found:
            request = urllib.request.Request(  # noqa: S310 - the scheme is checked above
                self._url,
                data=json.dumps(one).encode(),
                headers={"Content-Type": "application/json", "Idempotency-Key": one["id"]},
                method="POST",
            )
            try:
                with urllib.request.urlopen(request, timeout=WEBHOOK_SECONDS):  # noqa: S310
                    pass
            except urllib.error.HTTPError as error:
                error.close()
                raise OutputFailed(f"it answers {error.code}") from error
            except (OSError, ValueError) as error:
                raise OutputFailed(f"{type(error).__name__}") from error

    def close(self) -> None: ...


class AlertTable:
    """A table in a database. Its primary key is the alert's id, so an alert is stored once."""

    def __init__(self, engine: Engine, writing: Writing, table: str) -> None:
        self.name = f"table {table}"
        self._writing = writing
        name = ".".join(quoted(part, engine) for part in table.split("."))
        kind = "VARCHAR(64)" if engine is Engine.MYSQL else "TEXT"
        writing.run(
            f"CREATE TABLE IF NOT EXISTS {name} (id {kind} PRIMARY KEY, rule {kind} NOT NULL, "
            "table_name TEXT NOT NULL, key_digest TEXT NOT NULL, first_row TEXT NOT NULL, first_at TEXT NOT NULL, "
            "second_row TEXT NOT NULL, second_at TEXT NOT NULL, details TEXT NOT NULL)"
        )
        columns = "id, rule, table_name, key_digest, first_row, first_at, second_row, second_at, details"
        values = ", ".join(["%s"] * 9)
        # MySQL: an update of the id to itself, because IGNORE would also hide a value that does not fit.
        ignore = "ON DUPLICATE KEY UPDATE id = id" if engine is Engine.MYSQL else "ON CONFLICT (id) DO NOTHING"
        self._insert = f"INSERT INTO {name} ({columns}) VALUES ({values}) {ignore}"

    def deliver(self, found: Found) -> None:
        rows = [
            (
                one["id"],
                one["rule"],
                one["table"],
                one["key"],
                one["first"]["row"],
                one["first"]["at"],
                one["second"]["row"],
                one["second"]["at"],
                json.dumps(one),
            )
            for one in found
        ]
        try:
            self._writing.run_many(self._insert, rows)
        except SamekeyError as error:
            raise OutputFailed(error.message) from error

    def close(self) -> None:
        self._writing.close()
