"""The horizon: the time before which no row can appear any more.

A row gets its time when its transaction begins or its statement runs, and becomes visible when the transaction commits.
A scan that continues after the newest row it saw therefore misses each row of a transaction that was still open. The
horizon is the beginning of the oldest open transaction, read before the rows are. Every row with an older time is
visible, or will never be.
"""

from __future__ import annotations

from samekey.core.errors import Misconfigured
from samekey.detect.catalog import Engine, Table
from samekey.drivers.reading import NotPermitted, Reading

MARGIN_SECONDS = 5.0  # a server publishes the beginning of a transaction a little after it took the time

# A role without pg_read_all_stats sees no times of other roles' transactions.
POSTGRES = """
SELECT pg_is_in_recovery(),
       pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') OR (SELECT rolsuper FROM pg_roles
         WHERE rolname = current_user),
       extract(epoch FROM least(now(),
         (SELECT min(xact_start) FROM pg_stat_activity WHERE pid <> pg_backend_pid()),
         (SELECT min(prepared) FROM pg_prepared_xacts)))::float8
"""
# A statement takes its time when it begins, and may then wait before its transaction begins in InnoDB.
MYSQL = """
SELECT @@read_only, CAST(UNIX_TIMESTAMP(NOW(6)) AS DOUBLE) - coalesce((SELECT max(age) FROM (
  SELECT TIMESTAMPDIFF(SECOND, trx_started, SYSDATE()) + 1 AS age FROM information_schema.innodb_trx
  WHERE trx_mysql_thread_id <> CONNECTION_ID()
  UNION ALL
  SELECT time + 1 FROM information_schema.processlist
  WHERE id <> CONNECTION_ID() AND command NOT IN ('Sleep', 'Daemon', 'Binlog Dump')) open), 0)
"""
_NO_OTHERS = "sees no transactions of other roles, so rows may be missed: GRANT pg_read_all_stats TO the role"


def horizon(engine: Engine, reading: Reading, table: Table, lateness_seconds: float) -> float:
    """Seconds since 1970. Refused where it cannot be known: a wrong horizon would lose rows without a trace.

    `lateness_seconds`: how much older than its transaction the time of a row may be, where the application sets it.
    """
    if table.subscriptions and not lateness_seconds:
        raise Misconfigured(
            f"{table.full_name} is fed by a subscription: its rows carry the times of another server. "
            "Give --lateness, the longest delay of the replication"
        )
    match engine:
        case Engine.POSTGRES:
            ((standby, sees_others, at),) = reading.rows(POSTGRES)
            if standby:
                raise Misconfigured("this is a standby: it does not show the open transactions of its primary")
            if not sees_others:
                raise Misconfigured(f"the role {_NO_OTHERS}")
        case Engine.MYSQL:
            try:
                ((replica, at),) = reading.rows(MYSQL)
            except NotPermitted as error:
                raise Misconfigured("the role sees no transactions of others: GRANT PROCESS ON *.* TO it") from error
            if int(replica) and not lateness_seconds:
                raise Misconfigured("this server is read-only: its rows come from another one. Give --lateness")
        case Engine.SQLITE:
            if not lateness_seconds:
                raise Misconfigured(
                    "SQLite does not show open transactions: give --lateness, longer than your longest transaction"
                )
            ((at,),) = reading.rows("SELECT (julianday('now') - 2440587.5) * 86400.0")
    return float(at) - MARGIN_SECONDS - lateness_seconds
