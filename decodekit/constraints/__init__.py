"""Constraints: which texts are allowed, and for every text so far, which tokens may follow."""
