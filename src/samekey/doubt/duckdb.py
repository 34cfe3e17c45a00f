"""Reconciliation in DuckDB: our records against a provider's statement, pass by pass.

Strings are compared only in the joins that need them; everything else goes by row numbers. Leaving one step out gives
wrong verdicts: lines that come twice count once (pass 0), all captures of an authorisation are one head (1), refunds,
chargebacks and voids are netted (4), and an amount alone only suggests (3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samekey.core.errors import Misconfigured
from samekey.doubt.money import exponents
from samekey.doubt.pack import StatementMap

try:
    import duckdb
except ImportError as error:  # pragma: no cover - the extra is installed where this is tested
    raise Misconfigured("reconcile needs DuckDB: pip install 'samekey[reconcile]'") from error

BEFORE_SECONDS, AFTER_SECONDS = 5, 120  # of a suggestion: the head lies so close to our record
OURS = ("operation", "key", "tenant", "state", "ref", "our_key", "party", "minor", "currency", "at", "mark")
_NETS = "('refund', 'chargeback', 'void')"


@dataclass(frozen=True, slots=True)
class Ours:
    """One of our records, as reconciliation sees it."""

    operation: str
    key: str
    tenant: str | None
    state: str
    ref: str | None
    our_key: str | None
    party: str | None
    minor: int | None
    currency: str | None
    at: float
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that the comparison found."""

    category: str
    action: str
    record: tuple[str, str, str | None] | None = None  # operation, key, tenant
    mark: str = ""
    head: str | None = None  # the provider's reference
    keep: str | None = None
    minor: int | None = None
    currency: str | None = None
    evidence: tuple[str, ...] = ()


@dataclass
class Outcome:
    counts: dict[str, int] = field(default_factory=dict)
    cases: list[Case] = field(default_factory=list)
    cut: float = 0.0

    @property
    def clean(self) -> bool:
        return not any(case.action not in ("none", "wait") for case in self.cases)


