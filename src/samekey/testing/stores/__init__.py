"""The suite that every store passes: one scenario for each sentence of the store's contract."""

from samekey.testing.stores.suite import AsyncStoreSuite, StoreSuite

__all__ = ["AsyncStoreSuite", "StoreSuite"]
