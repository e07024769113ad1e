"""Compile the kernels of a first start in two processes at once, before anything is measured.

    python -m spectune.demo.warm TARGET [NAME=DRAFTER ...]

One compiles for the profile's dtype, the other for fp32, in which the demo judges. Shared kernels are compiled by the
first to need them, and read from the cache folder by the other.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..planner.inputs import LOOKUP
from ..planner.strategies import TreePolicy
from ..planner.strategies.base import made
from ..planner.strategies.chain import ChainPolicy
from ..planner.strategies.plain import PlainPolicy
from ..profiler.device import detect
from ..profiler.remembered import cache_folder
from ..runtime.batch.step_config import StepConfig, always
from ..runtime.models.loading import load_tokenizer
from ..tuning.family import EXACT_DTYPE, load_family
from ..tuning.measuring.decoding import decode_timed, names_of, room_for
from ..tuning.prompts import requests_of
from ..tuning.request import Models, ProfileRequest
from ..tuning.steps import Progress
from .prompts import calibration_prompts

TEXTS, TOKENS = 8, 6
LEAST_CORES = 2


def warm(models: Models, progress: Progress) -> None:
    """Compile what the demo runs, where nothing was compiled yet, on a CPU with a core for each process."""
    device = detect("auto")
    native = device.native_dtype
    if device.kind != "cpu" or native == EXACT_DTYPE or cores() < LEAST_CORES or is_warm():
        return
    progress("compiling for this processor, once", 0.0)
    with _beside(models):
        decode_a_little(models, native, _setups(models))


def is_warm() -> bool:
    """Return whether the cache folder holds any compiled kernel."""
    return any((cache_folder() / "kernels").rglob("*.nbc"))


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def decode_a_little(models: Models, dtype: str, setups: Sequence[StepConfig]) -> None:
    """Decode a few tokens of a few prompts in every way."""
    family = load_family(models, dtype=dtype, device="cpu")
    request = ProfileRequest(models=models, prompts=calibration_prompts()[:TEXTS], max_new_tokens=TOKENS)
    requests = [replace(each, stop=frozenset()) for each in requests_of(request, load_tokenizer(str(models.target)))]
    for setup in setups:
        room = room_for(requests, [setup], TEXTS)
        decoder = family.decoder(always(setup), names=names_of(setup), batch=TEXTS, capacity=room)
        decode_timed(decoder, requests, TEXTS)


def _setups(models: Models) -> list[StepConfig]:
    drafted: list[TreePolicy] = [ChainPolicy(length=2), made("eagle2", verify_tokens=6, depth=1, top_k=2)]
    model = next(iter(models.drafters), None)
    return [
        StepConfig(policy=PlainPolicy(), drafter=None),
        *(StepConfig(policy=policy, drafter=model) for policy in drafted if model),
        StepConfig(policy=made("suffix"), drafter=LOOKUP),
    ]


@contextlib.contextmanager
def _beside(models: Models) -> Iterator[None]:
    """Run the other process meanwhile; its output is of no use, and what it fails to compile is compiled later."""
    drafters = [f"{name}={folder}" for name, folder in models.drafters.items()]
    asked = [sys.executable, "-m", "spectune.demo.warm", str(models.target), *drafters]
    child = subprocess.Popen(asked, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
        child.wait()
    finally:
        child.kill()
        child.wait()


def main() -> None:
    """Compile for fp32, what copies text first: the other process comes to it last."""
    target, *drafters = sys.argv[1:]
    named = dict(each.split("=", 1) for each in drafters)
    models = Models(target=Path(target), drafters={name: Path(folder) for name, folder in named.items()})
    decode_a_little(models, EXACT_DTYPE, _setups(models)[::-1])


if __name__ == "__main__":
    main()
