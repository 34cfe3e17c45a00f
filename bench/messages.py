"""python -m bench.messages [MESSAGES]: guarded messages beside unguarded ones, in one run.

Each message works for 1 ms on the processor of the consumer's thread. Batches of 100 go through `process_many`. Printed
are the ratio of the time to unguarded work, and the client's CPU per message beyond that work. Both are taken from
process CPU time plus the time that the client waited for its server, measured as wall time of the same rounds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from samekey import Guard, Keyed
from samekey.drivers.postgres.migrate import migrate
from samekey.messages import Handler, Message
from samekey.testing.servers import postgres, redis_server

WORK_SECONDS = 0.001
BATCH = 100
ROUNDS = 5


def work(_: Message) -> None:
    until = time.thread_time() + WORK_SECONDS
    while time.thread_time() < until:
        pass


def messages(number: int, prefix: str) -> list[Message]:
    return [
        Message(json.dumps({"key": f"{prefix}-{one}", "amount": one}).encode(), {}, "bench") for one in range(number)
    ]


def timed(run: Callable[[list[Message]], Any], batch: list[Message]) -> tuple[float, float]:
    """Wall and CPU seconds of one round."""
    wall, cpu = time.monotonic(), time.process_time()
    run(batch)
    return time.monotonic() - wall, time.process_time() - cpu


def plain(batch: list[Message]) -> None:
    for message in batch:
        work(message)


def measure(name: str, guard: Guard, number: int) -> None:
    handler = Handler(guard, work, name="bench", key="key", boundary=Keyed())

    def batches(some: list[Message]) -> None:
        for start in range(0, len(some), BATCH):
            actions = handler.process_many(some[start : start + BATCH])
            assert {action.verb for action in actions} == {"ack"}

    def one_by_one(some: list[Message]) -> None:
        for message in some:
            assert handler.process(message).verb == "ack"

    best: dict[str, tuple[float, float]] = {}
    for turn in range(ROUNDS):  # in turn: a busy machine is busy for all of them
        for what, run in (("unguarded", plain), ("one by one", one_by_one), ("batches of 100", batches)):
            found = timed(run, messages(number, f"{name}-{what}-{turn}"))
            known = best.get(what, (float("inf"), float("inf")))
            best[what] = min(known[0], found[0]), min(known[1], found[1])
    base_wall, base_cpu = best["unguarded"]
    for what in ("one by one", "batches of 100"):
        wall, cpu = best[what]
        added = (cpu - base_cpu) / number * 1e6
        print(f"{name:12}{what:16} {wall / base_wall:5.2f}x of unguarded   {added:6.0f} us of CPU added per message")


def main() -> None:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    with postgres() as server:
        url = server.create_database()
        migrate(url)
        with Guard(url) as guard:
            measure("PostgreSQL", guard, number)
    with redis_server("redis-7") as redis, Guard(redis.url()) as guard:
        measure("Redis", guard, number)


if __name__ == "__main__":
    main()
