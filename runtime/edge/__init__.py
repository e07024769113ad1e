"""Drafting on a device, verifying on a server: the messages between them, and both ends."""
