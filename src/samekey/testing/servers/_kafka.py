"""A private Apache Kafka 4 for tests: one process that is broker and controller (KRaft).

Its jars are the Maven artifacts of `org.apache.kafka:kafka_2.13` and what they depend on, which `.ci/kafka` downloads
(about 43 MB). SAMEKEY_KAFKA_LIB names their folder; `kafka_lib` has the default.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from samekey.testing.servers._process import NoServer, PrivateProcess, free_port, own_folder

# The first compiler and one collector thread: a test ends before a better compiled server would pay.
JVM = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
CLUSTER = "c2FtZWtleS10ZXN0cy0wMQ"  # 16 bytes as base64: the form that Kafka wants


def kafka_lib() -> Path:
    """Where the jars are."""
    return Path(os.environ.get("SAMEKEY_KAFKA_LIB", "/var/cache/samekey/kafka/lib")).absolute()


@contextlib.contextmanager
def kafka() -> Iterator[Kafka]:
    """A running server."""
    java, lib = shutil.which("java"), kafka_lib()
    if java is None:
        raise NoServer("Kafka needs Java: apt-get install default-jre-headless", "kafka")
    if not any(lib.glob("kafka_2.13-4.*.jar")):
        raise NoServer("Kafka 4 is not here: .ci/kafka downloads it, or name its jars in SAMEKEY_KAFKA_LIB", "kafka")
    with own_folder("kafka") as folder:
        server = Kafka(folder, java, lib)
        try:
            server.start()
            yield server
        finally:
            server.end(signal.SIGKILL)


class Kafka(PrivateProcess):
    title, required_as, refuses_root = "Kafka", "kafka", False

    def __init__(self, folder: Path, java: str, lib: Path) -> None:
        super().__init__(folder)
        self._java = (java, *JVM, "-cp", f"{lib}/*")
        self._settings = folder / "server.properties"
        self._settings.write_text(_SETTINGS.format(port=self.port, controller=free_port(), folder=folder))
        self.run([*self._java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self._settings)])

    @property
    def servers(self) -> str:
        """`bootstrap.servers` of a client."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self.launch(*self._java, "kafka.Kafka", str(self._settings))

    def restart(self) -> None:
        """Kill it with -9 and start it on the same data."""
        self.end(signal.SIGKILL)
        self.start()

    def answers(self) -> bool:
        """Whether it answers a request: the port is open some time before that."""
        request = struct.pack(">hhih", 18, 0, 1, -1)  # ApiVersions
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as probe:
                probe.settimeout(5)
                probe.sendall(struct.pack(">i", len(request)) + request)
                return len(probe.recv(4)) == 4
        except OSError:
            return False


_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
num.network.threads=1
num.io.threads=2
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""
