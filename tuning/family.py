"""The models of a job: who they are, and loaded to run."""

from __future__ import annotations

from ..profiler.identity import identify
from ..profiler.records.device import Device
from ..runtime.models.loading import load_model, require_one_vocabulary
from .decoding import Family
from .request import Identities, Models

EXACT_DTYPE = "float32"  # traces are recorded in it, so that ties are as rare as they can be


def identify_all(models: Models) -> Identities:
    """Return who the models are, after checking that they share one vocabulary."""
    target = identify(models.target)
    drafters = {name: identify(path, name) for name, path in models.drafters.items()}
    for path in models.drafters.values():
        require_one_vocabulary(str(models.target), str(path))
    return Identities(target=target, drafters=drafters)


def load_family(models: Models, *, dtype: str, device: str) -> Family:
    """Return the models ready to run."""
    return Family(
        target=load_model(str(models.target), dtype=dtype, device=device),
        drafters={name: load_model(str(path), dtype=dtype, device=device) for name, path in models.drafters.items()},
    )


def torch_device(device: Device) -> str:
    """Return torch's name of a device."""
    return "cpu" if device.kind == "cpu" else f"cuda:{device.index}"
