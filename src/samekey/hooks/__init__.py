"""Hooks: facts in, nothing out. `Guard(hooks=[LoggingHook()])`."""
