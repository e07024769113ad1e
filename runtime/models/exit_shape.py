"""What an exit drafter's folder describes: after which layer it leaves its target, and which target."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ModelError
from .config_file import OWN, own_kind
from .config_keys import require_counts, require_nothing_else

KIND = "exit"  # what such a folder calls itself
ARCHITECTURE = "SpectuneExitDrafter"


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
    return own_kind(folder) == KIND


def exit_shape(folder: Path) -> ExitShape:
    """Return the shape in an exit drafter's folder; ModelError where there is none, or an impossible one."""
    try:
        written = json.loads((folder / "config.json").read_text())
        said: dict[str, Any] = {key: value for key, value in written[OWN].items() if key != "kind"}
        require_counts(said, "target")
        shape = ExitShape(**said)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"{folder}/config.json is of no exit drafter: {error!r}; copy or train it again") from error
    require_nothing_else(f"the drafter {folder}", written, ARCHITECTURE, OWN)
    return shape


def exit_config(shape: ExitShape) -> dict[str, Any]:
    """Return config.json of an exit drafter."""
    said = {"kind": KIND, "layers": shape.layers, "width": shape.width, "target": shape.target}
    return {"architectures": [ARCHITECTURE], OWN: said}


def require_exit_of(folder: Path, target: str, weights_hash: str) -> None:
    """Raise ModelError where an exit drafter was trained for other weights than a target's."""
    shape = exit_shape(folder)
    if shape.target != weights_hash:
        raise ModelError(
            f"the drafter {folder} was trained for a target with the weights {shape.target[:12]}, and {target} has "
            f"{weights_hash[:12]}; give the one of this target, or train one: spectune train exit --target {target} "
            f"--exit-layer {shape.layers}"
        )
