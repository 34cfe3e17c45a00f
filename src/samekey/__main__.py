"""`python -m samekey` is `samekey`."""

from samekey.cli import main

main()
