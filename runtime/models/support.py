"""Refuse models for which a tree of drafts cannot be verified exactly, before they decode anything wrong."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature

from transformers import PreTrainedModel

from ...errors import ModelError
from .configuration import FULL, SLIDING, declared
from .vision import sees

SEEING = ("llama", "mistral", "qwen2", "qwen3")  # kinds of language models that images may be shown to
ATTENTIONS = ("eager", "sdpa")  # those of transformers that obey a mask of any form


def require_supported(model: PreTrainedModel, location: str) -> None:
    """Raise ModelError unless every layer attends to cached tokens by mask and position alone."""
    obstacle = next(_obstacles(model), None)
    if obstacle is not None:
        raise ModelError(
            f"{location} is of type {model.config.model_type}, which {obstacle}: drafts could not be verified exactly; "
            "use a model whose layers attend to all cached tokens, or to a window of the last ones"
        )


def _obstacles(model: PreTrainedModel) -> Iterator[str]:
    """Yield the obstacles, each as the end of a sentence."""
    config = model.config.get_text_config()
    if sees(model.config) and config.model_type not in SEEING:
        yield f"shows images to a language model of kind {config.model_type}, which is not one of {', '.join(SEEING)}"
    others = sorted(set(declared(config, "layer_types") or ()) - {FULL, SLIDING})
    if others:
        yield f"has layers of kind {', '.join(others)}"
    if model._is_stateful:
        yield "keeps a recurrent state, which cannot be taken back when a draft is rejected"
    if "local" in (getattr(config, "attention_layers", None) or ()):
        yield "has local attention that counts cache columns, not places in the text"
    if declared(config, "use_bidirectional_attention") in (True, "all"):
        yield "lets tokens see what follows them"
    if declared(config, "kv_lora_rank"):
        yield "caches compressed keys and values"
    if declared(config, "num_kv_shared_layers"):
        yield "shares keys and values among layers"
    if declared(config, "alibi") or not _takes_positions(model):
        yield "cannot be told the places of its tokens"
    if config._attn_implementation not in ATTENTIONS:
        yield f"runs attention {config._attn_implementation}, which obeys no mask of a tree"


def _takes_positions(model: PreTrainedModel) -> bool:
    return any("position_ids" in signature(part.forward).parameters for part in (model, model.base_model))
