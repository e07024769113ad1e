"""A feature-level head of EAGLE's forms: one layer that reads the target's hidden states beside the text.

The token at place t is read with the *feature* of the token before it: the target's hidden states along committed text,
and inside a draft what the head itself computed for that token. So

    f[t] = layer(join(embedding(x[t]), f[t - 1]))            and f[t] predicts x[t + 1].

The first token of a text has no feature before it: a head never reads it, and its column is never seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from ...planner.kernels.arrays import Floats32, Ints
from ...planner.records.image_ids import IMAGE_IDS
from .anatomy import NORMS, Anatomy, Sight, named_layer, turns_of
from .eagle_shape import HeadShape
from .forward import WORD, ForwardInput, TreeMask, UnlaidBeam, UnlaidNodes
from .head_tensors import TABLES, draft_ids, require_weights_fit
from .kernels.whole_head import TargetStates
from .kv_cache import FeatureCache, KeyValueCache
from .lean import LeanModel, features_along, taken
from .norm import Norm
from .places import rows_of
from .projection import Projection
from .stored_tensors import as_numbers
from .target_sizes import sizes_of
from .whole_head import WholeHead, whole_head_of

NEVER = -1e30  # logit of a token outside the draft vocabulary: finite, so that scores of whole paths stay numbers
UNSEEN = -1e4  # added to the score of the first column: its weight is 0 beside any other
NO_PARENTS: Ints = np.empty((0, 0), dtype=np.int64)


class EagleHead:
    """A head after its target, as a causal language model with a separate cache.

    `forward` continues drafts with the features that the head left at the parents; `read` reads committed text with
    given features. `reads` counts the target's layers before each state it reads.

    Source: Li et al. 2024, EAGLE, arXiv:2401.15077, Sec. 4.1 (form "eagle", also of EAGLE-2, arXiv:2406.16858); Li et
    al. 2025, EAGLE-3, arXiv:2503.01840, Sec. 3.1 (form "eagle3").
    """

    regime = "eager"
    gallery = None

    def __init__(self, weights: Mapping[str, Tensor], shape: HeadShape, target: LeanModel) -> None:
        """Take tensors by their published names; ModelError where one is missing, unknown, or unfit for the target."""
        self.dtype, self.device, self.attention = target.dtype, target.device, "sdpa"
        self.vocabulary, self.longest_context = target.vocabulary, target.longest_context
        sizes = sizes_of(target.anatomy)
        require_weights_fit(weights, shape, sizes)
        self.reads = shape.reads_of(sizes.layers)
        self._target, self._form = target, shape.form
        like = target.anatomy.embedding
        tensors = {name: as_numbers(weight, like) for name, weight in weights.items() if name not in TABLES}
        self._joins = Projection(tensors["fc.weight"], tensors.get("fc.bias"))
        self._embedding = tensors.get("embed_tokens.weight")
        self._body = LeanModel(_anatomy(tensors, shape, target))
        self.reads_trees = self._body.reads_trees
        self._token_norm, self._feature_norm = _input_norms(tensors, shape)
        drafted = draft_ids("the head", weights, shape, target.vocabulary)
        self._drafted = None if drafted is None else drafted.to(self.device)
        self._whole = self._whole_forward()

    def _whole_forward(self) -> WholeHead | None:
        """Return the forwards as one call; None where kernels do not take them, or the form is another."""
        own, anatomy = self._target.anatomy, self._body.anatomy
        if self._form != "eagle3" or own.embedding_scale is not None or own.gallery is not None:
            return None
        embedding = own.embedding if self._embedding is None else self._embedding
        norms = self._token_norm, self._feature_norm
        return whole_head_of(anatomy, self._joins, norms, embedding, self._drafted)

    def new_cache(self, slots: int, capacity: int) -> FeatureCache:
        """Return an empty cache for that many sequences of at most `capacity` tokens."""
        return self._body.new_feature_cache(slots, capacity, ())

    @torch.inference_mode()
    def forward(self, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Return logits like any model's, by the feature of a token's parent: the last one before it that it sees."""
        assert isinstance(cache, FeatureCache)
        step = self._as_read(step)
        parents = parents_of(step)
        if self._whole is not None:
            logits = self._whole(step, cache, None, parents.numpy())
            if logits is not None:
                return self._over_all(logits)
        slots = torch.arange(step.first_slot, step.first_slot + len(step.tokens), device=self.device)
        return self._run(cache.features[slots.unsqueeze(1), parents].flatten(0, 1), step, cache)

    @torch.inference_mode()
    def read(self, features: Tensor, step: ForwardInput, cache: KeyValueCache) -> Tensor:
        """Do `forward` for committed text, with features (batch, n, len(reads) * hidden) as for `RoundHead.keep`."""
        assert isinstance(cache, FeatureCache)
        step, flat = self._as_read(step), features.flatten(0, 1)
        if self._whole is not None:
            logits = self._whole(step, cache, flat, NO_PARENTS)
            if logits is not None:
                return self._over_all(logits)
        return self._run(self.featured(flat), step, cache)

    def featured(self, states: Tensor) -> Tensor:
        """Return features (rows, hidden) of the target's states (rows, len(reads) * hidden)."""
        return self._target.final_norm(states) if self._form == "eagle" else self._joins(states)

    def can_draft(self, cache: KeyValueCache, target: TargetStates) -> bool:
        """Return whether drafts over such caches are one call, which is loaded then."""
        if self._whole is None or not isinstance(cache, FeatureCache):
            return False
        return self._whole.load_drafting(cache, target)

    def found(
        self, nodes: UnlaidNodes, count: int, cache: KeyValueCache, target: TargetStates
    ) -> tuple[Ints, Floats32, bool] | None:
        """Forward new tokens; return the likeliest children; see `FindsChildren.found`."""
        assert isinstance(cache, FeatureCache)
        return None if self._whole is None else self._whole.found(nodes, count, cache, target)

    def grown(self, beam: UnlaidBeam, cache: KeyValueCache, target: TargetStates) -> tuple[Ints, bool] | None:
        """Read new tokens, and grow a beam after them; see `FindsChildren.grown`."""
        assert isinstance(cache, FeatureCache)
        return None if self._whole is None else self._whole.grown(beam, cache, target)

    def along(self, text: Sequence[int]) -> Tensor:
        """Return (n, len(reads) * hidden): what `read` takes with each token; the target reads the text once."""
        return features_along(self._target, self.reads, text)

    def _run(self, features: Tensor, step: ForwardInput, cache: FeatureCache) -> Tensor:
        """Return logits after tokens with features (batch * n, hidden); write the head's features."""
        embedded = self._embed(step.tokens)
        if self._form == "eagle":
            hidden = attending = self._joins(torch.cat((embedded, features), dim=-1))
        else:
            hidden = features
            attending = torch.cat((self._token_norm(embedded), self._feature_norm(features)), dim=-1)
        place = self._body.place(_without_first(step), cache, first=min(1, step.seen - 1))
        own = self._body.through(self._body.anatomy.layers[0], hidden, attending, cache.states[0], place)
        cache.write_features(rows_of(step, cache), own)
        return self._logits(taken(step, own)).view(len(step.tokens), -1, self.vocabulary)

    def _as_read(self, step: ForwardInput) -> ForwardInput:
        """Return a forward's input, with a mask where no kernel reads its tree."""
        if step.tree is None or self.reads_trees:
            return step
        return replace(step, bias=step.tree.bias(step.seen, self.dtype), tree=None)

    def _embed(self, tokens: Tensor) -> Tensor:
        if self._embedding is None:
            return self._target.embed(tokens)
        gallery = self._target.gallery
        if gallery is not None:  # a table of its own has no images
            tokens = tokens.masked_fill(tokens >= IMAGE_IDS, gallery.tokens.placeholder)
        return F.embedding(tokens.reshape(-1), self._embedding)

    def _logits(self, own: Tensor) -> Tensor:
        if self._form == "eagle":
            return self._target.logits(own)
        return self._over_all(self._body.normed_logits(own))

    def _over_all(self, logits: Tensor) -> Tensor:
        """Return logits (..., draft vocabulary) as (..., vocabulary)."""
        if self._drafted is None:
            return logits
        never = max(NEVER, torch.finfo(logits.dtype).min)
        whole = logits.new_full((*logits.shape[:-1], self.vocabulary), never)
        return whole.index_copy_(-1, self._drafted, logits)


