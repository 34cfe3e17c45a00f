"""samekey's own connections to MySQL: address, connect, self-check, errors and migrations."""
