"""Train a head of EAGLE's forms on a frozen target: the job behind `spectune train eagle`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel

from ..errors import ModelError, TrainingError
from ..profiler.records.model import ModelIdentity
from ..runtime.models.config_file import OWN
from ..runtime.models.eagle_shape import Form, HeadShape
from .cards import Card, save_weights
from .eagle_module import HeadModule, feature_loss, training_time_loss
from .frozen import FrozenTarget
from .own_run import LearningRequest, OwnRun, OwnTextRequest, require_text_target, trained
from .own_text import BLANK, Ids, Pieces, is_said, readable
from .run_folder import LESS_TEXT, Progress, tells_of_room

NOISE = 0.2  # of features in training form "eagle": uniform, this times 512 / columns wide; as published


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleRequest(LearningRequest):
    """The head to train, and its texts."""

    NEEDS: ClassVar = "a head needs text to learn from"

    form: Form = "eagle3"
    test_steps: int = 7  # of the training-time test of form "eagle3"
    draft_vocabulary: int = 0  # of form "eagle3"; 0: a quarter of the target's
    intermediate: int = 0  # width of the layer's MLP; 0: the target's
    reads: tuple[int, ...] = ()  # of form "eagle3": layers behind each state it reads; empty: as published

    def __post_init__(self) -> None:
        OwnTextRequest.__post_init__(self)
        if self.form == "eagle3" and not 1 <= self.test_steps < self.settings.sequence_tokens - 1:
            raise TrainingError(
                f"the training-time test takes 1 step up to 2 fewer than a piece has tokens, got {self.test_steps} of "
                f"{self.settings.sequence_tokens}; lower --test-steps or raise --piece"
            )
        if min(self.draft_vocabulary, self.intermediate) < 0:
            raise TrainingError(f"sizes must be at least 0, which is the default, got {self}")
        if self.reads and self.form == "eagle":
            raise TrainingError(
                f"form eagle reads the last hidden state, not {self.reads}; leave it open, or take eagle3"
            )


@tells_of_room(LESS_TEXT)
def train_eagle(request: EagleRequest, folder: Path, *, fresh: bool = False, progress: Progress) -> HeadCard:
    """Train a head, save it with its card in a folder, and return the card; see `trained`."""
    require_text_target(request.target)
    return trained(
        request, folder, lambda run: _learned(request, run, folder), request.test_steps, fresh=fresh, progress=progress
    )


def _learned(request: EagleRequest, run: OwnRun, folder: Path) -> HeadCard:
    """Train and save a head; on return its memory is free."""
    pieces = Pieces(run.texts, run.asked.begins, request.settings.sequence_tokens)
    job = _EagleTraining(request, run.texts)
    torch.manual_seed(request.settings.seed)
    head = job.new_head()

    def loss(picked: Tensor) -> Tensor:
        return job.loss(head, pieces.ids(picked[:, 0]))

    losses = run.fit("head", head, loss, pieces.numbered, replace(request.settings, sequence_tokens=1))
    save_head(folder, head, job.shape(run.target), job.draft_ids)
    return HeadCard(
        **run.facts(head.parameters(), losses),
        form=request.form,
        reads=job.reads,
        draft_vocabulary=len(job.draft_ids) if request.form == "eagle3" else int(job.config.vocab_size),
        sequence_tokens=request.settings.sequence_tokens,
        test_steps=request.test_steps if request.form == "eagle3" else 1,
    )


class _EagleTraining:
    def __init__(self, request: EagleRequest, texts: Ids) -> None:
        self._request = request
        self._target = FrozenTarget(request.target, request.device)
        self.config, layers = head_config(self._target.model, request.intermediate), self._target.layers
        self.reads = HeadShape(form=request.form, config=self.config, reads=request.reads).reads_of(layers)
        vocabulary = int(self.config.vocab_size)
        if request.form == "eagle3" and not 0 < min(self.reads) <= max(self.reads) < layers:
            raise ModelError(
                f"of a target of {layers} layers a head reads states after 1 to {layers - 1} of them, not "
                f"{self.reads}; name others with --reads, or use form eagle"
            )
        wanted = request.draft_vocabulary or max(vocabulary // 4, 1)
        self.draft_ids = frequent_ids(texts, vocabulary, wanted).to(request.device)

    def new_head(self) -> HeadModule:
        """Return a head with random weights; its language-model head begins as the target's own rows."""
        count = len(self.draft_ids)
        head = HeadModule(self._request.form, self.config, reads=len(self.reads), draft_vocabulary=count)
        if head.form == "eagle3":
            with torch.no_grad():
                head.lm_head.weight.copy_(self._target.model.get_output_embeddings().weight[self.draft_ids.cpu()])
        return head.to(self._request.device)

    def loss(self, head: HeadModule, batch: Tensor) -> Tensor:
        """Return the loss of pieces (batch, tokens + 1), over columns from the second on whose next token is text."""
        ids, counts = readable(batch), is_said(batch[:, 2:])
        with torch.no_grad():
            said = self._target.model(input_ids=ids[:, :-1], output_hidden_states=True)
            hidden = torch.cat([said.hidden_states[count] for count in self.reads], dim=-1)
            embedded = self._target.embedded(ids[:, 1:-1])
        logits = said.logits[:, 1:]
        if head.form == "eagle3":
            steps = self._request.test_steps
            return training_time_loss(head, embedded, hidden[:, :-1], logits, counts, self.draft_ids, steps)
        spread = NOISE * 512 / embedded.shape[1]
        noise = (torch.rand(hidden[:, :-1].shape) - 0.5) * spread  # drawn on the host, whose generator is kept
        features = hidden[:, :-1] + noise.to(hidden)
        own = head(embedded, features, [])[counts]
        return feature_loss(own, hidden[:, 1:][counts], self._target.said(own), logits[counts])

    def shape(self, identity: ModelIdentity) -> HeadShape:
        return HeadShape(form=self._request.form, config=self.config, reads=self.reads, target=identity.weights_hash)


