"""Labels for a pivot classifier, written to disk as they are made: one file for some problems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np

from ..errors import TrainingError
from ..planner.kernels.arrays import Floats, Floats32, Ints
from ..planner.lossy.quality import ends_with
from ..profiler.records.model import ModelIdentity
from ..runtime.ends import end_tokens
from ..runtime.models.drafter import load_drafter
from ..runtime.models.forward import CausalModel
from ..runtime.models.loading import load_config, load_model, load_tokenizer
from ..runtime.models.tapped import require_lean
from ..runtime.requests import Request, require_positions
from .frozen import positions_of
from .pad_labels import Candidate, harvest, utilities
from .pad_request import PadRequest, usual_reads
from .run_folder import Progress, Sources, digest_of

FORM = 2  # of labels; others are not gone on with
TOGETHER = 8  # problems whose labels are a file; their rollouts are many
HARVESTED = 64  # problems decoded at once, whose rounds of one drafted token are short


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Candidates of all problems: features (n, hidden + 2), the problem of each (n,), and right shares (n, 2)."""

    features: Floats32
    problems: Ints
    shares: Floats


def asked_of(request: PadRequest) -> list[Request]:
    """Return the target's request for each problem.

    ModelError where the target's hidden states cannot be read; RequestError where it has too few positions for one.
    """
    longest, tokenizer = positions_of(request.target), load_tokenizer(str(request.target))
    stop = end_tokens(request.target, tokenizer)
    asked = [
        Request(prompt=each.prompt, max_new_tokens=request.max_new_tokens, stop=stop) for each in request.exercises
    ]
    require_positions(asked, longest, "lower --max-new-tokens or leave out long problems")
    return asked


def sources_of(request: PadRequest, models: tuple[ModelIdentity, ModelIdentity], asked: Sequence[Request]) -> Sources:
    """Return all values that labels depend on."""
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
    """Return the labelled candidates, each made only once and stored in the folder `partial`.

    ModelError where a model cannot be loaded, or the target's hidden states cannot be read; TrainingError where there
    is no candidate, or a round had a fault.
    """
    labeller = _Labeller(request, asked)
    parts: list[Labels] = []
    for problems in _parts(len(asked)):
        path = partial / f"labels-{problems.start}.npz"

        def tell(share: float, of: range = problems) -> None:
            progress("trying out the drafter's tokens", (of.start + share * len(of)) / len(asked))

        tell(0.0)
        if not path.exists():
            part = labeller.labels(problems, tell)
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


def _parts(count: int) -> Iterator[range]:
    """Yield the problems of each file; no file holds problems of two harvests."""
    for group in range(0, count, HARVESTED):
        end = min(group + HARVESTED, count)
        yield from (range(first, min(first + TOGETHER, end)) for first in range(group, end, TOGETHER))


class _Labeller:
    """Labels problems in their order; loads models and decodes problems on demand."""

    def __init__(self, request: PadRequest, asked: Sequence[Request]) -> None:
        self._request, self._asked = request, asked
        self._tokenizer = load_tokenizer(str(request.target))
        self._models: tuple[CausalModel, CausalModel] | None = None
        self._group: int | None = None  # first problem of those that are harvested
        self._found: list[Candidate] = []  # by place in all problems
        self._features = np.zeros((0, 0), dtype=np.float32)

    def labels(self, problems: range, progress: Callable[[float], None]) -> Labels:
        """Return the labelled candidates of some problems; `progress` gets the finished share of rollouts."""
        self._models = self._models or _models(self._request)
        self._harvest(problems.start // HARVESTED * HARVESTED)
        mine = [place for place, each in enumerate(self._found) if each.problem in problems]
        found = [self._found[place] for place in mine]
        return Labels(
            features=self._features[mine],
            problems=np.array([each.problem for each in found], dtype=np.int64),
            shares=utilities(self._models[0], self._asked, found, self._is_right, self._request.rollouts, progress),
        )

    def _harvest(self, group: int) -> None:
        if group == self._group:
            return
        assert self._models is not None, "labels loads them"
        target, drafter = self._models
        asked, request = self._asked[group : group + HARVESTED], self._request
        found, self._features = harvest(target, drafter, asked, reads=reads_of(request), floor=request.floor)
        self._found = [replace(each, problem=group + each.problem) for each in found]
        self._group = group

    def _is_right(self, problem: int, tokens: Sequence[int]) -> bool:
        text = str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))
        return ends_with(text, self._request.exercises[problem].answer)


def reads_of(request: PadRequest) -> int:
    """Return after how many of the target's layers the classifier reads the hidden state."""
    layers = int(load_config(str(request.target)).get_text_config().num_hidden_layers)
    return request.reads or usual_reads(layers)
