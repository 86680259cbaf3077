"""Loops over the touched rows of an embedding table: the same work on a CPU (Numba) and on a GPU (Triton)."""
