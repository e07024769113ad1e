"""The labels that a pivot classifier learns from, kept on disk as they are made: some problems are a file at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from ..errors import TrainingError
from ..planner.lossy.quality import ends_with
from ..profiler.records.model import ModelIdentity
from ..runtime.ends import end_tokens
from ..runtime.models.drafter import load_drafter
from ..runtime.models.forward import CausalModel
from ..runtime.models.loading import load_config, load_model, load_tokenizer
from ..runtime.models.tapped import require_lean
from ..runtime.requests import Request, require_positions
from .frozen import positions_of
from .pad_labels import harvest, utilities
from .pad_request import PadRequest, usual_reads
from .run_folder import Progress, Sources, digest_of

FORM = 2  # of labels; others are not gone on with
TOGETHER = 8  # problems whose labels are a file; their rollouts are many

Floats32 = NDArray[np.float32]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Candidates of all problems: features (n, hidden + 2), the problem of each (n,), and right shares (n, 2)."""

    features: Floats32
    problems: Ints
    shares: Floats


def asked_of(request: PadRequest) -> list[Request]:
    """Return what the target is asked, one for each problem.

    Raises:
        ModelError: the target's hidden states cannot be read.
        RequestError: it has too few positions for one.
    """
    longest, tokenizer = positions_of(request.target), load_tokenizer(str(request.target))
    stop = end_tokens(request.target, tokenizer)
    asked = [
        Request(prompt=each.prompt, max_new_tokens=request.max_new_tokens, stop=stop) for each in request.exercises
    ]
    require_positions(asked, longest, "lower --max-new-tokens or leave out long problems")
    return asked


def sources_of(request: PadRequest, models: tuple[ModelIdentity, ModelIdentity], asked: Sequence[Request]) -> Sources:
    """Return what labels follow from."""
    answers = "".join(f"{each.answer}\n" for each in request.exercises)
    return {
        "form": FORM,
        "target": models[0].weights_hash,
        "drafter": models[1].weights_hash,
        "number format": request.dtype,
        "rollouts": asdict(request.rollouts),
        "state that is read": reads_of(request),
        "floor": request.floor,
        "problems": digest_of(asked),
        "answers": sha256(answers.encode()).hexdigest(),
    }


def kept_labels(request: PadRequest, asked: Sequence[Request], partial: Path, progress: Progress) -> Labels:
    """Return the labelled candidates; none is made twice.

    Args:
        request: what is to be trained.
        asked: as `asked_of` gives it.
        partial: folder of the files.
        progress: told the share of problems that are tried out.

    Raises:
        ModelError: a model cannot be loaded, or the target is of a kind whose hidden states cannot be read.
        TrainingError: there is no candidate, or a round went wrong.
    """
    tokenizer = load_tokenizer(str(request.target))
    models: tuple[CausalModel, CausalModel] | None = None
    parts: list[Labels] = []
    for first in range(0, len(asked), TOGETHER):
        path = partial / f"labels-{first}.npz"
        problems = asked[first : first + TOGETHER]

        def tell(share: float, before: int = first, count: int = len(problems)) -> None:
            progress("trying out the drafter's tokens", (before + share * count) / len(asked))

        tell(0.0)
        if not path.exists():
            models = models or _models(request)
            part = _labelled(request, models, problems, first, tokenizer, tell)
            np.savez(partial / "unfinished.npz", features=part.features, problems=part.problems, shares=part.shares)
            (partial / "unfinished.npz").replace(path)
        with np.load(path) as kept:
            parts.append(Labels(features=kept["features"], problems=kept["problems"], shares=kept["shares"]))
    some = [part for part in parts if len(part.problems)]
    if not some:
        raise TrainingError(
            "the target rejected none of the drafter's tokens that reach the floor, so that there is nothing to learn; "
            "give more problems or lower --floor"
        )
    return Labels(
        features=np.concatenate([part.features for part in some]),
        problems=np.concatenate([part.problems for part in some]),
        shares=np.concatenate([part.shares for part in some]),
    )


def _models(request: PadRequest) -> tuple[CausalModel, CausalModel]:
    target = require_lean(load_model(str(request.target), dtype=request.dtype, device=request.device))
    return target, load_drafter(str(request.drafter), target, dtype=request.dtype, device=request.device)


def _labelled(
    request: PadRequest,
    models: tuple[CausalModel, CausalModel],
    asked: Sequence[Request],
    first: int,
    tokenizer: PreTrainedTokenizerBase,
    progress: Callable[[float], None],
) -> Labels:
    """Return the labelled candidates of some problems, the first of which is problem `first`."""

    def is_right(problem: int, tokens: Sequence[int]) -> bool:
        text = str(tokenizer.decode(list(tokens), skip_special_tokens=True))
        return ends_with(text, request.exercises[first + problem].answer)

    target, drafter = models
    found, features = harvest(target, drafter, asked, reads=reads_of(request), floor=request.floor)
    return Labels(
        features=features,
        problems=np.array([first + each.problem for each in found], dtype=np.int64),
        shares=utilities(target, asked, found, is_right, request.rollouts, progress),
    )


def reads_of(request: PadRequest) -> int:
    """Return how many layers of the target the hidden state has passed."""
    layers = int(load_config(str(request.target)).get_text_config().num_hidden_layers)
    return request.reads or usual_reads(layers)
