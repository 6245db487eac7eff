"""`python -m decodekit.cli` is the `decodekit` command."""

from decodekit.cli import main

main()