class Books:
    """Both sides in one DuckDB connection; `memory` bounds what it may use."""

    def __init__(self, *, memory: str = "2GB", threads: int = 2) -> None:
        self.db: Any = duckdb.connect(":memory:", config={"memory_limit": memory, "threads": threads})

    def __enter__(self) -> Books:
        return self

    def __exit__(self, *_: object) -> None:
        self.db.close()

    # -- loading

    def load_statement(self, files: Sequence[str], map: StatementMap) -> None:
        """Pass 0: whole minor units, each line once; lines that cannot be read, or differ under one id, stay apart."""
        for file in files:
            if not Path(file).is_file():
                raise Misconfigured(f"there is no file {file!r}")
        run = self.db.execute
        run(
            "CREATE TABLE raw AS SELECT row_number() OVER () AS n, * FROM "
            "read_csv(?, all_varchar=true, header=true, union_by_name=true)",
            [list(files)],
        )
        there = {row[1] for row in run("PRAGMA table_info('raw')").fetchall()}
        for name, wanted in map.columns.items():
            if wanted not in there and name in ("ref", "amount", "at", "currency"):
                raise Misconfigured(f"the statement has no column {wanted!r}, which {map.name} takes for {name}")

        def column(name: str, otherwise: str = "NULL") -> str:
            found = map.columns.get(name)
            return otherwise if found is None or found not in there else f"nullif(trim(raw.{_quoted(found)}), '')"

        run("CREATE TABLE exps (currency VARCHAR, e BIGINT)")
        run("CREATE TABLE types (text VARCHAR, type VARCHAR)")
        self._fill("exps", exponents(map.exponents).items())
        self._fill("types", map.types.items())
        factor = "CAST(1 AS BIGINT)" if map.unit == "minor" else "CAST(power(10, e) AS BIGINT)"
        fixed = "NULL" if map.currency is None else f"'{map.currency}'"
        run(f"""
            CREATE TABLE every AS
            SELECT raw.n, {column("line", "CAST(raw.n AS VARCHAR)")} AS line, {column("ref")} AS ref,
                   {column("prior")} AS prior, {column("our_key")} AS our_key,
                   {column("party")} AS party, {column("payout")} AS payout,
                   {column("auth")} AS auth, coalesce(t.type, 'other') AS type, c.currency,
                   abs(coalesce(TRY_CAST({column("amount")} AS DECIMAL(28, 6)),
                                TRY_CAST({column("debit")} AS DECIMAL(28, 6)))) * {factor} AS exact,
                   coalesce(TRY_CAST({column("at")} AS DOUBLE), epoch(TRY_CAST({column("at")} AS TIMESTAMP))) AS seen_at
            FROM (SELECT *, upper({column("currency", fixed)}) AS currency_text FROM raw) AS raw
            LEFT JOIN types t ON t.text = {column("type", "'charge'")}
            LEFT JOIN exps c ON c.currency = raw.currency_text
        """)  # noqa: S608 - names of columns are quoted, the rest are constants
        if "type" not in map.columns:
            run("UPDATE every SET type = 'charge'")
        run("""
            CREATE TABLE unreadable AS
            SELECT n, line FROM every
            WHERE type <> 'other' AND (exact IS NULL OR currency IS NULL OR seen_at IS NULL OR exact <> floor(exact)
                   OR ref IS NULL AND type NOT IN ('fee', 'payout'))
        """)
        run("""
            CREATE TABLE lines AS
            SELECT min(n) AS n, line, count(DISTINCT (ref, type, exact, currency, seen_at, our_key)) AS contents,
                   any_value(ref) AS ref, any_value(prior) AS prior, any_value(our_key) AS our_key,
                   any_value(party) AS party, any_value(payout) AS payout, any_value(auth) AS auth,
                   any_value(type) AS type, any_value(currency) AS currency, CAST(any_value(exact) AS BIGINT) AS minor,
                   any_value(seen_at) AS seen_at
            FROM every WHERE n NOT IN (SELECT n FROM unreadable) AND type <> 'other' GROUP BY line
        """)

    def load_records(self, records: Iterable[Ours]) -> None:
        self._make_ours()
        self._fill("ours_in", ([getattr(one, name) for name in OURS] for one in records))
        self._number()

    def load_ledger(self, file: str) -> None:
        """A table of your own as CSV or Parquet, with columns as OURS; `ref`, `minor`, `at` and `key` are needed."""
        if not Path(file).is_file():
            raise Misconfigured(f"there is no file {file!r}")
        self._make_ours()
        reader = "read_parquet(?)" if file.endswith(".parquet") else "read_csv(?, header=true, all_varchar=true)"
        self.db.execute(f"CREATE TABLE ledger AS SELECT * FROM {reader}", [file])  # noqa: S608 - constants
        there = {row[1] for row in self.db.execute("PRAGMA table_info('ledger')").fetchall()}
        missing = [name for name in ("key", "ref", "minor", "at") if name not in there]
        if missing:
            raise Misconfigured(f"the ledger {file} has no column {missing[0]!r}")
        usual = {"operation": "'ledger'", "state": "'completed'", "mark": "''"}
        shown = [
            f"nullif(CAST({_quoted(name)} AS VARCHAR), '')" if name in there else usual.get(name, "NULL")
            for name in OURS
        ]
        shown[OURS.index("minor")] = "CAST(minor AS BIGINT)"
        shown[OURS.index("at")] = 'coalesce(TRY_CAST("at" AS DOUBLE), epoch(TRY_CAST("at" AS TIMESTAMP)))'
        self.db.execute(f"INSERT INTO ours_in SELECT {', '.join(shown)} FROM ledger")  # noqa: S608 - quoted names
        self._number()

    def _make_ours(self) -> None:
        columns = ", ".join(
            f'"{name}" {"BIGINT" if name == "minor" else "DOUBLE" if name == "at" else "VARCHAR"}' for name in OURS
        )
        self.db.execute(f"CREATE TABLE ours_in ({columns})")

    def _number(self) -> None:
        self.db.execute('CREATE TABLE ours AS SELECT row_number() OVER () AS r, *, "at" AS made_at FROM ours_in')

    def _fill(self, table: str, rows: Iterable[Sequence[Any]]) -> None:
        rows = [list(row) for row in rows]
        for start in range(0, len(rows), 10_000):
            some = rows[start : start + 10_000]
            places = ", ".join(["(" + ", ".join("?" * len(some[0])) + ")"] * len(some))
            self.db.execute(f"INSERT INTO {table} VALUES {places}", [value for row in some for value in row])  # noqa: S608

    # -- comparing

    def compare(self, *, horizon: float, cut: float | None = None) -> Outcome:
        """All passes; `horizon` is how long a head may take to appear in a statement."""
        run = self.db.execute
        for statement in _PASSES:
            run(statement)
        last = run("SELECT max(seen_at) FROM lines").fetchone()[0] if cut is None else cut
        outcome = Outcome(cut=float(last or 0.0))
        run("CREATE OR REPLACE TABLE bounds AS SELECT ?::DOUBLE AS cut, ?::DOUBLE AS horizon", [outcome.cut, horizon])
        run(_OF_RECORDS)
        outcome.counts = dict(run("SELECT category, count(*) FROM verdicts GROUP BY 1 ORDER BY 1").fetchall())
        outcome.counts |= dict(run(_OF_HEADS_COUNT).fetchall())
        for name, table in (("unreadable", "unreadable"), ("odd", "odd"), ("payout", "payouts_off")):
            number = run(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 - constants
            if number:
                outcome.counts[name] = number
        outcome.cases = list(self._cases(outcome.counts))
        return outcome

    def _cases(self, counts: dict[str, int]) -> Iterator[Case]:
        run = self.db.execute
        # While the statement itself is in question, no refund is proposed from it.
        sound = not any(counts.get(one) for one in ("unreadable", "odd", "payout", "crossed"))
        columns = "v.category, v.action, o.operation, o.key, o.tenant, o.mark, v.head, v.keep, v.minor, v.currency"
        query = (
            f"SELECT {columns} FROM verdicts v JOIN ours o USING (r) WHERE v.action <> 'none' ORDER BY v.category, v.r"  # noqa: S608
        )
        for category, action, operation, key, tenant, mark, head, keep, minor, currency in run(query).fetchall():
            if category == "doubled":
                continue
            yield Case(category, action, (operation, key, tenant), mark, head, keep, minor, currency)
        for row in run(_SURPLUS).fetchall():
            operation, key, tenant, mark, head, keep, minor, currency, eligible, line = row
            action = "refund" if eligible and sound else "investigate"
            yield Case("doubled", action, (operation, key, tenant), mark, head, keep, minor, currency, (line,))
        for category, action, operation, key, tenant, head, minor, currency, line in run(_OF_HEADS).fetchall():
            record = None if key is None else (operation, key, tenant)
            yield Case(category, action, record, "", head, None, minor, currency, (line,))
        for category, table in (("unreadable", "unreadable"), ("odd", "odd")):
            for (line,) in run(f"SELECT line FROM {table} ORDER BY n").fetchall():  # noqa: S608 - constants
                yield Case(category, "investigate", evidence=(line,))
        for payout, stated, found in run("SELECT payout, stated, found FROM payouts_off ORDER BY 1").fetchall():
            yield Case("payout", "investigate", head=payout, minor=stated, evidence=(f"its lines sum to {found}",))


_PASSES = (
    "CREATE TABLE odd AS SELECT n, line FROM lines WHERE contents > 1",
    # Pass 1: heads. Each charge is one; all captures of one authorisation are one together.
    """
    CREATE TABLE heads_whole AS
    SELECT min(n) AS h, any_value(line) AS line, ref, any_value(prior) AS prior, any_value(our_key) AS our_key,
           any_value(party) AS party, sum(minor)::BIGINT AS minor, any_value(currency) AS currency,
           min(seen_at) AS seen_at
    FROM lines WHERE type IN ('charge', 'capture') AND contents = 1
    GROUP BY ref, CASE WHEN type = 'capture' THEN 0 ELSE n END
    """,
    # Pass 4: what went back, taken from the latest head of a reference first.
    f"""
    CREATE TABLE nets AS
    SELECT ref, sum(minor)::BIGINT AS returned, bool_or(type = 'chargeback') AS disputed
    FROM lines WHERE type IN {_NETS} AND contents = 1 GROUP BY ref
    """,  # noqa: S608 - constants
    """
    CREATE TABLE heads AS
    SELECT h.*, coalesce(n.disputed, false) AS disputed,
           least(h.minor, greatest(0, coalesce(n.returned, 0) - coalesce(sum(h.minor) OVER (
             PARTITION BY h.ref ORDER BY h.seen_at DESC, h.h DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
           ), 0)))::BIGINT AS returned
    FROM heads_whole h LEFT JOIN nets n ON n.ref = h.ref
    """,
    # Passes 1 and 2: by reference, by the reference it had before, by our key.
    "CREATE TABLE by_ref AS SELECT h.h, min(o.r) AS r FROM heads h JOIN ours o ON o.ref = h.ref GROUP BY h.h",
    """
    CREATE TABLE by_prior AS SELECT h.h, min(o.r) AS r FROM heads h JOIN ours o ON o.ref = h.prior
    WHERE h.prior IS NOT NULL AND h.h NOT IN (SELECT h FROM by_ref) GROUP BY h.h
    """,
    """
    CREATE TABLE by_key AS SELECT h.h, min(o.r) AS r FROM heads h JOIN ours o ON o.our_key = h.our_key
    WHERE h.our_key IS NOT NULL GROUP BY h.h
    """,
    """
    CREATE TABLE matched AS
    SELECT h, r, 'ref' AS how FROM by_ref
    UNION ALL SELECT h, r, 'prior' FROM by_prior
    UNION ALL SELECT h, r, 'key' FROM by_key
      WHERE h NOT IN (SELECT h FROM by_ref) AND h NOT IN (SELECT h FROM by_prior)
    """,
    "CREATE TABLE crossed AS SELECT m.h, m.r FROM matched m JOIN by_key k ON k.h = m.h WHERE k.r <> m.r",
    # Pass 3: an amount and a party at about that time. It only suggests.
    f"""
    CREATE TABLE near AS
    SELECT h.h, o.r, o.r IN (SELECT r FROM matched) AS taken
    FROM heads h JOIN ours o ON o.party = h.party AND o.minor = h.minor AND o.currency = h.currency
     AND h.seen_at BETWEEN o.made_at - {BEFORE_SECONDS} AND o.made_at + {AFTER_SECONDS}
    WHERE h.h NOT IN (SELECT h FROM matched)
    """,  # noqa: S608 - constants
    """
    CREATE TABLE suggested AS
    SELECT h, CASE WHEN count(*) FILTER (NOT taken) = 1 THEN 'matched_suggested'
                   WHEN count(*) FILTER (NOT taken) = 0 AND count(*) = 1 THEN 'doubled_suggested'
                   ELSE 'ambiguous' END AS category,
           coalesce(min(r) FILTER (NOT taken), min(r)) AS r
    FROM near GROUP BY h
    """,
    # Pass 5: a payout is the sum of its lines.
    """
    CREATE TABLE payouts_off AS
    SELECT p.payout, p.minor AS stated, coalesce(s.found, 0) AS found
    FROM (SELECT payout, sum(minor)::BIGINT AS minor FROM lines WHERE type = 'payout' AND payout IS NOT NULL
          GROUP BY payout) p
    LEFT JOIN (
      SELECT payout, sum(CASE WHEN type IN ('charge', 'capture') THEN minor ELSE -minor END)::BIGINT AS found
      FROM lines WHERE type <> 'payout' AND payout IS NOT NULL AND contents = 1 GROUP BY payout
    ) s USING (payout)
    WHERE p.minor <> coalesce(s.found, 0)
    """,
)

_OF_RECORDS = """
CREATE TABLE verdicts AS
SELECT *, CASE category
         WHEN 'late' THEN 'wait' WHEN 'not_landed' THEN 'release' WHEN 'adopt' THEN 'adopt'
         WHEN 'agreed' THEN 'none' WHEN 'matched' THEN 'none' WHEN 'refunded' THEN 'none'
         WHEN 'doubled_settled' THEN 'none' WHEN 'matched_suggested' THEN 'none' WHEN 'doubled' THEN 'refund'
         ELSE 'investigate'
       END AS action
FROM (
WITH found AS (
  SELECT m.r, count(*) AS heads, count(*) FILTER (h.minor > h.returned) AS live,
         coalesce(arg_min(h.ref, h.seen_at) FILTER (h.minor > h.returned), arg_min(h.ref, h.seen_at)) AS first_ref,
         arg_min(h.minor, h.seen_at) AS minor, arg_min(h.currency, h.seen_at) AS currency,
         bool_or(m.h IN (SELECT h FROM crossed)) AS crossed
  FROM matched m JOIN heads h USING (h) GROUP BY m.r
)
SELECT o.r, f.first_ref AS head, NULL::VARCHAR AS keep, coalesce(f.minor, o.minor) AS minor,
       coalesce(f.currency, o.currency) AS currency,
       CASE
         WHEN f.r IS NULL AND o.state IN ('closed', 'released') THEN 'agreed'
         WHEN f.r IS NULL AND o.made_at > b.cut - b.horizon THEN 'late'
         WHEN f.r IS NULL AND o.state = 'completed'
           AND o.r IN (SELECT r FROM suggested WHERE category = 'matched_suggested') THEN 'matched_suggested'
         WHEN f.r IS NULL AND o.state = 'completed' THEN 'missing_there'
         WHEN f.r IS NULL THEN 'not_landed'
         WHEN f.crossed THEN 'crossed'
         WHEN f.live >= 2 THEN 'doubled'
         WHEN f.heads >= 2 THEN 'doubled_settled'
         WHEN o.state IN ('closed', 'released') AND f.live = 1 THEN 'conflicting_state'
         WHEN o.state IN ('closed', 'released') THEN 'agreed'
         WHEN o.currency IS NOT NULL AND f.currency <> o.currency THEN 'currency_differs'
         WHEN o.minor IS NOT NULL AND f.minor <> o.minor THEN 'amount_differs'
         WHEN f.live = 0 THEN 'refunded'
         WHEN o.state IN ('in_doubt', 'started') THEN 'adopt'
         ELSE 'matched'
       END AS category
FROM ours o LEFT JOIN found f ON f.r = o.r CROSS JOIN bounds b
) AS judged
"""

# Of a doubled record every live head but the kept one. A refund needs: matched by reference or key, the amount and the
# currency of the kept head, whole, without a dispute, older than the horizon, and a record that is completed.
_SURPLUS = """
WITH live AS (
  SELECT m.r, h.*, row_number() OVER (
    PARTITION BY m.r ORDER BY (h.ref = o.ref) DESC NULLS LAST, h.seen_at, h.h
  ) AS place
  FROM matched m JOIN heads h USING (h) JOIN ours o ON o.r = m.r JOIN verdicts v ON v.r = m.r
  WHERE v.category = 'doubled' AND h.minor > h.returned
)
SELECT o.operation, o.key, o.tenant, o.mark, s.ref, k.ref, s.minor, s.currency,
       s.minor = k.minor AND s.currency = k.currency AND s.returned = 0 AND NOT s.disputed
         AND b.cut > s.seen_at + b.horizon AND o.state = 'completed' AS eligible, s.line
FROM live s JOIN live k ON k.r = s.r AND k.place = 1 JOIN ours o ON o.r = s.r CROSS JOIN bounds b
WHERE s.place > 1 ORDER BY s.h
"""

_HEADS = """
SELECT coalesce(s.category, 'missing_here') AS category, h.ref, h.minor, h.currency, h.line, s.r, h.h
FROM heads h LEFT JOIN suggested s ON s.h = h.h WHERE h.h NOT IN (SELECT h FROM matched) AND h.minor > h.returned
"""
_OF_HEADS_COUNT = f"SELECT category, count(*) FROM ({_HEADS}) GROUP BY 1"  # noqa: S608 - constants
_OF_HEADS = f"""
SELECT u.category, 'investigate', o.operation, o.key, o.tenant, u.ref, u.minor, u.currency, u.line
FROM ({_HEADS}) u LEFT JOIN ours o ON o.r = u.r ORDER BY u.h
"""  # noqa: S608 - constants


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
