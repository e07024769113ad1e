"""Train a pivot classifier for PAD on a frozen target: the job behind `spectune train pad`.

Problems with known answers are decoded, rollouts label the drafter's rejected tokens (see `pad_labels`), and a small
network learns which of them spoil the answer.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import TrainingError
from ..planner.kernels.arrays import Bools, Floats, Floats32, Ints
from ..planner.lossy.quality import ends_with
from ..profiler.identity import identify
from ..profiler.records.model import ModelIdentity
from ..runtime.batch.sequence import Request, require_positions
from ..runtime.engine.stop_tokens import end_tokens
from ..runtime.models.drafter import load_drafter, require_drafter_of
from ..runtime.models.forward import CausalModel
from ..runtime.models.loading import load_config, load_model, load_tokenizer
from ..runtime.models.pivots import BESIDE, PivotClassifier, PivotNet, PivotShape
from ..runtime.models.tapped import require_lean
from .cards import save_card
from .frozen import positions_of
from .pad_labels import RejectedToken, harvest, pivots_of, utilities
from .pad_request import (
    PadCard,
    PadRequest,
    at_threshold,
    auroc,
    auroc_interval,
    save_pivots,
    threshold_of_recall,
    usual_reads,
)
from .run import fit
from .run_folder import RUN, Progress, Sources, digest_of, require_own, run_folder, tells_of_room
from .trainer import Checkpoint

PUBLISHED = (0.3, 0.5, 0.7)  # thresholds of the paper


@tells_of_room("lower --max-new-tokens or --batch, or choose another --device; the labels so far are kept")
def train_pad(request: PadRequest, folder: Path, *, fresh: bool = False, progress: Progress) -> PadCard:
    """Train a classifier, save it with its card in a folder, and return the card.

    The same request with the same folder resumes a stopped run; `fresh` drops it instead.

    Raises:
        ModelError: a model cannot be loaded, or the target's hidden states cannot be read.
        RequestError: the target has too few positions for a problem and its text.
        TrainingError: there is nothing to learn from, the folder holds another run or model, or cannot be written.
    """
    start = time.monotonic()
    identity, drafter = identify(request.target), identify(request.drafter)
    require_drafter_of(request.drafter, identity)
    require_own(folder, request.drafter)
    asked = asked_of(request)
    partial = run_folder(request, identity, folder, sources_of(request, (identity, drafter), asked), fresh=fresh)
    labels = kept_labels(request, asked, partial, progress)
    is_pivot = pivots_of(labels.shares, request.least_share)
    is_held_out = _held_out(request)[labels.problems]
    _require_both(is_pivot[~is_held_out], len(request.exercises))
    course = Checkpoint(partial / RUN)
    course.began = start
    net = _trained(request, labels.features[~is_held_out], is_pivot[~is_held_out], course, progress)
    shape = PivotShape(
        reads=reads_of(request),
        hidden=labels.features.shape[1] - BESIDE,
        width=request.width,
        target=identity.weights_hash,
        threshold=0.0,
        floor=request.floor,
    )
    chances = _chances(net, shape, labels.features[is_held_out])
    shape = replace(shape, threshold=threshold_of_recall(chances, is_pivot[is_held_out], request.recall))
    kept = Labels(
        features=labels.features[is_held_out], problems=labels.problems[is_held_out], shares=labels.shares[is_held_out]
    )
    card = replace(
        _card(request, (identity, drafter), shape, kept, chances),
        parameters=sum(parameter.numel() for parameter in net.parameters()),
        candidates=len(is_pivot),
        pivots=int(is_pivot.sum()),
        losses=tuple(course.losses),
        seconds=course.seconds,
    )
    save_pivots(folder, net, shape)
    save_card(folder, card)
    shutil.rmtree(partial)
    return card


def _held_out(request: PadRequest) -> Bools:
    """Return (problems,): which are held out, at least one, never all."""
    count = len(request.exercises)
    kept = min(max(round(request.held_out * count), 1), count - 1)
    found = np.zeros(count, dtype=np.bool_)
    found[np.random.default_rng(request.settings.seed).permutation(count)[:kept]] = True
    return found


def _require_both(is_pivot: Bools, problems: int) -> None:
    if is_pivot.all() or not is_pivot.any():
        raise TrainingError(
            f"of {len(is_pivot)} tokens to learn from, {int(is_pivot.sum())} are pivots, so that there is nothing to "
            f"tell apart; give more than {problems} problems, some of which the target gets right"
        )


def _trained(
    request: PadRequest, features: Floats32, is_pivot: Bools, course: Checkpoint, progress: Progress
) -> PivotNet:
    """Return the network trained on labelled candidates, with both classes of equal weight."""
    torch.manual_seed(request.settings.seed)
    net = PivotNet(features.shape[1] - BESIDE, request.width).to(request.device)
    read = torch.from_numpy(features).to(request.device)
    wanted = torch.from_numpy(is_pivot).to(request.device, torch.float32)
    weight = (~is_pivot).sum() / is_pivot.sum()
    weighing = torch.tensor(float(weight), device=request.device)

    def loss(batch: Tensor) -> Tensor:
        rows = batch.flatten()
        return F.binary_cross_entropy_with_logits(net(read[rows]).float(), wanted[rows], pos_weight=weighing)

    mixed = np.random.default_rng(request.settings.seed).permutation(len(features))
    fit("classifier", net, loss, np.resize(mixed, max(len(mixed), 3)), request.settings, course, progress)
    return net.eval()


def _chances(net: PivotNet, shape: PivotShape, features: Floats32) -> Floats:
    classifier = PivotClassifier(net, shape, next(net.parameters()).device)
    return np.array(classifier.chances(torch.from_numpy(features).to(next(net.parameters()).device)), dtype=np.float64)


def _card(
    request: PadRequest,
    models: tuple[ModelIdentity, ModelIdentity],
    shape: PivotShape,
    kept: Labels,
    chances: Floats,
) -> PadCard:
    target, drafter = models
    is_pivot, seed = pivots_of(kept.shares, request.least_share), request.settings.seed
    return PadCard(
        target=target.name,
        target_hash=target.weights_hash,
        drafter=drafter.name,
        drafter_hash=drafter.weights_hash,
        reads=shape.reads,
        parameters=0,
        files=request.files,
        problems=len(request.exercises),
        candidates=0,
        pivots=0,
        rollouts=request.rollouts.rollouts,
        rollout_temperature=request.rollouts.temperature,
        least_share=request.least_share,
        floor=request.floor,
        steps=request.settings.steps,
        batch=request.settings.batch,
        seed=seed,
        losses=(),
        held_out=len(is_pivot),
        held_out_pivots=int(is_pivot.sum()),
        auroc=auroc(chances, is_pivot),
        auroc_95=auroc_interval(chances, is_pivot, kept.problems, seed),
        recall=request.recall,
        threshold=shape.threshold,
        thresholds=tuple(at_threshold(chances, is_pivot, each) for each in (shape.threshold, *PUBLISHED)),
        seconds=0.0,
    )


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
        self._found: list[RejectedToken] = []  # by place in all problems
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
