"""An exit of a frozen target in training: the network that imitates the deep layers, its losses, and what it reads.

The imitation network behind an exit as torch trains it, and its losses.

  own   = h[E] + U SiLU(W norm(h[E]))                                  replaces the deep layers
  deep  = sum over l of share[l] h[l],   l the last three layers       what it imitates; the shares are learned
  loss  = (1 - cos(own, deep)) + tau^2 KL(p^tau || q^tau) + CE(q, x)

p is the target's distribution and q the exit's, of the token x behind each place; tau is 2.

Source: Bajpai, Hanawal 2025, arXiv:2510.22641, names these three losses and the fusion of the last layers; weights, tau
and the network's form are not public and are this package's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import ModelError, TrainingError
from ..planner.records.image_ids import IMAGE_IDS
from ..runtime.batch.images import Image
from ..runtime.models.anatomy import text_part
from ..runtime.models.drafter_shapes import ExitShape, exit_config
from ..runtime.models.exit import DOWN, NORM, UP
from ..runtime.models.image_cache import table_rows
from ..runtime.models.loading import load_config
from ..runtime.models.vision import VisionEncoder, lens_of
from .cards import TrainedCard, save_weights
from .frozen import FrozenTarget
from .own_text import Pieces, is_said, readable
from .run import Facts, Head, LearningRequest, OwnTextRequest, Run

CHAIN = 6  # tokens of the greedy chains that are counted: LayerSkip's default


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRequest(LearningRequest):
    """The exit to train, and its texts, which may have images."""

    NEEDS: ClassVar = "an exit needs text to learn from"

    exit_layer: int  # layers of the target that draft
    width: int = 0  # of the imitation network; 0: the target's hidden size

    def __post_init__(self) -> None:
        OwnTextRequest.__post_init__(self)
        if self.exit_layer < 1 or self.width < 0:
            raise TrainingError(f"an exit lies behind 1 layer or more, and 0 is the default width, got {self}")

    @property
    def length(self) -> int:
        """As many tokens as LayerSkip drafts by default."""
        return CHAIN

    def require_target(self) -> None:
        """Raise ModelError for a target that ends before the exit."""
        layers = int(load_config(str(self.target)).get_text_config().num_hidden_layers)
        if self.exit_layer >= layers:
            raise ModelError(
                f"a target of {layers} layers has exits behind 1 to {layers - 1} of them, not {self.exit_layer}; name "
                "another with --exit-layer"
            )

    def head(self, run: Run) -> ExitTraining:
        """Return the network to train."""
        return ExitTraining(self, run)


class ExitTraining(Head):
    """An imitation network in training, on pieces of texts; `deep` are the layers, behind the exit, it imitates."""

    NOUN: ClassVar = "exit"

    def __init__(self, request: ExitRequest, run: Run) -> None:
        self._exit, self._folder, self._hash = request.exit_layer, request.target, run.target.weights_hash
        self.target = FrozenTarget(request.target, request.device)
        self.width, layers = request.width or self.target.hidden, self.target.layers
        self.deep = range(max(request.exit_layer, layers - DEEP) + 1, layers + 1)
        self._images = [each.images for each in run.asked.learned]
        most = run.texts.shape[1] if any(self._images) else request.settings.sequence_tokens
        self._pieces = Pieces(run.texts, run.asked.begins, most)
        self.numbers = self._pieces.numbered
        eps = float(self.target.config.rms_norm_eps)
        network = ImitationModule(self.target.hidden, self.width, deep=len(self.deep), eps=eps)
        self.network: ImitationModule = network.to(request.device)

    def loss(self, picked: Tensor) -> Tensor:
        """Return the loss of the pieces of the first column."""
        numbers = picked[:, 0]
        rows = self._pieces.rows[numbers.cpu()].tolist()
        return self.loss_of(self._pieces.ids(numbers), [self._images[row] for row in rows])

    def loss_of(self, ids: Tensor, images: Sequence[Sequence[Image]]) -> Tensor:
        """Return the loss of pieces (batch, columns), with each one's images, over places before emitted tokens."""
        with torch.no_grad():
            states, logits = self._read(ids[:, :-1], images)
        counts = is_said(ids[:, 1:])
        own = self.network(states[self._exit][counts][None])
        deep = self.network.fused(torch.stack([states[count][counts][None] for count in self.deep]))
        return imitation_loss(own, deep, self.said(own), logits[counts][None], ids[:, 1:][counts][None])

    def said(self, own: Tensor) -> Tensor:
        """Return logits (batch, tokens, vocabulary) of states from before the final norm."""
        return self.target.said(self.target.final_norm(own))

    def _read(self, ids: Tensor, images: Sequence[Sequence[Image]]) -> tuple[list[Tensor], Tensor]:
        if not any(images):
            return self.target.read(input_ids=readable(ids))
        return self.target.read(inputs_embeds=SeenStates(self.target.model, self._folder).vectors(ids, images))

    def save(self, folder: Path) -> None:
        """Write the exit."""
        save_exit(folder, self.network.tensors(), ExitShape(layers=self._exit, width=self.width, target=self._hash))

    def card(self, facts: Facts) -> ExitCard:
        """Return the card; the shares of deep states are of training alone, and no parameters of the drafter's."""
        facts["parameters"] = sum(tensor.numel() for tensor in self.network.tensors().values())
        return ExitCard(
            **facts, reads=(self._exit,), layers=self._exit, of_layers=self.target.layers, width=self.width,
            sequence_tokens=self._pieces.columns,
        )  # fmt: skip


