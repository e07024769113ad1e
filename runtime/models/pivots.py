"""A pivot classifier: the chance that a drafted token decides the answer, by the target's hidden state.

For each drafted token that strict verification rejects, it reads the target's hidden state after some layers at that
token, which the verify forward has computed; the target's probability of the token; and the entropy there, in nats.
Both are of the softmax of the raw logits, whatever the request's sampling settings, as in training.

Source: Ziashahabi et al. 2025, PAD, arXiv:2511.00351; the layers, the width and the norm are choices made here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import ModelError
from ...profiler.records.model import ModelIdentity
from ..batch.transfer import fetched
from .config_file import OWN, own_config, own_kind
from .drafter_shapes import require_made_for
from .forward import CausalModel
from .lean import LeanModel
from .stored_tensors import read_tensors, require_tensors, stored_tensors

KIND = "pad"
BESIDE = 2  # features beside the hidden state: probability and entropy


@dataclass(frozen=True, slots=True, kw_only=True)
class PivotShape:
    """A pivot classifier as its config.json describes it."""

    reads: int  # the target's layers before the hidden state that it reads
    hidden: int  # size of that state
    width: int  # of its two layers
    target: str  # ModelIdentity.weights_hash of its target
    threshold: float  # pivot chance from which on a token counts as one, best by labels held out of training
    floor: float  # least probability of the tokens it was trained on

    def __post_init__(self) -> None:
        if self.reads < 0 or self.hidden < 1 or self.width < 1 or not self.target:
            raise ModelError(f"a pivot classifier reads a state of a target it names, got {self}; train it again")
        if not 0.0 <= self.threshold <= 1.0 or not 0.0 <= self.floor <= 1.0:
            raise ModelError(f"a pivot classifier's threshold and floor are chances, got {self}; train it again")


class PivotNet(nn.Module):
    """Two layers of SiLU over (rows, hidden + 2) features, the hidden state normed; one logit a row."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.first = nn.Linear(hidden + BESIDE, width)
        self.second = nn.Linear(width, width)
        self.last = nn.Linear(width, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits (rows,) of being a pivot."""
        states, beside = features[:, :-BESIDE], features[:, -BESIDE:]
        read = torch.cat((self.norm(states), beside), dim=-1)
        logits: Tensor = self.last(F.silu(self.second(F.silu(self.first(read)))))
        return logits.squeeze(-1)


class PivotClassifier:
    """A trained classifier, ready for use; it computes in float32."""

    def __init__(self, net: PivotNet, shape: PivotShape, device: torch.device) -> None:
        self.shape, self.reads = shape, shape.reads
        self._net = net.eval().float().to(device)

    @torch.inference_mode()
    def chances(self, features: Tensor) -> list[float]:
        """Return the chance in [0, 1] that each token is a pivot, by features (rows, hidden + 2)."""
        found: list[float] = fetched(self._net(features).sigmoid()).tolist()
        return found


def features_of(states: Tensor, logits: Tensor, tokens: Tensor) -> Tensor:
    """Return (rows, hidden + 2) float32: the states, the tokens' probabilities, and the entropies there in nats."""
    chances = logits.double().softmax(-1)
    probability, entropy = chances.gather(-1, tokens.unsqueeze(-1)), torch.special.entr(chances).sum(-1, keepdim=True)
    return torch.cat((states.float(), probability.float(), entropy.float()), dim=-1)


def is_pivots(folder: Path) -> bool:
    """Return whether a folder holds a pivot classifier."""
    return own_kind(folder) == KIND


def pivot_shape(folder: Path) -> PivotShape:
    """Return the shape in a classifier's folder; ModelError where there is none, or an impossible one."""
    said = own_config(folder)
    if said.get("kind") != KIND:
        raise ModelError(f"{folder} holds no pivot classifier; train one with: spectune train pad")
    try:
        return PivotShape(**{name: value for name, value in said.items() if name != "kind"})
    except TypeError as error:
        raise ModelError(f"{folder}/config.json describes no pivot classifier: {error}; train it again") from error


def pivot_config(shape: PivotShape) -> dict[str, Any]:
    """Return config.json of a classifier."""
    return {"architectures": ["SpectunePivotClassifier"], OWN: {"kind": KIND, **asdict(shape)}}


def load_pivots(folder: Path, target: CausalModel) -> PivotClassifier:
    """Return a classifier on its target's device; ModelError where it, or the target's states, cannot be read."""
    shape = pivot_shape(folder)
    if not isinstance(target, LeanModel):
        raise ModelError(
            "a pivot classifier reads hidden states, which only the lean forward of the Llama kind shows, and this "
            f"target runs as {target.regime}; leave the classifier out"
        )
    target.require_layers((shape.reads,))
    if target.hidden != shape.hidden:
        raise ModelError(f"{folder} reads states of {shape.hidden} numbers, and the target's have {target.hidden}")
    net = PivotNet(shape.hidden, shape.width)
    wanted = {name: tuple(weight.shape) for name, weight in net.state_dict().items()}
    require_tensors(f"the classifier {folder}", stored_tensors(folder), wanted)
    net.load_state_dict(read_tensors(folder))
    return PivotClassifier(net, shape, target.device)


def require_pivots_of(folder: Path, target: ModelIdentity) -> None:
    """Raise ModelError where a classifier was trained for other weights than a target's."""
    require_made_for(pivot_shape(folder).target, target, f"the classifier {folder}", "pad")
