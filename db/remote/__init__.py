"""A store behind a planner service."""
