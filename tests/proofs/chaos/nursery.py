"""Starts workers in a millisecond, because everything is imported already, and ends them by kill -9.

It is the workers' parent: a pid that it signals is always its own child's, never a stranger's that came after it.
Commands come on stdin as JSON, one on each line; each has a reply on stdout.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from importlib import import_module
from typing import Any

from samekey.guard.store_urls import SCHEMES
from tests.proofs.chaos.worker import finish, work


class Nursery:
    def __init__(self, address: str, port: int, effects: str, keys: int) -> None:
        self._what = (address, port, effects)
        import_module(SCHEMES[address.partition(":")[0]][0].partition(":")[0])  # the store and its driver
        self._keys = keys
        self._children: list[int] = []
        self._chance = random.Random()

    def hear(self, said: dict[str, Any]) -> Any:
        match said:
            case {"start": seed}:
                self._children.append(_fork(lambda: work(*self._what, self._keys, seed)))
            case {"kill": _}:
                self._end(self._chance.choice(self._children))
            case {"pause": _}:
                pid = self._chance.choice(self._children)
                os.kill(pid, signal.SIGSTOP)
                return pid
            case {"resume": pid}:
                if pid in self._children:  # else it was killed in its sleep
                    os.kill(pid, signal.SIGCONT)
            case {"finish": _}:
                self.close()
                _, status = os.waitpid(_fork(lambda: finish(*self._what)), 0)
                return status
        return None

    def close(self) -> None:
        for pid in list(self._children):
            self._end(pid)

    def _end(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self._children.remove(pid)


def _fork(errand: Any) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            sys.stdin.close()
            errand()
            code = 0
        finally:
            os._exit(code)
    return pid


def main() -> None:
    address, port, effects, keys = sys.argv[1:]
    nursery = Nursery(address, int(port), effects, int(keys))
    try:
        for line in sys.stdin:
            print(json.dumps(nursery.hear(json.loads(line))), flush=True)
    finally:
        nursery.close()  # whoever started us is gone


if __name__ == "__main__":
    main()
