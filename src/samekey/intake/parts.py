"""What Intake and AsyncIntake share: the parts of an intake, and which of them carries a command out."""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from samekey.core.errors import Misconfigured
from samekey.intake import admin, rows, tables
from samekey.intake import commands as c
from samekey.intake.database import Sink
from samekey.intake.gate import rule_of
from samekey.intake.pipeline import Context
from samekey.intake.requests import Requests
from samekey.intake.runs import Run
from samekey.intake.settings import Settings, Task

REMEMBERED_MAX = 10_000
REMEMBERED_SECONDS = 1.0  # a run that was seen alive is not looked up again: it keeps a storm off the database

_log = logging.getLogger("samekey")


class _Remembered:
    """Runs that were seen alive within the last second, with the request ids of their makers."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def get(self, run_id: str) -> str | None:
        found = self._kept.get(run_id)
        return None if found is None or found[0] < time.monotonic() else found[1]

    def put(self, run_id: str, run: Run) -> None:
        life = REMEMBERED_SECONDS
        if run.key_expires_at is not None:
            life = min(life, run.key_expires_at - time.time())
        self._kept[run_id] = time.monotonic() + life, run.maker or ""
        while len(self._kept) > REMEMBERED_MAX:
            self._kept.popitem(last=False)


class Parts(Requests):
    """What both colours share: the parts of an intake, and which of them carries a command out."""

    _database: Any
    _buffer: Any
    _claims: Any

    def __init__(
        self,
        db: str,
        redis: str | None = None,
        *,
        environment: str = "dev",
        settings: Settings | None = None,
        tasks: Mapping[str, Task] | None = None,
        sink: Sink | None = None,
        on_cancel: Callable[[Run], Any] | None = None,
        secret: str | bytes | None = None,
    ) -> None:
        super().__init__(environment, settings or Settings(), dict(tasks or {}))
        self.embedded = db.startswith("sqlite:")
        if not self.embedded and not db.startswith(("postgresql:", "postgres:")):
            raise Misconfigured("the intake's database is sqlite:///file or postgresql://...")
        if self.embedded and redis is not None:
            raise Misconfigured("the embedded intake (SQLite) is one process and takes no Redis")
        self._db, self._redis, self._sink, self._on_cancel = db, redis, sink, on_cancel
        self._given_secret = secret
        self.in_redis = redis is not None and self.settings.buffer == "redis"
        # Without Redis, PostgreSQL has neither claims nor a gate: every trigger is a row at once.
        self.buffers = (self.embedded or redis is not None) and self.settings.gate != "off"
        self.counts: Counter[str] = Counter()
        self._memory = _Remembered()
        self._rule = rule_of(self.settings)
        self._known: Context | None = None
        self._redis_unchecked = self.in_redis

    def _judge_redis(self, facts: Any) -> None:
        """Refuse a Redis that may forget accepted runs, or warn of it. Raises Misconfigured."""
        if facts.volatile:
            text = f"{self._buffer.name} may lose accepted runs: {facts.volatile}"
            if self.settings.volatile_redis == "refuse":
                raise Misconfigured(
                    f'{text}. Change its settings, or keep the buffer in the database: Settings(buffer="database"). '
                    'Settings(volatile_redis="warn") accepts the loss'
                )
            _log.warning("intake: %s", text)
        self._redis_unchecked = False

    def _note(self, what: str) -> None:
        self.counts[what] += 1
        if what in ("recreated", "mark_failed", "finding_differs", "finding_moved"):
            _log.warning("intake: %s", what)

    def _context(self, secrets: Mapping[int, bytes]) -> Context:
        return Context(
            secrets,
            refuses_timeouts=self.settings.on_timeout == "refuse",
            buffers=self.buffers,
            operations_max=self.settings.operations_max,
            note=self._note,
            remembered=self._memory.get,
            remember=self._memory.put,
        )

    def _ended(self, command: admin.Ended) -> None:
        self.ring(command.run.id)
        if command.canceled and self._on_cancel is not None:
            self._on_cancel(command.run)

    def _claim_address(self) -> str | None:
        if not self.embedded:
            return self._redis
        return self._db if "?" in self._db else self._db + "?synchronous=normal"  # a lost claim loses no run

    def _steps_of(self, command: Any) -> tuple[Callable[[], Any], bool] | None:
        """The statements of a command, and whether it needs no transaction; None where Redis carries it out."""
        kind = type(command)
        if kind in rows.STEPS:
            alone = kind in rows.ONE_STATEMENT or (kind is c.Insert and self._sink is None)
            return lambda: rows.STEPS[kind](command), alone
        if kind in admin.STEPS:
            return lambda: admin.STEPS[kind](command), False
        if self.in_redis:
            return None
        if kind is c.Offer:
            return lambda: tables.offer(command, self._rule), False
        return lambda: tables.STEPS[kind](command), kind in tables.ONE_STATEMENT
