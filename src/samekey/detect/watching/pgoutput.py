"""Messages of PostgreSQL's output plugin `pgoutput` (protocol 1), decoded to events. Bytes in, batches out.

With protocol 1 a transaction comes whole, after its commit: Begin, its changes, Commit. The position after a Commit is
the end of that commit, so a checkpoint is always between two transactions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from samekey.detect.detector import Event
from samekey.detect.watching.changes import Batch, Gap
from samekey.detect.watching.plans import Plan

HEARTBEAT = b"samekey"  # prefix of the messages that the watcher writes into the log itself
BATCH_ROWS = 500  # changes that are given on together

_INT = struct.Struct(">I")
_length = _INT.unpack_from
_BEGIN = struct.Struct(">QqI")  # position of the commit, its time, transaction id
_COMMIT = struct.Struct(">BQQq")  # flags, position, end position, time
_PG_EPOCH = 946_684_800_000_000  # 2000-01-01 in microseconds since 1970

PlansOf = Callable[[str, Sequence[str]], list[Plan]]  # full name of a table, its columns


def lsn_text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


class Decoder:
    def __init__(self, plans_of: PlansOf) -> None:
        self._plans_of = plans_of
        self._plans: dict[int, list[Plan]] = {}  # by the number of the relation
        self._commit_at = 0
        self._transaction = ""
        self.inside = False  # of a transaction
        self.batch = Batch()

    def take(self) -> Batch:
        """What was decoded since the last call. Inside a transaction it has no position: no checkpoint may be there."""
        batch, self.batch = self.batch, Batch()
        if self.inside:
            batch.position = None
        return batch

    def feed(self, data: bytes) -> bool:
        """Decode one message; True when there are enough changes for a batch."""
        kind = data[0]
        if kind == 73:  # I: insert, the common one
            return self._insert(data)
        if kind == 66:  # B
            _, at, number = _BEGIN.unpack_from(data, 1)
            self._commit_at = at + _PG_EPOCH
            self._transaction = str(number)
            self.inside = True
        elif kind == 67:  # C
            _, _, end, _ = _COMMIT.unpack_from(data, 1)
            self.inside = False
            self.batch.position = lsn_text(end)
            self.batch.clock = self._commit_at
        elif kind == 82:  # R
            self._relation(data)
        elif kind == 77:  # M
            self._message(data)
        elif kind not in (79, 84, 89, 85, 68):  # origin, truncate, type, update, delete: no new row
            raise Gap(f"the server sent a message of the unknown kind {chr(kind)!r}: changes may be missing")
        return False

    def _insert(self, data: bytes) -> bool:
        plans = self._plans.get(int.from_bytes(data[1:5], "big"))
        batch = self.batch
        batch.rows += 1
        if not plans:
            return False
        values: list[bytes | None] = []
        length = _length
        at, size = 8, len(data)  # after the relation, the letter N and the number of columns
        while at < size:
            mark = data[at]
            if mark == 116:  # t: a text
                end = at + 5 + length(data, at + 1)[0]
                values.append(data[at + 5 : end])
                at = end
            else:  # n: NULL
                values.append(None)
                at += 1
        committed, transaction, events = self._commit_at, self._transaction, batch.events
        for plan in plans:
            event: Event | None = plan.event(values, committed, transaction)
            if event is not None:
                events.append((plan, event))
        return batch.rows >= BATCH_ROWS

    def _relation(self, data: bytes) -> None:
        number = int(_INT.unpack_from(data, 1)[0])
        schema, at = _text(data, 5)
        table, at = _text(data, at)
        count = int.from_bytes(data[at + 1 : at + 3], "big")  # after the replica identity
        at += 3
        columns = []
        for _ in range(count):
            name, at = _text(data, at + 1)  # after the flags
            columns.append(name)
            at += 8  # type and modifier
        self._plans[number] = self._plans_of(f"{schema}.{table}", columns)

    def _message(self, data: bytes) -> None:
        """A heartbeat. It is outside of transactions, and its position is that of everything before it."""
        (lsn,) = struct.unpack_from(">Q", data, 2)
        if data[10 : 10 + len(HEARTBEAT) + 1] == HEARTBEAT + b"\0" and not self.inside:
            content = data[10 + len(HEARTBEAT) + 1 + 4 :]
            self.batch.heartbeat = True
            self.batch.position = lsn_text(lsn)
            self.batch.clock = int(content) if content.isdigit() else 0


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(), end + 1
