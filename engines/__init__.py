"""Servers that people run: started or reached over HTTP, put under load, and read by their counters."""
