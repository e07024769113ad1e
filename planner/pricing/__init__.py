"""What rounds cost, and how sure that is."""
