"""The PostgreSQL store; read on in `store.py`."""

from samekey.stores.postgres.store import AsyncPostgresStore, PostgresStore

__all__ = ["AsyncPostgresStore", "PostgresStore"]
