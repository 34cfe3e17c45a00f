"""Everything that a user's call passes through. Users import from `samekey`; read on in `guards.py`."""
