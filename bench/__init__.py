"""What samekey costs on this machine, against the raw limit in the same run: `python -m bench`."""
