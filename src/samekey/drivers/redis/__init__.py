"""samekey's own connections to Redis: address, connect, self-check, and errors."""
