"""Train the imitation network behind an exit of a frozen target: the job behind `spectune train exit`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import ModelError, TrainingError
from ..profiler.identity import identify
from ..profiler.records.model import ModelIdentity
from ..runtime.images import Image
from ..runtime.models.anatomy import text_part
from ..runtime.models.configuration import declared
from ..runtime.models.exit_shape import ExitShape
from ..runtime.models.loading import load_config, load_pretrained
from .acceptance import Acceptance
from .checkpoint import Checkpoint
from .exit_files import ExitCard, save_exit, save_exit_card
from .exit_module import DEEP, ImitationModule, imitation_loss
from .image_texts import (
    SeenPrompts,
    SeenStates,
    is_said,
    prompts_with_images,
    seen_acceptance,
    seen_prompts,
    seen_texts_of,
)
from .kept_folder import tells_of_disk
from .language_model import Loss, Tokens, train
from .own_text import Ids, OwnTextSettings
from .run_folder import Progress, corpus_for, judged, own_texts_of, run_folder
from .settings import TrainingSettings

CHAIN = 6  # tokens of the greedy chains that are counted: LayerSkip's default


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRequest:
    """Which exit is to be trained, and on what."""

    target: Path
    data: tuple[Path, ...]  # text files whose pieces the target continues, or .jsonl prompts with images
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


@tells_of_disk
def train_exit(request: ExitRequest, folder: Path, *, fresh: bool = False, progress: Progress) -> ExitCard:
    """Train an exit's imitation network, save it with its card in a folder, and return the card.

    A run that was stopped goes on where it stopped when the same request comes again with the same folder.

    Args:
        request: what to train.
        folder: where to; made if it is not there.
        fresh: forget what an earlier run left unfinished.
        progress: told each step.

    Raises:
        ModelError: the target cannot be loaded, is of a kind whose hidden states cannot be read, or ends before the
            exit.
        TrainingError: there is too little text, the folder holds another run or another model, or cannot be written.
    """
    start = time.monotonic()
    _require_exit(request)
    identity = identify(request.target)
    told = _told(request)
    partial = run_folder(request, identity, folder, fresh=fresh)
    lesson = _lesson(request, told, partial, progress)
    job = _Job(request)
    torch.manual_seed(request.settings.seed)
    network = job.new_network()
    checkpoint = Checkpoint(partial / "run.pt")
    for _ in train(network, lesson.loss(job, network), lesson.tokens, lesson.settings, checkpoint):
        progress("training the exit", len(checkpoint.losses) / request.settings.steps)
    shape = ExitShape(layers=request.exit_layer, width=job.width, target=identity.weights_hash)
    save_exit(folder, network.tensors(), shape)
    accepted = lesson.judge(folder)
    seconds = time.monotonic() - start
    card = _card(request, identity, job, network, checkpoint.losses, accepted, lesson, seconds=seconds)
    save_exit_card(folder, card)
    shutil.rmtree(partial)
    return card


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lesson:
    """What the network learns from, and what judges it."""

    tokens: Tokens  # that batches are drawn from: texts one behind the other, or numbers of texts with images
    settings: TrainingSettings  # of these batches
    piece: int  # most tokens of a text that are read at once
    written: int  # tokens of all texts
    loss: Callable[[_Job, ImitationModule], Loss]
    judge: Callable[[Path], Acceptance]


def _told(request: ExitRequest) -> SeenPrompts | Ids:
    """Return what a request's files hold: prompts with images, or the tokens of texts."""
    prompts = prompts_with_images(request.data)
    return seen_prompts(prompts, request.target, request.own) if prompts else corpus_for(request)


def _lesson(request: ExitRequest, told: SeenPrompts | Ids, partial: Path, progress: Progress) -> _Lesson:
    """Return what the target wrote behind what it was told."""
    if isinstance(told, SeenPrompts):
        return _seen_lesson(request, told, partial, progress)
    return _text_lesson(request, told, partial, progress)


def _text_lesson(request: ExitRequest, corpus: Ids, partial: Path, progress: Progress) -> _Lesson:
    """Return what the target wrote behind pieces of files of text."""
    texts = own_texts_of(request, corpus, partial, progress)
    return _Lesson(
        tokens=texts.ravel(),
        settings=request.settings,
        piece=request.settings.sequence_tokens,
        written=texts.size,
        loss=lambda job, network: lambda batch: job.loss(network, batch),
        judge=lambda folder: judged(request, corpus, folder, CHAIN, progress),
    )


def _seen_lesson(request: ExitRequest, asked: SeenPrompts, partial: Path, progress: Progress) -> _Lesson:
    """Return what the target wrote behind images; a batch is whole texts, so that each begins with what it is about."""
    texts = seen_texts_of(request, asked.learned, partial, progress)

    def loss(job: _Job, network: ImitationModule) -> Loss:
        def of_batch(picked: Tensor) -> Tensor:  # (batch, 2): the first column's numbers count
            rows = picked[:, 0].cpu().numpy()
            longest = int((texts[rows] >= 0).sum(axis=1).max())
            ids = torch.from_numpy(texts[rows, :longest]).to(picked.device)
            return job.seen_loss(network, ids, [asked.learned[row].images for row in rows.tolist()])

        return of_batch

    return _Lesson(
        tokens=np.arange(len(texts)),
        settings=replace(request.settings, sequence_tokens=1),
        piece=texts.shape[1],
        written=int((texts >= 0).sum()),
        loss=loss,
        judge=lambda folder: seen_acceptance(request, asked.judged, folder, CHAIN, progress),
    )


