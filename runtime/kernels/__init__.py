"""Compiled parts of a round on the host."""
