"""Redis servers that belong together: a replica, a sentinel, a cluster."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from samekey.testing.servers import Redis, RedisServer, free_port, own_folder, redis_program, redis_server

SLOTS = 16384
UNTIL_SECONDS = 30.0


def until(true: Callable[[], object]) -> None:
    """Wait for it, for as long as a server takes to start; what does not come is a failure."""
    deadline = time.monotonic() + UNTIL_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"it did not come within {UNTIL_SECONDS:.0f} s")
        time.sleep(0.01)


@contextlib.contextmanager
def _running(server: RedisServer) -> Iterator[RedisServer]:
    try:
        server.start()
        yield server
    finally:
        server.stop(kill=True)


@contextlib.contextmanager
def replica(master: RedisServer) -> Iterator[RedisServer]:
    """A server that follows this master, and has caught up; `promote` makes it a master."""
    with own_folder("redis") as folder:
        settings = {**master.settings, "replicaof": f"127.0.0.1 {master.port}"}
        with _running(RedisServer(master.program.resolve(), folder, settings)) as copy:
            until(lambda: copy.info("master_link_status") == "up" and in_step(copy, master))
            yield copy


def in_step(copy: RedisServer, master: RedisServer) -> bool:
    """Whether the copy has all that the master wrote; a link that is up says nothing about that."""
    return copy.info("slave_repl_offset") == master.info("master_repl_offset")


def promote(copy: RedisServer) -> None:
    copy.call("REPLICAOF", "NO", "ONE")


class Sentinel(RedisServer):
    """A sentinel: it has a file of settings, and no socket file."""

    title = "redis-sentinel"

    def __init__(self, master: RedisServer, folder: Path, name: str) -> None:
        super().__init__(master.program.resolve(), folder, {})
        self._file = folder / "sentinel.conf"
        self._file.write_text(
            f"sentinel monitor {name} 127.0.0.1 {master.port} 1\n"
            f"sentinel down-after-milliseconds {name} 300\n"
            f"sentinel failover-timeout {name} 2000\n"
        )

    def start(self) -> None:
        places = ["--port", str(self.port), "--dir", str(self.folder)]
        self.launch(str(self.program), str(self._file), "--sentinel", *places)

    _connected = Redis._connected


@contextlib.contextmanager
def sentinel(master: RedisServer, name: str = "main") -> Iterator[Sentinel]:
    """One sentinel that watches this master and promotes its replica when the master is gone."""
    with own_folder("redis") as folder, _running(Sentinel(master, folder, name)) as watch:
        assert isinstance(watch, Sentinel)
        yield watch


def cluster_node() -> contextlib.AbstractContextManager[RedisServer]:
    """A server that can join a cluster, and is in none yet."""
    return redis_server(cluster_enabled="yes", cluster_port=str(free_port()))  # the port is explained in redis_cluster


@contextlib.contextmanager
def redis_cluster(masters: int = 3, flavour: str | None = None, *, replicas: int = 0) -> Iterator[list[RedisServer]]:
    """A cluster whose slots are spread evenly over its masters; its replicas, one for each master, come last."""
    program = redis_program(flavour)
    settings = {"cluster-enabled": "yes", "cluster-node-timeout": "1000", "cluster-replica-validity-factor": "0"}
    with contextlib.ExitStack() as stack:
        nodes = []
        for _ in range(masters * (1 + bool(replicas))):
            folder = stack.enter_context(own_folder("redis"))
            # Without a port of its own, the cluster bus is at the port plus 10000, and that may be no port.
            node = RedisServer(program, folder, {**settings, "cluster-port": str(free_port())})
            nodes.append(stack.enter_context(_running(node)))
        for at, node in enumerate(nodes[:masters]):
            first, last = SLOTS * at // masters, SLOTS * (at + 1) // masters - 1
            node.call("CLUSTER", "ADDSLOTSRANGE", first, last)
            node.call("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
        for node in nodes[1:]:
            node.call("CLUSTER", "MEET", "127.0.0.1", nodes[0].port, nodes[0].settings["cluster-port"])
        until(lambda: all(len(str(node.call("CLUSTER", "NODES")).splitlines()) == len(nodes) for node in nodes))
        for at, node in enumerate(nodes[masters:]):
            node.call("CLUSTER", "REPLICATE", str(nodes[at].call("CLUSTER", "MYID")))
        until(lambda: all("cluster_state:ok" in str(node.call("CLUSTER", "INFO")) for node in nodes))
        pairs = list(zip(nodes, nodes[masters:], strict=False))
        until(lambda: all(copy.info("master_link_status") == "up" and in_step(copy, one) for one, copy in pairs))
        yield nodes
