"""What all private servers need: how long a start may take, a free port, and a user that the server accepts."""

from __future__ import annotations

import os
import socket

START_SECONDS = 60.0  # a busy machine takes long for an initdb
STOP_SECONDS = 30.0
USER = "samekey"


class NoServer(Exception):
    """There is no such server here; the message says what to install.

    A test or fixture that lets it pass is skipped by our pytest plugin, or fails where `server` is required.
    """

    def __init__(self, why: str, server: str = "postgres") -> None:
        super().__init__(why)
        self.server = server


def unprivileged() -> dict[str, int]:
    """The user that the server runs as: our own, or the system user `nobody` when we are root."""
    if os.geteuid() != 0:
        return {}
    import pwd

    user = pwd.getpwnam("nobody")
    return {"user": user.pw_uid, "group": user.pw_gid}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
