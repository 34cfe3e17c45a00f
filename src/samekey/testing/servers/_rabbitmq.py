"""Private RabbitMQ nodes for tests: free ports, a temporary folder, an Erlang port mapper of their own.

Two flavours. "3" is Debian's own package. "4" is the package of Debian unstable, which `debootstrap` unpacks into a
root of its own (`.ci/rabbitmq-4`, about 400 MB, needs root): it brings its own libraries, and this machine's stay as
they are. Its folder is named in SAMEKEY_RABBITMQ_ROOT, or is /var/cache/samekey/rabbitmq-4.
"""
# ruff: noqa: S603 - starts the servers' own programs, with arguments made here

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samekey.testing.servers._process import NoServer, free_port, unprivileged

START_SECONDS = 180.0  # an Erlang node on a busy machine
PROGRAM = "/usr/lib/rabbitmq/bin/rabbitmq-server"
CONTROL = "/usr/lib/rabbitmq/bin/rabbitmqctl"


def rabbitmq_root() -> Path:
    """Where RabbitMQ 4 is unpacked."""
    return Path(os.environ.get("SAMEKEY_RABBITMQ_ROOT", "/var/cache/samekey/rabbitmq-4")).absolute()


@contextlib.contextmanager
def rabbitmq(flavour: str = "3") -> Iterator[RabbitMQ]:
    """A running node."""
    root = None if flavour == "3" else rabbitmq_root()
    program = Path(PROGRAM if root is None else f"{root}{PROGRAM}")
    if not program.exists():
        hint = "apt-get install rabbitmq-server" if root is None else "see samekey/testing/servers/_rabbitmq.py"
        raise NoServer(f"RabbitMQ {flavour} is not here: {hint}", "rabbitmq")
    if root is not None and os.geteuid() != 0:
        raise NoServer("RABBITMQ 4 runs in a root of its own, and only the system user root may enter it", "rabbitmq")
    within = "/tmp" if root is None else f"{root}/tmp"  # noqa: S108 - a folder with a random name in it
    folder = Path(tempfile.mkdtemp(prefix="samekey-rabbitmq-", dir=within))
    server = RabbitMQ(folder, root)
    try:
        server.start()
        yield server
    finally:
        server.end()
        shutil.rmtree(folder, ignore_errors=True)


class RabbitMQ:
    """One node."""

    def __init__(self, folder: Path, root: Path | None) -> None:
        self.folder, self._root = folder, root
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._probe: subprocess.Popen[str] | None = None  # asks the node for its queues
        self._mapper: subprocess.Popen[bytes] | None = None  # the Erlang port mapper
        inside = str(folder) if root is None else str(folder).removeprefix(str(root))
        self._as_user: dict[str, Any] = unprivileged() if root is None else {}
        if self._as_user:
            os.chown(folder, self._as_user["user"], self._as_user["group"])
        for name, text in (("plugins", "[]."), ("settings.conf", _SETTINGS), ("advanced.config", _ADVANCED)):
            (folder / name).write_text(text)
        self._environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "HOME": inside,  # for the cookie
            "ERL_EPMD_PORT": str(free_port()),
            "RABBITMQ_NODENAME": f"samekey{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": f"{inside}/db",
            "RABBITMQ_LOG_BASE": f"{inside}/log",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{inside}/plugins",
            "RABBITMQ_CONFIG_FILE": f"{inside}/settings.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{inside}/advanced.config",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_PID_FILE": f"{inside}/pid",
            # Schedulers that wait busily would take the processor from the tests.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
        }

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    def start(self) -> None:
        """Start it and wait until it answers."""
        with open(self.folder / "out", "ab") as log:
            if self._mapper is None:  # our own: the node would start one that outlives it
                self._mapper = subprocess.Popen(
                    self._command("/usr/bin/epmd"), stdout=log, stderr=log, env=self._environment, **self._as_user
                )
            self._process = subprocess.Popen(
                self._command(PROGRAM),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
                **self._as_user,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                text = (self.folder / "out").read_text(errors="replace")[-2000:]
                self.end()
                raise NoServer(f"RabbitMQ did not start:\n{text}", "rabbitmq")
            time.sleep(0.1)

    def restart(self) -> None:
        """Kill it with -9 and start it on the same data."""
        self.kill()
        self.start()

    def kill(self) -> None:
        probe, self._probe = self._probe, None
        if probe is not None:
            probe.kill()
            probe.communicate()
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def end(self) -> None:
        self.kill()
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait()
            self._mapper = None

    def messages(self, prefix: str) -> int:
        """How many messages are in the queues whose names begin so: ready, and delivered without an answer."""
        if self._probe is None or self._probe.poll() is not None:
            node = self._environment["RABBITMQ_NODENAME"]
            self._probe = subprocess.Popen(
                self._command(
                    "/usr/bin/erl", "-noshell", "-sname", f"probe{self.port}@localhost", "-eval", _PROBE % node
                ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**self._environment, "ERL_FLAGS": "+S 1:1 +sbwt none"},
                text=True,
                **self._as_user,
            )
        assert self._probe.stdin is not None and self._probe.stdout is not None
        self._probe.stdin.write(prefix + "\n")
        self._probe.stdin.flush()
        return int(self._probe.stdout.readline() or "-1")

    def control(self, *arguments: str) -> str:
        done = subprocess.run(
            self._command(CONTROL, *arguments),
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=START_SECONDS,
            **self._as_user,
        )
        if done.returncode:
            raise RuntimeError(f"rabbitmqctl {arguments}: {done.stderr[-500:]}")
        return str(done.stdout)

    def _command(self, *command: str) -> list[str]:
        return [*([] if self._root is None else ["/usr/sbin/chroot", str(self._root)]), *command]

    def _answers(self) -> bool:
        """Whether a client may log in: the port is open some time before that."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as probe:
                probe.settimeout(5)
                probe.sendall(b"AMQP\x00\x00\x09\x01")
                return probe.recv(1) == b"\x01"
        except OSError:
            return False


_SETTINGS = """
loopback_users = none
vm_memory_high_watermark.absolute = 512MB
disk_free_limit.absolute = 1MB
heartbeat = 10
"""

_ADVANCED = "[{rabbit, [{quorum_tick_interval, 100}]}]."  # how old the counts of a quorum queue may be

# Reads the beginning of queue names, one a line, and answers each with a number. rabbitmqctl would start an Erlang
# machine for each question.
_PROBE = """
Node = '%s',
Loop = fun(Self) ->
  case io:get_line("") of
    eof -> halt();
    Line ->
      Prefix = list_to_binary(string:trim(Line)),
      Rows = rpc:call(Node, rabbit_amqqueue, info_all, [<<"/">>, [name, messages]]),
      Sum = case is_list(Rows) of
        false -> -1;
        true -> lists:sum([case M of N when is_integer(N) -> N; _ -> 0 end ||
          [{name, {resource, _, queue, Name}}, {messages, M}] <- Rows,
          binary:longest_common_prefix([Name, Prefix]) =:= byte_size(Prefix)])
      end,
      io:format("~w~n", [Sum]),
      Self(Self)
  end
end,
Loop(Loop).
"""