def _without_first(step: ForwardInput) -> ForwardInput:
    """Hide column 0, but from tokens that see nothing else; kernels that read a tree do so themselves."""
    if step.bias is None:
        return step
    bias = step.bias.clone()
    bias[:, :, 0] += UNSEEN
    return replace(step, bias=bias)


def _anatomy(tensors: Mapping[str, Tensor], shape: HeadShape, target: LeanModel) -> Anatomy:
    config, own = shape.config, target.anatomy
    heads, size = int(config.num_attention_heads), _head_size(config)
    turns = turns_of(LlamaRotaryEmbedding(config).to(own.embedding.device), own.longest_context, own.embedding[0])
    norms = (NORMS[1], NORMS[1])  # the first is not used: see _run
    is_first = shape.form == "eagle"
    return replace(
        own,
        heads=heads,
        kv_heads=int(config.num_key_value_heads or heads),
        size=size,
        embedding_scale=None,
        sights=(Sight(window=None, turns=turns),),
        layers=(named_layer(tensors, shape.begins, norms, float(config.rms_norm_eps), size),),
        final_norm=own.final_norm if is_first else _norm(tensors, "norm.weight", config),
        head=own.head if is_first else Projection(tensors["lm_head.weight"]),
        attention_cap=None,
        logit_cap=None,
        gallery=None,
        hides_first=True,
    )


def _input_norms(tensors: Mapping[str, Tensor], shape: HeadShape) -> tuple[Norm, Norm]:
    """Return the norms of embedding and feature; any for form "eagle", which has none."""
    names = ("input_layernorm", "hidden_norm") if shape.form == "eagle3" else ("post_attention_layernorm",) * 2
    first, second = (_norm(tensors, f"{shape.begins}{name}.weight", shape.config) for name in names)
    return first, second


def _norm(tensors: Mapping[str, Tensor], name: str, config: LlamaConfig) -> Norm:
    return Norm(weight=tensors[name], eps=float(config.rms_norm_eps))


def _head_size(config: LlamaConfig) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def parents_of(step: ForwardInput) -> Tensor:
    """Return (batch, n): the cache column of the last token before each that it sees; 0 where there is none."""
    if step.tree is not None:
        return _parents_in(step.tree, step.columns)
    if step.bias is None:
        return (step.columns - 1).clamp(min=0)
    columns = torch.arange(step.seen, device=step.columns.device)
    is_before = (step.bias > -torch.inf) & (columns < step.columns.unsqueeze(2))
    return torch.where(is_before, columns, 0).amax(dim=-1)


def _parents_in(tree: TreeMask, columns: Tensor) -> Tensor:
    starts, lanes = tree.starts.unsqueeze(1), torch.arange(WORD, device=columns.device)
    is_seen = ((tree.bits.unsqueeze(3) >> lanes) & 1).flatten(2).bool()
    places = torch.arange(is_seen.shape[2], device=columns.device)
    is_before = is_seen & (places < (columns - starts).unsqueeze(2))
    return (starts + torch.where(is_before, places, -1).amax(dim=2)).clamp(min=0)  # -1: the last of the text before it
