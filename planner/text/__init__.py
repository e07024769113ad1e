"""Drafting from the text itself, without a model."""
