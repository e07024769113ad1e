"""What a transformer is made of, and the work that one forward of it takes; `configuration.py` reads it.

Parameters are matrices that rows are multiplied with, tables for look-up (embeddings, learned positions), and vectors
(norms and biases). A tied output head is the token table again: stored once, multiplied too.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import ModelError
from .limits import Work
from .stored import AS_MULTIPLIED, StoredWeights

QUANTISED = ("q4_0", "q4_1", "q4_k_s", "q4_k_m", "q5_0", "q6_k", "q8_0")  # GGUF files; activations are bfloat16
DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8": 1, "int8": 1}
DTYPE_BYTES |= dict.fromkeys(QUANTISED, DTYPE_BYTES["bfloat16"])  # more than their weights take


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Attention whose cache holds one compressed vector per token, from which all heads' keys and values are made.

    Source: DeepSeek-AI 2024, DeepSeek-V2, arXiv:2405.04434, Sec. 2.1.
    """

    query_rank: int  # 0: queries are not compressed
    cached_rank: int
    plain_dim: int  # of a head's query without position
    rotary_dim: int  # and with it; the key of this part is shared by all heads
    value_dim: int

    @property
    def query_dim(self) -> int:
        """Numbers of a head's query."""
        return self.plain_dim + self.rotary_dim

    @property
    def cached_numbers(self) -> int:
        """Numbers that one token leaves in one layer's cache."""
        return self.cached_rank + self.rotary_dim

    def matrices(self, hidden: int, heads: int) -> tuple[tuple[str, int], ...]:
        """Return names and parameters of a layer's matrices."""
        queries, compressed = heads * self.query_dim, self.query_rank
        whole = (("q_proj", hidden * queries),)
        return (
            *((("q_a_proj", hidden * compressed), ("q_b_proj", compressed * queries)) if compressed else whole),
            ("kv_a_proj_with_mqa", hidden * self.cached_numbers),
            ("kv_b_proj", self.cached_rank * heads * (self.plain_dim + self.value_dim)),
            ("o_proj", heads * self.value_dim * hidden),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The shape of a decoder-only transformer; its layers are alike, but some may have experts and some not."""

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
    dense_layers: int = 0  # of a model with experts: layers that have one dense MLP instead
    dense_intermediate: int = 0  # of these
    shared_intermediate: int = 0  # of the experts of a layer that every token goes to, together
    has_shared_gate: bool = False  # what the shared experts yield is weighed by a number per token
    expert_vectors: int = 0  # parameters of one expert's biases
    latent: LatentAttention | None = None  # None: every head has keys or shares them with others
    positions: int = 0  # rows of a learned position table
    longest_context: int = 0  # positions that rotary embeddings are laid out for
    layer_vectors: int = 0  # parameters of one layer's norms and biases
    final_vectors: int = 0  # parameters of the last norm
    windowed_layers: int = 0  # layers that attend to the last `window` tokens only
    window: int = 0
    stored_dtype: str = ""  # number format of the checkpoint, where its configuration says so
    stored: StoredWeights = AS_MULTIPLIED  # of a quantised checkpoint

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocabulary"):
            if getattr(self, name) < 1:
                raise ModelError(
                    f"{self.family}: {name} is {getattr(self, name)}, must be at least 1; mend config.json"
                )
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            told = f"{self.experts_per_token} of {self.experts} experts"
            raise ModelError(f"{self.family}: a token goes to {told}; mend config.json")
        if self.dense_layers and not (self.experts and self.dense_layers < self.layers and self.dense_intermediate):
            told = f"{self.dense_layers} of {self.layers} layers are dense beside {self.experts} experts"
            raise ModelError(f"{self.family}: {told}; mend config.json")
        if self.windowed_layers and not (self.window > 0 and self.windowed_layers <= self.layers):
            raise ModelError(f"{self.family}: {self.windowed_layers} layers see {self.window} tokens; mend config.json")

    @property
    def attention_matrices(self) -> tuple[tuple[str, int], ...]:
        """Names and parameters of one layer's matrices around attention."""
        if self.latent is not None:
            return self.latent.matrices(self.hidden, self.heads)
        query, key = self.hidden * self.heads * self.head_dim, self.hidden * self.kv_heads * self.head_dim
        return ("q_proj", query), ("k_proj", key), ("v_proj", key), ("o_proj", query)

    @property
    def cached_numbers(self) -> int:
        """Numbers that one token leaves in one layer's cache."""
        return 2 * self.kv_heads * self.head_dim if self.latent is None else self.latent.cached_numbers

    @property
    def pair_numbers(self) -> int:
        """Products for a query and a key, and for the key's value, in one layer."""
        if self.latent is None:
            return 2 * self.heads * self.head_dim
        return self.heads * (self.latent.query_dim + self.latent.value_dim)

    @property
    def matmul_parameters(self) -> int:
        """Parameters of all matrices that rows are multiplied with, every expert and the output head included."""
        return self._attention + self._routers + self._dense + self._shared + self.experts * self._expert + self._head

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the tables that rows are looked up in."""
        return (self.vocabulary + self.positions) * self.hidden

    @property
    def parameters(self) -> int:
        """Parameters stored in all; a tied output head counts once."""
        shared = self.vocabulary * self.hidden if self.is_tied else 0
        biases = self.experts * self._expert_vectors
        return self.matmul_parameters + self.embedding_parameters + self._vectors + biases - shared

    def weight_bytes(self, dtype: str) -> int:
        """Return the memory of all parameters, unquantised ones in a number format; ModelError for an unknown one."""
        size = bytes_of(dtype)
        head = 0.0 if self.is_tied else self._head_bytes(size)
        beside = self.embedding_parameters * size + self._beside_bytes(size)
        return round(beside + head + self.experts * self._expert_bytes(size))

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Return the memory of one token's keys and values in all layers; ModelError for an unknown format."""
        return self.layers * self.cached_numbers * bytes_of(dtype)

    def work(self, dtype: str, batch: int, context: int, tokens: int, *, outputs: int | None = None) -> Work:
        """Return the work of a forward of `tokens` behind `context`, per sequence; ModelError for an unknown dtype."""
        size, rows = bytes_of(dtype), batch * tokens
        logits = batch * (tokens if outputs is None else outputs) * self.vocabulary
        chosen = self._expert * self.experts_per_token
        always_bytes = self._beside_bytes(size) + self._head_bytes(size)
        expert_bytes = self._expert_bytes(size)
        multiplied = self._attention + self._routers + self._dense + self._shared + chosen
        seen = self._seen(context)
        per_pair = 2 * self.pair_numbers
        return Work(
            weight_bytes=always_bytes + expert_bytes * self._touched(rows),
            least_weight_bytes=always_bytes + expert_bytes * self.experts_per_token,
            cache_read_bytes=float(size * batch * seen * self.cached_numbers),
            cache_write_bytes=float(size * rows * self.layers * self.cached_numbers),
            logit_bytes=float(size * logits),
            activation_bytes=float(2 * size * rows * self._results),
            matmul_flops=2.0 * (rows * multiplied + logits * self.hidden),
            context_flops=float(per_pair * rows * seen),
            causal_flops=per_pair * self.layers * rows * (tokens + 1) / 2,
            narrow_flops=2.0 * (rows * self._narrow + logits * self.hidden * self.stored.head.narrow_share),
            narrow_dtype=self.stored.arithmetic,
        )

    @property
    def expert_layers(self) -> int:
        """Layers that have experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def _attention(self) -> int:
        return self.layers * sum(numbers for _, numbers in self.attention_matrices)

    @property
    def _routers(self) -> int:
        return self.expert_layers * self.hidden * (self.experts + self.has_shared_gate)

    @property
    def _dense(self) -> int:
        if self.experts:
            return self.dense_layers * self._mlp(self.dense_intermediate)
        return self.layers * self._mlp(self.intermediate)

    @property
    def _shared(self) -> int:
        return self.expert_layers * self._mlp(self.shared_intermediate)

    @property
    def _expert(self) -> int:
        return self.expert_layers * self._mlp(self.intermediate)

    @property
    def _expert_vectors(self) -> int:
        return self.expert_layers * self.expert_vectors

    @property
    def _head(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def _narrow(self) -> float:
        """Matrix parameters that a token is multiplied with in the format of quantised activations, but the head's."""
        parts = self.stored
        return (
            self._attention * parts.attention.narrow_share
            + self._dense * parts.dense.narrow_share
            + self._shared * parts.shared.narrow_share
            + self._expert * self.experts_per_token * parts.experts.narrow_share
        )

    def _beside_bytes(self, size: int) -> float:
        """Return the bytes of all that every forward reads, but the head: what is no expert and no table."""
        return (
            size * (self._routers + self._vectors)
            + self._attention * self.stored.attention.bytes_per_number(size)
            + self._dense * self.stored.dense.bytes_per_number(size)
            + self._shared * self.stored.shared.bytes_per_number(size)
        )

    def _expert_bytes(self, size: int) -> float:
        return self._expert * self.stored.experts.bytes_per_number(size) + size * self._expert_vectors

    def _head_bytes(self, size: int) -> float:
        return self._head * self.stored.head.bytes_per_number(size)

    def _mlp(self, inner: int) -> int:
        return (3 if self.is_gated else 2) * self.hidden * inner

    @property
    def _vectors(self) -> int:
        return self.layers * self.layer_vectors + self.final_vectors

    @property
    def _results(self) -> int:
        """Numbers one row leaves behind in all layers: norms and sums, query to mix, the MLPs' insides."""
        inner = self.expert_layers * (self.experts_per_token * self.intermediate + self.shared_intermediate)
        inner += self.dense_layers * self.dense_intermediate if self.experts else self.layers * self.intermediate
        attention = 4 * self.hidden + 2 * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * attention + (3 if self.is_gated else 2) * inner

    def _touched(self, rows: int) -> float:
        return self.experts * (1.0 - (1.0 - self.experts_per_token / max(self.experts, 1)) ** rows)

    def _seen(self, context: int) -> int:
        return (self.layers - self.windowed_layers) * context + self.windowed_layers * min(context, self.window)


def bytes_of(dtype: str) -> int:
    """Return the bytes of one number; raise ModelError where the format is unknown."""
    if dtype not in DTYPE_BYTES:
        raise ModelError(f"unknown number format {dtype!r}; use one of {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype]
