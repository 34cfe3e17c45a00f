"""samekey doctor --app names the fault of each planted misconfiguration, and only notes what is none."""

from __future__ import annotations

import json
import sys
import time
from itertools import count
from weakref import WeakSet

import pytest

from samekey.cli._checkup import check_clock
from samekey.core.books import make_finding
from samekey.http import Endpoint, _rules, _visit

START = """
from samekey import FOREVER, Guard, Asks, Keyed, Opaque, Policy, Repeatable, StillUnknown
from samekey.http import Endpoint, rules

guard = Guard({store!r}, policy=Policy(retention=FOREVER))

def ask(record):
    return StillUnknown()
"""

SOUND = """
@guard.once(key="order", name="charge", boundary=Asks(ask))
def charge(order: str) -> str:
    return order
"""

FLASK = """
from flask import Flask
from samekey.http.flask import Samekey

shop = Flask(__name__)
"""

# Each with what doctor says about it.
FAULTS = {
    "no name": (
        '@guard.once(key="order", boundary=Asks(ask))\ndef pay(order: str) -> str:\n    return order\n',
        "without name=: {app}:pay",
    ),
    "runs unguarded": (
        '@guard.once(key="o", name="charge", boundary=Asks(ask), policy=Policy(store_down="run", retention=FOREVER))\n'
        "def charge(o: str) -> str:\n    return o\n",
        "charge runs unguarded while the store is down",
    ),
    "memory shorter than the sender's retries": (
        f"{FLASK}"
        "Samekey(shop, guard=guard, endpoint=Endpoint(boundary=Asks(ask), single_tenant=True, "
        "policy=Policy(retention=3600)))\n",
        "POST /* is remembered for 1 h, and its senders try again for 1 d",
    ),
    "memory shorter than a webhook's retries": (
        "from samekey.http.webhook import Webhook\n"
        "Webhook(guard, 'stripe', verify=lambda request: True, event_id=lambda request: 'e-1', boundary=Asks(ask), "
        "policy=Policy(retention=86400))\n",
        "stripe is remembered for 1 d, and its senders try again for 3 d",
    ),
    "retries that outlive the memory of the provider": (
        "from samekey.doubt import load_pack\nfrom samekey.http.webhook import Webhook\n"
        "Webhook(guard, 'paid', verify=lambda request: True, event_id=lambda request: 'e-1', "
        "boundary=load_pack('stripe').keyed())\n",
        "paid: your retries last 72 h, and stripe forgets a key after 24 h",
    ),
    "a provider whose keys are shorter than ours": (
        "from samekey.doubt import load_pack\nfrom samekey import Compensatable\n"
        "from pathlib import Path\n"
        "Path('short.toml').write_text('[pack]\\nname = \"short\"\\nread = 2026-11-01\\n"
        '[key]\\nsource = "its manual"\\nwindow = "24h"\\nmax = 20\\n\')\n'
        "boundary = Compensatable(load_pack('./short.toml').keyed(), print)\n"
        '@guard.once(key="o", name="charge", boundary=boundary)\ndef charge(o: str) -> str:\n    return o\n',
        "charge: short takes keys of 20 characters, and ours have 36",
    ),
    "a route that no rules cover": (
        f"{FLASK}@shop.post('/charges/<id>')\ndef charge(id):\n    return id\n",
        "not guarded: POST /charges/{{}}",
    ),
    "a method that the rules leave out": (
        f"{FLASK}"
        "Samekey(shop, guard=guard, endpoint=Endpoint(boundary=Asks(ask), single_tenant=True, methods=['POST'], "
        "policy=Policy(retention=FOREVER)))\n"
        "@shop.patch('/charges')\ndef charge():\n    return ''\n",
        "not guarded: PATCH /charges",
    ),
}
NOTES = {
    "a business key that is forgotten": (
        '@guard.once(key="o", name="charge", boundary=Asks(ask), policy=Policy(retention=86400))\n'
        "def charge(o: str) -> str:\n    return o\n",
        "charge has a business key and is remembered for 1 d",
    ),
    "no provider to ask": (
        '@guard.once(key="o", name="charge", boundary=Opaque())\ndef charge(o: str) -> str:\n    return o\n',
        "charge is Opaque: after a crash a person decides",
    ),
    "retries that outlive the memory of a provider that can be asked": (
        "from samekey.doubt import load_pack\nfrom samekey.http.webhook import Webhook\n"
        "Webhook(guard, 'paid', verify=lambda request: True, event_id=lambda request: 'e-1', "
        "boundary=load_pack('stripe').keyed(lookup=ask))\n",
        "paid: your retries last 72 h, and stripe forgets a key after 24 h",
    ),
    "facts that were read long ago": (
        "import datetime, dataclasses\nfrom samekey.doubt import load_pack\n"
        "pack = dataclasses.replace(load_pack('adyen'), read=datetime.date(2020, 1, 1))\n"
        '@guard.once(key="o", name="charge", boundary=pack.asks(ask))\ndef charge(o: str) -> str:\n    return o\n',
        "charge: the pack adyen was read on 2020-01-01",
    ),
    "no lookup after the window": (
        '@guard.once(key="o", name="charge", boundary=Keyed(window=86400))\ndef charge(o: str) -> str:\n    return o\n',
        "charge has no lookup: a doubt older than 1 d waits for a person",
    ),
}
NUMBERS = count()


