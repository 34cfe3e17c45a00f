"""Drivers: connect, time out, check, migrate - shared by everything that speaks to one kind of server."""
