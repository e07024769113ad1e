"""The models of a job: who they are, and loaded to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..errors import DeviceError, RequestError
from ..profiler.device import detect
from ..profiler.identity import identify
from ..profiler.records.device import Device
from ..profiler.records.model import ModelIdentity
from ..profiler.records.role import CAPTURED
from ..runtime.models.drafter import load_drafter, require_drafter_of
from ..runtime.models.formats import draft_role, own_packed
from ..runtime.models.forward import CausalModel
from ..runtime.models.loading import load_model, require_format
from ..runtime.models.pivots import load_pivots
from ..runtime.models.regime import in_regime
from ..runtime.models.rehearsal import require_loadable
from .measuring.decoding import Family
from .request import Identities, Models

AUTO_REGIME = "auto"  # "cuda-graph" on a GPU where it can be, else "eager"
EXACT_DTYPE = "float32"  # what is judged token by token is decoded in it, so that ties are as rare as they can be


def identify_all(models: Models) -> Identities:
    """Return the identities of the models.

    RequestError where two drafters have the same weights; ModelError where the vocabularies differ, a head was trained
    for another target, or a model cannot be loaded.
    """
    target = identify(models.target)
    drafters = {name: identify(path, name) for name, path in models.drafters.items()}
    require_apart(drafters)
    require_loadable(str(models.target))
    for path in models.drafters.values():
        require_drafter_of(path, target)
        if draft_role(path) == "draft":
            require_loadable(str(path))
    return Identities(target=target, drafters=drafters)


def require_apart(drafters: Mapping[str, ModelIdentity]) -> None:
    """Raise RequestError where two drafters are the same weights: what is measured of one is measured of both."""
    names: dict[str, str] = {}
    for name, model in drafters.items():
        other = names.setdefault(model.key, name)
        if other != name:
            raise RequestError(
                f"the drafters {other!r} and {name!r} are the same weights ({model.key}); leave one of them out"
            )


def load_family(
    models: Models,
    *,
    dtype: str,
    device: str,
    classifiers: Mapping[str, Path] | None = None,
    regime: str = "eager",
) -> Family:
    """Load the models for a regime, and pivot classifiers by name.

    MeasurementError where a model cannot run in the regime; DeviceError: CUDA graphs were requested off a GPU.
    """
    target = load_model(str(models.target), dtype=dtype, device=device)
    family = Family(
        target=target,
        drafters={
            name: load_drafter(str(path), target, dtype=dtype, device=device) for name, path in models.drafters.items()
        },
        judges={name: load_pivots(folder, target) for name, folder in (classifiers or {}).items()},
    )
    return family_in(family, regime)


def settled_regime(asked: str, device: Device) -> str:
    """Return the regime of the forwards: for "auto", CUDA graphs on a GPU, else eager.

    Exits, block drafters and Token Recycling run eagerly beside a captured target.
    """
    if asked != AUTO_REGIME:
        return asked
    return CAPTURED if device.kind == "cuda" else "eager"


def family_in(family: Family, regime: str) -> Family:
    """Return the family with its forwards run in a regime; errors are those of `load_family`."""
    if regime == "eager":
        return family
    drafters = {name: in_regime(model, regime) for name, model in family.drafters.items()}
    return replace(family, target=in_regime(family.target, regime), drafters=drafters)


def require_regime(regime: str, device: Device) -> None:
    """Raise DeviceError for CUDA graphs on a device that is no GPU, before any model is loaded."""
    if regime == CAPTURED and device.kind != "cuda":
        raise DeviceError(f"CUDA graphs need models on a GPU and these are to run on {device.label}; use regime eager")


def require_formats(models: Models, dtype: str, device: Device) -> None:
    """Raise ModelError where a language model's weights cannot be read in a number format; no weight is read."""
    require_format(str(models.target), dtype, torch_device(device))
    for path in models.drafters.values():
        if draft_role(path) == "draft":
            require_format(str(path), own_packed(path, dtype), torch_device(device))


def load_here(folder: Path, device: str, dtype: str) -> CausalModel:
    """Load a model on a device of this machine ("auto", "cpu" or "cuda:N"), in a number format or "auto"."""
    here = detect(device)
    return load_model(str(folder), dtype=here.dtype_for(dtype), device=torch_device(here))


def torch_device(device: Device) -> str:
    """Return torch's name of a device."""
    return "cpu" if device.kind == "cpu" else f"cuda:{device.index}"
