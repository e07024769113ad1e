"""Measurements of other software, read from files."""
