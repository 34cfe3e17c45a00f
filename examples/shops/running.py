"""A shop, its provider and its database, started on free ports and stopped again: by hand and in the tests."""
# ruff: noqa: S603 - starts the programs beside this file

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from samekey.testing.servers import postgres

HERE = Path(__file__).parent
START_SECONDS = 180  # four workers on a busy machine

SERVERS = {
    # uvicorn ends a worker that does not answer it in time: on a busy machine, all of them while they start.
    "fastapi": "uvicorn fastapi_shop.app:app --port {port} --workers {workers} --log-level warning"
    " --timeout-worker-healthcheck 60",
    "django": "gunicorn django_shop.wsgi --bind 127.0.0.1:{port} --workers {workers} --log-level warning",
}


class Shop(NamedTuple):
    url: str
    provider: str
    store: str  # for `samekey ... --store`


@contextmanager
def running(which: str, folder: Path, *, workers: int = 4, lease_seconds: float = 30) -> Iterator[Shop]:
    """This shop, open; `folder` holds its database, unless that is a PostgreSQL server."""
    with ExitStack() as stack:
        if which == "django":
            database = str(folder / "shop.db")
            store = f"sqlite:///{database}"
        else:
            database = store = os.environ.get("SHOP_DATABASE") or stack.enter_context(postgres()).create_database()
        ports = [free_port(), free_port()]
        provider, url = (f"http://127.0.0.1:{port}" for port in ports)
        named = {"SHOP_DATABASE": database, "SHOP_PROVIDER": provider, "SHOP_LEASE_SECONDS": str(lease_seconds)}
        environment = {**os.environ, **named, "PYTHONPATH": str(HERE)}
        run = {"cwd": HERE, "env": environment}
        for command in ([f"{which}_shop"], ["samekey", "migrate", "--store", store]):  # its tables, and ours
            subprocess.run([sys.executable, "-m", *command], check=True, **run, stdout=subprocess.DEVNULL)
        serve = SERVERS[which].format(port=ports[1], workers=workers).split()
        for port, command in zip(ports, (["provider", str(ports[0])], serve), strict=True):
            process = subprocess.Popen([sys.executable, "-m", *command], **run)
            stack.callback(stop, process)
            wait_for(port, process)
        yield Shop(url, provider, store)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.05)


def stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()  # uvicorn and gunicorn end their workers
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
