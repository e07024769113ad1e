"""What all parts of a round share: sequences, trees as a forward reads them, and how tokens are drawn."""
