"""`samekey demo --console`: the shop of _shop.py with the console open on it, and faults while you look."""

from __future__ import annotations

import logging
import secrets
import tempfile
import threading
from pathlib import Path

from samekey.cli import _out as out
from samekey.cli.console import Listening, server_of
from samekey.cli.demo._shop import Shop
from samekey.cli.exits import Exit
from samekey.core.errors import Misconfigured

PAUSE_SECONDS = 0.5  # between two orders: fast enough to see the figures move


def show(*, seed: int, port: int) -> Exit:
    """Fill the shop, serve the console, and let orders come until Ctrl-C."""
    try:
        from samekey.console import Access, console_app
    except ModuleNotFoundError as missing:
        raise Misconfigured(f"the console needs {missing.name}: pip install 'samekey[console]'") from missing
    logging.getLogger("samekey").setLevel(logging.CRITICAL)  # the doubts are the point, and the page shows them
    address = f"sqlite:///{Path(tempfile.mkdtemp(prefix='samekey-demo-')) / 'keys.db'}"
    shop = Shop(address, seed=seed)
    shop.first_night()
    token = secrets.token_urlsafe(18)
    app = console_app(address, Access(operator_token=token), guard=shop.guard, name="demo shop")
    server, stop = server_of(app), threading.Event()
    customers = threading.Thread(target=orders, args=(shop, stop), daemon=True)
    with Listening(server, "127.0.0.1", port) as where:
        out.line(f"console:  {where}")
        out.line(f"token:    {token}   (of this run; your name is up to you)")
        out.line(f"records:  {address}")
        out.note("orders come while you look, with a fault in every few; Ctrl-C ends it")
        customers.start()
        try:
            server.run(sockets=[server.samekey_socket])
        finally:
            stop.set()
            customers.join()
            shop.close()
    return Exit.FINE


def orders(shop: Shop, stop: threading.Event) -> None:
    while not stop.wait(PAUSE_SECONDS):
        shop.one_more()
