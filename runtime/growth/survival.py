"""Calibrated survival of candidates on a device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...profiler.records.calibration import SurvivalCurve
from ..transfer import sent


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCurve:
    """A survival curve: linear between its points, constant beyond them."""

    log_probs: Tensor  # (points,) float64
    survivals: Tensor  # (points,) float64
    slopes: Tensor  # (points,) float64, behind each point; 0 behind the last
    first: tuple[float, float]  # log-probability and survival of the first point

    def at(self, scores: Tensor) -> Tensor:
        """Return float64 survivals, to the bit what `SurvivalCurve.at` computes; 0 where there is no candidate."""
        log_probs = scores.double()
        left = torch.searchsorted(self.log_probs, log_probs, right=True) - 1
        survived = self.slopes[left] * (log_probs - self.log_probs[left]) + self.survivals[left]
        return survived.masked_fill(log_probs < self.first[0], self.first[1]).masked_fill(scores == -torch.inf, 0.0)


def device_curve(curve: SurvivalCurve, device: torch.device) -> DeviceCurve:
    """Return a curve on a device."""
    log_probs, survivals = np.array(curve.log_probs), np.array(curve.survivals)
    with np.errstate(divide="ignore", invalid="ignore"):  # of two points in one place the slope is never asked
        slopes = np.diff(survivals) / np.diff(log_probs)
    return DeviceCurve(
        log_probs=sent(log_probs, device),
        survivals=sent(survivals, device),
        slopes=sent(np.append(slopes, 0.0), device),
        first=(curve.log_probs[0], curve.survivals[0]),
    )