class SeenStates:
    """Input vectors of texts with images, for a transformers model."""

    def __init__(self, model: PreTrainedModel, folder: Path) -> None:
        """Share the weights of a model that sees; the folder has its pixel preprocessing."""
        self._eyes = VisionEncoder(model.model, lens_of(model.config, folder))
        self._embedding: Tensor = text_part(model).base.embed_tokens.weight

    def vectors(self, ids: Tensor, images: Sequence[Sequence[Image]]) -> Tensor:
        """Return (batch, columns, hidden) for ids (batch, columns), each row's with its own images."""
        counts = [len(row) for row in images]
        before = torch.tensor(np.cumsum([0, *counts[:-1]])) * self._eyes.tokens.size
        own = ids + torch.where(ids >= IMAGE_IDS, before.to(ids.device)[:, None], 0)
        shown = [image for row in images for image in row]
        table = self._embedding
        if shown:
            table = torch.cat((table, self._eyes.rows(shown).flatten(0, 1).to(table)))
        return F.embedding(table_rows(own.clamp(min=0), len(self._embedding)), table)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCard(TrainedCard):
    """How an exit's imitation network was trained, and how good it is; `layers` of the target's `of_layers` draft."""

    layers: int
    of_layers: int
    width: int
    sequence_tokens: int

    @property
    def page(self) -> str:
        """The card for people, in Markdown."""
        return f"""# An exit after {self.layers} of {self.of_layers} layers of `{self.target}`

The target's own first {self.layers} layers draft, behind an imitation network of width {self.width}.
{self.parameters:,} parameters of its own; all others are the target's. Target's weights: `{self.target_hash[:16]}`.

**Training.** {self.steps:,} steps of {self.batch} x {self.sequence_tokens} tokens, seed {self.seed}, on
{self.origin}.
{self.course}

{self.table}"""


def save_exit(folder: Path, tensors: Mapping[str, Tensor], shape: ExitShape) -> None:
    """Write model.safetensors, bf16, and config.json."""
    save_weights(folder, tensors, exit_config(shape))


DEEP = 3  # last hidden states that are fused
TAU = 2.0  # temperature at which distributions are compared


class ImitationModule(nn.Module):
    """The trained network; it begins as zero, so that the exit starts as the target's own head on its state."""

    def __init__(self, hidden: int, width: int, *, deep: int, eps: float) -> None:
        """Begin with zero output and equal shares of `deep` hidden states; `hidden` and `width` are sizes."""
        super().__init__()
        self.norm = nn.RMSNorm(hidden, eps=eps)
        self.up, self.down = nn.Linear(hidden, width, bias=False), nn.Linear(width, hidden, bias=False)
        nn.init.zeros_(self.down.weight)
        self.shares = nn.Parameter(torch.zeros(deep))  # of training alone

    def forward(self, hidden: Tensor) -> Tensor:
        """Return (..., hidden) for hidden states behind the exit (..., hidden)."""
        own: Tensor = hidden + self.down(F.silu(self.up(self.norm(hidden))))
        return own

    def fused(self, deep: Tensor) -> Tensor:
        """Return (..., hidden): the sum of hidden states (deep, ..., hidden), weighted by shares."""
        joined: Tensor = torch.tensordot(self.shares.softmax(-1), deep.float(), dims=1)
        return joined

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors for the runtime."""
        return {NORM: self.norm.weight, UP: self.up.weight, DOWN: self.down.weight}


def imitation_loss(own: Tensor, deep: Tensor, logits: Tensor, target_logits: Tensor, wanted: Tensor) -> Tensor:
    """Return the sum of the three losses of the module's docstring, each a mean over places."""
    far = 1.0 - F.cosine_similarity(own.float(), deep.float(), dim=-1)
    said, known = ((each.float() / TAU).log_softmax(-1) for each in (logits, target_logits))
    apart = (known.exp() * (known - said)).sum(-1)
    nats = F.cross_entropy(logits.float().flatten(0, 1), wanted.flatten())
    return far.mean() + TAU**2 * apart.mean() + nats
