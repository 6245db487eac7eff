"""`python -m decodekit` is the `decodekit` command."""

from decodekit.cli import main

main()
