"""Engines that people run: plans exported to them, their servers tuned over HTTP, and those that run here measured."""
