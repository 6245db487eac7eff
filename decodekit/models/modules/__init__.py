"""Modules of transformers: copies that share weights, decoder layers, how long a context may be."""
