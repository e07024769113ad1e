"""A target and a drafter as their files describe them: read once, when a check needs it; no weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ...profiler.gguf_file import is_gguf
from ...runtime.models.config_file import written_config
from ...runtime.models.eagle_shape import HeadShape, head_shape
from ...runtime.models.formats import Role, draft_role
from ...runtime.models.loading import load_config, load_tokenizer
from ...runtime.models.stored_tensors import TensorHeader, stored_tensors
from ...runtime.models.target_sizes import TargetSizes, sizes_in
from ...runtime.models.vocabulary import has_tokenizer


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A target and one of its drafters; every property raises ModelError where files cannot be read."""

    name: str  # of the drafter
    target: Path
    drafter: Path

    @cached_property
    def role(self) -> Role:
        """What the drafter is."""
        return draft_role(self.drafter)

    @cached_property
    def target_config(self) -> PreTrainedConfig:
        """The configuration of the target's language model."""
        return load_config(str(self.target)).get_text_config()

    @cached_property
    def drafter_config(self) -> PreTrainedConfig:
        """The configuration of a drafter that is a language model."""
        return load_config(str(self.drafter)).get_text_config()

    @cached_property
    def sizes(self) -> TargetSizes:
        """The target's sizes, for drafters beside it."""
        return sizes_in(load_config(str(self.target)), str(self.target))

    @cached_property
    def head(self) -> HeadShape:
        """The shape of a drafter that is a head of EAGLE's forms."""
        return head_shape(self.drafter)

    @cached_property
    def written(self) -> Mapping[str, Any]:  # Any: JSON values
        """The drafter's config.json; empty of a GGUF file."""
        return {} if is_gguf(self.drafter) else written_config(self.drafter)

    @cached_property
    def stored(self) -> Mapping[str, TensorHeader]:
        """The drafter's tensors; none of a GGUF file."""
        return {} if is_gguf(self.drafter) else stored_tensors(self.drafter)

    @cached_property
    def tokenizers(self) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase] | None:
        """The tokenizers of target and drafter; None where one of them has none."""
        places = str(self.target), str(self.drafter)
        if not all(has_tokenizer(place) for place in places):
            return None
        return load_tokenizer(places[0]), load_tokenizer(places[1])
