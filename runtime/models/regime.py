"""How forwards run: as they come, replayed from CUDA graphs, or compiled."""

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
    """Return how a plan decodes that was priced in a regime: on a GPU from CUDA graphs where it was."""
    return CAPTURED if priced == CAPTURED and device_kind == "cuda" else "eager"


def plain_regime(model: CausalModel) -> str:
    """Return how a model decodes without a plan: from CUDA graphs where one of them serves every context.

    That is where our kernels read trees. Others would be captured anew every `GRAPH_STEP` tokens and for every number
    of texts, or in vain; whether that pays has been measured by nobody where there is no plan.
    """
    return CAPTURED if model.device.type == "cuda" and getattr(model, "reads_trees", False) else "eager"


def in_regime(model: CausalModel, regime: str) -> CausalModel:
    """Return the model with its forwards run in a regime; itself where they do already.

    Exits and block drafters run as they come beside captured targets, too: nobody captures what they do.

    Args:
        model: as it was loaded, or in that regime already.
        regime: "eager", "cuda-graph" or "compiled"; "eager" leaves transformers' own forwards what they are.

    Raises:
        MeasurementError: this model cannot run so, or the regime is not one of this process.
        DeviceError: CUDA graphs are asked of a model that is not on a GPU.
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
