"""The libraries whose connections `Atomic` takes, all with the same few words.

Everything here is awaited. The sync libraries never really wait in an `await`, so that a sync guard can run the
very same effects by taking one step: `finished`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable
from typing import Any, Self
from urllib.parse import urlsplit

import asyncpg
import psycopg
import sqlalchemy
from django.db import connections, transaction
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

import tests.django_settings  # noqa: F401

Effect = Callable[["Conn"], Awaitable[Any]]

os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # nothing else runs in the loops of these tests


def finished(work: Any) -> Any:
    """The value of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a sync library waited")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True)
    note: Mapped[str] = mapped_column(default="")


class Conn:
    """One connection of one library; `raw` is what the guard is given."""

    asynchronous = False
    raw: Any

    @classmethod
    async def connect(cls, url: str) -> Self:
        raise NotImplementedError

    async def begin(self) -> None:
        raise NotImplementedError

    async def commit(self) -> None:
        raise NotImplementedError

    async def rollback(self) -> None:
        raise NotImplementedError

    async def sql(self, statement: str) -> list[Any]:
        """The first column of every row, if there are any."""
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    @property
    def in_transaction(self) -> bool:
        raise NotImplementedError

    async def insert(self, order: str) -> str:
        await self.sql(f"INSERT INTO orders (id, note) VALUES ('{order}', '')")
        return f"inserted {order}"

    async def break_(self) -> None:
        """The network is gone."""
        (pid,) = await self.sql("SELECT pg_backend_pid()")
        await self.kill(pid)

    async def kill(self, pid: int) -> None:
        with psycopg.connect(self.url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))

    url: str


class Psycopg(Conn):
    autocommit = False

    @classmethod
    async def connect(cls, url: str) -> Self:
        self = cls()
        self.url, self.raw = url, psycopg.connect(url, autocommit=cls.autocommit)
        return self

    async def begin(self) -> None:
        self.raw.execute("BEGIN" if self.autocommit else "SELECT 1")

    async def commit(self) -> None:
        self.raw.commit()

    async def rollback(self) -> None:
        self.raw.rollback()

    async def sql(self, statement: str) -> list[Any]:
        cursor = self.raw.execute(statement)
        return [row[0] for row in cursor.fetchall()] if cursor.description else []

    async def close(self) -> None:
        self.raw.close()

    @property
    def in_transaction(self) -> bool:
        return bool(self.raw.info.transaction_status.value in (2, 3))


class PsycopgAutocommit(Psycopg):
    autocommit = True


class PsycopgAsync(Conn):
    asynchronous = True

    @classmethod
    async def connect(cls, url: str) -> Self:
        self = cls()
        self.url, self.raw = url, await psycopg.AsyncConnection.connect(url)
        return self

    async def begin(self) -> None:
        await self.raw.execute("SELECT 1")

    async def commit(self) -> None:
        await self.raw.commit()

    async def rollback(self) -> None:
        await self.raw.rollback()

    async def sql(self, statement: str) -> list[Any]:
        cursor = await self.raw.execute(statement)
        return [row[0] for row in await cursor.fetchall()] if cursor.description else []

    async def close(self) -> None:
        await self.raw.close()

    @property
    def in_transaction(self) -> bool:
        return bool(self.raw.info.transaction_status.value in (2, 3))


class Asyncpg(Conn):
    asynchronous = True

    @classmethod
    async def connect(cls, url: str) -> Self:
        self = cls()
        self.url, self.raw = url, await asyncpg.connect(url)
        return self

    async def begin(self) -> None:
        self._transaction = self.raw.transaction()
        await self._transaction.start()

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()

    async def sql(self, statement: str) -> list[Any]:
        return [row[0] for row in await self.raw.fetch(statement)]

    async def close(self) -> None:
        await self.raw.close()

    @property
    def in_transaction(self) -> bool:
        return bool(self.raw.is_in_transaction())


