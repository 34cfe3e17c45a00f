"""samekey doctor: the store, what waits, and whether records and code fit together."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from contextlib import closing

import pytest

from samekey import Repeatable
from samekey.stores.sqlite import SqliteStore

APP = """
from samekey import AsyncGuard, Guard

guard = Guard({store!r})
asynchronous = AsyncGuard({store!r})

@guard.once(key="order", name="charge", aliases=("pay",))
def charge(order: str) -> str:
    return order

@guard.once(key="order")
def nameless(order: str) -> str:
    return order

@asynchronous.once(key="order", name="charge")
async def acharge(order: str) -> str:
    return order

nothing = 5
"""


@pytest.fixture
def app(shell, tmp_path, monkeypatch):
    name = f"shop_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(APP.format(store=shell.store))
    (tmp_path / f"{name}_broken.py").write_text("raise RuntimeError('no settings')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield name
    for module in (name, f"{name}_broken"):
        sys.modules.pop(module, None)


def report(result):
    return json.loads(result.stdout)


def test_a_sound_store_with_nothing_waiting_is_fine(shell, scene):
    scene.store.close()
    store = f"{shell.store}?synchronous=full"
    result = shell("doctor", "--json", "--store", store)

    printed = report(result)
    assert result.exit_code == 0
    assert "claims survive crashes and power losses" in printed["guarantee"]
    assert printed["facts"]["schema"] == "1"
    assert printed["incarnation"]
    assert printed["states"] == {"started": 0, "completed": 0, "closed": 0, "released": 0, "in_doubt": 0}
    assert printed["findings"] == []


def test_a_weakened_store_is_a_finding(shell, scene):
    result = shell("doctor", "--store", f"{shell.store}?synchronous=normal")

    assert result.exit_code == 1
    assert "found: synchronous=normal" in result.stderr


def test_what_waits_is_a_finding(shell, gone, clock):
    gone.in_doubt("old")
    clock.advance(-1)  # the other store's clock; the file is read with the real one
    gone.in_doubt("older", name="mail")
    gone.held("held")
    gone.completed("fine")
    result = shell("doctor", "--json")

    printed = report(result)
    assert result.exit_code == 1
    assert printed["states"]["in_doubt"] == 2
    assert printed["oldest_doubt"]["key"] == "older"
    assert [one["key"] for one in printed["lease_over_first"]] == ["held"]
    assert len(printed["findings"]) == 2


def test_ordinary_failures_of_a_repeatable_operation_leave_nothing_to_do(shell, scene):
    """A consumer that fails all day is no work for a person."""
    failures = 10_000 if os.environ.get("SAMEKEY_BUDGET") == "full" else 50
    for number in range(failures):
        assert scene.in_doubt(f"m-{number}", boundary=Repeatable()).error == "TimeoutError"
    scene.store.close()
    result = shell("doctor", "--json", "--store", f"{shell.store}?synchronous=full")

    printed = report(result)
    assert (printed["states"]["in_doubt"], printed["states"]["released"]) == (0, failures)
    assert (result.exit_code, printed["findings"]) == (0, [])


def test_the_report_is_also_printed_for_people(shell, gone):
    gone.in_doubt()
    result = shell("doctor")

    assert "guarantee" in result.stdout
    assert "1 in_doubt" in result.stdout
    assert "charge o-1, for" in result.stdout
    assert "found: 1 in doubt" in result.stderr


def test_what_was_not_looked_at_is_never_reported_as_clean(shell, scene):
    for number in range(3):
        scene.held(f"o-{number}")
    result = shell("doctor", "--limit", "2")

    assert result.exit_code == 4
    assert "more than 2 unsettled" in result.stderr


def test_settled_records_beyond_the_limit_do_not_make_it_incomplete(shell, scene):
    for number in range(3):
        scene.completed(f"o-{number}")
    result = shell("doctor", "--limit", "2", "--json")

    assert result.exit_code == 0
    assert report(result)["settled_counted_completely"] is False


@pytest.mark.parametrize("damage", ["story = '{'", "state = 'elsewhere'"])
def test_a_damaged_record_is_named_and_the_others_are_counted(shell, scene, damage):
    scene.in_doubt("o-1")
    scene.completed("o-2")
    scene.completed("o-3")
    shell.damage("o-2", damage)
    result = shell("doctor", "--json")

    assert result.exit_code == 4
    assert "incomplete: the record of charge o-2 is damaged or was written by a newer version" in result.stderr
    assert (report(result)["states"]["in_doubt"], report(result)["states"]["completed"]) == (1, 1)


def drop_two_tables(shell):
    with closing(sqlite3.connect(shell.path, timeout=30)) as connection, connection:
        connection.execute("DROP TABLE samekey_audit")
        connection.execute("DROP TABLE samekey_counts")


def test_a_missing_table_is_a_finding(shell, scene):
    """Without it resolve, redact and free fail: an operator learns that before a doubt has to be resolved."""
    scene.store.close()
    assert report(shell("doctor", "--json"))["facts"]["audit table"] == "present"
    drop_two_tables(shell)
    result = shell("doctor")

    assert result.exit_code == 1
    assert "audit table    missing" in result.stdout
    assert "found: the table samekey_audit is missing: resolve, redact and free fail" in result.stderr
    assert "found: the table samekey_counts is missing: attempts are not counted" in result.stderr


@pytest.mark.parametrize(("records", "statements"), [(3, 2), (25, 4)])
def test_it_sends_few_list_statements(shell, scene, monkeypatch, records, statements):
    """One for the unsettled records and one for each page of all records: none only to learn whether there are more."""
    monkeypatch.setattr("samekey.ops.listing.LIST_MAX", 10)
    monkeypatch.setattr("samekey.ops.counting.LIST_MAX", 10)
    for number in range(records):
        scene.completed(f"o-{number}")
    sent = []
    listed = SqliteStore.list

    def counted(self, query):
        sent.append(query)
        return listed(self, query)

    monkeypatch.setattr(SqliteStore, "list", counted)
    result = shell("doctor", "--json")

    assert report(result)["states"]["completed"] == records
    assert len(sent) == statements


# -- with the user's guard ---------------------------------------------------------------------------------------------


def test_operations_without_a_name_and_records_without_a_function(shell, scene, app):
    scene.completed("o-1")
    scene.completed("o-2", name="pay")  # an alias of charge
    scene.completed("o-3", name="forgotten")
    result = shell("doctor", "--json", "--app", f"{app}:guard")

    printed = report(result)
    assert result.exit_code == 1
    assert printed["operations"] == ["charge", f"{app}:nameless"]
    assert printed["without_name"] == [f"{app}:nameless"]
    assert printed["without_function"] == ["forgotten"]


def test_an_async_guard_is_as_good(shell, scene, app):
    scene.completed("o-1")
    result = shell("doctor", "--json", "--app", f"{app}:asynchronous")

    assert result.exit_code == 0
    assert report(result)["operations"] == ["charge"]


HTTP_APP = """
from samekey import Guard, Opaque
from samekey.http import Endpoint, rules
from samekey.http.flask import Samekey
from flask import Flask

