"""What rows share: prefixes, and the memory of rows."""
