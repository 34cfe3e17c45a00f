"""The judge: a process of its own that writes down every effect and every answer, in the order in which they come.

One JSON object on each line, one reply on each line. It never asks the store and nobody ever kills it, so what it says
is what the world saw. A worker that is killed in the middle of a line has said nothing.
"""

from __future__ import annotations

import json
import socketserver
import sys
import threading
from collections import defaultdict
from typing import Any

from tests.proofs.chaos.history import Sighting, contradiction


class Ledger:
    """What the judge knows."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._receipts: dict[str, list[str]] = defaultdict(list)
        self._known: dict[str, str] = {}  # what was answered under a provider's key
        self._answers: dict[str, set[str]] = defaultdict(set)
        self._sightings: dict[str, list[Sighting]] = defaultdict(list)
        self._wanted: set[str] = set()
        self._doubts: set[str] = set()
        self._answered = 0
        self._troubles: list[str] = []

    def hear(self, said: dict[str, Any]) -> Any:
        with self._mutex:
            match said:
                case {"want": key}:
                    self._wanted.add(key)
                case {"effect": key, "under": name}:
                    # A provider that dedups: a request that it knows has no effect, and the old answer.
                    if name not in self._known:
                        self._known[name] = self._effect(key)
                    return self._known[name]
                case {"effect": key}:
                    return self._effect(key)
                case {"find": key}:
                    return self._receipts[key]
                case {"answer": key, "result": result}:
                    self._answers[key].add(result)
                    self._doubts.discard(key)
                    self._answered += 1
                case {"saw": sightings}:
                    for key, *sighting in sightings:
                        self._sightings[key].append(Sighting(*sighting))
                case {"doubt": key}:
                    self._doubts.add(key)
                case {"trouble": text}:
                    self._troubles.append(text)
                case {"wanted": _}:
                    return sorted(self._wanted)
                case {"books": _}:
                    return self._books()
                case _:
                    return f"not understood: {said}"
        return None

    def _effect(self, key: str) -> str:
        # Each effect has a receipt of its own: two effects cannot look like one.
        self._receipts[key].append(f"{key} receipt {len(self._receipts[key]) + 1}")
        return self._receipts[key][-1]

    def _books(self) -> dict[str, Any]:
        return {
            "wanted": sorted(self._wanted),
            "receipts": {key: found for key, found in self._receipts.items() if found},
            "answers": {key: sorted(found) for key, found in self._answers.items()},
            "doubts": sorted(self._doubts),
            "answered": self._answered,
            "troubles": self._troubles,
            "sightings": sum(map(len, self._sightings.values())),
            "contradictions": [
                f"{key}: {why}, in {sorted(seen)}"
                for key, seen in self._sightings.items()
                if (why := contradiction(seen))
            ],
        }


class _Conversation(socketserver.StreamRequestHandler):
    server: _Door

    def handle(self) -> None:
        for line in self.rfile:
            if not line.endswith(b"\n"):
                return
            reply = self.server.ledger.hear(json.loads(line))
            try:
                self.wfile.write(json.dumps(reply).encode() + b"\n")
            except OSError:
                return  # killed while it was told


class _Door(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        self.ledger = Ledger()
        super().__init__(("127.0.0.1", 0), _Conversation)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A worker that is killed hangs up: nothing to tell."""


def main() -> None:
    """Say the port, and listen until whoever started us hangs up."""
    with _Door() as door:
        print(door.server_address[1], flush=True)
        threading.Thread(target=door.serve_forever, daemon=True).start()
        sys.stdin.read()
        door.shutdown()


if __name__ == "__main__":
    main()
