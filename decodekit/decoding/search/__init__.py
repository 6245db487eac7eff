"""Searches: beams, contrastive search, particles, the best of several texts, decisions."""
