"""Intake and AsyncIntake: what a program uses, and what the HTTP service uses.

    intake = Intake("sqlite:///runs.db")                      # one process, no other server
    intake = Intake("postgresql://...", redis="redis://...")  # many nodes, one drainer or more

Both have the same names. Each method is the steps of the pipeline, carried out by the backends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from samekey.core.errors import StoreError
from samekey.core.policy import Policy
from samekey.guard.guards import AsyncGuard, Guard
from samekey.intake import admin
from samekey.intake import commands as c
from samekey.intake.claim import AsyncClaims, Claims
from samekey.intake.database import (
    AsyncPostgresDatabase,
    AsyncSqliteDatabase,
    PostgresDatabase,
    SqliteDatabase,
)
from samekey.intake.parts import Parts
from samekey.intake.pipeline import Context, Steps, Triggered
from samekey.intake.requests import TriggerOptions
from samekey.intake.runs import Problem, Run

POLL_SECONDS = 0.25  # trigger_and_wait looks again, in case the run was ended by another process


Runs = list[Run]


class Intake(Parts):
    """The intake for threads."""

    def __init__(self, db: str, redis: str | None = None, **settings: Any) -> None:
        super().__init__(db, redis, **settings)
        if self.embedded:
            self._database: Any = SqliteDatabase(db, self._sink)
        else:
            self._database = PostgresDatabase(db, self._sink, self.settings.sink_timeout)
        self._buffer: Any = None
        if self.in_redis:
            from samekey.intake.buffer import RedisBuffer

            self._buffer = RedisBuffer(str(redis), self.settings)
        address = self._claim_address()
        self._claims = None if address is None else Claims(Guard(address, policy=Policy()), self.settings)

    # -- triggers

    def trigger(self, task: str, payload: Any = None, **options: Unpack[TriggerOptions]) -> Triggered:
        """Make a run, or find the one that has this key. Raises Problem."""
        done: Triggered = self.run(self.triggering(task, payload, options))
        return done

    def trigger_many(self, items: Iterable[Mapping[str, Any]]) -> list[Triggered | Problem]:
        """Several triggers ({"task", "payload", ...options}), in their order; each has its own outcome."""
        done: list[Triggered | Problem] = []
        for item in items:
            try:
                done.append(self.run(self.item(item)))
            except Problem as problem:
                done.append(problem)
        return done

    def trigger_and_wait(
        self, task: str, payload: Any = None, *, deadline: float = 60.0, **options: Unpack[TriggerOptions]
    ) -> Run:
        """Trigger, never buffered, and wait for the end of the run; Problem 408 where it does not end in time."""
        triggered: Triggered = self.run(self.triggering(task, payload, options, wait=True))
        ends = time.monotonic() + deadline
        environment = options.get("environment")
        while True:
            run = self.get(triggered.id, environment=environment)
            if run.state.over:
                return run
            left = ends - time.monotonic()
            if left <= 0:
                raise self.not_over(run)
            self.bell(run.id).wait(min(left, POLL_SECONDS))

    # -- reads and changes

    def get(self, run_id: str, *, environment: str | None = None) -> Run:
        """The run, from either store. Raises Problem: 404, or 410 for a run that a buffer lost."""
        found: Run = self.run(self.getting(run_id, environment))
        return found

    def list(self, *, environment: str | None = None, **filters: Any) -> Runs:
        """Runs of both stores, newest first: `size`, `before` and `after` (a run), `state`, `task`, `tag`, `batch`."""
        found: Runs = self.run(self.listing(environment, filters))
        return found

    def add_tags(self, run_id: str, tags: str | Iterable[str], *, environment: str | None = None) -> Run:
        changed: Run = self.run(self.tagging(run_id, tags, environment))
        return changed

    def update_metadata(
        self,
        run_id: str,
        metadata: Mapping[str, Any] | None = None,
        operations: Iterable[Mapping[str, Any]] = (),
        *,
        environment: str | None = None,
        operation_id: str | None = None,
    ) -> Run:
        """Replace the metadata, or apply operations to it; the same `operation_id` is applied once."""
        changed: Run = self.run(self.annotating(run_id, metadata, operations, environment, operation_id))
        return changed

    def cancel(self, run_id: str, *, environment: str | None = None) -> Run:
        """Cancel it; a run that is over stays as it is. The cancel hook is called for a run that a sink has."""
        changed: Run = self.run(self.canceling(run_id, environment))
        return changed

    def reschedule(self, run_id: str, delay: Any, *, environment: str | None = None) -> Run:
        changed: Run = self.run(self.rescheduling(run_id, delay, environment))
        return changed

    def reset_key(self, task: str, key: str, *, environment: str | None = None) -> Run:
        """Free the key: the next trigger with it makes a new run. The run that had it is returned."""
        freed: Run = self.run(self.resetting(task, key, environment))
        return freed

    # -- reports of the worker

    def start(self, run_id: str, *, environment: str | None = None) -> Run:
        run: Run = self.run(self.reporting(run_id, "start", {}, environment))
        return run

    def complete(self, run_id: str, output: Any = None, *, environment: str | None = None) -> Run:
        """The run succeeded. A run that is over keeps its first outcome, which is returned."""
        run: Run = self.run(self.reporting(run_id, "complete", self.output_of(output), environment))
        return run

    def fail(self, run_id: str, error: str = "", *, environment: str | None = None) -> Run:
        run: Run = self.run(self.reporting(run_id, "fail", {"error": str(error)}, environment))
        return run

    # -- running steps

    def run(self, steps: Steps) -> Any:
        """Carry out these steps."""
        hold: Any = None
        reply: Any = None
        failure: Exception | None = None
        try:
            while True:
                command = steps.send(reply) if failure is None else steps.throw(failure)
                reply, failure = None, None
                try:
                    reply = self.carry_out(command)
                except Exception as error:
                    failure = error
                if isinstance(reply, c.Claimed):
                    hold = reply.hold
                elif isinstance(command, (c.Publish, c.Release)):
                    hold = None
        except StopIteration as stop:
            return stop.value
        except BaseException as error:
            steps.close()
            if hold is not None and self._claims is not None:  # interrupted: the claim must not wait for its lease
                self._claims.release_claim(c.Release(hold, error))
            raise

    def carry_out(self, command: Any) -> Any:
        """Carry out one command: by the claims, by the database, or by the buffer."""
        match command:
            case c.Claim():
                return c.Unclaimed() if self._claims is None else self._claims.claim_or_await(command)
            case c.Publish():
                return self._claims.publish_claim(command)
            case c.Release():
                return self._claims.release_claim(command)
            case admin.Know():
                self.check_redis()
                return self.context()
            case admin.Ended():
                return self._ended(command)
        found = self._steps_of(command)
        if found is None:
            return self._buffer.carry_out(command)
        return self._database.run(found[0], alone=found[1])

    def check_redis(self) -> None:
        """Raises Misconfigured where accepted runs would be kept by a Redis that may forget them; done at first use."""
        if self._redis_unchecked:
            try:
                self._buffer.carry_out(c.Depth(self.environment))
            except StoreError:
                self._redis_unchecked = False  # an intake starts without Redis; each offer looks at the server again
                return
            self._judge_redis(self._buffer.client.facts)

    def context(self) -> Context:
        """What the steps need to know; the secrets are read once."""
        if self._known is None:
            given = admin.as_secret(self._given_secret)
            self._known = self._context(self._database.run(lambda: admin.secrets(given)))
        return self._known

    def close(self) -> None:
        if self._claims is not None:
            self._claims.close()
        if self._buffer is not None:
            self._buffer.close()
        self._database.close()

    def __enter__(self) -> Intake:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncIntake(Parts):
    """The same, awaited, for the tasks of one event loop."""

    def __init__(self, db: str, redis: str | None = None, **settings: Any) -> None:
        super().__init__(db, redis, **settings)
        if self.embedded:
            self._database: Any = AsyncSqliteDatabase(db, self._sink)
        else:
            self._database = AsyncPostgresDatabase(db, self._sink, self.settings.sink_timeout)
        self._buffer: Any = None
        if self.in_redis:
            from samekey.intake.buffer import AsyncRedisBuffer

            self._buffer = AsyncRedisBuffer(str(redis), self.settings)
        address = self._claim_address()
        self._claims = None if address is None else AsyncClaims(AsyncGuard(address, policy=Policy()), self.settings)

    # -- triggers

    async def trigger(self, task: str, payload: Any = None, **options: Unpack[TriggerOptions]) -> Triggered:
        """Make a run, or find the one that has this key. Raises Problem."""
        done: Triggered = await self.run(self.triggering(task, payload, options))
        return done

    async def trigger_many(self, items: Iterable[Mapping[str, Any]]) -> list[Triggered | Problem]:
        """Several triggers ({"task", "payload", ...options}), in their order; each has its own outcome."""
        done: list[Triggered | Problem] = []
        for item in items:
            try:
                done.append(await self.run(self.item(item)))
            except Problem as problem:
                done.append(problem)
        return done

    async def trigger_and_wait(
        self, task: str, payload: Any = None, *, deadline: float = 60.0, **options: Unpack[TriggerOptions]
    ) -> Run:
        """Trigger, never buffered, and wait for the end of the run; Problem 408 where it does not end in time."""
        triggered: Triggered = await self.run(self.triggering(task, payload, options, wait=True))
        ends = time.monotonic() + deadline
        environment = options.get("environment")
        while True:
            run = await self.get(triggered.id, environment=environment)
            if run.state.over:
                return run
            left = ends - time.monotonic()
            if left <= 0:
                raise self.not_over(run)
            await asyncio.to_thread(self.bell(run.id).wait, min(left, POLL_SECONDS))

    # -- reads and changes

    async def get(self, run_id: str, *, environment: str | None = None) -> Run:
        """The run, from either store. Raises Problem: 404, or 410 for a run that a buffer lost."""
        found: Run = await self.run(self.getting(run_id, environment))
        return found

    async def list(self, *, environment: str | None = None, **filters: Any) -> Runs:
        """Runs of both stores, newest first: `size`, `before` and `after` (a run), `state`, `task`, `tag`, `batch`."""
        found: Runs = await self.run(self.listing(environment, filters))
        return found

    async def add_tags(self, run_id: str, tags: str | Iterable[str], *, environment: str | None = None) -> Run:
        changed: Run = await self.run(self.tagging(run_id, tags, environment))
        return changed

    async def update_metadata(
        self,
        run_id: str,
        metadata: Mapping[str, Any] | None = None,
        operations: Iterable[Mapping[str, Any]] = (),
        *,
        environment: str | None = None,
        operation_id: str | None = None,
    ) -> Run:
        """Replace the metadata, or apply operations to it; the same `operation_id` is applied once."""
        changed: Run = await self.run(self.annotating(run_id, metadata, operations, environment, operation_id))
        return changed

    async def cancel(self, run_id: str, *, environment: str | None = None) -> Run:
        """Cancel it; a run that is over stays as it is. The cancel hook is called for a run that a sink has."""
        changed: Run = await self.run(self.canceling(run_id, environment))
        return changed

    async def reschedule(self, run_id: str, delay: Any, *, environment: str | None = None) -> Run:
        changed: Run = await self.run(self.rescheduling(run_id, delay, environment))
        return changed

    async def reset_key(self, task: str, key: str, *, environment: str | None = None) -> Run:
        """Free the key: the next trigger with it makes a new run. The run that had it is returned."""
        freed: Run = await self.run(self.resetting(task, key, environment))
        return freed

    # -- reports of the worker

    async def start(self, run_id: str, *, environment: str | None = None) -> Run:
        run: Run = await self.run(self.reporting(run_id, "start", {}, environment))
        return run

    async def complete(self, run_id: str, output: Any = None, *, environment: str | None = None) -> Run:
        """The run succeeded. A run that is over keeps its first outcome, which is returned."""
        run: Run = await self.run(self.reporting(run_id, "complete", self.output_of(output), environment))
        return run

    async def fail(self, run_id: str, error: str = "", *, environment: str | None = None) -> Run:
        run: Run = await self.run(self.reporting(run_id, "fail", {"error": str(error)}, environment))
        return run

    # -- running steps

    async def run(self, steps: Steps) -> Any:
        """Carry out these steps."""
        hold: Any = None
        reply: Any = None
        failure: Exception | None = None
        try:
            while True:
                command = steps.send(reply) if failure is None else steps.throw(failure)
                reply, failure = None, None
                try:
                    reply = await self.carry_out(command)
                except Exception as error:
                    failure = error
                if isinstance(reply, c.Claimed):
                    hold = reply.hold
                elif isinstance(command, (c.Publish, c.Release)):
                    hold = None
        except StopIteration as stop:
            return stop.value
        except BaseException as error:
            steps.close()
            if hold is not None and self._claims is not None:  # interrupted: the claim must not wait for its lease
                await asyncio.shield(self._claims.release_claim(c.Release(hold, error)))
            raise

    async def carry_out(self, command: Any) -> Any:
        """Carry out one command: by the claims, by the database, or by the buffer."""
        match command:
            case c.Claim():
                return c.Unclaimed() if self._claims is None else await self._claims.claim_or_await(command)
            case c.Publish():
                return await self._claims.publish_claim(command)
            case c.Release():
                return await self._claims.release_claim(command)
            case admin.Know():
                await self.check_redis()
                return await self.context()
            case admin.Ended():
                return self._ended(command)
        found = self._steps_of(command)
        if found is None:
            return await self._buffer.carry_out(command)
        return await self._database.run(found[0], alone=found[1])

    async def check_redis(self) -> None:
        """Raises Misconfigured where accepted runs would be kept by a Redis that may forget them; done at first use."""
        if self._redis_unchecked:
            try:
                await self._buffer.carry_out(c.Depth(self.environment))
            except StoreError:
                self._redis_unchecked = False  # an intake starts without Redis; each offer looks at the server again
                return
            self._judge_redis(self._buffer.client.facts)

    async def context(self) -> Context:
        """What the steps need to know; the secrets are read once."""
        if self._known is None:
            given = admin.as_secret(self._given_secret)
            self._known = self._context(await self._database.run(lambda: admin.secrets(given)))
        return self._known

    async def close(self) -> None:
        if self._claims is not None:
            await self._claims.close()
        if self._buffer is not None:
            await self._buffer.close()
        await self._database.close()

    async def __aenter__(self) -> AsyncIntake:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
