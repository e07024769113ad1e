"""A decoder that watches itself: counters, drift, a way back to plain decoding, and reports."""
