"""The first thing a stranger runs: it must show what it claims, say so when it does not, and leave nothing behind."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import pytest
from click.testing import CliRunner

from samekey.cli.demo import _show, _stage, demo
from samekey.cli.demo._plan import COLUMNS, NO_GUARD, SAMEKEY, TEXTBOOK, Fault, deliveries, plan
from samekey.cli.demo._service import Remote
from samekey.cli.demo._verdict import broken_promises, count, nothing_shown
from samekey.cli.exits import Exit

REPO = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from samekey.cli.demo import demo; demo()"]
PATIENCE_SECONDS = 100.0  # a whole demo on a machine that runs every other test too


@pytest.fixture
def env(tmp_path):
    return {**os.environ, "TMPDIR": str(tmp_path)}


# -- the real thing ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_others_charge_twice_and_samekey_does_not(env, tmp_path):
    ran = subprocess.run(
        [*COMMAND, "--orders", "60", "--seed", "3", "--json"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    outcome = json.loads(ran.stdout)
    columns = outcome["columns"]
    assert outcome["problems"] == []
    assert [columns[name]["lost"] for name in COLUMNS] == [0, 0, 0]
    assert columns[SAMEKEY]["charges"] == 60
    assert columns[SAMEKEY]["charged_twice"] == 0
    assert columns[SAMEKEY]["in_doubt"] <= 1
    # Slow, killed and the Opaque one; without a guard also those that were delivered twice.
    assert columns[TEXTBOOK]["charged_twice"] >= 8
    assert columns[NO_GUARD]["charged_twice"] >= 10
    ledger = [json.loads(line) for line in Path(outcome["ledger"]).read_text().splitlines()]
    assert len(ledger) == sum(columns[name]["charges"] for name in COLUMNS)


@pytest.mark.slow
def test_the_killed_order_is_explained_and_the_opaque_one_left_to_a_person(env, tmp_path):
    ran = subprocess.run(
        [*COMMAND, "--orders", "20", "--seed", "3"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    orders = plan(seed=3, orders=20)
    killed = next(order.id for order in orders if order.fault is Fault.KILLED)
    opaque = next(order.id for order in orders if order.opaque)
    assert ran.returncode == 0
    assert "answered" in ran.stderr
    assert "put in doubt by attempt" in ran.stdout
    assert "examples/shop.py" in ran.stdout
    # The printed lines are run as they are printed (a person at a terminal is asked instead of --yes).
    explained = as_printed(ran.stdout, "samekey explain charge", env)
    assert f"charge {killed}" in explained
    assert "the provider says happened" in explained
    assert f"charge_opaque {opaque}" in as_printed(ran.stdout, "samekey resolve", env, "--yes")


def as_printed(output, begin, env, *more):
    line = output[output.index(begin) :].partition("\n")[0]
    command = [sys.executable, "-m", "samekey", *shlex.split(line)[1:], *more]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    return ran.stdout


@pytest.mark.slow
def test_a_samekey_column_that_charges_twice_is_told_and_fails(monkeypatch, tmp_path):
    """The check itself is checked: take the guard out of the samekey column, and the demo says so."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sabotage = f"""if True:
        from samekey.cli.demo import _columns, _worker
        _columns.WAYS[{SAMEKEY!r}] = _columns.no_guard
        _worker.main()"""
    monkeypatch.setattr(_stage, "WORKER", ("-c", sabotage))

    ran = CliRunner().invoke(demo, ["--orders", "20", "--seed", "3", "--json"])

    assert ran.exit_code == Exit.OUR_BUG
    assert "the samekey column charged an order twice" in ran.stderr
    assert json.loads(ran.stdout)["problems"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds strays in /proc")
@pytest.mark.parametrize(("blow", "code"), [(signal.SIGINT, 4), (signal.SIGTERM, -15), (signal.SIGKILL, -9)])
def test_no_process_outlives_the_demo(env, tmp_path, blow, code):
    """Ctrl-C ends every child; a parent that is killed outright takes them with it too."""
    with subprocess.Popen(
        [*COMMAND, "--orders", "200"],
        env=env,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if " 0/" not in line:  # every column has answered some orders
                break
        while len(of_session(running.pid)) <= 3 * len(COLUMNS):  # a worker it has killed is replaced
            assert running.poll() is None
            time.sleep(0.01)
        running.send_signal(blow)
        running.wait(timeout=PATIENCE_SECONDS)

    assert running.returncode == code
    assert gone_soon(running.pid)


def of_session(session):
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except OSError:
            continue
        if fields and fields[3] == str(session) and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def gone_soon(session):
    ends = time.monotonic() + PATIENCE_SECONDS / 2
    while of_session(session) and time.monotonic() < ends:
        time.sleep(0.05)
    return of_session(session) == []


@pytest.mark.slow
def test_the_provider_charges_and_kills_for_its_own_only(monkeypatch, tmp_path):
    """Its port is open to every user of the machine."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with _stage.Stage(seed=1, orders=20) as stage:
        port = stage._serving(_stage.PROVIDER)
        stranger = Remote(port=port, secret="guessed")
        with pytest.raises(RuntimeError, match="403"):
            stranger.call("charge", timeout_seconds=5.0, column=SAMEKEY, order="o-001", amount=1, pid=os.getpid())


