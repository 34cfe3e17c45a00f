"""A shop on Django and SQLite: several workers, and every customer pays once, whatever happens.

`python examples/shops django` starts it, with a provider of its own. Read settings, keys, views.
"""
