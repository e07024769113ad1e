"""The models of a job: who they are, and loaded to run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..profiler.identity import identify
from ..profiler.records.device import Device
from ..runtime.models.drafter import load_drafter, require_drafter_of
from ..runtime.models.loading import load_model
from ..runtime.models.pivots import load_pivots
from .decoding import Family
from .request import Identities, Models

EXACT_DTYPE = "float32"  # traces are recorded in it, so that ties are as rare as they can be


def identify_all(models: Models) -> Identities:
    """Return who the models are.

    Raises:
        ModelError: they do not share one vocabulary, or a head was trained for another target.
    """
    target = identify(models.target)
    drafters = {name: identify(path, name) for name, path in models.drafters.items()}
    for path in models.drafters.values():
        require_drafter_of(path, target)
    return Identities(target=target, drafters=drafters)


def load_family(models: Models, *, dtype: str, device: str, classifiers: Mapping[str, Path] | None = None) -> Family:
    """Return the models ready to run, and pivot classifiers by name."""
    target = load_model(str(models.target), dtype=dtype, device=device)
    return Family(
        target=target,
        drafters={
            name: load_drafter(str(path), target, dtype=dtype, device=device) for name, path in models.drafters.items()
        },
        judges={name: load_pivots(folder, target) for name, folder in (classifiers or {}).items()},
    )


def torch_device(device: Device) -> str:
    """Return torch's name of a device."""
    return "cpu" if device.kind == "cpu" else f"cuda:{device.index}"
