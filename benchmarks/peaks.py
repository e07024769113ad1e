"""Does the planner know how much memory decoding takes? Chains, trees, copies and stacks beside what it says.

    python benchmarks/peaks.py [--device cpu] [--dtype auto] [--temperature 0]

The demo family decodes the longest texts of a cell with every slot busy, and the most bytes that torch's allocator had
handed out at once, weights and caches included, stand beside `planner.memory`'s peak for that way, batch and context
and these prompts. A plan, which knows no prompts, takes a whole context for one.
Heads that lie beside the target take part with a chain and a tree each. A GPU's allocator counts by itself; a CPU's
tells torch's profiler, and models' weights are copied out of the mapped file first.
`holds` is true where every peak is predicted within 5 %. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from spectune.demo.story import family_folder, family_models
from spectune.planner.memory.peak import load_of, peak_bytes, workspace_bytes
from spectune.planner.pricing.cells import Cell
from spectune.planner.records.footprint import Footprint
from spectune.planner.strategies.chain import ChainPolicy
from spectune.planner.strategies.stack import StackPolicy
from spectune.profiler.device import detect
from spectune.profiler.identity import identify
from spectune.runtime.batch.sequence import Request
from spectune.runtime.batch.step_config import StepConfig, always
from spectune.runtime.engine.engine import Engine
from spectune.runtime.models.drafter import load_drafter
from spectune.runtime.models.forward import CausalModel
from spectune.runtime.models.loading import causal_model, load_pretrained
from spectune.runtime.models.tapped import tapped_for
from spectune.tests.support.allocator import count_bytes
from spectune.tuning.measuring.decoding import Family, decode_timed
from spectune.tuning.parts import footprints_of

from identity import LOOKUP, PROMPT_TOKENS, WAYS, drafters_of, random_prompts  # isort: skip
from result import print_result  # isort: skip

BATCHES = (1, 8)
CONTEXT, NEW_TOKENS = 128, 32
TOLERANCE = 0.05
HEADS = ("eagle3", "medusa", "ctc", "specformer", "exit", "recycling")  # beside the target; those that are there


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A family, what the allocator handed out for each of its models, and what the planner knows of them."""

    family: Family
    held_bytes: Mapping[str, int]
    footprints: Mapping[str, Footprint]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The allocator's peak of one way of decoding."""

    way: str
    batch: int
    measured_bytes: int
    predicted_bytes: int

    @property
    def error(self) -> float:
        """How far the prediction is off, relative to what was measured."""
        return self.predicted_bytes / self.measured_bytes - 1.0


def main() -> int:
    """Measure every way; return 1 where a peak is off by more than 5 %."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--temperature", type=float, default=0.0)
    asked = parser.parse_args()
    here = detect(asked.device)
    family = counted_family(here.dtype_for(asked.dtype), asked.device, HEADS)
    peaks = all_peaks(family, asked.device, asked.temperature)
    holds = worst(peaks) <= TOLERANCE
    print(f"{'ok  ' if holds else 'MISS'} every peak within 5 % of the planner's ({worst(peaks):.1%})")
    rows = [{**asdict(peak), "error": peak.error} for peak in peaks]
    not_run = [] if torch.cuda.is_available() else ["H200"]
    result = {"bench": "peaks", "device": here.label, "rows": rows, "holds": holds, "not_run": not_run}
    print_result(result)
    return 0 if holds else 1


def worst(peaks: Sequence[Peak]) -> float:
    """Return the largest relative error."""
    return max(abs(peak.error) for peak in peaks)


def counted_family(dtype: str, device: str, heads: Sequence[str] = ()) -> Counted:
    """Return the family with all weights in memory of the allocator, counted model by model.

    Args:
        dtype: number format of weights and caches.
        device: a torch device.
        heads: names of folders beside the target; those that are there are loaded too.
    """
    models = family_models(family_folder())
    beside = {name: models.target.parent / name for name in heads}
    there = {name: folder for name, folder in beside.items() if (folder / "config.json").exists()}
    folders = {"target": models.target, **models.drafters, **there}
    found: dict[str, CausalModel] = {}
    held = {name: count_bytes(_loading(found, name, folders[name], dtype, device), device) for name in folders}
    return Counted(
        family=Family(target=found["target"], drafters={name: found[name] for name in folders if name != "target"}),
        held_bytes={name: count.left_bytes for name, count in held.items()},
        footprints=footprints_at(folders, dtype),
    )


def footprints_at(folders: Mapping[str, Path], dtype: str) -> dict[str, Footprint]:
    """Return the planner's footprints of the target's and its drafters' folders."""
    known = {name: identify(folder) for name, folder in folders.items()}
    found = footprints_of(known["target"], known.values(), dtype)
    return {name: found[model.key] for name, model in known.items()}


