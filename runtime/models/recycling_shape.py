"""What a Token Recycling drafter's folder describes: its target, and how many successors of each token are stored."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ModelError
from .config_file import OWN, own_kind
from .config_keys import require_counts, require_nothing_else

if TYPE_CHECKING:  # who asks what a folder says needs no tensor
    from torch import Tensor

KIND = "recycling"  # what such a folder calls itself
ARCHITECTURE = "SpectuneRecyclingDrafter"
TENSORS = ("successors", "target")  # which nothing computes with; see `recycling_tensors`


@dataclass(frozen=True, slots=True, kw_only=True)
class RecyclingShape:
    """A Token Recycling drafter as its config.json describes it."""

    successors: int  # kept of every token
    target: str  # ModelIdentity.weights_hash of its target

    def __post_init__(self) -> None:
        if self.successors < 1:
            raise ModelError(f"every token needs 1 successor or more, got {self}; make the folder again")


def is_recycling(folder: Path) -> bool:
    """Return whether a folder holds a Token Recycling drafter and no language model."""
    return own_kind(folder) == KIND


def recycling_shape(folder: Path) -> RecyclingShape:
    """Return the shape in a Token Recycling drafter's folder; ModelError where there is none, or an impossible one."""
    try:
        written = json.loads((folder / "config.json").read_text())
        said: dict[str, Any] = {key: value for key, value in written[OWN].items() if key != "kind"}
        require_counts(said, "target")
        shape = RecyclingShape(**said)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"{folder}/config.json recycles no tokens: {error!r}; make the folder again") from error
    require_nothing_else(f"the drafter {folder}", written, ARCHITECTURE, OWN)
    return shape


def recycling_config(shape: RecyclingShape) -> dict[str, Any]:
    """Return config.json of a Token Recycling drafter."""
    said = {"kind": KIND, "successors": shape.successors, "target": shape.target}
    return {"architectures": [ARCHITECTURE], OWN: said}


def recycling_tensors(shape: RecyclingShape) -> dict[str, Tensor]:
    """Return tensors in place of weights: surfaces and traces of such a drafter are looked up by their bytes."""
    import torch

    return {"successors": torch.tensor([shape.successors]), "target": torch.tensor([*bytes.fromhex(shape.target)])}


def require_recycling_of(folder: Path, target: str, weights_hash: str) -> None:
    """Raise ModelError where a Token Recycling drafter was made for other weights than a target's."""
    shape = recycling_shape(folder)
    if shape.target != weights_hash:
        raise ModelError(
            f"the drafter {folder} was made for a target with the weights {shape.target[:12]}, and {target} has "
            f"{weights_hash[:12]}; give the one of this target, or make one: spectune train recycling --target {target}"
        )