class _Job:
    """The frozen target beside an imitation network in training.

    Attributes:
        layers: of the target.
        width: of the network.
        deep: how many layers each hidden state that is imitated has passed; all lie behind the exit.
    """

    def __init__(self, request: ExitRequest) -> None:
        self._exit, self._device = request.exit_layer, request.device
        model: PreTrainedModel = load_pretrained(str(request.target), dtype="float32", device=request.device)
        self._target, self._folder = model.requires_grad_(False), request.target
        text = text_part(model)
        self._config, norm = text.config, text.base.norm
        assert isinstance(norm, nn.Module), "of the Llama kind"
        self._final_norm = norm
        self.layers, self.width = int(text.config.num_hidden_layers), request.width or int(text.config.hidden_size)
        self.deep = range(max(request.exit_layer, self.layers - DEEP) + 1, self.layers + 1)

    def new_network(self) -> ImitationModule:
        """Return a network that has learned nothing."""
        config = self._config
        eps = float(config.rms_norm_eps)
        made = ImitationModule(int(config.hidden_size), self.width, deep=len(self.deep), eps=eps)
        return made.to(self._device)

    def loss(self, network: ImitationModule, batch: Tensor) -> Tensor:
        """Return the loss of (batch, tokens + 1) ids."""
        with torch.no_grad():
            states, logits = self.read(batch[:, :-1])
        own = network(states[self._exit])
        deep = network.fused(torch.stack([states[count] for count in self.deep]))
        return imitation_loss(own, deep, self.said(own), logits, batch[:, 1:])

    def seen_loss(self, network: ImitationModule, ids: Tensor, images: Sequence[Sequence[Image]]) -> Tensor:
        """Return the loss of whole texts (batch, columns), each with its images: of places before a token that is said.

        A text begins with its images, so what stands behind its end is seen by nothing that counts.
        """
        vectors = SeenStates(self._target, self._folder).vectors(ids[:, :-1], images)
        with torch.no_grad():
            states, logits = self.read_vectors(vectors)
        counts = is_said(ids[:, 1:])
        own = network(states[self._exit][counts][None])
        deep = network.fused(torch.stack([states[count][counts][None] for count in self.deep]))
        return imitation_loss(own, deep, self.said(own), logits[counts][None], ids[:, 1:][counts][None])

    def read(self, ids: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return hidden states (batch, tokens, hidden), embedded and after every layer, and the target's logits.

        transformers gives the last state behind the final norm; this one is from before it.
        """
        return self._answers(input_ids=ids)

    def read_vectors(self, vectors: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return what `read` does for (batch, tokens, hidden): what stands in a text's places."""
        return self._answers(inputs_embeds=vectors)

    def _answers(self, **given: Tensor) -> tuple[list[Tensor], Tensor]:
        last: list[Tensor] = []
        hook = self._final_norm.register_forward_pre_hook(lambda _, inputs: last.append(inputs[0]))
        try:
            said = self._target(**given, output_hidden_states=True)
        finally:
            hook.remove()
        return [*said.hidden_states[:-1], last[0]], said.logits

    def said(self, own: Tensor) -> Tensor:
        """Return (batch, tokens, vocabulary): the logits of states from before the final norm."""
        logits: Tensor = self._target.get_output_embeddings()(self._final_norm(own))
        cap = declared(self._config, "final_logit_softcapping")
        return logits if cap is None else cap * torch.tanh(logits / cap)


def _require_exit(request: ExitRequest) -> None:
    """Raise ModelError unless the target goes on behind the exit."""
    layers = int(load_config(str(request.target)).get_text_config().num_hidden_layers)
    if request.exit_layer >= layers:
        raise ModelError(
            f"a target of {layers} layers has exits behind 1 to {layers - 1} of them, not {request.exit_layer}; name "
            "another with --exit-layer"
        )


def _card(
    request: ExitRequest,
    identity: ModelIdentity,
    job: _Job,
    network: ImitationModule,
    losses: Sequence[float],
    accepted: Acceptance,
    lesson: _Lesson,
    *,
    seconds: float,
) -> ExitCard:
    return ExitCard(
        target=identity.name,
        target_hash=identity.weights_hash,
        reads=(request.exit_layer,),
        layers=request.exit_layer,
        of_layers=job.layers,
        width=job.width,
        parameters=sum(tensor.numel() for tensor in network.tensors().values()),
        files=tuple(path.name for path in request.data),
        own_texts=request.own.texts,
        own_tokens=lesson.written,
        steps=request.settings.steps,
        batch=request.settings.batch,
        sequence_tokens=lesson.piece,
        seed=request.settings.seed,
        losses=tuple(losses),
        acceptance=accepted.by_depth,
        tokens_per_round=accepted.tokens_per_round,
        rounds=accepted.rounds,
        seconds=seconds,
    )
