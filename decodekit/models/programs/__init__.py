"""Decoding steps on a CPU as lists of instructions: written down, proven, run."""
