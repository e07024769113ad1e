"""Decoding and forwards against the clock: what profile, validate and demo share."""
