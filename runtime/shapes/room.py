"""Whether a shape fits: a clear refusal here, before a GPU refuses it and is lost to its process."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import MeasurementError


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the cache and the positions of a model hold."""

    slots: int
    capacity: int  # tokens per slot
    longest_context: int  # places in a text

    def require(self, *, batch: int, columns: int, place: int) -> None:
        """Raise MeasurementError unless a shape of `columns` cache positions per sequence fits.

        `place` is the last one of the text itself. Drafts after it may reach beyond the model's positions, as a
        decoder's do at the end of a text: forwards take the last position for them.
        """
        if batch > self.slots or columns > self.capacity:
            raise MeasurementError(
                f"batch {batch} with {columns} tokens each exceeds {self.slots} slots of {self.capacity}; "
                "measure smaller shapes"
            )
        if place >= self.longest_context:
            raise MeasurementError(
                f"a token at place {place} lies behind the model's longest context of {self.longest_context}; "
                "measure shorter contexts"
            )

    def longest_before(self, columns: int) -> int:
        """Return the longest context before tokens that take so many cache positions per sequence."""
        return max(min(self.capacity - columns, self.longest_context - 1), 0)
