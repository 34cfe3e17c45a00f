"""audit --code: call sites, joined with the catalog and the rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from samekey.detect.call_sites import read
from tests.detect.conftest import plant_sqlite
from tests.detect.test_command import run

CODE = """
import uuid, time, requests
from celery import shared_task
from tenacity import retry

def register(email):
    customer, made = Customer.objects.get_or_create(email=email, defaults={"name": "x"})     # line 7
    return Voucher.objects.get_or_create(code=email)

def pay(db, ref, amount):
    if db.execute("SELECT id FROM payments WHERE order_ref = %s", (ref,)).fetchone() is None:
        db.execute("INSERT INTO payments (order_ref, amount) VALUES (%s, %s)", (ref, amount))  # line 12

def order(request):
    if not Order.objects.filter(number=request.number).exists():
        Order.objects.create(number=request.number)                                             # line 16

def charge(session, order):
    for _ in range(3):
        try:
            return session.post("/charges", json=order)                                         # line 21
        except requests.Timeout:
            time.sleep(1)

@retry
def refund(session, order):
    key = str(uuid.uuid4())                                                                     # line 27
    return session.post("/refunds", json=order, headers={"Idempotency-Key": key})

@shared_task
def ship(order_id):                                                                             # line 31
    print(order_id)

@shared_task
@guard.once(name="bill", key="order_id")
def bill(order_id):
    print(order_id)

def fine(session, orders):
    key = str(uuid.uuid4())
    for order in orders:
        session.post("/charges", json=order)
    for _ in range(3):
        try:
            return session.post("/charges", json=order, headers={"Idempotency-Key": key})
        except requests.Timeout:
            continue

SQL = "INSERT INTO orders VALUES (1, 17, 200) ON CONFLICT DO NOTHING RETURNING *"              # line 49
"""
EXPECTED = {
    ("SK401", 7), ("SK401", 8), ("SK402", 12), ("SK402", 16), ("SK403", 21), ("SK404", 27), ("SK405", 31),
    ("SK406", 49),
}  # fmt: skip
TABLES = """
CREATE TABLE shop_customer (id INTEGER PRIMARY KEY, email TEXT NOT NULL, name TEXT, created_at TIMESTAMP);
INSERT INTO shop_customer (email, created_at) VALUES ('a', '2026-01-01 10:00'), ('b', '2026-01-01 10:00'),
  ('a', '2026-01-02 10:00'), ('a', '2026-01-05 10:00');
CREATE TABLE vouchers (id INTEGER PRIMARY KEY, code INT NOT NULL UNIQUE);
CREATE TABLE payments (id INTEGER PRIMARY KEY, order_ref INT, amount INT);
CREATE TABLE orders (id INTEGER PRIMARY KEY, number INT NOT NULL UNIQUE, amount INT);
"""


def test_every_kind_of_call_site_is_found_and_the_sound_ones_are_not(tmp_path):
    (tmp_path / "shop.py").write_text(CODE)
    sites, problems = read(tmp_path)

    assert {(site.rule, site.line) for site in sites} == EXPECTED
    assert problems == []


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "other.py").write_text(CODE)

    sites, problems = read(tmp_path)

    assert sites == []
    assert len(problems) == 1


def test_a_call_site_is_joined_with_its_table_and_its_rows(tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "shop.py").write_text(CODE)
    url = plant_sqlite(tmp_path / "shop.db", TABLES)
    result = run(url, "--confirm", "--code", str(code), "--json")
    report = json.loads(result.stdout)
    sites = {(one["rule"], one["line"]): one for one in report["call_sites"]}
    customer = sites["SK401", 7]

    assert {*sites} == EXPECTED - {("SK401", 8), ("SK402", 16)}  # a unique key refuses the second row there
    assert (customer["duplicates"], customer["pair"]) == (2, [[1], [3]])
    assert customer["since"] == pytest.approx(1767348000.0, abs=0.001)  # 2026-01-02 10:00 UTC
    assert "CREATE UNIQUE INDEX" in customer["fix_sql"][0]
    assert '"shop_customer" ("email")' in customer["fix_sql"][0]
    assert Path(customer["file"]).name == "shop.py"
    assert sites["SK402", 12]["duplicates"] == 0
    assert sites["SK406", 49]["table"] == "orders"
    assert result.exit_code == 1
    assert f"{code}/shop.py:7" in run(url, "--confirm", "--code", str(code)).stdout
    assert run(url, "--code", str(tmp_path / "absent")).exit_code == 2
