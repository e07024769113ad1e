"""How forwards run: uncaptured, replayed from CUDA graphs, or compiled."""

from __future__ import annotations

from ...errors import MeasurementError
from ...profiler.records.role import CAPTURED
from .block import RoundHead
from .compiled import CompiledModel
from .exit import ExitModel
from .forward import CausalModel
from .graphed import GraphedModel
from .lean import LeanModel


def decoding_regime(priced: str, device_kind: str) -> str:
    """Return how a plan priced in a regime decodes: from CUDA graphs if it was so priced, and on a GPU."""
    return CAPTURED if priced == CAPTURED and device_kind == "cuda" else "eager"


def plain_regime(model: CausalModel) -> str:
    """Return how a model decodes without a plan: from CUDA graphs where our kernels read trees.

    One graph then serves every context. Others would need a capture every `GRAPH_STEP` tokens and for every number of
    texts; whether that pays is not measured.
    """
    return CAPTURED if model.device.type == "cuda" and getattr(model, "reads_trees", False) else "eager"


def in_regime(model: CausalModel, regime: str) -> CausalModel:
    """Return the model with its forwards run in a regime; itself where they already do.

    "eager" leaves transformers' own forwards. Exits and block drafters run uncaptured, beside captured targets too.

    Raises:
        MeasurementError: this model cannot run so, or the regime is not one of this process.
        DeviceError: CUDA graphs for a model that is not on a GPU.
    """
    if model.regime == regime or (regime == "eager" and model.regime == "eager-transformers"):
        return model
    runs_as_it_comes = isinstance(model, RoundHead | ExitModel)
    if regime == CAPTURED:
        return model if runs_as_it_comes else GraphedModel(model)
    if regime == "compiled" and isinstance(model, LeanModel) and not runs_as_it_comes:
        return CompiledModel(model)
    if regime == "compiled":
        raise MeasurementError(
            "only the lean forward itself can be compiled: not transformers' own, nor one whose tokens are made to fit "
            "its target's, nor what reads hidden states of that; use eager or cuda-graph"
        )
    raise MeasurementError(f"a forward of regime {model.regime} cannot run as {regime!r}; use the model as loaded")
