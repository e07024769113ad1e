"""How far a device's pace strays between a profile and the use of its plan.

A profile sees the pace of its own minutes. Later paces come from validations, and from hours in which decoders timed
plain rounds. Until there are some, a prior of the device's kind stands for a few of them:

    variance = (PRIOR_PACES * prior^2 + sum of log(pace)^2) / (PRIOR_PACES + paces)

Forwards do not stray alike: lost core arithmetic slows large ones more, lost caches small ones. So a speed-up, which
compares rounds of two sizes, strays too, by a share of the pace.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

PRIOR = {"cpu": 0.15, "cuda": 0.02}  # by Device.kind; of CPUs what 36 profiles of benchmarks/decode.py strayed by
PRIOR_PACES = 4  # validations or hours that it stands for
APART = 0.6  # of it: how far two forwards of different sizes stray from each other; benchmarks/pace.py: 0.46, 0.68


def pace_error(kind: str, paces: Sequence[float]) -> float:
    """Return the relative standard deviation of a device's pace when a plan is used."""
    strayed = math.fsum(math.log(pace) ** 2 for pace in paces)
    return math.sqrt((PRIOR_PACES * PRIOR[kind] ** 2 + strayed) / (PRIOR_PACES + len(paces)))
