"""Caches: keys and values of rows that advance independently, in a rectangle, in eight bits, in pages."""
