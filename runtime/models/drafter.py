"""Load what a target's drafter folder holds: a language model, or a head that reads the target's hidden states."""

from __future__ import annotations

from pathlib import Path

from .eagle import EagleHead
from .eagle_shape import head_shape, is_head, read_tensors
from .forward import CausalModel
from .loading import load_model
from .tapped import require_lean


def load_drafter(location: str, target: CausalModel, *, dtype: str, device: str = "cpu") -> CausalModel:
    """Return the drafter in the fastest form known.

    Args:
        location: a folder, or a hub id of a language model.
        target: loaded in the same number format on the same device.
        dtype: one of `DTYPES`.
        device: a torch device.

    Raises:
        ModelError: it cannot be loaded, or a head does not fit the target.
    """
    if is_head(Path(location)):
        return load_head(Path(location), target)
    return load_model(location, dtype=dtype, device=device)


def load_head(folder: Path, target: CausalModel) -> EagleHead:
    """Return a head in the number format and on the device of its target.

    Raises:
        ModelError: it cannot be read, or does not fit the target.
    """
    return EagleHead(read_tensors(folder), head_shape(folder), require_lean(target))
