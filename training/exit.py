"""Train the imitation network behind an exit of a frozen target: the job behind `spectune train exit`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import ModelError, TrainingError
from ..planner.records.image_ids import IMAGE_IDS
from ..profiler.records.model import ModelIdentity
from ..runtime.images import Image
from ..runtime.models.anatomy import text_part
from ..runtime.models.exit_shape import ExitShape, exit_config
from ..runtime.models.gallery import table_rows
from ..runtime.models.loading import load_config
from ..runtime.models.vision import Eyes, lens_of
from .acceptance import Acceptance
from .cards import Card, save_card, save_weights
from .checkpoint import Checkpoint
from .exit_module import DEEP, ImitationModule, imitation_loss
from .frozen import FrozenTarget
from .kept_folder import LESS_TEXT, tells_of_room
from .language_model import train
from .own_run import OwnRun, judged, own_run
from .own_text import BLANK, OwnTextSettings
from .pieces import Pieces, is_said, readable
from .run_folder import RUN, Progress
from .settings import TrainingSettings

CHAIN = 6  # tokens of the greedy chains that are counted: LayerSkip's default


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRequest:
    """The exit to train, and its texts."""

    target: Path
    data: tuple[Path, ...]  # files of text, conversations or prompts with images, which the target goes on with
    exit_layer: int  # layers of the target that draft
    width: int = 0  # of the imitation network; 0: the target's hidden size
    settings: TrainingSettings
    own: OwnTextSettings
    device: str = "cpu"
    dtype: str = "bfloat16"  # in which the target writes

    def __post_init__(self) -> None:
        if not self.data:
            raise TrainingError("an exit needs text to learn from; give one file or more")
        if self.exit_layer < 1 or self.width < 0:
            raise TrainingError(f"an exit lies behind 1 layer or more, and 0 is the default width, got {self}")


@tells_of_room(LESS_TEXT)
def train_exit(request: ExitRequest, folder: Path, *, fresh: bool = False, progress: Progress) -> ExitCard:
    """Train an exit's imitation network, save it with its card in a folder, and return the card.

    The same request with the same folder resumes a stopped run; `fresh` drops it instead.

    Raises:
        ModelError: the target cannot be loaded, its hidden states cannot be read, or it ends before the exit.
        RequestError: a line of a file is malformed, an image cannot be read, or the target sees none or has too few
            positions for its texts.
        TrainingError: there is too little text, the folder holds another run or another model, or cannot be written.
    """
    start = time.monotonic()
    _require_exit(request)
    run = own_run(request, folder, fresh=fresh, progress=progress)
    learned = _learned(request, run, folder, progress)
    accepted = judged(request, run.asked.judged, folder, CHAIN, progress)
    card = _card(request, run.target, learned, accepted, seconds=time.monotonic() - start)
    save_exit_card(folder, card)
    shutil.rmtree(run.partial)
    return card


@dataclass(frozen=True, slots=True, kw_only=True)
class _Learned:
    tokens: int  # of all texts
    piece: int  # most tokens of a text that were read at once
    of_layers: int
    width: int
    parameters: int
    losses: tuple[float, ...]


def _learned(request: ExitRequest, run: OwnRun, folder: Path, progress: Progress) -> _Learned:
    """Train and save a network; on return its memory is free."""
    images = [each.images for each in run.asked.learned]
    pieces = Pieces(
        run.texts, run.asked.begins, run.texts.shape[1] if any(images) else request.settings.sequence_tokens
    )
    job = _Job(request)
    torch.manual_seed(request.settings.seed)
    network = job.new_network()

    def loss(picked: Tensor) -> Tensor:
        numbers = picked[:, 0]
        return job.loss(network, pieces.ids(numbers), [images[row] for row in pieces.rows[numbers.cpu()].tolist()])

    checkpoint = Checkpoint(run.partial / RUN)
    settings = replace(request.settings, sequence_tokens=1)
    for _ in train(network, loss, pieces.numbered, settings, checkpoint):
        progress("training the exit", len(checkpoint.losses) / request.settings.steps)
    save_exit(
        folder,
        network.tensors(),
        ExitShape(layers=request.exit_layer, width=job.width, target=run.target.weights_hash),
    )
    return _Learned(
        tokens=int((run.texts != BLANK).sum()),
        piece=pieces.columns,
        of_layers=job.target.layers,
        width=job.width,
        parameters=sum(tensor.numel() for tensor in network.tensors().values()),
        losses=tuple(checkpoint.losses),
    )


class _Job:
    """The frozen target and an imitation network in training; `deep` are the layers, behind the exit, it imitates."""

    def __init__(self, request: ExitRequest) -> None:
        self._exit, self._device, self._folder = request.exit_layer, request.device, request.target
        self.target = FrozenTarget(request.target, request.device)
        self.width, layers = request.width or self.target.hidden, self.target.layers
        self.deep = range(max(request.exit_layer, layers - DEEP) + 1, layers + 1)

    def new_network(self) -> ImitationModule:
        eps = float(self.target.config.rms_norm_eps)
        return ImitationModule(self.target.hidden, self.width, deep=len(self.deep), eps=eps).to(self._device)

    def loss(self, network: ImitationModule, ids: Tensor, images: Sequence[Sequence[Image]]) -> Tensor:
        """Return the loss of pieces (batch, columns), with each one's images, over places before emitted tokens."""
        with torch.no_grad():
            states, logits = self._read(ids[:, :-1], images)
        counts = is_said(ids[:, 1:])
        own = network(states[self._exit][counts][None])
        deep = network.fused(torch.stack([states[count][counts][None] for count in self.deep]))
        return imitation_loss(own, deep, self.said(own), logits[counts][None], ids[:, 1:][counts][None])

    def said(self, own: Tensor) -> Tensor:
        """Return logits (batch, tokens, vocabulary) of states from before the final norm."""
        return self.target.said(self.target.final_norm(own))

    def _read(self, ids: Tensor, images: Sequence[Sequence[Image]]) -> tuple[list[Tensor], Tensor]:
        if not any(images):
            return self.target.read(input_ids=readable(ids))
        return self.target.read(inputs_embeds=SeenStates(self.target.model, self._folder).vectors(ids, images))


