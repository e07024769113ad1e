"""Loops over recorded expansions that numba compiles: the fast form of growing a strategy's trees at every position.

Kernels read and write plain arrays; those of a `Recording` have the same names: `roots`, `child`, `scores`, `hit_rank`.
All kernels rely on a recording's `is_ordered`: no child scores above its parent.
"""