guard = Guard("{store}")
shop = Flask(__name__)
Samekey(shop, guard=guard, endpoint=Endpoint(boundary=Opaque(), single_tenant=True))

@shop.post("/refunds")
@rules(Endpoint(boundary=Opaque(), single_tenant=True, operation="refund-of-the-shop"))
def refund():
    return "refunded"
"""


@pytest.mark.parametrize(("name", "orphaned"), [("POST /charges", []), ("PUT /charges", ["PUT /charges"])])
def test_the_routes_of_an_http_application_are_known(shell, scene, app, tmp_path, name, orphaned):
    """Under the methods that its adapter guards; a record of another method is of no route."""
    (tmp_path / f"{app}.py").write_text(HTTP_APP.format(store=shell.store))
    scene.completed("o-1", name="POST /charges/{}")
    scene.completed("o-2", name="refund-of-the-shop")
    scene.completed("o-3", name=name)
    result = shell("doctor", "--json", "--app", f"{app}:guard")

    assert report(result)["without_function"] == orphaned
    assert result.exit_code == (1 if orphaned else 0)


def test_with_an_app_the_operations_must_all_be_seen(shell, scene, app):
    for number in range(3):
        scene.completed(f"o-{number}")

    assert shell("doctor", "--limit", "2", "--app", f"{app}:asynchronous").exit_code == 4


def test_the_app_and_its_records_are_also_printed_for_people(shell, scene, app):
    scene.completed("o-3", name="forgotten")
    result = shell("doctor", "--app", f"{app}:guard")

    assert "forgotten" in result.stdout
    assert "aliases=" in result.stderr


@pytest.mark.parametrize("path", ["{app}", "{app}:", "{app}:nothing", "{app}:missing", "no_such_module:guard"])
def test_an_app_that_is_none_is_a_usage_error(shell, scene, app, path):
    assert shell("doctor", "--app", path.format(app=app)).exit_code == 2


def test_what_the_app_raises_is_shown_as_the_apps_own(shell, scene, app):
    result = shell("doctor", "--app", f"{app}_broken:guard")

    assert result.exit_code == 2
    assert "RuntimeError: no settings" in result.stderr
    assert "Traceback" not in result.stderr
