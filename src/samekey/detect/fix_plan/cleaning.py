"""The clean-up in SQL, the same on every server: archive the rows too many, re-point their children, delete them.

Four kinds of tables are made for it. The map has a row for each row too many: its identity (p), the identity of the row
that stays (k), and a state: 0 waits, 1 is in the batch that is being cleaned, 2 is done. The archive has the rows
themselves. For each foreign key, `moved` has the children that were re-pointed, with their old value, and `gone` the
children that the surviving row had already, such as line 1 of an order that was stored twice.

All statements of one batch are one transaction: a row is in the archive exactly when it is not in its table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from samekey.detect.catalog import Catalog, Column, Engine, Key, Made
from samekey.detect.dialect import Dialect
from samekey.detect.fix_plan.target import Child, Target

SCHEMA = "samekey_fix"  # on PostgreSQL; elsewhere the beginning of the names


class Cleaning:
    def __init__(self, catalog: Catalog, target: Target) -> None:
        self.sql, self.target, self.engine = Dialect(catalog), target, catalog.engine
        self.table = self.sql.table(target.table)
        self.map, self.archive = self.own("map"), self.own("archive")

    def own(self, kind: str) -> str:
        """The name of a table of the plan."""
        name = f"{self.target.slug}_{kind}"
        if self.engine is Engine.POSTGRES:
            return f"{SCHEMA}.{self.sql.name(name)}"
        return self.sql.name(f"{SCHEMA}_{name}")

    # -- tables of the plan --------------------------------------------------------------------------------------------

    def tables(self) -> Iterator[str]:
        one, n = self.target, self.sql.name
        ids = [one.table.column(name) for name in one.identity]
        small = {Engine.POSTGRES: "smallint", Engine.MYSQL: "smallint", Engine.SQLITE: "INT"}[self.engine]
        columns = [f"{letter}{number} {column.type} NOT NULL" for letter in "pk" for number, column in enumerate(ids)]
        key = ", ".join(f"p{number}" for number in range(len(ids)))
        yield (
            f"CREATE TABLE IF NOT EXISTS {self.map} ({', '.join(columns)}, state {small} NOT NULL DEFAULT 0, "
            f"PRIMARY KEY ({key}))"
        )
        yield self._empty_copy(self.archive, self.table)
        for child in one.children:
            table = self.sql.table(child.table)
            named = [
                *(f"{n(name)} AS n{number}" for number, name in enumerate(child.identity)),
                *(f"{n(name)} AS o{number}" for number, name in enumerate(child.reference.columns)),
                *(f"{n(name)} AS w{number}" for number, name in enumerate(child.reference.columns)),
            ]
            yield self._empty_copy(self.moved(child), table, ", ".join(named))
            if child.colliding:
                yield self._empty_copy(self.gone(child), table)

    def _empty_copy(self, name: str, table: str, columns: str = "*") -> str:
        return f"CREATE TABLE IF NOT EXISTS {name} AS SELECT {columns} FROM {table} WHERE 1 = 0"

    def moved(self, child: Child) -> str:
        return self.own(f"moved_{child.number}")

    def gone(self, child: Child) -> str:
        return self.own(f"gone_{child.number}")

    # -- one batch -----------------------------------------------------------------------------------------------------

    def find(self) -> str:
        """Every row too many that the map does not have yet. The first row by time and identity stays."""
        one, n = self.target, self.sql.name
        over = f"OVER (PARTITION BY {self.sql.names(one.columns)} ORDER BY {self.sql.names(one.order)})"
        count = range(len(one.identity))
        inner = [
            *(f"{n(name)} AS p{number}" for number, name in enumerate(one.identity)),
            *(f"first_value({n(name)}) {over} AS k{number}" for number, name in enumerate(one.identity)),
            f"row_number() {over} AS place",
        ]
        keyed = "" if one.nulls_equal else f" WHERE {self.sql.all_set(one.columns)}"
        fields = ", ".join([*(f"p{number}" for number in count), *(f"k{number}" for number in count)])
        known = " AND ".join(f"m.p{number} = x.p{number}" for number in count)
        return (
            f"INSERT INTO {self.map} ({fields}) SELECT {fields} "
            f"FROM (SELECT {', '.join(inner)} FROM {self.table}{keyed}) x "
            f"WHERE place > 1 AND NOT EXISTS (SELECT 1 FROM {self.map} m WHERE {known})"
        )

    def take(self) -> str:
        """All that wait, as one batch."""
        return f"UPDATE {self.map} SET state = 1 WHERE state = 0"

    def lock(self) -> str:
        """Both rows of each entry: from here on no transaction can change them, or make a child of them."""
        ids = self.sql.names(self.target.identity)
        count = range(len(self.target.identity))
        both = " UNION ".join(
            f"SELECT {', '.join(f'{letter}{number}' for number in count)} FROM {self.map} WHERE state = 1"
            for letter in "pk"
        )
        row = ids if len(count) == 1 else f"({ids})"
        return f"SELECT 1 FROM {self.table} WHERE {row} IN ({both}) ORDER BY {ids} FOR UPDATE"

    def batch(self) -> Iterator[str]:
        """What is done with the entries of state 1, after `lock`."""
        yield self._forget_changed()
        yield self._archive()
        for child in self.target.children:
            for key in child.colliding:
                yield self._keep_colliding(child, key)
            if child.colliding:
                yield self._delete_colliding(child)
            yield self._note_moved(child)
            yield self._move(child)
        yield self._delete()
        yield f"UPDATE {self.map} SET state = 2 WHERE state = 1"

    def _forget_changed(self) -> str:
        """Entries whose rows are gone, or no longer the same: `find` looks at them again."""
        same = " AND ".join(self._same(f"l.{self.sql.name(c)}", f"k.{self.sql.name(c)}") for c in self.target.columns)
        return self._delete_from(
            self.map,
            "m",
            f"m.state = 1 AND NOT EXISTS (SELECT 1 FROM {self.table} l, {self.table} k "
            f"WHERE {self._ids('l', 'm.p')} AND {self._ids('k', 'm.k')} AND {same})",
        )

    def _same(self, left: str, right: str) -> str:
        return f"{left} IS NOT DISTINCT FROM {right}" if self.target.nulls_equal else f"{left} = {right}"

    def _archive(self) -> str:
        columns = [self.sql.name(column.name) for column in self.target.table.columns]
        return (
            f"INSERT INTO {self.archive} ({', '.join(columns)}) "
            f"SELECT {', '.join(f't.{column}' for column in columns)} FROM {self.table} t "
            f"JOIN {self.map} m ON {self._ids('t', 'm.p')} WHERE m.state = 1"
        )

    def _pairs(self, child: Child) -> str:
        """Children c of a row too many l, whose entry is m, and of which k stays."""
        refers = " AND ".join(
            f"c.{self.sql.name(own)} = l.{self.sql.name(to)}"
            for own, to in zip(child.reference.columns, child.reference.to, strict=True)
        )
        return (
            f"{self.sql.table(child.table)} c JOIN {self.table} l ON {refers} "
            f"JOIN {self.map} m ON {self._ids('l', 'm.p')} AND m.state = 1 "
            f"JOIN {self.table} k ON {self._ids('k', 'm.k')}"
        )

    def _keep_colliding(self, child: Child, key: Key) -> str:
        """Children that cannot move: the row that stays has such a child, or gets it from another row too many."""
        n = self.sql.name
        to = dict(zip(child.reference.columns, child.reference.to, strict=True))
        rest = [name for name in key.columns if name not in to]
        ids = [*(f"c.{n(name)} AS i{number}" for number, name in enumerate(child.identity))]
        new = [
            f"{f'k.{n(to[name])}' if name in to else f'c.{n(name)}'} AS u{at}" for at, name in enumerate(key.columns)
        ]
        own = [f"c.{n(name)} AS u{number}" for number, name in enumerate(key.columns)]
        stays = " AND ".join(f"c.{n(a)} = s.{n(b)}" for a, b in to.items())
        count = range(len(self.target.identity))
        kept = f"SELECT DISTINCT {', '.join(f'k{number}' for number in count)} FROM {self.map} WHERE state = 1"
        there = " AND ".join(f"s.{n(name)} = q.k{at}" for at, name in enumerate(self.target.identity))
        set_ = f" AND {' AND '.join(f'c.{n(name)} IS NOT NULL' for name in rest)}" if rest else ""
        order = ", ".join(["moves", *(f"i{number}" for number in range(len(ids)))])
        by = ", ".join(f"u{number}" for number in range(len(key.columns)))
        ranked = (
            f"SELECT x.*, row_number() OVER (PARTITION BY {by} ORDER BY {order}) AS place FROM ("
            f"SELECT {', '.join([*ids, *new])}, 1 AS moves FROM {self._pairs(child)} WHERE 1 = 1{set_} "
            f"UNION ALL SELECT {', '.join([*ids, *own])}, 0 FROM {self.sql.table(child.table)} c "
            f"JOIN {self.table} s ON {stays} JOIN ({kept}) q ON {there} WHERE 1 = 1{set_}) x"
        )
        columns = [n(column.name) for column in child.table.columns]
        match = " AND ".join(f"d.{n(name)} = r.i{number}" for number, name in enumerate(child.identity))
        known = " AND ".join(f"g.{n(name)} = d.{n(name)}" for name in child.identity)
        return (
            f"INSERT INTO {self.gone(child)} ({', '.join(columns)}) SELECT {', '.join(f'd.{c}' for c in columns)} "
            f"FROM {self.sql.table(child.table)} d JOIN ({ranked}) r ON {match} WHERE r.place > 1 AND r.moves = 1 "
            f"AND NOT EXISTS (SELECT 1 FROM {self.gone(child)} g WHERE {known})"
        )

    def _delete_colliding(self, child: Child) -> str:
        same = " AND ".join(f"g.{self.sql.name(name)} = d.{self.sql.name(name)}" for name in child.identity)
        return self._delete_from(
            self.sql.table(child.table), "d", f"EXISTS (SELECT 1 FROM {self.gone(child)} g WHERE {same})"
        )

    def _note_moved(self, child: Child) -> str:
        """The identity that the child has afterwards: it may contain the foreign key."""
        n = self.sql.name
        to = dict(zip(child.reference.columns, child.reference.to, strict=True))
        values = [
            *(f"k.{n(to[name])}" if name in to else f"c.{n(name)}" for name in child.identity),
            *(f"c.{n(name)}" for name in child.reference.columns),
            *(f"k.{n(name)}" for name in child.reference.to),
        ]
        return f"INSERT INTO {self.moved(child)} SELECT {', '.join(values)} FROM {self._pairs(child)}"

    def _move(self, child: Child) -> str:
        n = self.sql.name
        pairs = zip(child.reference.columns, child.reference.to, strict=True)
        if self.engine is Engine.MYSQL:
            return f"UPDATE {self._pairs(child)} SET {', '.join(f'c.{n(a)} = k.{n(b)}' for a, b in pairs)}"
        table = self.sql.table(child.table)
        refers = " AND ".join(
            f"c.{n(a)} = l.{n(b)}" for a, b in zip(child.reference.columns, child.reference.to, strict=True)
        )
        return (
            f"UPDATE {table} AS c SET {', '.join(f'{n(a)} = k.{n(b)}' for a, b in pairs)} "
            f"FROM {self.table} l, {self.map} m, {self.table} k "
            f"WHERE {refers} AND {self._ids('l', 'm.p')} AND m.state = 1 AND {self._ids('k', 'm.k')}"
        )

    def _delete(self) -> str:
        return self._delete_from(
            self.table, "t", f"EXISTS (SELECT 1 FROM {self.map} m WHERE m.state = 1 AND {self._ids('t', 'm.p')})"
        )

    # -- undo ----------------------------------------------------------------------------------------------------------

    def undo(self) -> Iterator[str]:
        """Put every row back, and every child to its row. Children that were changed since stay as they are."""
        n = self.sql.name
        yield self._restore(self.target.table.columns, self.table, self.archive)
        for child in reversed(self.target.children):
            table, own = self.sql.table(child.table), child.reference.columns
            sets = [(n(name), f"g.o{number}") for number, name in enumerate(own)]
            where = " AND ".join(
                [
                    *(f"c.{n(name)} = g.n{number}" for number, name in enumerate(child.identity)),
                    *(f"c.{n(name)} = g.w{number}" for number, name in enumerate(own)),
                ]
            )
            moved = self.moved(child)
            if self.engine is Engine.MYSQL:
                yield f"UPDATE {table} c JOIN {moved} g ON {where} SET {', '.join(f'c.{a} = {b}' for a, b in sets)}"
            else:
                yield f"UPDATE {table} AS c SET {', '.join(f'{a} = {b}' for a, b in sets)} FROM {moved} g WHERE {where}"
            if child.colliding:
                yield self._restore(child.table.columns, table, self.gone(child))
                yield f"DELETE FROM {self.gone(child)}"
            yield f"DELETE FROM {moved}"
        yield f"DELETE FROM {self.archive}"
        yield f"DELETE FROM {self.map}"

    def _restore(self, columns: Sequence[Column], table: str, kept: str) -> str:
        names = ", ".join(self.sql.name(c.name) for c in columns if c.made is not Made.COMPUTED)
        always = " OVERRIDING SYSTEM VALUE" if self.engine is Engine.POSTGRES else ""
        return f"INSERT INTO {table} ({names}){always} SELECT {names} FROM {kept}"

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _ids(self, alias: str, entry: str) -> str:
        names = enumerate(self.target.identity)
        return " AND ".join(f"{alias}.{self.sql.name(name)} = {entry}{number}" for number, name in names)

    def _delete_from(self, table: str, alias: str, where: str) -> str:
        if self.engine is Engine.MYSQL:
            return f"DELETE {alias} FROM {table} AS {alias} WHERE {where}"
        return f"DELETE FROM {table} AS {alias} WHERE {where}"
