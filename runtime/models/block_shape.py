"""What a block drafter's folder describes: its kind, its shape, its target."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...errors import ModelError
from .config_file import OWN, own_kind
from .config_keys import require_counts, require_nothing_else

Kind = Literal["medusa", "ctc", "specformer"]
KINDS: tuple[Kind, ...] = ("medusa", "ctc", "specformer")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """A block drafter as its config.json describes it."""

    kind: Kind
    depth: int  # tokens it was trained to say
    reads: tuple[int, ...]  # how many of the target's layers each hidden state it reads has passed
    target: str  # ModelIdentity.weights_hash of its target
    frames: int = 0  # of kind "ctc": places that say a token or nothing
    intermediate: int = 0  # of kinds "ctc" and "specformer": width of the MLP
    width: int = 0  # of kind "specformer": of what stands for a committed token

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.depth < 1 or not self.reads:
            raise ModelError(f"a block drafter is one of {KINDS} of depth >= 1 that reads the target, got {self}")
        if self.kind == "ctc" and (self.frames < self.depth or self.intermediate < 1):
            raise ModelError(f"a CTC drafter needs frames >= depth and an MLP, got {self}; train it again")
        if self.kind == "specformer" and min(self.width, self.intermediate) < 1:
            raise ModelError(f"a SpecFormer needs a width and an MLP, got {self}; train it again")


def is_block(folder: Path) -> bool:
    """Return whether a folder holds a block drafter and no language model."""
    return own_kind(folder) in KINDS


def block_shape(folder: Path) -> BlockShape:
    """Return the shape in a block drafter's folder; ModelError where there is none, or an impossible one."""
    try:
        written = json.loads((folder / "config.json").read_text())
        said: dict[str, Any] = written[OWN]
        require_counts(said, "kind", "target", "reads")
        require_counts(dict(enumerate(said["reads"])))
        shape = BlockShape(**{**said, "reads": tuple(said["reads"])})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"{folder}/config.json describes no block drafter: {error}; copy or train it again") from error
    require_nothing_else(f"the drafter {folder}", written, _architecture(shape.kind), OWN)
    return shape


def block_config(shape: BlockShape) -> dict[str, Any]:
    """Return config.json of a block drafter."""
    said: dict[str, Any] = {"kind": shape.kind, "depth": shape.depth, "reads": list(shape.reads)}
    said["target"] = shape.target
    if shape.kind == "ctc":
        said |= {"frames": shape.frames, "intermediate": shape.intermediate}
    if shape.kind == "specformer":
        said |= {"width": shape.width, "intermediate": shape.intermediate}
    return {"architectures": [_architecture(shape.kind)], OWN: said}


def _architecture(kind: Kind) -> str:
    return f"Spectune{kind.capitalize()}Drafter"
