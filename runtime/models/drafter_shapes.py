"""What folders of drafters beside a target describe: of blocks, of exits, of Token Recycling."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ...errors import ModelError
from .config_file import OWN, is_dflash, own_kind, written_config
from .config_keys import require_counts, require_nothing_else
from .dflash_shape import DFlashShape, dflash_shape

if TYPE_CHECKING:  # who asks what a folder says needs no tensor
    from torch import Tensor

    from ...profiler.records.model import ModelIdentity

Kind = Literal["medusa", "ctc", "specformer", "dflash"]
Shape = TypeVar("Shape")
KINDS: tuple[Kind, ...] = ("medusa", "ctc", "specformer")  # that `spectune train` makes


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """A block drafter as its config.json describes it."""

    kind: Kind
    depth: int  # tokens it was trained to say
    reads: tuple[int, ...]  # how many of the target's layers each hidden state it reads has passed
    target: str  # ModelIdentity.weights_hash of its target; "" of kind "dflash", which does not say
    frames: int = 0  # of kind "ctc": places that say a token or nothing
    intermediate: int = 0  # of kinds "ctc" and "specformer": width of the MLP
    width: int = 0  # of kind "specformer": of what stands for a committed token
    dflash: DFlashShape | None = None  # of kind "dflash": its layers

    def __post_init__(self) -> None:
        is_known = self.kind in KINDS or self.dflash is not None
        if not is_known or self.depth < 1 or not self.reads:
            raise ModelError(f"a block drafter is one of {KINDS} of depth >= 1 that reads the target, got {self}")
        if self.kind == "ctc" and (self.frames < self.depth or self.intermediate < 1):
            raise ModelError(f"a CTC drafter needs frames >= depth and an MLP, got {self}; train it again")
        if self.kind == "specformer" and min(self.width, self.intermediate) < 1:
            raise ModelError(f"a SpecFormer needs a width and an MLP, got {self}; train it again")


def is_block(folder: Path) -> bool:
    """Return whether a folder holds a block drafter and no language model."""
    return own_kind(folder) in KINDS or is_dflash(written_config(folder))


def block_shape(folder: Path) -> BlockShape:
    """Return the shape in a block drafter's folder; ModelError where there is none, or an impossible one."""
    public = written_config(folder)
    if is_dflash(public):
        layers = dflash_shape(f"the drafter {folder}", public)
        return BlockShape(kind="dflash", depth=layers.block - 1, reads=layers.reads, target="", dflash=layers)
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


RECYCLING = "recycling"  # what such a folder calls itself
RECYCLING_ARCHITECTURE = "SpectuneRecyclingDrafter"
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
    return own_kind(folder) == RECYCLING


def recycling_shape(folder: Path) -> RecyclingShape:
    """Return the shape in a Token Recycling drafter's folder; ModelError where there is none, or an impossible one."""
    return _read(folder, RecyclingShape, RECYCLING_ARCHITECTURE, "recycles no tokens", "make the folder again")


def recycling_config(shape: RecyclingShape) -> dict[str, Any]:
    """Return config.json of a Token Recycling drafter."""
    return {"architectures": [RECYCLING_ARCHITECTURE], OWN: {"kind": RECYCLING} | asdict(shape)}


def _read(folder: Path, kind: type[Shape], architecture: str, wrong: str, remedy: str) -> Shape:
    """Return a shape of counts and a target's hash, as a folder's config.json tells it, else ModelError."""
    try:
        written = json.loads((folder / "config.json").read_text())
        said: dict[str, Any] = {key: value for key, value in written[OWN].items() if key != "kind"}
        require_counts(said, "target")
        shape = kind(**said)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"{folder}/config.json {wrong}: {error!r}; {remedy}") from error
    require_nothing_else(f"the drafter {folder}", written, architecture, OWN)
    return shape


def recycling_tensors(shape: RecyclingShape) -> dict[str, Tensor]:
    """Return tensors in place of weights: surfaces and traces of such a drafter are looked up by their bytes."""
    import torch

    return {"successors": torch.tensor([shape.successors]), "target": torch.tensor([*bytes.fromhex(shape.target)])}


def require_made_for(own: str, target: ModelIdentity, what: str, maker: str, *more: str) -> None:
    """Raise ModelError where `what` has another target's weights than these; `spectune train` makes one by `maker`."""
    if own != target.weights_hash:
        raise ModelError(
            f"{what} was trained for a target with the weights {own[:12]}, and {target.name} has "
            f"{target.weights_hash[:12]}; give the one of this target, or train one: "
            f"{' '.join(('spectune train', maker, '--target', target.name, *more))}"
        )


EXIT = "exit"  # what such a folder calls itself
EXIT_ARCHITECTURE = "SpectuneExitDrafter"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitShape:
    """An exit drafter as its config.json describes it."""

    layers: int  # of the target, that draft
    width: int  # of the imitation network
    target: str  # ModelIdentity.weights_hash of its target

    def __post_init__(self) -> None:
        if min(self.layers, self.width) < 1:
            raise ModelError(f"an exit drafter has layers and a width of 1 or more, got {self}; train it again")


def is_exit(folder: Path) -> bool:
    """Return whether a folder holds an exit drafter and no language model."""
    return own_kind(folder) == EXIT


def exit_shape(folder: Path) -> ExitShape:
    """Return the shape in an exit drafter's folder; ModelError where there is none, or an impossible one."""
    return _read(folder, ExitShape, EXIT_ARCHITECTURE, "is of no exit drafter", "copy or train it again")


def exit_config(shape: ExitShape) -> dict[str, Any]:
    """Return config.json of an exit drafter."""
    return {"architectures": [EXIT_ARCHITECTURE], OWN: {"kind": EXIT} | asdict(shape)}