def ways_of(have: Counted) -> dict[str, StepConfig]:
    """Return every way of decoding: the models' own, and of each head a chain and a tree."""
    trees = {"chain": ChainPolicy(length=4), "EAGLE-2": WAYS["EAGLE-2"].policy}
    heads = [name for name in HEADS if name in have.family.drafters]
    own = {f"{head}, {tree}": StepConfig(policy=trees[tree], drafter=head) for head in heads for tree in trees}
    return {**WAYS, **own}


def _loading(found: dict[str, CausalModel], name: str, folder: Path, dtype: str, device: str) -> Callable[[], None]:
    """Return a call that puts a model among those found and leaves nothing else behind."""

    def load() -> None:
        if name in HEADS:
            found[name] = load_drafter(str(folder), found["target"], dtype=dtype, device=device)
            gc.collect()
            return
        pretrained = deepcopy(load_pretrained(str(folder), dtype=dtype, device=device))
        found[name] = causal_model(pretrained, str(folder))
        del pretrained
        gc.collect()

    return load


def all_peaks(have: Counted, device: str, temperature: float) -> list[Peak]:
    """Return the peak of every way of decoding at every batch."""
    prompts = random_prompts(4 * max(BATCHES), np.random.default_rng(0))
    length = CONTEXT - NEW_TOKENS
    requests = [
        Request(
            prompt=(prompt * (length // PROMPT_TOKENS[0] + 1))[:length],
            max_new_tokens=NEW_TOKENS,
            temperature=temperature,
            seed=place,
        )
        for place, prompt in enumerate(prompts)
    ]
    peaks = []
    for batch in BATCHES:
        for way, setup in ways_of(have).items():
            peaks.append(peak_of(way, setup, have, requests[: 2 * batch], batch, device))
            _show(peaks[-1])
    return peaks


def peak_of(way: str, setup: StepConfig, have: Counted, requests: Sequence[Request], batch: int, device: str) -> Peak:
    """Decode all requests one way; the planner is told the way, the batch, the context and the longest prompt."""
    whole = load_of(Cell(batch=batch, context=CONTEXT), setup.policy, setup.run_tokens)
    load = replace(whole, prompt_tokens=max(len(request.prompt) for request in requests))
    names = models_of(setup)

    def decode() -> None:
        drafters = drafters_of(have.family, [setup], batch, load.capacity)
        target = tapped_for(have.family.target, [have.family.drafters[name] for name in names])
        decoder = Engine(target, drafters, always(setup), slots=batch, capacity=load.capacity)
        decode_timed(decoder, requests, batch)

    return Peak(
        way=way,
        batch=batch,
        measured_bytes=sum(have.held_bytes[name] for name in ("target", *names))
        + count_bytes(decode, device).peak_bytes,
        predicted_bytes=peak_bytes(
            have.footprints["target"],
            [have.footprints[name] for name in names],
            load,
            device_kind=torch.device(device).type,
            is_sampled=any(request.temperature > 0 for request in requests),
            library_bytes=workspace_bytes(detect(device)),
        ),
    )


def models_of(setup: StepConfig) -> tuple[str, ...]:
    """Return the names of the models that a way drafts with."""
    if isinstance(setup.policy, StackPolicy):
        return setup.policy.models
    return () if setup.drafter in (None, LOOKUP) else (str(setup.drafter),)


def _show(peak: Peak) -> None:
    mib = [size / 2**20 for size in (peak.measured_bytes, peak.predicted_bytes)]
    print(
        f"batch {peak.batch}  {peak.way:16} measured {mib[0]:7.2f} MiB  predicted {mib[1]:7.2f} MiB  {peak.error:+.1%}",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
