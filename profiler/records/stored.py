"""How a quantised checkpoint stores its weights: bits per number, part by part of the model."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import ModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPart:
    """One part of a model, all layers: the share of quantised numbers, their mean bits with scales and zero points.

    `narrow_share` is of the numbers whose activations are quantised too.
    """

    share: float = 0.0
    bits: float = 0.0
    narrow_share: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.narrow_share <= self.share <= 1.0 or not 0.0 <= self.bits <= 64.0:
            raise ModelError(f"shares lie in [0, 1] and bits in [0, 64], got {self}; check quantization_config")

    def bytes_per_number(self, size: int) -> float:
        """Return the bytes of one number on average, where those that are not quantised take `size`."""
        return (1.0 - self.share) * size + self.share * self.bits / 8.0


WHOLE = StoredPart()  # none of it is quantised


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeights:
    """How the matrices of a model are stored; what is in no part, like embeddings and norms, is not quantised.

    `method` is quant_method, `arithmetic` the format of products with quantised activations, `uncounted` why the bits
    are not known; each "" where there is none.
    """

    method: str = ""
    arithmetic: str = ""
    attention: StoredPart = WHOLE
    dense: StoredPart = WHOLE
    shared: StoredPart = WHOLE
    experts: StoredPart = WHOLE
    head: StoredPart = WHOLE
    uncounted: str = ""


AS_MULTIPLIED = StoredWeights()  # nothing is quantised
