"""samekey's own connections to PostgreSQL: address, connect, self-check, errors and migrations."""
