"""The MySQL and MariaDB store; read on in `store.py`."""

from samekey.stores.mysql.store import AsyncMysqlStore, MysqlStore

__all__ = ["AsyncMysqlStore", "MysqlStore"]
