"""Seconds that a server may take by default."""

START_S = 1800.0  # until it has loaded its models, large ones from a slow disk, and captured its graphs
STALL_S = 600.0  # without a byte of an answer
