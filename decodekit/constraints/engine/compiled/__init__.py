"""The part of the engine that numba compiles."""
