"""What competes in a cell, and which of it wins."""
