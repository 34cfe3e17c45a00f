"""Two tables as teams really have them."""

from __future__ import annotations

IDEMPOTENCY_KEYS = """
CREATE TABLE idempotency_keys (key TEXT PRIMARY KEY, request_hash TEXT, response {document}, status TEXT NOT NULL,
  created_at TIMESTAMP NOT NULL, updated_at TIMESTAMP NOT NULL)
"""
ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, order_ref INTEGER NOT NULL UNIQUE, amount INTEGER NOT NULL)"
ORDERS_INSERT = "INSERT INTO orders VALUES (1, 17, 200) ON CONFLICT DO NOTHING RETURNING *"
