"""What a head's folder describes: its form, its shape, its target."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...errors import ModelError
from ...profiler.safetensors_file import read_header
from .config_file import LAYER_IDS, OWN, is_dflash, named_layers, published_reads, written_config
from .config_keys import COUNT, require_computed

if TYPE_CHECKING:  # who asks what a head is needs neither
    from transformers import LlamaConfig

Form = Literal["eagle", "eagle3"]
JOINS = "fc.weight"  # a tensor that heads have and language models do not
NEEDED = ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")  # sizes that no default stands for
PUBLISHED_READS = 3  # hidden states
LAYER: Mapping[Form, str] = {"eagle": "layers.0.", "eagle3": "midlayer."}  # how its layer's tensors begin


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadForm:
    """Which head a folder holds, and of which target.

    Source: tensor names as SafeAILab's EAGLE writes them; Li et al. 2025, arXiv:2503.01840, Sec. 3.1.
    """

    form: Form
    reads: tuple[int, ...] = ()  # how many of the target's layers each hidden state has passed; empty: as published
    target: str = ""  # ModelIdentity.weights_hash of its target; "" where nobody wrote it down
    layer: str = ""  # how its layer's tensors begin; "" as SafeAILab writes them

    @property
    def begins(self) -> str:
        """How the names of its layer's tensors begin."""
        return self.layer or LAYER[self.form]

    def reads_of(self, layers: int) -> tuple[int, ...]:
        """Return which hidden states it reads of a target with so many layers."""
        if self.reads:
            return self.reads
        return (layers,) if self.form == "eagle" else published_reads(layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape(HeadForm):
    """A feature-level head as its files describe it."""

    config: LlamaConfig  # of its one layer
    layers: int | None = None  # how many its config.json says; its target's where it was copied from there


def is_head(folder: Path) -> bool:
    """Return whether a folder holds a head and no language model; reads names of tensors only."""
    holds_join = folder.is_dir() and any(JOINS in tensors for tensors in _names(folder))
    return holds_join and not is_dflash(written_config(folder))


def has_layer_of_head(folder: Path) -> bool:
    """Return whether a folder holds the layer of an EAGLE-3 head, whatever else it lacks."""
    return any(name.startswith(LAYER["eagle3"]) for names in _names(folder) for name in names)


def head_shape(folder: Path) -> HeadShape:
    """Return the head that a folder describes; ModelError if it cannot be loaded, or needs what is not computed."""
    found = head_form(folder)
    public = _public(written_config(folder))
    return HeadShape(
        form=found.form,
        config=_layer_config(f"the head {folder}", {**public, COUNT: 1, "layer_types": ["full_attention"]}),
        reads=found.reads,
        target=found.target,
        layer=found.layer,
        layers=public.get(COUNT),
    )


def head_form(folder: Path) -> HeadForm:
    """Return which head a folder holds, without its layer's configuration.

    ModelError where it is no head, or its config.json needs what is not computed or lacks a size.
    """
    names = {name for some in _names(folder) for name in some}
    form, layer = _form_of(names)
    if JOINS not in names or form is None:
        raise ModelError(f"{folder} holds no head of EAGLE's forms; give a folder with fc.weight and one layer")
    try:
        written: Any = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder}/config.json does not describe a head: {error}; copy or train it again") from error
    if not isinstance(written, dict) or not isinstance(written.get(OWN, {}), dict):
        raise ModelError(f"{folder}/config.json does not describe a head: no dictionary; copy or train it again")
    what, said, public = f"the head {folder}", written.get(OWN, {}), _public(written)
    require_computed(what, public, form)
    if unknown := sorted(said.keys() - {"reads", "target"}):
        raise ModelError(f"{what} says {OWN}.{unknown[0]} in its config.json, which is not computed; train it again")
    reads = _reads(what, written, form)
    _require_count(what, public, len(reads) or (1 if form == "eagle" else PUBLISHED_READS))
    _require_sizes(what, public)
    return HeadForm(form=form, reads=reads, target=str(said.get("target", "")), layer=layer)


def _names(folder: Path) -> Iterator[Collection[str]]:
    for path in sorted(folder.glob("*.safetensors")):
        try:
            yield read_header(path).keys()
        except ModelError:
            continue  # whoever loads it will say so


def _public(written: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in written.items() if key != OWN}


