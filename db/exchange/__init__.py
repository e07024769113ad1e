"""What stores exchange, and how one is copied, checked and pruned."""
