"""How much of a text is recorded at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """What is read and recorded of a text at once, `rows` over `slots`: less takes less memory and more time."""

    rows: int = 48
    slots: int = 8
    piece_tokens: int = 512

    @property
    def halved(self) -> Portion | None:
        """Half of all, None where there is no less."""
        if self.rows == 1:
            return None
        return Portion(rows=self.rows // 2, slots=max(self.slots // 2, 1), piece_tokens=max(self.piece_tokens // 2, 1))


WHOLE = Portion()
