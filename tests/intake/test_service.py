"""The HTTP service as a real process: bad input, tenants, batches, retries, and scenario 04 from several processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.intake.service import serving

FULL = os.environ.get("SAMEKEY_BUDGET") == "full"
HAMMER = Path(__file__).parent / "hammer.py"


def arguments(setup, *more):
    redis = ["--redis", setup.redis, "--drain"] if setup.redis else []
    return ["--db", setup.db, *redis, *more]


@pytest.fixture
def service(setup, tmp_path):
    with serving(*arguments(setup), folder=tmp_path) as running:
        yield running


def test_bad_input_is_refused_and_writes_nothing(service):
    trigger = "/api/v1/tasks/t/trigger"
    cases = [
        (400, ("POST", trigger, b"{"), {}),
        (400, ("POST", trigger, b"[]"), {}),
        (400, ("POST", trigger, {"options": []}), {}),
        (400, ("POST", trigger, {"options": {"idempotencyKey": "x" * 2049}}), {}),
        (400, ("POST", trigger, {"options": {"idempotencyKey": "a", "idempotencyKeyTTL": "soon"}}), {}),
        (400, ("POST", trigger, {"options": {"idempotencyKey": "a"}}), {"idempotency_key": "b"}),
        (400, ("POST", trigger, {"options": {"delay": "whenever"}}), {}),
        (413, ("POST", trigger, {"payload": "x" * (3 << 20)}), {}),
        (422, ("POST", trigger, {"options": {"tags": ["x"] * 5 + [str(n) for n in range(11)]}}), {}),
        (422, ("POST", trigger, {"options": {"metadata": [1]}}), {}),
        (422, ("POST", trigger, {"payload": "none", "options": {"payloadType": "application/store"}}), {}),
        (401, ("POST", trigger, {}), {"authorization": "Bearer sk_dev_wrong"}),
        (401, ("POST", trigger, {}), {"authorization": "Basic x"}),
        (401, ("GET", "/api/v1/runs"), {"authorization": "Bearer skt_x.y"}),
        (404, ("GET", "/api/v3/runs/run_unknown"), {}),
        (404, ("GET", "/api/v9/nothing"), {}),
        (404, ("POST", "/api/v3/batches/batch_x/items", b""), {}),
        (400, ("POST", "/api/v3/batches", {"runCount": 0}), {}),
        (400, ("GET", "/api/v1/runs?page%5Bsize%5D=1000"), {}),
        (400, ("GET", "/api/v1/runs?page%5Bafter%5D=%21%21"), {}),
        (403, ("PUT", "/packets/skt_x.y", b"x"), {}),
    ]
    for expected, call, headers in cases:
        status, body, _ = service.call(*call, **headers)
        assert (status, next(iter(body))) == (expected, "error"), (call, status, body)
    assert service.call("GET", "/api/v1/runs")[1] == {"data": [], "pagination": {}}

    run = service.trigger("t", {"a": 1})["id"]
    bad = {"operations": [{"type": "increment", "key": "a", "value": "x"}]}
    status, body, _ = service.call("PUT", f"/api/v1/runs/{run}/metadata", bad)
    assert status == 422
    assert "operations[0].value" in body["error"]
    assert service.call("POST", f"/api/v1/runs/{run}/reschedule", {"delay": "1h"})[0] == 400


def test_keys_payloads_and_answers(service):
    first = service.trigger("a%2Fb", {"x": [], "n": 10**25}, idempotencyKey="k:1", machine="large", queue={"name": "q"})
    again = service.trigger("a%2Fb", {"x": [], "n": 10**25}, idempotencyKey="k:1")
    assert (first["isCached"], again) == (False, {"id": first["id"], "isCached": True})
    run = service.call("GET", f"/api/v3/runs/{first['id']}")[1]
    assert (run["taskIdentifier"], run["payload"], run["idempotencyKey"]) == ("a/b", {"x": [], "n": 10**25}, "k:1")
    assert run["options"] == {"machine": "large", "queue": {"name": "q"}}
    assert service.call("GET", f"/api/v1/runs/{run['id']}/result")[0] == 404

    header = service.call("POST", "/api/v1/tasks/t/trigger", {"payload": 1}, idempotency_key="h")[1]
    assert service.trigger("t", 1, idempotencyKey="h") == {"id": header["id"], "isCached": True}

    done = service.call("POST", f"/api/v1/runs/{run['id']}/complete", {"output": {"a": 1}})[1]
    second = service.call("POST", f"/api/v1/runs/{run['id']}/fail", {"error": "late"})[1]
    assert (done["status"], second["status"], second["output"]) == ("COMPLETED", "COMPLETED", {"a": 1})
    result = service.call("GET", f"/api/v1/runs/{run['id']}/result")[1]
    assert (result["ok"], json.loads(result["output"])) == (True, {"a": 1})

    retried = [
        service.call(
            "POST", "/api/v1/tasks/t/trigger", {"payload": {"r": 1}}, x_trigger_request_idempotency_key="uuid-1"
        )[1]
        for _ in range(2)
    ]
    assert retried[0] == retried[1]

    text = service.call("GET", "/metrics")[1]
    assert "samekey_intake_claim_wins_total" in text
    assert 'samekey_intake_inner_duplicates_total{at="insert"} 0' in text
    described = service.call("GET", "/openapi.json")[1]
    assert "/api/v1/tasks/{task}/trigger" in described["paths"]


def test_a_batch_key_is_cached_only_when_the_batch_is_sealed(service):
    opening = {"runCount": 3, "idempotencyKey": "b"}
    lost = service.call("POST", "/api/v3/batches", opening)[1]
    again = service.call("POST", "/api/v3/batches", opening)[1]
    assert (again["id"], again["isCached"]) == (lost["id"], False)

    lines = [
        json.dumps({"index": n, "task": "t", "payload": {"n": n % 2}, "options": {"idempotencyKey": f"k{n % 2}"}})
        for n in range(3)
    ]
    path = f"/api/v3/batches/{lost['id']}/items"
    part = service.call("POST", path, "\n".join(lines[:2]).encode(), content_type="application/x-ndjson")[1]
    assert (part["itemsAccepted"], part["sealed"], part["enqueuedCount"]) == (2, False, 2)
    whole = service.call("POST", path, "\n".join(lines).encode(), content_type="application/x-ndjson")[1]
    assert (whole["itemsAccepted"], whole["itemsDeduplicated"], whole["sealed"]) == (1, 2, True)
    assert service.call("POST", "/api/v3/batches", opening)[1]["isCached"] is True
    found = service.call("GET", f"/api/v2/batches/{lost['id']}")[1]
    assert (len(found["runs"]), len(set(found["runs"])), found["status"]) == (3, 2, "PROCESSING")


def test_another_environment_and_a_token_of_one_run_see_no_more(setup, service, tmp_path):
    made = subprocess.run(
        [sys.executable, "-m", "samekey", "intake", "env", "add", "other", "--db", setup.db],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    other = made.stdout.strip()
    assert other.startswith("sk_other_")
    _, run, _ = service.call("POST", "/api/v1/tasks/t/trigger", {"options": {"idempotencyKey": "k"}})
    theirs = {"authorization": f"Bearer {other}"}
    calls: tuple[Any, ...] = (
        ("GET", f"/api/v3/runs/{run['id']}"),
        ("POST", f"/api/v2/runs/{run['id']}/cancel"),
        ("POST", f"/api/v1/runs/{run['id']}/tags", {"tags": "x"}),
        ("PUT", f"/api/v1/runs/{run['id']}/metadata", {"metadata": {}}),
        ("POST", "/api/v1/idempotencyKeys/k/reset", {"taskIdentifier": "t"}),
        ("GET", f"/realtime/v1/runs/{run['id']}?offset=-1"),
    )
    for call in calls:
        assert service.call(*call, **theirs)[0] == 404, call
    _, body, answered = service.call("POST", "/api/v1/tasks/t/trigger", {"options": {"idempotencyKey": "k"}})
    token = {"authorization": f"Bearer {answered['x-trigger-jwt']}"}
    assert body["id"] == run["id"]
    assert service.call("GET", f"/api/v3/runs/{run['id']}", **token)[0] == 200
    assert service.call("GET", "/api/v1/runs", **token)[0] == 403
    assert service.call("POST", f"/api/v2/runs/{run['id']}/cancel", **token)[0] == 403

    listed = subprocess.run(
        [sys.executable, "-m", "samekey", "intake", "keys", "ls", "--json", "--db", setup.db],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    key_id = next(json.loads(line)["id"] for line in listed.stdout.splitlines() if '"other"' in line)
    assert other not in listed.stdout
    revoke = [sys.executable, "-m", "samekey", "intake", "keys", "revoke", key_id, "--db", setup.db]
    assert subprocess.run(revoke, check=False, cwd=tmp_path).returncode == 0
    ends = time.monotonic() + 60
    while service.call("GET", "/api/v1/runs", **theirs)[0] != 401:
        assert time.monotonic() < ends
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("gate", ["on", "divert", "off", "shadow"])
def test_04_same_key_triggers_from_four_processes(setup, tmp_path, gate):
    """N = 1000 with the full budget."""
    count = 1000 if FULL else 60
    with serving(*arguments(setup, "--gate", gate), folder=tmp_path) as service:
        hammers = [
            subprocess.Popen(
                [sys.executable, str(HAMMER), str(service.port), service.key, str(count // 4)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for _ in range(4)
        ]  # fmt: skip
        for one in hammers:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        for one in hammers:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        answers = [json.loads(line) for one in hammers for line in one.communicate(timeout=500)[0].splitlines()]
        later = service.trigger("storm", {"a": 1}, idempotencyKey="k")

    assert len(answers) == count
    assert {answer["id"] for answer in answers} == {later["id"]}
    assert sum(not answer["isCached"] for answer in answers) == 1
    assert later["isCached"]
