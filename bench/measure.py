"""Fair timing on an unfair machine.

A neighbour can double any single number, so nothing is timed alone. Contenders take turns, round by round and
in alternating order; each round gives one ratio, and the median of the ratios is the figure. CPU time counts
rather than the clock on the wall wherever the wall would measure the neighbours. What has to be made ready for
a round is made outside the timing, after a garbage collection and with the collector off.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import NamedTuple
from urllib.parse import quote
from uuid import UUID

OPERATIONS_MAX = 20_000  # in one round: bounds the memory and the file that a fast contender fills
LOOP_STEPS = 20_000
MIX_STEPS = 60


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to look."""

    rounds: int
    seconds: float  # CPU per contender and round, roughly
    crowd_seconds: float  # wall clock per round where threads meet a disk


FULL = Effort(rounds=15, seconds=0.12, crowd_seconds=1.0)
QUICK = Effort(rounds=3, seconds=0.01, crowd_seconds=0.25)


class Lap(NamedTuple):
    """Seconds per operation in one round."""

    cpu: float
    wall: float


Work = Callable[[], object]
Prepare = Callable[[int], Work]  # makes ready for so many operations; the work it returns does them


class Race(NamedTuple):
    """The laps of each contender, and how fast the machine was in between."""

    laps: tuple[list[Lap], ...]
    mix_ms: list[float]

    @property
    def speed(self) -> str:
        """An absolute time is worth something only beside the speed of the machine in the very same rounds."""
        return f"machine.mix took {statistics.median(self.mix_ms):.2f} ms in these rounds"


def interleave(effort: Effort, *contenders: Prepare) -> Race:
    """Let them take turns; every contender does the same number of operations in every round."""
    operations = _enough(contenders[0], effort.seconds)
    for prepare in contenders:
        prepare(max(1, operations // 4))()  # warm: caches, statements, threads
    race = Race(tuple([] for _ in contenders), [])
    order = list(range(len(contenders)))
    for _ in range(effort.rounds):
        race.mix_ms.extend(calibration_laps(1))
        for number in order:
            race.laps[number].append(_lap(contenders[number], operations))
        order.reverse()
    return race


def _enough(prepare: Prepare, seconds: float) -> int:
    operations = 1
    while operations < OPERATIONS_MAX:
        spent = _lap(prepare, operations).cpu * operations
        if spent >= seconds / 2:
            return max(1, min(OPERATIONS_MAX, round(operations * seconds / spent)))
        operations *= 4
    return OPERATIONS_MAX


def _lap(prepare: Prepare, operations: int) -> Lap:
    work = prepare(operations)
    with quiet():
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Lap(cpu / operations, wall / operations)


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection in here: whose turn it falls into would be chance."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# -- from laps to numbers ------------------------------------------------------------------------------------------


def cpu_ratios(ours: Sequence[Lap], theirs: Sequence[Lap]) -> list[float]:
    return [mine.cpu / other.cpu for mine, other in zip(ours, theirs, strict=True)]


def wall_ratios(ours: Sequence[Lap], theirs: Sequence[Lap]) -> list[float]:
    return [mine.wall / other.wall for mine, other in zip(ours, theirs, strict=True)]


def added_microseconds(ours: Sequence[Lap], bare: Sequence[Lap]) -> list[float]:
    """CPU per operation above what the bare function takes."""
    return [(mine.cpu - other.cpu) * 1e6 for mine, other in zip(ours, bare, strict=True)]


def microseconds(laps: Sequence[Lap]) -> float:
    """CPU per operation, the median round."""
    return statistics.median(lap.cpu for lap in laps) * 1e6


def percentile(values: Sequence[float], part: float) -> float:
    """The value below which `part` of them lie; of few values the next higher one, never a guess between two."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


# -- many threads at once ------------------------------------------------------------------------------------------


def operations_per_second(callers: int, seconds: float, make_caller: Callable[[int], Work]) -> float:
    """How many operations `callers` threads finish per second; each makes its caller first, untimed."""
    done = [0] * callers
    errors: list[BaseException] = []
    ready = threading.Barrier(callers + 1)
    stop_at = float("inf")

    def run(number: int) -> None:
        try:
            call = make_caller(number)
        except BaseException as error:
            errors.append(error)
            ready.abort()
            raise
        ready.wait()
        try:
            while True:
                call()
                if time.perf_counter() >= stop_at:
                    return
                done[number] += 1
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(callers)]
    with quiet():
        for thread in threads:
            thread.start()
        with contextlib.suppress(threading.BrokenBarrierError):  # then there is an error
            ready.wait()
        begun = time.perf_counter()
        stop_at = begun + seconds
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    return sum(done) / seconds


# -- how fast is this machine right now ----------------------------------------------------------------------------


def calibration_loop() -> int:
    """Fixed work in a tight loop: how fast the core is. Neighbours who fill its caches do not show here."""
    total = 0
    box: dict[int, tuple[int, int]] = {}
    for step in range(LOOP_STEPS):
        box[step & 63] = (step, total)
        total += len(box) + box[step & 63][0] % 7
    return total


class _Line(NamedTuple):
    sku: str
    amount: int
    price: Decimal


def calibration_mix() -> int:
    """Fixed work all over the standard library: as many different places as a guarded call visits."""
    total = 0
    for step in range(MIX_STEPS):
        line = _Line(f"SKU-{step:06d}", step, Decimal(step) / 100)._replace(amount=step + 1)
        text = json.dumps({"sku": line.sku, "amount": line.amount, "price": str(line.price)}, sort_keys=True)
        digest = hashlib.sha256(text.encode()).digest()
        name = str(UUID(bytes=digest[:16], version=4))
        moment = datetime.fromtimestamp(step, UTC).isoformat()
        found = re.sub(r"[0-9]+", "#", f"{quote(text)} {name} {moment}")
        total += len(json.loads(text)) + len(sorted(found.split("#"), key=len))
    return total


def calibration_laps(rounds: int, work: Work = calibration_mix) -> list[float]:
    """CPU milliseconds of a calibration, round by round."""
    work()
    laps = []
    with quiet():
        for _ in range(rounds):
            begun = time.thread_time()
            work()
            laps.append((time.thread_time() - begun) * 1e3)
    return laps


def sync_laps(rounds: int) -> list[float]:
    """Milliseconds for 4 KiB to reach the disk that temporary files are on."""
    laps = []
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(rounds):
            file.write(bytes(4096))
            begun = time.perf_counter()
            os.fsync(file.fileno())
            laps.append((time.perf_counter() - begun) * 1e3)
    return laps
