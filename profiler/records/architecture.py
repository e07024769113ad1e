"""What a transformer is made of, and the work that one forward of it takes; `configuration.py` reads it.

Parameters are counted in three parts: matrices that rows are multiplied with, tables that rows are looked up in
(token embeddings, learned positions), and vectors (norms and biases). A tied output head is the token table again:
stored once, multiplied with all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import ModelError
from .work import Work

QUANTISED = ("q4_0", "q4_1", "q4_k_s", "q4_k_m", "q5_0", "q6_k", "q8_0")  # GGUF files; activations are bfloat16
DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8": 1, "int8": 1}
DTYPE_BYTES |= dict.fromkeys(QUANTISED, DTYPE_BYTES["bfloat16"])  # more than their weights take


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The shape of a decoder-only transformer whose layers are all alike."""

    family: str  # Hugging Face model_type
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int  # of the MLP, or of one expert
    vocabulary: int
    is_tied: bool  # the output head is the token table
    is_gated: bool  # the MLP has three matrices instead of two
    experts: int = 0  # per layer; 0 is one dense MLP
    experts_per_token: int = 0
    positions: int = 0  # rows of a learned position table
    longest_context: int = 0  # positions that rotary embeddings are laid out for
    layer_vectors: int = 0  # parameters of one layer's norms and biases
    final_vectors: int = 0  # parameters of the last norm
    windowed_layers: int = 0  # layers that attend to the last `window` tokens only
    window: int = 0
    stored_dtype: str = ""  # number format of the checkpoint, where its configuration says so

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocabulary"):
            if getattr(self, name) < 1:
                raise ModelError(
                    f"{self.family}: {name} is {getattr(self, name)}, must be at least 1; mend config.json"
                )
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            told = f"{self.experts_per_token} of {self.experts} experts"
            raise ModelError(f"{self.family}: a token goes to {told}; mend config.json")
        if self.windowed_layers and not (self.window > 0 and self.windowed_layers <= self.layers):
            raise ModelError(f"{self.family}: {self.windowed_layers} layers see {self.window} tokens; mend config.json")

    @property
    def matmul_parameters(self) -> int:
        """Parameters of all matrices that rows are multiplied with, every expert and the output head included."""
        mlps = max(self.experts, 1) * self._mlp
        return self.layers * (self._beside_mlp + mlps) + self.vocabulary * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the tables that rows are looked up in."""
        return (self.vocabulary + self.positions) * self.hidden

    @property
    def parameters(self) -> int:
        """Parameters stored in all; a tied output head counts once."""
        shared = self.vocabulary * self.hidden if self.is_tied else 0
        return self.matmul_parameters + self.embedding_parameters + self._vectors - shared

    def weight_bytes(self, dtype: str) -> int:
        """Return the memory all parameters take in a number format.

        Raises:
            ModelError: the format is unknown.
        """
        return self.parameters * bytes_of(dtype)

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Return the memory that one token's keys and values take in all layers.

        Raises:
            ModelError: the format is unknown.
        """
        return self.layers * self._layer_kv * bytes_of(dtype)

    def work(self, dtype: str, batch: int, context: int, tokens: int, *, outputs: int | None = None) -> Work:
        """Return the work of one forward of `tokens` tokens per sequence after `context` committed ones.

        Args:
            dtype: number format of weights and cache.
            batch: sequences.
            context: committed tokens per sequence.
            tokens: new tokens per sequence.
            outputs: rows per sequence whose logits are wanted; all where None.

        Raises:
            ModelError: the format is unknown.
        """
        size, rows = bytes_of(dtype), batch * tokens
        logits = batch * (tokens if outputs is None else outputs) * self.vocabulary
        beside_mlps = self.layers * self._beside_mlp + self.vocabulary * self.hidden + self._vectors
        mlps = self.layers * self._mlp
        per_token = self.experts_per_token or 1
        seen = self._seen(context)
        per_pair = 4 * self.heads * self.head_dim  # query times key, weight times value
        return Work(
            weight_bytes=size * (beside_mlps + mlps * self._touched(rows)),
            least_weight_bytes=float(size * (beside_mlps + mlps * per_token)),
            cache_read_bytes=float(size * batch * seen * self._layer_kv),
            cache_write_bytes=float(size * rows * self.layers * self._layer_kv),
            logit_bytes=float(size * logits),
            activation_bytes=float(2 * size * rows * self.layers * self._layer_results),
            matmul_flops=2.0 * (rows * (self.layers * self._beside_mlp + mlps * per_token) + logits * self.hidden),
            context_flops=float(per_pair * rows * seen),
            causal_flops=per_pair * self.layers * rows * (tokens + 1) / 2,
        )

    @property
    def _beside_mlp(self) -> int:
        """Matrix parameters of one layer's attention and router."""
        return 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads) + self.hidden * self.experts

    @property
    def _mlp(self) -> int:
        return (3 if self.is_gated else 2) * self.hidden * self.intermediate

    @property
    def _vectors(self) -> int:
        return self.layers * self.layer_vectors + self.final_vectors

    @property
    def _layer_kv(self) -> int:
        return 2 * self.kv_heads * self.head_dim

    @property
    def _layer_results(self) -> int:
        """Numbers one row leaves behind in one layer: norms and sums, query to mix, the MLP's insides."""
        mlp = (self.experts_per_token or 1) * (3 if self.is_gated else 2) * self.intermediate
        return 4 * self.hidden + 2 * self.head_dim * (self.heads + self.kv_heads) + mlp

    def _touched(self, rows: int) -> float:
        """Return the experts of a layer that evenly spread routing of the rows touches, on average."""
        if not self.experts:
            return 1.0
        return self.experts * (1.0 - (1.0 - self.experts_per_token / self.experts) ** rows)

    def _seen(self, context: int) -> int:
        """Return the context tokens that one row attends to, summed over layers."""
        return (self.layers - self.windowed_layers) * context + self.windowed_layers * min(context, self.window)


def bytes_of(dtype: str) -> int:
    """Return the bytes of one number.

    Raises:
        ModelError: the format is unknown.
    """
    if dtype not in DTYPE_BYTES:
        raise ModelError(f"unknown number format {dtype!r}; use one of {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype]
