"""Writing rows, with SQL that is built once for each shape.

For what is written at each step of each job; everything else is written by querysets.
docs/decisions/0029-prepared-statements.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any  # values of any field

from django.db import connection
from django.db.models import AutoField, Field, Model

Fields = tuple["Field[Any, Any]", ...]


def row_update(model: type[Model], where: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Set `values` where each field of `where` equals its value; False where nothing does."""
    found, changed = _fields(model, tuple(where)), _fields(model, tuple(values))
    sql = _update_sql(connection.vendor, model, found, changed)
    params = [*_params(changed, values.values()), *_params(found, where.values())]
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return bool(cursor.rowcount)


def row_delete(model: type[Model], where: Mapping[str, Any]) -> bool:
    """Delete what has these values; False where nothing has. What refers to it is not looked at."""
    found = _fields(model, tuple(where))
    with connection.cursor() as cursor:
        cursor.execute(_delete_sql(connection.vendor, model, found), _params(found, where.values()))
        return bool(cursor.rowcount)


def rows_insert(
    rows: Sequence[Model], *, unique: tuple[str, ...] = (), update: tuple[str, ...] = ()
) -> None:
    """Insert these rows, all of one model, in one statement; keys that the database gives are not
    read back. One whose `unique` fields are there already changes that one's `update` fields.

    Raises django.db.IntegrityError.
    """
    model = type(rows[0])
    fields = _inserted(model)
    sql = _insert_sql(
        connection.vendor, model, len(rows), _fields(model, unique), _fields(model, update)
    )
    params: list[Any] = []
    for row in rows:
        params += _params(fields, [getattr(row, field.attname) for field in fields])
    with connection.cursor() as cursor:
        cursor.execute(sql, params)


def _params(fields: Fields, values: Any) -> list[Any]:
    """As the database's driver takes them."""
    return [
        field.get_db_prep_save(value, connection)
        for field, value in zip(fields, values, strict=True)
    ]


@cache
def _fields(model: type[Model], names: tuple[str, ...]) -> Fields:
    return tuple(model._meta.get_field(name) for name in names)  # type: ignore[misc]


@cache
def _inserted(model: type[Model]) -> Fields:
    fields = model._meta.concrete_fields
    return tuple(field for field in fields if not isinstance(field, AutoField))


def _quoted(name: str) -> str:
    return str(connection.ops.quote_name(name))


def _columns(fields: Fields, between: str, form: str = "{0}") -> str:
    return between.join(form.format(_quoted(str(field.column))) for field in fields)


@cache
def _update_sql(vendor: str, model: type[Model], found: Fields, changed: Fields) -> str:
    table, equals = _quoted(model._meta.db_table), "{0} = %s"
    return (
        f"UPDATE {table} SET {_columns(changed, ', ', equals)} "  # noqa: S608  # names of ours
        f"WHERE {_columns(found, ' AND ', equals)}"
    )


@cache
def _delete_sql(vendor: str, model: type[Model], found: Fields) -> str:
    table = _quoted(model._meta.db_table)
    return f"DELETE FROM {table} WHERE {_columns(found, ' AND ', '{0} = %s')}"  # noqa: S608


@cache
def _insert_sql(vendor: str, model: type[Model], count: int, unique: Fields, update: Fields) -> str:
    fields, table = _inserted(model), _quoted(model._meta.db_table)
    row = f"({', '.join(['%s'] * len(fields))})"
    sql = f"INSERT INTO {table} ({_columns(fields, ', ')}) VALUES {', '.join([row] * count)}"  # noqa: S608
    if unique:
        sql += f" ON CONFLICT ({_columns(unique, ', ')}) DO UPDATE SET "
        sql += _columns(update, ", ", "{0} = EXCLUDED.{0}")
    return sql
