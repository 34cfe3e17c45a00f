"""The claim: before the gate, one trigger of a key goes on, and the others wait for its run id.

It is the guard's own open, wait and settle. The derived id makes it safe to go on without it, so it runs with
`Policy(store_down="run", store_deadline=...)`: a store that does not answer is a counter, never a failed trigger. Its
boundary is `Repeatable`: an error of the winner releases the claim at once, and a waiter takes it.

    `claim_or_await(...) -> Claimed | Cached | TimedOut | Unclaimed | Mismatched`, `publish_claim`, `release_claim`

Neither `publish_claim` nor `release_claim` touches the claim of another trigger: both are fenced.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from samekey.core.boundary import Repeatable
from samekey.core.call import Answer
from samekey.core.errors import Fenced, SamekeyError
from samekey.core.policy import Policy
from samekey.guard.adapters import AsyncRunning, Ended, Mismatch, Running
from samekey.guard.adapters import Waiting as Held
from samekey.guard.guards import AsyncGuard, Guard
from samekey.intake import commands as c
from samekey.intake.settings import Settings

OPERATION = "intake.claim"
LIFE_MIN_SECONDS = 1.0  # retention must be more than zero

_log = logging.getLogger("samekey")


class _Claims:
    """What both colours share."""

    def __init__(self, guard: Any, settings: Settings) -> None:
        self.guard = guard
        self._policy = Policy(
            lease=settings.claim_lease,
            patience=settings.patience,
            retention=settings.key_life,
            store_down="run",
            store_deadline=settings.redis_budget,
        )
        self._operation = guard.operation(OPERATION, boundary=Repeatable(), policy=self._policy)
        self._by_life = {settings.key_life: self._operation}
        self.counts = dict.fromkeys(("wins", "waits", "timeouts", "takeovers", "errors"), 0)

    def _call(self, command: c.Claim) -> Any:
        life = max(LIFE_MIN_SECONDS, round(command.life))
        operation = self._by_life.get(life)
        if operation is None:
            operation = replace(self._operation, policy=replace(self._policy, retention=life))
            if len(self._by_life) < 100:
                self._by_life[life] = operation
        key = f"{command.digest}.{command.generation}"
        return self.guard.new_call(operation, key, command.fingerprint, command.environment)

    def _reply(self, opened: Any) -> Any:
        match opened:
            case Answer():
                self.counts["waits"] += 1
                return c.Cached(str(opened.result))
            case Running() | AsyncRunning():
                record = opened.held.record
                if record is None:  # the store did not answer, and the policy says: run
                    self.counts["errors"] += 1
                    opened.keep()
                    return c.Unclaimed()
                self.counts["wins"] += 1
                if record.attempts > 1:
                    self.counts["takeovers"] += 1
                return c.Claimed(opened)
            case Held():
                self.counts["timeouts"] += 1
                return c.TimedOut()
            case Mismatch():
                return c.Mismatched()
            case _:
                self.counts["errors"] += 1
                _log.warning("intake: the claim could not be made (%s); going on without it", type(opened).__name__)
                return c.Unclaimed()

    def _won(self, ended: Ended) -> bool | None:
        """Whether our own write settled the claim; None where the store did not answer."""
        if ended.replayed or isinstance(ended.error, Fenced):
            return False
        self._not_written(ended.recorded)
        return True if ended.recorded else None

    def _not_written(self, recorded: bool) -> None:
        if not recorded:
            self.counts["errors"] += 1
            _log.warning("intake: the claim could not be settled; its lease will end it")


class Claims(_Claims):
    """The claims of one process, for threads."""

    guard: Guard

    def claim_or_await(self, command: c.Claim) -> Any:
        return self._reply(self.guard.begin(self._call(command), wait=command.patience))

    def publish_claim(self, command: c.Publish) -> bool | None:
        try:
            return self._won(command.hold.succeed(command.run_id))
        except SamekeyError:
            self._not_written(False)
            return None

    def release_claim(self, command: c.Release) -> None:
        try:
            command.hold.release(type(command.error).__name__)
        except SamekeyError:
            self._not_written(False)

    def close(self) -> None:
        self.guard.close()


class AsyncClaims(_Claims):
    """The same, awaited."""

    guard: AsyncGuard

    async def claim_or_await(self, command: c.Claim) -> Any:
        return self._reply(await self.guard.begin(self._call(command), wait=command.patience))

    async def publish_claim(self, command: c.Publish) -> bool | None:
        try:
            return self._won(await command.hold.succeed(command.run_id))
        except SamekeyError:
            self._not_written(False)
            return None

    async def release_claim(self, command: c.Release) -> None:
        try:
            await command.hold.release(type(command.error).__name__)
        except SamekeyError:
            self._not_written(False)

    async def close(self) -> None:
        await self.guard.close()
