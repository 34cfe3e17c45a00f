"""What a source of changes gives to the watcher, and what it takes from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from samekey.core.errors import SamekeyError
from samekey.detect.detector import Event
from samekey.detect.watching.plans import Plan


class Gap(SamekeyError):
    """Changes were lost or may have been: what was watched until here is not the whole answer."""


class SourceLost(SamekeyError):
    """The source stopped answering. Nothing is lost: the next start continues after the last checkpoint."""


class StateDamaged(SamekeyError):
    """The files of the state directory cannot be read or written."""


@dataclass(slots=True)
class Batch:
    """Changes up to a point between two transactions. `position` is None inside a transaction: no checkpoint there."""

    events: list[tuple[Plan, Event]] = field(default_factory=list)
    position: str | None = None
    clock: int = 0  # microseconds: when the newest of these transactions was committed
    rows: int = 0  # changes, those without a key included
    heartbeat: bool = False


class Source(Protocol):
    """A stream of changes that can be read again from a position."""

    name: str  # for people, without a password

    @property
    def identity(self) -> str:
        """Changes when the stream is another one: a restored server, another topic, a new audit table."""
        ...

    def open(self, position: str | None) -> str:
        """Continue after `position`, or start; the position to note. Raises `Gap` when changes after it are gone."""
        ...

    def batches(self) -> Iterator[Batch]:
        """Changes as they come. An empty batch is given at least once a second, and ends with a finite source."""
        ...

    def mark_end(self) -> None:
        """Note where the stream ends now, for `reached_end`."""
        ...

    def reached_end(self, position: str) -> bool:
        """Whether everything up to the noted end was given."""
        ...

    def confirm(self, position: str) -> None:
        """Everything up to here is durable: the source may forget it."""
        ...

    def gauges(self) -> dict[str, float]:
        """Numbers for the metrics, such as the bytes that a slot retains."""
        ...

    def remove(self) -> None:
        """Leave nothing of the watch on the server."""
        ...

    def close(self) -> None: ...
