"""How many tokens share a forward, and the memory of its mask."""

MASK_STEP = 16  # tokens per sequence: a mask's memory is for a multiple, so that one token more does not move it
READ_TOGETHER = 32  # most tokens that every sequence of a batch reads in one forward; more are read one by one


def masked_tokens(tokens: int) -> int:
    """Return for how many tokens per sequence the mask of a forward of so many has room."""
    return -(-tokens // MASK_STEP) * MASK_STEP
