"""How far a device's pace strays between a profile and the use of its plan.

A profile sees the pace of its own minutes. How fast the device is later, only later tells: every validation gauges it,
and so does every hour in which decoders timed plain rounds. Until there are some, what devices of its kind did stands
for a few of them:

    variance = (PRIOR_PACES * prior^2 + sum of log(pace)^2) / (PRIOR_PACES + paces)

Not all forwards stray alike: who takes a core's arithmetic away slows large ones more, who takes its caches small ones.
So a speed-up, which is of rounds of one size over rounds of another, strays too, by a share of the pace.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

PRIOR = {"cpu": 0.15, "cuda": 0.02}  # by Device.kind; of CPUs what 36 profiles of benchmarks/decode.py strayed by
PRIOR_PACES = 4  # validations or hours that it stands for
APART = 0.6  # of it: how far two forwards of different sizes stray from each other; benchmarks/pace.py: 0.46, 0.68


def pace_error(kind: str, paces: Sequence[float]) -> float:
    """Return the relative standard deviation of a device's pace when a plan is used.

    Args:
        kind: Device.kind.
        paces: of the device in validations and hours of decoding, over its pace when it was profiled.
    """
    strayed = math.fsum(math.log(pace) ** 2 for pace in paces)
    return math.sqrt((PRIOR_PACES * PRIOR[kind] ** 2 + strayed) / (PRIOR_PACES + len(paces)))
