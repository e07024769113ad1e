"""How far each place of a text agrees with its end, by one compiled call."""

from __future__ import annotations

from ...planner.kernels.arrays import Ints32
from ...planner.kernels.compiled import compiled


@compiled
def agree_with_end(tokens: Ints32, runs: Ints32) -> None:
    """Write into `runs` (n,) how many tokens up to each place agree with the text's end; the last is 0.

    Source: Gusfield 1997, Algorithms on Strings, Trees and Sequences, Sec. 1.4: the Z algorithm, from the end on.
    """
    last = len(tokens) - 1
    runs[last] = 0
    left, right = last, last  # the agreement that reaches furthest to the front: places left + 1 to right
    for place in range(last - 1, -1, -1):
        run = min(runs[last - (right - place)], place - left) if place > left else 0
        while run <= place and tokens[place - run] == tokens[last - run]:
            run += 1
        runs[place] = run
        if place - run < left:
            left, right = place - run, place
