"""What the MySQL tests share: connections that are not the store's, and patience."""

from __future__ import annotations

import contextlib
import time
from typing import Any
from urllib.parse import urlsplit

import pymysql

from samekey.stores.mysql import MysqlStore


def connected(url: str, **more: Any) -> Any:
    """A connection as a shop would make it: not one of the store's."""
    parts = urlsplit(url)
    settings = {
        "host": parts.hostname,
        "port": parts.port,
        "user": parts.username,
        "database": parts.path[1:],
        "ssl_disabled": True,
    }
    return contextlib.closing(pymysql.connect(**{**settings, **more}))


def sql(url: str, statement: str) -> Any:
    with connected(url, autocommit=True) as link, link.cursor() as cursor:
        cursor.execute(statement)
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def until(found: Any, *, every: float = 0.01) -> Any:
    deadline = time.monotonic() + 20.0
    while not (value := found()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(every)
    return value


def opened(url: str) -> Any:
    return contextlib.closing(MysqlStore(url))


def plain(url: str) -> str:
    """The same address for a user who may read and write rows, and nothing else."""
    sql(url, "CREATE USER IF NOT EXISTS plain@'%' IDENTIFIED BY ''")
    sql(url, f"GRANT SELECT, INSERT, UPDATE, DELETE ON {urlsplit(url).path[1:]}.* TO plain@'%'")
    return url.replace("samekey@", "plain@")
