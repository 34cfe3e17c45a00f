"""A shop on FastAPI, SQLAlchemy and PostgreSQL: several workers, and every customer pays once, whatever happens.

`python examples/shops fastapi` starts it, with a provider and a database of its own. Read app.py.
"""
