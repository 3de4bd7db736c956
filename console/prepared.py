"""Queries that are built once, and then asked with other values.

Django makes the SQL of a queryset anew each time. For a job's forty columns that takes five times
as long as asking for them, and a job on its way is read a dozen times.
docs/decisions/0029-prepared-statements.md
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar  # Django's compiler has no types
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Model, QuerySet
from django.db.models import query as django_query

T = TypeVar("T")

# Values that no query has as a constant: where the SQL holds one, an argument belongs.
_MARKS: dict[type, Callable[[int], object]] = {
    UUID: lambda number: UUID(int=(0xFADE << 64) + number),
    int: lambda number: 1_987_654_000 + number,  # of a column of four bytes, too
    str: lambda number: f"argument {number} of a prepared query",
    datetime: lambda number: datetime(1777, 7, 7, tzinfo=UTC) + timedelta(seconds=number),
}


def _adapted(value: object) -> object:
    """An argument as the database's driver takes it."""
    match value:
        case UUID():
            return value if connection.features.has_native_uuid_field else value.hex
        case datetime():
            return connection.ops.adapt_datetimefield_value(value)
        case str():
            return str(value)  # of an enumeration: its word
    return value


@dataclass(frozen=True)
class _Statement(Generic[T]):
    """A query for one kind of database."""

    sql: str
    params: tuple[object, ...]
    places: tuple[tuple[int, int], ...]  # which of the params is which argument
    converters: tuple[tuple[int, Sequence[Callable[..., object]], object], ...]  # by column
    read: Callable[[list[Any]], T]
    locks: bool

    def counted(self) -> _Statement[Any]:
        """The query that asks how many rows this one finds."""
        sql = f"SELECT COUNT(*) FROM ({self.sql}) AS found"  # noqa: S608  # a query of ours
        found: _Statement[Any] = self
        return replace(found, sql=sql, converters=(), read=tuple)

    def rows(self, values: tuple[object, ...]) -> list[T]:
        """What the database answers for these arguments."""
        params: list[Any] = list(self.params)
        for place, argument in self.places:
            params[place] = _adapted(values[argument])
        with connection.cursor() as cursor:
            cursor.execute(self.sql, params)
            rows = [list(row) for row in cursor.fetchall()]
        for row in rows:
            for column, converters, expression in self.converters:
                value = row[column]
                for convert in converters:
                    value = convert(value, expression, connection)
                row[column] = value
        return [self.read(row) for row in rows]


class Prepared(Generic[T]):
    """A queryset of models, also with `select_related`, or of `values_list`.

    `make` gets a value for each of `kinds` (UUID, int, str, datetime) and compares each with a
    column as it is. All else in the query is the same each time.
    """

    def __init__(self, make: Callable[..., QuerySet[Any, T]], *kinds: type) -> None:
        self._make = make
        self._kinds = kinds
        self._statements: dict[str, _Statement[T]] = {}  # by kind of database
        self._counts: dict[str, _Statement[Any]] = {}

    def all(self, *values: object) -> list[T]:
        """Every row that is found. Raises TransactionManagementError where rows are to be locked
        outside a transaction."""
        return self._statement(values).rows(values)

    def count(self, *values: object) -> int:
        """How many rows are found."""
        counted = self._counts.get(connection.vendor)
        if counted is None:
            counted = self._counts[connection.vendor] = self._statement(values).counted()
        return int(counted.rows(values)[0][0])

    def first(self, *values: object) -> T | None:
        """The first row, or None."""
        rows = self.all(*values)
        return rows[0] if rows else None

    def lock(self, *values: object) -> None:
        """Lock the rows that are found. SQLite is asked nothing: its transactions have one lock."""
        statement = self._statement(values)
        if statement.locks:
            statement.rows(values)

    def _statement(self, values: tuple[object, ...]) -> _Statement[T]:
        assert len(values) == len(self._kinds), values
        statement = self._statements.get(connection.vendor)
        if statement is None:
            statement = self._statements[connection.vendor] = self._prepare()
        if statement.locks and not connection.in_atomic_block:
            raise transaction.TransactionManagementError("rows are locked in a transaction only")
        return statement

    def _prepare(self) -> _Statement[T]:
        marks = [_MARKS[kind](number) for number, kind in enumerate(self._kinds)]
        queryset = self._make(*marks)
        compiler: Any = queryset.query.get_compiler(connection=connection)
        sql, params = compiler.as_sql()
        marked = [_adapted(mark) for mark in marks]
        places = tuple(
            (place, marked.index(param)) for place, param in enumerate(params) if param in marked
        )
        assert {argument for _, argument in places} == set(range(len(marks))), sql
        columns = [column for column, *_ in compiler.select]
        found = compiler.get_converters(columns)
        return _Statement(
            sql=sql,
            params=tuple(params),
            places=places,
            converters=tuple((at, *one) for at, one in found.items()),
            read=_model_reader(compiler) if _is_of_models(queryset) else tuple,
            locks=queryset.query.select_for_update and connection.features.has_select_for_update,
        )


def prefetched(instance: Model, name: str, rows: Sequence[Model]) -> None:
    """`instance.name.all()` is these rows, as after `prefetch_related`; a list, so whoever would
    filter it is told that it cannot be."""
    relation: Any = instance._meta.get_field(name)
    for row in rows:
        relation.field.set_cached_value(row, instance)
    vars(instance).setdefault("_prefetched_objects_cache", {})[name] = list(rows)


def _is_of_models(queryset: QuerySet[Any, Any]) -> bool:
    return issubclass(queryset._iterable_class, django_query.ModelIterable)


def _model_reader(compiler: Any) -> Callable[[list[Any]], Any]:
    """Makes the instance of a row, and those that come with it."""
    model, fields = compiler.klass_info["model"], compiler.klass_info["select_fields"]
    start, end = fields[0], fields[-1] + 1
    names = [column.target.attname for column, *_ in compiler.select[start:end]]
    populators: Any = django_query.get_related_populators  # its arguments are those of Django 5.2
    related = populators(compiler.klass_info, compiler.select, connection.alias)

    def read(row: list[Any]) -> Any:
        instance = model.from_db(connection.alias, names, row[start:end])
        for populator in related:
            populator.populate(row, instance)
        return instance

    return read
