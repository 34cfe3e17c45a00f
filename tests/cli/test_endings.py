"""How a command ends: the one table of exit codes, one line for people, and never a traceback unasked."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from samekey import StoreUnavailable, __version__
from samekey.cli._root import COMMANDS
from samekey.cli.exits import Exit
from samekey.ops import Ops
from samekey.testing.servers import redis_server


def test_the_table_of_exit_codes_is_this_one():
    assert {one.name: one.value for one in Exit} == {
        "FINE": 0,
        "FOUND": 1,
        "USAGE": 2,
        "NO_STORE": 3,
        "INCOMPLETE": 4,
        "MOVED_ON": 5,
        "NO_SUCH_KEY": 6,
        "OUR_BUG": 70,
    }


@pytest.mark.parametrize("command", [*(name for name in COMMANDS if name not in ("db", "intake")), "db audit"])
def test_every_command_has_help_with_an_example_and_json(shell, command):
    result = shell(*command.split(), "--help")

    assert result.exit_code == 0
    assert "Example" in result.stdout
    assert f"samekey {command} " in result.stdout
    assert "--json" in result.stdout


def test_the_root_lists_the_commands_and_the_codes(shell):
    result = shell("--help")

    assert result.exit_code == 0
    assert all(f"  {command} " in result.stdout for command in COMMANDS)
    assert "70 a bug of samekey" in result.stdout


def test_version(shell):
    assert shell("--version").stdout == f"samekey {__version__}\n"


@pytest.mark.parametrize("words", [["nonsense"], ["ls", "--nonsense"], ["db"], ["db", "nonsense"], []])
def test_usage(shell, words):
    result = shell(*words)

    assert result.exit_code == 2
    assert result.stdout == ""


# -- 3: no store -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["sqlite:///no/such/folder/keys.db", "sqlite:///nothing-here.db", "sqlite:////"])
def test_a_store_that_is_not_there(shell, tmp_path, monkeypatch, address):
    monkeypatch.chdir(tmp_path)
    result = shell("ls", "--store", address)

    assert result.exit_code == 3
    assert result.stderr.startswith("samekey: ")
    assert list(tmp_path.iterdir()) == []  # and it was not created by looking


def test_a_file_that_is_no_database(shell):
    shell.path.write_bytes(b"not a database, but long enough to be looked at as if it were one" * 20)

    assert shell("ls").exit_code == 3


@pytest.fixture(scope="module")
def redis():
    with redis_server() as running:
        running.call("ACL", "SETUSER", "poor", "on", ">word", "+info")
        yield running.url().replace("redis://", "redis://poor:word@")


@pytest.mark.parametrize(
    "words", [("ls",), ("show", "charge", "o-1"), ("resolve", "o-1", "--refused", "--why", "x", "--yes"), ("doctor",)]
)
def test_a_server_that_does_not_let_us_in_is_no_wrong_usage(shell, redis, words):
    """It is asked only when it is needed; what it says then has the same code as what a file says at once."""
    for address in (redis, redis.replace(":word@", ":wrong@")):
        result = shell(*words, "--store", address)

        assert result.exit_code == 3
        assert result.stderr.startswith("samekey: redis://poor@")


@pytest.mark.parametrize("words", [("ls",), ("show", "charge", "o-1"), ("explain", "o-1"), ("doctor",), ("sweep",)])
def test_reading_a_file_of_another_program_changes_nothing(shell, words):
    """The wrong file is not made a store, and is not called clean."""
    with closing(sqlite3.connect(shell.path)) as connection:
        connection.execute("CREATE TABLE orders (id TEXT)")
    before = shell.path.read_bytes()
    result = shell(*words)

    assert result.exit_code == 3
    assert "no samekey tables" in result.stderr
    assert shell.path.read_bytes() == before
    assert [path.name for path in shell.path.parent.iterdir()] == [shell.path.name]


def test_a_store_that_goes_away(shell, scene, monkeypatch):
    def gone(self, query):
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(Ops, "search", gone)
    result = shell("ls")

    assert (result.exit_code, result.stderr) == (3, "samekey: the disk is full\n")


@pytest.mark.parametrize("address", ["", "keys.db", "nosuch://x", "memory://", "sqlite:///k.db?sync=off", "sqlite:///"])
def test_an_address_that_can_be_none_is_a_usage_error(shell, address):
    result = shell("ls", "--store", address)

    assert result.exit_code == 2
    assert result.stdout == ""


# -- 70: our own bug ---------------------------------------------------------------------------------------------------


@pytest.fixture
def bug(monkeypatch):
    def broken(self, query):
        raise KeyError("quoting-a-result")

    monkeypatch.setattr(Ops, "search", broken)


def test_a_bug_of_ours_is_one_line_and_says_so(shell, scene, bug):
    result = shell("ls")

    assert result.exit_code == 70
    assert "a bug of samekey" in result.stderr
    assert "Traceback" not in result.stderr
    assert "quoting-a-result" not in result.stderr


@pytest.mark.parametrize("words", [["--debug", "ls"], ["ls", "--debug"]])
def test_debug_shows_the_traceback(shell, scene, bug, words):
    result = shell(*words)

    assert result.exit_code == 70
    assert "Traceback" in result.stderr


# -- as a process of its own -------------------------------------------------------------------------------------------


def test_every_code_leaves_the_process(shell, gone):
    """The same table, seen by a shell; 70 needs a bug and is shown above and below."""
    assert shell.process("ls", "--store", "sqlite:///absent.db").returncode == 3
    gone.completed("done")
    assert shell.process("ls").returncode == 0
    gone.in_doubt("doubt")
    found = shell.process("ls", "--json")
    assert found.returncode == 1
    assert {json.loads(line)["key"] for line in found.stdout.splitlines()} == {"done", "doubt"}
    assert shell.process("resolve", "doubt", "--happened", "--why", "w", stdin=subprocess.DEVNULL).returncode == 2
    gone.in_doubt("doubt 2")
    assert shell.process("doctor", "--limit", "1").returncode == 4
    assert shell.process("resolve", "done", "--happened", "--why", "w", "--yes").returncode == 5
    absent = shell.process("explain", "absent")
    assert absent.returncode == 6
    assert absent.stdout == ""
    assert absent.stderr.count("\n") == 1


def run_python(shell, code, *words, **options):
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=shell.environment,
        check=False,
        **options,
    )


def test_without_click_one_line_says_what_to_install(shell):
    result = run_python(shell, "import sys; sys.modules['click'] = None; from samekey.cli import main; main()")

    assert result.returncode == 2
    assert "pip install 'samekey[cli]'" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_bug_leaves_the_process_with_70(shell, scene):
    code = "import samekey.ops as o; del o.Ops.search; from samekey.cli import main; main()"
    result = run_python(shell, code, "ls")

    assert result.returncode == 70
    assert "AttributeError: this is a bug of samekey" in result.stderr


@pytest.mark.parametrize("words", [["ls", "--json"], ["--help"]])
def test_a_reader_that_hangs_up_hears_nothing_more(shell, scene, words):
    scene.completed()
    reading, writing = os.pipe()
    os.close(reading)
    result = shell.process(*words, capture_output=False, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)

    assert result.stderr == ""
    assert result.returncode == 4


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&- <&-"])
def test_with_closed_streams_the_exit_code_remains(shell, scene, closed):
    """A crash on a stream that is not there would be a 1: found something."""
    scene.completed()
    command = f"exec {sys.executable} -m samekey ls {closed}"
    fine = subprocess.run(["sh", "-c", command], env=shell.environment, cwd=shell.path.parent, capture_output=True)
    scene.in_doubt("doubt")
    found = subprocess.run(["sh", "-c", command], env=shell.environment, cwd=shell.path.parent, capture_output=True)

    assert (fine.returncode, found.returncode) == (0, 1)
    assert fine.stderr + found.stderr == b""


def test_without_stdin_no_question_is_asked(shell, scene):
    scene.in_doubt()
    command = f"exec {sys.executable} -m samekey resolve o-1 --happened --why w <&-"
    asked = subprocess.run(["sh", "-c", command], env=shell.environment, cwd=shell.path.parent, capture_output=True)

    assert asked.returncode == 2
    assert b"--yes" in asked.stderr


@pytest.mark.parametrize("words", [["ls", "--json"], ["--help"]])
def test_a_disk_that_is_full_is_not_our_bug(shell, scene, words):
    """Output that could not be written is incomplete."""
    scene.in_doubt()
    with open("/dev/full", "w") as full:
        told = shell.process(*words, capture_output=False, stdout=full, stderr=subprocess.PIPE)
        untold = shell.process(*words, capture_output=False, stdout=full, stderr=full)

    assert (told.returncode, untold.returncode) == (4, 4)
    assert told.stderr == "samekey: the output could not be written: No space left on device\n"


def test_an_error_that_cannot_be_printed_still_has_its_code(shell, scene):
    with open("/dev/full", "w") as full:
        codes = [
            shell.process(*words, capture_output=False, stdout=full, stderr=full).returncode
            for words in (["ls", "--nonsense"], ["explain", "absent"], ["ls", "--store", "sqlite:///absent.db"])
        ]

    assert codes == [2, 6, 3]


def test_a_stream_that_cannot_print_a_key_spells_it_out(shell, scene):
    scene.completed("παραγγελία")
    result = shell.process("ls", env={**shell.environment, "PYTHONIOENCODING": "latin-1"})

    assert result.returncode == 0
    assert "\\u03c0" in result.stdout
