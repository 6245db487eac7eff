"""Measures: how right texts are, how much they repeat, what they cost."""
