"""Tiers: the ways to run a model over a cache, from captured steps over pages to one row at a time."""
