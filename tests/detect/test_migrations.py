"""audit --migrations and --lint: the line that made a gap, and what a file would do before it runs."""

from __future__ import annotations

import json

import pytest

from samekey.detect.migrations import places, split
from tests.detect.conftest import plant_sqlite
from tests.detect.test_command import run

FIRST = """-- The shop; with a ; in a comment
CREATE TABLE payments (
  id INTEGER PRIMARY KEY,
  request_id INT NOT NULL, -- the client's
  note TEXT DEFAULT 'a;b'
);

CREATE TABLE seats (show_id INT NOT NULL, seat INT, CONSTRAINT seats_once UNIQUE (show_id, seat));
CREATE UNIQUE INDEX orders_open ON orders (order_ref) WHERE state = 1;
"""
SCHEMA = "CREATE TABLE orders (id INTEGER PRIMARY KEY, order_ref INT NOT NULL, state INT); " + FIRST
ALEMBIC = """
def upgrade():
    op.create_table(
        "users",
        sa.Column("id", sa.Integer),
        sa.Column("email", sa.String),
    )
    op.create_index("users_email", "users", ["email"], unique=True)
    op.execute("CREATE TABLE extra (id INTEGER PRIMARY KEY, event_id INT)")
"""
DJANGO = """
class Migration(migrations.Migration):
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(primary_key=True)),
                ("number", models.IntegerField()),
            ],
        ),
        migrations.AddField(model_name="order", name="email", field=models.TextField()),
    ]
"""


def test_statements_begin_on_their_line():
    found = [(one.line, one.text.split()[1]) for one in split(FIRST, "0001.sql")]

    assert found == [(2, "TABLE"), (8, "TABLE"), (9, "UNIQUE")]


def test_each_tool_names_its_lines(tmp_path):
    (tmp_path / "0001.sql").write_text(FIRST)
    (tmp_path / "0002.py").write_text(ALEMBIC)
    (tmp_path / "shop" / "migrations").mkdir(parents=True)
    (tmp_path / "shop" / "migrations" / "0001_initial.py").write_text(DJANGO)
    lines = {name: line for name, (_, line) in places(tmp_path).items()}

    assert lines["payments"] == 2
    assert lines["payments.request_id"] == 4
    assert lines["seats_once"] == 8
    assert lines["orders_open"] == 9
    assert (lines["users"], lines["users.email"], lines["users_email"]) == (3, 6, 8)
    assert lines["extra.event_id"] == 9
    assert (lines["shop_order"], lines["shop_order.number"], lines["shop_order.email"]) == (4, 8, 11)


def test_a_gap_is_named_with_the_line_that_made_it(tmp_path):
    (tmp_path / "0001.sql").write_text(FIRST)
    url = plant_sqlite(tmp_path / "shop.db", SCHEMA)
    result = run(url, "--migrations", str(tmp_path / "0001.sql"), "--json")
    found = {one["object"]: one["line"] for one in json.loads(result.stdout)["findings"]}
    (sarif,) = json.loads(run(url, "--migrations", str(tmp_path / "0001.sql"), "--sarif").stdout)["runs"]
    regions = [one["locations"][0].get("physicalLocation") for one in sarif["results"]]

    assert found["payments.request_id"] == 4
    assert found["orders.orders_open"] == 9
    assert {one["region"]["startLine"] for one in regions if one} >= {4, 9}
    assert "0001.sql:4" in run(url, "--migrations", str(tmp_path / "0001.sql")).stdout


@pytest.mark.parametrize(
    ("migration", "found"),
    [
        (
            "CREATE TABLE refunds (id INTEGER PRIMARY KEY, request_id INT NOT NULL);",
            {("SK107", "refunds.request_id", 1)},
        ),
        ("CREATE TABLE refunds (id INTEGER PRIMARY KEY, request_id INT NOT NULL UNIQUE);", set()),
        ("CREATE TABLE log (a INT);", {("SK101", "log", 1)}),
        ("\nCREATE UNIQUE INDEX pay_once ON payments (request_id);", {("SK132", "payments.pay_once", 2)}),
        (
            "DROP INDEX IF EXISTS orders_ref;",
            {("SK130", "orders.orders_ref", None), ("SK107", "orders.order_ref", None)},
        ),
        ("ALTER TABLE orders ADD COLUMN event_id INT;", {("SK107", "orders.event_id", 1)}),
        ("CREATE INDEX orders_state ON orders (state);", set()),
        ("INSERT INTO orders VALUES (5, 6, 7);", set()),
    ],
)
def test_what_a_migration_would_do_is_known_before_it_runs(migration, found, tmp_path):
    schema = (
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, order_ref INT NOT NULL, state INT); "
        "CREATE UNIQUE INDEX orders_ref ON orders (order_ref); "
        "CREATE TABLE payments (id INTEGER PRIMARY KEY, request_id INT NOT NULL, amount INT);"
        "INSERT INTO payments VALUES (1, 5, 1), (2, 5, 1)"
    )
    (tmp_path / "0002.sql").write_text(migration)
    url = plant_sqlite(tmp_path / "shop.db", schema)
    before = {(one["rule"], one["object"]) for one in json.loads(run(url, "--confirm", "--json").stdout)["findings"]}
    report = json.loads(run(url, "--confirm", "--json", "--lint", str(tmp_path / "0002.sql")).stdout)
    new = {(one["rule"], one["object"], one["line"]) for one in report["findings"]}

    assert {one for one in new if one[:2] not in before} == found
    assert report["complete"] is True


def test_a_statement_that_is_not_understood_makes_the_audit_incomplete(tmp_path):
    (tmp_path / "0002.sql").write_text("ALTER TABLE nowhere ADD UNIQUE (a);\nCREATE TABLE copy AS SELECT 1;")
    result = run(plant_sqlite(tmp_path / "shop.db", SCHEMA), "--lint", str(tmp_path / "0002.sql"))

    assert result.exit_code == 4
    assert result.stderr.count("not understood") == 2
