"""Tokens that the service signs itself: to read one run, and to upload one packet."""

from __future__ import annotations

import base64
import hmac
import json
import time
from typing import Any

RUN_SECONDS = 3600.0
PACKET_SECONDS = 900.0
PREFIX = "skt_"


def signed(secret: bytes, use: str, environment: str, subject: str, seconds: float) -> str:
    """A token for one use of one subject in one environment."""
    body = json.dumps([use, environment, subject, int(time.time() + seconds)]).encode()
    return f"{PREFIX}{_text(body)}.{_text(_mac(secret, body))}"


def opened(secret: bytes, use: str, token: str) -> tuple[str, str] | None:
    """(environment, subject) of a token that this service signed for this use and that has not ended."""
    body_text, _, mac_text = token.removeprefix(PREFIX).partition(".")
    try:
        body, mac = _bytes(body_text), _bytes(mac_text)
        if not token.startswith(PREFIX) or not hmac.compare_digest(mac, _mac(secret, body)):
            return None
        found: list[Any] = json.loads(body)
    except ValueError:
        return None
    if found[0] != use or found[3] < time.time():
        return None
    return str(found[1]), str(found[2])


def _mac(secret: bytes, body: bytes) -> bytes:
    return hmac.digest(secret, b"samekey.intake.token.1" + body, "sha256")


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
