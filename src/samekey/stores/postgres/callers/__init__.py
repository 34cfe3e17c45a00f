"""A caller's own connection, one file per library: `Atomic` and `guard.on()` write over it."""