@pytest.fixture
def doctor(shell, scene, tmp_path, monkeypatch):
    """Runs doctor on an application of this code; a store that is durable, so that only the application counts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    views = WeakSet[Endpoint]()  # without the views of other tests, which the collector has not found yet
    for module in (_rules, _visit):
        monkeypatch.setattr(module, "OF_VIEWS", views)
    names = []

    def run(code, *words):
        name = f"checked_{next(NUMBERS)}"
        names.append(name)
        store = f"{shell.store}?synchronous=full"
        (tmp_path / f"{name}.py").write_text(START.format(store=store) + code)
        return name, shell("doctor", "--app", f"{name}:guard", *words)

    yield run
    for name in names:
        sys.modules.pop(name, None)


def test_a_sound_application_is_fine_and_its_guarantee_is_one_sentence(doctor):
    _, result = doctor(SOUND, "--json")

    printed = json.loads(result.stdout)
    assert (result.exit_code, printed["v"], printed["findings"], printed["notes"]) == (0, 1, [], [])
    assert printed["achieved"].startswith("one effect for each key, and the store's part is: ")
    assert (printed["unguarded_routes"], printed["open_findings"]) == ([], 0)


@pytest.mark.parametrize("fault", FAULTS)
def test_it_names_each_fault(doctor, fault):
    code, says = FAULTS[fault]
    name, result = doctor(code)

    assert result.exit_code == 1
    assert f"found: {says.format(app=name)}" in result.stderr
    assert "findings weaken it" in result.stdout


@pytest.mark.parametrize("note", NOTES)
def test_what_is_no_fault_is_a_note(doctor, note):
    code, says = NOTES[note]
    _, result = doctor(code)

    assert result.exit_code == 0
    assert f"note: {says}" in result.stderr


def test_unsettled_records_that_no_worker_can_look_at_are_named(doctor, scene):
    scene.in_doubt("o-1", name="refund")
    scene.completed("o-2", name="mail")
    _, result = doctor(SOUND, "--json")
    assert json.loads(result.stdout)["without_rules"] == ["refund"]
    assert "found: unsettled records that no worker can look at: refund; guard.declare" in result.stderr

    _, result = doctor(SOUND + "guard.declare('refund', boundary=Asks(ask))\n", "--json")
    assert json.loads(result.stdout)["without_rules"] == []


def test_an_effect_that_took_longer_than_its_lease(doctor, gone, clock):
    def slow():
        clock.advance(45)
        return "paid"

    clock.advance(-100)
    gone.run("o-1", slow)
    _, result = doctor(SOUND)

    assert result.exit_code == 1
    assert "found: charge took up to 45 s, and its lease is 30 s" in result.stderr


def test_an_effect_that_took_longer_than_callers_wait_is_a_note(doctor, gone, clock):
    def slow():
        clock.advance(20)
        return "paid"

    clock.advance(-100)
    gone.run("o-1", slow)
    _, result = doctor(SOUND)

    assert result.exit_code == 0
    assert "note: charge took up to 20 s, and callers wait" in result.stderr


def test_open_findings_are_counted_and_the_worst_is_named(shell, scene, doctor):
    for number, severity in enumerate(("low", "critical", "medium")):
        finding = make_finding("late", at=1e9, severity=severity, title=f"a {severity} one", about=[str(number)])
        scene.store.keep_finding(finding)
    _, result = doctor(SOUND)

    assert result.exit_code == 1
    assert "found: 3 open findings, among them (critical): a critical one" in result.stderr


def test_a_route_that_is_declared_to_need_no_guard_is_no_fault(doctor):
    code = f"{FLASK}@shop.post('/search')\n@rules(None)\ndef search():\n    return ''\n"
    _, result = doctor(code)

    assert result.exit_code == 0
    assert "unguarded routes  none" in result.stdout


def test_a_fastapi_route_from_before_the_route_class_is_not_guarded(doctor):
    code = """
from fastapi import FastAPI
from samekey import AsyncGuard
from samekey.http.fastapi import samekey_route

web = FastAPI()

@web.post("/early")
async def early(): ...

guard = AsyncGuard(guard.store_name, policy=guard.policy)
samekey_route(guard=guard, endpoint=Endpoint(boundary=Asks(ask), single_tenant=True), app=web)

@web.post("/late/{id}")
async def late(id: str): ...
"""
    _, result = doctor(code)

    assert result.exit_code == 1
    assert "found: not guarded: POST /early;" in result.stderr


def test_a_clock_that_is_far_off_is_a_fault(scene, doctor, monkeypatch):
    scene.completed("o-1")
    monkeypatch.setattr("samekey.cli.doctor.clock", lambda: time.time() + 7200)
    _, result = doctor(SOUND)

    assert result.exit_code == 1
    assert "found: the store's clock is 2 h behind this machine's: one of the two is wrong" in result.stderr


def test_which_clocks_are_far_off():
    now = time.time()

    assert check_clock(None, now) is None
    assert check_clock(now + 5, now) is None
    assert check_clock(now + 7200, now) == "the store's clock is 2 h ahead of this machine's: one of the two is wrong"
    assert "2 h behind" in (check_clock(now - 7200, now) or "")
