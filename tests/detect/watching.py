"""What the tests of watch share: a rule file, a server with logical replication, and the command as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
from click.testing import CliRunner

from samekey.cli._root import root
from samekey.detect.rule_file import load
from samekey.detect.watching.journal import Journal
from samekey.detect.watching.outputs import Outputs
from samekey.detect.watching.running import How, Wanted, watch_until
from samekey.detect.watching.start import watched_database
from samekey.detect.watching.watcher import Watcher

RUNNER: Any = CliRunner
if "mix_stderr" in signature(CliRunner).parameters:  # click 8.1
    RUNNER = partial(RUNNER, mix_stderr=False)

RULES = """
[[rule]]
name = "orders"
table = "orders"
key = ["tenant", "order_ref"]
window = "24h"
time = "created_at"
source = ["region"]
"""
ORDERS = """
CREATE TABLE orders (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tenant int NOT NULL, order_ref text NOT NULL, region text,
  secret_payload text, created_at timestamptz NOT NULL DEFAULT clock_timestamp())
"""
# The definition, by the database itself.
DUPLICATES = """
SELECT id::text FROM (
  SELECT id, created_at - lag(created_at) OVER (PARTITION BY tenant, order_ref ORDER BY created_at, id) AS gap
  FROM orders) x
WHERE gap <= interval '24 hours' ORDER BY 1
"""
LOGICAL = {"wal_level": "logical", "max_slot_wal_keep_size": "1GB"}
SECONDS = 90  # for a process that has to end; a busy machine is slow


class Watching:
    """`samekey db watch` on one database, with one state directory."""

    def __init__(self, folder: Path, url: str = "", rules: str = RULES) -> None:
        self.url, self.state = url, folder / "state"
        self.rules = folder / "rules.toml"
        self.rules.write_text(rules)

    def command(self, *words: str) -> list[str]:
        database = [self.url] if self.url else []
        chosen = ["--rule", str(self.rules), "--state", str(self.state)]
        return [sys.executable, "-m", "samekey", "db", "watch", *database, *chosen, *words]

    def run(self, *words: str, **how: Any) -> Any:
        """The command to its end: in this process, which is cheaper, unless the process itself matters."""
        if how:
            return subprocess.run(
                self.command(*words), capture_output=True, text=True, timeout=SECONDS, check=False, **how
            )
        result = RUNNER().invoke(root, self.command(*words)[3:], prog_name="samekey")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return SimpleNamespace(returncode=result.exit_code, stdout=result.stdout, stderr=result.stderr)

    def catch_up(self, *words: str) -> list[dict[str, Any]]:
        """The alerts of one run up to now."""
        ended = self.run("--catch-up", "--json", *words)
        alerts = [json.loads(line) for line in ended.stdout.splitlines()]
        assert ended.returncode == (1 if alerts else 0), ended.stderr
        return alerts

    def glance(self, how: How) -> None:
        """One batch, also while transactions are open: `--catch-up` would wait for their end."""
        journal = Journal(self.state)
        try:
            watched = watched_database(self.url, load(self.rules), journal.secret)
            watcher = Watcher(journal, Outputs(journal, [], print), watched)
            asked = iter([False])
            watch_until(watcher, Wanted(self.url, how), watched, stopped=lambda: next(asked, True), note=print)
        finally:
            journal.close()

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
        )

    def alerts(self) -> list[dict[str, Any]]:
        path = self.state / "alerts.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def checkpoint(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.state / "checkpoint.json").read_text())
        return found


def in_database(url: str) -> list[str]:
    with psycopg.connect(url) as link:
        return [row for (row,) in link.execute(DUPLICATES)]
