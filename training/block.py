"""Block drafters in training: Medusa, CTC and SpecFormer say many tokens in one forward.

An anchor is a place t of a text whose newest token is x[t + 1]: a drafter reads the target's state behind x[t], and
drafts x[t + 2], x[t + 3], ...
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import ModelError, TrainingError
from ..runtime.models.drafter_shapes import KINDS, BlockShape, Kind, block_config
from .cards import TrainedCard, save_weights
from .ctc import CtcModule, ctc_loss
from .frozen import FrozenTarget
from .medusa import MedusaModule, medusa_loss
from .own_text import BLANK, readable
from .run import Facts, Head, LearningRequest, OwnTextRequest, Run
from .specformer import SpecFormerModule, specformer_loss
from .states import States

AHEAD = 2  # places from an anchor to the first token that is said
NAMES = {"medusa": "Medusa heads", "ctc": "A CTC drafter", "specformer": "A SpecFormer"}

BlockModule = MedusaModule | CtcModule | SpecFormerModule


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRequest(LearningRequest):
    """The drafter to train, and its texts; `sequence_tokens` are neighbouring places that are learned from together."""

    kind: Kind
    depth: int  # tokens it learns to say
    frames: int = 0  # of kind "ctc"
    intermediate: int = 0  # of kinds "ctc" and "specformer", width of the MLP; 0: the target's
    width: int = 0  # of kind "specformer", of what stands for a committed token; 0: the target's
    published: bool = False  # of kind "specformer": it reads the embedding of the token its states belong to
    dtype: str = "float32"

    def __post_init__(self) -> None:
        OwnTextRequest.__post_init__(self)
        if self.kind not in KINDS:
            raise TrainingError(f"a block drafter of kind {self.kind!r} is not trained here; use {', '.join(KINDS)}")
        longest = self.own.prompt_tokens + self.own.new_tokens - self.depth - AHEAD
        if self.depth < 1 or longest < 1:
            raise TrainingError(f"texts of the target must be longer than what is said at once, got {self}")
        if self.kind == "ctc" and self.frames < self.depth:
            raise TrainingError(f"a CTC drafter needs as many frames as tokens or more, got {self}; raise --frames")
        if min(self.width, self.intermediate) < 0:
            raise TrainingError(f"widths must be at least 0, which is the target's, got {self}")

    @property
    def length(self) -> int:
        """As many tokens as it says at once."""
        return self.depth

    def head(self, run: Run) -> BlockTraining:
        """Return the drafter to train."""
        return BlockTraining(self, run)


class BlockTraining(Head):
    """A block drafter in training: it learns at anchors, places over all texts with enough tokens behind."""

    def __init__(self, request: BlockRequest, run: Run) -> None:
        self._request, self._length = request, run.texts.shape[1]
        self._target = FrozenTarget(request.target, request.device)
        self._texts = readable(torch.from_numpy(run.texts)).to(request.device)
        self.shape = _shape(request, self._target, run.target.weights_hash)
        self._states = States(self._target, run.texts, self.shape.reads, run.kept, run.progress)
        last = (run.texts != BLANK).sum(axis=1, keepdims=True) - request.depth - AHEAD
        places = np.arange(self._length)
        self.numbers = np.flatnonzero((places >= 1) & (places <= last))  # the first token has no state before it
        self.together = request.settings.sequence_tokens
        self.network: BlockModule = self._new_drafter().to(request.device)

    def loss(self, picked: Tensor) -> Tensor:
        """Return the loss of neighbouring anchors (batch, n) within the text in which each row begins."""
        text, place = picked // self._length, picked % self._length
        place = torch.where(text == text[:, :1], place, place[:, :1])  # an anchor of the next text: the row's first
        rows = text[:, :1]
        ahead = torch.arange(AHEAD, AHEAD + self._request.depth, device=picked.device)
        wanted = self._texts[rows.unsqueeze(2), place.unsqueeze(2) + ahead].flatten(0, 1)
        losses = {"medusa": medusa_loss, "ctc": ctc_loss, "specformer": specformer_loss}
        return losses[self._request.kind](self.said(rows[:, 0], place), wanted)

    def said(self, rows: Tensor, place: Tensor) -> Tensor:
        """Return scores (batch * n, block, any) at places (batch, n) of texts (batch,)."""
        return self.network.said(self._target, self._texts[rows], self._states.read(rows), place)

    def save(self, folder: Path) -> None:
        """Write the drafter."""
        save_block(folder, self.network.tensors(), self.shape)

    def card(self, facts: Facts) -> BlockCard:
        """Return the card."""
        shape = self.shape
        return BlockCard(
            **facts, kind=shape.kind, reads=shape.reads, depth=shape.depth, frames=shape.frames,
            anchors=self.together + 1,
        )  # fmt: skip

    def _new_drafter(self) -> BlockModule:
        if self.shape.kind == "medusa":
            return MedusaModule(self._target.hidden, self.shape.depth)
        return (CtcModule if self.shape.kind == "ctc" else SpecFormerModule)(self._target.model, self.shape)


def _shape(request: BlockRequest, target: FrozenTarget, weights_hash: str) -> BlockShape:
    kind, inner = request.kind, request.intermediate or int(target.config.intermediate_size)
    return BlockShape(
        kind=kind,
        depth=request.depth,
        reads=_reads(request, target.layers),
        target=weights_hash,
        frames=request.frames if kind == "ctc" else 0,
        intermediate=0 if kind == "medusa" else inner,
        width=(request.width or target.hidden) if kind == "specformer" else 0,
    )


def _reads(request: BlockRequest, layers: int) -> tuple[int, ...]:
    """Return after how many of the target's layers the drafter reads states."""
    if request.kind != "specformer":
        return (layers,)
    if layers < 2:
        raise ModelError(f"SpecFormer reads states from inside a target, and this one has {layers} layer; train medusa")
    inside = {layers // 2, layers - 1, layers}
    return tuple(sorted(inside | {0} if request.published else inside))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCard(TrainedCard):
    """How a block drafter was trained, and how good it is; `frames` is 0 where it has none."""

    kind: str
    depth: int
    frames: int
    anchors: int

    @property
    def page(self) -> str:
        """The card for people, in Markdown."""
        frames = f" {self.frames} frames." if self.frames else ""
        return f"""# {NAMES[self.kind]} for `{self.target}`

Says up to {self.depth} tokens in one forward.{frames} Reads the target's hidden states after
{", ".join(map(str, self.reads))} layers. {self.parameters:,} parameters of its own; the language-model head is the
target's. Target's weights: `{self.target_hash[:16]}`.

**Training.** {self.steps:,} steps of {self.batch} x {self.anchors} places in texts, seed {self.seed}, on
{self.origin}.
{self.course}

{self.table}"""


def save_block(folder: Path, tensors: Mapping[str, Tensor], shape: BlockShape) -> None:
    """Write model.safetensors, bf16, and config.json."""
    save_weights(folder, tensors, block_config(shape))
