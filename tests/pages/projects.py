"""The projects that the pages take for granted: made by the tools' own commands, in the page's folder."""

from __future__ import annotations

import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from tests.pages.commands import SECONDS, environment
from tests.pages.snippets import shared_postgres

__all__ = ["alembic", "django", "in_django", "run", "shared_postgres"]

MODELS = """\
from django.db import models


class Order(models.Model):
    id = models.CharField(primary_key=True, max_length=40)
"""

MIGRATION = """\
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.CreateModel("Order", [("id", models.CharField(max_length=40, primary_key=True, serialize=False))])
    ]
"""


def alembic(address: str) -> None:
    """As `alembic init` leaves it, with the address filled in."""
    run("alembic", "init", "alembic")
    settings = Path("alembic.ini")
    address = address.replace("postgresql:", "postgresql+psycopg:")
    settings.write_text(settings.read_text().replace("driver://user:pass@localhost/dbname", address))


def django(address: str | None = None) -> None:
    """As `startproject shop` leaves it, with a model and its migration; SQLite, or the PostgreSQL at this address."""
    run("django-admin", "startproject", "shop", ".")
    Path("shop/models.py").write_text(MODELS)
    Path("shop/migrations").mkdir()
    Path("shop/migrations/__init__.py").touch()
    Path("shop/migrations/0001_initial.py").write_text(MIGRATION)
    more = 'INSTALLED_APPS += ["shop"]\n'
    if address is not None:
        parts = urlsplit(address)
        more += f"DATABASES['default'] = {{'ENGINE': 'django.db.backends.postgresql', 'NAME': {parts.path[1:]!r}, "
        more += f"'USER': {parts.username!r}, 'HOST': {parts.hostname!r}, 'PORT': {str(parts.port)!r}}}\n"
    with Path("shop/settings.py").open("a") as settings:
        settings.write(more)


def in_django(script: str) -> str:
    """What this prints in the project's own shell; an assertion in it that does not hold is a failure here."""
    Path("script.py").write_text(script)
    return run(
        "python", "manage.py", "shell", "--command", "exec(compile(open('script.py').read(), 'script.py', 'exec'))"
    )


def run(*words: str) -> str:
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
    return done.stdout
