"""Private servers for tests: each on a free port in a temporary folder, and gone after the `with` block."""

from samekey.testing.servers._mariadb import Mariadb, PrivateMariadb, mariadb
from samekey.testing.servers._postgres import Postgres, PrivatePostgres, postgres
from samekey.testing.servers._process import USER, NoServer, PrivateProcess, free_port, own_folder
from samekey.testing.servers._redis import Redis, RedisServer, flavours, redis_program, redis_server, shared_redis

__all__ = [
    "USER",
    "Mariadb",
    "NoServer",
    "Postgres",
    "PrivateMariadb",
    "PrivatePostgres",
    "PrivateProcess",
    "Redis",
    "RedisServer",
    "flavours",
    "free_port",
    "mariadb",
    "own_folder",
    "postgres",
    "redis_program",
    "redis_server",
    "shared_redis",
]