class SqlalchemyCore(Conn):
    _engine: sqlalchemy.Engine

    @classmethod
    async def connect(cls, url: str) -> Self:
        self = cls()
        self.url = url
        self._engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
        self.raw = self._make()
        return self

    def _make(self) -> Any:
        return self._engine.connect()

    async def begin(self) -> None:
        self.raw.begin()

    async def commit(self) -> None:
        self.raw.commit()

    async def rollback(self) -> None:
        self.raw.rollback()

    async def sql(self, statement: str) -> list[Any]:
        result = self.raw.execute(sqlalchemy.text(statement))
        return [row[0] for row in result] if result.returns_rows else []

    async def close(self) -> None:
        self.raw.close()
        self._engine.dispose()

    @property
    def in_transaction(self) -> bool:
        return bool(self.raw.in_transaction())


class SqlalchemySession(SqlalchemyCore):
    def _make(self) -> Any:
        return Session(self._engine)

    async def insert(self, order: str) -> str:
        self.raw.add(Order(id=order))
        return f"inserted {order}"


class SqlalchemyAsyncCore(Conn):
    asynchronous = True
    driver = "asyncpg"
    _engine: AsyncEngine

    @classmethod
    async def connect(cls, url: str) -> Self:
        self = cls()
        self.url = url
        self._engine = create_async_engine(url.replace("postgresql:", f"postgresql+{cls.driver}:"), poolclass=NullPool)
        self.raw = await self._make()
        return self

    async def _make(self) -> Any:
        connection: AsyncConnection = await self._engine.connect()
        return connection

    async def begin(self) -> None:
        await self.raw.begin()

    async def commit(self) -> None:
        await self.raw.commit()

    async def rollback(self) -> None:
        await self.raw.rollback()

    async def sql(self, statement: str) -> list[Any]:
        result = await self.raw.execute(sqlalchemy.text(statement))
        return [row[0] for row in result] if result.returns_rows else []

    async def close(self) -> None:
        await self.raw.close()
        await self._engine.dispose()

    @property
    def in_transaction(self) -> bool:
        return bool(self.raw.in_transaction())


class SqlalchemyAsyncSession(SqlalchemyAsyncCore):
    async def _make(self) -> Any:
        return AsyncSession(self._engine, expire_on_commit=False)

    async def insert(self, order: str) -> str:
        self.raw.add(Order(id=order))
        return f"inserted {order}"


class SqlalchemyAsyncSessionPsycopg(SqlalchemyAsyncSession):
    driver = "psycopg"


class Django(Conn):
    """Django has one connection for each alias and thread: an alias is lent to one at a time."""

    _numbers = itertools.count()
    alias: str

    @classmethod
    async def connect(cls, url: str) -> Self:
        self = cls()
        self.url = url
        self.alias = f"alias{next(cls._numbers)}"
        parts = urlsplit(url)
        connections.databases[self.alias] = {
            **connections.configure_settings({"default": {}})["default"],
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path[1:],
            "USER": parts.username,
            "HOST": parts.hostname,
            "PORT": str(parts.port),
        }
        self.raw = connections[self.alias]
        return self

    async def begin(self) -> None:
        self._atomic = transaction.atomic(using=self.alias)
        self._atomic.__enter__()

    async def commit(self) -> None:
        self._atomic.__exit__(None, None, None)

    async def rollback(self) -> None:
        self._atomic.__exit__(ValueError, ValueError(), None)

    async def sql(self, statement: str) -> list[Any]:
        with self.raw.cursor() as cursor:
            cursor.execute(statement)
            return [row[0] for row in cursor.fetchall()] if cursor.description else []

    async def close(self) -> None:
        self.raw.close()

    @property
    def in_transaction(self) -> bool:
        return bool(self.raw.in_atomic_block)


LIBRARIES: dict[str, type[Conn]] = {
    "psycopg": Psycopg,
    "psycopg-autocommit": PsycopgAutocommit,
    "psycopg-async": PsycopgAsync,
    "asyncpg": Asyncpg,
    "sqlalchemy-core": SqlalchemyCore,
    "sqlalchemy-session": SqlalchemySession,
    "sqlalchemy-async-core": SqlalchemyAsyncCore,
    "sqlalchemy-async-session": SqlalchemyAsyncSession,
    "sqlalchemy-async-session-psycopg": SqlalchemyAsyncSessionPsycopg,
    "django": Django,
}
