"""audit --against: only what concerns uniqueness, and every kind of it."""

from __future__ import annotations

import psycopg
import pytest

from samekey.core.errors import Misconfigured
from samekey.detect.audit import open_database, read_catalog
from samekey.detect.drift import drift
from tests.detect.conftest import plant_sqlite
from tests.detect.test_command import run

HERE = """
CREATE TABLE same (id int PRIMARY KEY, a int, UNIQUE (a));
CREATE TABLE gone (id int PRIMARY KEY, a int);
CREATE TABLE partial (id int PRIMARY KEY, a int); CREATE UNIQUE INDEX partial_a ON partial (a) WHERE a > 5;
CREATE TABLE nullable (id int PRIMARY KEY, a int, UNIQUE (a));
CREATE TABLE typed (id int PRIMARY KEY, a text, UNIQUE (a));
CREATE TABLE plain (id int PRIMARY KEY, note text);
CREATE TABLE only_here (id int PRIMARY KEY, a int UNIQUE);
"""
THERE = """
CREATE TABLE same (id int PRIMARY KEY, a int); CREATE UNIQUE INDEX other_name ON same (a);
CREATE TABLE gone (id int PRIMARY KEY, a int UNIQUE);
CREATE TABLE partial (id int PRIMARY KEY, a int); CREATE UNIQUE INDEX partial_a ON partial (a);
CREATE TABLE nullable (id int PRIMARY KEY, a int NOT NULL, UNIQUE (a));
CREATE TABLE typed (id int PRIMARY KEY, a varchar(40), UNIQUE (a));
CREATE TABLE plain (id int PRIMARY KEY, note varchar(40) NOT NULL);
"""


def catalog_of(url: str):
    engine, reading = open_database(url)
    try:
        return read_catalog(engine, reading)
    finally:
        reading.close()


@pytest.fixture(params=["postgres", "sqlite"])
def pair(request, tmp_path):
    if request.param == "sqlite":
        return plant_sqlite(tmp_path / "a.db", HERE), plant_sqlite(tmp_path / "b.db", THERE)
    urls = [request.getfixturevalue("samekey_postgres").create_database() for _ in range(2)]
    for url, script in zip(urls, (HERE, THERE), strict=True):
        with psycopg.connect(url, autocommit=True) as link:
            link.execute(script.encode())
    return tuple(urls)


def test_every_drift_of_a_key_is_named_and_nothing_else(pair):
    found = drift(*map(catalog_of, pair))
    tables = {(one.rule, one.table.removeprefix("public.")) for one in found}

    assert tables == {("SK130", "gone"), ("SK130", "partial"), ("SK131", "nullable"), ("SK131", "typed")}
    (gone,) = [one for one in found if one.table.endswith("gone")]
    assert gone.unique_on == ("a",)
    assert drift(catalog_of(pair[0]), catalog_of(pair[0])) == []


def test_the_command_names_the_drift(pair):
    result = run(pair[0], "--against", pair[1], "--fail-on", "high", "--json")

    assert result.exit_code == 1
    assert '"SK131"' in result.stdout


def test_two_kinds_of_servers_cannot_be_compared(pair, tmp_path, samekey_postgres):
    if pair[0].startswith("sqlite"):
        with pytest.raises(Misconfigured, match="compare equal servers"):
            drift(catalog_of(pair[0]), catalog_of(samekey_postgres.create_database()))
