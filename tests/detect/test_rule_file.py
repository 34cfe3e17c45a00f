"""The rule file: what is read, what is refused, and which rows are the same by it."""

from __future__ import annotations

import tomllib

import pytest

from samekey.core.errors import Misconfigured
from samekey.detect.findings import Severity
from samekey.detect.rule_file import RULES_MAX, Rule, load, parse

WHOLE = """
[[rule]]
name = "orders-content"
table = "public.orders"
content = true
canonical = ["email"]
ignore = ["trace_id"]
window = "24h"
time = "created_at"
row_id = ["id"]
source = ["api_key_id", "region", "client_version"]
request_id = "request_id"
alert_above = 0.001
severity = "critical"

[[rule]]
name = "payments-key"
table = "payments"
key = ["tenant_id", "idempotency_key"]
"""
COLUMNS = ["id", "email", "amount", "trace_id", "created_at", "api_key_id", "region", "client_version", "request_id"]


def rules(text: str) -> tuple[Rule, ...]:
    return parse(tomllib.loads(text), "rules.toml")


def one(**fields: object) -> Rule:
    return parse({"rule": [{"name": "r", "table": "t", "key": ["a"]} | fields]}, "rules.toml")[0]


def test_every_field_is_read():
    content, key = rules(WHOLE)

    assert content == Rule(
        "orders-content",
        "public.orders",
        canonical=frozenset({"email"}),
        ignore=("trace_id",),
        nulls_equal=True,
        window_seconds=86_400.0,
        time="created_at",
        source=("api_key_id", "region", "client_version"),
        request_id="request_id",
        alert_above=0.001,
        severity=Severity.CRITICAL,
    )
    assert key == Rule("payments-key", "payments", ("tenant_id", "idempotency_key"))
    assert (key.by_content, content.by_content) == (False, True)


def test_the_content_is_every_column_that_no_other_field_names():
    bound = rules(WHOLE)[0].bound(COLUMNS)

    assert bound.key == ("email", "amount")
    assert bound.columns == (
        "id", "email", "amount", "created_at", "api_key_id", "region", "client_version", "request_id",
    )  # fmt: skip


def test_rows_are_the_same_when_their_canonical_texts_are():
    bound = rules(WHOLE)[0].bound(COLUMNS)
    first, second, other = (
        bound.key_of({"email": email, "amount": 5}) for email in ("A@x.de", " a@\uff58.de\u200b", "b@x.de")
    )

    assert first == second == ("a@x.de", 5)
    assert other != first


@pytest.mark.parametrize(("nulls", "key"), [("skip", None), ("equal", (None,))])
def test_a_row_with_null_in_its_key(nulls, key):
    assert one(nulls=nulls).bound(["id", "a"]).key_of({"a": None}) == key
    assert one(nulls=nulls).bound(["id", "a"]).key_of({"a": 0}) == (0,)


def test_a_rule_must_fit_the_table():
    with pytest.raises(Misconfigured, match="has no column a, id; it has b"):
        one().bound(["b"])
    with pytest.raises(Misconfigured, match="left for the content"):
        parse({"rule": [{"name": "r", "table": "t", "content": True}]}, "f")[0].bound(["id"])


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"nmae": 1}, "no field nmae"),
        ({"name": "A b"}, "name is"),
        ({"name": 5}, "name is"),
        ({"table": ""}, "table is"),
        ({"key": []}, "key is empty"),
        ({"key": [1]}, "key is a list"),
        ({"key": ["a", "a"]}, "each once"),
        ({"key": [f"c{n}" for n in range(33)]}, "at most 32"),
        ({"content": True}, "either key"),
        ({"content": "yes"}, "either key"),
        ({"window": "1h"}, "needs time"),
        ({"window": 5, "time": "at"}, "window is a time"),
        ({"window": "0s", "time": "at"}, "window is a time"),
        ({"window": "400d", "time": "at"}, "window is a time"),
        ({"ignore": ["b"]}, "ignore goes with"),
        ({"canonical": ["b"]}, "not in key"),
        ({"time": "a"}, "differs between"),
        ({"row_id": "a"}, "differs between"),
        ({"nulls": "maybe"}, "nulls is"),
        ({"alert_above": 1}, "alert_above"),
        ({"alert_above": True}, "alert_above"),
        ({"alert_above": float("nan")}, "alert_above"),
        ({"severity": "grave"}, "severity is"),
        ({"source": [f"c{n}" for n in range(9)]}, "at most 8"),
        ({"request_id": ""}, "request_id is"),
    ],
)
def test_a_wrong_rule_is_refused(fields, sentence):
    with pytest.raises(Misconfigured, match=sentence):
        one(**fields)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"rule": []},
        {"rule": {"name": "r"}},
        {"rule": ["r"]},
        {"rule": [{"name": "r", "table": "t", "key": ["a"]}], "more": 1},
        {"rule": [{"name": "r", "table": "t", "key": ["a"]}] * 2},
        {"rule": [{"name": f"r{n}", "table": "t", "key": ["a"]} for n in range(RULES_MAX + 1)]},
    ],
)
def test_a_wrong_document_is_refused(document):
    with pytest.raises(Misconfigured):
        parse(document, "rules.toml")


def test_a_file_is_loaded_and_a_missing_or_broken_one_is_refused(tmp_path):
    (tmp_path / "rules.toml").write_text(WHOLE, encoding="utf-8")
    (tmp_path / "broken.toml").write_text("[[rule", encoding="utf-8")

    assert [rule.name for rule in load(tmp_path / "rules.toml")] == ["orders-content", "payments-key"]
    for name in ("broken.toml", "absent.toml"):
        with pytest.raises(Misconfigured, match="cannot be read"):
            load(tmp_path / name)
