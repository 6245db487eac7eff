"""Compiled sampling from wide rows on a CPU."""
