"""A connection that writes to the database at an address."""

from __future__ import annotations

from samekey.detect.catalog import Engine
from samekey.drivers.writing import Writing


def open_writing(engine: Engine, url: str) -> Writing:
    match engine:
        case Engine.POSTGRES:
            from samekey.drivers.postgres.writing import PostgresWriting

            return PostgresWriting(url)
        case Engine.MYSQL:
            from samekey.drivers.mysql.writing import MysqlWriting

            return MysqlWriting(url)
        case Engine.SQLITE:
            from samekey.drivers.sqlite_writing import SqliteWriting

            return SqliteWriting(url)
