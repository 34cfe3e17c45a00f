"""Stores: registers with compare-and-set. Each passes the suite in `samekey.testing`."""
