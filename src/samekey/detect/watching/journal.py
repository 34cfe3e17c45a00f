"""The files of a watch that survive `kill -9`, a power cut and a full disk.

    secret             the key of the digests
    checkpoint.json    how far everything below is valid; replaced by a rename, never changed in place
    window-N.log       states of keys, the last one of a key counts; N grows with each compaction
    alerts.jsonl       every alert, in the order in which it was found; JSON lines for anything that reads files

Order of a checkpoint: append the states and the alerts, fsync both, write the checkpoint with the position of the
source and the lengths of both files, fsync and rename it, fsync the folder. Only then may the source forget what it
sent. A start truncates both files to the lengths in the checkpoint: what a crash left after them comes again from the
source, and gives the same alerts with the same ids.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from samekey.detect.detector import DIGEST_BYTES
from samekey.detect.watching.changes import StateDamaged

VERSION = 1
COMPACT_FROM = 200_000  # states in the log before a compaction is worth it
SECRET_BYTES = 32

_ENTRY = struct.Struct(f"<{DIGEST_BYTES}sH")  # key, length of its state

Window = dict[bytes, bytes]


class Journal:
    """The state directory of one watch; one process at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.window: Window = {}
        self.checkpoint: dict[str, Any] = {}
        self._entries = self._compacted = 0  # states in the log, and how many of them a compaction wrote
        self._states: list[bytes] = []  # since the last write
        self._alerts: list[bytes] = []
        with _files(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = open(folder / "lock", "wb")  # noqa: SIM115 - held as long as the journal
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self._lock.close()
                raise StateDamaged(f"{folder} is in use by another watch") from None
            self.secret = self._own_secret()
            self._load()

    @property
    def alerts_path(self) -> Path:
        return self.folder / "alerts.jsonl"

    @property
    def alerts_length(self) -> int:
        """Bytes of alerts.jsonl that are durable."""
        return int(self.checkpoint.get("alerts", 0))

    # -- between checkpoints ------------------------------------------------------------------------------------------

    def remember(self, key: bytes, state: bytes) -> None:
        self.window[key] = state
        self._states += (_ENTRY.pack(key, len(state)), state)

    def add_alert(self, line: bytes) -> None:
        self._alerts.append(line)

    def write(self) -> None:
        """Append what is new, without a checkpoint: a long transaction does not grow in memory."""
        with _files(self.folder):
            if self._states:
                self._window_file.write(b"".join(self._states))
                self._entries += len(self._states) // 2
                self._states.clear()
            if self._alerts:
                self._alerts_file.write(b"".join(self._alerts))
                self._alerts.clear()

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def save(self, position: str, facts: dict[str, Any]) -> None:
        """Make everything up to `position` durable. After it the source may forget that position."""
        self.write()
        with _files(self.folder):
            for file in (self._window_file, self._alerts_file):
                file.flush()
                os.fsync(file.fileno())
            self._replace(
                {
                    "version": VERSION,
                    "position": position,
                    "window": self._window_path.name,
                    "window_bytes": self._window_file.tell(),
                    "alerts": self._alerts_file.tell(),
                    **facts,
                }
            )

    def compact(self, keep: Any, position: str, facts: dict[str, Any]) -> bool:
        """Write only the live states into a new log when half of the log is old; `keep(state)` is asked for each."""
        if self._entries < COMPACT_FROM or self._entries < 2 * self._compacted:
            return False
        self.save(position, facts)
        self.window = {key: state for key, state in self.window.items() if keep(state)}
        old_path, old_file = self._window_path, self._window_file
        with _files(self.folder):
            self._open_window(f"window-{int(old_path.stem.partition('-')[2]) + 1}.log", 0)
            for key, state in self.window.items():
                self._window_file.write(_ENTRY.pack(key, len(state)) + state)
            self._entries = self._compacted = len(self.window)
            self.save(position, facts)  # until here a crash continues with the old log
            old_file.close()
            old_path.unlink()
        return True

    def _replace(self, checkpoint: dict[str, Any]) -> None:
        path = self.folder / "checkpoint.json"
        made = path.with_suffix(".new")
        with open(made, "wb") as file:
            file.write(json.dumps(checkpoint).encode())
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)
        _sync_folder(self.folder)
        self.checkpoint = checkpoint

    # -- start and end ------------------------------------------------------------------------------------------------

    def _own_secret(self) -> bytes:
        path = self.folder / "secret"
        if path.exists():
            secret = path.read_bytes()
            if len(secret) != SECRET_BYTES:
                raise StateDamaged(f"{path} does not have {SECRET_BYTES} bytes")
            return secret
        if (self.folder / "checkpoint.json").exists():
            raise StateDamaged(f"{path} is gone: the window cannot be used without it. Start with an empty folder")
        secret = secrets.token_bytes(SECRET_BYTES)
        made = path.with_suffix(".new")
        with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(secret)
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)
        _sync_folder(self.folder)
        return secret

    def _load(self) -> None:
        path = self.folder / "checkpoint.json"
        if path.exists():
            try:
                self.checkpoint = json.loads(path.read_bytes())
                if self.checkpoint["version"] != VERSION:
                    raise ValueError("another version wrote it")
                name, length = self.checkpoint["window"], int(self.checkpoint["window_bytes"])
            except (ValueError, KeyError, TypeError) as error:
                raise StateDamaged(f"{path} cannot be read: {error}") from error
        else:
            name, length = "window-1.log", 0
        self._open_window(name, length)
        self._alerts_file = _open_at(self.alerts_path, self.alerts_length)
        for stale in self.folder.glob("window-*.log"):
            if stale.name != name:
                stale.unlink()  # a crash during a compaction
        self._read_window(length)

    def _open_window(self, name: str, length: int) -> None:
        self._window_path = self.folder / name
        self._window_file = _open_at(self._window_path, length)
        self._entries = self._compacted = 0

    def _read_window(self, length: int) -> None:
        raw = self._window_path.read_bytes()[:length]
        at, window = 0, self.window
        while at < length:
            key, size = _ENTRY.unpack_from(raw, at)
            at += _ENTRY.size
            window[key] = raw[at : at + size]
            at += size
            self._entries += 1
        if at != length:
            raise StateDamaged(f"{self._window_path} does not end with a whole state")

    def close(self) -> None:
        """Without a checkpoint: what was not saved comes again."""
        for file in (self._window_file, self._alerts_file, self._lock):
            try:
                file.close()
            except OSError:
                pass  # the disk is full: these bytes are after the checkpoint, and come again


def _open_at(path: Path, length: int) -> BinaryIO:
    """The file, cut to this length, for appending."""
    if length and (not path.exists() or path.stat().st_size < length):
        raise StateDamaged(f"{path} is shorter than its checkpoint: alerts or states are lost")
    file = open(path, "r+b" if path.exists() else "w+b", buffering=1 << 20)  # noqa: SIM115 - the journal closes it
    file.truncate(length)
    file.seek(length)
    return file


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextmanager
def _files(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateDamaged(
            f"{folder} cannot be written: {error.strerror}. Nothing is lost: the source keeps what is not in the "
            "checkpoint, and the next start continues there"
        ) from error
