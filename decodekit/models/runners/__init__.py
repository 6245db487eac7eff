"""Tiers: the ways to run a model over a cache, from recorded steps over pages to one row at a time."""
