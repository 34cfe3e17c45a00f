"""The exported Spark program on a standalone master with two workers gives the alerts of `watch`, one for one."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from samekey.detect.exporting import SPARK, write_flink, write_spark
from samekey.detect.rule_file import load
from samekey.testing.servers import NoServer, free_port
from tests.detect.test_watch_events import RULES, change
from tests.detect.watching import Watching

ROOT = Path(__file__).parents[2]
EVENTS = int(os.environ.get("SAMEKEY_SPARK_EVENTS", "1000000"))
SECONDS = 1200
START = 1_780_000_000_000_000  # microseconds


def spark_home() -> tuple[Path, Path]:
    """The Python that has pyspark, and where Spark is: an environment of its own, because it has 450 MB."""
    python = Path(os.environ.get("SAMEKEY_SPARK_PYTHON", ROOT / ".cache/spark/bin/python"))
    if not python.exists() or shutil.which("java") is None:
        raise NoServer(
            "no Spark here: make a venv .cache/spark with pyspark, pandas and pyarrow; Java 17 is needed too",
            "spark",
        )
    where = "import pyspark, os; print(os.path.dirname(pyspark.__file__))"
    home = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout.strip()
    return python, Path(home)


class Cluster:
    """A master and two workers, as processes of this test."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.folder = folder
        self.python, self.home = spark_home()
        self.master = f"spark://127.0.0.1:{free_port()}"
        self.environment = {
            **os.environ,
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_DRIVER_PYTHON": str(self.python),
            "SPARK_DAEMON_MEMORY": "256m",
            "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # short lives: compile little
        }
        port = self.master.rpartition(":")[2]
        places = ["--host", "127.0.0.1", "--webui-port", "0"]
        self._start(stack, "master", "org.apache.spark.deploy.master.Master", *places, "--port", port)
        for number in (1, 2):
            limits = ["--cores", "1", "--memory", "700m", "--work-dir", str(folder / f"worker-{number}")]
            self._start(
                stack, f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *places, *limits, self.master
            )
        self._wait("worker-1", "worker-2")

    def _start(self, stack: ExitStack, name: str, *words: str) -> None:
        log = stack.enter_context(open(self.folder / f"{name}.log", "wb"))  # noqa: SIM115 - the stack closes it
        process = subprocess.Popen(
            [self.home / "bin/spark-class", *words], stdout=log, stderr=log, env=self.environment, cwd=self.folder
        )
        stack.callback(process.wait)
        stack.callback(process.terminate)

    def _wait(self, *names: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not all("Successfully registered" in (self.folder / f"{name}.log").read_text() for name in names):
            assert time.monotonic() < deadline, "the workers did not register"
            time.sleep(0.1)

    def submit(self, program: Path, *words: str) -> subprocess.CompletedProcess[str]:
        folder = program.parent
        settings = {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.executor.memory": "600m",
            "spark.driver.memory": "700m",
            "spark.driver.host": "127.0.0.1",
        }
        asked = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        return subprocess.run(
            [self.home / "bin/spark-submit", "--master", self.master, *asked, "--py-files", folder / "samekey.zip",
             program, *words],
            env={**self.environment, "PYTHONPATH": str(folder / "samekey.zip")},
            capture_output=True, text=True, check=False, timeout=SECONDS,
        )  # fmt: skip


def written(folder: Path, parts: int) -> Path:
    """Change events in several files, some of them delivered again; a twentieth of the rows is a duplicate."""
    chance, at = random.Random(3), START
    folder.mkdir()
    lines = []
    for row in range(EVENTS):
        at += chance.randrange(1, 2_000_000)
        ref = row if chance.random() > 0.05 else max(0, row - chance.randrange(1, 5000))
        lines.append(json.dumps(change(row, f"r{ref}", at)))
        if chance.random() < 0.01:
            lines.append(lines[-1])
    size = -(-len(lines) // parts)
    for number in range(parts):
        part = lines[number * size : (number + 1) * size]
        (folder / f"{number}.jsonl").write_text("\n".join(part) + "\n")
    return folder


@pytest.mark.minutes  # five Java processes: `make proof` runs it
@pytest.mark.timeout(SECONDS)
def test_two_workers_give_the_alerts_of_watch_one_for_one(tmp_path):
    spark_home()
    events = written(tmp_path / "events", 4)
    whole = tmp_path / "events.jsonl"
    whole.write_text("".join((events / f"{number}.jsonl").read_text() for number in range(4)))
    watching = Watching(tmp_path, rules=RULES)
    assert watching.run("--from", str(whole)).returncode == 1
    write_spark(load(watching.rules), tmp_path / "program")
    with ExitStack() as stack:
        cluster = Cluster(stack, tmp_path)
        ended = cluster.submit(
            tmp_path / "program" / SPARK,
            "--rules", str(tmp_path / "program/rules.json"), "--secret", str(watching.state / "secret"),
            "--from", str(events), "--to", str(tmp_path / "alerts"), "--checkpoint", str(tmp_path / "checkpoint"),
            "--available-now",
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr[-3000:]
    found = [
        json.loads(line) for part in (tmp_path / "alerts").glob("part-*") for line in part.read_text().splitlines()
    ]
    expected = watching.alerts()
    print(f"{EVENTS} events, {len(expected)} alerts of watch, {len(found)} of Spark")

    assert len(expected) > EVENTS / 40
    assert sorted(found, key=by_id) == sorted(expected, key=by_id)


def by_id(alert):
    return alert["id"]


def test_the_flink_recipe_names_the_columns_and_the_window(tmp_path):
    (tmp_path / "rules.toml").write_text(RULES)
    (path,) = write_flink(load(tmp_path / "rules.toml"), tmp_path / "flink")
    text = path.read_text()

    assert "PARTITION BY `tenant`, `order_ref` ORDER BY `created_at`" in text
    assert "'table.exec.state.ttl' = '86400 s'" in text
    assert "<= 86400" in text
