"""`samekey prove`: options, table, JSON, page and exit codes. What is found where: tests/prove."""

from __future__ import annotations

import json

import pytest

from tests.prove.shops import opened

QUICK = ["--rounds", "1", "--settle", "0.02", "--patience", "0.3", "--oversize", str(2 << 20)]


def words(url, *more):
    return [
        "prove", f"{url}/charges", "--body", '{"amount": 200, "currency": "usd"}', "--count-url", f"{url}/count",
        "-H", "Authorization: alice", "--other-header", "Authorization: bob",
        "--fail-header", "X-Fail: before", "--fail-header", "X-Fail: after", *QUICK, *more,
    ]  # fmt: skip


def test_all_hold(shell):
    with opened() as (url, _):
        done = shell(*words(url))

    assert done.exit_code == 0
    assert "Claim     holds    claiming a key is checking that it is free" in done.stdout
    assert "in-parallel\tone key, many at once: one effect" in done.stdout


def test_something_is_broken(shell):
    with opened("tenants share keys") as (url, _):
        done = shell(*words(url))

    assert done.exit_code == 1
    assert "Intent\tbroken\tanother-principal\tanother principal with the same key is given the answer" in done.stdout
    assert "  3. another principal, the same key: 201" in done.stdout
    assert "Intent    broken" in done.stdout


def test_json_and_a_page(shell, tmp_path):
    page = tmp_path / "report.html"
    with opened("bodies are not compared") as (url, _):
        done = shell(*words(url, "--json", "--html", str(page)))
    printed = json.loads(done.stdout)

    assert done.exit_code == 1
    assert printed["assumptions"] == {"Claim": "holds", "Intent": "broken", "Memory": "holds", "Boundary": "holds"}
    assert printed["complete"]
    assert "another-body" in page.read_text()
    assert "<script" not in page.read_text()


def test_not_everything_could_be_tried(shell):
    with opened() as (url, _):
        done = shell("prove", f"{url}/charges", "--body", '{"amount": 1}', *QUICK)

    assert done.exit_code == 4
    assert "Boundary  unknown" in done.stdout


def test_a_body_from_a_file_and_what_does_not_apply(shell, tmp_path):
    (tmp_path / "body").write_text('{"amount": 1}')
    with opened() as (url, _):
        done = shell(
            "prove", f"{url}/charges", "--body", f"@{tmp_path / 'body'}", "--identity", "charge", *QUICK,
            "--skip", "another-principal", "--skip", "after-a-timeout", "--skip", "after-a-failure",
        )  # fmt: skip

    assert done.exit_code == 0
    assert "Boundary  skipped" in done.stdout


def test_an_endpoint_that_does_not_answer(shell):
    with opened() as (url, _):
        pass

    done = shell(*words(url))
    assert done.exit_code == 3
    assert "does not answer" in done.stderr


def test_another_machine(shell):
    done = shell("prove", "http://192.0.2.1/charges")

    assert done.exit_code == 2
    assert "--yes-this-is-mine" in done.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        ["--header", "no colon"],
        ["--header", "two words: x"],
        ["--header", "Name: \u20ac"],
        ["--header", "idempotency-key: mine"],
        ["--key-header", "two words"],
        ["--method", "GET"],
        ["--body", "@there/is/none"],
        ["--break-cmd", "true"],
        ["--count-url", "http://localhost/", "--count-cmd", "true"],
        ["--count-field", "a"],
        ["--identity", "a", "--count-cmd", "true"],
        ["--skip", "two-keys"],
        ["--count-url", "http://192.0.2.1/"],
    ],
)
def test_usage(shell, wrong):
    assert shell("prove", "http://localhost:1/", *wrong).exit_code == 2


@pytest.mark.parametrize(
    "option",
    [
        ("--html", "no/such/directory/report.html"),
        ("--content-type", "text/plain\nX-More: 1"),
        ("--content-type", "text/日本"),
        ("--timeout", "nan"),
        ("--timeout", "inf"),
        ("--max-seconds", "nan"),
        ("--settle", "1e300"),
        ("--oversize", str(1 << 50)),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_sent(shell, option):
    """A value that no examination could use is a mistake of usage, and costs no effect."""
    with opened() as (url, shop):
        done = shell(*words(url, *option))

    assert done.exit_code == 2
    assert not shop.charges
