"""Train a block drafter on a frozen target: the job behind `spectune train medusa`, `ctc` and `specformer`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ModelError, TrainingError
from ..planner.kernels.arrays import Ints
from ..profiler.records.model import ModelIdentity
from ..runtime.models.drafter_shapes import BlockShape, Kind, block_config
from .block_module import CtcModule, MedusaModule, SpecFormerModule, ctc_loss, medusa_loss, specformer_loss
from .cards import Card, save_weights
from .frozen import FrozenTarget
from .own_run import LearningRequest, OwnRun, OwnTextRequest, require_text_target, trained
from .own_text import BLANK, Ids, readable
from .run_folder import LESS_TEXT, Progress, tells_of_room

READ_TOGETHER = 8  # texts whose states are computed at once
AHEAD = 2  # places from an anchor to the first token that is said

Floats = NDArray[np.float32]
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
        longest = self.own.prompt_tokens + self.own.new_tokens - self.depth - AHEAD
        if self.depth < 1 or longest < 1:
            raise TrainingError(f"texts of the target must be longer than what is said at once, got {self}")
        if self.kind == "ctc" and self.frames < self.depth:
            raise TrainingError(f"a CTC drafter needs as many frames as tokens or more, got {self}; raise --frames")
        if min(self.width, self.intermediate) < 0:
            raise TrainingError(f"widths must be at least 0, which is the target's, got {self}")


@tells_of_room(LESS_TEXT)
def train_block(request: BlockRequest, folder: Path, *, fresh: bool = False, progress: Progress) -> BlockCard:
    """Train a block drafter, save it with its card in a folder, and return the card; see `trained`."""
    require_text_target(request.target)
    return trained(
        request, folder, lambda run: _learned(request, run, folder), request.depth, fresh=fresh, progress=progress
    )


def _learned(request: BlockRequest, run: OwnRun, folder: Path) -> BlockCard:
    """Train and save a drafter; on return its memory is free."""
    job = _BlockTraining(request, run.texts, run.partial, run.progress)
    torch.manual_seed(request.settings.seed)
    drafter, shape = job.new_drafter(run.target), job.shape(run.target)
    losses = run.fit("drafter", drafter, lambda batch: job.loss(drafter, batch), job.anchors, request.settings)
    save_block(folder, drafter.tensors(), shape)
    return BlockCard(
        **run.facts(drafter.parameters(), losses),
        kind=shape.kind,
        reads=shape.reads,
        depth=shape.depth,
        frames=shape.frames,
        anchors=request.settings.sequence_tokens + 1,
    )


class _BlockTraining:
    """The frozen target and a drafter in training; `anchors` are places, over all texts, with enough tokens behind."""

    def __init__(self, request: BlockRequest, texts: Ids, partial: Path, progress: Progress) -> None:
        self._request, self._length = request, texts.shape[1]
        self._target = FrozenTarget(request.target, request.device)
        self._texts = readable(torch.from_numpy(texts)).to(request.device)
        self._reads = _reads(request, self._target.layers)
        self._states = _states(self._target, self._reads, self._texts, partial, progress)
        last = (texts != BLANK).sum(axis=1, keepdims=True) - request.depth - AHEAD
        places = np.arange(self._length)
        is_anchor = (places >= 1) & (places <= last)  # the first token has no state before it
        self.anchors: Ints = np.flatnonzero(is_anchor)

    def shape(self, identity: ModelIdentity) -> BlockShape:
        config, request = self._target.config, self._request
        inner = request.intermediate or int(config.intermediate_size)
        width = request.width or self._target.hidden
        return BlockShape(
            kind=request.kind,
            depth=request.depth,
            reads=self._reads,
            target=identity.weights_hash,
            frames=request.frames if request.kind == "ctc" else 0,
            intermediate=0 if request.kind == "medusa" else inner,
            width=width if request.kind == "specformer" else 0,
        )

    def new_drafter(self, identity: ModelIdentity) -> BlockModule:
        if self._request.kind == "medusa":
            return MedusaModule(self._target.hidden, self._request.depth).to(self._request.device)
        made = CtcModule if self._request.kind == "ctc" else SpecFormerModule
        return made(self._target.model, self.shape(identity)).to(self._request.device)

    def loss(self, drafter: BlockModule, batch: Tensor) -> Tensor:
        """Return the loss of neighbouring anchors (batch, n) within the text in which each row begins."""
        text, place = batch // self._length, batch % self._length
        is_same = text == text[:, :1]
        place = torch.where(is_same, place, place[:, :1])  # an anchor of the next text: the row's first again
        rows = text[:, :1]
        ahead = torch.arange(AHEAD, AHEAD + self._request.depth, device=batch.device)
        wanted = self._texts[rows.unsqueeze(2), place.unsqueeze(2) + ahead].flatten(0, 1)
        losses = {"medusa": medusa_loss, "ctc": ctc_loss, "specformer": specformer_loss}
        return losses[self._request.kind](self.said(drafter, rows, place), wanted)

    def said(self, drafter: BlockModule, rows: Tensor, place: Tensor) -> Tensor:
        """Return logits (batch * n, block, scores), for CTC log-probabilities, blank last, at places (batch, n)."""
        if isinstance(drafter, MedusaModule):
            return self._target.said(drafter(self._state(rows, place).flatten(0, 1)))
        ids = self._texts[rows[:, 0]]
        embedded = self._target.embedded(ids[:, 1:])
        states = self._state(rows, torch.arange(self._length - 1).expand(len(rows), -1))
        places = torch.arange(1, self._length + self._request.frames, device=place.device).unsqueeze(0)
        left = drafter(embedded, states, place, self._target.turns(embedded, places))
        normed = self._target.final_norm(left.flatten(0, 1))
        if isinstance(drafter, SpecFormerModule):
            return self._target.said(normed)
        logits = torch.cat((self._target.said(normed), F.linear(normed, drafter.blank.weight)), dim=-1)
        return torch.log_softmax(logits.float(), dim=-1)

    def _state(self, rows: Tensor, places: Tensor) -> Tensor:
        found = self._states[rows.cpu().numpy(), places.cpu().numpy()]
        return torch.from_numpy(np.ascontiguousarray(found)).to(self._request.device)


def _reads(request: BlockRequest, layers: int) -> tuple[int, ...]:
    """Return after how many of the target's layers the drafter reads states."""
    if request.kind != "specformer":
        return (layers,)
    if layers < 2:
        raise ModelError(f"SpecFormer reads states from inside a target, and this one has {layers} layer; train medusa")
    inside = {layers // 2, layers - 1, layers}
    return tuple(sorted(inside | {0} if request.published else inside))


def _states(target: FrozenTarget, reads: tuple[int, ...], texts: Tensor, partial: Path, progress: Progress) -> Floats:
    """Return (texts, tokens, len(reads) * hidden): states along texts, cached in a file; the last are final-normed."""
    name = "-".join(map(str, ("states", *reads)))
    path, unfinished = partial / f"{name}.npy", partial / "states.partial.npy"
    if not path.exists():
        shape = (*texts.shape, len(reads) * target.hidden)
        written = np.lib.format.open_memmap(unfinished, mode="w+", dtype=np.float32, shape=shape)
        _take_place(unfinished)
        for start in range(0, len(texts), READ_TOGETHER):
            progress("reading the texts", start / len(texts))
            piece = slice(start, start + READ_TOGETHER)
            with torch.no_grad():
                states = target.states(texts[piece])
            written[piece] = torch.cat([states[count] for count in reads], dim=-1).float().cpu().numpy()
        written.flush()
        unfinished.replace(path)
    found: Floats = np.load(path, mmap_mode="r")
    return found


def _take_place(path: Path) -> None:
    """Allocate a file's disk space: on a full disk, writes through a map would end the process."""
    if hasattr(os, "posix_fallocate"):  # macOS lacks it
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


NAMES = {"medusa": "Medusa heads", "ctc": "A CTC drafter", "specformer": "A SpecFormer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCard(Card):
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
