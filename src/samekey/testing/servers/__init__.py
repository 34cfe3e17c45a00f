"""Private servers for tests: each on a free port in a temporary folder, and gone after the `with` block."""

from samekey.testing.servers._mariadb import Mariadb, PrivateMariadb, mariadb
from samekey.testing.servers._pgbouncer import PgBouncer, pgbouncer
from samekey.testing.servers._postgres import Postgres, PrivatePostgres, postgres
from samekey.testing.servers._process import USER, NoServer
from samekey.testing.servers._redis import (
    Redis,
    RedisServer,
    flavours,
    redis_cluster,
    redis_server,
    shared_redis,
    until,
)

__all__ = [
    "USER",
    "Mariadb",
    "NoServer",
    "PgBouncer",
    "Postgres",
    "PrivateMariadb",
    "PrivatePostgres",
    "Redis",
    "RedisServer",
    "flavours",
    "mariadb",
    "pgbouncer",
    "postgres",
    "redis_cluster",
    "redis_server",
    "shared_redis",
    "until",
]
