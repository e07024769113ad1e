"""Choices for other engines, in their own terms."""