# -- the verdict ---------------------------------------------------------------------------------------------


ORDERS = plan(seed=1, orders=20)
OPAQUE = next(order.id for order in ORDERS if order.opaque)
ONCE = {order.id: 1 for order in ORDERS}
TWICE = {**ONCE, "o-001": 2}


def test_once_each_and_the_opaque_one_in_doubt_is_what_was_promised():
    assert broken_promises(ORDERS, count(ORDERS, ONCE, (OPAQUE,))) == []
    assert broken_promises(ORDERS, count(ORDERS, ONCE)) == []


@pytest.mark.parametrize(
    ("charged", "in_doubt", "says"),
    [
        (TWICE, (), "charged an order twice: o-001"),
        ({**ONCE, "o-002": 0}, (), "lost an order: o-002"),
        (ONCE, tuple(order.id for order in ORDERS if not order.opaque)[:1], "more in doubt than the one Opaque order"),
    ],
)
def test_a_broken_promise_is_named(charged, in_doubt, says):
    told = broken_promises(ORDERS, count(ORDERS, charged, in_doubt))

    assert len(told) == 1
    assert says in told[0]


def test_an_order_in_doubt_is_not_lost():
    assert count(ORDERS, {**ONCE, OPAQUE: 0}, (OPAQUE,)).lost == ()


def test_what_was_charged_too_much_is_counted():
    totals = count(ORDERS, {**ONCE, "o-001": 3})

    assert totals.charges == 22
    assert totals.overcharged == 2 * ORDERS[0].amount


def test_a_column_that_should_double_and_did_not_means_nothing_was_shown():
    totals = {
        NO_GUARD: count(ORDERS, TWICE),
        TEXTBOOK: count(ORDERS, ONCE),
        SAMEKEY: count(ORDERS, ONCE),
    }

    assert [said for said in nothing_shown(totals) if "'textbook'" in said]
    assert len(nothing_shown(totals)) == 1


class Rehearsed:
    """A stage whose play is over: what each column charged is given."""

    charged: dict[str, dict[str, int]]
    error: BaseException | None = None

    def __init__(self, *, seed, orders):
        self.ledger = Path("ledger.jsonl")
        self.store = "sqlite:///keys.db"
        self.columns = {name: _stage.Column(name, deque(), 1, ended=1, charged=self.charged[name]) for name in COLUMNS}

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        return None

    def play(self, watch):
        if self.error is not None:
            raise self.error
        watch()


@pytest.mark.parametrize(
    ("charged", "error", "code", "says"),
    [
        ((TWICE, TWICE, ONCE), None, 0, ""),
        ((TWICE, TWICE, TWICE), None, 70, "samekey column charged an order twice"),
        ((ONCE, TWICE, ONCE), None, 4, "'no guard' made no double charge"),
        ((TWICE, ONCE, ONCE), None, 4, "'textbook' made no double charge"),
        ((TWICE, TWICE, ONCE), _stage.Broken("a worker cannot start"), 4, "a worker cannot start"),
        ((TWICE, TWICE, ONCE), KeyboardInterrupt(), 4, "stopped"),
    ],
)
def test_the_exit_code_says_how_it_ended(monkeypatch, tmp_path, charged, error, code, says):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Rehearsed, "charged", dict(zip(COLUMNS, charged, strict=True)), raising=False)
    monkeypatch.setattr(Rehearsed, "error", error)
    monkeypatch.setattr(_show, "Stage", Rehearsed)

    ran = CliRunner().invoke(demo, ["--orders", "20", "--seed", "1"])

    assert ran.exit_code == code
    assert says in ran.stderr


# -- the plan, the help, the shop ----------------------------------------------------------------------------


def test_a_seed_is_a_plan():
    assert plan(seed=5, orders=200) == plan(seed=5, orders=200)
    assert plan(seed=5, orders=200) != plan(seed=6, orders=200)


@pytest.mark.parametrize("orders", [20, 60, 200])
@pytest.mark.parametrize("seed", range(5))
def test_every_plan_has_every_fault(seed, orders):
    planned = plan(seed=seed, orders=orders)
    faults = [order.fault for order in planned]

    assert faults.count(Fault.KILLED) == 3
    assert all(faults.count(fault) >= 2 for fault in (Fault.SLOW, Fault.LATE, Fault.TWICE))
    assert [order.fault for order in planned if order.opaque] == [Fault.SLOW]
    assert len(deliveries(planned)) == orders + faults.count(Fault.TWICE)


def test_the_help_has_an_example():
    ran = CliRunner().invoke(demo, ["--help"])

    assert ran.exit_code == 0
    assert "samekey demo --seed 3" in ran.stdout


def test_the_shop_prints_what_its_comments_say(env):
    shop = REPO / "examples" / "shop.py"
    source = shop.read_text()

    ran = subprocess.run(
        [sys.executable, str(shop)], env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )

    said, promised = ran.stdout.splitlines(), re.findall(r"# -> (.*)", source)
    assert len(source.splitlines()) <= 60
    assert len(said) == len(promised) == 10
    for line, words in zip(said, promised, strict=True):
        assert all(part in line for part in words.split(" ... ")), (line, words)
