"""Drafters above drafters: replayed, searched, foretold."""
