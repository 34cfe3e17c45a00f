"""`samekey db rates` over Prometheus' HTTP API, in its documented form."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from samekey.cli._root import root
from tests.detect.watching import RUNNER


@pytest.fixture
def prometheus():
    """Replays are 1 % of 6000 calls a minute; `spike` minutes at the end have ten times as many."""
    asked: list[str] = []
    shape = {"spike": 0, "empty": False, "status": 200}

    class Api(BaseHTTPRequestHandler):
        def do_GET(self):
            query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            asked.append(query["query"])
            start, step = float(query["start"]), int(query["step"])
            count = int((float(query["end"]) - start) // step)
            result = []
            if "samekey_attempts_total" in query["query"] and not shape["empty"]:
                usual = 60 if "replayed" in query["query"] else 6000
                values = [usual] * (count - shape["spike"])
                values += [usual * 10 if usual == 60 else usual] * shape["spike"]
                pairs = [[start + place * step, str(value)] for place, value in enumerate(values)]
                result = [{"metric": {"operation": "pay"}, "values": pairs}]
            body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()
            self.send_response(shape["status"])
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_): ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", shape, asked
        server.shutdown()
        thread.join()


def run(url, *words):
    result = RUNNER().invoke(root, ["db", "rates", "--from", url, "--hours", "24", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_usual_rates_are_fine_and_a_spike_is_found(prometheus, tmp_path):
    url, shape, asked = prometheus
    usual = run(url, "--json")
    (replays,) = [one for one in json.loads(usual.stdout)["rates"] if one["signal"] == "replays"]
    shape["spike"] = 2
    spiked = run(url, "--json", "--textfile", str(tmp_path / "rates.prom"))
    (high,) = [one for one in json.loads(spiked.stdout)["rates"] if one["alarm"]]

    assert usual.exit_code == 0, usual.output
    assert replays["low"] < replays["share"] < replays["high"]
    assert spiked.exit_code == 1
    assert (high["signal"], high["label"]) == ("replays", "operation=pay")
    assert 'samekey_anomaly_score{signal="replays",label="operation=pay"}' in (tmp_path / "rates.prom").read_text()
    assert any("sum by (operation, source)" in query for query in asked)


def test_rates_that_are_not_known_are_not_fine(prometheus):
    url, shape, _ = prometheus
    shape["empty"] = True
    assert run(url).exit_code == 4
    shape["status"] = 500
    assert run(url).exit_code == 4
    assert run("http://127.0.0.1:9").exit_code == 4


def test_labels_are_chosen_and_checked(prometheus):
    url, _, asked = prometheus
    run(url, "--by", "region")

    assert all("sum by (region)" in query for query in asked)
    assert run(url, "--by", "region) or vector(1").exit_code == 2
