"""Loops over weights that numba compiles, for products that libraries are slow at."""
