"""A real browser on a real server: Debian's Chromium, driven by Playwright; nothing is downloaded."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from samekey.core.books import Count
from samekey.stores.sqlite import SqliteStore
from samekey.testing.servers import NoServer
from tests.console.shop import OPERATOR, charge, double, fill

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
AXE = "axe-core@4.14.0"
ROOT = Path(__file__).parents[2]
SHOTS = ROOT / "build" / "console-shots"  # kept as an artefact of the build
SIZES = {"desktop": (1440, 900), "phone": (390, 844)}


class Served:
    """An ASGI application on a free port, in a thread, until the block ends."""

    def __init__(self, app: Any) -> None:
        self.app = app
        config = uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1, lifespan="on")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> str:
        self._thread.start()
        ends = time.monotonic() + 60
        while not self._server.started and time.monotonic() < ends:
            time.sleep(0.02)
        (socket,) = self._server.servers[0].sockets
        return f"http://127.0.0.1:{socket.getsockname()[1]}"

    def __exit__(self, *raised: object) -> None:
        self._server.should_exit = True
        self._thread.join(30)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser for the tests of one file; each test opens its own context.

    Not for the whole process: while Playwright runs, its event loop counts as running, so no async test can start one.
    """
    if not Path(CHROMIUM).exists():
        raise NoServer("no browser: apt-get install chromium", "chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, from npm; kept for later runs."""
    folder = ROOT / ".cache" / "axe"
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        if shutil.which("npm") is None:
            raise NoServer("no npm to get axe-core with: apt-get install npm", "npm")
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--no-save", "--prefix", str(folder), AXE]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ})
        assert done.returncode == 0, done.stderr
    return script.read_text(encoding="utf-8")


class Tab:
    """One signed-in page, and what its console printed."""

    def __init__(self, context: Any, base: str) -> None:
        self.context, self.base = context, base
        self.complaints: list[str] = []
        self.page = context.new_page()
        self.page.on(
            "console", lambda one: self.complaints.append(one.text) if one.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _printed(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def sign_in(self, token: str = OPERATOR, name: str = "ada") -> Tab:
        self.page.goto(f"{self.base}/sign-in")
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_label("Your name").fill(name)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(f"{self.base}/")
        return self

    def open(self, path: str) -> Any:
        self.page.goto(f"{self.base}{path}")
        return self.page


@pytest.fixture
def tabs(chromium: Any) -> Iterator[Any]:
    """Opens signed-in pages; each in a context of its own, closed at the end."""
    with contextlib.ExitStack() as stack:

        def new(base: str, *, size: str = "desktop", dark: bool = False, **signing: Any) -> Tab:
            width, height = SIZES[size]
            scheme = "dark" if dark else "light"
            context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            stack.callback(context.close)
            context.set_default_timeout(30_000)
            return Tab(context, base).sign_in(**signing)

        yield new


def night(store: Any) -> Any:
    """Records of one night in a shop: a slow provider, doubts, a doubled charge, a client that repeats itself."""
    guard = fill(store, doubts=6, done=12)
    for number, version in enumerate(("web 4.2.0", "web 4.2.0", "ios 8.14")):
        attributes = {"client_version": version, "region": "eu-west", "api_key_id": "ak_19", "source": version}
        charge(guard, f"cart-9-{number}", payload={"cart": 9}, attributes=attributes, amount=2900, party="cus_9")
    double(store, "doubt-0")
    now = int(time.time() // 60)
    for ago in range(0, 24 * 60, 5):
        shape = 40 + ago % 97 // 3 + (30 if 20 < ago < 60 else 0)
        again = {"web 4.2.0": 6 if ago < 90 else 1, "ios 8.14": 2}
        outcomes = {"new": shape, "waited": ago % 7 == 0, "reused": ago % 55 == 0, "in_doubt": 3 * (20 < ago < 60)}
        counts = [Count(now - ago, "order.charge", source, "replayed", number) for source, number in again.items()]
        counts += [Count(now - ago, "order.charge", "web 4.2.0", name, int(n)) for name, n in outcomes.items() if n]
        store.add_counts([*counts, Count(now - ago, "order.charge", "ios 8.14", "new", 30)])
    return guard


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[tuple[str, SqliteStore]]:
    """A console on the records of one night, its address, and its store."""
    from samekey.console import console_app
    from tests.console.shop import ACCESS

    address = f"sqlite:///{tmp_path / 'keys.db'}"
    store = SqliteStore.from_url(address)
    with night(store) as guard, Served(console_app(address, ACCESS, guard=guard, name="shop-production")) as base:
        yield base, store
    store.close()
