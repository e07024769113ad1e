"""What decoding takes of memory at its peak."""
