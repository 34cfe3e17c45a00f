"""Try a handler: call it twice, at once and again after a crash, stop it at every point, and judge what it did."""
