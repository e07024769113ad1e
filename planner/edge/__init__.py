"""Drafting on devices at the edge for one target on a server (SLED): what it brings, and how long to draft."""
