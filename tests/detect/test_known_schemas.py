"""Schemas that other projects ship: every finding that is high or worse is named here, with what it means there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import procrastinate
import psycopg

from samekey.detect.audit import audit
from samekey.detect.findings import Severity

DJANGO_APPS = ("admin", "auth", "contenttypes", "messages", "sessions", "sites")

# (rule, object) -> why it is true, and what it means for users of that project.
PROCRASTINATE = {
    ("SK102", "public.procrastinate_periodic_defers.procrastinate_periodic_defers_unique"): (
        "UNIQUE (task_name, periodic_id, defer_timestamp), and defer_timestamp may be NULL. The function that defers a "
        "periodic task always gives a timestamp, so only a row that was inserted by hand passes the key."
    ),
}
DJANGO: dict[tuple[str, str], str] = {}  # auth_user.email is medium: Django identifies a user by its name

MIGRATE = """
import json, sys
import django
from django.conf import settings
given = json.loads(sys.argv[1])
settings.configure(DATABASES={"default": given["database"]}, SECRET_KEY="for the test alone", USE_TZ=True,
    INSTALLED_APPS=[f"django.contrib.{app}" for app in given["apps"]], SITE_ID=1)
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
"""


def grave(url: str) -> set[tuple[str, str]]:
    """Without the server's settings: the test server does not sync its files."""
    found = [one for one in audit(url).results if one.severity >= Severity.HIGH and one.finding.rule != "SK123"]
    return {(one.finding.rule, one.finding.object) for one in found}


def test_procrastinate(samekey_postgres):
    url = samekey_postgres.create_database()
    schema = Path(procrastinate.__file__).parent / "sql" / "schema.sql"
    with psycopg.connect(url, autocommit=True) as link:
        link.execute(schema.read_bytes())

    assert grave(url) == {*PROCRASTINATE}


def test_django(samekey_postgres):
    url = samekey_postgres.create_database()
    parts = psycopg.conninfo.conninfo_to_dict(url)
    database = {
        "ENGINE": "django.db.backends.postgresql", "NAME": parts["dbname"], "USER": parts.get("user", ""),
        "PASSWORD": parts.get("password", ""), "HOST": parts.get("host", ""), "PORT": str(parts.get("port", "")),
    }  # fmt: skip
    given = json.dumps({"database": database, "apps": DJANGO_APPS})
    ended = subprocess.run(
        [sys.executable, "-c", MIGRATE, given], capture_output=True, text=True, check=False, timeout=300
    )

    assert ended.returncode == 0, ended.stderr
    assert grave(url) == {*DJANGO}
