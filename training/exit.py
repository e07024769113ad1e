"""Train the imitation network behind an exit of a frozen target: the job behind `spectune train exit`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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
from .kept_folder import tells_of_disk
from .language_model import train
from .own_text import BLANK, OwnTextSettings
from .pieces import Pieces, is_said, readable
from .run_folder import Progress, judged, own_texts_of, prompts_for, run_folder
from .seen_states import SeenStates
from .settings import TrainingSettings

CHAIN = 6  # tokens of the greedy chains that are counted: LayerSkip's default


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitRequest:
    """Which exit is to be trained, and on what."""

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
        RequestError: a line of a file is malformed, an image cannot be read, or the target sees none or has too few
            positions for its texts.
        TrainingError: there is too little text, the folder holds another run or another model, or cannot be written.
    """
    start = time.monotonic()
    _require_exit(request)
    identity = identify(request.target)
    asked = prompts_for(request)
    partial = run_folder(request, identity, folder, fresh=fresh)
    texts = own_texts_of(request, asked.learned, partial, progress)
    images = [each.images for each in asked.learned]
    pieces = Pieces(texts, asked.begins, texts.shape[1] if any(images) else request.settings.sequence_tokens)
    job = _Job(request)
    torch.manual_seed(request.settings.seed)
    network = job.new_network()

    def loss(picked: Tensor) -> Tensor:
        numbers = picked[:, 0]
        return job.loss(network, pieces.ids(numbers), [images[row] for row in pieces.rows[numbers.cpu()].tolist()])

    checkpoint = Checkpoint(partial / "run.pt")
    settings = replace(request.settings, sequence_tokens=1)
    for _ in train(network, loss, pieces.numbered, settings, checkpoint):
        progress("training the exit", len(checkpoint.losses) / request.settings.steps)
    shape = ExitShape(layers=request.exit_layer, width=job.width, target=identity.weights_hash)
    save_exit(folder, network.tensors(), shape)
    accepted = judged(request, asked.judged, folder, CHAIN, progress)
    seconds = time.monotonic() - start
    learned = _Learned(tokens=int((texts != BLANK).sum()), piece=pieces.columns, losses=checkpoint.losses)
    card = _card(request, identity, job, network, learned, accepted, seconds=seconds)
    save_exit_card(folder, card)
    shutil.rmtree(partial)
    return card


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

    def loss(self, network: ImitationModule, ids: Tensor, images: Sequence[Sequence[Image]]) -> Tensor:
        """Return the loss of pieces (batch, columns), each with its images: of places before a token that is said."""
        with torch.no_grad():
            states, logits = self._read_all(ids[:, :-1], images)
        counts = is_said(ids[:, 1:])
        own = network(states[self._exit][counts][None])
        deep = network.fused(torch.stack([states[count][counts][None] for count in self.deep]))
        return imitation_loss(own, deep, self.said(own), logits[counts][None], ids[:, 1:][counts][None])

    def _read_all(self, ids: Tensor, images: Sequence[Sequence[Image]]) -> tuple[list[Tensor], Tensor]:
        if not any(images):
            return self.read(readable(ids))
        return self.read_vectors(SeenStates(self._target, self._folder).vectors(ids, images))

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Learned:
    """What a network has learned from."""

    tokens: int  # of all texts
    piece: int  # most tokens of a text that were read at once
    losses: Sequence[float]


def _card(
    request: ExitRequest,
    identity: ModelIdentity,
    job: _Job,
    network: ImitationModule,
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
        of_layers=job.layers,
        width=job.width,
        parameters=sum(tensor.numel() for tensor in network.tensors().values()),
        files=tuple(path.name for path in request.data),
        own_texts=request.own.texts,
        own_tokens=learned.tokens,
        steps=request.settings.steps,
        batch=request.settings.batch,
        sequence_tokens=learned.piece,
        seed=request.settings.seed,
        losses=tuple(learned.losses),
        acceptance=accepted.by_depth,
        tokens_per_round=accepted.tokens_per_round,
        rounds=accepted.rounds,
        seconds=seconds,
    )
