"""Acceptance rules that change the output, and what they cost in quality."""
