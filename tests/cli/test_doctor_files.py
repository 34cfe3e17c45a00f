"""samekey doctor names what is wrong with a SQLite file."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

import pytest

from tests.guard.helpers import Child

NOBODY = 65534


def changed(statement):
    def plant(shell):
        with closing(sqlite3.connect(shell.path, timeout=30)) as connection, connection:
            connection.execute(statement)

    return plant


def without_file(shell):
    shell.path.unlink()


def of_another_program(shell):
    shell.path.unlink()
    changed("CREATE TABLE orders (id)")(shell)


def no_database(shell):
    shell.path.write_text("key,amount\n" * 100)


def a_directory(shell):
    shell.path.unlink()
    shell.path.mkdir()


def two_names(shell):
    os.link(shell.path, shell.path.with_name("other.db"))


# How the fault is planted, the exit code, and what doctor says.
FAULTS = {
    "a missing file": (without_file, 3, "there is no file {path}"),
    "a file of another program": (of_another_program, 3, "{path} has no samekey tables: is it the right file?"),
    "no database": (no_database, 3, "is damaged, or not a SQLite database: restore it from a backup"),
    "a directory": (a_directory, 3, "{path} is a directory; name a file in it"),
    "two names": (two_names, 3, "{path} has 2 names (hard links)"),
    "a schema of a newer version": (
        changed("UPDATE samekey_meta SET value = '9' WHERE name IN ('schema', 'oldest_client')"),
        3,
        "was written by a newer samekey (schema 9, this one knows 1): upgrade samekey",
    ),
    "a missing column": (
        changed("ALTER TABLE samekey_records DROP COLUMN story"),
        3,
        "is not ours: it has no column story",
    ),
    "no audit table": (
        changed("DROP TABLE samekey_audit"),
        1,
        "found: the table samekey_audit is missing: resolve, redact and free fail",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_it_names_each_fault(shell, scene, fault):
    plant, code, sentence = FAULTS[fault]
    scene.completed("o-1")
    scene.guard.close()
    plant(shell)
    result = shell("doctor", "--store", f"{shell.store}?synchronous=full")

    assert sentence.format(path=shell.path) in result.stderr
    assert result.exit_code == code


def test_a_file_that_this_user_may_only_read(shell, scene, tmp_path):
    scene.completed("o-1")
    scene.guard.close()
    shell.path.chmod(0o444)

    def examined():
        if os.getuid() == 0:  # root may write every file
            for folder in (tmp_path, *tmp_path.parents):
                if not folder.stat().st_mode & 0o001:
                    folder.chmod(folder.stat().st_mode | 0o711)  # so that another user comes as far as the file
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        result = shell("doctor")
        return result.exit_code, result.stderr

    code, printed = Child(examined).result()

    assert code == 3
    assert f"{shell.path} cannot be read and written by this user" in printed
