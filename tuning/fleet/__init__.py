"""Profiles on several devices, and on the nodes of a Ray cluster."""