def _require_exit(request: ExitRequest) -> None:
    layers = int(load_config(str(request.target)).get_text_config().num_hidden_layers)
    if request.exit_layer >= layers:
        raise ModelError(
            f"a target of {layers} layers has exits behind 1 to {layers - 1} of them, not {request.exit_layer}; name "
            "another with --exit-layer"
        )


def _card(
    request: ExitRequest,
    identity: ModelIdentity,
    learned: _Learned,
    accepted: Acceptance,
    *,
    seconds: float,
) -> ExitCard:
    return ExitCard(
        target=identity.name,
        target_hash=identity.weights_hash,
        reads=(request.exit_layer,),
        layers=request.exit_layer,
        of_layers=learned.of_layers,
        width=learned.width,
        parameters=learned.parameters,
        files=tuple(path.name for path in request.data),
        own_texts=request.own.texts,
        own_tokens=learned.tokens,
        steps=request.settings.steps,
        batch=request.settings.batch,
        sequence_tokens=learned.piece,
        seed=request.settings.seed,
        losses=learned.losses,
        acceptance=accepted.by_depth,
        tokens_per_round=accepted.tokens_per_round,
        rounds=accepted.rounds,
        seconds=seconds,
    )


class SeenStates:
    """Input vectors of texts with images, for a transformers model."""

    def __init__(self, model: PreTrainedModel, folder: Path) -> None:
        """Share the weights of a model that sees; the folder has its pixel preprocessing."""
        self._eyes = Eyes(model.model, lens_of(model.config, folder))
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
class ExitCard(Card):
    """How an exit's imitation network was trained, and how good it is; `layers` of the target's `of_layers` draft."""

    layers: int
    of_layers: int
    width: int
    sequence_tokens: int


def save_exit(folder: Path, tensors: Mapping[str, Tensor], shape: ExitShape) -> None:
    """Write model.safetensors, bf16, and config.json."""
    save_weights(folder, tensors, exit_config(shape))


def save_exit_card(folder: Path, card: ExitCard) -> None:
    """Write card.json and card.md."""
    page = f"""# An exit after {card.layers} of {card.of_layers} layers of `{card.target}`

The target's own first {card.layers} layers draft, behind an imitation network of width {card.width}.
{card.parameters:,} parameters of its own; all others are the target's. Target's weights: `{card.target_hash[:16]}`.

**Training.** {card.steps:,} steps of {card.batch} x {card.sequence_tokens} tokens, seed {card.seed}, on
{card.origin}.
{card.course}

{card.table}"""
    save_card(folder, card, page)
