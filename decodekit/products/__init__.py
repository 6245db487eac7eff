"""Products of a few rows with weights: on a CPU by all threads, on CUDA by a kernel."""
