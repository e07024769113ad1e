"""What drafters would propose along the target's own texts, recorded."""
