"""Prefixes that rows share, and the memory of rows."""
