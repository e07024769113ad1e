"""Work that a pretended GPU has noted, to do it again in the same memory with the same plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from .traffic import poison

Step = Callable[[], None]


class Capture:
    """Operations in their order; while they are noted nothing that was there before changes."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._made: list[Tensor] = []
        self._before: list[tuple[Tensor, Tensor]] = []

    def note(self, step: Step, *, writes: Sequence[Tensor] = (), makes: Sequence[Tensor] = ()) -> None:
        """Note a step before it is done for the shapes of its results; what it writes is put back in the end."""
        self._steps.append(step)
        self._made.extend(makes)
        self._before.extend((place, place.clone()) for place in writes)

    def end(self) -> None:
        """Leave the memory as a capture leaves it: what it made holds nothing yet, and all other is untouched."""
        for place, numbers in reversed(self._before):
            place.copy_(numbers)
        for place in self._made:
            poison(place)
        self._before.clear()
        self._made.clear()

    def __len__(self) -> int:
        """How many operations there are."""
        return len(self._steps)

    def replay(self) -> None:
        """Do it all again."""
        for step in self._steps:
            step()
