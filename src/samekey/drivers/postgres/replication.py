"""A connection that streams the changes of a logical replication slot (psycopg's `pgconn`, copy-both mode)."""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Iterator
from contextlib import suppress

import psycopg
from psycopg import pq

from samekey.drivers.postgres.address import Address
from samekey.drivers.postgres.connect import arguments
from samekey.drivers.postgres.errors import first_line
from samekey.drivers.reading import CannotRead

WAIT_SECONDS = 0.2  # between two looks at the clock while the stream is quiet
REPORT_SECONDS = 5.0  # the server ends a connection that reports nothing for wal_sender_timeout (60 s)
MESSAGES = 500  # that are given on before the caller gets control, at most

_DATA = 25  # bytes before the message: w, start, end, time
_KEEPALIVE = struct.Struct(">QqB")
_STATUS = struct.Struct(">cQQQqB")
_PG_EPOCH = 946_684_800


class ReplicationStream:
    def __init__(self, address: Address) -> None:
        self._name = address.name
        try:
            self._connection = psycopg.connect(address.url, **arguments(address), replication="database")
        except (psycopg.Error, OSError) as error:
            raise CannotRead(f"{self._name} cannot be read: {first_line(error)}") from error
        self._wire = self._connection.pgconn
        self._confirmed = 0
        self._reported = 0.0
        self.server_end = 0  # position up to which the server had sent everything, at its last message

    def start(self, slot: str, position: str, publication: str) -> None:
        """`slot` and `publication` are names that the caller checked: letters, digits and underscores."""
        command = (
            f'START_REPLICATION SLOT "{slot}" LOGICAL {position} '
            f"(proto_version '1', publication_names '\"{publication}\"', messages 'true')"
        )
        result = self._wire.exec_(command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise CannotRead(f"{self._name} does not stream the slot {slot}: {_first(result.error_message)}")

    def messages(self) -> Iterator[list[bytes]]:
        """Lists of messages as they come; an empty list when none came for a moment."""
        wire = self._wire
        found: list[bytes] = []
        try:
            while True:
                size, data = wire.get_copy_data(1)
                if size > 0:
                    if data[0] == 119:  # w
                        found.append(bytes(data[_DATA:]))
                        if len(found) < MESSAGES:
                            continue
                    else:
                        self.server_end, _, urgent = _KEEPALIVE.unpack_from(data, 1)
                        if urgent:
                            self._report()
                        continue
                elif size == 0:
                    if not found:
                        select.select([wire.socket], [], [], WAIT_SECONDS)
                    wire.consume_input()
                else:
                    raise CannotRead(f"{self._name} ended the stream: {_first(wire.error_message)}")
                yield found
                found = []
                if time.monotonic() - self._reported > REPORT_SECONDS:
                    self._report()
        except (psycopg.Error, OSError) as error:
            raise CannotRead(f"{self._name} stopped answering: {first_line(error)}") from error

    def confirm(self, position: int) -> None:
        """The server may forget everything before this position."""
        self._confirmed = max(self._confirmed, position)
        try:
            self._report()
        except (psycopg.Error, OSError) as error:
            raise CannotRead(f"{self._name} stopped answering: {first_line(error)}") from error

    def _report(self) -> None:
        now = int((time.time() - _PG_EPOCH) * 1e6)
        self._wire.put_copy_data(_STATUS.pack(b"r", self._confirmed, self._confirmed, self._confirmed, now, 0))
        self._wire.flush()
        self._reported = time.monotonic()

    def close(self) -> None:
        with suppress(psycopg.Error, OSError):
            self._connection.close()


def _first(message: str | bytes) -> str:
    text = message.decode("utf-8", "replace") if isinstance(message, bytes) else message
    return text.strip().splitlines()[0] if text.strip() else "no reason is given"
