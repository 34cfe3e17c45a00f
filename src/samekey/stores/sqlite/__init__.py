"""The SQLite store; read on in `store.py`."""

from samekey.stores.sqlite.store import AsyncSqliteStore, SqliteStore

__all__ = ["AsyncSqliteStore", "SqliteStore"]
