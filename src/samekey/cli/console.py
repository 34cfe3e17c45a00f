"""samekey console: serve the web console of one store."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import click

from samekey.cli import _out as out
from samekey.cli._app import load
from samekey.cli._asking import common, open_there
from samekey.cli._keys import sealer
from samekey.cli.exits import Exit
from samekey.core.errors import Misconfigured
from samekey.guard.store_urls import public

TOKEN, VIEWER_TOKEN = "SAMEKEY_CONSOLE_TOKEN", "SAMEKEY_CONSOLE_VIEWER_TOKEN"
TOKEN_MAX_BYTES = 4096
SHUTDOWN_SECONDS = 2  # for open requests; live updates have no end of their own


@click.command()
@click.option("--host", default="127.0.0.1", help="The address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8470, help="The port; 0 takes a free one.")
@click.option("--token-file", type=click.Path(path_type=Path), help=f"A file with the operator's token, or ${TOKEN}.")
@click.option(
    "--viewer-token-file", type=click.Path(path_type=Path), help=f"A file with the viewer's token, or ${VIEWER_TOKEN}."
)
@click.option("--user-header", default="", metavar="NAME", help="A header with the user's name, which a proxy sends.")
@click.option("--trust", multiple=True, metavar="ADDRESS", help="The proxy's address or network; several are possible.")
@click.option("--operators", default="", metavar="NAME,...", help="Users of the proxy who may act; others look.")
@click.option("--allow-host", multiple=True, metavar="NAME", help="A name by which browsers reach the console.")
@click.option("--tenant", metavar="T", help="Show records of this tenant only.")
@click.option("--read-only", is_flag=True, help="Refuse every action, and write nothing.")
@click.option("--name", default="", help="What the pages call this store.")
@click.option("--app", metavar="MODULE:GUARD", help="Your guard: its lookups answer 'ask now'.")
@common
def console(store: str | None, host: str, port: int, as_json: bool, **given: Any) -> Exit:
    """Serve the web console of a store.

    It needs a credential: the operator's token in $SAMEKEY_CONSOLE_TOKEN or --token-file, the viewer's beside it, or a
    reverse proxy that sends the name of the user. Without one it exits with 2. It listens on this machine only, unless
    --host is given; put a proxy with TLS in front of it then.

    \b
    Example:
      SAMEKEY_CONSOLE_TOKEN=$(openssl rand -hex 16) samekey console --store postgresql://db/shop
    """
    try:
        import uvicorn  # noqa: F401 - it is needed below

        from samekey.console import Access, console_app
    except ModuleNotFoundError as missing:
        raise Misconfigured(f"the console needs {missing.name}: pip install 'samekey[console]'") from missing
    access = Access(
        operator_token=token_of(given["token_file"], TOKEN),
        viewer_token=token_of(given["viewer_token_file"], VIEWER_TOKEN),
        user_header=given["user_header"],
        trust=tuple(given["trust"]),
        operators=frozenset(filter(None, (one.strip() for one in given["operators"].split(",")))),
    )
    open_there(store).close()  # a wrong address ends here, with its exit code
    guard = None if given["app"] is None else load(given["app"])
    hosts = {"localhost", "127.0.0.1", "[::1]", host, *given["allow_host"]}
    app = console_app(
        store or "",
        access,
        name=given["name"] or public(store or ""),
        tenant=given["tenant"],
        read_only=given["read_only"],
        guard=guard,
        keys=sealer(),
        hosts=sorted(hosts),
    )
    server = server_of(app)
    with Listening(server, host, port) as where:
        if as_json:
            out.data({"url": where})
        else:
            out.line(f"samekey console at {where}")
        server.run(sockets=[server.samekey_socket])
    return Exit.FINE


def server_of(app: Any) -> Any:
    """uvicorn, which listens at a socket that is bound before anything is printed."""
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        proxy_headers=False,  # the address that --trust is compared with is the peer's own
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    return uvicorn.Server(config)


class Listening:
    """The socket, before anything is printed: a port that is taken is an error with a sentence."""

    def __init__(self, server: Any, host: str, port: int) -> None:
        self._server, self._host, self._port = server, host, port

    def __enter__(self) -> str:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        here = socket.socket(family)
        here.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            here.bind((self._host, self._port))
        except OSError as error:
            here.close()
            raise Misconfigured(f"cannot listen at {self._host}:{self._port}: {error.strerror}") from error
        self._server.samekey_socket = here
        shown = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{shown}:{here.getsockname()[1]}/"

    def __exit__(self, *raised: object) -> None:
        self._server.samekey_socket.close()


def token_of(path: Path | None, variable: str) -> str:
    """The token of a file or of the environment; "" if there is none."""
    if path is None:
        return os.environ.get(variable, "").strip()
    try:
        data = path.read_bytes()[:TOKEN_MAX_BYTES]
        return data.decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"the token file {path} cannot be read: {error}") from error
