"""The lab on each server, planted once for all tests that only read."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

import psycopg
import pymysql
import pytest

from samekey.drivers.mysql.address import parse_url
from samekey.testing.servers import postgres
from tests.detect import lab


def plant(url: str) -> str:
    """The lab on PostgreSQL."""
    with psycopg.connect(url, autocommit=True) as link:
        link.execute(lab.POSTGRES.encode())
        with pytest.raises(psycopg.errors.UniqueViolation):
            link.execute(lab.POSTGRES_FAILS.encode())
        name = link.execute("SELECT quote_ident(current_database())").fetchone()
        assert name
        link.execute(f"ALTER DATABASE {name[0]} SET synchronous_commit = off".encode())
    return url


@pytest.fixture(scope="session")
def postgres_lab(samekey_postgres):
    return plant(samekey_postgres.create_database())


@pytest.fixture(scope="session")
def older_postgres_lab():
    if os.environ.get("SAMEKEY_TEST_PG"):
        pytest.skip("SAMEKEY_TEST_PG names a server of one version")
    with postgres(15) as server:
        yield plant(server.create_database())


def run_mysql(url: str, script: str) -> None:
    with closing(pymysql.connect(**parse_url(url).arguments, charset="utf8mb4", autocommit=True)) as link:
        for statement in script.split(";\n"):
            if statement.strip():
                link.cursor().execute(statement)


@pytest.fixture(scope="session")
def mysql_lab(samekey_mariadb):
    url = samekey_mariadb.create_database()
    run_mysql(url, lab.MYSQL)
    return url


def plant_sqlite(path, script: str) -> str:
    with closing(sqlite3.connect(path)) as link:
        link.executescript(script)
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def sqlite_lab(tmp_path_factory):
    return plant_sqlite(tmp_path_factory.mktemp("lab") / "lab.db", lab.SQLITE)
