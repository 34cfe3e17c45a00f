"""Insert a model's row once, with Django's ORM on PostgreSQL; in the caller's transaction, if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db import connections, models, router

from samekey.core.errors import Misconfigured
from samekey.detect.prevent._statement import ROUNDS_MAX, Outcome, lost, make, quoted, updated_columns


class Got(NamedTuple):
    """The instance as it is in the database, and what this call did."""

    instance: Any
    outcome: Outcome

    @property
    def inserted(self) -> bool:
        return self.outcome is Outcome.INSERTED


def insert_or_get(model: type[models.Model], *, key: Sequence[str], using: str | None = None, **values: Any) -> Got:
    """The row that is there, or a new one. Unlike get_or_create it is one statement, and `key` needs a unique index."""
    return _run(model, key, using, values, update=False)


def insert_or_update(model: type[models.Model], *, key: Sequence[str], using: str | None = None, **values: Any) -> Got:
    """A new row, or the row that is there with these values; it is written only if one of them differs."""
    return _run(model, key, using, values, update=True)


def _run(
    model: type[models.Model], key: Sequence[str], using: str | None, given: dict[str, Any], *, update: bool
) -> Got:
    alias = using or router.db_for_write(model)
    connection = connections[alias]
    if connection.vendor != "postgresql":
        raise Misconfigured(f"this statement is PostgreSQL's; the database {alias} is {connection.vendor}")
    instance = model(**given)
    fields = (
        [one for one in model._meta.concrete_fields if not one.generated]
        if _knows_generated(model)
        else list(model._meta.concrete_fields)
    )
    # As save() does it: every field but an automatic key, with auto_now, defaults and the field's own conversion.
    wanted = [one for one in fields if not (one.primary_key and one.get_pk_value_on_save(instance) is None)]
    values = {one.column: one.get_db_prep_save(one.pre_save(instance, True), connection=connection) for one in wanted}
    columns = [model._meta.get_field(name).column for name in key]
    changed = [model._meta.get_field(name).column for name in given if name not in key] if update else []
    if update:
        updated_columns(given, key)
    made = make(quoted(model._meta.db_table), values, columns, lambda number: "\0", update=changed)
    sql = made.sql.replace("%", "%%").replace("\0", "%s")
    for _ in range(ROUNDS_MAX):
        with connection.cursor() as cursor:
            cursor.execute(sql, made.values)
            row = cursor.fetchone()
            names = [column[0] for column in cursor.description]
        if row is not None:
            return Got(_instance(model, alias, dict(zip(names[1:], row[1:], strict=True)), connection), Outcome(row[0]))
    raise lost(model._meta.db_table)


def _knows_generated(model: type[models.Model]) -> bool:
    return all(hasattr(one, "generated") for one in model._meta.concrete_fields)  # Django 5


def _instance(model: type[models.Model], alias: str, row: dict[str, Any], connection: Any) -> Any:
    """An instance as a query gives it, with the converters of its fields."""
    names, values = [], []
    for field in model._meta.concrete_fields:
        value = row[field.column]
        for converter in (*field.get_db_converters(connection), *connection.ops.get_db_converters(field.cached_col)):
            value = converter(value, field.cached_col, connection)
        names.append(field.attname)
        values.append(value)
    return model.from_db(alias, names, values)
