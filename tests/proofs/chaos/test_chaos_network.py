"""PostgreSQL, while the way to it is cut, slow and loses replies, or its disk is full; and kills and pauses as ever."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from samekey.drivers.postgres.migrate import migrate
from samekey.testing.servers import NoServer, PrivatePostgres
from tests.proofs.chaos.judging import judged, migrated, seconds
from tests.proofs.chaos.trial import Every, Trial
from tests.proofs.chaos.worker import LEASE_SECONDS
from tests.servers.proxy import FaultProxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_postgres_behind_a_wire_that_is_cut_and_slow(server):
    """Connections end in the middle, replies are lost after the commit, and all is held up for longer than a lease."""
    with FaultProxy(server.port) as proxy:

        def cut() -> None:
            proxy.cut()
            proxy.sent.clear()

        def hold_up() -> None:
            proxy.hold()
            time.sleep(LEASE_SECONDS * 1.2)  # real time: the leases of the holders end
            proxy.release()

        address = migrated(server).replace(f":{server.port}/", f":{proxy.port}/")
        troubles = (
            Every(0.7, "cuts", cut),
            Every(0.3, "lost replies", lambda: proxy.lose_replies(1)),
            Every(2.0, "delays", hold_up),
        )
        verdict = judged(
            "PostgreSQL behind a wire that is cut, slow and loses replies",
            Trial(address, "opaque", also=troubles, seconds=seconds(4)).run(),
        )

    assert min(verdict.done[name] for name in ("cuts", "lost replies", "delays")) > 0


@contextlib.contextmanager
def small_disk(server: PrivatePostgres) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="samekey-disk-", dir="/tmp") as folder:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=32m,mode=777", "tmpfs", folder], capture_output=True, check=False
        )
        if mounted.returncode:
            raise NoServer("a small disk has to be mounted, which needs root", "disk")
        try:
            inside = Path(folder, "tablespace")
            inside.mkdir()
            owner = server.data.stat()
            os.chown(inside, owner.st_uid, owner.st_gid)
            yield inside
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.minutes
def test_postgres_with_a_disk_that_is_full_now_and_then(server):
    """What cannot be written is told, and nothing runs without its claim."""
    with small_disk(server) as folder:
        server.sql(f"CREATE TABLESPACE small LOCATION '{folder}'")
        server.sql("CREATE DATABASE small TABLESPACE small")
        ballast = folder.parent / "ballast"

        def fill_up() -> None:
            with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:  # until there is no room left
                while True:
                    file.write(bytes(4096))
            time.sleep(1.0)  # real time: workers go on meanwhile
            ballast.unlink()

        migrate(server.url("small"))
        trial = Trial(server.url("small"), "opaque", also=(Every(1.0, "full disks", fill_up),), seconds=seconds(4))
        verdict = judged("PostgreSQL with a disk that is full now and then", trial.run())
        server.sql("DROP DATABASE small WITH (FORCE)")
        server.sql("DROP TABLESPACE small")

    assert verdict.done["full disks"] > 0
    assert "No space left on device" in server.log()
