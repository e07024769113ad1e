"""Rounds as captured work, launched one ahead of the host."""
