"""The estimate job: what forwards should take on a device that is not here, always labelled as computed.

Without measurements every cell is a roofline bound. With measured surfaces in the store, the device is assumed to come
as close to its limits as the measured one came to its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from ...db.store import Store
from ...errors import ModelError, RequestError
from ...profiler.catalogue import Catalogued, catalogued
from ...profiler.configuration import read_architecture
from ...profiler.domain import Shape
from ...profiler.efficiency import estimate_surface
from ...profiler.gguf_file import is_gguf
from ...profiler.identity import identify, identify_config, require_no_adapter
from ...profiler.protocols import SurfaceKey
from ...profiler.records.architecture import Architecture
from ...profiler.records.device import AUTO_DTYPE, GIB
from ...profiler.records.efficiency import Efficiency
from ...profiler.records.model import ModelIdentity
from ...profiler.records.surface import LatencySurface
from ...profiler.roofline import bound_surface
from ...runtime.models.formats import draft_role, require_no_drafter
from ..request import Identities, Models
from .evidence import Evidence, evidence_of

TOKENS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 48, 64)
UNCALIBRATED_REGIME = "eager"  # a bound holds in every regime; this one is what runs everywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRequest:
    """A family, a catalogued device, and the shapes wanted of every model."""

    models: Models  # folders, or config.json files by themselves
    device: str  # a name of the catalogue
    dtype: str = AUTO_DTYPE  # or a name of PyTorch's
    regime: str | None = None  # None: that of the measurements there are
    batches: tuple[int, ...] = (1, 8)
    contexts: tuple[int, ...] = (64, 1024, 4096)
    tokens: tuple[int, ...] = TOKENS

    def __post_init__(self) -> None:
        for name, least in (("batches", 1), ("contexts", 0), ("tokens", 1)):
            values = getattr(self, name)
            if not values or min(values) < least or len(set(values)) < len(values):
                raise RequestError(f"{name} must be distinct and at least {least}, got {list(values)}")

    @property
    def shapes(self) -> list[Shape]:
        """Every batch with every context and every number of tokens."""
        return list(product(self.batches, self.contexts, self.tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Computed surfaces of a family on a catalogued device, and what they rest on."""

    device: Catalogued
    identities: Identities
    surfaces: tuple[LatencySurface, ...]  # the target's first
    efficiency: Efficiency | None  # None: the surfaces are bounds
    reasons: tuple[str, ...]  # why measurements in the store were not used, or figures not counted
    assumptions: tuple[str, ...] = ()  # on how weights are stored and experts chosen


def estimate(request: EstimateRequest, store: Store, identities: Identities | None = None) -> Estimate:
    """Compute every surface of a family on a device, store them, and return them.

    The store gives the measurements to go by. Without `identities`, the models' files are hashed. DeviceError where the
    catalogue does not know the device; ModelError where a model's configuration cannot be read, or the bits of its
    weights are not known.
    """
    for path in request.models.drafters.values():
        if draft_role(path) != "draft":
            raise ModelError(f"the forwards of a head are measured, not estimated; leave out {path}, or profile it")
    for path in (request.models.target, *request.models.drafters.values()):
        require_no_drafter(path)
        if path.is_dir():
            require_no_adapter(path)
    wanted = catalogued(request.device)
    request = replace(request, dtype=wanted.device.dtype_for(request.dtype))
    architectures = {
        path: read_architecture(path) for path in (request.models.target, *request.models.drafters.values())
    }
    for path, architecture in architectures.items():
        if architecture.stored.uncounted:
            raise ModelError(f"{path}: {architecture.stored.uncounted}; profile it where it runs instead")
    identities = identities or _identities(request.models, architectures)
    found = evidence_of(wanted, architectures[request.models.target], request.dtype, request.regime, store)
    surfaces = _surfaces(request, wanted, architectures, identities, found)
    store.add_device(wanted.device)
    for model in (identities.target, *identities.drafters.values()):
        store.add_model(model)
    for surface in surfaces:
        store.add_measurements(SurfaceKey.of(surface), surface.measurements)
    return Estimate(
        device=wanted,
        identities=identities,
        surfaces=surfaces,
        efficiency=found.efficiency,
        reasons=found.reasons,
        assumptions=tuple(_assumptions(architectures)),
    )


def _assumptions(architectures: Mapping[Path, Architecture]) -> Iterator[str]:
    """Yield what the bytes of weights rest on where they are neither dense nor stored as they are multiplied."""
    for path, architecture in architectures.items():
        name = path.parent.name if path.name == "config.json" else path.name.removesuffix(".json")
        if architecture.experts:
            yield (
                f"{name}: tokens are taken to spread evenly over {architecture.experts} experts, "
                f"{architecture.experts_per_token} of them each; a forward whose tokens share experts is faster"
            )
        if architecture.stored.method:
            yield (
                f"{name}: {architecture.stored.method} weights count with the bits that are stored, "
                f"{architecture.weight_bytes('bfloat16') / GIB:.1f} GiB in all"
            )


def _identities(models: Models, architectures: Mapping[Path, Architecture]) -> Identities:
    def identity(path: Path, name: str | None) -> ModelIdentity:
        if is_gguf(path) or (path.is_dir() and any(path.glob("*.safetensors"))):
            return identify(path, name)
        file = path / "config.json" if path.is_dir() else path
        return identify_config(file, architectures[path].parameters, name)

    return Identities(
        target=identity(models.target, None),
        drafters={name: identity(path, name) for name, path in models.drafters.items()},
    )


def _surfaces(
    request: EstimateRequest,
    wanted: Catalogued,
    architectures: Mapping[Path, Architecture],
    identities: Identities,
    found: Evidence,
) -> tuple[LatencySurface, ...]:
    models = [(request.models.target, identities.target, "verify")]
    models += [(path, identities.drafters[name], "draft") for name, path in request.models.drafters.items()]
    surfaces = []
    for path, identity, role in models:
        key = SurfaceKey(
            device=wanted.device.fingerprint,
            model=identity.key,
            role=role,
            regime=found.efficiency.regime if found.efficiency else request.regime or UNCALIBRATED_REGIME,
            dtype=request.dtype,
        )
        architecture = architectures[path]
        if found.efficiency is None:
            surfaces.append(bound_surface(architecture, wanted.limits, key, request.shapes))
        else:
            surfaces.append(estimate_surface(architecture, wanted.limits, key, request.shapes, found.efficiency))
    return tuple(surfaces)
