"""Recorded texts decoded again by any policy."""
