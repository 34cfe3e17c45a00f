"""The layout of the package: twins, doors between rooms, the root, and contracts that can fail."""

from __future__ import annotations

import ast
import inspect
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src/samekey"

ROOT_MODULES_MAX = 4

# A sync class and its async twin. Only names that are in one of them by nature are listed as differences.
TWINS: list[tuple[str, str, str]] = [
    ("samekey", "Guard", "AsyncGuard"),
    ("samekey", "Held", "AsyncHeld"),
    ("samekey.guard.adapters", "Running", "AsyncRunning"),
    ("samekey.guard.decorated", "Guarded", "AsyncGuarded"),
    ("samekey.guard.decorated", "BoundGuarded", "AsyncBoundGuarded"),
    ("samekey.guard.claiming", "Claiming", "AsyncClaiming"),
    ("samekey.guard.deadline", "BoundedStore", "AsyncBoundedStore"),
    ("samekey.guard.settling", "Settling", "AsyncSettling"),
    ("samekey.guard.performer", "Performer", "AsyncPerformer"),
    ("samekey.guard.atomic", "AtomicPerformer", "AsyncAtomicPerformer"),
    ("samekey.guard.on_connection", "OnConnection", "AsyncOnConnection"),
    ("samekey.core.ports", "Store", "AsyncStore"),
    ("samekey.core.ports", "FrontStore", "AsyncFrontStore"),
    ("samekey.core.transaction", "Transaction", "AsyncTransaction"),
    ("samekey.stores.memory", "MemoryStore", "AsyncMemoryStore"),
    ("samekey.stores.sqlite", "SqliteStore", "AsyncSqliteStore"),
    ("samekey.stores.postgres", "PostgresStore", "AsyncPostgresStore"),
    ("samekey.stores.redis", "RedisStore", "AsyncRedisStore"),
    ("samekey.stores.mysql", "MysqlStore", "AsyncMysqlStore"),
    ("samekey.stores.layered", "LayeredStore", "AsyncLayeredStore"),
    ("samekey.ops", "Findings", "AsyncFindings"),
    ("samekey.ops", "Ops", "AsyncOps"),
    ("samekey.testing.faulty", "FaultyStore", "AsyncFaultyStore"),
    ("samekey.http.webhook", "Webhook", "AsyncWebhook"),
    ("samekey.messages.handler", "Handler", "AsyncHandler"),
    ("samekey.messages._batch", "Batch", "AsyncBatch"),
    ("samekey.processor", "IdempotentProcessor", "AsyncIdempotentProcessor"),
    ("samekey.http._visit", "Door", "AsyncDoor"),
    ("samekey.http._visit", "Visit", "AsyncVisit"),
    ("samekey.intake", "Intake", "AsyncIntake"),
    ("samekey.intake.claim", "Claims", "AsyncClaims"),
    ("samekey.intake.database", "PostgresDatabase", "AsyncPostgresDatabase"),
    ("samekey.intake.database", "SqliteDatabase", "AsyncSqliteDatabase"),
    ("samekey.intake.buffer", "RedisBuffer", "AsyncRedisBuffer"),
    ("samekey.drivers.redis.scripts", "ScriptClient", "AsyncScriptClient"),
]
# Names that an async class has and its sync twin needs not.
ONLY_ASYNC: dict[str, set[str]] = {
    "AsyncHeld": {"loop"},  # where the effect runs
    "AsyncTransaction": {"immediate"},  # whether it never waits, so that a closed coroutine can still roll back
    "AsyncDoor": {"declare"},  # an async adapter is made before its loop runs: it declares first and checks later
}
STORES_ONLY_ASYNC = {"sync"}  # the sync twin of an async store, for commands and for the timer thread


def public_names(cls: type) -> set[str]:
    annotated = {name for kind in cls.__mro__ for name in inspect.get_annotations(kind)}
    return {name for name in {*dir(cls), *annotated} if not name.startswith("_")}


def test_sync_and_async_twins_have_equal_public_names():
    different = {}
    for module, sync, awaited in TWINS:
        found: Any = import_module(module)
        more = ONLY_ASYNC.get(awaited, STORES_ONLY_ASYNC if awaited.endswith("Store") else set())
        one, other = public_names(getattr(found, sync)), public_names(getattr(found, awaited)) - more
        if one != other:
            different[f"{module}.{sync}"] = sorted(one ^ other)

    assert different == {}


def test_every_async_class_with_a_sync_namesake_is_compared():
    """A new pair of twins must be in the list above, or it would not be compared."""
    compared = {awaited for _, _, awaited in TWINS}
    missing = []
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0]
        classes = {one.name for one in ast.parse(path.read_text()).body if isinstance(one, ast.ClassDef)}
        twins = {name for name in classes if name.startswith("Async") and name.removeprefix("Async") in classes}
        if room in ("guard", "http", "messages", "processor.py") or path.parent == SOURCE / "stores":
            missing += [f"{path.relative_to(SOURCE)}: {name}" for name in twins - compared]

    assert missing == []


# -- doors -------------------------------------------------------------------------------------------------------------


def imports_by_name() -> list[str]:
    """Where a module of samekey is imported by a text: hidden from the import contracts."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
            texts = [one.value for one in ast.walk(node.args[0]) if isinstance(one, ast.Constant)]
            named = any(isinstance(text, str) and text.startswith("samekey") for text in texts)
            if called in ("import_module", "__import__") and named:
                found.append(str(path.relative_to(SOURCE)))
    return found


def test_modules_of_samekey_are_imported_by_name_at_the_known_doors_only():
    """Store addresses, commands, and the adapters to the libraries of a caller's connection."""
    allowed = ("guard/store_urls.py", "cli/", "stores/postgres/_transaction.py")

    assert [path for path in imports_by_name() if not path.startswith(allowed)] == []


def test_the_root_has_few_modules():
    modules = sorted(path.name for path in SOURCE.glob("*.py"))

    assert len(modules) <= ROOT_MODULES_MAX, modules


# -- contracts that can fail -------------------------------------------------------------------------------------------


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    script = Path(sys.executable).with_name("lint-imports")
    command = [str(script), "--no-logo", "--no-cache", "--contract", "stores-independent"]
    return subprocess.run(
        command,
        cwd=folder,
        env={"PYTHONPATH": str(folder / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_redis_store_that_imports_a_part_of_postgres_breaks_a_contract(tmp_path: Path):
    """Stores are independent as packages: a part of one may not be used by another either."""
    shutil.copytree(SOURCE, tmp_path / "src/samekey", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    fine = lint(tmp_path)
    assert fine.returncode == 0, fine.stdout + fine.stderr

    part = next(path for path in sorted((SOURCE / "stores/postgres").glob("_*.py")) if path.name != "__init__.py")
    planted = tmp_path / "src/samekey/stores/redis/store.py"
    planted.write_text(f"{planted.read_text()}\nfrom samekey.stores.postgres import {part.stem}\n")
    broken = lint(tmp_path)

    assert broken.returncode == 1
    assert "BROKEN" in broken.stdout
