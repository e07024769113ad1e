"""Loops over recorded expansions that numba compiles: the fast form of what `growth.grow` does at every position.

A kernel reads plain arrays and writes into arrays its caller made. Those of a `Recording` keep their names: `roots`,
`child`, `scores`, `hit_rank`. All kernels rely on a recording's `is_ordered`: no child scores above its parent.
"""
