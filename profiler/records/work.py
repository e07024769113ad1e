"""The bytes and operations of one forward: what a roofline is drawn with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Bytes and operations of one forward; a multiply-add counts as two, `least_*` bounds any implementation."""

    weight_bytes: float  # every matrix and vector once; of experts as many as evenly spread routing would touch
    least_weight_bytes: float  # the same, with every row routed to the same experts
    cache_read_bytes: float  # keys and values of the context
    cache_write_bytes: float  # keys and values of the new tokens
    logit_bytes: float
    activation_bytes: float  # every intermediate result written once and read once
    matmul_flops: float
    context_flops: float  # attention of the new tokens to the context
    causal_flops: float  # attention among the new tokens, each to itself and those before it
    narrow_flops: float = 0.0  # of the matrix products, those with quantised activations
    narrow_dtype: str = ""  # number format of these

    @property
    def least_read_bytes(self) -> float:
        """Bytes that must reach the arithmetic units in any case: weights and context."""
        return self.least_weight_bytes + self.cache_read_bytes

    @property
    def read_bytes(self) -> float:
        """Bytes that must reach the arithmetic units where tokens spread evenly over experts: weights and context."""
        return self.weight_bytes + self.cache_read_bytes

    @property
    def bytes(self) -> float:
        """Bytes moved in all."""
        cache = self.cache_read_bytes + self.cache_write_bytes
        return self.weight_bytes + cache + self.logit_bytes + self.activation_bytes