def _form_of(names: Collection[str]) -> tuple[Form | None, str]:
    """Return a head's form by its tensors' names (None: no head), and how its layer's names begin.

    ModelOpt and vLLM write EAGLE-3's layer as EAGLE-1's; a norm of hidden states tells them apart.
    """
    if any(name.startswith(LAYER["eagle3"]) for name in names):
        return "eagle3", LAYER["eagle3"]
    first = LAYER["eagle"]
    if f"{first}hidden_norm.weight" in names:
        return "eagle3", first
    return ("eagle", first) if any(name.startswith(first) for name in names) else (None, "")


def _reads(what: str, written: Mapping[str, Any], form: Form) -> tuple[int, ...]:
    """Return how many layers each state that a head reads has passed; empty where its config.json names none.

    Public heads count the layers passed, or number the last one from 0. Lists of the second kind begin with 1, as
    SGLang reads them, and lie in `eagle_config`. ModelError where keys differ, or engines read the one key differently.
    """
    own = _counts(what, f"{OWN}.reads", written.get(OWN, {}).get("reads", []))
    layers, is_top = named_layers(dict(written))
    named = _counts(what, LAYER_IDS, layers or [])
    if named and form == "eagle":
        raise ModelError(f"{what} says {LAYER_IDS}: {layers}, and its tensors are of form EAGLE-1; leave the key out")
    left = tuple(count + 1 for count in named)
    if own and named and own not in (named, left):
        raise ModelError(f"{what} says {OWN}.reads: {list(own)} and {LAYER_IDS}: {layers}; leave the wrong one out")
    if own or not named or named[0] != 1:
        return own or named
    if is_top:
        raise ModelError(
            f"{what} says {LAYER_IDS}: {layers}, which engines count in different ways; say in its config.json how "
            f'many layers each hidden state has passed: "{OWN}": {{"reads": {list(named)}}} or {list(left)}'
        )
    return left


def _counts(what: str, key: str, said: Any) -> tuple[int, ...]:  # Any: whatever a file holds
    is_list = isinstance(said, list) and all(isinstance(one, int) and not isinstance(one, bool) for one in said)
    if not is_list or any(one < 0 for one in said):
        raise ModelError(f"{what} says {key}: {said} in its config.json, where a list of layers belongs; mend it")
    return tuple(said)


def _require_count(what: str, written: Mapping[str, Any], reads: int) -> None:
    """Raise ModelError where a head's config.json counts other hidden states than it reads."""
    nested = written.get("eagle_config")
    for part in (written, nested if isinstance(nested, dict) else {}):
        for key in ("num_aux_hidden_states", "num_eagle_features"):
            if part.get(key) not in (None, reads):
                raise ModelError(f"{what} says {key}: {part[key]} in its config.json and reads {reads} hidden states")


def _require_sizes(what: str, written: Mapping[str, Any]) -> None:
    """Raise ModelError where a head's config.json lacks a size of its layer, or has one that is no count."""
    if missing := next((key for key in NEEDED if written.get(key) is None), None):
        raise ModelError(f"{what} lacks {missing} in its config.json; copy or train it again")
    for key in (*NEEDED, COUNT, "num_key_value_heads", "head_dim", "draft_vocab_size"):
        size = written.get(key)
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise ModelError(f"{what} says {key}: {size} in its config.json, where a count belongs; mend it")


def _layer_config(what: str, written: Mapping[str, Any]) -> LlamaConfig:
    """Return the configuration of a head's layer; ModelError where no layer can have it."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    eps = written.get("rms_norm_eps", LlamaConfig.rms_norm_eps)
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 <= eps < 1:
        raise ModelError(f"{what} says rms_norm_eps: {eps} in its config.json, where a small number belongs; mend it")
    try:
        config = LlamaConfig(**written)
        LlamaRotaryEmbedding(config)
    except (ValueError, TypeError, AttributeError, KeyError, ArithmeticError, StrictDataclassError) as error:
        said = " ".join(str(error).split())
        raise ModelError(f"the config.json of {what} describes no layer: {said}; copy or train it again") from error
    heads, pairs = config.num_attention_heads, config.num_key_value_heads or config.num_attention_heads
    if heads % pairs or (not config.head_dim and config.hidden_size % heads) or int(config.head_dim or 2) % 2:
        raise ModelError(
            f"{what} says num_attention_heads: {heads}, num_key_value_heads: {pairs}, head_dim: "
            f"{config.head_dim} and hidden_size: {config.hidden_size} in its config.json, which do not divide; mend it"
        )
    return config
