"""Engines that people run in production: what of a plan each can carry, and the plan written as its settings."""
