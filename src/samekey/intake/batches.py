"""Batches in two steps: open one, then add its items. A batch key is answered with `isCached: true` only when
the batch is sealed.

A lost answer to the first step made no runs at all in the system this comes from: the retry was answered with
isCached true, and the client sent no items.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

from samekey.intake import admin
from samekey.intake.ids import check_key
from samekey.intake.intake import AsyncIntake
from samekey.intake.runs import Problem, Run
from samekey.intake.times import iso

ITEMS_MAX = 1000  # of one batch


class Batches:
    def __init__(self, intake: AsyncIntake) -> None:
        self._intake = intake

    async def open(self, body: dict[str, Any], environment: str, request_id: str | None) -> dict[str, Any]:
        count = body.get("runCount")
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= ITEMS_MAX:
            raise Problem(400, f"runCount must be 1 to {ITEMS_MAX}")
        key = check_key(body.get("idempotencyKey"))
        unique = f"key:{key}" if key is not None else f"request:{request_id or uuid4().hex}"
        known = await self._intake.context()
        mac = hmac.digest(known.secrets[1], f"batch:{len(environment)}:{environment}:{unique}".encode(), "sha256")
        command = admin.OpenBatch(environment, f"batch_{mac.hex()[:32]}", count, key)
        batch: admin.Batch = await self._intake.carry_out(command)
        return {"id": batch.id, "runCount": batch.expected, "isCached": key is not None and batch.sealed}

    async def add(self, batch_id: str, environment: str, items: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
        """Trigger each item once; an item that is sent again is found by its number."""
        batch = await self._batch(batch_id, environment)
        accepted = repeated = 0
        async for item in items:
            number, given = item["index"], item["given"]
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < batch.expected:
                raise Problem(400, f"index must be 0 to {batch.expected - 1}")
            payload = given.pop("payload")
            given |= {"batch": batch_id, "function": "batchTrigger", "request_id": f"{batch_id}:{number}"}
            done = await self._intake.run(self._intake.triggering(item["task"], payload, given))
            new: bool = await self._intake.carry_out(admin.NoteItem(batch_id, number, done.id))
            accepted, repeated = accepted + new, repeated + (not new)
        count: int = await self._intake.carry_out(admin.SealBatch(environment, batch_id))
        sealed = count >= batch.expected
        answer = {"id": batch_id, "itemsAccepted": accepted, "itemsDeduplicated": repeated, "sealed": sealed}
        return answer if sealed else {**answer, "enqueuedCount": count, "expectedCount": batch.expected}

    async def read(self, batch_id: str, environment: str) -> tuple[admin.Batch, list[Run]]:
        batch = await self._batch(batch_id, environment)
        return batch, [await self._intake.get(run, environment=environment) for run in batch.runs]

    async def _batch(self, batch_id: str, environment: str) -> admin.Batch:
        found: admin.Batch | None = await self._intake.carry_out(admin.ReadBatch(environment, batch_id))
        if found is None:
            raise Problem(404, "batch not found")
        return found


def batch_shown(batch: admin.Batch, runs: list[Run]) -> dict[str, Any]:
    over = batch.sealed and all(run.state.over for run in runs)
    return {
        "id": batch.id,
        "status": "COMPLETED" if over else "PROCESSING" if batch.sealed else "PENDING",
        "createdAt": iso(batch.created_at),
        "updatedAt": iso(max([batch.created_at, *(run.updated_at for run in runs)])),
        "runCount": batch.expected,
        "runs": [run.id for run in runs],
        "processing": {"errors": []},
    }