def head_config(target: PreTrainedModel, intermediate: int = 0) -> LlamaConfig:
    """Return the shape of a head's layer: that of the target's layers."""
    config = target.config
    heads = int(config.num_attention_heads)
    rope = getattr(config, "rope_parameters", None) or {}
    return LlamaConfig(
        vocab_size=int(config.vocab_size),
        hidden_size=int(config.hidden_size),
        intermediate_size=intermediate or int(config.intermediate_size),
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        max_position_embeddings=int(config.max_position_embeddings),
        rms_norm_eps=float(config.rms_norm_eps),
        rope_parameters={"rope_type": "default", "rope_theta": float(rope.get("rope_theta", 10000.0))},
        tie_word_embeddings=False,
    )


def frequent_ids(texts: Ids, vocabulary: int, count: int) -> Tensor:
    """Return (count,) ids of the most frequent tokens, ascending; of equally frequent ones the lower ids."""
    counts = np.bincount(texts[texts != BLANK], minlength=vocabulary)
    best = np.argsort(-counts, kind="stable")[: min(count, vocabulary)]
    return torch.from_numpy(np.sort(best))


ARCHITECTURES = {"eagle": "LlamaForCausalLMEagle", "eagle3": "LlamaForCausalLMEagle3"}
NAMES = {"eagle": "EAGLE-1/2", "eagle3": "EAGLE-3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadCard(Card):
    """How a head was trained, and how good it is."""

    form: str
    draft_vocabulary: int
    sequence_tokens: int
    test_steps: int

    @property
    def page(self) -> str:
        """The card for people, in Markdown."""
        return f"""# A head of form {NAMES[self.form]} for `{self.target}`

Reads the target's hidden states after {", ".join(map(str, self.reads))} layers. {self.parameters:,} parameters of its
own, {self.draft_vocabulary:,} tokens it can draft. Target's weights: `{self.target_hash[:16]}`.

**Training.** {self.steps:,} steps of {self.batch} x {self.sequence_tokens} tokens, seed {self.seed}, on
{self.origin}.
Steps of the training-time test: {self.test_steps}. {self.course}

{self.table}"""


def save_head(folder: Path, head: HeadModule, shape: HeadShape, draft_ids: Tensor) -> None:
    """Write model.safetensors, bf16, and config.json; `draft_ids` are those of form "eagle3", increasing."""
    tensors = dict(head.state_dict())
    config = shape.config.to_dict() | {"architectures": [ARCHITECTURES[shape.form]]}
    if shape.form == "eagle3":
        ids = draft_ids.cpu()
        can_draft = torch.zeros(int(shape.config.vocab_size or 0), dtype=torch.bool)
        can_draft[ids] = True
        tensors |= {"d2t": ids - torch.arange(len(ids)), "t2d": can_draft}
        config["draft_vocab_size"] = len(ids)
    config[OWN] = {"reads": list(shape.reads), "target": shape.target}
    save_weights(folder, tensors, config)
