"""Private servers for tests: each on a free port in a temporary folder, and gone after the `with` block."""

from samekey.testing.servers._kafka import Kafka, kafka
from samekey.testing.servers._mariadb import Mariadb, PrivateMariadb, mariadb
from samekey.testing.servers._nats import NatsServer, nats_server
from samekey.testing.servers._postgres import Postgres, PrivatePostgres, postgres
from samekey.testing.servers._process import USER, NoServer, PrivateProcess, free_port, own_folder
from samekey.testing.servers._rabbitmq import RabbitMQ, rabbitmq
from samekey.testing.servers._redis import Redis, RedisServer, flavours, redis_program, redis_server, shared_redis
from samekey.testing.servers._sqs import SqsServer, sqs_server

__all__ = [
    "USER",
    "Kafka",
    "Mariadb",
    "NatsServer",
    "NoServer",
    "Postgres",
    "PrivateMariadb",
    "PrivatePostgres",
    "PrivateProcess",
    "RabbitMQ",
    "Redis",
    "RedisServer",
    "SqsServer",
    "flavours",
    "free_port",
    "kafka",
    "mariadb",
    "nats_server",
    "own_folder",
    "postgres",
    "rabbitmq",
    "redis_program",
    "redis_server",
    "shared_redis",
    "sqs_server",
]
