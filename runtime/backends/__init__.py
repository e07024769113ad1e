"""Backends: how a target's rounds run on its device, chosen once."""
