"""Train a pivot classifier for PAD on a frozen target: the job behind `spectune train pad`.

Problems with known answers are decoded, rollouts label the drafter's rejected tokens (see `pad_labels`), and a small
network learns which of them spoil the answer.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import TrainingError
from ..planner.kernels.arrays import Bools, Floats, Floats32
from ..profiler.identity import identify
from ..profiler.records.model import ModelIdentity
from ..runtime.models.drafter import require_drafter_of
from ..runtime.models.pivots import BESIDE, PivotClassifier, PivotNet, PivotShape
from .kept_labels import Labels, asked_of, kept_labels, reads_of, sources_of
from .language_model import Checkpoint, train
from .pad_labels import pivots_of
from .pad_request import (
    PadCard,
    PadRequest,
    at_threshold,
    auroc,
    auroc_interval,
    save_pad_card,
    save_pivots,
    threshold_of_recall,
)
from .run_folder import RUN, Progress, require_own, run_folder, tells_of_room

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
    checkpoint = Checkpoint(partial / RUN)
    net = _trained(request, labels.features[~is_held_out], is_pivot[~is_held_out], checkpoint, progress)
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
        losses=tuple(checkpoint.losses),
        seconds=time.monotonic() - start,
    )
    save_pivots(folder, net, shape)
    save_pad_card(folder, card)
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
    request: PadRequest, features: Floats32, is_pivot: Bools, checkpoint: Checkpoint, progress: Progress
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
    for _ in train(net, loss, np.resize(mixed, max(len(mixed), 3)), request.settings, checkpoint):
        progress("training the classifier", len(checkpoint.losses) / request.settings.steps)
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
